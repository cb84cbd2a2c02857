//! Insertion by random walks, removal, and moving elements away from a key.

use super::Motion;
use super::table::Table;
use crate::bits::reduce;
use crate::error::{Error, Result};
use crate::hash::{GOLDEN, Hash128, mix13};

/// Evictions before an insertion fails. At a load of 0.95 an insertion takes about ten, and the
/// tail decays geometrically.
const MAX_KICKS: usize = 2000;

/// Slots with their content and owner before a change.
type Undo = Vec<(u64, u64, Hash128)>;

impl Table {
    /// Writes a slot and its owner, and records the previous content.
    fn write(&mut self, slot: u64, held: u64, owner: Hash128, undo: &mut Undo) {
        undo.push((slot, self.slot(slot), self.owners[slot as usize]));
        self.set_slot(slot, held);
        self.owners[slot as usize] = owner;
    }

    fn undo(&mut self, undo: &mut Undo) {
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
    fn place(&mut self, mut hash: Hash128, mut but: Option<u64>, undo: &mut Undo) -> bool {
        let (ways, size) = self.motion.bins();
        for _ in 0..MAX_KICKS {
            let free =
                self.places(hash).find(|(.., slot)| self.slot(*slot) == 0 && Some(*slot) != but);
            if let Some((j, place, slot)) = free {
                self.write(slot, self.held(hash, j, place, 0), hash, undo);
                return true;
            }
            let choice = self.turn(ways * size);
            let (j, place) = (choice / size, choice % size);
            let slot = self.bin(hash, j) + place;
            if Some(slot) == but {
                continue;
            }
            let evicted = self.owners[slot as usize];
            self.write(slot, self.held(hash, j, place, 0), hash, undo);
            (hash, but) = (evicted, Some(slot));
        }
        false
    }

    /// Inserts all hashes or none.
    pub fn insert(&mut self, hashes: &[Hash128]) -> Result<()> {
        let (mut undo, random) = (Undo::new(), self.random);
        let fit = self.count.saturating_add(hashes.len() as u64) <= self.owners.len() as u64;
        if fit && hashes.iter().all(|hash| self.place(*hash, None, &mut undo)) {
            self.count += hashes.len() as u64;
            return Ok(());
        }
        self.undo(&mut undo);
        self.random = random;
        Err(Error::Capacity(format!(
            "{} more keys do not fit: {} of {} slots are in use; build a filter with more capacity",
            hashes.len(),
            self.count,
            self.owners.len()
        )))
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
                self.write(slot, 0, Hash128::default(), &mut undo);
                let placed = self.place(owner, Some(slot), &mut undo);
                if !placed {
                    self.undo(&mut undo);
                    self.random = random;
                }
                placed
            }
        }
    }
}
