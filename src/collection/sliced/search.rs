//! Lookups by rows: the sets that may hold all of some keys.
//!
//! Rows are ANDed for a chunk of sets at a time. About every other word has a bit left, so the
//! positions of set bits are written without a branch for each ([`positions`]). They become ranks,
//! which a bitmap sorts.

use super::{CHUNK, Class, Sliced};
use crate::bits::{prefetch, reduce};
use crate::error::Result;
use crate::hash::{Hash128, mix13};
use crate::memory;
use std::collections::BinaryHeap;

/// Chunks ahead whose rows are prefetched.
const AHEAD: usize = 1;
/// Segments after which the search tests whether any set is left.
const MAX_LEFT: usize = 8;

/// A set that may hold all keys of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Its number.
    pub id: u32,
    /// Its segments that are in memory, unless it has fewer.
    pub segments: u32,
}

/// Whether to include a set in the result.
pub type Accept<'a> = dyn FnMut(Match) -> Result<bool> + 'a;

/// The lowest ranks that were found.
enum Best {
    /// This many at most.
    Limited(BinaryHeap<u32>, usize),
    /// All, as bits, which need no sorting; and how many.
    All(Vec<u64>, usize),
}

impl Best {
    fn new(limit: usize, sets: usize) -> Result<Best> {
        Ok(match limit {
            _ if limit < sets => Best::Limited(BinaryHeap::new(), limit),
            _ => Best::All(memory::filled(sets.div_ceil(64), 0)?, 0),
        })
    }

    /// Whether there are enough, and all are better than a rank.
    #[inline(always)]
    fn is_above(&self, rank: u32) -> bool {
        match self {
            Best::Limited(ranks, limit) => {
                ranks.len() >= *limit && ranks.peek().is_none_or(|&worst| worst < rank)
            }
            Best::All(..) => false,
        }
    }

