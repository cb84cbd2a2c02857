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
//! | cyclic    | 4 | 1 | `s` bits beside the fingerprint tell it    | takes its next function           |
//! | swapping  | 2 | 4 | the slot's place in its bin                | changes places within its bin     |
//! | cuckooing | 4 | 1 | which of the key's bins it is in           | goes to another of its bins       |
//!
//! An element has a handful of states, so none of these is adaptive in the sense of Theorem 1 of
//! [`telescoping`](crate::telescoping): an adversary who finds keys that collide in each of them
//! cannot be shaken off (Kopelowitz et al. 2021).
//!
//! What a slot holds cannot be rewritten without the hash of its owner, and no range of hashes has
//! it: the bins of a key are unrelated. So a table of hashes, one per slot, stands beside the
//! slots: 128 bits per slot that are no part of the filter's size. It is only asked where the
//! filter changes. The invariant: a slot is 0 and its hash is 0, or it is what its hash says there.

use crate::bits::{Buffer, prefetch, reduce};
use crate::distinct::Distinct;
use crate::error::{Error, Result};
use crate::format::{Head, SECTION_BITS, SECTION_HASHES, Section};
use crate::hash::{GOLDEN, Hash128, mix13};
use crate::kernel::{Content, Kernel, Kind};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Adaptive cuckoo filters.
pub static KIND: Kind = Kind {
    number: 10,
    name: "adaptive_cuckoo",
    layer: false,
    inserts: true,
    deletes: true,
    bounded: true,
    open: |head, sections, _| Ok(Arc::new(AdaptiveCuckoo::from_frame(head, sections)?)),
};

/// Evictions before an insertion is refused. At a load of 0.95 an insertion takes about ten, and
/// the tail falls off geometrically.
const MOST_KICKS: usize = 2000;
/// The longest fingerprint, so that with 3 selector bits and 7 before it a slot is in one word.
pub const MOST_BITS: u32 = 32;
/// How many keys a batch looks ahead.
const AHEAD: usize = 16;
/// Bytes behind the last slot, so that each is read by one load.
const PADDING: usize = 8;

/// How an element moves away from a key that it was taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Motion {
    /// To its next function, of 2^s for this s from 1 to 3.
    Cyclic(u32),
    /// To another place in its bin.
    Swapping,
    /// To another bin.
    Cuckooing,
}

impl Motion {
    /// As a frame has it.
    pub fn number(self) -> u64 {
        match self {
            Motion::Swapping => 0,
            Motion::Cyclic(selector_bits) => u64::from(selector_bits),
            Motion::Cuckooing => 4,
        }
    }

    /// The motion that a frame has, if it is one.
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

    /// Bits beside a fingerprint.
    fn selector_bits(self) -> u32 {
        if let Motion::Cyclic(bits) = self { bits } else { 0 }
    }
}

/// Slots, and the hashes of who is in them.
struct Inner {
    motion: Motion,
    fingerprint_bits: u32,
    bins: u64,
    slots: Buffer,
    owners: Vec<Hash128>,
    count: u64,
    /// Where random walks turn.
    random: u64,
}

/// What a slot and its owner were before a change.
type Undo = Vec<(u64, u64, Hash128)>;

impl Inner {
    fn new(motion: Motion, fingerprint_bits: u32, bins: u64) -> Result<Inner> {
        if !(1..=MOST_BITS).contains(&fingerprint_bits) || bins == 0 {
            return Err(Error::Parameter(format!(
                "an adaptive cuckoo filter has fingerprints of 1 to {MOST_BITS} bits and at least 1 \
                 bin, not {fingerprint_bits} and {bins}"
            )));
        }
        let slots = bins.checked_mul(motion.bins().1).and_then(|slots| usize::try_from(slots).ok());
        let bits = u64::from(fingerprint_bits + motion.selector_bits());
        let bytes = slots.and_then(|slots| byte_len(slots as u64, bits));
        let (Some(slots), Some(bytes)) = (slots, bytes) else {
            return Err(Error::Memory(format!("cannot allocate {bins} bins for the filter")));
        };
        let buffer = Buffer::zeroed(bytes)?;
        let mut owners = Vec::new();
        owners
            .try_reserve_exact(slots)
            .map_err(|_| Error::Memory(format!("cannot allocate the hashes of {slots} slots")))?;
        owners.resize(slots, Hash128::default());
        Ok(Inner { motion, fingerprint_bits, bins, slots: buffer, owners, count: 0, random: 0 })
    }

