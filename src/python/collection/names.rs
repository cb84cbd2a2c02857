//! Tables of names: open addressing by a hash of 32 bits, in memory or in a file.

use crate::error::Result;
use crate::memory;
use xxhash_rust::xxh3::xxh3_64;

/// A slot: the hash of a name, and 1 more than its number; 0 if it is free.
pub type Slot = [u32; 2];

pub fn hash_name(name: &str) -> u32 {
    xxh3_64(name.as_bytes()) as u32
}

/// A table in memory, without the names: the caller compares names whose hashes are equal.
#[derive(Default)]
pub struct NameTable {
    slots: Vec<Slot>,
    len: usize,
}

/// The slots for this many names, at most two thirds of them used.
fn slots_for(names: usize) -> usize {
    if names == 0 { 0 } else { (names + names / 2 + 1).next_power_of_two() }
}

impl NameTable {
    /// A table with capacity for this many names.
    pub fn with_capacity(names: usize) -> Result<NameTable> {
        Ok(NameTable { slots: memory::filled(slots_for(names), [0; 2])?, len: 0 })
    }

    /// Adds a name. Of equal names, the one that was added first is found.
    pub fn insert(&mut self, hash: u32, number: u32) -> Result<()> {
        if slots_for(self.len + 1) > self.slots.len() {
            *self = self.renumbered_in(slots_for(self.len + 1), Some)?;
        }
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        while self.slots[slot][1] != 0 {
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = [hash, number + 1];
        self.len += 1;
        Ok(())
    }

    /// The first name with this hash that `is` accepts, in the order in which they were added.
    pub fn find(&self, hash: u32, is: impl FnMut(u32) -> Result<bool>) -> Result<Option<u32>> {
        let slot = |slot: u64| Ok(self.slots[slot as usize]);
        NameTable::probe(self.slots.len() as u64, hash, slot, is)
    }

    /// The same in any table with this many slots, a power of two.
    pub fn probe(
        slots: u64,
        hash: u32,
        mut slot: impl FnMut(u64) -> Result<Slot>,
        mut is: impl FnMut(u32) -> Result<bool>,
    ) -> Result<Option<u32>> {
        for step in 0..slots {
            let [own, number] = slot((u64::from(hash) + step) & (slots - 1))?;
            if number == 0 {
                break;
            }
            if own == hash && is(number - 1)? {
                return Ok(Some(number - 1));
            }
        }
        Ok(None)
    }

    /// The same names with other numbers; names without a new number are left out.
    pub fn renumbered(&self, number: impl Fn(u32) -> Option<u32>) -> Result<NameTable> {
        let left = self.slots.iter().filter(|[_, n]| *n > 0 && number(n - 1).is_some()).count();
        self.renumbered_in(slots_for(left), number)
    }

    fn renumbered_in(
        &self,
        slots: usize,
        number: impl Fn(u32) -> Option<u32>,
    ) -> Result<NameTable> {
        let mut names = memory::collected(self.slots.iter().copied().filter(|slot| slot[1] > 0))?;
        names.sort_unstable_by_key(|slot| slot[1]); // the first of equal names stays the first
        let mut table = NameTable { slots: memory::filled(slots, [0; 2])?, len: 0 };
        for [hash, old] in names {
            if let Some(number) = number(old - 1) {
                table.insert(hash, number)?;
            }
        }
        Ok(table)
    }

    /// A copy.
    pub fn copied(&self) -> Result<NameTable> {
        Ok(NameTable { slots: memory::copied(&self.slots)?, len: self.len })
    }

    /// The slots as bytes, for a file.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        memory::collected(self.slots.iter().flatten().flat_map(|half| half.to_le_bytes()))
    }

    /// Number of slots.
    pub fn slots(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Memory.
    pub fn size_in_bytes(&self) -> usize {
        size_of_val(&self.slots[..])
    }
}
