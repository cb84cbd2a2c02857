//! The rank-and-select quotient filter (Pandey, Bender, Johnson and Patro 2017), counting.
//!
//! A key's fingerprint is the number `F = ⌊h·Q·2^r / 2¹²⁸⌋` of its hash `h`; the filter is exactly
//! the multiset of the fingerprints of its keys. `F` splits into a quotient, one of `Q` (any
//! number), and a remainder of `r` bits. [`Table`] stores the remainders of each quotient as a run
//! of slots, at 2.125 + r bits per slot, and `counts.rs` defines how a run encodes counts: a
//! remainder inserted once takes one slot, twice two, and from three times on a counter that grows
//! with the logarithm of the count.
//!
//! An absent key is a false positive if its fingerprint is stored, so the false-positive rate is
//!
//! ```text
//! α = distinct / (Q·2^r)
//! ```
//!
//! A filter grows without its keys: with `2Q` quotients and `r − 1` bits every `F` stays the same
//! number, and so does α. The caller limits the load; the kernel takes insertions at any load, ever
//! slower above 95% of `Q`, where clusters grow as `1/(1 − load)²`.
//!
//! In reading order: `table.rs` (blocks and slots), `find.rs` (runs), `shift.rs` (adding and removing
//! slots), `counts.rs` (the meaning of a run), this file (query, insert, remove), `build.rs` (from
//! sorted fingerprints; grow, truncate, merge), `open.rs` (untrusted bytes), `capacity.rs`
//! (when it is full), `growing.rs` (threads, and doubling when full).

mod build;
pub(crate) mod capacity;
mod counts;
mod find;
mod growing;
mod open;
mod shift;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use build::Builder;
pub use growing::{Growing, KIND};
pub(crate) use table::SLOTS;
pub use table::{MAX_REMAINDER_BITS, Runs, Table};

use crate::error::{Error, Result};
use crate::hash::Hash128;
use crate::processor::{Processor, on_best};
use counts::{decode, encoded_len, encoded_slot};
use std::ops::{Deref, Range};

/// How many keys ahead a batch prefetches: enough to hide a memory access of 100 ns behind the work
/// on earlier keys, measured on 10⁶ keys; from 16 to 64 it makes no difference.
const AHEAD: usize = 32;

/// A multiset of fingerprints. It dereferences to its [`Table`].
pub struct Quotient {
    table: Table,
    /// The sum of all counts: below 2⁶⁴ counts of below 2⁶⁴.
    total: u128,
    distinct: u64,
}

impl Deref for Quotient {
    type Target = Table;

    #[inline(always)]
    fn deref(&self) -> &Table {
        &self.table
    }
}

impl Quotient {
    /// An empty filter of any number of quotients and remainders of 1 to [`MAX_REMAINDER_BITS`].
    pub fn new(quotients: u64, remainder_bits: u32) -> Result<Quotient> {
        Ok(Quotient { table: Table::new(quotients, remainder_bits)?, total: 0, distinct: 0 })
    }

    /// Copies the table out of a mapped file; see [`Table::out_of_mapping`].
    pub(super) fn leave_mapping(&mut self) -> Result<()> {
        if let Some(copy) = self.table.out_of_mapping() {
            let (quotients, bits) = (self.table.quotients(), self.table.remainder_bits());
            *self = Quotient::from_parts(quotients, bits, self.len(), self.distinct, copy?)?;
        }
        Ok(())
    }

