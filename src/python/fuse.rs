//! Binary fuse filters: built.

use super::batch::{Batch, Distinct, THREADED_BUILD, collected, threads};
use super::filter::{Filter, structure};
use super::handle::Handle;
use super::keys::{self, Secret, hasher};
use super::kinds::kind_class;
use super::release::released;
use crate::distinct::Highs;
use crate::fuse::{Fuse as Kernel, Shape};
use crate::kernel::Kernel as _;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// From this many keys on, a build is attempted before distinct keys are counted. Fewer are counted
/// quickly, and more of their first attempts fail.
const TRIED: usize = 1 << 17;

/// A `planning.fuse.FuseSize`.
#[derive(FromPyObject)]
pub struct Size {
    arity: u32,
    fingerprint_bits: u32,
    segment_length: u32,
    segments: u64,
}

impl Size {
    fn shape(&self) -> PyResult<Shape> {
        let &Size { arity, fingerprint_bits, segment_length, segments } = self;
        Ok(Shape::new(arity, fingerprint_bits, segment_length, segments)?)
    }

    fn build(&self, keys: &Distinct, _capacity: u64) -> PyResult<Kernel> {
        Ok(Kernel::build(self.shape()?, &keys.hashes, keys.threads)?)
    }
}

kind_class! {
    /// A binary fuse filter.
    Fuse(Kernel) extends Filter, build from Size
}

#[pymethods]
impl Fuse {
    /// Build a filter of keys of any type. `size` is called with the number of keys and returns the
    /// size to build. Many keys are tried as if none were repeated; if that fails, distinct keys
    /// are counted.
    #[staticmethod]
    #[pyo3(signature = (keys, size, seed=0, key=None))]
    fn _build_any(
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = keys::seed)] seed: u64,
        #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
    ) -> PyResult<Handle> {
        let hasher = hasher(seed, key)?;
        let keys = Batch::new(keys, &hasher)?;
        let size = |count: usize| size.call1((count,))?.extract::<Size>();
        if keys.len() >= TRIED {
            let threads = threads(keys.len(), THREADED_BUILD);
            let highs = collected(py, &keys, &hasher, threads, |hash| hash.hi)?;
            if let Some(highs) = Highs::new(highs)
                && !released(py, || highs.seem_repeated())??
            {
                // A size that is refused for a number of keys may be accepted for fewer distinct ones.
                let planned = match size(highs.len()) {
                    Err(error) if !error.is_instance_of::<PyValueError>(py) => return Err(error),
                    planned => planned.ok(),
                };
                if let Some(size) = planned
                    && let shape = size.shape()?
                    && let Some(kernel) =
                        released(py, || Kernel::of_highs(shape, &highs, threads))??
                {
                    let capacity = kernel.count();
                    return Ok(Handle::new(kernel, capacity, hasher));
                }
            }
        }
        let distinct = Distinct::of(py, &keys, hasher)?;
        Self::_build(py, size(distinct.hashes.len())?, &distinct, 0)
    }

    /// The number of slots per key (K).
    #[getter]
    fn arity(self_: &Bound<'_, Self>) -> PyResult<u32> {
        Ok(structure::<Kernel>(self_)?.1.shape().arity)
    }

    /// The number of bits per slot (r): the rate is 2^−r.
    #[getter]
    fn fingerprint_bits(self_: &Bound<'_, Self>) -> PyResult<u32> {
        Ok(structure::<Kernel>(self_)?.1.shape().fingerprint_bits)
    }

    /// Slots of a segment.
    #[getter]
    fn _segment_length(self_: &Bound<'_, Self>) -> PyResult<u32> {
        Ok(structure::<Kernel>(self_)?.1.shape().segment_length)
    }

    /// The number of segments.
    #[getter]
    fn _segments(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(structure::<Kernel>(self_)?.1.shape().segments)
    }

    /// The number of attempts with different hashes until peeling succeeded.
    #[getter]
    fn _attempts(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(structure::<Kernel>(self_)?.1.attempts())
    }
}
