//! The table of kinds, for tests to compare with what Python knows of each.

use crate::kernel::Kind;
use crate::kinds::KINDS;
use pyo3::prelude::*;

/// A row of the table of kinds.
#[pyclass(frozen, module = "tamis._native")]
pub struct KindRow(&'static Kind);

#[pymethods]
impl KindRow {
    /// Its number in a frame.
    #[getter]
    fn number(&self) -> u16 {
        self.0.number
    }

    /// Its name.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name
    }

    /// Whether it may be a layer of a stack.
    #[getter]
    fn layer(&self) -> bool {
        self.0.layer
    }

    /// Whether every filter of the kind takes keys after it was built.
    #[getter]
    fn inserts(&self) -> bool {
        self.0.inserts
    }

    /// Whether every filter of the kind deletes keys.
    #[getter]
    fn deletes(&self) -> bool {
        self.0.deletes
    }

    /// Whether it refuses keys for which it has no capacity.
    #[getter]
    fn bounded(&self) -> bool {
        self.0.bounded
    }

    fn __repr__(&self) -> String {
        format!("KindRow({}, {:?})", self.0.number, self.0.name)
    }
}

/// Every kind, by rising numbers.
#[pyfunction]
pub fn kinds() -> Vec<KindRow> {
    KINDS.into_iter().map(KindRow).collect()
}
