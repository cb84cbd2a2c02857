//! Operations that need the stored hashes of a run: moving a slot, removing one of several that
//! fit, and resetting the selectors of a block.

use super::matching::{MAX_RUN, Matching};
use super::{Step, Stream, Telescoping};
use crate::error::{Error, Result};
use crate::hash::Hash128;
use crate::memory::{self, TryGrow};
use crate::quotient::SLOTS;
use std::ops::Range;

impl Telescoping {
    /// The range of first words of the hashes of a range of quotients. The ends may also be first
    /// words of hashes with the quotients just outside.
    pub fn words(&self, quotients: Range<u64>) -> (u64, u64) {
        let q = u128::from(self.table.quotients());
        let below = |quotient: u64| (u128::from(quotient) << 64) / q;
        let last = (below(quotients.end)).min(u128::from(u64::MAX));
        (below(quotients.start) as u64, last as u64)
    }

    /// Whether the run of a quotient is too long to be adapted; see [`MAX_RUN`].
    pub fn too_long(&self, quotient: u64) -> bool {
        self.table.run(quotient).is_some_and(|run| run.end - run.start > MAX_RUN)
    }

    /// The quotients that may have slots in a block.
    pub fn quotients_of(&self, block: u64) -> Range<u64> {
        let end = ((block + 1) * SLOTS).min(self.table.quotients());
        let mut first = block.min((end - 1) / SLOTS);
        while first > 0 && self.table.stored_offset(first) > 0 {
            first -= 1;
        }
        let reaching = self.table.runs(first * SLOTS..end).find(|(_, run)| run.end > block * SLOTS);
        reaching.map_or(end - 1, |(quotient, _)| quotient)..end
    }

    /// Moves every slot that an absent key fits and whose owner is known to a selector that
    /// separates the two; `stored` are the hashes of the key's quotient. Returns whether any slot
    /// moved.
    pub fn adapt(&mut self, absent: Hash128, stored: &[Hash128]) -> Step<bool> {
        let (quotient, stream) = Stream::new(&self.table, absent);
        let before = self.share_before(quotient);
        let moved = self.move_slots(absent, quotient, stream, stored);
        self.share_after(quotient, before);
        moved
    }

