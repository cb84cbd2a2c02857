//! A table written from front to back, and its uses: growing, truncating, merging.

use super::Quotient;
use super::counts::{encoded_len, encoded_slot};
use super::table::{LONG, SLOTS, Table};
use crate::error::{Error, Result};
use crate::interrupt;
use std::cmp::Ordering;

/// A fingerprint as (quotient, remainder, count).
type Fingerprint = (u64, u64, u64);

impl Quotient {
    /// A filter of fingerprints (quotient, remainder, count) in increasing order; the counts of
    /// equal ones add up. The table has the same bytes as after inserting them one by one.
    pub fn from_sorted(
        quotients: u64,
        remainder_bits: u32,
        fingerprints: impl IntoIterator<Item = Fingerprint>,
    ) -> Result<Quotient> {
        let mut builder = Builder::new(Table::new(quotients, remainder_bits)?);
        let (mut total, mut distinct) = (0, 0);
        let mut push = |builder: &mut Builder, (quotient, remainder, count): Fingerprint| {
            let len = encoded_len(remainder, count, remainder_bits);
            let slot = |index| encoded_slot(remainder, count, remainder_bits, index);
            total += u128::from(count);
            distinct += 1;
            builder.push(quotient, remainder, len, slot)
        };
        let mut fingerprints = fingerprints.into_iter().filter(|(_, _, count)| *count > 0);
        let Some(mut last) = fingerprints.next() else {
            return Quotient::new(quotients, remainder_bits);
        };
        for next in fingerprints {
            if next.0 & 4095 < last.0 & 4095 {
                interrupt::check();
            }
            match (last.0, last.1).cmp(&(next.0, next.1)) {
                Ordering::Less => {
                    push(&mut builder, last)?;
                    last = next;
                }
                Ordering::Equal => last.2 = last.2.saturating_add(next.2),
                Ordering::Greater => {
                    return Err(Error::Parameter("fingerprints must come in order".into()));
                }
            }
        }
        push(&mut builder, last)?;
        Ok(Quotient { table: builder.finish(), total, distinct })
    }

    /// The same fingerprints in twice the quotients, with one bit less per slot.
    /// [`Error::Capacity`] if remainders have a single bit.
    ///
    /// Remainders of a single bit have no counters (`counts.rs`), so the last doubling, from 2 bits
    /// to 1, may grow the filter to as many slots as keys.
    pub fn double(&self) -> Result<Quotient> {
        let bits = self.remainder_bits();
        let quotients = self.quotients().checked_mul(2).filter(|_| bits > 1).ok_or_else(|| {
            Error::Capacity(format!(
                "a quotient filter with remainders of {bits} bits cannot double its {} quotients; \
                 build a larger one from the keys",
                self.quotients()
            ))
        })?;
        Quotient::from_sorted(quotients, bits - 1, self.refined(1))
    }

    /// The same keys with the lowest bits of each remainder dropped; the counts of remainders that
    /// become equal add up.
    pub fn truncated(&self, remainder_bits: u32) -> Result<Quotient> {
        let bits = self.remainder_bits();
        if !(1..=bits).contains(&remainder_bits) {
            let message = format!("bits must be from 1 to {bits}, not {remainder_bits}");
            return Err(Error::Parameter(message));
        }
        let cut = bits - remainder_bits;
        let fingerprints = self.fingerprints(0..self.quotients());
        let shorter =
            fingerprints.map(|(quotient, remainder, count)| (quotient, remainder >> cut, count));
        Quotient::from_sorted(self.quotients(), remainder_bits, shorter)
    }

    /// Merges two filters; counts add up. Both must have the same space of fingerprints `Q·2^r`;
    /// one may have doubled more often than the other.
    pub fn merge(&self, other: &Quotient) -> Result<Quotient> {
        let space = |filter: &Quotient| u128::from(filter.quotients()) << filter.remainder_bits();
        if space(self) != space(other) {
            return Err(Error::Incompatible(format!(
                "a quotient filter of {} quotients and {} remainder bits cannot be merged with one \
                 of {} and {}: quotients times 2^bits must be equal",
                self.quotients(),
                self.remainder_bits(),
                other.quotients(),
                other.remainder_bits()
            )));
        }
        let bits = self.remainder_bits().min(other.remainder_bits());
        let (few, many) = (
            self.refined(self.remainder_bits() - bits),
            other.refined(other.remainder_bits() - bits),
        );
        let quotients = self.quotients().max(other.quotients());
        Quotient::from_sorted(
            quotients,
            bits,
            Merged { left: few.peekable(), right: many.peekable() },
        )
    }

