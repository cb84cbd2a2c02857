//! Text indexes: the words of documents, and their signatures in memory.

use super::batch;
use crate::hash::Hasher;
use crate::text;
use numpy::PyArray1;
use pyo3::prelude::*;

/// The words of a text, unchanged.
#[pyfunction]
pub fn words(text: &str) -> Vec<&str> {
    text::words(text).collect()
}

/// The signatures of documents in memory, 64 per block.
#[pyclass(frozen, module = "tamis._native")]
pub struct Sliced {
    pub sliced: text::Sliced,
    pub hasher: Hasher,
}

#[pymethods]
impl Sliced {
    /// The ranks of the best documents that may contain all terms, best first.
    fn search<'py>(
        &self,
        py: Python<'py>,
        terms: &Bound<'py, PyAny>,
        limit: usize,
    ) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let hashes = batch::hashes(py, &self.hasher, terms)?;
        let ranks = py.detach(|| self.sliced.search(&hashes, limit));
        Ok(PyArray1::from_vec(py, ranks))
    }

    /// Memory of so many blocks and documents apart from the bits of their signatures.
    #[staticmethod]
    fn least_bytes(blocks: usize, documents: usize) -> usize {
        text::Sliced::least_bytes(blocks, documents)
    }

    /// Total bits of the signatures.
    #[getter]
    fn bits(&self) -> u64 {
        self.sliced.bits()
    }
}
