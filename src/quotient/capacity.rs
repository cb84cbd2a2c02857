//! When a quotient filter is full, and what its capacity is once it has doubled.
//!
//! This is the one sizing rule in a kernel. It cannot be planning's alone: a filter doubles in the
//! middle of a batch, and one that was opened from a file has to double at the same key as the one
//! that was saved. So it follows from what a frame holds, the quotients and the capacity. Planning
//! (`planning/quotient.py`) has the same rule; `tests/filters/test_quotient.py` compares them.

use super::SLOTS;

/// Slots beyond the capacity, as a share of it (1/32): keys that share a fingerprint can take more
/// slots than keys.
const GRACE: u64 = 32;
/// Slots of a block that may be used where blocks were rounded up: planning's load of 0.95.
const FULL_BLOCK: u64 = 61;

/// The slots that a filter of this capacity may use.
pub fn max_slots(capacity: u64, quotients: u64) -> u64 {
    let rounded_up = quotients / SLOTS * FULL_BLOCK;
    capacity.saturating_add(capacity.div_ceil(GRACE)).max(rounded_up)
}

/// The capacity of a filter that doubles.
pub fn doubled(capacity: u64) -> u64 {
    capacity.max(1).saturating_mul(2)
}
