//! Binary fuse filters: built.

use super::batch::Distinct;
use super::filter::{Filter, structure};
use super::handle::Handle;
use crate::fuse::{Fuse as Kernel, Shape};
use pyo3::prelude::*;

/// What `planning.fuse.Size` says.
#[derive(FromPyObject)]
pub struct Size {
    arity: u32,
    fingerprint_bits: u32,
    segment_length: u32,
    segments: u64,
}

/// A binary fuse filter.
#[pyclass(extends = Filter, subclass, frozen, module = "tamis._native")]
pub struct Fuse;

#[pymethods]
impl Fuse {
    #[new]
    fn new(handle: &Handle) -> PyResult<PyClassInitializer<Fuse>> {
        handle.of::<Kernel>()?;
        Ok(Filter::new(handle).add_subclass(Fuse))
    }

    /// The filter of distinct keys, of this size.
    #[staticmethod]
    fn _build(py: Python<'_>, size: Size, keys: &Distinct) -> PyResult<Handle> {
        let Size { arity, fingerprint_bits, segment_length, segments } = size;
        let shape = Shape::new(arity, fingerprint_bits, segment_length, segments)?;
        let kernel = py.detach(|| Kernel::build(shape, &keys.hashes, keys.threads))?;
        Ok(Handle::built(kernel, keys, 0))
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

    /// How many segments there are.
    #[getter]
    fn _segments(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(structure::<Kernel>(self_)?.1.shape().segments)
    }

    /// How often the table was tried with another hash before peeling succeeded.
    #[getter]
    fn _attempts(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(structure::<Kernel>(self_)?.1.attempts())
    }
}
