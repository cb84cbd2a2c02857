//! Batches of keys for layouts that are not blocked: queries, insertions, positions.
//!
//! Keys are probed in rounds: once each, then again the keys that found their bit set. So an absent
//! key costs two probes on average (half of the bits are set), not k. If most keys pass, they are
//! likely in the set and get several probes per round; if most keys before were in the set and the
//! filter is in a cache, all probes are done at once without rounds. The words of a round are
//! fetched side by side. Computing positions costs more than reading the bits while the filter is
//! in a cache, so it is done in loops that the compiler vectorizes.

use super::shape::Segment;
use super::{Bloom, Shape, wide};
use crate::bits::prefetch;
use crate::hash::Hash128;
use crate::kernel::Kernel;
use crate::processor::vectorized;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Keys probed together: more than a core has cache misses in flight, and few enough that their
/// state stays in the L1 cache.
const TOGETHER: usize = 128;
/// Keys in the first group, which shows whether keys are in the set. Fewer are not worth a round.
const FIRST: usize = 32;
/// Probes of a key whose positions are computed at once. Up to a rate of 2⁻¹⁶ a key has no more.
const MAX_AT_ONCE: usize = 16;
/// Filters of up to this many bytes stay in the last-level cache: their probes overlap without
/// prefetching.
const CACHED: usize = 1 << 22;
/// How many positions ahead a word is prefetched: a core has about a dozen cache misses in flight.
const AHEAD: usize = 16;

vectorized! {
    /// Answers up to [`TOGETHER`] hashes; returns how many are accepted.
    fn probe_together(
        bloom: &Bloom,
        probes: &mut Probes,
        hashes: &[Hash128],
        out: &mut [bool],
        likely: bool,
    ) -> usize {
        let cut = bloom.shape.kept < bloom.shape.bits;
        match (likely && bloom.bits.len() <= CACHED, cut) {
            (true, true) => bloom.probe_all::<true>(hashes, out),
            (true, false) => bloom.probe_all::<false>(hashes, out),
            (false, true) => bloom.probe::<true>(probes, hashes, out, likely),
            (false, false) => bloom.probe::<false>(probes, hashes, out, likely),
        }
    }
}

vectorized! {
    /// Computes the positions of `rows` probes of each key, from `j` on.
    fn advance_together(probes: &mut Probes, shape: &Shape, j: u32, rows: usize) -> () {
        for row in 0..rows {
            probes.advance(row, shape.segment(j + row as u32));
        }
    }
}

impl Bloom {
    /// Whether each hash finds all of its bits.
    pub(super) fn contains_in_rounds(&self, mut hashes: &[Hash128], mut out: &mut [bool]) {
        let mut probes = Probes::new();
        let (mut likely, mut together) = (false, FIRST);
        while hashes.len() >= FIRST {
            let count = together.min(hashes.len());
            let (now, later) = hashes.split_at(count);
            let (answers, rest) = std::mem::take(&mut out).split_at_mut(count);
            let found = match likely && self.bits.len() <= CACHED {
                true => wide::contains(self, now, answers),
                false => None,
            };
            let found =
                found.unwrap_or_else(|| probe_together(self, &mut probes, now, answers, likely));
            likely = mostly(found, count);
            (hashes, out, together) = (later, rest, TOGETHER);
        }
        for (&hash, out) in hashes.iter().zip(out) {
            *out = self.contains_one(hash);
        }
    }

    /// Accepts hashes whose bits are all set; returns how many. `CUT` is whether the filter is
    /// truncated.
    #[inline(always)]
    fn probe<const CUT: bool>(
        &self,
        probes: &mut Probes,
        hashes: &[Hash128],
        out: &mut [bool],
        mut likely: bool,
    ) -> usize {
        let k = self.shape.hashes;
        probes.start(hashes);
        out.fill(false);
        let mut j = 0;
        while j < k {
            let before = probes.len;
            j += match (likely, k - j) {
                (true, 8..) => probes.round::<8, CUT>(self, j),
                (true, 4..) => probes.round::<4, CUT>(self, j),
                (true, 2..) => probes.round::<2, CUT>(self, j),
                _ => probes.round::<1, CUT>(self, j),
            };
            likely = mostly(probes.len, before);
        }
        probes.keys[..probes.len].iter().for_each(|&key| out[usize::from(key)] = true);
        probes.len
    }

