//! Adaptive cuckoo filters: cyclic and swapping (Mitzenmacher, Pontarelli and Reviriego 2018) and
//! cuckooing (Kopelowitz, McCauley and Porat 2021).
//!
//! A slot holds `f` bits: the fingerprint of a key under one of several functions, or 0. A key has
//! `d` bins to be in, each of `b` slots, and under function `i` the fingerprint
//!
//! ```text
//! φᵢ(x) = 1 + ⌊hᵢ(x)·(2^f − 1)⌋
//! ```
//!
//! | kind      | d | b | the function of a slot                     | on a false positive the element   |
//! |-----------|---|---|--------------------------------------------|-----------------------------------|
//! | cyclic    | 4 | 1 | `s` bits next to the fingerprint           | takes its next function           |
//! | swapping  | 2 | 4 | the slot's place in its bin                | changes places within its bin     |
//! | cuckooing | 4 | 1 | which of the key's bins it is in           | goes to another of its bins       |
//!
//! An element has only a few states, so none of these is adaptive in the sense of Theorem 1 of
//! [`telescoping`](crate::telescoping): an adversary who finds keys that collide in every state
//! always gets a false positive (Kopelowitz et al. 2021).
//!
//! Rewriting a slot needs the hash of its owner, and no range of hashes contains it: the bins of a
//! key are unrelated. So a table of hashes, one per slot, accompanies the slots: 128 bits per slot
//! that are not part of the filter's size. It is read only when the filter changes. The invariant:
//! a slot and its hash are both 0, or the slot is the fingerprint of its hash at that place.
//!
//! In reading order: `table.rs` (slots, query), `change.rs` (insert, remove, adapt), this file (threads,
//! the frame).

mod change;
mod table;

use crate::bits::Buffer;
use crate::distinct::Distinct;
use crate::error::{Error, Result};
use crate::format::{Head, SECTION_BITS, SECTION_HASHES, Section, Source, Stored};
use crate::hash::Hash128;
use crate::interrupt;
use crate::kernel::{Content, Kernel, Kind, PIECE};
use crate::lock::{ReadGuard, RwLock, WriteGuard};
use crate::memory;
use change::Undo;
use std::sync::Arc;
use table::{PADDING, Table, byte_len};

/// Adaptive cuckoo filters.
pub static KIND: Kind = Kind {
    inserts: true,
    deletes: true,
    bounded: true,
    adapts: true,
    ..Kind::new(10, "adaptive_cuckoo", |head, sections, _| {
        Ok(Arc::new(AdaptiveCuckoo::from_frame(head, sections)?))
    })
};

/// The longest fingerprint: with 3 selector bits and 7 bits before it, a slot still fits one word.
pub const MAX_BITS: u32 = 32;
/// How an element moves away from a key that it was mistaken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Motion {
    /// To its next function; there are 2^s, with s from 1 to 3.
    Cyclic(u32),
    /// To another place in its bin.
    Swapping,
    /// To another bin.
    Cuckooing,
}

impl Motion {
    /// The number in a frame.
    pub fn number(self) -> u64 {
        match self {
            Motion::Swapping => 0,
            Motion::Cyclic(selector_bits) => u64::from(selector_bits),
            Motion::Cuckooing => 4,
        }
    }

    /// The motion with this number in a frame, if any.
    pub fn from_number(number: u64) -> Option<Motion> {
        match number {
            0 => Some(Motion::Swapping),
            1..=3 => Some(Motion::Cyclic(number as u32)),
            4 => Some(Motion::Cuckooing),
            _ => None,
        }
    }

    /// Bins of a key, and slots of a bin.
    fn bins(self) -> (u64, u64) {
        if self == Motion::Swapping { (2, 4) } else { (4, 1) }
    }

    /// Selector bits in a slot, above the fingerprint.
    fn selector_bits(self) -> u32 {
        if let Motion::Cyclic(bits) = self { bits } else { 0 }
    }
}

/// An adaptive cuckoo filter shared by threads.
pub struct AdaptiveCuckoo {
    table: RwLock<Table>,
}

impl AdaptiveCuckoo {
    /// An empty filter.
    pub fn new(motion: Motion, fingerprint_bits: u32, bins: u64) -> Result<AdaptiveCuckoo> {
        Ok(AdaptiveCuckoo { table: RwLock::new(Table::new(motion, fingerprint_bits, bins)?) })
    }

    /// Builds a filter of distinct hashes, or fails with [`Error::Capacity`].
    pub fn build(
        motion: Motion,
        fingerprint_bits: u32,
        bins: u64,
        hashes: &Distinct,
    ) -> Result<AdaptiveCuckoo> {
        let mut table = Table::new(motion, fingerprint_bits, bins)?;
        for partition in hashes.partitions() {
            let mut sorted = memory::copied(partition)?;
            sorted.sort_unstable();
            table.insert(&sorted)?;
        }
        table.random = 0;
        Ok(AdaptiveCuckoo { table: RwLock::new(table) })
    }

    /// Moves elements away from absent keys; returns for each key whether any element moved.
    pub fn adapt(&self, hashes: &[Hash128], moved: &mut [bool]) {
        for (hash, moved) in hashes.iter().zip(moved) {
            interrupt::check();
            *moved = self.contains_one(*hash) && self.write().adapt(*hash);
        }
    }

    /// Motion, fingerprint bits, bins, slots.
    pub fn shape(&self) -> (Motion, u32, u64, u64) {
        let table = self.read();
        (table.motion, table.fingerprint_bits, table.bins, table.owners.len() as u64)
    }

