//! Distinct hashes, in the order of their high bits.
//!
//! `build` removes duplicate keys, and needs hashes that are close in the table one after the
//! other. Both are achieved by splitting the hashes by their top bits into partitions that fit a
//! core's cache, then searching each for repetitions.

mod repeats;

use crate::bits::{Zero, zeros};
use crate::error::{Error, Result};
use crate::hash::Hash128;
use crate::interrupt;
use crate::memory::{self, TryGrow};
use crate::threads;
use repeats::{Repeats, deduplicate, find, places};
use std::ops::Range;

/// Target number of hashes per partition: up to 16,384 of 16 bytes, with their lookup table, fit
/// 512 KiB.
const PER_PARTITION: usize = 1 << 14;
/// More partitions than this would thrash the TLB while they are filled.
const MAX_PARTITIONS: usize = 1 << 12;

/// The items that are partitioned: hashes, or a part of them.
pub trait Item: Zero {
    /// The half that chooses a partition.
    fn high(&self) -> u64;
}

impl Item for Hash128 {
    #[inline(always)]
    fn high(&self) -> u64 {
        self.hi
    }
}

/// The high half alone.
impl Item for u64 {
    #[inline(always)]
    fn high(&self) -> u64 {
        *self
    }
}

/// One partition in this many is sampled to see whether hashes seem to be repeated.
const SAMPLED: usize = 32;

/// Collects hashes by partition; one per thread, joined by [`Distinct::new`].
pub struct Partitions<T: Item = Hash128> {
    /// The hashes of all partitions, one partition after the other, each with the same capacity.
    hashes: Vec<T>,
    partition_capacity: usize,
    lengths: Vec<usize>,
    /// Hashes that do not fit their partition: only if keys are repeated often, or hashes are not
    /// uniform.
    overflow: Vec<Vec<T>>,
    /// Whether memory for some of these was missing.
    lost: bool,
    shift: u32,
}

impl<T: Item> Partitions<T> {
    /// With capacity for about `expected` hashes in total, of which `share` will be added here; or
    /// [`Error::Memory`] if that cannot be allocated.
    pub fn new(expected: usize, share: usize) -> Result<Partitions<T>> {
        let count = (expected / PER_PARTITION).next_power_of_two().min(MAX_PARTITIONS);
        // Partition sizes vary like a binomial: five standard deviations are hardly ever exceeded.
        let mean = share.div_ceil(count);
        let partition_capacity =
            if count == 1 { share } else { mean + 5 * (mean as f64).sqrt() as usize };
        let hashes =
            zeros(count.saturating_mul(partition_capacity)).map_err(|_| no_memory(share))?;
        Ok(Partitions {
            hashes,
            partition_capacity,
            lengths: memory::filled(count, 0)?,
            overflow: memory::filled(count, Vec::new())?,
            lost: false,
            shift: 64 - count.ilog2(),
        })
    }

    /// Adds hashes.
    pub fn extend(&mut self, hashes: &[T]) {
        self.extend_from(hashes.iter().copied());
    }

    /// Adds hashes one by one.
    pub fn extend_from(&mut self, hashes: impl Iterator<Item = T>) {
        for hash in hashes {
            let at = partition_of(hash.high(), self.shift);
            let length = self.lengths[at];
            if length < self.partition_capacity {
                self.hashes[at * self.partition_capacity + length] = hash;
                self.lengths[at] = length + 1;
            } else if self.overflow[at].try_reserve(1).is_ok() {
                self.overflow[at].push(hash);
            } else {
                self.lost = true;
            }
        }
    }

    /// The number of hashes, repetitions included.
    fn len(&self) -> usize {
        let overflow: usize = self.overflow.iter().map(Vec::len).sum();
        self.lengths.iter().sum::<usize>() + overflow
    }

    /// All hashes of a partition, in two parts.
    fn partition(&self, at: usize) -> [&[T]; 2] {
        [&self.hashes[at * self.partition_capacity..][..self.lengths[at]], &self.overflow[at]]
    }
}

