//! Solving the table by peeling.
//!
//! A slot used by only one key can be set last, to the value that the key still needs. So that key
//! is set aside, its other slots now have one key less, and so on until no key is left; then the
//! table is filled in the opposite order. For each slot it suffices to know the number of remaining
//! keys and their xor, which is the key itself when it is alone.
//!
//! Keys can be peeled at both ends of the table first, then further and further inside. So a large
//! table is peeled from both ends at once, up to its middle: each [`Stretch`] has half of the
//! slots, and leaves keys with slots in the other half for the end. These slots depend on the shape
//! alone, counts and xors do not depend on the order of the keys, and the order of peeling follows
//! from them: equal sets give equal tables, without sorting and with any number of threads.
//!
//! Peeling fails if every remaining key shares all its slots. With the sizes of `planning/fuse.py`
//! that is rare; then the keys get other slots, and after many failures a larger table, so that any
//! set of distinct hashes is solved in the end.

use super::{Fuse, Map, Shape};
use crate::bits::{Buffer, Zero, zeros};
use crate::distinct::{Distinct, Highs};
use crate::error::Result;
use crate::hash::Hash128;
use crate::interrupt;
use crate::memory::{self, TryGrow};
use crate::threads;
use std::ops::{BitXor, Range};

/// Attempts with a table of the requested size. Planned sizes fail about one time in ten at worst,
/// so a larger table is needed only for sizes that were not planned.
const SAME_SIZE: u64 = 32;
/// Slots that are searched for single keys at a time: these keys are peeled before the next slots
/// are searched, while everything is in the cache.
const BLOCK: usize = 1024;
/// From this many slots on, a table is peeled from both ends.
const SPLIT_FROM: u64 = 1 << 17;
/// Single keys of such a table that are peeled in one go: they seldom share slots, so the processor
/// waits for the slots of several at a time.
const AT_ONCE: usize = 64;

/// Peeled keys, and the slot that is set for each.
struct Peeled {
    places: Vec<u64>,
    which: Vec<u8>,
    len: usize,
}

impl Peeled {
    /// Empty, with capacity for this many keys.
    fn of(keys: usize) -> Result<Peeled> {
        Ok(Peeled { places: zeros(keys)?, which: zeros(keys)?, len: 0 })
    }

    fn push(&mut self, place: u64, which: u8) {
        if let (Some(to), Some(slot)) =
            (self.places.get_mut(self.len), self.which.get_mut(self.len))
        {
            (*to, *slot) = (place, which);
            self.len += 1;
        }
    }
}

/// Consecutive slots, and the keys that are not peeled yet, by slot. Two arrays: 9 bytes per slot,
/// where 16 would leave the cache sooner.
struct Stretch<'a> {
    /// The slots of the table before these.
    start: usize,
    /// The xor of the places of a slot's keys.
    places: &'a mut [u64],
    /// The number of keys.
    counts: &'a mut [u8],
    /// Single keys that are peeled in one go.
    at_once: usize,
}

/// The keys of an attempt.
trait Keys: Sync {
    /// Their number.
    fn count(&self) -> usize;
    /// The places of all keys with places in `first..=last`, and of some others.
    fn places(&self, first: u64, last: u64) -> impl Iterator<Item = u64>;
}

/// Hashes in the order of their places, which are their high halves.
impl Keys for Distinct {
    fn count(&self) -> usize {
        self.len()
    }

    fn places(&self, first: u64, last: u64) -> impl Iterator<Item = u64> {
        self.overlapping(first, last).flatten().map(|hash| hash.hi)
    }
}

impl Keys for Highs {
    fn count(&self) -> usize {
        self.len()
    }

    fn places(&self, first: u64, last: u64) -> impl Iterator<Item = u64> {
        self.overlapping(first, last).flatten().copied()
    }
}

