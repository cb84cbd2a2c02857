//! Bloom kernels: made, built, merged, cut.

use super::batch::Distinct;
use super::handle::Kernel;
use super::keys::{self, hasher};
use crate::bloom::{Bloom, Layout, Shape};
use crate::error::Result;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

fn bloom_sizes(layout: &str, bits: u64, hashes: u32) -> PyResult<Shape> {
    let known = Layout::named(layout).ok_or_else(|| {
        let message = format!("layout is {layout:?}; blocked, standard or segmented are possible");
        PyValueError::new_err(message)
    })?;
    Ok(Shape::new(known, bits, hashes, bits)?)
}

/// An empty Bloom filter.
#[pyfunction]
#[pyo3(signature = (layout, bits, hashes, capacity, seed=0, key=None))]
pub fn bloom(
    layout: &str,
    bits: u64,
    hashes: u32,
    capacity: u64,
    #[pyo3(from_py_with = keys::seed)] seed: u64,
    key: Option<&[u8]>,
) -> PyResult<Kernel> {
    let kernel = Arc::new(Bloom::new(bloom_sizes(layout, bits, hashes)?)?);
    Ok(Kernel { kernel, hasher: hasher(seed, key)?, capacity })
}

/// A Bloom filter of distinct keys.
#[pyfunction]
pub fn bloom_build(
    py: Python<'_>,
    layout: &str,
    bits: u64,
    hashes: u32,
    keys: &Distinct,
) -> PyResult<Kernel> {
    let shape = bloom_sizes(layout, bits, hashes)?;
    let kernel = py.detach(|| Bloom::build(shape, &keys.hashes, keys.threads))?;
    let capacity = keys.hashes.len() as u64;
    Ok(Kernel { kernel: Arc::new(kernel), hasher: keys.hasher.clone(), capacity })
}

/// The bits of either.
#[pyfunction]
pub fn bloom_union(py: Python<'_>, a: &Kernel, b: &Kernel) -> PyResult<Kernel> {
    bloom_merge(py, a, b, Bloom::union)
}

/// The bits of both.
#[pyfunction]
pub fn bloom_intersection(py: Python<'_>, a: &Kernel, b: &Kernel) -> PyResult<Kernel> {
    bloom_merge(py, a, b, Bloom::intersection)
}

fn bloom_merge(
    py: Python<'_>,
    a: &Kernel,
    b: &Kernel,
    merge: fn(&Bloom, &Bloom) -> Result<Bloom>,
) -> PyResult<Kernel> {
    a.check_hash(b)?;
    let (one, other) = (a.of::<Bloom>()?, b.of::<Bloom>()?);
    let merged = py.detach(|| merge(one, other))?;
    Ok(Kernel { capacity: a.capacity.max(b.capacity), ..a.with(merged) })
}

/// How many keys the set bits tell of.
#[pyfunction]
pub fn bloom_cardinality(py: Python<'_>, kernel: &Kernel) -> PyResult<f64> {
    let bloom = kernel.of::<Bloom>()?;
    Ok(py.detach(|| bloom.cardinality()))
}

/// The first bits of a segmented filter.
#[pyfunction]
pub fn bloom_truncated(py: Python<'_>, kernel: &Kernel, bits: u64) -> PyResult<Kernel> {
    let bloom = kernel.of::<Bloom>()?;
    Ok(kernel.with(py.detach(|| bloom.truncated(bits))?))
}

/// Layout, bits of the whole, probes per key, bits kept.
#[pyfunction]
pub fn bloom_shape(kernel: &Kernel) -> PyResult<(&'static str, u64, u32, u64)> {
    let Shape { layout, bits, hashes, kept, .. } = kernel.of::<Bloom>()?.shape();
    Ok((layout.name(), bits, hashes, kept))
}
