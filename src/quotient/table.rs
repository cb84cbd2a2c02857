//! The slots of a rank-and-select quotient filter, independent of the meaning of their remainders.
//!
//! A table has `Q` quotients, any number, and a little more than `Q` slots of `r` bits. The slots
//! of one quotient are its *run*; runs stand in the order of their quotients, none before its
//! home: with `E(q)` the end of the last run of a quotient below `q` (0 if there is none),
//!
//! ```text
//! start(q) = max(q, E(q))
//! ```
//!
//! Two bits per slot store the positions (Pandey et al. 2017, section 3): `occupieds[q]` says that
//! `q` has a run, `runends[s]` that a run ends in slot `s`. The k-th occupied quotient owns the
//! k-th runend, so a rank over the one and a select in the other finds any run. To count from
//! nearby, each block of 64 slots stores its *offset*: how many slots from its start belong to
//! quotients of earlier blocks, `max(0, E(64b) − 64b)`. An offset has 8 bits; 255 stands for "255
//! or more", which `long_offset` computes.
//!
//! A block is 8 bytes of occupieds, 8 of runends, 1 of offset and `8r` of remainders, lowest bits
//! first: 2.125 + r bits per slot. Words are little-endian and unaligned; 8 zero bytes behind the
//! last block let every slot be read by one 8-byte load.
//!
//! Slot `s` is free if no run *pends*, that is if the runs of all quotients up to `s` end before
//! `s`. Free slots and their runends are always 0, so equal runs have equal bytes. The table is a
//! line, not a circle; if a run must reach behind the last block, a tail of blocks without
//! quotients is appended. See [`Table::as_bytes`] for how much of the tail is saved.
//!
//! Siblings: `find.rs` finds runs and free slots, `shift.rs` adds and removes slots, `counts.rs`
//! gives runs their meaning in [`Quotient`](super::Quotient), `open.rs` checks untrusted bytes,
//! `build.rs` writes a table from front to back.

use crate::bits::{Buffer, prefetch};
use crate::error::{Error, Result};
use crate::hash::Hash128;
use crate::processor::{Plain, on_best};
use std::ops::Range;

/// Slots per block: the bits of a word.
pub(crate) const SLOTS: u64 = 64;
/// Positions of a block's runends, offset and remainders.
const RUNENDS: usize = 8;
const OFFSET: usize = 16;
pub(super) const REMAINDERS: usize = 17;
/// An offset that does not fit its byte.
pub(super) const LONG: u8 = u8::MAX;
/// Zero bytes behind the last block.
pub(super) const PADDING: usize = 8;
/// A remainder, with up to 7 bits before it in its first byte, fits one 8-byte load.
pub const MAX_REMAINDER_BITS: u32 = 56;

/// Runs of remainders, one run per quotient. See the head of this file.
pub struct Table {
    quotients: u64,
    remainder_bits: u32,
    /// Bytes per block.
    stride: usize,
    pub(super) blocks: usize,
    pub(super) used: u64,
    /// The number of complete remainders in any 8-byte load.
    pub(super) fit: u64,
    /// The lowest bit of each of `fit` remainders.
    pub(super) ones: u64,
    buffer: Buffer,
}

/// The bits below `n`, which is at most 64.
#[inline(always)]
pub(super) fn below(n: u64) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}

/// The number of blocks for the home slots of `quotients`.
pub(super) fn home_blocks(quotients: u64) -> u64 {
    quotients.div_ceil(SLOTS)
}

/// Refuses invalid sizes.
pub(super) fn check_sizes(quotients: u64, remainder_bits: u32) -> Result<()> {
    if quotients == 0 {
        return Err(Error::Parameter("a quotient filter needs at least 1 quotient, not 0".into()));
    }
    if !(1..=MAX_REMAINDER_BITS).contains(&remainder_bits) {
        return Err(Error::Parameter(format!(
            "remainders have from 1 to {MAX_REMAINDER_BITS} bits, not {remainder_bits}"
        )));
    }
    Ok(())
}

