//! Cuckoo filters: created, built, truncated.

use super::batch::Distinct;
use super::filter::{Deleting, structure};
use super::handle::Handle;
use super::kinds::kind_class;
use super::release::{read, released};
use crate::cuckoo::{Cuckoo as Kernel, Shape};
use pyo3::prelude::*;

/// A `planning.cuckoo.CuckooSize`.
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

    fn empty(&self, _capacity: u64) -> PyResult<Kernel> {
        Ok(Kernel::new(self.shape()?)?)
    }

    /// Raises CapacityError if the keys do not fit.
    fn build(&self, keys: &Distinct, _capacity: u64) -> PyResult<Kernel> {
        Ok(Kernel::build(self.shape()?, &keys.hashes, keys.threads)?)
    }
}

kind_class! {
    /// A cuckoo filter.
    Cuckoo(Kernel) extends Deleting, empty, build from Size
}

#[pymethods]
impl Cuckoo {
    /// The length of a fingerprint in bits (f), after `truncate` if it was called.
    #[getter]
    fn fingerprint_bits(self_: &Bound<'_, Self>) -> PyResult<u32> {
        Ok(shape(self_)?.kept)
    }

    /// The length of a fingerprint in bits before truncation.
    #[getter]
    fn _whole_fingerprint_bits(self_: &Bound<'_, Self>) -> PyResult<u32> {
        Ok(shape(self_)?.bits)
    }

    /// The number of chunks of the table.
    #[getter]
    fn _chunks(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(shape(self_)?.chunks)
    }

    /// The number of buckets per chunk.
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
        Ok(stored.handle.with(released(self_.py(), || cuckoo.truncated(bits))??))
    }
}

fn shape(cuckoo: &Bound<'_, Cuckoo>) -> PyResult<Shape> {
    let (_, kernel) = structure::<Kernel>(cuckoo)?;
    Ok(read(cuckoo.py(), || kernel.with(|table| table.shape())))
}