    /// The number of keys inserted and not removed, repetitions included; at most 2⁶⁴−1.
    pub fn len(&self) -> u64 {
        u64::try_from(self.total).unwrap_or(u64::MAX)
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The number of different fingerprints stored.
    pub fn distinct(&self) -> u64 {
        self.distinct
    }

    /// α: the fraction of absent keys that are accepted, exactly.
    pub fn rate(&self) -> f64 {
        let bits = self.table.remainder_bits() as i32;
        self.distinct as f64 / self.table.quotients() as f64 / 2f64.powi(bits)
    }

    /// Whether a key may have been inserted.
    pub fn contains(&self, hash: Hash128) -> bool {
        let (quotient, remainder) = self.table.address(hash);
        on_best!(p => self.contains_on(p, quotient, remainder))
    }

    /// [`Quotient::contains`] for each hash, into `out` at the same index.
    pub fn contains_batch(&self, hashes: &[Hash128], out: &mut [bool]) {
        on_best!(p => self.contains_batch_on(p, hashes, out))
    }

    /// How often a key, or others with its fingerprint, were inserted and not removed.
    pub fn count(&self, hash: Hash128) -> u64 {
        let (quotient, remainder) = self.table.address(hash);
        self.table.run(quotient).map_or(0, |run| self.find(run, remainder).1)
    }

    /// Adds one to a key's count. Fails only if memory for the tail is missing, and then changes
    /// nothing.
    pub fn insert(&mut self, hash: Hash128) -> Result<()> {
        let (quotient, remainder) = self.table.address(hash);
        on_best!(p => self.insert_on(p, quotient, remainder))
    }

    /// Inserts hashes until all are inserted or [`Table::used_slots`] reaches `max_slots`, and
    /// returns how many were inserted. It also stops if memory is missing, and fails when called
    /// with the rest.
    pub fn insert_batch(&mut self, hashes: &[Hash128], max_slots: u64) -> Result<usize> {
        on_best!(p => self.insert_batch_on(p, hashes, max_slots))
    }

    /// Subtracts one from a key's count; [`Error::Absent`] if the key was surely never inserted. A
    /// count of 2⁶⁴−1 may stand for more, so it stays.
    pub fn remove(&mut self, hash: Hash128) -> Result<()> {
        let (quotient, remainder) = self.table.address(hash);
        on_best!(p => self.remove_on(p, quotient, remainder))
    }

    /// The fingerprints of a range of quotients as (quotient, remainder, count), in order: one
    /// pass over the blocks of the range.
    pub fn fingerprints(&self, quotients: Range<u64>) -> Fingerprints<'_> {
        Fingerprints {
            table: &self.table,
            runs: self.table.runs(quotients),
            quotient: 0,
            run: 0..0,
        }
    }
}

/// See [`Quotient::fingerprints`].
pub struct Fingerprints<'a> {
    table: &'a Table,
    runs: Runs<'a>,
    quotient: u64,
    /// The rest of the quotient's run.
    run: Range<u64>,
}

impl Iterator for Fingerprints<'_> {
    type Item = (u64, u64, u64);

    #[inline]
    fn next(&mut self) -> Option<(u64, u64, u64)> {
        if self.run.is_empty() {
            (self.quotient, self.run) = self.runs.next()?;
        }
        let slot = |index| self.table.slot(index);
        let group = decode(slot, self.run.start, self.run.end, self.table.remainder_bits())?;
        self.run.start = group.end;
        Some((self.quotient, group.remainder, group.count))
    }
}

impl Quotient {
    #[inline(always)]
    fn contains_on<P: Processor>(&self, p: P, quotient: u64, remainder: u64) -> bool {
        if !self.table.is_occupied(quotient) {
            return false;
        }
        let start = self.table.start_on(p, quotient);
        // Most absent keys end here. A slot that equals the remainder may still be a digit.
        self.table.run_has(start, remainder) && self.run_lists(start, remainder)
    }

    /// Whether the run that starts at `start`, and has a slot equal to the remainder, contains the
    /// remainder itself: certainly if all slots before it increase.
    #[inline(always)]
    fn run_lists(&self, start: u64, remainder: u64) -> bool {
        let mut at = start;
        let mut last = self.table.slot(at);
        while last < remainder {
            at += 1;
            let next = self.table.slot(at);
            if next <= last {
                let run = start..self.table.runend_from(start) + 1;
                return self.find(run, remainder).1 > 0;
            }
            last = next;
        }
        last == remainder
    }

    #[inline(always)]
    fn contains_batch_on<P: Processor>(&self, p: P, hashes: &[Hash128], out: &mut [bool]) {
        let mut addresses = [(0, 0); AHEAD];
        for (hashes, out) in hashes.chunks(AHEAD).zip(out.chunks_mut(AHEAD)) {
            for (address, hash) in addresses.iter_mut().zip(hashes) {
                *address = self.table.address(*hash);
                self.table.prefetch(address.0);
            }
            for ((quotient, remainder), out) in addresses.iter().zip(out) {
                *out = self.contains_on(p, *quotient, *remainder);
            }
        }
    }

