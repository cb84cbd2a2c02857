//! The native kernels of tamis: hashes in, bools out; no policy, no I/O.

pub mod bits;
pub mod block;
pub mod bloom;
pub mod distinct;
pub mod error;
pub mod format;
pub mod hash;
pub mod kernel;
#[cfg(feature = "python")]
mod python;
