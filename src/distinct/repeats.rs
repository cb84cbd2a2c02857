//! Finding the hashes of a partition that repeat an earlier one.
//!
//! Most sets have none, or few. So a small Bloom filter, which stays in the L1 cache, is queried
//! first: a hash that it rejects is new. It never rejects a hash that was added, so every
//! repetition is among the few hashes that it accepts; only these, and the hashes that they might
//! be equal to, are compared. If many are accepted, most likely because they are repeated, a hash
//! table of all kept hashes decides.
//!
//! Adversarial hashes may all have one place in the table. Such a partition is sorted instead: no
//! input takes more than n·log n steps.

use crate::hash::Hash128;
use crate::memory::{self, TryGrow};
use crate::processor::on_best;

/// Maximum distance of a hash from its place in the table. A uniform one needs two steps, and none
/// of 10⁸ needed as many as this.
const MAX_DISTANCE: usize = 256;
/// One in this many hashes may be suspected before the table decides: without repetitions, one in
/// some hundreds is.
const FEW: usize = 32;

/// Hashes that are processed between checks whether the table should decide.
const STRETCH: usize = 1 << 10;
/// Words of the bitmap of suspects: 8 KiB, of which a few hundred suspects set few bits.
const SUSPECT_WORDS: usize = 1 << 10;

/// Memory reused for all partitions.
#[derive(Default)]
pub struct Repeats {
    seen: Vec<u64>,
    suspects: Vec<u32>,
    table: Vec<u32>,
}

impl Repeats {
    /// Moves the first of equal hashes to the front, in order; returns their number.
    pub fn remove(&mut self, hashes: &mut [Hash128]) -> usize {
        if hashes.len() > u32::MAX as usize || !self.reserve(hashes.len()) {
            return sorted(hashes);
        }
        let max = hashes.len() / FEW;
        on_best!(_processor => self.suspect(hashes, max));
        if self.suspects.is_empty() {
            return hashes.len();
        }
        if self.suspects.len() > max {
            self.table.clear();
            if self.table.try_reserve(places(hashes.len())).is_err() {
                return sorted(hashes);
            }
            return deduplicate(hashes, &mut self.table).unwrap_or_else(|left| {
                let left = &mut hashes[..left];
                match memory::collected(0..left.len() as u32) {
                    Ok(all) => without_repeats(left, all),
                    Err(_) => sorted(left),
                }
            });
        }
        match on_best!(_processor => self.candidates(hashes)) {
            Ok(candidates) => without_repeats(hashes, candidates),
            Err(_) => sorted(hashes),
        }
    }

    /// Reserves memory for the suspects among this many hashes; returns whether that succeeded. A
    /// partition of equal keys may take most of the machine's memory.
    fn reserve(&mut self, hashes: usize) -> bool {
        let more = |len: usize, needed: usize| needed.saturating_sub(len);
        let Repeats { seen, suspects, .. } = self;
        seen.try_reserve(more(seen.len(), words(hashes))).is_ok()
            && suspects.try_reserve(more(suspects.len(), hashes)).is_ok()
    }

    /// Collects the positions of the hashes that the filter accepts when they come, until there are
    /// more than `max`.
    #[inline(always)]
    fn suspect(&mut self, hashes: &[Hash128], max: usize) {
        let Repeats { seen, suspects, .. } = self;
        let words = words(hashes.len());
        seen.clear();
        seen.resize(words, 0);
        suspects.resize(hashes.len().max(suspects.len()), 0);
        let mut end = 0;
        for (first, hashes) in (0..).step_by(STRETCH).zip(hashes.chunks(STRETCH)) {
            for (i, hash) in (first..).zip(hashes) {
                let (word, bits) = (&mut seen[hash.lo as usize & (words - 1)], bits(hash.lo));
                // Always written, and kept only if accepted.
                suspects[end] = i;
                end += usize::from(*word & bits == bits);
                *word |= bits;
            }
            if end > max {
                break;
            }
        }
        suspects.truncate(end);
    }

    /// The positions of the suspects, and of all hashes that they may be equal to.
    #[inline(always)]
    fn candidates(&mut self, hashes: &[Hash128]) -> crate::error::Result<Vec<u32>> {
        let Repeats { seen, suspects, .. } = self;
        // By bits that did not make them suspects; one bit each is enough.
        let bit = |hash: &Hash128| (hash.lo >> 20) as usize % (64 * SUSPECT_WORDS);
        seen.clear();
        seen.try_resize(SUSPECT_WORDS, 0)?;
        for &i in &*suspects {
            let bit = bit(&hashes[i as usize]);
            seen[bit / 64] |= 1 << (bit % 64);
        }
        let mut candidates = Vec::new();
        for (i, hash) in (0..).zip(hashes) {
            let bit = bit(hash);
            if seen[bit / 64] >> (bit % 64) & 1 == 1 {
                candidates.try_push(i)?;
            }
        }
        Ok(candidates)
    }
}

/// The number of words of the filter: one for each four hashes, or more.
fn words(hashes: usize) -> usize {
    (hashes / 4).next_power_of_two()
}