/// Bytes per block of slots of `remainder_bits`.
pub(super) fn stride(remainder_bits: u32) -> usize {
    REMAINDERS + 8 * remainder_bits as usize
}

impl Table {
    /// An empty table.
    pub fn new(quotients: u64, remainder_bits: u32) -> Result<Table> {
        check_sizes(quotients, remainder_bits)?;
        let blocks = home_blocks(quotients);
        let buffer = Buffer::zeroed(byte_len(blocks, remainder_bits)?)?;
        Ok(Table::around(quotients, remainder_bits, blocks as usize, buffer))
    }

    /// A table in a buffer of the right length.
    pub(super) fn around(
        quotients: u64,
        remainder_bits: u32,
        blocks: usize,
        buffer: Buffer,
    ) -> Table {
        let fit = u64::from((MAX_REMAINDER_BITS + 1) / remainder_bits);
        let ones = (0..fit).map(|i| 1 << (i * u64::from(remainder_bits))).sum();
        let stride = stride(remainder_bits);
        Table { quotients, remainder_bits, stride, blocks, used: 0, fit, ones, buffer }
    }

    /// A copy of the table in owned memory, or `None` if it is already owned. A mapped file may
    /// have changed since it was checked. Queries would then give wrong answers, but insertions
    /// could follow offsets and runs anywhere: so before the first one, the table is copied and
    /// checked again.
    pub(crate) fn out_of_mapping(&self) -> Option<Result<Buffer>> {
        self.buffer.is_mapped().then(|| Buffer::copied(self.buffer.as_slice()))
    }

    /// `Q`: the number of quotients, occupied or not.
    pub fn quotients(&self) -> u64 {
        self.quotients
    }

    /// `r`: bits per slot.
    pub fn remainder_bits(&self) -> u32 {
        self.remainder_bits
    }

    /// The number of slots that hold a remainder.
    pub fn used_slots(&self) -> u64 {
        self.used
    }

    /// The number of slots, the tail included.
    #[inline(always)]
    pub fn slots(&self) -> u64 {
        self.blocks as u64 * SLOTS
    }

    /// The memory of the table in bytes, the tail included.
    pub fn size_in_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// The bytes to save: the blocks that have quotients or used slots, and the padding. Equal runs
    /// give equal bytes, regardless of the history of insertions and removals.
    ///
    /// The rest of the tail is not saved. Its first 8 bytes are occupieds, which are 0 behind the
    /// last quotient, so they serve as the padding.
    pub fn as_bytes(&self) -> &[u8] {
        let blocks = home_blocks(self.quotients).max(self.end().div_ceil(SLOTS)) as usize;
        &self.buffer.as_slice()[..blocks * self.stride + PADDING]
    }

    /// The quotient of a hash and the 64 bits of its fraction, whose top is the remainder: with the
    /// hash as a number `h` below 2¹²⁸, the bits of `h·Q / 2¹²⁸` before and behind the point. So
    /// `2Q` quotients move one bit from the front of the remainder to the quotient.
    #[inline(always)]
    pub fn split(&self, hash: Hash128) -> (u64, u64) {
        let q = u128::from(self.quotients);
        let product = u128::from(hash.hi) * q + ((u128::from(hash.lo) * q) >> 64);
        ((product >> 64) as u64, product as u64)
    }

    /// The quotient and the remainder of a hash.
    #[inline(always)]
    pub fn address(&self, hash: Hash128) -> (u64, u64) {
        let (quotient, fraction) = self.split(hash);
        (quotient, fraction >> (64 - self.remainder_bits))
    }

    /// Prefetches the cache lines that a query of a quotient reads first.
    #[inline(always)]
    pub fn prefetch(&self, quotient: u64) {
        let start = self.buffer.as_slice().as_ptr().wrapping_add(self.base(quotient / SLOTS));
        prefetch(start);
        prefetch(start.wrapping_add(self.bit(quotient) / 8 + 8));
    }

    /// Reads one of `parts` equal parts into the cache.
    pub fn preload(&self, part: usize, parts: usize) {
        self.buffer.preload(self.buffer.part(part, parts));
    }

