//! Adding and removing slots, and moving the selectors along.

use super::code::{Code, Selectors};
use super::{AHEAD, Step, Stop, Stream, Telescoping};
use crate::error::Error;
use crate::hash::Hash128;
use crate::memory;
use crate::processor::{Processor, on_best};
use crate::quotient::SLOTS;
use std::ops::Range;

impl Telescoping {
    /// Adds a slot for a key.
    pub fn insert(&mut self, hash: Hash128) -> Step<()> {
        let (quotient, stream) = Stream::new(&self.table, hash);
        let remainder = stream.window(0, self.table.remainder_bits());
        let before = self.share_before(quotient);
        on_best!(p => self.insert_on(p, quotient, remainder))?;
        self.share_after(quotient, before);
        Ok(())
    }

    /// Inserts hashes in order until one fails; returns how many were inserted.
    pub fn insert_batch(&mut self, hashes: &[Hash128]) -> (usize, Step<()>) {
        on_best!(p => self.insert_batch_on(p, hashes))
    }

    #[inline(always)]
    fn insert_batch_on<P: Processor>(&mut self, p: P, hashes: &[Hash128]) -> (usize, Step<()>) {
        if hashes.len() as u64 > self.table.used_slots() / 8 {
            self.shares.forget(); // one pass over all runs is faster than following each change
        }
        let (mut addresses, mut done) = ([(0, 0); AHEAD], 0);
        for hashes in hashes.chunks(AHEAD) {
            for (address, hash) in addresses.iter_mut().zip(hashes) {
                *address = self.table.address(*hash);
                self.table.prefetch(address.0);
            }
            for (quotient, remainder) in &addresses[..hashes.len()] {
                let before = self.share_before(*quotient);
                if let Err(stop) = self.insert_on(p, *quotient, *remainder) {
                    return (done, Err(stop));
                }
                self.share_after(*quotient, before);
                done += 1;
            }
        }
        (done, Ok(()))
    }

    #[inline(always)]
    fn insert_on<P: Processor>(&mut self, p: P, quotient: u64, remainder: u64) -> Step<()> {
        let start = self.table.start_on(p, quotient);
        let mut run = start..start;
        let mut position = start;
        if self.table.is_occupied(quotient) {
            run.end = self.table.runend_from(start) + 1;
            while position < run.end && self.table.slot(position) < remainder {
                position += 1;
            }
        }
        let slots = self.table.slots();
        let moved = self.table.insert_on(p, quotient, run, position, remainder)?;
        if self.table.slots() > slots
            && let Err(error) = self.store.reserve((self.table.slots() / SLOTS) as usize)
        {
            self.table.remove_slot(quotient, position)?;
            return Err(error.into());
        }
        if self.max_steps > 0 {
            match self.raised(moved) {
                Ok(codes) => self.write(codes),
                Err(stop) => {
                    self.table.remove_slot(quotient, position)?;
                    return Err(stop);
                }
            }
        }
        self.version += 1;
        Ok(())
    }

    /// Undoes an insertion that nothing has touched since.
    pub(super) fn undo_insert(&mut self, hash: Hash128) -> Step<()> {
        let (quotient, stream) = Stream::new(&self.table, hash);
        let fresh = (stream.window(0, self.table.remainder_bits()), 0);
        let run = self.table.run(quotient).unwrap_or(0..0);
        let index = self.contents(run.clone()).position(|slot| slot == fresh);
        match index {
            Some(index) => self.remove_at(quotient, run.start + index as u64),
            None => Ok(()),
        }
    }

    /// Removes a slot of a key: any that fits, if all that fit have equal content.
    pub fn remove(&mut self, hash: Hash128) -> Step<()> {
        let (quotient, stream) = Stream::new(&self.table, hash);
        let run = self.table.run(quotient).unwrap_or(0..0);
        let (mode, bits) = (self.store.mode(), self.table.remainder_bits());
        let slots: Vec<(u64, u64)> = memory::collected(self.contents(run.clone()))?;
        let mut fitting =
            slots.iter().enumerate().filter(|(_, slot)| stream.fits(mode, bits, **slot));
        let Some((index, content)) = fitting.next() else {
            return Err(Error::Absent("the key is not in the filter".into()).into());
        };
        if fitting.any(|(_, other)| other != content) {
            return Err(Error::Parameter(
                "the key fits slots that were adapted differently, and finding its own needs the \
                 stored hashes: pass remote="
                    .into(),
            )
            .into());
        }
        self.remove_at(quotient, run.start + index as u64)
    }

    pub(super) fn remove_at(&mut self, quotient: u64, position: u64) -> Step<()> {
        let before = self.share_before(quotient);
        let remainder = self.table.slot(position);
        let moved = self.table.remove_slot(quotient, position)?;
        if self.max_steps > 0 {
            match self.lowered(moved) {
                Ok(codes) => self.write(codes),
                Err(stop) => {
                    self.table.insert_slot(quotient, position, remainder)?;
                    return Err(stop);
                }
            }
        }
        self.share_after(quotient, before);
        self.version += 1;
        Ok(())
    }

    pub(super) fn coded(&self, block: u64, selectors: &Selectors) -> Step<(u64, Code)> {
        Ok((block, self.store.coded(selectors).ok_or(Stop::Full(block))?))
    }

    pub(super) fn write(&mut self, codes: Vec<(u64, Code)>) {
        for (block, code) in codes {
            self.store.set(block, &code);
        }
    }

    /// The codes of the blocks whose selectors change when slots `moved` move up by one, with
    /// selector 0 in the first.
    fn raised(&self, moved: Range<u64>) -> Step<Vec<(u64, Code)>> {
        let (low, high) = (moved.start / SLOTS, moved.end / SLOTS);
        let (mut codes, mut carried) = (Vec::new(), 0);
        for block in low..=high {
            if carried == 0 && self.store.is_clear(block) {
                continue;
            }
            let mut selectors = self.store.selectors(block);
            let first = if block == low { (moved.start % SLOTS) as usize } else { 0 };
            let last = (if block == high { moved.end % SLOTS } else { SLOTS - 1 }) as usize;
            let out = selectors[last];
            selectors.copy_within(first..last, first + 1);
            selectors[first] = carried;
            carried = out;
            codes.push(self.coded(block, &selectors)?);
        }
        Ok(codes)
    }

    /// The codes of the blocks whose selectors change when slots `moved` move down by one.
    fn lowered(&self, moved: Range<u64>) -> Step<Vec<(u64, Code)>> {
        let (gone, stop) = (moved.start - 1, moved.end);
        let (low, high) = (gone / SLOTS, (stop - 1) / SLOTS);
        let mut codes = Vec::new();
        for block in low..=high {
            let carried = if block == high { 0 } else { self.store.selector((block + 1) * SLOTS) };
            if carried == 0 && self.store.is_clear(block) {
                continue;
            }
            let mut selectors = self.store.selectors(block);
            let first = if block == low { (gone % SLOTS) as usize } else { 0 };
            let last = (if block == high { (stop - 1) % SLOTS } else { SLOTS - 1 }) as usize;
            selectors.copy_within(first + 1..last + 1, first);
            selectors[last] = carried;
            codes.push(self.coded(block, &selectors)?);
        }
        Ok(codes)
    }
}