    /// Like [`Bloom::probe`], for keys that are likely in the set and a filter in a cache: all bits
    /// of each key, a few keys at a time, with positions in registers.
    #[inline(always)]
    fn probe_all<const CUT: bool>(&self, hashes: &[Hash128], out: &mut [bool]) -> usize {
        const LANES: usize = 4;
        let (shape, words) = (self.shape, self.bits.words());
        let (groups, rest) = hashes.as_chunks::<LANES>();
        let (answers, others) = out.as_chunks_mut::<LANES>();
        let mut found = 0;
        for (group, out) in groups.iter().zip(answers) {
            let (mut sources, steps) = (group.map(|hash| hash.hi), group.map(|hash| hash.lo));
            let mut all = [1; LANES];
            for j in 0..shape.hashes {
                let segment = shape.segment(j);
                let positions = match u32::try_from(segment.length) {
                    Ok(length) => sources.map(|source| segment.near(source, length)),
                    Err(_) => sources.map(|source| segment.position(source)),
                };
                for i in 0..LANES {
                    sources[i] = sources[i].wrapping_add(steps[i]);
                    all[i] &= bit::<CUT>(words, shape.kept, positions[i]);
                }
            }
            *out = all.map(|all| all == 1);
            found += all.iter().sum::<u64>() as usize;
        }
        for (&hash, out) in rest.iter().zip(others) {
            *out =
                shape.positions(hash).all(|position| bit::<CUT>(words, shape.kept, position) == 1);
            found += usize::from(*out);
        }
        found
    }
}

impl Bloom {
    /// Sets the bits of hashes, one after the other; returns how many set a new bit.
    pub(super) fn set_spread(&self, hashes: &[Hash128]) -> u64 {
        let (shape, words) = (self.shape, self.bits.words());
        let set = |position: u64| match words.get((position / 64) as usize) {
            Some(word) if position < shape.kept => set_bit(word, position),
            _ => 0,
        };
        if hashes.len() < FIRST || shape.hashes as usize > MAX_AT_ONCE {
            let new =
                |&hash| shape.positions(hash).fold(0, |new, position| new | set(position)) & 1;
            return hashes.iter().map(new).sum();
        }
        let mut probes = Probes::new();
        let mut sum = 0;
        for hashes in hashes.chunks(TOGETHER) {
            probes.start(hashes);
            let rows = probes.advance_some(&shape, 0);
            if self.bits.len() > CACHED {
                rows.iter().for_each(|row| fetch(words, &row[..hashes.len()]));
            }
            for at in 0..hashes.len() {
                sum += rows.iter().fold(0, |new, row| new | set(row[at])) & 1;
            }
        }
        sum
    }

    /// Sets the bits at these positions.
    pub(super) fn set_positions(&self, positions: &[u64]) {
        let words = self.bits.words();
        for (i, &position) in positions.iter().enumerate() {
            if let Some(later) = positions.get(i + AHEAD) {
                fetch(words, &[*later]);
            }
            if let Some(word) = words.get((position / 64) as usize) {
                set_bit(word, position);
            }
        }
    }
}

/// Sets a bit of a word; returns 1 if it was new.
#[inline(always)]
fn set_bit(word: &AtomicU64, position: u64) -> u64 {
    let old = word.load(Relaxed);
    word.store(old | 1 << (position % 64), Relaxed);
    !old >> (position % 64)
}

