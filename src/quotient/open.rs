//! Opening untrusted bytes: checked once, in one pass, so that no later operation can fail.
//!
//! The occupieds and the runends determine the rest of the layout; so the pass follows the runs
//! from front to back and refuses any deviation.

use super::Quotient;
use super::counts::decode;
use super::table::{LONG, PADDING, SLOTS, Table, check_sizes, home_blocks, stride};
use crate::bits::Buffer;
use crate::error::{Error, Result};

fn damaged<T>(what: impl std::fmt::Display) -> Result<T> {
    Err(Error::Format(format!("the quotient filter is damaged: {what}")))
}

impl Table {
    /// Reads the bytes of [`Table::as_bytes`], or fails with [`Error::Format`].
    ///
    /// This checks the positions of runs, not the meaning of their remainders.
    pub fn from_bytes(quotients: u64, remainder_bits: u32, buffer: Buffer) -> Result<Table> {
        check_sizes(quotients, remainder_bits).or_else(|error| damaged(format_args!("{error}")))?;
        let stride = stride(remainder_bits);
        let len = buffer.len();
        let blocks = len.saturating_sub(PADDING) / stride;
        if len != blocks * stride + PADDING || (blocks as u64) < home_blocks(quotients) {
            return damaged(format_args!(
                "{len} bytes do not hold {quotients} quotients of {remainder_bits} bits"
            ));
        }
        if buffer.as_slice()[blocks * stride..].iter().any(|byte| *byte != 0) {
            return damaged("bytes behind the last block are not 0");
        }
        let mut table = Table::around(quotients, remainder_bits, blocks, buffer);
        let (end, used) = table.follow_runs()?;
        table.used = used;
        if blocks as u64 != home_blocks(quotients).max(end.div_ceil(SLOTS)) {
            return damaged("blocks at the end are not in use");
        }
        Ok(table)
    }

    /// Follows the runs of an unchecked table; returns the end of the last one and the number of
    /// used slots.
    fn follow_runs(&self) -> Result<(u64, u64)> {
        let (mut end, mut used) = (0u64, 0u64);
        for block in 0..self.slots() / SLOTS {
            let first = block * SLOTS;
            let offset = end.saturating_sub(first).min(u64::from(LONG));
            if u64::from(self.stored_offset(block)) != offset {
                return damaged(format_args!("block {block} has a wrong offset"));
            }
            let mut occupieds = self.occupieds(block);
            while occupieds != 0 {
                let quotient = first + u64::from(occupieds.trailing_zeros());
                occupieds &= occupieds - 1;
                if quotient >= self.quotients() {
                    return damaged(format_args!("quotient {quotient} does not exist"));
                }
                let start = end.max(quotient);
                self.check_free(end, start)?;
                let last = self.checked_runend(start);
                let Some(last) = last else {
                    return damaged(format_args!("the run of quotient {quotient} has no end"));
                };
                used += last + 1 - start;
                end = last + 1;
            }
        }
        self.check_free(end, self.slots())?;
        Ok((end, used))
    }

    /// Refuses slots between runs that are not 0.
    fn check_free(&self, from: u64, to: u64) -> Result<()> {
        for slot in from..to {
            let end = self.runends(slot / SLOTS) >> (slot % SLOTS) & 1;
            if end != 0 || self.slot(slot) != 0 {
                return damaged(format_args!("slot {slot} is in no run but is not 0"));
            }
        }
        Ok(())
    }

    /// The first runend from slot `from` on, if there is one.
    fn checked_runend(&self, from: u64) -> Option<u64> {
        if from >= self.slots() {
            return None;
        }
        let last = self.runend_from(from);
        (self.runends(last / SLOTS) >> (last % SLOTS) & 1 == 1).then_some(last)
    }
}

impl Quotient {
    /// Opens the filter whose table is these untrusted bytes, with [`Quotient::len`] keys and
    /// [`Quotient::distinct`] fingerprints, or fails with [`Error::Format`].
    pub fn from_parts(
        quotients: u64,
        remainder_bits: u32,
        len: u64,
        distinct: u64,
        buffer: Buffer,
    ) -> Result<Quotient> {
        let table = Table::from_bytes(quotients, remainder_bits, buffer)?;
        let mut filter = Quotient { table, total: 0, distinct: 0 };
        let table = &filter.table;
        for (quotient, run) in table.runs(0..quotients) {
            let (mut at, mut last) = (run.start, None);
            while at < run.end {
                let group = decode(|i| table.slot(i), at, run.end, remainder_bits)
                    .filter(|group| last.is_none_or(|last| last < group.remainder));
                let Some(group) = group else {
                    return damaged(format_args!(
                        "the run of quotient {quotient} cannot be decoded"
                    ));
                };
                filter.total += u128::from(group.count);
                filter.distinct += 1;
                (at, last) = (group.end, Some(group.remainder));
            }
        }
        if (filter.len(), filter.distinct) != (len, distinct) {
            return damaged(format_args!(
                "it holds {} keys and {} fingerprints, not {len} and {distinct}",
                filter.len(),
                filter.distinct
            ));
        }
        Ok(filter)
    }
}
