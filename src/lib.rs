//! The native kernels of tamis: hashes in, bools out; no policy, no I/O.

pub mod bits;
pub mod error;
pub mod hash;
