//! Bloom filters: made, built, merged, truncated.

use super::batch::Distinct;
use super::filter::{Inserting, structure};
use super::handle::Handle;
use super::keys::{self, Secret, hasher};
use crate::bloom::{Bloom as Kernel, Layout, Shape};
use crate::error::Result;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// What `planning.bloom.Size` says.
#[derive(FromPyObject)]
pub struct Size {
    layout: String,
    bits: u64,
    hashes: u32,
}

impl Size {
    fn shape(&self) -> PyResult<Shape> {
        let layout = Layout::named(&self.layout).ok_or_else(|| {
            PyValueError::new_err(format!(
                "layout must be 'blocked', 'standard' or 'segmented', not '{}'",
                self.layout
            ))
        })?;
        Ok(Shape::new(layout, self.bits, self.hashes, self.bits)?)
    }
}

/// A Bloom filter.
#[pyclass(extends = Inserting, subclass, frozen, module = "tamis._native")]
pub struct Bloom;

#[pymethods]
impl Bloom {
    #[new]
    fn new(handle: &Handle) -> PyResult<PyClassInitializer<Bloom>> {
        handle.of::<Kernel>()?;
        Ok(Inserting::new(handle).add_subclass(Bloom))
    }

    /// An empty filter of this size.
    #[staticmethod]
    #[pyo3(signature = (size, capacity, seed=0, key=None))]
    fn _empty(
        size: Size,
        capacity: u64,
        #[pyo3(from_py_with = keys::seed)] seed: u64,
        #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
    ) -> PyResult<Handle> {
        Ok(Handle::empty(Kernel::new(size.shape()?)?, capacity, hasher(seed, key)?))
    }

    /// The filter of distinct keys, of this size.
    #[staticmethod]
    fn _build(py: Python<'_>, size: Size, keys: &Distinct) -> PyResult<Handle> {
        let shape = size.shape()?;
        let kernel = py.detach(|| Kernel::build(shape, &keys.hashes, keys.threads))?;
        Ok(Handle::built(kernel, keys, 0))
    }

    /// Where the bits of a key are.
    #[getter]
    fn layout(self_: &Bound<'_, Self>) -> PyResult<&'static str> {
        Ok(structure::<Kernel>(self_)?.1.shape().layout.name())
    }

    /// The number of bits per key (k).
    #[getter]
    fn hashes(self_: &Bound<'_, Self>) -> PyResult<u32> {
        Ok(structure::<Kernel>(self_)?.1.shape().hashes)
    }

    /// Estimate the number of distinct keys from the set bits; infinite if all are set.
    fn cardinality(self_: &Bound<'_, Self>) -> PyResult<f64> {
        let (_, bloom) = structure::<Kernel>(self_)?;
        Ok(self_.py().detach(|| bloom.cardinality()))
    }

    /// The bits of either.
    fn _union(self_: &Bound<'_, Self>, other: &Bound<'_, Self>) -> PyResult<Handle> {
        merge(self_, other, Kernel::union)
    }

    /// The bits of both.
    fn _intersection(self_: &Bound<'_, Self>, other: &Bound<'_, Self>) -> PyResult<Handle> {
        merge(self_, other, Kernel::intersection)
    }

    /// The first bits of a segmented filter.
    fn _truncated(self_: &Bound<'_, Self>, bits: u64) -> PyResult<Handle> {
        let (stored, bloom) = structure::<Kernel>(self_)?;
        Ok(stored.handle.with(self_.py().detach(|| bloom.truncated(bits))?))
    }
}

fn merge(
    one: &Bound<'_, Bloom>,
    other: &Bound<'_, Bloom>,
    merge: fn(&Kernel, &Kernel) -> Result<Kernel>,
) -> PyResult<Handle> {
    let ((a, x), (b, y)) = (structure::<Kernel>(one)?, structure::<Kernel>(other)?);
    a.handle.check_hash(&b.handle)?;
    let merged = one.py().detach(|| merge(x, y))?;
    let capacity = a.handle.capacity.max(b.handle.capacity);
    Ok(Handle { capacity, ..a.handle.with(merged) })
}
