//! Solving the table by peeling.
//!
//! A slot that only one of the keys has can be set last, to what that key still needs. So that key
//! is put aside, its other slots now have one key less, and so on until no key is left; then the
//! table is filled in the opposite order. For each slot it is enough to know how many keys are
//! left there and the xor of them all, which is the key itself when it is alone.
//!
//! Keys come loose at both ends of the table first, and then further and further inside. So a large
//! table is peeled from both ends at once, up to its middle: each [`Stretch`] has half of the slots,
//! and leaves the keys that also have slots in the other half for the end. Which slots those are
//! depends on the shape alone, counts and xors do not depend on the order of the keys, and the order
//! of peeling follows from them: equal sets give equal tables, without sorting and with any number
//! of threads.
//!
//! Peeling fails if some keys have no slot of their own left. The sizes that `planning/fuse.py`
//! gives make that rare; then the keys get other slots, and after many failures more of them, so
//! that any set of distinct hashes is solved in the end.

use super::{Fuse, Map, Shape};
use crate::bits::{Buffer, Zero, zeros};
use crate::distinct::{Distinct, Highs};
use crate::error::Result;
use crate::hash::Hash128;
use std::ops::{BitXor, Range};

/// Attempts with the table as it was asked for. Planned sizes fail about one time in ten at worst,
/// so that the next attempt, with a larger table, is for sizes that nobody planned.
const SAME_SIZE: u64 = 32;
/// Slots that are searched for lonely keys at a time: those come off before the next are searched,
/// while all is in the cache.
const BLOCK: usize = 1024;
/// From this many slots on, a table is peeled from both ends.
const SPLIT_FROM: u64 = 1 << 17;
/// Lonely keys of such a table that are put aside in one go: they have little to do with each other,
/// so the processor waits for the slots of several at a time.
const AT_ONCE: usize = 64;

/// Keys that were put aside, and which of its slots is set for each.
struct Peeled {
    places: Vec<u64>,
    which: Vec<u8>,
    len: usize,
}

impl Peeled {
    /// Room for this many.
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

/// Slots that follow each other, and the keys that are not peeled yet, by slot. Two arrays: 9 bytes
/// a slot, where 16 would leave the cache sooner.
struct Stretch<'a> {
    /// The slots of the table before these.
    start: usize,
    /// The xor of the places of a slot's keys.
    places: &'a mut [u64],
    /// How many keys.
    counts: &'a mut [u8],
    /// Lonely keys that are put aside in one go.
    at_once: usize,
}

/// The keys of an attempt.
trait Keys: Sync {
    /// How many.
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
    /// A filter of the keys with these high halves, if the first attempt succeeds. It never does where
    /// two are equal: each of their slots has both, so that none of the two can be put aside. So nobody
    /// needs to look for repeated keys before.
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
    unreachable!("no attempt is the last")
}

/// The hashes in the order of their places, which take the place of `hi`: as they are at the first
/// attempt. A later one that walked through them in the old order would read all over the table.
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
    // A multiple of 64, so that the halves have no word of the table in common.
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
    // Further away than this, no key that was left alone in its slot has slots on both sides.
    let near = K * shape.segment_length as usize;
    let searched = border.saturating_sub(near)..slots.min(border + near);
    Stretch { start: 0, places: &mut places, counts: &mut counts, at_once }.peel::<K>(
        map,
        searched,
        false,
        &mut middle,
    );
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

/// Runs both, side by side where there are threads for that.
fn both<A: Send, B: Send>(
    threads: usize,
    one: impl FnOnce() -> A,
    two: impl FnOnce() -> B + Send,
) -> (A, B) {
    if threads < 2 {
        return (one(), two());
    }
    std::thread::scope(|scope| {
        let two = scope.spawn(two);
        let one = one();
        match two.join() {
            Ok(two) => (one, two),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
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
    /// Peels what it can of the keys that have all their slots here, from the end of the table;
    /// `None` if a slot has more keys than can be counted.
    fn peeled<const K: usize>(mut self, map: &Map, keys: &impl Keys) -> Result<Option<Peeled>> {
        let Some(inside) = self.count::<K>(map, keys) else { return Ok(None) };
        let mut peeled = Peeled::of(inside)?;
        self.peel::<K>(map, 0..self.counts.len(), self.start > 0, &mut peeled);
        Ok(Some(peeled))
    }

    /// Enters every key in those of its slots that are here; how many have all of them here, or
    /// `None` if a slot has more keys than can be counted.
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

    /// Puts keys aside that are alone in a slot and have all their slots here, as long as there are
    /// any; `searched` is where such slots may be to begin with.
    fn peel<const K: usize>(
        &mut self,
        map: &Map,
        searched: Range<usize>,
        backwards: bool,
        peeled: &mut Peeled,
    ) {
        let Stretch { start, places, counts, at_once } = self;
        let len = counts.len();
        let blocks = searched.len().div_ceil(BLOCK);
        let (mut pending, mut now) = (vec![0; 2 * BLOCK], [0; AT_ONCE]);
        for block in 0..blocks {
            let block = if backwards { blocks - 1 - block } else { block };
            let first = searched.start + block * BLOCK;
            let mut end = 0;
            // Written always and kept if it is to be: a branch would be guessed wrong half the time.
            for at in first..searched.end.min(first + BLOCK) {
                pending[end] = at;
                end += usize::from(counts[at] == 1);
            }
            while end > 0 {
                let together = end.min(*at_once);
                end -= together;
                now[..together].copy_from_slice(&pending[end..end + together]);
                if end + K * together > pending.len() {
                    pending.resize(2 * pending.len() + K * together, 0);
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
    }
}

/// What a slot holds while the table is filled: the least that has room for a fingerprint, so that
/// as many as possible are in the cache.
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

/// Sets the slot of each key to what it needs, those peeled last first; `start` slots are before
/// those of these values.
fn fill<const K: usize, V: Value>(map: &Map, peeled: &Peeled, start: usize, values: &mut [V]) {
    for (&place, &which) in peeled.places[..peeled.len].iter().zip(&peeled.which).rev() {
        let slots = map.slots::<K>(place).map(|slot| slot as usize - start);
        // The slot to be set is still zero, so it may be among those that are read.
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
