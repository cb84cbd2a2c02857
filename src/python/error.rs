//! Kernel errors as the exceptions of `tamis.errors`.

use crate::error::Error;
use pyo3::exceptions::{PyKeyError, PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;

impl From<Error> for PyErr {
    fn from(error: Error) -> PyErr {
        match error {
            Error::Format(message) => of_tamis("FormatError", message),
            Error::Incompatible(message) => of_tamis("IncompatibleError", message),
            Error::Capacity(message) => of_tamis("CapacityError", message),
            Error::Parameter(message) => PyValueError::new_err(message),
            Error::Memory(message) => PyMemoryError::new_err(message),
            Error::Absent(message) => PyKeyError::new_err(message),
        }
    }
}

/// An instance of an exception that is defined in Python, where it can have two bases.
pub fn of_tamis(name: &str, message: String) -> PyErr {
    Python::attach(|py| match class(py, name) {
        Ok(class) => PyErr::from_type(class, message),
        Err(error) => error,
    })
}

/// A class of `tamis.errors`.
pub fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    Ok(py.import("tamis.errors")?.getattr(name)?.cast_into::<PyType>()?)
}
