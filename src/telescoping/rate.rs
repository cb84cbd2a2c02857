//! The fraction of absent keys that fit a slot: a sum over runs, maintained once it was computed.

use super::{LENGTH_SHIFT, Mode, Telescoping};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Shares are multiples of 2^-90, so that they can be added and subtracted without error: 2^37 runs
/// have a sum below 2^127, and a share above 2^-37 loses nothing.
const UNIT: f64 = (1u128 << 90) as f64;

/// The sum of the shares of all runs, if it is known.
#[derive(Default)]
pub(super) struct Shares {
    known: AtomicBool,
    /// The two halves. Readers that compute the sum at the same time write the same value.
    sum: [AtomicU64; 2],
}

impl Shares {
    fn get(&self) -> Option<u128> {
        let half = |i: usize| u128::from(self.sum[i].load(Relaxed));
        self.known.load(Acquire).then(|| half(0) << 64 | half(1))
    }

    fn set(&self, sum: u128) {
        self.sum[0].store((sum >> 64) as u64, Relaxed);
        self.sum[1].store(sum as u64, Relaxed);
        self.known.store(true, Release);
    }

    /// Discards the sum; the next reader computes it again.
    pub(super) fn forget(&mut self) {
        *self.known.get_mut() = false;
    }
}

impl Telescoping {
    /// The fraction of absent keys that fit a slot, exactly: in a run, remainders under one
    /// selector exclude each other, and selectors are independent.
    pub fn rate(&self) -> f64 {
        let sum = self.shares.get().unwrap_or_else(|| {
            let runs = self.table.runs(0..self.table.quotients());
            let sum = runs.map(|(_, run)| self.share(run)).sum();
            self.shares.set(sum);
            sum
        });
        sum as f64 / UNIT / self.table.quotients() as f64
    }

    /// The share of a quotient's run before a change, if the sum is known and must be updated.
    #[inline]
    pub(super) fn share_before(&self, quotient: u64) -> Option<u128> {
        self.shares.known.load(Relaxed).then(|| self.share_of(quotient))
    }

    /// Updates the sum after a change of a run, given its share before.
    #[inline]
    pub(super) fn share_after(&mut self, quotient: u64, before: Option<u128>) {
        if let (Some(before), Some(sum)) = (before, self.shares.get()) {
            self.shares.set(sum - before + self.share_of(quotient));
        }
    }

    #[cold]
    fn share_of(&self, quotient: u64) -> u128 {
        self.table.run(quotient).map_or(0, |run| self.share(run))
    }

    fn share(&self, run: std::ops::Range<u64>) -> u128 {
        let space = 2f64.powi(self.table.remainder_bits() as i32);
        let mut slots: Vec<_> =
            self.contents(run).map(|(held, selector)| (selector, held)).collect();
        slots.sort_unstable();
        slots.dedup();
        let share = match self.store.mode() {
            Mode::Telescoping => {
                let missed = slots.chunk_by(|one, other| one.0 == other.0);
                1.0 - missed.map(|same| 1.0 - same.len() as f64 / space).product::<f64>()
            }
            // Sorted by length: keys that a shorter slot with the same bits accepts are not counted
            // twice.
            Mode::Extending => (0..slots.len())
                .filter(|&i| !slots[..i].iter().any(|&shorter| covers(shorter, slots[i])))
                .map(|i| 2f64.powi(-((slots[i].0 >> LENGTH_SHIFT) as i32)) / space)
                .sum(),
        };
        (share * UNIT) as u128
    }
}

/// Whether the first slot of an extending filter, as (selector, remainder), accepts all keys that
/// the second accepts.
fn covers(short: (u64, u64), long: (u64, u64)) -> bool {
    let (ours, theirs) = (short.0 >> LENGTH_SHIFT, long.0 >> LENGTH_SHIFT);
    let bits = |selector: u64| selector & ((1 << LENGTH_SHIFT) - 1);
    short.1 == long.1 && ours <= theirs && bits(short.0) == bits(long.0) >> (theirs - ours)
}
