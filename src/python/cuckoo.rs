//! Cuckoo kernels: made, built, cut, looked into.

use super::batch::Distinct;
use super::handle::Kernel;
use super::keys::{self, hasher};
use crate::cuckoo::{Cuckoo, Shape};
use pyo3::prelude::*;
use std::sync::Arc;

/// An empty cuckoo filter.
#[pyfunction]
#[pyo3(signature = (chunks, buckets, fingerprint_bits, near, capacity, seed=0, key=None))]
pub fn cuckoo(
    chunks: u64,
    buckets: u64,
    fingerprint_bits: u32,
    near: u32,
    capacity: u64,
    #[pyo3(from_py_with = keys::seed)] seed: u64,
    key: Option<&[u8]>,
) -> PyResult<Kernel> {
    let kernel = Arc::new(Cuckoo::new(Shape::new(chunks, buckets, fingerprint_bits, near)?)?);
    Ok(Kernel { kernel, hasher: hasher(seed, key)?, capacity })
}

/// A cuckoo filter of distinct keys; CapacityError where they do not fit.
#[pyfunction]
pub fn cuckoo_build(
    py: Python<'_>,
    chunks: u64,
    buckets: u64,
    fingerprint_bits: u32,
    near: u32,
    keys: &Distinct,
) -> PyResult<Kernel> {
    let shape = Shape::new(chunks, buckets, fingerprint_bits, near)?;
    let kernel = py.detach(|| Cuckoo::build(shape, &keys.hashes, keys.threads))?;
    let capacity = keys.hashes.len() as u64;
    Ok(Kernel { kernel: Arc::new(kernel), hasher: keys.hasher.clone(), capacity })
}

/// The same keys with fewer bits of each fingerprint.
#[pyfunction]
pub fn cuckoo_truncated(py: Python<'_>, kernel: &Kernel, bits: u32) -> PyResult<Kernel> {
    let cuckoo = kernel.of::<Cuckoo>()?;
    Ok(kernel.with(py.detach(|| cuckoo.truncated(bits))?))
}

/// Chunks, buckets of each, bits of a fingerprint in a slot, log2 of the range of even ones, bits of
/// a fingerprint before it was cut.
#[pyfunction]
pub fn cuckoo_shape(kernel: &Kernel) -> PyResult<(u64, u64, u32, u32, u32)> {
    let shape = kernel.of::<Cuckoo>()?.look(|table| table.shape());
    Ok((shape.chunks, shape.buckets, shape.kept, shape.near, shape.bits))
}
