//! Insertion by random walks, removal, and moving elements away from a key.

use super::Motion;
use super::table::Table;
use crate::bits::reduce;
use crate::error::{Error, Result};
use crate::hash::{GOLDEN, Hash128, mix13};
use crate::memory::TryGrow;

/// Evictions before an insertion fails. At a load of 0.95 an insertion takes about ten, and the
/// tail decays geometrically.
const MAX_KICKS: usize = 2000;

/// Slots with their content and owner before a change.
pub(super) type Undo = Vec<(u64, u64, Hash128)>;

impl Table {
    /// Writes a slot and its owner, and records the previous content.
    fn write(&mut self, slot: u64, held: u64, owner: Hash128, undo: &mut Undo) -> Result<()> {
        undo.try_push((slot, self.slot(slot), self.owners[slot as usize]))?;
        self.set_slot(slot, held);
        self.owners[slot as usize] = owner;
        Ok(())
    }

    pub(super) fn undo(&mut self, undo: &mut Undo) {
        for (slot, held, owner) in undo.drain(..).rev() {
            self.set_slot(slot, held);
            self.owners[slot as usize] = owner;
        }
    }

    fn turn(&mut self, choices: u64) -> u64 {
        self.random = self.random.wrapping_add(GOLDEN);
        reduce(mix13(self.random), choices)
    }

    /// Finds a slot for a hash by a random walk (Fotakis et al. 2003) that does not start in slot
    /// `but`. If there is none, `undo` restores the table.
    fn place(&mut self, mut hash: Hash128, mut but: Option<u64>, undo: &mut Undo) -> Result<bool> {
        let (ways, size) = self.motion.bins();
        for _ in 0..MAX_KICKS {
            let free =
                self.places(hash).find(|(.., slot)| self.slot(*slot) == 0 && Some(*slot) != but);
            if let Some((j, place, slot)) = free {
                self.write(slot, self.held(hash, j, place, 0), hash, undo)?;
                return Ok(true);
            }
            let choice = self.turn(ways * size);
            let (j, place) = (choice / size, choice % size);
            let slot = self.bin(hash, j) + place;
            if Some(slot) == but {
                continue;
            }
            let evicted = self.owners[slot as usize];
            self.write(slot, self.held(hash, j, place, 0), hash, undo)?;
            (hash, but) = (evicted, Some(slot));
        }
        Ok(false)
    }

    /// Inserts all hashes or none.
    pub fn insert(&mut self, hashes: &[Hash128]) -> Result<()> {
        let (mut undo, before) = (Undo::new(), (self.count, self.random));
        let inserted = match self.can_hold(hashes.len()) {
            true => self.insert_recorded(hashes, &mut undo),
            false => Ok(false),
        };
        if let Ok(true) = inserted {
            return Ok(());
        }
        self.undo(&mut undo);
        (self.count, self.random) = before;
        inserted?;
        Err(self.full(hashes.len()))
    }

    /// Whether there are slots for this many more keys.
    pub fn can_hold(&self, more: usize) -> bool {
        self.count.saturating_add(more as u64) <= self.owners.len() as u64
    }

    /// Inserts hashes, and records the changes for undo; returns whether all fit.
    pub(super) fn insert_recorded(&mut self, hashes: &[Hash128], undo: &mut Undo) -> Result<bool> {
        self.count += hashes.len() as u64;
        for hash in hashes {
            if !self.place(*hash, None, undo)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub fn full(&self, more: usize) -> Error {
        Error::Capacity(format!(
            "{more} more keys do not fit: {} of {} slots are in use; build a filter with more capacity",
            self.count,
            self.owners.len()
        ))
    }

    fn owned(&self, hash: Hash128) -> Option<u64> {
        let owns = |slot: u64| self.owners[slot as usize] == hash && self.slot(slot) != 0;
        self.places(hash).map(|(.., slot)| slot).find(|slot| owns(*slot))
    }

    pub fn remove(&mut self, hash: Hash128) -> Result<()> {
        let Some(slot) = self.owned(hash) else {
            return Err(Error::Absent("the key is not in the filter".into()));
        };
        self.set_slot(slot, 0);
        self.owners[slot as usize] = Hash128::default();
        self.count -= 1;
        Ok(())
    }

    /// Moves the elements that an absent key matches; returns whether any moved.
    pub fn adapt(&mut self, hash: Hash128) -> bool {
        if self.owned(hash).is_some() {
            return false;
        }
        let fitting: Vec<(u64, u64, u64)> = self
            .places(hash)
            .filter(|(j, place, slot)| self.fits(hash, *j, *place, self.slot(*slot)))
            .collect();
        let mut moved = false;
        for (j, place, slot) in fitting {
            if self.fits(hash, j, place, self.slot(slot)) {
                moved |= self.move_away(hash, slot);
            }
        }
        moved
    }

    /// Moves one element away from an absent key, according to the kind.
    fn move_away(&mut self, absent: Hash128, slot: u64) -> bool {
        let owner = self.owners[slot as usize];
        match self.motion {
            Motion::Cyclic(bits) => {
                let last = self.selector(self.slot(slot));
                let functions = (1..1 << bits).map(|step| (last + step) & ((1 << bits) - 1));
                let differs = |i: &u64| self.fingerprint(owner, *i) != self.fingerprint(absent, *i);
                let Some(next) = functions.clone().find(differs) else { return false };
                self.set_slot(slot, self.held(owner, 0, 0, next));
                true
            }
            Motion::Swapping => {
                let size = self.motion.bins().1;
                let (first, place) = (slot / size * size, slot % size);
                let to = (place + 1 + self.turn(size - 1)) % size;
                let other = self.owners[(first + to) as usize];
                let vacant = self.slot(first + to) == 0;
                let held = if vacant { 0 } else { self.held(other, 0, place, 0) };
                self.set_slot(slot, held);
                self.set_slot(first + to, self.held(owner, 0, to, 0));
                self.owners.swap(slot as usize, (first + to) as usize);
                true
            }
            Motion::Cuckooing => {
                let (mut undo, random) = (Undo::new(), self.random);
                // Without memory to undo it, the element stays.
                let placed = self
                    .write(slot, 0, Hash128::default(), &mut undo)
                    .and_then(|()| self.place(owner, Some(slot), &mut undo))
                    .unwrap_or(false);
                if !placed {
                    self.undo(&mut undo);
                    self.random = random;
                }
                placed
            }
        }
    }
}