/// The number of places of the table.
pub fn places(hashes: usize) -> usize {
    (2 * hashes).next_power_of_two()
}

/// The bits of a hash in its word: two, by bits that do not choose the word.
#[inline(always)]
fn bits(lo: u64) -> u64 {
    1 << (lo >> 58) | 1 << (lo >> 52 & 63)
}

/// Removes repetitions by sorting, if there are too many hashes for 32-bit positions or for memory.
#[cold]
fn sorted(hashes: &mut [Hash128]) -> usize {
    hashes.sort_unstable();
    let mut kept = 0;
    for read in 0..hashes.len() {
        if kept == 0 || hashes[kept - 1] != hashes[read] {
            hashes[kept] = hashes[read];
            kept += 1;
        }
    }
    kept
}

/// Removes the candidates that repeat an earlier one; returns how many hashes are left.
fn without_repeats(hashes: &mut [Hash128], mut candidates: Vec<u32>) -> usize {
    candidates.sort_unstable_by_key(|&i| (hashes[i as usize], i));
    let mut found = 0;
    for at in 1..candidates.len() {
        if hashes[candidates[at - 1] as usize] == hashes[candidates[at] as usize] {
            // In place of a candidate that was compared before.
            candidates[found] = candidates[at];
            found += 1;
        }
    }
    let repeats = &mut candidates[..found];
    repeats.sort_unstable();
    let Some(&first) = repeats.first() else { return hashes.len() };
    let mut kept = first as usize;
    for (at, &repeat) in repeats.iter().enumerate() {
        let repeat = repeat as usize;
        let end = repeats.get(at + 1).map_or(hashes.len(), |&next| next as usize);
        hashes.copy_within(repeat + 1..end, kept);
        kept += end - repeat - 1;
    }
    kept
}

/// Moves the first of equal hashes to the front, in order; returns their number. `table` becomes a
/// hash table with open addressing, by the low bits, of positions in the kept part plus one. If
/// some hashes would be too far from their places, returns as the error the number of hashes that
/// are left, some of them repeated.
pub fn deduplicate(hashes: &mut [Hash128], table: &mut Vec<u32>) -> Result<usize, usize> {
    let size = places(hashes.len());
    table.clear();
    table.resize(size, 0);
    let mask = size - 1;
    let mut kept = 0;
    'hashes: for read in 0..hashes.len() {
        let hash = hashes[read];
        for step in 0..MAX_DISTANCE {
            let place = (hash.lo as usize).wrapping_add(step) & mask;
            match table[place] {
                0 => {
                    hashes[kept] = hash;
                    kept += 1;
                    table[place] = kept as u32;
                    continue 'hashes;
                }
                position if hashes[position as usize - 1] == hash => continue 'hashes,
                _ => {}
            }
        }
        hashes.copy_within(read.., kept);
        return Err(kept + hashes.len() - read);
    }
    Ok(kept)
}

/// The position of a hash after `deduplicate`, by the table it filled.
pub fn find(kept: &[Hash128], table: &[u32], hash: Hash128) -> Option<usize> {
    let mask = table.len() - 1;
    for step in 0..MAX_DISTANCE {
        match table[(hash.lo as usize).wrapping_add(step) & mask] {
            0 => return None,
            position if kept[position as usize - 1] == hash => return Some(position as usize - 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Hasher;
    use std::collections::BTreeSet;

    /// Like a set, whatever repeats and whichever halves hashes share; with the same scratch memory
    /// for all.
    #[test]
    fn the_first_of_equal_hashes_stays() {
        let hasher = Hasher::seeded(0);
        let uniform = |i: i64| hasher.signed(i);
        let mut cases: Vec<Vec<Hash128>> = Vec::new();
        for n in [0, 1, 2, 3, 100, 20_000] {
            cases.push((0..n).map(uniform).collect());
            cases.push((0..n).map(|_| uniform(7)).collect());
            // One of many repeats another, far behind it or next to it.
            cases.push((0..n).map(|i| uniform(i % (n - n / 50).max(1))).collect());
            cases.push((0..n).map(|i| uniform(i - i64::from(i % 97 == 1))).collect());
            cases.push((0..n).map(|i| uniform(i % (n / 3).max(1))).collect());
            // The same low half, or the same place in every table; each twice.
            for lo in [|_: u64| 5, |i: u64| i << 32] {
                let hash = |i: i64| Hash128 { hi: i as u64 / 2, lo: lo(i as u64 / 2) };
                cases.push((0..n).map(hash).collect());
            }
            // Two of equal low halves among others.
            let hash = |i: i64| Hash128 { hi: i as u64, lo: uniform(i / 2).lo };
            cases.push((0..n).map(hash).collect());
        }
        let mut scratch = Repeats::default();
        for hashes in cases {
            let mut met = BTreeSet::new();
            let expected: Vec<Hash128> =
                hashes.iter().filter(|hash| met.insert(**hash)).copied().collect();
            let mut left = hashes;
            let kept = scratch.remove(&mut left);
            assert!(left[..kept] == expected);
        }
    }
}