    #[inline(always)]
    fn width(&self) -> u32 {
        self.fingerprint_bits + self.motion.selector_bits()
    }

    /// The first slot of bin `j` of a key. Under each `j` the hash is mixed anew.
    #[inline(always)]
    fn bin(&self, hash: Hash128, j: u64) -> u64 {
        let mixed = if j == 0 { hash.hi } else { mix13(hash.hi ^ GOLDEN.wrapping_mul(j)) };
        reduce(mixed, self.bins) * self.motion.bins().1
    }

    /// The fingerprint of a key under function `i`.
    #[inline(always)]
    fn fingerprint(&self, hash: Hash128, i: u64) -> u64 {
        let mixed =
            if i == 0 { hash.lo } else { mix13(hash.lo.wrapping_add(GOLDEN.wrapping_mul(i))) };
        1 + reduce(mixed, (1 << self.fingerprint_bits) - 1)
    }

    #[inline(always)]
    fn slot(&self, index: u64) -> u64 {
        let bit = index as usize * self.width() as usize;
        let mut word = [0; 8];
        word.copy_from_slice(&self.slots.as_slice()[bit / 8..bit / 8 + 8]);
        u64::from_le_bytes(word) >> (bit % 8) & ((1 << self.width()) - 1)
    }

    #[inline(always)]
    fn set_slot(&mut self, index: u64, value: u64) {
        let bit = index as usize * self.width() as usize;
        let mask = ((1u64 << self.width()) - 1) << (bit % 8);
        let place = &mut self.slots.as_mut_slice()[bit / 8..bit / 8 + 8];
        let mut word = [0; 8];
        word.copy_from_slice(place);
        let word = u64::from_le_bytes(word) & !mask | value << (bit % 8);
        place.copy_from_slice(&word.to_le_bytes());
    }

    /// What a slot holds of a key in place `place` of its bin `j`: the selector, 0 at first, above
    /// the fingerprint.
    #[inline(always)]
    fn held(&self, hash: Hash128, j: u64, place: u64, selector: u64) -> u64 {
        let function = match self.motion {
            Motion::Cyclic(_) => selector,
            Motion::Swapping => place,
            Motion::Cuckooing => j,
        };
        selector << self.fingerprint_bits | self.fingerprint(hash, function)
    }

    #[inline(always)]
    fn selector(&self, held: u64) -> u64 {
        held >> self.fingerprint_bits
    }

    /// Whether what a slot holds can be the key's.
    #[inline(always)]
    fn fits(&self, hash: Hash128, j: u64, place: u64, held: u64) -> bool {
        held != 0 && self.held(hash, j, place, self.selector(held)) == held
    }