    /// Whether the quotient has a run.
    #[inline(always)]
    pub fn is_occupied(&self, quotient: u64) -> bool {
        quotient < self.quotients && self.occupieds(quotient / SLOTS) >> (quotient % SLOTS) & 1 == 1
    }

    /// The slots of the quotient's run, if it has one.
    pub fn run(&self, quotient: u64) -> Option<Range<u64>> {
        on_best!(p => self.run_on(p, quotient))
    }

    /// The remainder in a slot below [`Table::slots`]; a free slot holds 0.
    #[inline(always)]
    pub fn slot(&self, index: u64) -> u64 {
        let bit = self.bit(index);
        let word = self.word(self.base(index / SLOTS) + bit / 8);
        word >> (bit % 8) & below(u64::from(self.remainder_bits))
    }

    /// Changes the remainder in a slot that is in use.
    #[inline(always)]
    pub fn set_slot(&mut self, index: u64, remainder: u64) {
        let bit = self.bit(index);
        let at = self.base(index / SLOTS) + bit / 8;
        let mask = below(u64::from(self.remainder_bits));
        let kept = self.word(at) & !(mask << (bit % 8));
        self.set_word(at, kept | (remainder & mask) << (bit % 8));
    }

    /// Fills the first free slot behind all others, for a table written from front to back. It
    /// reads only one byte: an 8-byte load would overlap the previous store and wait for it to
    /// reach the cache. The store spills over the rest of this block and the occupieds of the next,
    /// both still 0.
    #[inline(always)]
    pub(super) fn append_slot(&mut self, index: u64, remainder: u64) {
        let bit = self.bit(index);
        let at = self.base(index / SLOTS) + bit / 8;
        let shared = u64::from(self.buffer.as_slice()[at]);
        self.set_word(at, shared | remainder << (bit % 8));
    }

    /// Adds a slot for `remainder` at `position` in the run of `quotient`, possibly its end, or,
    /// for a quotient without a run, at [`Table::start`]. Returns the slots that moved up by one.
    /// Fails, and changes nothing, if the position is not in the run or memory is missing.
    pub fn insert_slot(
        &mut self,
        quotient: u64,
        position: u64,
        remainder: u64,
    ) -> Result<Range<u64>> {
        on_best!(p => {
            let start = self.start_on(p, quotient.min(self.quotients - 1));
            let run = self.run_on(p, quotient).unwrap_or(start..start);
            if quotient >= self.quotients || position < run.start || position > run.end {
                return Err(Error::Parameter(format!(
                    "slot {position} is not in the run of quotient {quotient}"
                )));
            }
            self.insert_on(p, quotient, run, position, remainder)
        })
    }

    /// Removes the slot at `position` from the run of `quotient`. Returns the slots that moved down
    /// by one. Fails, and changes nothing, if the position is not in the run.
    pub fn remove_slot(&mut self, quotient: u64, position: u64) -> Result<Range<u64>> {
        on_best!(p => {
            let run = self.run_on(p, quotient).filter(|run| run.contains(&position));
            let run = run.ok_or_else(|| {
                Error::Parameter(format!("slot {position} is not in the run of quotient {quotient}"))
            })?;
            Ok(self.remove_on(p, quotient, run, position))
        })
    }

    /// The start of the run of a quotient below `Q`, or where it would start.
    pub fn start(&self, quotient: u64) -> u64 {
        on_best!(p => self.start_on(p, quotient))
    }

    /// The end of the used slots, or the start of the last quotient's block if that is later.
    pub(crate) fn end(&self) -> u64 {
        let last = (self.quotients - 1) / SLOTS;
        self.end_in(Plain, last, self.occupieds(last))
    }