    #[inline(always)]
    fn insert_batch_on<P: Processor>(
        &mut self,
        p: P,
        hashes: &[Hash128],
        max_slots: u64,
    ) -> Result<usize> {
        let mut addresses = [(0, 0); AHEAD];
        let mut done = 0;
        for hashes in hashes.chunks(AHEAD) {
            for (address, hash) in addresses.iter_mut().zip(hashes) {
                *address = self.table.address(*hash);
                self.table.prefetch(address.0);
            }
            for (quotient, remainder) in &addresses[..hashes.len()] {
                if self.table.used_slots() >= max_slots {
                    return Ok(done);
                }
                match self.insert_on(p, *quotient, *remainder) {
                    Err(error) if done == 0 => return Err(error),
                    Err(_) => return Ok(done),
                    Ok(()) => done += 1,
                }
            }
        }
        Ok(done)
    }

    #[inline(always)]
    fn insert_on<P: Processor>(&mut self, p: P, quotient: u64, remainder: u64) -> Result<()> {
        let start = self.table.start_on(p, quotient);
        let mut run = start..start;
        let mut position = start;
        if self.table.is_occupied(quotient) {
            run.end = self.table.runend_from(start) + 1;
            let mut last = None;
            while position < run.end {
                let slot = self.table.slot(position);
                if slot == remainder || last.is_some_and(|last| slot <= last) {
                    return self.insert_counted(quotient, run, remainder);
                }
                if slot > remainder {
                    break;
                }
                last = Some(slot);
                position += 1;
            }
        }
        self.table.insert_on(p, quotient, run, position, remainder)?;
        self.total += 1;
        self.distinct += 1;
        Ok(())
    }

    #[inline(always)]
    fn remove_on<P: Processor>(&mut self, p: P, quotient: u64, remainder: u64) -> Result<()> {
        let run = self.table.run_on(p, quotient).unwrap_or(0..0);
        let (slots, count) = self.find(run.clone(), remainder);
        match count {
            0 => return Err(Error::Absent("the key is not in the filter".into())),
            1 => {
                self.table.remove_on(p, quotient, run, slots.start);
                self.distinct -= 1;
            }
            u64::MAX => return Ok(()),
            _ => self.recount(quotient, slots, remainder, count - 1)?,
        }
        self.total -= 1;
        Ok(())
    }

    /// Inserts into a run that has counters or already contains the remainder.
    #[inline(never)]
    fn insert_counted(&mut self, quotient: u64, run: Range<u64>, remainder: u64) -> Result<()> {
        let (slots, count) = self.find(run, remainder);
        if count == u64::MAX {
            return Ok(());
        }
        self.recount(quotient, slots, remainder, count + 1)?;
        self.total += 1;
        self.distinct += u64::from(count == 0);
        Ok(())
    }

    /// The slots of a remainder and its count, and the count; if the run does not contain it, the
    /// empty range at its position, and 0.
    fn find(&self, run: Range<u64>, remainder: u64) -> (Range<u64>, u64) {
        let slot = |index| self.table.slot(index);
        let mut at = run.start;
        while let Some(group) = decode(slot, at, run.end, self.table.remainder_bits()) {
            if group.remainder == remainder {
                return (at..group.end, group.count);
            }
            if group.remainder > remainder {
                break;
            }
            at = group.end;
        }
        (at..at, 0)
    }

    /// Rewrites a remainder's slots with another count. All or nothing: memory is allocated first.
    fn recount(
        &mut self,
        quotient: u64,
        slots: Range<u64>,
        remainder: u64,
        count: u64,
    ) -> Result<()> {
        let bits = self.table.remainder_bits();
        let end = slots.start + encoded_len(remainder, count, bits);
        self.table.reserve(self.table.end() + end.saturating_sub(slots.end))?;
        for position in slots.end..end {
            self.table.insert_slot(quotient, position, 0)?;
        }
        for position in (end..slots.end).rev() {
            self.table.remove_slot(quotient, position)?;
        }
        for position in slots.start..end {
            let slot = encoded_slot(remainder, count, bits, position - slots.start);
            self.table.set_slot(position, slot);
        }
        Ok(())
    }
}