#[inline(always)]
fn fetch(words: &[AtomicU64], positions: &[u64]) {
    for position in positions {
        prefetch(words.as_ptr().wrapping_add((position / 64) as usize));
    }
}

/// The bit at a position of a filter of `kept` bits; 1 for a bit that was cut off.
#[inline(always)]
fn bit<const CUT: bool>(words: &[AtomicU64], kept: u64, position: u64) -> u64 {
    let word = words.get((position / 64) as usize);
    let word = word.map_or(u64::MAX, |word| word.load(Relaxed));
    (word >> (position % 64)) & 1 | u64::from(CUT && position >= kept)
}

/// Whether nearly all keys passed; of absent keys, half do.
fn mostly(passed: usize, keys: usize) -> bool {
    passed > keys / 4 * 3
}

/// The next probes of up to [`TOGETHER`] keys.
pub struct Probes {
    /// The keys that passed all rounds, by their index in the batch.
    keys: [u8; TOGETHER],
    len: usize,
    /// `hi + j·lo` for the next probe j, see [`Segment::position`].
    sources: [u64; TOGETHER],
    /// `lo`.
    steps: [u64; TOGETHER],
    /// The positions of each probe of the round.
    positions: [[u64; TOGETHER]; MAX_AT_ONCE],
}

impl Probes {
    /// State without keys.
    pub fn new() -> Probes {
        let [sources, steps] = [[0; TOGETHER]; 2];
        let positions = [[0; TOGETHER]; MAX_AT_ONCE];
        Probes { keys: [0; TOGETHER], len: 0, sources, steps, positions }
    }

    /// Starts with the first probe of other keys, at most [`TOGETHER`].
    #[inline(always)]
    fn start(&mut self, hashes: &[Hash128]) {
        self.len = hashes.len().min(TOGETHER);
        for (i, hash) in hashes.iter().take(TOGETHER).enumerate() {
            (self.sources[i], self.steps[i], self.keys[i]) = (hash.hi, hash.lo, i as u8);
        }
    }

    /// Keeps the keys for which probes `j..j + N` find their bits set; returns N.
    #[inline(always)]
    fn round<const N: usize, const CUT: bool>(&mut self, bloom: &Bloom, j: u32) -> u32 {
        // Copied, so that the compiler need not reload them after every bit.
        let (shape, words) = (bloom.shape, bloom.bits.words());
        for i in 0..N {
            self.advance(i, shape.segment(j + i as u32));
        }
        if bloom.bits.len() > CACHED {
            self.positions[..N].iter().for_each(|row| fetch(words, &row[..self.len]));
        }
        let bit = |position: u64| bit::<CUT>(words, shape.kept, position);
        let mut passed = 0;
        for at in 0..self.len.min(TOGETHER) {
            let positions: [u64; N] = std::array::from_fn(|i| self.positions[i][at]);
            // Always written, and kept only if it passed: a branch would be mispredicted half the
            // time.
            self.keys[passed] = self.keys[at];
            self.sources[passed] = self.sources[at];
            self.steps[passed] = self.steps[at];
            passed += match positions[..] {
                [position] => bit(position) as usize,
                // Here most keys pass, so branches are predicted well.
                _ => usize::from(positions.into_iter().all(|position| bit(position) == 1)),
            };
        }
        self.len = passed;
        N as u32
    }

    /// Calls `take` with every position of every hash.
    pub fn positions_of(&mut self, shape: &Shape, hashes: &[Hash128], mut take: impl FnMut(u64)) {
        for hashes in hashes.chunks(TOGETHER) {
            self.start(hashes);
            let mut j = 0;
            while j < shape.hashes {
                let rows = self.advance_some(shape, j);
                rows.iter().for_each(|row| row[..hashes.len()].iter().for_each(|&p| take(p)));
                j += rows.len() as u32;
            }
        }
    }