    fn read(&self) -> ReadGuard<'_, Table> {
        self.table.read()
    }

    fn write(&self) -> WriteGuard<'_, Table> {
        self.table.write()
    }

    /// Opens the filter of a frame.
    pub fn from_frame(head: &Head, sections: &[Section<'_>]) -> Result<AdaptiveCuckoo> {
        let damaged =
            |what: &str| Error::Format(format!("the adaptive cuckoo filter is damaged: {what}"));
        let (&[motion, bits, bins], [slots, hashes]) = (&head.parameters[..], sections) else {
            return Err(damaged("it does not have three parameters and two sections"));
        };
        let kinds = [(slots.kind, slots.piece), (hashes.kind, hashes.piece)];
        let motion = Motion::from_number(motion).ok_or_else(|| damaged("its kind is unknown"))?;
        let bits = u32::try_from(bits).ok().filter(|bits| (1..=MAX_BITS).contains(bits));
        let bits = bits.ok_or_else(|| damaged("its fingerprints have an invalid length"))?;
        let count = bins.checked_mul(motion.bins().1).filter(|count| *count > 0);
        let bytes =
            count.and_then(|count| byte_len(count, u64::from(bits + motion.selector_bits())));
        let hash_bytes = count.and_then(|count| count.checked_mul(16));
        if kinds != [(SECTION_BITS, 0), (SECTION_HASHES, 0)]
            || bytes != Some(slots.bytes.len())
            || hash_bytes != Some(hashes.bytes.len() as u64)
        {
            return Err(damaged("its sections do not match its parameters"));
        }
        let mut table = Table::new(motion, bits, bins)?;
        table.slots.as_mut_slice().copy_from_slice(slots.bytes);
        for (owner, row) in table.owners.iter_mut().zip(hashes.bytes.as_chunks::<16>().0) {
            let word = |half: usize| {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&row[8 * half..8 * half + 8]);
                u64::from_le_bytes(bytes)
            };
            *owner = Hash128 { hi: word(0), lo: word(1) };
        }
        if let Some(slot) = table.wrong() {
            return Err(damaged(&format!("slot {slot} does not match its hash")));
        }
        let used = table.owners.len() as u64 * u64::from(table.width());
        let rest = slots.bytes.len() - PADDING;
        let spare = (8 * rest as u64 - used) as u32;
        if slots.bytes[rest..].iter().any(|byte| *byte != 0)
            || spare > 0 && slots.bytes[rest - 1] >> (8 - spare) != 0
        {
            return Err(damaged("bits behind the last slot are not 0"));
        }
        let count = (0..table.owners.len() as u64).filter(|slot| table.slot(*slot) != 0).count();
        table.count = count as u64;
        if table.count != head.count {
            return Err(damaged("its number of keys does not match its slots"));
        }
        Ok(AdaptiveCuckoo { table: RwLock::new(table) })
    }
}

impl Kernel for AdaptiveCuckoo {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn contains(&self, hashes: &[Hash128], out: &mut [bool]) {
        self.read().contains_batch(hashes, out);
    }

    fn contains_one(&self, hash: Hash128) -> bool {
        self.read().contains(hash)
    }

    fn try_contains_one(&self, hash: Hash128) -> Option<bool> {
        Some(self.table.try_read()?.contains(hash))
    }

    fn count(&self) -> u64 {
        self.read().count
    }

    fn busy(&self) -> bool {
        self.table.is_locked()
    }

    fn overfull(&self, _capacity: u64) -> bool {
        false
    }

    fn size_in_bits(&self) -> u64 {
        8 * self.read().slots.len() as u64
    }

    fn rate(&self) -> f64 {
        self.read().rate()
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        let table = self.read();
        let copy = Table {
            slots: Buffer::copied(table.slots.as_slice())?,
            owners: memory::copied(&table.owners)?,
            ..*table
        };
        Ok(Arc::new(AdaptiveCuckoo { table: RwLock::new(copy) }))
    }

    fn content(&self) -> Result<Content<'_>> {
        // SAFETY: the sections are dropped with the lock.
        let (table, lock) = unsafe { self.read().split() };
        let mut hashes = memory::with_capacity(16 * table.owners.len())?;
        for owner in &table.owners {
            hashes.extend_from_slice(&owner.hi.to_le_bytes());
            hashes.extend_from_slice(&owner.lo.to_le_bytes());
        }
        let bits = u64::from(table.fingerprint_bits);
        let sections = vec![
            Section { kind: SECTION_BITS, piece: 0, bytes: table.slots.as_slice() }.stored(),
            Stored { kind: SECTION_HASHES, piece: 0, content: Source::Made(hashes) },
        ];
        let parameters = vec![table.motion.number(), bits, table.bins];
        let (count, lock) = (table.count, Some(lock));
        Ok(Content { parameters, count, capacity: None, sections, lock })
    }

    fn insert(&self, hashes: &[Hash128]) -> Result<()> {
        if hashes.len() <= PIECE {
            return self.write().insert(hashes);
        }
        let pieces = self.table.in_pieces();
        let (mut undo, before) = (Undo::new(), (self.read().count, self.read().random));
        if !self.read().can_hold(hashes.len()) {
            return Err(self.read().full(hashes.len()));
        }
        for piece in hashes.chunks(PIECE) {
            let mut table = pieces.write();
            let inserted = table.insert_recorded(piece, &mut undo);
            if !matches!(inserted, Ok(true)) {
                table.undo(&mut undo);
                (table.count, table.random) = before;
                inserted?;
                return Err(table.full(hashes.len()));
            }
            drop(table);
            interrupt::check();
        }
        Ok(())
    }

    fn inserts_at_once(&self) -> bool {
        true
    }

    fn remove(&self, hash: Hash128) -> Result<()> {
        self.write().remove(hash)
    }
}