impl Fuse {
    /// A filter of the keys with these high halves, if the first attempt succeeds. It never does if
    /// two are equal: each of their slots has both, so neither can be peeled. So repeated keys need
    /// not be removed first.
    pub fn of_highs(shape: Shape, highs: &Highs, threads: usize) -> Result<Option<Fuse>> {
        let count = highs.len();
        let map = Map::new(shape, 0);
        if count == 0 || shape.segments < u64::from(shape.arity) {
            return Ok(None);
        }
        let table = match shape.arity {
            3 => attempt::<3>(&map, shape, highs, threads)?,
            _ => attempt::<4>(&map, shape, highs, threads)?,
        };
        Ok(table.map(|table| Fuse::with(shape, 0, table, count as u64)))
    }

    /// A filter of these distinct hashes: of this shape, or a longer one if it is far too small.
    pub fn build(shape: Shape, hashes: &Distinct, threads: usize) -> Result<Fuse> {
        match shape.arity {
            3 => build::<3>(shape, hashes, threads),
            _ => build::<4>(shape, hashes, threads),
        }
    }
}

fn build<const K: usize>(mut shape: Shape, hashes: &Distinct, threads: usize) -> Result<Fuse> {
    if hashes.is_empty() {
        shape.segments = 0;
        return Ok(Fuse::with(shape, 0, Buffer::zeroed(0)?, 0));
    }
    shape.segments = shape.segments.max(K as u64);
    for domain in 0.. {
        if domain >= SAME_SIZE {
            let longer = shape.segments + shape.segments.div_ceil(8);
            shape = Shape::new(shape.arity, shape.fingerprint_bits, shape.segment_length, longer)?;
        }
        let map = Map::new(shape, domain);
        let moved = (domain > 0).then(|| placed(&map, hashes, threads)).transpose()?;
        let keys = moved.as_ref().unwrap_or(hashes);
        if let Some(table) = attempt::<K>(&map, shape, keys, threads)? {
            return Ok(Fuse::with(shape, domain, table, hashes.len() as u64));
        }
    }
    unreachable!("attempts do not end")
}

/// The hashes in the order of their places, with the place instead of `hi`: unchanged at the first
/// attempt. A later attempt in the old order would access the table at random.
fn placed(map: &Map, hashes: &Distinct, threads: usize) -> Result<Distinct> {
    hashes.mapped(threads, |hash| Hash128 { hi: map.place(hash), lo: hash.lo })
}

/// The table, if all keys can be peeled with these slots.
fn attempt<const K: usize>(
    map: &Map,
    shape: Shape,
    keys: &impl Keys,
    threads: usize,
) -> Result<Option<Buffer>> {
    let slots = shape.slots() as usize;
    let (mut places, mut counts) = (zeros(slots)?, zeros(slots)?);
    // A multiple of 64, so that the halves share no word of the table.
    let (border, at_once) = match shape.slots() {
        ..SPLIT_FROM => (slots, 1),
        _ => (slots / 2 / 64 * 64, AT_ONCE),
    };
    let (left, right) = {
        let (left, right) = places.split_at_mut(border);
        let (few, more) = counts.split_at_mut(border);
        let left = Stretch { start: 0, places: left, counts: few, at_once };
        let right = Stretch { start: border, places: right, counts: more, at_once };
        both(threads, || left.peeled::<K>(map, keys), || right.peeled::<K>(map, keys))
    };
    let (Some(left), Some(right)) = (left?, right?) else { return Ok(None) };
    let taken = left.len + right.len;
    let mut middle = Peeled::of(keys.count() - taken)?;
    // No single key further away than this has slots on both sides.
    let near = K * shape.segment_length as usize;
    let searched = border.saturating_sub(near)..slots.min(border + near);
    Stretch { start: 0, places: &mut places, counts: &mut counts, at_once }.peel::<K>(
        map,
        searched,
        false,
        &mut middle,
    )?;
    if taken + middle.len < keys.count() {
        return Ok(None);
    }
    drop((places, counts));
    let solution = Solution { shape, map, border, left, right, middle };
    let table = match shape.fingerprint_bits {
        ..=8 => solution.table::<K, u8>(threads),
        9..=16 => solution.table::<K, u16>(threads),
        _ => solution.table::<K, u32>(threads),
    };
    table.map(Some)
}

