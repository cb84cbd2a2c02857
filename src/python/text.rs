//! Text indexes: the words of documents.

use crate::text;
use pyo3::prelude::*;

/// The words of a text, unchanged.
#[pyfunction]
pub fn words(text: &str) -> Vec<&str> {
    text::words(text).collect()
}