    fn move_slots(
        &mut self,
        absent: Hash128,
        quotient: u64,
        stream: Stream,
        stored: &[Hash128],
    ) -> Step<bool> {
        let (mode, bits) = (self.store.mode(), self.table.remainder_bits());
        let run = self.table.run(quotient).unwrap_or(0..0);
        if stored.contains(&absent)
            || !self.contents(run.clone()).any(|s| stream.fits(mode, bits, s))
        {
            return Ok(false);
        }
        let streams = self.streams(stored)?;
        let slots: Vec<(u64, u64)> = memory::collected(self.contents(run.clone()))?;
        let Some(matching) = self.owners(&streams, &slots)? else { return Ok(false) };
        let mut moved = false;
        for (index, owner) in matching.owners.iter().enumerate() {
            let Some(owner) = owner.filter(|_| stream.fits(mode, bits, slots[index])) else {
                continue;
            };
            let owner = streams[owner];
            if let Some(selector) = owner.apart(stream, mode, bits, slots[index].1) {
                let slot = run.start + index as u64;
                self.rewrite(slot, owner.remainder(mode, bits, selector), selector)?;
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Removes a slot of a removed key that no stored hash of its quotient needs. If a stored hash
    /// has no slot yet, it is being inserted and owners are uncertain: then the slot stays as a
    /// ghost. Even if all slots that fit have equal content, none of them may be the key's own,
    /// since a concurrent removal may have taken it.
    pub fn remove_known(&mut self, hash: Hash128, stored: &[Hash128]) -> Step<()> {
        let (quotient, stream) = Stream::new(&self.table, hash);
        let (mode, bits) = (self.store.mode(), self.table.remainder_bits());
        let run = self.table.run(quotient).unwrap_or(0..0);
        let slots: Vec<(u64, u64)> = memory::collected(self.contents(run.clone()))?;
        if !slots.iter().any(|slot| stream.fits(mode, bits, *slot)) {
            return Err(Error::Absent("the key is not in the filter".into()).into());
        }
        let mut streams = self.streams(stored)?;
        let Some(mut matching) = self.owners(&streams, &slots)? else { return Ok(()) };
        streams.try_push(stream)?;
        let fits = |hash: usize, slot: usize| streams[hash].fits(mode, bits, slots[slot]);
        if !matching.place(stored.len(), &fits) {
            return Err(
                Error::Absent("all slots that match the key belong to stored keys".into()).into()
            );
        }
        match matching.owners.iter().position(|owner| *owner == Some(stored.len())) {
            Some(index) => self.remove_at(quotient, run.start + index as u64),
            None => Ok(()),
        }
    }

    /// Resets the selectors of a block to 0 where the owners are known; `stored` are the hashes of
    /// [`Telescoping::quotients_of`] the block. Returns how many were reset.
    pub fn forget(&mut self, block: u64, stored: &[Hash128]) -> Step<u64> {
        let (mode, bits) = (self.store.mode(), self.table.remainder_bits());
        let mut selectors = self.store.selectors(block);
        let mut fresh = Vec::new();
        for (quotient, run) in self.table.runs(self.quotients_of(block)) {
            let own = stored.iter().copied();
            let own = memory::collected(own.filter(|hash| self.table.split(*hash).0 == quotient))?;
            let streams = self.streams(&own)?;
            let slots: Vec<(u64, u64)> = memory::collected(self.contents(run.clone()))?;
            let Some(matching) = self.owners(&streams, &slots)? else { continue };
            for (slot, (content, owner)) in run.zip(slots.iter().zip(&matching.owners)) {
                let Some(owner) = owner.filter(|_| slot / SLOTS == block && content.1 != 0) else {
                    continue;
                };
                selectors[(slot % SLOTS) as usize] = 0;
                fresh.try_push((slot, streams[owner].remainder(mode, bits, 0)))?;
            }
        }
        let code = self.coded(block, &selectors)?;
        self.shares.forget();
        for (slot, remainder) in &fresh {
            self.table.set_slot(*slot, *remainder);
        }
        self.write(vec![code]);
        self.forgotten += fresh.len() as u64;
        Ok(fresh.len() as u64)
    }

    pub(super) fn streams(&self, hashes: &[Hash128]) -> Result<Vec<Stream>> {
        memory::collected(hashes.iter().map(|hash| Stream::new(&self.table, *hash).1))
    }

    /// A slot for each hash, or `None` if they cannot all have one or the search takes too long.
    fn owners(&self, streams: &[Stream], slots: &[(u64, u64)]) -> Result<Option<Matching>> {
        let (mode, bits) = (self.store.mode(), self.table.remainder_bits());
        let fits = |hash: usize, slot: usize| streams[hash].fits(mode, bits, slots[slot]);
        let mut matching = Matching::new(slots.len())?;
        Ok((0..streams.len()).all(|hash| matching.place(hash, &fits)).then_some(matching))
    }

    fn rewrite(&mut self, slot: u64, remainder: u64, selector: u64) -> Step<()> {
        let block = slot / SLOTS;
        let mut selectors = self.store.selectors(block);
        selectors[(slot % SLOTS) as usize] = selector;
        let code = self.coded(block, &selectors)?;
        self.write(vec![code]);
        self.table.set_slot(slot, remainder);
        self.max_steps = self.max_steps.max(self.steps(selector));
        Ok(())
    }
}

/// The hashes with one quotient, out of the hashes of a range of words.
pub(super) fn of_quotient(
    filter: &Telescoping,
    quotient: u64,
    hashes: &[Hash128],
) -> Result<Vec<Hash128>> {
    let own = hashes.iter().copied().filter(|hash| filter.table.split(*hash).0 == quotient);
    let mut own = memory::collected(own)?;
    own.sort_unstable();
    Ok(own)
}
