//! Ribbon kernels: built, cut.

use super::batch::Distinct;
use super::handle::Kernel;
use crate::ribbon::{Layout, Ribbon};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// A ribbon filter of distinct keys, with the slots of each level that bumps.
#[pyfunction]
pub fn ribbon_build(
    py: Python<'_>,
    layout: &str,
    columns: u32,
    levels: Vec<u64>,
    keys: &Distinct,
) -> PyResult<Kernel> {
    let layout = Layout::named(layout).ok_or_else(|| {
        let message = format!("layout is '{layout}'; interleaved or columns are possible");
        PyValueError::new_err(message)
    })?;
    let kernel = py.detach(|| Ribbon::build(layout, columns, &levels, &keys.hashes))?;
    let capacity = keys.hashes.len() as u64;
    Ok(Kernel { kernel: Arc::new(kernel), hasher: keys.hasher.clone(), capacity })
}

/// The first bits of a filter by columns.
#[pyfunction]
pub fn ribbon_truncated(py: Python<'_>, kernel: &Kernel, bits: u64) -> PyResult<Kernel> {
    let ribbon = kernel.of::<Ribbon>()?;
    Ok(kernel.with(py.detach(|| ribbon.truncated(bits))?))
}

/// Layout, columns it was built with, bits of a column, bits kept of all columns.
#[pyfunction]
pub fn ribbon_shape(kernel: &Kernel) -> PyResult<(&'static str, u32, u64, u64)> {
    let ribbon = kernel.of::<Ribbon>()?;
    let (slots, kept) = ribbon.column_bits();
    Ok((ribbon.layout().name(), ribbon.columns(), slots, kept))
}
