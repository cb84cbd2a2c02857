//! Adding a slot to a run and removing one: the slots behind it move by one, as one long shift of
//! bits, up to the first free slot or, when removing, the first slot at its home.
//!
//! Offsets follow: every block that begins between the quotient's home and the end of the shift is
//! reached by one slot more or less.

use super::table::{LONG, REMAINDERS, SLOTS, Table, below};
use crate::error::Result;
use crate::processor::{Plain, Processor};
use std::ops::Range;

impl Table {
    /// [`Table::insert_slot`] if the run is known; a quotient without one has the empty range at
    /// its start.
    #[inline(always)]
    pub(crate) fn insert_on<P: Processor>(
        &mut self,
        p: P,
        quotient: u64,
        run: Range<u64>,
        position: u64,
        remainder: u64,
    ) -> Result<Range<u64>> {
        let home = quotient / SLOTS;
        let is_new = run.is_empty();
        let free = if run.end == quotient {
            quotient
        } else {
            let pending = self.rank(quotient + 1..run.end);
            self.gap(p, run.end, pending, true)
        };
        if free >= self.slots() {
            self.reserve(free + 1)?;
        }
        let is_last = position == run.end;
        if is_new {
            self.set_occupieds(home, self.occupieds(home) | 1 << (quotient % SLOTS));
        } else if is_last {
            let (block, bit) = ((position - 1) / SLOTS, (position - 1) % SLOTS);
            self.set_runends(block, self.runends(block) & !(1 << bit));
        }
        let (low, high) = (position / SLOTS, free / SLOTS);
        for block in (low + 1..=high).rev() {
            let last = if block == high { free % SLOTS } else { SLOTS - 1 };
            let carried = self.slot(block * SLOTS - 1);
            let end = self.runends(block - 1) >> 63;
            self.shift_up(block, 0, last, carried, end);
        }
        let last = if low == high { free % SLOTS } else { SLOTS - 1 };
        self.shift_up(low, position % SLOTS, last, remainder, u64::from(is_last));
        // Every block between the home and the formerly free slot is reached by one more slot.
        for block in home + 1..=high {
            let offset = self.stored_offset(block).saturating_add(1);
            self.set_offset(block, offset);
        }
        self.used += 1;
        Ok(position..free)
    }

    /// [`Table::remove_slot`] if the run is known and contains the position.
    #[inline(always)]
    pub(crate) fn remove_on<P: Processor>(
        &mut self,
        p: P,
        quotient: u64,
        run: Range<u64>,
        position: u64,
    ) -> Range<u64> {
        let home = quotient / SLOTS;
        let pending = self.rank(quotient + 1..run.end);
        let stop = self.gap(p, run.end, pending, false);
        if run.end - run.start == 1 {
            self.set_occupieds(home, self.occupieds(home) & !(1 << (quotient % SLOTS)));
        } else if position + 1 == run.end {
            let (block, bit) = ((position - 1) / SLOTS, (position - 1) % SLOTS);
            self.set_runends(block, self.runends(block) | 1 << bit);
        }
        let (low, high) = (position / SLOTS, (stop - 1) / SLOTS);
        for block in low..high {
            let first = if block == low { position % SLOTS } else { 0 };
            let carried = self.slot((block + 1) * SLOTS);
            let end = self.runends(block + 1) & 1;
            self.shift_down(block, first, SLOTS - 1, carried, end);
        }
        let first = if low == high { position % SLOTS } else { 0 };
        self.shift_down(high, first, (stop - 1) % SLOTS, 0, 0);
        self.lower_offsets(home + 1..high + 1);
        self.used -= 1;
        position + 1..stop
    }

    /// Subtracts one from the offsets of blocks whose slots have already moved down. A long offset
    /// is counted again from the previous block, so that a cluster is counted once.
    fn lower_offsets(&mut self, blocks: Range<u64>) {
        let mut end = None;
        for block in blocks {
            let stored = self.stored_offset(block);
            if stored != LONG {
                self.set_offset(block, stored.saturating_sub(1));
                end = None;
                continue;
            }
            let before = block - 1;
            let from = end.unwrap_or_else(|| before * SLOTS + self.offset(before));
            let here = match u64::from(self.occupieds(before).count_ones()) {
                0 => from,
                rank => self.select(Plain, from, rank - 1) + 1,
            };
            self.set_offset(block, here.saturating_sub(block * SLOTS).min(u64::from(LONG)) as u8);
            end = Some(here);
        }
    }

    /// Moves slots `first..last` of a block and their runends up by one, overwriting `last`, and
    /// puts a remainder and a runend into `first`. A shift of one long number.
    #[inline(always)]
    fn shift_up(&mut self, block: u64, first: u64, last: u64, remainder: u64, end: u64) {
        let touched = below(last + 1) & (u64::MAX << first);
        let ends = self.runends(block);
        let moved = (ends & touched) << 1 & touched;
        self.set_runends(block, ends & !touched | moved | end << first);

        if first < last {
            let r = u64::from(self.remainder_bits());
            let (from, to) = (first * r, last * r + r);
            let at = |word: u64| word as usize * 8;
            let base = self.base(block) + REMAINDERS;
            let (low, high) = (from / 64, (to - 1) / 64);
            let mut kept = !below((to - 1) % 64 + 1);
            let mut word = self.word(base + at(high));
            for index in (low + 1..=high).rev() {
                let lower = self.word(base + at(index - 1));
                let moved = word << r | lower >> (64 - r);
                self.set_word(base + at(index), moved & !kept | word & kept);
                (word, kept) = (lower, 0);
            }
            kept |= below(from % 64);
            self.set_word(base + at(low), word << r & !kept | word & kept);
        }
        self.set_slot(block * SLOTS + first, remainder);
    }

    /// Moves slots `first+1..=last` of a block and their runends down by one, overwriting `first`,
    /// and puts a remainder and a runend into `last`.
    #[inline(always)]
    fn shift_down(&mut self, block: u64, first: u64, last: u64, remainder: u64, end: u64) {
        let touched = below(last + 1) & (u64::MAX << first);
        let ends = self.runends(block);
        let moved = (ends & touched) >> 1 & touched;
        self.set_runends(block, ends & !touched | moved | end << last);

        if first < last {
            let r = u64::from(self.remainder_bits());
            let (from, to) = (first * r, last * r + r);
            let at = |word: u64| word as usize * 8;
            let base = self.base(block) + REMAINDERS;
            let (low, high) = (from / 64, (to - 1) / 64);
            let mut kept = below(from % 64);
            let mut word = self.word(base + at(low));
            for index in low..high {
                let upper = self.word(base + at(index + 1));
                let moved = word >> r | upper << (64 - r);
                self.set_word(base + at(index), moved & !kept | word & kept);
                (word, kept) = (upper, 0);
            }
            kept |= !below((to - 1) % 64 + 1);
            self.set_word(base + at(high), word >> r & !kept | word & kept);
        }
        self.set_slot(block * SLOTS + last, remainder);
    }
}