    /// All slots that a key may be in, as (bin, place, slot).
    fn places(&self, hash: Hash128) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let (ways, size) = self.motion.bins();
        (0..ways).flat_map(move |j| {
            let first = self.bin(hash, j);
            (0..size).map(move |place| (j, place, first + place))
        })
    }

    #[inline(always)]
    fn contains(&self, hash: Hash128) -> bool {
        let (ways, size) = self.motion.bins();
        (0..ways).any(|j| {
            let first = self.bin(hash, j);
            (0..size).any(|place| self.fits(hash, j, place, self.slot(first + place)))
        })
    }

    fn contains_batch(&self, hashes: &[Hash128], out: &mut [bool]) {
        for (hashes, out) in hashes.chunks(AHEAD).zip(out.chunks_mut(AHEAD)) {
            for hash in hashes {
                for j in 0..self.motion.bins().0 {
                    let byte = self.bin(*hash, j) as usize * self.width() as usize / 8;
                    prefetch(self.slots.as_slice().as_ptr().wrapping_add(byte));
                }
            }
            for (hash, out) in hashes.iter().zip(out) {
                *out = self.contains(*hash);
            }
        }
    }

    /// Writes a slot and its owner, and notes what was there.
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

    /// Finds a place for a hash by a random walk (Fotakis et al. 2003), not in slot `but` at first.
    /// Where there is none, `undo` leads back.
    fn place(&mut self, mut hash: Hash128, mut but: Option<u64>, undo: &mut Undo) -> bool {
        let (ways, size) = self.motion.bins();
        for _ in 0..MOST_KICKS {
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

    /// All hashes, or none.
    fn insert(&mut self, hashes: &[Hash128]) -> Result<()> {
        let (mut undo, random) = (Undo::new(), self.random);
        let fit = self.count.saturating_add(hashes.len() as u64) <= self.owners.len() as u64;
        if fit && hashes.iter().all(|hash| self.place(*hash, None, &mut undo)) {
            self.count += hashes.len() as u64;
            return Ok(());
        }
        self.undo(&mut undo);
        self.random = random;
        Err(Error::Capacity(format!(
            "there is no room for {} more keys beside the {} in {} slots; make a filter with more \
             capacity",
            hashes.len(),
            self.count,
            self.owners.len()
        )))
    }

    fn owned(&self, hash: Hash128) -> Option<u64> {
        let owns = |slot: u64| self.owners[slot as usize] == hash && self.slot(slot) != 0;
        self.places(hash).map(|(.., slot)| slot).find(|slot| owns(*slot))
    }

    fn remove(&mut self, hash: Hash128) -> Result<()> {
        let Some(slot) = self.owned(hash) else {
            return Err(Error::Absent("the key is not in the filter".into()));
        };
        self.set_slot(slot, 0);
        self.owners[slot as usize] = Hash128::default();
        self.count -= 1;
        Ok(())
    }

    /// Moves the elements that a key which is not in the table fits; whether any did.
    fn adapt(&mut self, hash: Hash128) -> bool {
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
                moved |= self.shake(hash, slot);
            }
        }
        moved
    }

    /// Moves one element away from a key, as the kind does.
    fn shake(&mut self, asked: Hash128, slot: u64) -> bool {
        let owner = self.owners[slot as usize];
        match self.motion {
            Motion::Cyclic(bits) => {
                let last = self.selector(self.slot(slot));
                let functions = (1..1 << bits).map(|step| (last + step) & ((1 << bits) - 1));
                let differs = |i: &u64| self.fingerprint(owner, *i) != self.fingerprint(asked, *i);
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

    /// The share of absent keys that fit a slot: bins are independent, and each slot in use fits one
    /// of 2^f − 1 fingerprints.
    fn rate(&self) -> f64 {
        let (ways, size) = self.motion.bins();
        let missed = 1.0 - 1.0 / (2f64.powi(self.fingerprint_bits as i32) - 1.0);
        let mut sum = 0.0;
        for bin in 0..self.bins {
            let used = (bin * size..(bin + 1) * size).filter(|slot| self.slot(*slot) != 0).count();
            sum += missed.powi(used as i32);
        }
        1.0 - (sum / self.bins as f64).powi(ways as i32)
    }

    /// The first slot that is not what its owner says there, if there is one.
    fn wrong(&self) -> Option<u64> {
        let right = |slot: u64| {
            let (held, owner) = (self.slot(slot), self.owners[slot as usize]);
            match held {
                0 => owner == Hash128::default(),
                _ => self
                    .places(owner)
                    .any(|(j, place, mine)| mine == slot && self.fits(owner, j, place, held)),
            }
        };
        (0..self.owners.len() as u64).find(|slot| !right(*slot))
    }
}

fn byte_len(slots: u64, bits: u64) -> Option<usize> {
    let bits = slots.checked_mul(bits)?;
    usize::try_from(bits.div_ceil(8)).ok()?.checked_add(PADDING)
}

/// An adaptive cuckoo filter that threads share.
pub struct AdaptiveCuckoo {
    inner: RwLock<Inner>,
}

impl AdaptiveCuckoo {
    /// An empty filter.
    pub fn new(motion: Motion, fingerprint_bits: u32, bins: u64) -> Result<AdaptiveCuckoo> {
        Ok(AdaptiveCuckoo { inner: RwLock::new(Inner::new(motion, fingerprint_bits, bins)?) })
    }

    /// A filter of distinct hashes, or [`Error::Capacity`].
    pub fn build(
        motion: Motion,
        fingerprint_bits: u32,
        bins: u64,
        hashes: &Distinct,
    ) -> Result<AdaptiveCuckoo> {
        let mut inner = Inner::new(motion, fingerprint_bits, bins)?;
        for partition in hashes.partitions() {
            let mut sorted = partition.to_vec();
            sorted.sort_unstable();
            inner.insert(&sorted)?;
        }
        inner.random = 0;
        Ok(AdaptiveCuckoo { inner: RwLock::new(inner) })
    }

    /// Moves elements away from keys that are not stored; for each, whether any moved.
    pub fn adapt(&self, hashes: &[Hash128], moved: &mut [bool]) {
        for (hash, moved) in hashes.iter().zip(moved) {
            *moved = self.contains_one(*hash) && self.write().adapt(*hash);
        }
    }

    /// Motion, fingerprint bits, bins, slots.
    pub fn shape(&self) -> (Motion, u32, u64, u64) {
        let inner = self.read();
        (inner.motion, inner.fingerprint_bits, inner.bins, inner.owners.len() as u64)
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(|lock| lock.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(|lock| lock.into_inner())
    }

    /// Opens what a frame holds.
    pub fn from_frame(head: &Head, sections: &[Section<'_>]) -> Result<AdaptiveCuckoo> {
        let damaged =
            |what: &str| Error::Format(format!("the adaptive cuckoo filter is damaged: {what}"));
        let (&[motion, bits, bins], [slots, hashes]) = (&head.parameters[..], sections) else {
            return Err(damaged("it has not three parameters and two sections"));
        };
        let kinds = [(slots.kind, slots.piece), (hashes.kind, hashes.piece)];
        let motion = Motion::from_number(motion).ok_or_else(|| damaged("its kind is unknown"))?;
        let bits = u32::try_from(bits).ok().filter(|bits| (1..=MOST_BITS).contains(bits));
        let bits = bits.ok_or_else(|| damaged("its fingerprints are of no possible length"))?;
        let count = bins.checked_mul(motion.bins().1).filter(|count| *count > 0);
        let bytes =
            count.and_then(|count| byte_len(count, u64::from(bits + motion.selector_bits())));
        let table = count.and_then(|count| count.checked_mul(16));
        if kinds != [(SECTION_BITS, 0), (SECTION_HASHES, 0)]
            || bytes != Some(slots.bytes.len())
            || table != Some(hashes.bytes.len() as u64)
        {
            return Err(damaged("it is not as its parameters say"));
        }
        let mut inner = Inner::new(motion, bits, bins)?;
        inner.slots.as_mut_slice().copy_from_slice(slots.bytes);
        for (owner, row) in inner.owners.iter_mut().zip(hashes.bytes.as_chunks::<16>().0) {
            let word = |half: usize| {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&row[8 * half..8 * half + 8]);
                u64::from_le_bytes(bytes)
            };
            *owner = Hash128 { hi: word(0), lo: word(1) };
        }
        if let Some(slot) = inner.wrong() {
            return Err(damaged(&format!("slot {slot} is not what its hash says")));
        }
        let used = inner.owners.len() as u64 * u64::from(inner.width());
        let rest = slots.bytes.len() - PADDING;
        let spare = (8 * rest as u64 - used) as u32;
        if slots.bytes[rest..].iter().any(|byte| *byte != 0)
            || spare > 0 && slots.bytes[rest - 1] >> (8 - spare) != 0
        {
            return Err(damaged("bits behind the last slot are not 0"));
        }
        let count = (0..inner.owners.len() as u64).filter(|slot| inner.slot(*slot) != 0).count();
        inner.count = count as u64;
        if inner.count != head.count {
            return Err(damaged("it holds another number of keys"));
        }
        Ok(AdaptiveCuckoo { inner: RwLock::new(inner) })
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
        Some(self.inner.try_read().ok()?.contains(hash))
    }

    fn count(&self) -> u64 {
        self.read().count
    }

    fn busy(&self) -> bool {
        self.inner.try_write().is_err()
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
        let inner = self.read();
        let copy = Inner {
            slots: Buffer::copied(inner.slots.as_slice())?,
            owners: inner.owners.clone(),
            ..*inner
        };
        Ok(Arc::new(AdaptiveCuckoo { inner: RwLock::new(copy) }))
    }

    fn frozen(&self, look: &mut dyn FnMut(Content<'_>)) {
        let inner = self.read();
        let mut table = Vec::with_capacity(16 * inner.owners.len());
        for owner in &inner.owners {
            table.extend_from_slice(&owner.hi.to_le_bytes());
            table.extend_from_slice(&owner.lo.to_le_bytes());
        }
        let bits = u64::from(inner.fingerprint_bits);
        let sections = vec![
            Section { kind: SECTION_BITS, piece: 0, bytes: inner.slots.as_slice() },
            Section { kind: SECTION_HASHES, piece: 0, bytes: &table },
        ];
        let parameters = vec![inner.motion.number(), bits, inner.bins];
        look(Content { parameters, count: inner.count, capacity: None, sections });
    }

    fn insert(&self, hashes: &[Hash128]) -> Result<()> {
        self.write().insert(hashes)
    }

    fn inserts_at_once(&self) -> bool {
        true
    }

    fn remove(&self, hash: Hash128) -> Result<()> {
        self.write().remove(hash)
    }
}
