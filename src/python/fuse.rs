//! Fuse kernels: built, looked at.

use super::batch::Distinct;
use super::handle::Kernel;
use crate::fuse::{Fuse, Shape};
use pyo3::prelude::*;
use std::sync::Arc;

/// A binary fuse filter of distinct keys.
#[pyfunction]
pub fn fuse_build(
    py: Python<'_>,
    arity: u32,
    fingerprint_bits: u32,
    segment_length: u32,
    segments: u64,
    keys: &Distinct,
) -> PyResult<Kernel> {
    let shape = Shape::new(arity, fingerprint_bits, segment_length, segments)?;
    let kernel = py.detach(|| Fuse::build(shape, &keys.hashes, keys.threads))?;
    let capacity = keys.hashes.len() as u64;
    Ok(Kernel { kernel: Arc::new(kernel), hasher: keys.hasher.clone(), capacity })
}

/// Slots per key, bits of a slot, slots of a segment, segments, attempts.
#[pyfunction]
pub fn fuse_shape(kernel: &Kernel) -> PyResult<(u32, u32, u32, u64, u64)> {
    let fuse = kernel.of::<Fuse>()?;
    let Shape { arity, fingerprint_bits, segment_length, segments } = fuse.shape();
    Ok((arity, fingerprint_bits, segment_length, segments, fuse.attempts()))
}