    /// The runs of a range of quotients, in order: one pass over their blocks.
    pub fn runs(&self, quotients: Range<u64>) -> Runs<'_> {
        let stop = quotients.end.min(self.quotients);
        let first = quotients.start.min(stop);
        let mut runs = Runs { table: self, stop, block: first / SLOTS, occupieds: 0, at: 0 };
        if first < stop {
            runs.occupieds = self.occupieds(runs.block) & (u64::MAX << (first % SLOTS));
            runs.at = self.start(first);
        }
        runs
    }

    /// Ensures that slots up to `end` exist.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, end: u64) -> Result<()> {
        if end <= self.slots() { Ok(()) } else { self.append_blocks(end.div_ceil(SLOTS)) }
    }

    /// Extends the table to at least this many blocks. The tail doubles, so it is copied a
    /// logarithmic number of times.
    #[cold]
    fn append_blocks(&mut self, needed: u64) -> Result<()> {
        let present = self.blocks as u64;
        let tail = present - home_blocks(self.quotients);
        let blocks = needed.max(present + tail);
        self.buffer = self.buffer.extended(byte_len(blocks, self.remainder_bits)?)?;
        self.blocks = blocks as usize;
        Ok(())
    }
}

/// See [`Table::runs`].
pub struct Runs<'a> {
    table: &'a Table,
    /// The end of the quotients.
    stop: u64,
    block: u64,
    /// The occupied quotients of the block that are still to come.
    occupieds: u64,
    /// The end of the last run, or a position before it.
    at: u64,
}

impl Iterator for Runs<'_> {
    type Item = (u64, Range<u64>);

    #[inline]
    fn next(&mut self) -> Option<(u64, Range<u64>)> {
        while self.occupieds == 0 {
            if (self.block + 1) * SLOTS >= self.stop {
                return None;
            }
            self.block += 1;
            self.occupieds = self.table.occupieds(self.block);
        }
        let quotient = self.block * SLOTS + u64::from(self.occupieds.trailing_zeros());
        if quotient >= self.stop {
            return None;
        }
        self.occupieds &= self.occupieds - 1;
        let start = self.at.max(quotient);
        self.at = self.table.runend_from(start) + 1;
        Some((quotient, start..self.at))
    }
}

/// Bytes of a table of this many blocks.
fn byte_len(blocks: u64, remainder_bits: u32) -> Result<usize> {
    usize::try_from(blocks)
        .ok()
        .and_then(|blocks| blocks.checked_mul(stride(remainder_bits))?.checked_add(PADDING))
        .filter(|len| *len <= isize::MAX as usize)
        .ok_or_else(|| {
            Error::Memory(format!(
                "cannot allocate {blocks} blocks of {SLOTS} slots for the filter"
            ))
        })
}

/// Words and bytes.
impl Table {
    /// The first byte of a block.
    #[inline(always)]
    pub(super) fn base(&self, block: u64) -> usize {
        block as usize * self.stride
    }

    /// The first bit of a slot, from the first byte of its block.
    #[inline(always)]
    pub(super) fn bit(&self, slot: u64) -> usize {
        REMAINDERS * 8 + (slot % SLOTS) as usize * self.remainder_bits as usize
    }

    #[inline(always)]
    pub(super) fn occupieds(&self, block: u64) -> u64 {
        self.word(self.base(block))
    }

    #[inline(always)]
    pub(super) fn runends(&self, block: u64) -> u64 {
        self.word(self.base(block) + RUNENDS)
    }

    #[inline(always)]
    pub(crate) fn stored_offset(&self, block: u64) -> u8 {
        self.buffer.as_slice()[self.base(block) + OFFSET]
    }

    #[inline(always)]
    pub(super) fn set_occupieds(&mut self, block: u64, occupieds: u64) {
        self.set_word(self.base(block), occupieds);
    }

    #[inline(always)]
    pub(super) fn set_runends(&mut self, block: u64, runends: u64) {
        self.set_word(self.base(block) + RUNENDS, runends);
    }

    #[inline(always)]
    pub(super) fn set_offset(&mut self, block: u64, offset: u8) {
        let at = self.base(block) + OFFSET;
        self.buffer.as_mut_slice()[at] = offset;
    }

    #[inline(always)]
    pub(super) fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.buffer.as_slice()[at..at + 8]);
        u64::from_le_bytes(word)
    }

    #[inline(always)]
    pub(super) fn set_word(&mut self, at: usize, word: u64) {
        self.buffer.as_mut_slice()[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
}
