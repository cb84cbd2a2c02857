//! Solving the table by peeling.
//!
//! A slot that only one of the keys has can be set last, to what that key still needs. So that key
//! is put aside, its other slots now have one key less, and so on until no key is left; then the
//! table is filled in the opposite order. For each slot it is enough to know how many keys are
//! left there and the xor of them all, which is the key itself when it is alone.
//!
//! Counts and xors do not depend on the order of the keys, and the order of peeling follows from
//! them: equal sets give equal tables, without sorting.
//!
//! Peeling fails if some keys have no slot of their own left. The sizes that `planning/fuse.py`
//! gives make that rare; then the keys get other slots, and after many failures more of them, so
//! that any set of distinct hashes is solved in the end.

use super::{Fuse, Map, Shape};
use crate::bits::{Buffer, prefetch};
use crate::distinct::Distinct;
use crate::error::{Error, Result};

/// Attempts with the table as it was asked for. Planned sizes fail about one time in ten at worst,
/// so that the next attempt, with a larger table, is for sizes that nobody planned.
const SAME_SIZE: u64 = 32;
/// Keys ahead of the one that is counted, for which slots are asked for.
const AHEAD: usize = 8;
/// Slots that are searched for lonely keys at a time: those come off before the next are searched,
/// while all is in the cache.
const BLOCK: usize = 1024;

/// The keys that are not peeled yet, by slot. Two arrays: 9 bytes a slot, where 16 would leave the
/// cache sooner.
struct Slots {
    /// The xor of their places.
    places: Vec<u64>,
    /// How many.
    counts: Vec<u8>,
}

/// Keys that were put aside, and which of its slots is set for each.
struct Peeled {
    places: Vec<u64>,
    which: Vec<u8>,
}

impl Fuse {
    /// A filter of these distinct hashes: of this shape, or a longer one if it is far too small.
    pub fn build(shape: Shape, hashes: &Distinct) -> Result<Fuse> {
        match shape.arity {
            3 => build::<3>(shape, hashes),
            _ => build::<4>(shape, hashes),
        }
    }
}

fn build<const K: usize>(mut shape: Shape, hashes: &Distinct) -> Result<Fuse> {
    if hashes.is_empty() {
        shape.segments = 0;
        return Ok(Fuse::with(shape, 0, Buffer::zeroed(0)?, 0));
    }
    shape.segments = shape.segments.max(K as u64);
    let mut peeled = Peeled { places: zeros(hashes.len())?, which: zeros(hashes.len())? };
    for domain in 0.. {
        if domain >= SAME_SIZE {
            let longer = shape.segments + shape.segments.div_ceil(8);
            shape = Shape::new(shape.arity, shape.fingerprint_bits, shape.segment_length, longer)?;
        }
        let map = Map::new(shape, domain);
        if let Some(mut slots) = attempt::<K>(&map, shape, hashes, &mut peeled)? {
            fill::<K>(&map, &peeled, &mut slots.places);
            let table = pack(shape, &slots.places)?;
            return Ok(Fuse::with(shape, domain, table, hashes.len() as u64));
        }
    }
    unreachable!("no attempt is the last")
}

fn zeros<T: Clone + Default>(len: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(len).map_err(|_| {
        let bytes = len.saturating_mul(size_of::<T>());
        Error::Memory(format!("cannot allocate {bytes} bytes to build the filter"))
    })?;
    list.resize(len, T::default());
    Ok(list)
}

/// Peels as many keys as it can; the slots, which are zero again, if those were all.
fn attempt<const K: usize>(
    map: &Map,
    shape: Shape,
    hashes: &Distinct,
    peeled: &mut Peeled,
) -> Result<Option<Slots>> {
    let slots = shape.slots() as usize;
    let mut slots = Slots { places: zeros(slots)?, counts: zeros(slots)? };
    let all = count::<K>(map, hashes, &mut slots) && peel::<K>(map, &mut slots, peeled);
    Ok(all.then_some(slots))
}

