//! One error enum for every kernel; `python/` turns each variant into its Python exception.

use thiserror::Error;

/// What a kernel can refuse to do. The message is a sentence to a person.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum Error {
    /// Bytes that are not, or no longer, a filter.
    #[error("{0}")]
    Format(String),
    /// Two filters that cannot be combined.
    #[error("{0}")]
    Incompatible(String),
    /// No room for another key; the filter is unchanged.
    #[error("{0}")]
    Capacity(String),
    /// A parameter outside what the structure supports.
    #[error("{0}")]
    Parameter(String),
    /// Memory that the machine does not have.
    #[error("{0}")]
    Memory(String),
    /// A key that is surely not stored.
    #[error("{0}")]
    Absent(String),
}

/// The result of every kernel operation that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Whether a removal found what it was to remove.
pub fn was_there(removed: Result<()>) -> Result<bool> {
    match removed {
        Ok(()) => Ok(true),
        Err(Error::Absent(_)) => Ok(false),
        Err(error) => Err(error),
    }
}