/// High halves of hashes, as collected by threads (each with the same `expected`), still with
/// repetitions.
pub struct Highs(Vec<Partitions<u64>>);

impl Highs {
    /// From the collections of at least one thread; `None` if one lost hashes.
    pub fn new(collected: Vec<Partitions<u64>>) -> Option<Highs> {
        let complete = !collected.is_empty() && !collected.iter().any(|from| from.lost);
        complete.then_some(Highs(collected))
    }

    /// Their number, repetitions included.
    pub fn len(&self) -> usize {
        self.0.iter().map(Partitions::len).sum()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether sampled partitions have repetitions; if only few hashes are repeated, the sample may
    /// have none.
    pub fn seem_repeated(&self) -> Result<bool> {
        let mut sorted = Vec::new();
        for at in (0..self.0[0].lengths.len()).step_by(SAMPLED) {
            sorted.clear();
            for part in self.0.iter().flat_map(|from| from.partition(at)) {
                sorted.try_extend(part)?;
            }
            sorted.sort_unstable();
            if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The partitions with high halves in `first..=last`, and some next to them.
    pub fn overlapping(&self, first: u64, last: u64) -> impl Iterator<Item = &[u64]> {
        let of = |high| partition_of(high, self.0[0].shift);
        (of(first)..=of(last)).flat_map(|at| {
            interrupt::check();
            self.0.iter().flat_map(move |from| from.partition(at))
        })
    }
}

fn partition_of(hi: u64, shift: u32) -> usize {
    hi.checked_shr(shift).unwrap_or(0) as usize
}

fn no_memory(count: usize) -> Error {
    Error::Memory(format!("cannot allocate the hashes of {count} keys"))
}

/// A set of distinct hashes, partitioned by their high bits.
pub struct Distinct {
    hashes: Vec<Hash128>,
    /// The range of each partition in `hashes`.
    partitions: Vec<Range<usize>>,
    shift: u32,
    len: usize,
}

impl Distinct {
    /// Joins the collections of threads (each with the same `expected`) and removes repetitions, on
    /// up to `threads` threads.
    pub fn new(mut collected: Vec<Partitions>, threads: usize) -> Result<Distinct> {
        if collected.is_empty() {
            collected.push(Partitions::new(0, 0)?);
        }
        if collected.iter().any(|from| from.lost) {
            return Err(no_memory(collected.iter().map(Partitions::len).sum()));
        }
        let first = &collected[0];
        let (shift, partition_capacity, count) =
            (first.shift, first.partition_capacity, first.lengths.len());
        let in_place = collected.len() == 1 && first.overflow.iter().all(Vec::is_empty);
        let length = |at: usize| -> usize {
            collected.iter().flat_map(|from| from.partition(at)).map(<[Hash128]>::len).sum()
        };
        let mut end = 0;
        let place = |at: usize| {
            let start = if in_place { at * partition_capacity } else { end };
            end = start + length(at);
            start..end
        };
        let mut partitions: Vec<Range<usize>> = memory::collected((0..count).map(place))?;
        let (mut hashes, sources) = if in_place {
            (std::mem::take(&mut collected[0].hashes), &[][..])
        } else {
            (zeros(end).map_err(|_| no_memory(end))?, &collected[..])
        };
        let share = count.div_ceil(threads.max(1));
        let (mut rest, mut offset) = (&mut hashes[..], 0);
        let parts = partitions.chunks_mut(share).enumerate().map(|(i, partitions)| {
            let end = partitions.last().map_or(offset, |last| last.end);
            let (own, others) = std::mem::take(&mut rest).split_at_mut(end - offset);
            let before = std::mem::replace(&mut offset, end);
            rest = others;
            (i * share, partitions, own, before)
        });
        threads::map(parts, |(first, partitions, own, before)| {
            join(sources, first, partitions, own, before);
        });
        let len = partitions.iter().map(Range::len).sum();
        Ok(Distinct { hashes, partitions, shift, len })
    }

    /// The number of distinct hashes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The partitions: every hash of one is below every hash of the next.
    pub fn partitions(&self) -> impl Iterator<Item = &[Hash128]> {
        self.partitions.iter().map(|range| {
            interrupt::check();
            &self.hashes[range.clone()]
        })
    }

    /// The hashes in ascending order.
    pub fn sorted(&self) -> Result<impl Iterator<Item = Hash128>> {
        let max = self.partitions.iter().map(Range::len).max().unwrap_or(0);
        let (mut sorted, mut at) = (memory::with_capacity(max)?, 0);
        let mut partitions = self.partitions();
        Ok(std::iter::from_fn(move || {
            while at == sorted.len() {
                sorted.clear();
                sorted.extend_from_slice(partitions.next()?);
                sorted.sort_unstable();
                at = 0;
            }
            at += 1;
            Some(sorted[at - 1])
        }))
    }

    /// The partitions with hashes whose `hi` is in `first..=last`, and some next to them.
    pub fn overlapping(&self, first: u64, last: u64) -> impl Iterator<Item = &[Hash128]> {
        let (first, last) = (partition_of(first, self.shift), partition_of(last, self.shift));
        self.partitions[first..=last].iter().map(|range| {
            interrupt::check();
            &self.hashes[range.clone()]
        })
    }

    /// The hashes of each partition that `keep` keeps, on up to `threads` threads.
    pub fn filtered(
        &self,
        threads: usize,
        keep: impl Fn(&[Hash128]) -> Result<Vec<Hash128>> + Sync,
    ) -> Result<Distinct> {
        let share = self.partitions.len().div_ceil(threads.max(1));
        let work = |ranges: &[Range<usize>]| {
            let (mut hashes, mut ends) = (Vec::new(), Vec::new());
            for range in ranges {
                interrupt::check();
                hashes.try_extend(&keep(&self.hashes[range.clone()])?)?;
                ends.try_push(hashes.len())?;
            }
            Result::Ok((hashes, ends))
        };
        let (mut hashes, mut partitions) = (Vec::new(), Vec::new());
        for (part, ends) in threads::try_map(self.partitions.chunks(share), work)? {
            let mut start = hashes.len();
            let before = start;
            for end in ends {
                partitions.try_push(start..before + end)?;
                start = before + end;
            }
            if before == 0 { hashes = part } else { hashes.try_extend(&part)? }
        }
        let len = hashes.len();
        Ok(Distinct { hashes, partitions, shift: self.shift, len })
    }

    /// A new set with `map` applied to each hash.
    pub fn mapped(&self, threads: usize, map: impl Fn(Hash128) -> Hash128) -> Result<Distinct> {
        let mut partitions = Partitions::new(self.len, self.len)?;
        for part in self.partitions() {
            partitions.extend_from(part.iter().map(|&hash| map(hash)));
        }
        Distinct::new(vec![partitions], threads)
    }

    /// The hashes that are not among `others`.
    pub fn without(&self, others: &Distinct, threads: usize) -> Result<Distinct> {
        self.filtered(threads, |partition| {
            let (first, last) = (partition.iter().min(), partition.iter().max());
            let (Some(first), Some(last)) = (first, last) else { return Ok(Vec::new()) };
            let mut left = memory::copied(partition)?;
            let mut table = Vec::new();
            table.reserve_more(places(left.len()))?;
            let in_table = deduplicate(&mut left, &mut table).is_ok();
            if !in_table {
                left.sort_unstable();
            }
            let mut stays = memory::filled(left.len(), true)?;
            for other in others.overlapping(first.hi, last.hi).flatten() {
                let position = match in_table {
                    true => find(&left, &table, *other),
                    false => left.binary_search(other).ok(),
                };
                if let Some(position) = position {
                    stays[position] = false;
                }
            }
            let stay = left.iter().zip(stays).filter(|(_, stays)| *stays);
            memory::collected(stay.map(|(&hash, _)| hash))
        })
    }
}

/// Copies the partitions from number `first` on into `hashes`, which begin at `offset` of all,
/// unless they are already there; then removes repetitions from each.
fn join(
    sources: &[Partitions],
    first: usize,
    partitions: &mut [Range<usize>],
    hashes: &mut [Hash128],
    offset: usize,
) {
    let mut repeats = Repeats::default();
    for (range, at) in partitions.iter_mut().zip(first..) {
        interrupt::check();
        let own = &mut hashes[range.start - offset..range.end - offset];
        let mut end = 0;
        for part in sources.iter().flat_map(|from| from.partition(at)) {
            own[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        }
        range.end = range.start + repeats.remove(own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Hasher;

    /// Even if one partition gets far more than its share, or all hashes are equal.
    #[test]
    fn keeps_each_hash_once_in_partition_order() {
        let hasher = Hasher::seeded(0);
        let cases =
            [(0, 1, 1), (1, 1, 2), (5000, 700, 1), (100_000, 60_000, 1), (100_000, 60_000, 2)];
        for (n, distinct, threads) in cases.into_iter().chain([(200_000, 3, 1), (200_000, 1, 2)]) {
            let hashes: Vec<Hash128> = (0..n).map(|i| hasher.signed(i % distinct)).collect();
            let (front, back) = hashes.split_at(hashes.len() / 3 * (threads - 1));
            let collected = [front, back].into_iter().skip(2 - threads).map(|part| {
                let mut partitions = Partitions::new(hashes.len(), part.len()).unwrap();
                partitions.extend(part);
                partitions
            });
            let set = Distinct::new(collected.collect(), threads).unwrap();
            let mut expected = hashes.clone();
            expected.sort();
            expected.dedup();
            let sorted = set.partitions().flat_map(|partition| {
                let mut partition = partition.to_vec();
                partition.sort();
                partition
            });
            assert_eq!(sorted.collect::<Vec<_>>(), expected);
            assert_eq!(set.len(), expected.len());
            let all: usize = set.overlapping(0, u64::MAX).map(<[Hash128]>::len).sum();
            assert_eq!(all, set.len());
        }
    }

    #[test]
    fn without_removes_hashes_of_the_other_set() {
        let hasher = Hasher::seeded(1);
        let set = |range: std::ops::Range<i64>| {
            let mut partitions = Partitions::new(range.clone().count(), 0).unwrap();
            let hashes: Vec<Hash128> = range.map(|i| hasher.signed(i)).collect();
            partitions.extend(&hashes);
            Distinct::new(vec![partitions], 1).unwrap()
        };
        for (own, others, left) in [(0..100, 50..90_000, 50), (0..90_000, 40..50, 89_990)] {
            for threads in [1, 3] {
                let rest = set(own.clone()).without(&set(others.clone()), threads).unwrap();
                let mut expected = set(own.clone());
                let kept = expected.filtered(1, |part| {
                    let gone: Vec<Hash128> = others.clone().map(|i| hasher.signed(i)).collect();
                    let gone: std::collections::BTreeSet<Hash128> = gone.into_iter().collect();
                    Ok(part.iter().filter(|hash| !gone.contains(hash)).copied().collect())
                });
                expected = kept.unwrap();
                assert_eq!(rest.len(), left);
                assert!(rest.partitions().eq(expected.partitions()));
            }
        }
        assert!(set(0..0).without(&set(0..5), 2).unwrap().is_empty());
        // All at one place of a table.
        let crowd = |range: std::ops::Range<u64>| {
            let mut partitions = Partitions::new(5000, 5000).unwrap();
            partitions.extend_from(range.map(|hi| Hash128 { hi, lo: 9 }));
            Distinct::new(vec![partitions], 1).unwrap()
        };
        assert_eq!(crowd(0..5000).without(&crowd(100..300), 1).unwrap().len(), 4800);
    }
}
