//! Checks of Parquet pages, for `tamis._pages`.

use crate::pages::{self, Bound};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A page whose content has to be looked at.
#[pyclass(frozen, get_all, module = "tamis._native")]
pub struct Page {
    /// Where its content begins in the chunk.
    start: usize,
    /// The bytes of its content in the chunk.
    compressed: usize,
    /// The bytes of its content once it is decompressed.
    uncompressed: usize,
    /// The number of its values, nulls included.
    values: u64,
    /// The encoding of a data page; none for a dictionary.
    encoding: Option<i64>,
    /// The bytes of uncompressed levels before the values; none in pages of version 1.
    levels: Option<usize>,
    /// Whether the values are compressed, if the chunk is.
    is_compressed: bool,
}

/// Check the headers of the chunk of `length` bytes at `start`; return the pages whose content has to
/// be looked at, by their places in `content`.
#[pyfunction]
pub fn check_pages(
    content: &[u8],
    start: usize,
    length: usize,
    past: usize,
    large: u64,
    ratio: u64,
) -> PyResult<Vec<Page>> {
    let chunk = content.get(start..).unwrap_or_default();
    let chunk = &chunk[..chunk.len().min(length.saturating_add(past))];
    let found = pages::check(chunk, length, Bound { large, ratio });
    let page = |page: pages::Page| Page {
        start: start + page.start,
        compressed: page.compressed,
        uncompressed: page.uncompressed,
        values: page.values,
        encoding: page.encoding,
        levels: page.levels,
        is_compressed: page.is_compressed,
    };
    Ok(found.map_err(PyValueError::new_err)?.into_iter().map(page).collect())
}

/// Check the values of a data page in a delta encoding, after its `levels` kinds of levels.
#[pyfunction]
pub fn check_delta_page(
    page: &[u8],
    levels: usize,
    encoding: i64,
    values: u64,
    large: u64,
    ratio: u64,
) -> PyResult<()> {
    let start = pages::skip_levels(page, levels)
        .ok_or_else(|| PyValueError::new_err("the levels of a page are damaged"))?;
    pages::check_delta(&page[start..], encoding, values, Bound { large, ratio })
        .map_err(PyValueError::new_err)
}

/// The length of the longest value in a dictionary of text; None if it is damaged.
#[pyfunction]
pub fn longest_value(dictionary: &[u8], values: u64) -> Option<usize> {
    pages::longest_value(dictionary, values)
}