/// Runs both, in parallel if there are threads.
fn both<A: Send, B: Send>(
    threads: usize,
    one: impl FnOnce() -> A,
    two: impl FnOnce() -> B + Send,
) -> (A, B) {
    if threads < 2 { (one(), two()) } else { threads::both(one, two) }
}

/// How many of `trials` attempts with this shape succeed.
#[cfg(test)]
pub fn successes(shape: Shape, hashes: &Distinct, trials: u64) -> u64 {
    let solved = |domain: &u64| {
        let map = Map::new(shape, *domain);
        let table = placed(&map, hashes, 1).and_then(|keys| match shape.arity {
            3 => attempt::<3>(&map, shape, &keys, 1),
            _ => attempt::<4>(&map, shape, &keys, 1),
        });
        table.is_ok_and(|table| table.is_some())
    };
    (0..trials).filter(solved).count() as u64
}

impl Stretch<'_> {
    /// Peels as many as possible of the keys whose slots are all here, from the end of the table;
    /// `None` if a slot has more keys than can be counted.
    fn peeled<const K: usize>(mut self, map: &Map, keys: &impl Keys) -> Result<Option<Peeled>> {
        let Some(inside) = self.count::<K>(map, keys) else { return Ok(None) };
        let mut peeled = Peeled::of(inside)?;
        self.peel::<K>(map, 0..self.counts.len(), self.start > 0, &mut peeled)?;
        Ok(Some(peeled))
    }

    /// Enters every key in its slots that are here; returns how many keys have all their slots
    /// here, or `None` if a slot has more keys than can be counted.
    fn count<const K: usize>(&mut self, map: &Map, keys: &impl Keys) -> Option<usize> {
        let Stretch { start, places, counts, .. } = self;
        let len = counts.len();
        if len == 0 {
            return Some(0);
        }
        let (first, last) = map.reaching::<K>(*start as u64..(*start + len) as u64);
        let (mut inside, mut max) = (0, 0);
        for place in keys.places(first, last) {
            let slots = map.slots::<K>(place).map(|slot| (slot as usize).wrapping_sub(*start));
            inside += usize::from(slots[0] < len && slots[K - 1] < len);
            for slot in slots {
                if let (Some(all), Some(count)) = (places.get_mut(slot), counts.get_mut(slot)) {
                    *all ^= place;
                    *count = count.saturating_add(1);
                    max = max.max(*count);
                }
            }
        }
        (max < u8::MAX).then_some(inside)
    }

    /// Peels keys that are alone in a slot and have all their slots here, as long as there are any;
    /// `searched` are the slots to search first.
    fn peel<const K: usize>(
        &mut self,
        map: &Map,
        searched: Range<usize>,
        backwards: bool,
        peeled: &mut Peeled,
    ) -> Result<()> {
        let Stretch { start, places, counts, at_once } = self;
        let len = counts.len();
        let blocks = searched.len().div_ceil(BLOCK);
        let (mut pending, mut now) = (memory::filled(2 * BLOCK, 0)?, [0; AT_ONCE]);
        for block in 0..blocks {
            interrupt::check();
            let block = if backwards { blocks - 1 - block } else { block };
            let first = searched.start + block * BLOCK;
            let mut end = 0;
            // Always written, and kept only if single: a branch would be mispredicted half the
            // time.
            for at in first..searched.end.min(first + BLOCK) {
                pending[end] = at;
                end += usize::from(counts[at] == 1);
            }
            while end > 0 {
                let together = end.min(*at_once);
                end -= together;
                now[..together].copy_from_slice(&pending[end..end + together]);
                if end + K * together > pending.len() {
                    pending.try_resize(2 * pending.len() + K * together, 0)?;
                }
                for &at in &now[..together] {
                    if counts[at] != 1 {
                        continue;
                    }
                    let place = places[at];
                    let slots =
                        map.slots::<K>(place).map(|slot| (slot as usize).wrapping_sub(*start));
                    if slots[0] >= len || slots[K - 1] >= len {
                        continue;
                    }
                    let before = slots.iter().fold(0, |before, &slot| before + u8::from(slot < at));
                    peeled.push(place, before);
                    for slot in slots {
                        places[slot] ^= place;
                        counts[slot] = counts[slot].wrapping_sub(1);
                        pending[end] = slot;
                        end += usize::from(counts[slot] == 1);
                    }
                }
            }
        }
        Ok(())
    }
}

