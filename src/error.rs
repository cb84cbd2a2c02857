//! One error enum for every kernel; `python/` turns each variant into its Python exception.

use std::io;
use thiserror::Error;

/// The reason why a kernel refuses an operation. The message is a sentence to a person.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum Error {
    /// Bytes that are not, or no longer, a filter.
    #[error("{0}")]
    Format(String),
    /// Two filters that cannot be combined.
    #[error("{0}")]
    Incompatible(String),
    /// Another key does not fit; the filter is unchanged.
    #[error("{0}")]
    Capacity(String),
    /// A parameter that the structure does not support.
    #[error("{0}")]
    Parameter(String),
    /// Memory could not be allocated.
    #[error("{0}")]
    Memory(String),
    /// A key that is surely not stored.
    #[error("{0}")]
    Absent(String),
    /// A file that cannot be read or written: the system's error number and text.
    #[error("{1}")]
    Os(i32, String),
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        const EIO: i32 = 5;
        let text = error.to_string(); // "No space left on device (os error 28)"
        let text = text.split(" (os error").next().unwrap_or_default().to_owned();
        Error::Os(error.raw_os_error().unwrap_or(EIO), text)
    }
}

impl Error {
    /// The error of a structure that is read from a frame: parameters that it refuses are damage,
    /// missing memory is not.
    pub fn in_frame(self, damaged: impl FnOnce(&str) -> Error) -> Error {
        match self {
            Error::Memory(_) | Error::Os(..) => self,
            other => damaged(&other.to_string()),
        }
    }
}

/// The result of every kernel operation that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Whether a removal found its key.
pub fn was_present(removed: Result<()>) -> Result<bool> {
    match removed {
        Ok(()) => Ok(true),
        Err(Error::Absent(_)) => Ok(false),
        Err(error) => Err(error),
    }
}
