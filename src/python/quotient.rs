//! Quotient filters: created, built, merged, grown, truncated, inspected.

use super::batch::Distinct;
use super::column::CHUNK;
use super::error::catch_damage;
use super::filter::{Deleting, structure};
use super::handle::Handle;
use super::kinds::kind_class;
use super::release::{briefly, read, released};
use crate::interrupt;
use crate::kernel::Kernel as _;
use crate::memory::TryGrow;
use crate::quotient::{self, Growing as Kernel};
use numpy::PyArray1;
use pyo3::prelude::*;

/// A `planning.quotient.QuotientSize`.
#[derive(FromPyObject)]
pub struct Size {
    quotients: u64,
    remainder_bits: u32,
}

impl Size {
    fn empty(&self, capacity: u64) -> PyResult<Kernel> {
        Ok(Kernel::new(self.quotients, self.remainder_bits, capacity)?)
    }

    fn build(&self, keys: &Distinct, capacity: u64) -> PyResult<Kernel> {
        Ok(Kernel::build(self.quotients, self.remainder_bits, &keys.hashes, capacity)?)
    }
}

kind_class! {
    /// A quotient filter.
    Quotient(Kernel) extends Deleting, empty, build from Size
}

#[pymethods]
impl Quotient {
    /// The number of quotients (Q): fingerprints are numbers below Q·2^r.
    #[getter]
    fn quotients(self_: &Bound<'_, Self>) -> PyResult<u64> {
        read_with(self_, |quotient| quotient.quotients())
    }

    /// The length of a remainder in bits (r); one less after each doubling.
    #[getter]
    fn remainder_bits(self_: &Bound<'_, Self>) -> PyResult<u32> {
        read_with(self_, |quotient| quotient.remainder_bits())
    }

    /// The fraction of slots in use.
    #[getter]
    fn load(self_: &Bound<'_, Self>) -> PyResult<f64> {
        read_with(self_, |quotient| quotient.used_slots() as f64 / quotient.slots() as f64)
    }

    /// Return how often the key was added and not removed; more only if keys share a fingerprint.
    fn count(self_: &Bound<'_, Self>, key: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (stored, quotient) = structure::<Kernel>(self_)?;
        let hash = stored.hash(key)?;
        Ok(briefly(self_.py(), || catch_damage(|| quotient.with(|quotient| quotient.count(hash))))?)
    }

    /// Double the capacity now: twice the slots, one remainder bit less, the same answers.
    fn grow(self_: &Bound<'_, Self>) -> PyResult<()> {
        let (_, quotient) = structure::<Kernel>(self_)?;
        Ok(released(self_.py(), || catch_damage(|| quotient.double()))???)
    }

    /// The insertions of both.
    fn _merged(self_: &Bound<'_, Self>, other: &Bound<'_, Self>) -> PyResult<Handle> {
        let ((a, x), (b, y)) = (structure::<Kernel>(self_)?, structure::<Kernel>(other)?);
        a.handle.check_hash(&b.handle)?;
        let merged = released(self_.py(), || catch_damage(|| x.merge(y)))???;
        let capacity = merged.capacity().unwrap_or(a.handle.capacity);
        Ok(Handle { capacity, ..a.handle.with(merged) })
    }

    /// The same insertions with fewer bits of each remainder.
    fn _truncated(self_: &Bound<'_, Self>, bits: u32) -> PyResult<Handle> {
        let (stored, quotient) = structure::<Kernel>(self_)?;
        Ok(stored
            .handle
            .with(released(self_.py(), || catch_damage(|| quotient.truncated(bits)))???))
    }

    /// The fingerprints of a range of quotients, in order.
    fn _fingerprints(self_: &Bound<'_, Self>, start: u64, stop: u64) -> PyResult<Fingerprints> {
        let (py, (_, growing)) = (self_.py(), structure::<Kernel>(self_)?);
        let (mut quotients, mut remainders, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        let mut read = || {
            growing.with(|quotient| {
                for (quotient, remainder, count) in quotient.fingerprints(start..stop) {
                    if quotients.len().is_multiple_of(CHUNK) {
                        interrupt::check();
                    }
                    quotients.try_push(quotient)?;
                    remainders.try_push(remainder)?;
                    counts.try_push(count)?;
                }
                crate::error::Result::Ok(())
            })
        };
        released(py, || catch_damage(&mut read))???;
        let numbers = |values| PyArray1::from_vec(py, values).unbind();
        Ok(Fingerprints {
            quotients: numbers(quotients),
            remainders: numbers(remainders),
            counts: numbers(counts),
        })
    }
}

fn read_with<R: Send>(
    quotient: &Bound<'_, Quotient>,
    visit: impl Fn(&quotient::Quotient) -> R + Send + Sync,
) -> PyResult<R> {
    let (_, kernel) = structure::<Kernel>(quotient)?;
    Ok(read(quotient.py(), || kernel.with(&visit)))
}

/// Stored fingerprints as rows, and their counts.
#[pyclass(frozen, get_all, module = "tamis._native")]
pub struct Fingerprints {
    quotients: Py<PyArray1<u64>>,
    remainders: Py<PyArray1<u64>>,
    counts: Py<PyArray1<u64>>,
}
