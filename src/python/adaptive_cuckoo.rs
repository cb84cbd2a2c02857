//! Adaptive cuckoo filters: created, built, adapted.

use super::adapting::hash_rows;
use super::batch::{self, Distinct};
use super::filter::{Deleting, structure};
use super::kinds::kind_class;
use super::release::{read, released};
use crate::adaptive_cuckoo::{AdaptiveCuckoo as Kernel, Motion};
use crate::hash::Hash128;
use crate::memory;
use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A `planning.adaptive_cuckoo.AdaptiveCuckooSize`, with the motion as its number in a file.
#[derive(FromPyObject)]
pub struct Size {
    motion: u64,
    fingerprint_bits: u32,
    bins: u64,
}

impl Size {
    fn motion(&self) -> PyResult<Motion> {
        Motion::from_number(self.motion)
            .ok_or_else(|| PyValueError::new_err(format!("motion must not be {}", self.motion)))
    }

    fn empty(&self, _capacity: u64) -> PyResult<Kernel> {
        Ok(Kernel::new(self.motion()?, self.fingerprint_bits, self.bins)?)
    }

    /// Raises CapacityError if the keys do not fit.
    fn build(&self, keys: &Distinct, _capacity: u64) -> PyResult<Kernel> {
        Ok(Kernel::build(self.motion()?, self.fingerprint_bits, self.bins, &keys.hashes)?)
    }
}

kind_class! {
    /// An adaptive cuckoo filter.
    AdaptiveCuckoo(Kernel) extends Deleting, empty, build from Size
}

#[pymethods]
impl AdaptiveCuckoo {
    /// How an element moves, as its number in a file.
    #[getter]
    fn _motion(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(shape(self_)?.0.number())
    }

    /// The length of a fingerprint in bits (f).
    #[getter]
    fn fingerprint_bits(self_: &Bound<'_, Self>) -> PyResult<u32> {
        Ok(shape(self_)?.1)
    }

    /// The number of bins.
    #[getter]
    fn _bins(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(shape(self_)?.2)
    }

    /// Move the elements that absent keys were mistaken for; return for each key whether anything
    /// moved.
    fn _adapt<'py>(
        self_: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let (py, (stored, cuckoo)) = (self_.py(), structure::<Kernel>(self_)?);
        adapt(py, cuckoo, &batch::hashes(py, &stored.handle.hasher, keys)?)
    }

    /// The same for hashed keys. The remote is for other kinds.
    fn _adapt_hashes<'py>(
        self_: &Bound<'py, Self>,
        hashes: &Bound<'py, PyAny>,
        remote: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let _ = remote;
        let (py, (_, cuckoo)) = (self_.py(), structure::<Kernel>(self_)?);
        adapt(py, cuckoo, &hash_rows("hashes", hashes)?)
    }
}

fn adapt<'py>(
    py: Python<'py>,
    cuckoo: &Kernel,
    hashes: &[Hash128],
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    let mut moved = memory::filled(hashes.len(), false)?;
    released(py, || cuckoo.adapt(hashes, &mut moved))?;
    Ok(PyArray1::from_vec(py, moved))
}

fn shape(cuckoo: &Bound<'_, AdaptiveCuckoo>) -> PyResult<(Motion, u32, u64, u64)> {
    let (_, kernel) = structure::<Kernel>(cuckoo)?;
    Ok(read(cuckoo.py(), || kernel.shape()))
}
