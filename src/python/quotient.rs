//! Quotient kernels: made, built, merged, grown, cut, looked into.

use super::batch::Distinct;
use super::handle::Kernel;
use super::keys::{self, hash_object, hasher};
use crate::kernel;
use crate::quotient::Growing;
use numpy::PyArray1;
use pyo3::prelude::*;
use std::sync::Arc;

/// An empty quotient filter.
#[pyfunction]
#[pyo3(signature = (quotients, remainder_bits, capacity, seed=0, key=None))]
pub fn quotient(
    quotients: u64,
    remainder_bits: u32,
    capacity: u64,
    #[pyo3(from_py_with = keys::seed)] seed: u64,
    key: Option<&[u8]>,
) -> PyResult<Kernel> {
    let kernel = Arc::new(Growing::new(quotients, remainder_bits, capacity)?);
    Ok(Kernel { kernel, hasher: hasher(seed, key)?, capacity })
}

/// A quotient filter of distinct keys, with room for more where `capacity` says so.
#[pyfunction]
#[pyo3(signature = (quotients, remainder_bits, keys, capacity=0))]
pub fn quotient_build(
    py: Python<'_>,
    quotients: u64,
    remainder_bits: u32,
    keys: &Distinct,
    capacity: u64,
) -> PyResult<Kernel> {
    let capacity = capacity.max(keys.hashes.len() as u64);
    let build = || Growing::build(quotients, remainder_bits, &keys.hashes, capacity);
    let kernel = py.detach(build)?;
    Ok(Kernel { kernel: Arc::new(kernel), hasher: keys.hasher.clone(), capacity })
}

/// The insertions of both.
#[pyfunction]
pub fn quotient_merge(py: Python<'_>, a: &Kernel, b: &Kernel) -> PyResult<Kernel> {
    a.check_hash(b)?;
    let (one, other) = (a.of::<Growing>()?, b.of::<Growing>()?);
    let merged = py.detach(|| one.merge(other))?;
    let capacity = kernel::Kernel::capacity(&merged).unwrap_or(a.capacity);
    Ok(Kernel { capacity, ..a.with(merged) })
}

/// The same insertions with fewer bits of each remainder.
#[pyfunction]
pub fn quotient_truncated(py: Python<'_>, kernel: &Kernel, bits: u32) -> PyResult<Kernel> {
    let quotient = kernel.of::<Growing>()?;
    Ok(kernel.with(py.detach(|| quotient.truncated(bits))?))
}

/// Doubles the slots in place.
#[pyfunction]
pub fn quotient_grow(py: Python<'_>, kernel: &Kernel) -> PyResult<()> {
    let quotient = kernel.of::<Growing>()?;
    Ok(py.detach(|| quotient.double())?)
}

/// How often the key, or another with its fingerprint, was inserted and not removed.
#[pyfunction]
pub fn quotient_count(kernel: &Kernel, key: &Bound<'_, PyAny>) -> PyResult<u64> {
    let (hash, _) = hash_object(&kernel.hasher, key).map_err(|reason| reason.named("key"))?;
    let growing = kernel.of::<Growing>()?;
    Ok(key.py().detach(|| growing.look(|quotient| quotient.count(hash))))
}

/// Quotients, bits of a remainder, slots in use, slots.
#[pyfunction]
pub fn quotient_shape(kernel: &Kernel) -> PyResult<(u64, u32, u64, u64)> {
    Ok(kernel.of::<Growing>()?.look(|quotient| {
        (quotient.quotients(), quotient.remainder_bits(), quotient.used_slots(), quotient.slots())
    }))
}

/// A column of a table of numbers.
type Numbers<'py> = Bound<'py, PyArray1<u64>>;

/// The fingerprints of a range of quotients, in order: quotients, remainders, counts.
#[pyfunction]
pub fn quotient_fingerprints<'py>(
    py: Python<'py>,
    kernel: &Kernel,
    start: u64,
    stop: u64,
) -> PyResult<(Numbers<'py>, Numbers<'py>, Numbers<'py>)> {
    let growing = kernel.of::<Growing>()?;
    let (mut quotients, mut remainders, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    py.detach(|| {
        growing.look(|quotient| {
            for (quotient, remainder, count) in quotient.fingerprints(start..stop) {
                quotients.push(quotient);
                remainders.push(remainder);
                counts.push(count);
            }
        });
    });
    let numbers = |values| PyArray1::from_vec(py, values);
    Ok((numbers(quotients), numbers(remainders), numbers(counts)))
}
