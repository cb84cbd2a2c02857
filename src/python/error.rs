//! Kernel errors as the exceptions of `tamis.errors`.

use super::exit;
use crate::error::{Error, Result};
use crate::interrupt::panics_only;
use pyo3::exceptions::{PyKeyError, PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

impl From<Error> for PyErr {
    fn from(error: Error) -> PyErr {
        match error {
            Error::Format(message) => tamis_error("FormatError", message),
            Error::Incompatible(message) => tamis_error("IncompatibleError", message),
            Error::Capacity(message) => tamis_error("CapacityError", message),
            Error::Parameter(message) => PyValueError::new_err(message),
            Error::Memory(message) => PyMemoryError::new_err(message),
            Error::Absent(message) => PyKeyError::new_err(message),
            Error::Os(code, text) => PyOSError::new_err((code, text)),
        }
    }
}

/// An exception defined in Python, where it can have two bases.
pub fn tamis_error(name: &str, message: String) -> PyErr {
    exit::attached(|py| match class(py, name) {
        Ok(class) => PyErr::from_type(class, message),
        Err(error) => error,
    })
}

/// Runs `work` on a structure; a panic becomes a `FormatError`. Kernels check all bytes when they
/// open them and index only by checked values, so a panic means that bytes have changed since: a
/// file was written to while it was mapped.
#[inline(always)]
pub fn catch_damage<R>(work: impl FnOnce() -> R) -> Result<R> {
    catch_unwind(AssertUnwindSafe(work)).map_err(damaged)
}

#[cold]
fn damaged(panic: Box<dyn Any + Send>) -> Error {
    let what = match panics_only(panic).downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().map_or("?".into(), |text| (*text).into()),
    };
    let why = "a file that is mapped must not be written to, only replaced";
    Error::Format(format!("the filter has changed since it was opened ({what}): {why}"))
}

/// A class of `tamis.errors`.
pub fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    Ok(py.import("tamis.errors")?.getattr(name)?.cast_into::<PyType>()?)
}
