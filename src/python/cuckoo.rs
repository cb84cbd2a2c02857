//! Cuckoo filters: made, built, truncated.

use super::batch::Distinct;
use super::filter::{Deleting, structure};
use super::handle::Handle;
use super::keys::{self, Secret, hasher};
use crate::cuckoo::{Cuckoo as Kernel, Shape};
use pyo3::prelude::*;

/// What `planning.cuckoo.Size` says.
#[derive(FromPyObject)]
pub struct Size {
    chunks: u64,
    buckets: u64,
    fingerprint_bits: u32,
    near: u32,
}

impl Size {
    fn shape(&self) -> PyResult<Shape> {
        Ok(Shape::new(self.chunks, self.buckets, self.fingerprint_bits, self.near)?)
    }
}

/// A cuckoo filter.
#[pyclass(extends = Deleting, subclass, frozen, module = "tamis._native")]
pub struct Cuckoo;

#[pymethods]
impl Cuckoo {
    #[new]
    fn new(handle: &Handle) -> PyResult<PyClassInitializer<Cuckoo>> {
        handle.of::<Kernel>()?;
        Ok(Deleting::new(handle).add_subclass(Cuckoo))
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

    /// The filter of distinct keys, of this size; CapacityError where they do not fit.
    #[staticmethod]
    fn _build(py: Python<'_>, size: Size, keys: &Distinct) -> PyResult<Handle> {
        let shape = size.shape()?;
        let kernel = py.detach(|| Kernel::build(shape, &keys.hashes, keys.threads))?;
        Ok(Handle::built(kernel, keys, 0))
    }

    /// The length of a fingerprint in bits (f), after `truncate` if it was called.
    #[getter]
    fn fingerprint_bits(self_: &Bound<'_, Self>) -> PyResult<u32> {
        Ok(shape(self_)?.kept)
    }

    /// How many bits a fingerprint had before it was truncated.
    #[getter]
    fn _whole_fingerprint_bits(self_: &Bound<'_, Self>) -> PyResult<u32> {
        Ok(shape(self_)?.bits)
    }

    /// Parts of the table, each with buckets of its own.
    #[getter]
    fn _chunks(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(shape(self_)?.chunks)
    }

    /// Buckets of each chunk.
    #[getter]
    fn _buckets(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(shape(self_)?.buckets)
    }

    /// log2 of the range of even fingerprints.
    #[getter]
    fn _near(self_: &Bound<'_, Self>) -> PyResult<u32> {
        Ok(shape(self_)?.near)
    }

    /// The same keys with fewer bits of each fingerprint.
    fn _truncated(self_: &Bound<'_, Self>, bits: u32) -> PyResult<Handle> {
        let (stored, cuckoo) = structure::<Kernel>(self_)?;
        Ok(stored.handle.with(self_.py().detach(|| cuckoo.truncated(bits))?))
    }
}

fn shape(cuckoo: &Bound<'_, Cuckoo>) -> PyResult<Shape> {
    Ok(structure::<Kernel>(cuckoo)?.1.look(|table| table.shape()))
}