    /// The positions of the next probes from `j` on, as many as are computed at once.
    fn advance_some(&mut self, shape: &Shape, j: u32) -> &[[u64; TOGETHER]] {
        let rows = MAX_AT_ONCE.min((shape.hashes - j) as usize);
        advance_together(self, shape, j, rows);
        &self.positions[..rows]
    }

    /// Computes the next probe of each key, in a segment.
    #[inline(always)]
    fn advance(&mut self, row: usize, segment: Segment) {
        // Continues past the last key to fill a vector.
        let len = self.len.next_multiple_of(8).min(TOGETHER);
        let sources = self.sources[..len].iter_mut().zip(&self.steps);
        let probes = sources.zip(&mut self.positions[row]);
        if let Ok(length) = u32::try_from(segment.length) {
            for ((source, step), position) in probes {
                *position = segment.near(*source, length);
                *source = source.wrapping_add(*step);
            }
        } else {
            for ((source, step), position) in probes {
                *position = segment.position(*source);
                *source = source.wrapping_add(*step);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bloom::Layout;
    use crate::hash::Hasher;

    /// A batch of any length and mixture gives the same answers as single keys, and insertions set
    /// the bits at the positions of each key, for whole and truncated filters.
    #[test]
    fn batches_answer_like_single_keys() {
        let hasher = Hasher::seeded(3);
        let hashes: Vec<Hash128> = (0..1000).map(|key| hasher.signed(key)).collect();
        let (members, absent) = hashes.split_at(500);
        for layout in [Layout::Standard, Layout::Segmented] {
            for k in [1, 2, 3, 7, 8, 9, 19, 64] {
                let bits = 700 * u64::from(k);
                let whole = Bloom::new(Shape::new(layout, bits, k, bits).unwrap()).unwrap();
                whole.insert(members).unwrap();
                let mut set = vec![0; bits as usize];
                for position in members.iter().flat_map(|&hash| whole.shape.positions(hash)) {
                    set[position as usize] = 1;
                }
                assert_eq!(whole.ones(), set.iter().sum::<u64>());
                let cut = whole.truncated(bits / 2);
                let mixed: Vec<Hash128> = (0..500).map(|i| hashes[i * 7919 % 1000]).collect();
                for filter in [whole, cut.unwrap()] {
                    for batch in [members, absent, &mixed, &hashes, &hashes[400..533], &[]] {
                        let mut out = vec![true; batch.len()];
                        filter.contains(batch, &mut out);
                        let single = |hash: &Hash128| {
                            filter.shape.positions(*hash).all(|p| filter.kept_bit(p))
                        };
                        assert!(out.iter().copied().eq(batch.iter().map(single)));
                        // The path for likely members, for any processor and for this one.
                        let found = filter.probe_all::<true>(batch, &mut out);
                        assert!(out.iter().copied().eq(batch.iter().map(single)));
                        assert_eq!(found, batch.iter().filter(|hash| single(hash)).count());
                        out.fill(true);
                        if let Some(again) = wide::contains(&filter, batch, &mut out) {
                            assert!(out.iter().copied().eq(batch.iter().map(single)));
                            assert_eq!(again, found);
                        }
                    }
                    let mut out = [false; 500];
                    filter.contains(members, &mut out);
                    assert!(out.iter().all(|&yes| yes));
                }
            }
        }
    }

    /// Positions in segments of more than 2³² bits take another path.
    #[test]
    fn long_segments() {
        let hasher = Hasher::seeded(3);
        let hashes: Vec<Hash128> = (0..300).map(|key| hasher.signed(key)).collect();
        for bits in [1 << 20, u64::from(u32::MAX), 1 << 32, 1 << 50] {
            let shape = Shape::new(Layout::Standard, bits, 11, bits).unwrap();
            let mut found = Vec::new();
            Probes::new().positions_of(&shape, &hashes, |position| found.push(position));
            let mut expected: Vec<u64> =
                hashes.iter().flat_map(|&hash| shape.positions(hash)).collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected);
        }
    }
}