/// How many of `trials` attempts with this shape succeed.
#[cfg(test)]
pub fn successes(shape: Shape, hashes: &Distinct, trials: u64) -> u64 {
    let mut peeled = Peeled { places: vec![0; hashes.len()], which: vec![0; hashes.len()] };
    let mut solved = |domain: &u64| {
        let map = Map::new(shape, *domain);
        let slots = match shape.arity {
            3 => attempt::<3>(&map, shape, hashes, &mut peeled),
            _ => attempt::<4>(&map, shape, hashes, &mut peeled),
        };
        slots.is_ok_and(|slots| slots.is_some())
    };
    (0..trials).filter(|domain| solved(domain)).count() as u64
}

/// Enters every key in its slots; whether no slot has more keys than can be counted.
fn count<const K: usize>(map: &Map, hashes: &Distinct, slots: &mut Slots) -> bool {
    let mut most = 0;
    for partition in hashes.partitions() {
        for (i, &hash) in partition.iter().enumerate() {
            if let Some(&later) = partition.get(i + AHEAD) {
                for slot in map.slots::<K>(map.place(later)) {
                    prefetch(slots.places.as_ptr().wrapping_add(slot as usize));
                    prefetch(slots.counts.as_ptr().wrapping_add(slot as usize));
                }
            }
            let place = map.place(hash);
            for slot in map.slots::<K>(place) {
                slots.places[slot as usize] ^= place;
                let count = &mut slots.counts[slot as usize];
                *count = count.saturating_add(1);
                most = most.max(*count);
            }
        }
    }
    most < u8::MAX
}

/// Puts keys aside that are alone in a slot, as long as there are any; whether that took all.
fn peel<const K: usize>(map: &Map, slots: &mut Slots, peeled: &mut Peeled) -> bool {
    let Slots { places, counts } = slots;
    let mut pending = vec![0; 2 * BLOCK];
    let mut taken = 0;
    for start in (0..counts.len()).step_by(BLOCK) {
        let mut end = 0;
        // Written always and kept if it is to be: a branch would be guessed wrong half the time.
        for (at, &count) in counts.iter().enumerate().skip(start).take(BLOCK) {
            pending[end] = at;
            end += usize::from(count == 1);
        }
        while end > 0 {
            if end + K > pending.len() {
                pending.resize(2 * pending.len(), 0);
            }
            end -= 1;
            let at = pending[end];
            if counts[at] != 1 {
                continue;
            }
            let place = places[at];
            let own = map.slots::<K>(place);
            let which = own.iter().fold(0, |before, &slot| before + u8::from(slot < at as u64));
            let (Some(to), Some(slot)) =
                (peeled.places.get_mut(taken), peeled.which.get_mut(taken))
            else {
                return false;
            };
            (*to, *slot) = (place, which);
            taken += 1;
            for other in own {
                let other = other as usize;
                places[other] ^= place;
                counts[other] = counts[other].wrapping_sub(1);
                pending[end] = other;
                end += usize::from(counts[other] == 1);
            }
        }
    }
    taken == peeled.places.len()
}

/// Sets the slot of each key to what it needs, those peeled last first.
fn fill<const K: usize>(map: &Map, peeled: &Peeled, slots: &mut [u64]) {
    for (&place, &which) in peeled.places.iter().zip(&peeled.which).rev() {
        let own = map.slots::<K>(place);
        // The slot to be set is still zero, so it may be among those that are read.
        let stored = own.iter().fold(0, |all, &slot| all ^ slots[slot as usize]);
        let needed = (stored ^ map.fingerprint(place)) & map.fingerprint_mask;
        slots[own[usize::from(which) % K] as usize] = needed;
    }
}

/// The values of the slots, as many bits of each as a fingerprint has, one after the other.
fn pack(shape: Shape, values: &[u64]) -> Result<Buffer> {
    let mut table = Buffer::zeroed(shape.bytes())?;
    let mut words = table.as_mut_slice().as_chunks_mut::<8>().0.iter_mut();
    let (mut word, mut used) = (0, 0);
    for value in values {
        word |= value << used;
        used += shape.fingerprint_bits;
        if used >= 64 {
            if let Some(bytes) = words.next() {
                *bytes = word.to_le_bytes();
            }
            used -= 64;
            word = value >> (shape.fingerprint_bits - used);
        }
    }
    if let Some(bytes) = words.next() {
        *bytes = word.to_le_bytes();
    }
    Ok(table)
}
