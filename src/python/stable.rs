//! Stable Bloom filters: created; they answer and insert in one step, in the order of the stream.

use super::arrays;
use super::batch;
use super::filter::{Inserting, structure};
use super::handle::Handle;
use super::keys::{self, Secret, hasher};
use super::kinds::kind_class;
use super::release::released;
use crate::kernel::Kernel as _;
use crate::stable::{Shape, Stable};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;

/// A `planning.stable.StableSize`.
#[derive(FromPyObject)]
pub struct Size {
    cells: u64,
    #[pyo3(attribute("max_value"))]
    max: u32,
    hashes: u32,
    decrements: u64,
}

impl Size {
    pub fn shape(&self, independent: bool) -> PyResult<Shape> {
        Ok(Shape::new(self.cells, self.max, self.hashes, self.decrements, independent)?)
    }
}

kind_class! {
    /// A stable Bloom filter.
    StableBloom(Stable) extends Inserting
}

#[pymethods]
impl StableBloom {
    /// An empty filter of this size.
    #[staticmethod]
    #[pyo3(signature = (size, independent, capacity, seed=0, key=None))]
    fn _empty(
        size: Size,
        independent: bool,
        capacity: u64,
        #[pyo3(from_py_with = keys::seed)] seed: u64,
        #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
    ) -> PyResult<Handle> {
        let hasher = hasher(seed, key)?;
        let kernel = Stable::new(size.shape(independent)?, hasher.tag())?;
        Ok(Handle::new(kernel, capacity, hasher))
    }

    /// The number of counters (m).
    #[getter]
    fn _cells(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(structure::<Stable>(self_)?.1.shape().cells)
    }

    /// The value that a counter is set to (Max).
    #[getter]
    fn _max(self_: &Bound<'_, Self>) -> PyResult<u32> {
        Ok(structure::<Stable>(self_)?.1.shape().max)
    }

    /// Counters per key (K).
    #[getter]
    fn _hashes(self_: &Bound<'_, Self>) -> PyResult<u32> {
        Ok(structure::<Stable>(self_)?.1.shape().hashes)
    }

    /// Counters that an insertion lowers (P).
    #[getter]
    fn _decrements(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(structure::<Stable>(self_)?.1.shape().decrements)
    }

    /// Whether each of these counters is chosen independently.
    #[getter]
    fn _independent(self_: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(structure::<Stable>(self_)?.1.shape().independent)
    }

    /// Return whether the key was present, and insert it.
    fn seen(self_: &Bound<'_, Self>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (stored, stable) = structure::<Stable>(self_)?;
        let hash = stored.hash(key)?;
        let mut out = [false];
        stored.change(self_.py(), |_| stable.seen(&[hash], &mut out))?;
        Ok(out[0])
    }

    /// Return for each key whether it was present just before, and insert it.
    fn seen_many<'py>(
        self_: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let (stored, stable) = structure::<Stable>(self_)?;
        let hashes = batch::hashes(self_.py(), &stored.handle.hasher, keys)?;
        answered(self_.py(), hashes.len(), |out| {
            Ok(released(self_.py(), || stable.seen(&hashes, out))??)
        })
    }
}

/// An array of answers, filled by `fill`.
pub fn answered<'py>(
    py: Python<'py>,
    length: usize,
    fill: impl FnOnce(&mut [bool]) -> PyResult<()>,
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    let answers = arrays::zeros::<bool>(py, length)?;
    // SAFETY: the array is new, so nobody else has it yet.
    fill(unsafe { answers.as_slice_mut()? })?;
    Ok(answers)
}
