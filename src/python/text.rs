//! Text indexes: the words of documents.

use super::arrays;
use crate::text;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

/// The words of a text, unchanged.
#[pyfunction]
pub fn words<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyList>> {
    arrays::list(py, text::words(text).map(|word| Ok(PyString::new(py, word))))
}
