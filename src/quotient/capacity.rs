//! When a quotient filter is full, and its capacity after doubling.
//!
//! This is the only sizing rule in a kernel. It cannot be left to planning: a filter doubles in the
//! middle of a batch, and a filter opened from a file must double at the same key as the one that
//! was saved. So it depends only on the quotients and the capacity, which are in the frame.
//! Planning (`planning/quotient.py`) has the same rule; `tests/filters/test_quotient.py` compares
//! them.

use super::SLOTS;

/// Slots beyond the capacity, as a fraction of it (1/32): keys that share a fingerprint can take
/// more slots than keys.
const GRACE: u64 = 32;
/// Slots of a block that may be used if the number of blocks was rounded up: planning's load of
/// 0.95.
const FULL_BLOCK: u64 = 61;

/// The slots that a filter of this capacity may use.
pub fn max_slots(capacity: u64, quotients: u64) -> u64 {
    let rounded_up = quotients / SLOTS * FULL_BLOCK;
    capacity.saturating_add(capacity.div_ceil(GRACE)).max(rounded_up)
}

/// The capacity of a filter after it doubled.
pub fn doubled(capacity: u64) -> u64 {
    capacity.max(1).saturating_mul(2)
}