    #[inline(always)]
    fn push(&mut self, rank: u32) -> Result<()> {
        match self {
            Best::Limited(ranks, limit) => {
                ranks.try_reserve(1).map_err(|_| memory::refused(4 * ranks.len()))?;
                ranks.push(rank);
                if ranks.len() > *limit {
                    ranks.pop();
                }
            }
            Best::All(bits, count) => {
                bits[rank as usize / 64] |= 1 << (rank % 64);
                *count += 1;
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn into_ranks(self) -> Result<Vec<u32>> {
        Ok(match self {
            Best::Limited(ranks, _) => ranks.into_sorted_vec(),
            Best::All(bits, count) => {
                let mut ranks = memory::filled(count + SPARE, 0)?;
                let count = positions(&bits, 0, &mut ranks);
                ranks.truncate(count);
                ranks
            }
        })
    }
}

/// Elements past the last position that [`positions`] may write.
const SPARE: usize = 2;

/// Writes the positions of the set bits, counted from `first`; returns how many there are.
///
/// Two positions are written for each word, whatever its bits, and the next word overwrites the
/// superfluous ones: a branch per bit would be guessed wrong for every other word.
#[inline(always)]
fn positions(words: &[u64], first: u32, out: &mut [u32]) -> usize {
    let (mut count, mut base) = (0, first);
    for &word in words {
        let second = word & word.wrapping_sub(1);
        let mut more = second & second.wrapping_sub(1);
        out[count] = base.wrapping_add(word.trailing_zeros());
        out[count + 1] = base.wrapping_add(second.trailing_zeros());
        let mut at = count + 2;
        while more != 0 {
            out[at] = base.wrapping_add(more.trailing_zeros());
            more &= more - 1;
            at += 1;
        }
        count += word.count_ones() as usize;
        base = base.wrapping_add(64);
    }
    count
}

impl Sliced {
    /// The best `limit` sets that may hold all keys, best first. `accept` may refuse a set, which
    /// then does not count.
    pub fn search(
        &self,
        keys: &[Hash128],
        limit: usize,
        accept: Option<&mut Accept<'_>>,
    ) -> Result<Vec<u32>> {
        #[cfg(target_arch = "x86_64")]
        if crate::processor::has_avx2() {
            // SAFETY: the processor has these instructions.
            return unsafe { self.search_avx2(keys, limit, accept) };
        }
        self.search_with(keys, limit, accept)
    }

    /// The same, compiled for wide vectors. A closure that is run by a function like this would be
    /// compiled without them.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,popcnt,bmi1")]
    fn search_avx2(
        &self,
        keys: &[Hash128],
        limit: usize,
        accept: Option<&mut Accept<'_>>,
    ) -> Result<Vec<u32>> {
        self.search_with(keys, limit, accept)
    }

    #[inline(always)]
    fn search_with(
        &self,
        keys: &[Hash128],
        limit: usize,
        mut accept: Option<&mut Accept<'_>>,
    ) -> Result<Vec<u32>> {
        let probes = self.probes(keys)?;
        let mut places = memory::filled(self.classes.len(), Vec::new())?;
        let mut best = Best::new(limit, self.sets)?;
        let mut at = [0; 64 * CHUNK + SPARE];
        for (i, &(rank, class, word)) in self.chunks.iter().enumerate() {
            if best.is_above(rank) {
                break;
            }
            let ahead = if i == 0 { 0 } else { AHEAD };
            for &(_, class, word) in self.chunks.iter().take(i + AHEAD + 1).skip(i + ahead) {
                let (places, class) = (&mut places[class as usize], &self.classes[class as usize]);
                if places.is_empty() {
                    *places = class.places(&probes, keys.len())?;
                }
                self.prefetch_rows(class, places, keys.len(), word as usize);
            }
            let (places, class) = (&places[class as usize], &self.classes[class as usize]);
            let mut left = [0; CHUNK];
            let words = self.matches(class, places, keys.len(), word as usize, &mut left);
            let count = positions(&left[..words], 64 * word, &mut at);
            for &at in &at[..count] {
                let rank = self.ranks.get(class.first + at as usize);
                if let Some(accept) = &mut accept {
                    let id = self.order.get(rank as usize);
                    let segments = class.segments_of(at as usize);
                    if best.is_above(rank) || !accept(Match { id, segments })? {
                        continue;
                    }
                }
                best.push(rank)?;
            }
        }
        let mut ids = best.into_ranks()?;
        ids.iter_mut().for_each(|rank| *rank = self.order.get(*rank as usize));
        Ok(ids)
    }

    /// The probes of keys: by segment, then by key.
    fn probes(&self, keys: &[Hash128]) -> Result<Vec<u64>> {
        let probe = |key: &Hash128, j: u64| mix13(key.hi.wrapping_add(key.lo.wrapping_mul(j)));
        memory::collected((0..self.hashes).flat_map(|j| keys.iter().map(move |key| probe(key, j))))
    }

    /// Prefetches the rows of the first segments, which most chunks read.
    #[inline(always)]
    fn prefetch_rows(&self, class: &Class, places: &[usize], keys: usize, first: usize) {
        for (segment, rows) in class.segments.iter().zip(places.chunks(keys.max(1))) {
            let end = segment.stride().min(8 * (first + CHUNK));
            for &row in rows {
                for at in (8 * first..end).step_by(crate::bits::LINE) {
                    prefetch(self.rows.as_ptr().wrapping_add(row + at));
                }
            }
        }
    }

    /// The sets of a chunk that may hold all keys, as bits; returns how many words there are.
    #[inline(always)]
    fn matches(
        &self,
        class: &Class,
        places: &[usize],
        keys: usize,
        first: usize,
        left: &mut [u64; CHUNK],
    ) -> usize {
        let words = (class.sets.div_ceil(64) - first).min(CHUNK);
        left[..words].fill(u64::MAX);
        if 64 * (first + words) > class.sets {
            left[words - 1] >>= 64 * (first + words) - class.sets;
        }
        for (j, (segment, rows)) in
            class.segments.iter().zip(places.chunks(keys.max(1))).enumerate()
        {
            let Some(whole @ 1..) = segment.sets().checked_sub(64 * first) else { break };
            for &row in rows {
                let row = &self.rows[row + 8 * first..];
                let (row, _) = row.as_chunks::<8>();
                let full = (whole / 64).min(words);
                if let Some(row) = row.first_chunk::<CHUNK>().filter(|_| full == CHUNK) {
                    // Of a known length, so that it is unrolled.
                    for (word, bytes) in left.iter_mut().zip(row) {
                        *word &= u64::from_le_bytes(*bytes);
                    }
                    continue;
                }
                for (word, bytes) in left[..full].iter_mut().zip(row) {
                    *word &= u64::from_le_bytes(*bytes);
                }
                if full < words && whole % 64 > 0 {
                    left[full] &= u64::from_le_bytes(row[full]) | u64::MAX << (whole % 64);
                }
            }
            if j >= MAX_LEFT && left[..words].iter().all(|&word| word == 0) {
                break;
            }
        }
        words
    }
}

impl Class {
    /// Where the rows are that keys probe: by segment, then by key.
    fn places(&self, probes: &[u64], keys: usize) -> Result<Vec<usize>> {
        let segments = self.segments.iter().zip(probes.chunks(keys.max(1)));
        let places = segments.flat_map(|(segment, probes)| {
            probes.iter().map(|&probe| {
                segment.start + reduce(probe, self.length) as usize * segment.stride()
            })
        });
        memory::collected(places)
    }
}
