//! Finding runs by rank and select, the remainders in a run, and the next free slot.

use super::table::{LONG, SLOTS, Table, below};
use crate::processor::{Plain, Processor};
use std::ops::Range;

impl Table {
    #[inline(always)]
    pub(crate) fn run_on<P: Processor>(&self, p: P, quotient: u64) -> Option<Range<u64>> {
        if !self.is_occupied(quotient) {
            return None;
        }
        let start = self.start_on(p, quotient);
        Some(start..self.runend_from(start) + 1)
    }

    #[inline(always)]
    pub(crate) fn start_on<P: Processor>(&self, p: P, quotient: u64) -> u64 {
        let block = quotient / SLOTS;
        let before = self.occupieds(block) & below(quotient % SLOTS);
        self.end_in(p, block, before).max(quotient)
    }

    /// The end of the runs of all blocks before `block` and of the given quotients of it (as bits);
    /// the block's start if they end before it.
    #[inline(always)]
    pub(super) fn end_in<P: Processor>(&self, p: P, block: u64, quotients: u64) -> u64 {
        let from = block * SLOTS + self.offset(block);
        match u64::from(quotients.count_ones()) {
            0 => from,
            rank => self.select(p, from, rank - 1) + 1,
        }
    }

    /// The runend of rank `rank` (from 0) among the runends from slot `from` on.
    #[inline(always)]
    pub(super) fn select<P: Processor>(&self, p: P, from: u64, mut rank: u64) -> u64 {
        let mut block = from / SLOTS;
        if block >= self.blocks as u64 {
            return self.slots();
        }
        let mut ends = self.runends(block) & (u64::MAX << (from % SLOTS));
        loop {
            let position = p.select(ends, rank);
            if position < 64 {
                return block * SLOTS + position;
            }
            rank -= u64::from(ends.count_ones());
            block += 1;
            if block >= self.blocks as u64 {
                return self.slots();
            }
            ends = self.runends(block);
        }
    }

    /// The first runend from slot `from` on.
    #[inline(always)]
    pub(crate) fn runend_from(&self, from: u64) -> u64 {
        let ends = self.runends(from / SLOTS) >> (from % SLOTS);
        if ends != 0 {
            return from + u64::from(ends.trailing_zeros());
        }
        for block in from / SLOTS + 1..self.blocks as u64 {
            let ends = self.runends(block);
            if ends != 0 {
                return block * SLOTS + u64::from(ends.trailing_zeros());
            }
        }
        self.slots() - 1
    }

    /// How many slots from a block's start belong to quotients of blocks before it.
    #[inline(always)]
    pub(crate) fn offset(&self, block: u64) -> u64 {
        match self.stored_offset(block) {
            LONG => self.long_offset(block),
            offset => u64::from(offset),
        }
    }

    /// An offset that does not fit its byte: counts runs from the last block whose offset fits. The
    /// offset of the first block is 0.
    #[cold]
    fn long_offset(&self, block: u64) -> u64 {
        let mut short = block;
        let mut rank = 0;
        while short > 0 && self.stored_offset(short) == LONG {
            short -= 1;
            rank += u64::from(self.occupieds(short).count_ones());
        }
        let from = short * SLOTS + u64::from(self.stored_offset(short));
        let end = if rank == 0 { from } else { self.select(Plain, from, rank - 1) + 1 };
        end.saturating_sub(block * SLOTS)
    }

    /// Whether any slot of the run that starts at `at` equals the remainder, comparing up to 64
    /// bits of slots at a time. The slot may still be a digit of a counter.
    #[inline(always)]
    pub(crate) fn run_has(&self, at: u64, remainder: u64) -> bool {
        self.run_has_any(at, 0, |_| remainder)
    }

    /// Whether any slot of the run that starts at `at` equals one of `remainder(0..=last)`.
    #[inline(always)]
    pub(crate) fn run_has_any(
        &self,
        mut at: u64,
        last: u64,
        remainder: impl Fn(u64) -> u64,
    ) -> bool {
        let r = u64::from(self.remainder_bits());
        loop {
            let block = at / SLOTS;
            let ends = self.runends(block) >> (at % SLOTS);
            let to_end = u64::from(ends.trailing_zeros()) + 1;
            let n = to_end.min(self.fit).min(SLOTS - at % SLOTS);
            let bit = self.bit(at);
            let word = self.word(self.base(block) + bit / 8) >> (bit % 8);
            for i in 0..=last {
                let differences = word ^ remainder(i).wrapping_mul(self.ones);
                // The classic test for a zero byte, applied to remainders: the lowest zero is
                // exact.
                let zeros =
                    differences.wrapping_sub(self.ones) & !differences & (self.ones << (r - 1));
                if zeros & below(n * r) != 0 {
                    return true;
                }
            }
            if to_end <= n {
                return false;
            }
            at += n;
            if at >= self.slots() {
                return false;
            }
        }
    }

    /// The first slot from `from` on where no run is pending and, if `free`, none begins either.
    /// `pending` runs of quotients below `from` end in `from` or later.
    #[inline(always)]
    pub(super) fn gap<P: Processor>(&self, p: P, from: u64, mut pending: u64, free: bool) -> u64 {
        let mut block = from / SLOTS;
        let mut i = from % SLOTS;
        while block < self.blocks as u64 {
            let (occupieds, ends) = (self.occupieds(block), self.runends(block));
            while i < SLOTS {
                if pending == 0 && !(free && occupieds >> i & 1 == 1) {
                    return block * SLOTS + i;
                }
                // Nothing is free before this many runs have ended; others may have begun by then.
                let due = pending.max(1);
                let end = p.select(ends & (u64::MAX << i), due - 1);
                let seen = below(end + 1) & (u64::MAX << i);
                if end == 64 {
                    pending += u64::from((occupieds & seen).count_ones());
                    pending -= u64::from((ends & seen).count_ones());
                    break;
                }
                pending = pending + u64::from((occupieds & seen).count_ones()) - due;
                i = end + 1;
            }
            block += 1;
            i = 0;
        }
        self.slots()
    }

    /// How many quotients of a range are occupied.
    #[inline(always)]
    pub(super) fn rank(&self, quotients: Range<u64>) -> u64 {
        let (first, last) = (quotients.start / SLOTS, quotients.end / SLOTS);
        let from = u64::MAX << (quotients.start % SLOTS);
        let to = below(quotients.end % SLOTS);
        if first == last {
            return u64::from((self.occupieds(first) & from & to).count_ones());
        }
        let mut rank = u64::from((self.occupieds(first) & from).count_ones());
        for block in first + 1..last {
            rank += u64::from(self.occupieds(block).count_ones());
        }
        if to != 0 {
            rank += u64::from((self.occupieds(last) & to).count_ones());
        }
        rank
    }
}