/// The value of a slot while the table is filled: the smallest type that holds a fingerprint, so
/// that as many as possible are in the cache.
trait Value: Zero + Send + BitXor<Output = Self> {
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
}

macro_rules! values {
    ($($width:ty),*) => {$(
        impl Value for $width {
            #[inline(always)]
            fn of(bits: u64) -> $width {
                bits as $width
            }
            #[inline(always)]
            fn bits(self) -> u64 {
                self.into()
            }
        }
    )*};
}
values!(u8, u16, u32);

/// All keys in an order in which the table can be filled: from the last to the first of the middle,
/// then of the ends.
struct Solution<'a> {
    shape: Shape,
    map: &'a Map,
    border: usize,
    left: Peeled,
    right: Peeled,
    middle: Peeled,
}

impl Solution<'_> {
    fn table<const K: usize, V: Value>(&self, threads: usize) -> Result<Buffer> {
        let &Solution { shape, map, border, ref left, ref right, ref middle } = self;
        let mut values: Vec<V> = zeros(shape.slots() as usize)?;
        let mut table = Buffer::zeroed(shape.bytes())?;
        fill::<K, V>(map, middle, 0, &mut values);
        let bits = shape.fingerprint_bits;
        let words = table.as_mut_slice().as_chunks_mut::<8>().0;
        let (first, last) = words.split_at_mut((border * bits as usize).div_ceil(64));
        let (front, back) = values.split_at_mut(border);
        let work = |peeled: &Peeled, start: usize, values: &mut [V], words: &mut [[u8; 8]]| {
            fill::<K, V>(map, peeled, start, values);
            pack(bits, values, words);
        };
        both(threads, || work(left, 0, front, first), || work(right, border, back, last));
        Ok(table)
    }
}

/// Sets the slot of each key to the value it needs, in reverse order of peeling; `start` slots
/// precede these values.
fn fill<const K: usize, V: Value>(map: &Map, peeled: &Peeled, start: usize, values: &mut [V]) {
    let which = &peeled.which[..peeled.len];
    let places = &peeled.places[..peeled.len];
    for (places, which) in places.chunks(BLOCK).zip(which.chunks(BLOCK)).rev() {
        interrupt::check();
        fill_block::<K, V>(map, places, which, start, values);
    }
}

#[inline(always)]
fn fill_block<const K: usize, V: Value>(
    map: &Map,
    places: &[u64],
    which: &[u8],
    start: usize,
    values: &mut [V],
) {
    for (&place, &which) in places.iter().zip(which).rev() {
        let slots = map.slots::<K>(place).map(|slot| slot as usize - start);
        // The slot to be set is still zero, so it may be among the slots read.
        let fingerprint = V::of(map.fingerprint(place) & map.fingerprint_mask);
        let needed = slots.iter().fold(fingerprint, |all, &slot| all ^ values[slot]);
        values[slots[usize::from(which) % K]] = needed;
    }
}

/// Writes values one after the other, `bits` of each.
fn pack(bits: u32, values: &[impl Value], words: &mut [[u8; 8]]) {
    let mut words = words.iter_mut();
    let (mut word, mut used) = (0, 0);
    for value in values {
        let value = value.bits();
        word |= value << used;
        used += bits;
        if used >= 64 {
            if let Some(bytes) = words.next() {
                *bytes = word.to_le_bytes();
            }
            used -= 64;
            word = value >> (bits - used);
        }
    }
    if let Some(bytes) = words.next() {
        *bytes = word.to_le_bytes();
    }
}