    /// The fingerprints after this many doublings.
    fn refined(&self, doublings: u32) -> impl Iterator<Item = Fingerprint> + '_ {
        let bits = self.remainder_bits() - doublings;
        self.fingerprints(0..self.quotients()).map(move |(quotient, remainder, count)| {
            (quotient << doublings | remainder >> bits, remainder & ((1 << bits) - 1), count)
        })
    }
}

/// Two sorted streams as one.
struct Merged<A: Iterator, B: Iterator> {
    left: std::iter::Peekable<A>,
    right: std::iter::Peekable<B>,
}

impl<A, B> Iterator for Merged<A, B>
where
    A: Iterator<Item = Fingerprint>,
    B: Iterator<Item = Fingerprint>,
{
    type Item = Fingerprint;

    #[inline]
    fn next(&mut self) -> Option<Fingerprint> {
        match (self.left.peek(), self.right.peek()) {
            (Some(left), Some(right)) if right < left => self.right.next(),
            (None, _) => self.right.next(),
            _ => self.left.next(),
        }
    }
}

/// A table under construction: runs are written in order.
pub(crate) struct Builder {
    table: Table,
    /// The quotient of the last run, whose runend is not written yet.
    run: Option<u64>,
    /// The slot after the last one written.
    end: u64,
    /// The first block whose offset is not written yet.
    offsets: u64,
}

impl Builder {
    /// Starts with an empty table.
    pub(crate) fn new(table: Table) -> Builder {
        Builder { table, run: None, end: 0, offsets: 0 }
    }

    /// Appends `len` slots to the run of a quotient at or above the last: a remainder, then
    /// `slot(1)` and so on. Returns the first of them.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        quotient: u64,
        remainder: u64,
        len: u64,
        slot: impl Fn(u64) -> u64,
    ) -> Result<u64> {
        let table = &mut self.table;
        let bits = table.remainder_bits();
        if quotient >= table.quotients() || remainder >> bits != 0 {
            return Err(Error::Parameter(format!(
                "fingerprint ({quotient}, {remainder}) is outside {} quotients and {bits} bits",
                table.quotients()
            )));
        }
        if self.run != Some(quotient) {
            close_run(table, self.run, self.end);
            let block = quotient / SLOTS;
            if self.offsets <= block {
                write_offsets(table, self.offsets..block + 1, self.end);
                self.offsets = block + 1;
            }
            table.set_occupieds(block, table.occupieds(block) | 1 << (quotient % SLOTS));
            self.run = Some(quotient);
            self.end = self.end.max(quotient);
        }
        table.reserve(self.end.saturating_add(len))?;
        let first = self.end;
        table.append_slot(first, remainder);
        for index in 1..len {
            table.append_slot(first + index, slot(index));
        }
        self.end += len;
        table.used += len;
        Ok(first)
    }

    /// The finished table.
    pub(crate) fn finish(mut self) -> Table {
        let table = &mut self.table;
        close_run(table, self.run, self.end);
        write_offsets(table, self.offsets..table.slots() / SLOTS, self.end);
        self.table
    }
}

/// Marks the end of the last run, if there is one.
#[inline(always)]
fn close_run(table: &mut Table, run: Option<u64>, end: u64) {
    if run.is_some() {
        let (block, bit) = ((end - 1) / SLOTS, (end - 1) % SLOTS);
        table.set_runends(block, table.runends(block) | 1 << bit);
    }
}

/// Writes the offsets of blocks between the last quotient and the next, given the end of the runs.
#[inline(always)]
fn write_offsets(table: &mut Table, blocks: std::ops::Range<u64>, end: u64) {
    for block in blocks {
        let offset = end.saturating_sub(block * SLOTS).min(u64::from(LONG));
        table.set_offset(block, offset as u8);
    }
}
