//! Distinct hashes, in the order of their high bits.
//!
//! `build` removes duplicate keys, and wants hashes near each other in the table to come one
//! after the other. Both are had by splitting the hashes by their top bits into partitions that
//! fit a core's cache, then looking for repetitions within each.

use crate::error::{Error, Result};
use crate::hash::Hash128;

/// Hashes per partition aimed at: up to 16,384 of 16 bytes, with their lookup table, fit 512 KiB.
const PER_PARTITION: usize = 1 << 14;
/// More partitions than this would thrash the TLB while they are filled.
const MOST_PARTITIONS: usize = 1 << 12;

/// Collects hashes by partition; one per thread, joined by [`Distinct::new`].
pub struct Partitions {
    buckets: Vec<Vec<Hash128>>,
    shift: u32,
}

impl Partitions {
    /// Room for about `expected` hashes in all, of which `share` will come to this one; or
    /// [`Error::Memory`] where the machine has not that much.
    pub fn new(expected: usize, share: usize) -> Result<Partitions> {
        let count = (expected / PER_PARTITION).next_power_of_two().min(MOST_PARTITIONS);
        // Partition sizes vary like a binomial: a few standard deviations of room save most moves.
        let mean = share / count;
        let room = mean + 4 * (mean as f64).sqrt() as usize;
        let bucket = |_| {
            let mut bucket = Vec::new();
            let refused = |_| Error::Memory(format!("cannot allocate the hashes of {share} keys"));
            bucket.try_reserve_exact(room).map_err(refused)?;
            Ok(bucket)
        };
        let buckets = (0..count).map(bucket).collect::<Result<_>>()?;
        Ok(Partitions { buckets, shift: 64 - count.ilog2() })
    }

    /// Takes hashes in.
    pub fn extend(&mut self, hashes: &[Hash128]) {
        if let [only] = &mut self.buckets[..] {
            return only.extend_from_slice(hashes);
        }
        for &hash in hashes {
            self.buckets[(hash.hi >> self.shift) as usize].push(hash);
        }
    }
}

/// A set of distinct hashes, partitioned by their high bits.
pub struct Distinct {
    partitions: Vec<Vec<Hash128>>,
    shift: u32,
    len: usize,
}

impl Distinct {
    /// Joins what threads collected (each with the same `expected`) and drops repetitions, using
    /// up to `threads` threads.
    pub fn new(mut collected: Vec<Partitions>, threads: usize) -> Distinct {
        if collected.is_empty() {
            return Distinct { partitions: vec![Vec::new()], shift: 64, len: 0 };
        }
        let Partitions { buckets: mut partitions, shift } = collected.remove(0);
        let share = partitions.len().div_ceil(threads.max(1));
        std::thread::scope(|scope| {
            let collected = &collected;
            let work = |(i, own): (usize, &mut [Vec<Hash128>])| {
                let mut table = Vec::new();
                for (partition, at) in own.iter_mut().zip(i * share..) {
                    collected.iter().for_each(|more| partition.extend(&more.buckets[at]));
                    deduplicate(partition, &mut table);
                }
            };
            let mut shares = partitions.chunks_mut(share).enumerate();
            let own = shares.next();
            shares.for_each(|part| drop(scope.spawn(move || work(part))));
            own.map(work);
        });
        let len = partitions.iter().map(Vec::len).sum();
        Distinct { partitions, shift, len }
    }

    /// How many distinct hashes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The partitions: every hash of one is below every hash of the next.
    pub fn partitions(&self) -> &[Vec<Hash128>] {
        &self.partitions
    }

    /// The partitions with hashes whose `hi` is in `first..=last`, and some beside them.
    pub fn overlapping(&self, first: u64, last: u64) -> &[Vec<Hash128>] {
        let partition = |hi: u64| hi.checked_shr(self.shift).unwrap_or(0) as usize;
        &self.partitions[partition(first)..=partition(last)]
    }

    /// The hashes that `keep` leaves of each partition, on up to `threads` threads.
    pub fn filtered(
        &self,
        threads: usize,
        keep: impl Fn(&[Hash128]) -> Vec<Hash128> + Sync,
    ) -> Distinct {
        let share = self.partitions.len().div_ceil(threads.max(1));
        let work = |part: &[Vec<Hash128>]| part.iter().map(|p| keep(p)).collect::<Vec<_>>();
        let partitions: Vec<Vec<Hash128>> = std::thread::scope(|scope| {
            let work = &work;
            let mut shares = self.partitions.chunks(share);
            let own = shares.next();
            let others: Vec<_> = shares.map(|part| scope.spawn(move || work(part))).collect();
            let mut all = own.map(work).unwrap_or_default();
            for thread in others {
                all.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            all
        });
        let len = partitions.iter().map(Vec::len).sum();
        Distinct { partitions, shift: self.shift, len }
    }

    /// Those of the hashes that are not among `others`.
    pub fn without(&self, others: &Distinct, threads: usize) -> Distinct {
        self.filtered(threads, |partition| {
            let (first, last) = (partition.iter().min(), partition.iter().max());
            let (Some(first), Some(last)) = (first, last) else { return Vec::new() };
            let mut left = partition.to_vec();
            let mut table = Vec::new();
            deduplicate(&mut left, &mut table);
            let mut stays = vec![true; left.len()];
            for other in others.overlapping(first.hi, last.hi).iter().flatten() {
                if let Some(position) = find(&left, &table, *other) {
                    stays[position] = false;
                }
            }
            left.iter().zip(stays).filter(|(_, stays)| *stays).map(|(&hash, _)| hash).collect()
        })
    }

    /// Sorts each partition, so that the whole is in order.
    pub fn sort(&mut self) {
        self.partitions.iter_mut().for_each(|partition| partition.sort_unstable());
    }
}

/// Keeps the first of equal hashes, in order. `table` is scratch: open addressing, by the low
/// bits, of positions in the kept part plus one.
fn deduplicate(hashes: &mut Vec<Hash128>, table: &mut Vec<u32>) {
    let size = (2 * hashes.len()).next_power_of_two();
    table.clear();
    table.resize(size, 0);
    let mask = size - 1;
    let mut kept = 0;
    for read in 0..hashes.len() {
        let hash = hashes[read];
        let mut place = hash.lo as usize & mask;
        loop {
            match table[place] {
                0 => {
                    hashes[kept] = hash;
                    kept += 1;
                    table[place] = kept as u32;
                    break;
                }
                position if hashes[position as usize - 1] == hash => break,
                _ => place = (place + 1) & mask,
            }
        }
    }
    hashes.truncate(kept);
}

/// Where `deduplicate` left a hash, by the table it filled.
fn find(kept: &[Hash128], table: &[u32], hash: Hash128) -> Option<usize> {
    let mask = table.len() - 1;
    let mut place = hash.lo as usize & mask;
    loop {
        match table[place] {
            0 => return None,
            position if kept[position as usize - 1] == hash => return Some(position as usize - 1),
            _ => place = (place + 1) & mask,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Hasher;

    #[test]
    fn keeps_each_hash_once_in_partition_order() {
        let hasher = Hasher::seeded(0);
        for (n, distinct, threads) in [(0, 1, 1), (1, 1, 2), (5000, 700, 1), (100_000, 60_000, 2)] {
            let hashes: Vec<Hash128> = (0..n).map(|i| hasher.signed(i % distinct)).collect();
            let (front, back) = hashes.split_at(hashes.len() / 3);
            let collected = [front, back].map(|part| {
                let mut partitions = Partitions::new(hashes.len(), part.len()).unwrap();
                partitions.extend(part);
                partitions
            });
            let mut set = Distinct::new(collected.into(), threads);
            set.sort();
            let flat: Vec<Hash128> = set.partitions().concat();
            let mut expected = hashes.clone();
            expected.sort();
            expected.dedup();
            assert_eq!(flat, expected);
            assert_eq!(set.len(), expected.len());
        }
    }

    #[test]
    fn takes_away_what_others_hold() {
        let hasher = Hasher::seeded(1);
        let set = |range: std::ops::Range<i64>| {
            let mut partitions = Partitions::new(range.clone().count(), 0).unwrap();
            let hashes: Vec<Hash128> = range.map(|i| hasher.signed(i)).collect();
            partitions.extend(&hashes);
            Distinct::new(vec![partitions], 1)
        };
        for (own, others, left) in [(0..100, 50..90_000, 50), (0..90_000, 40..50, 89_990)] {
            for threads in [1, 3] {
                let mut rest = set(own.clone()).without(&set(others.clone()), threads);
                let mut expected = set(own.clone());
                expected = expected.filtered(1, |part| {
                    let gone: Vec<Hash128> = others.clone().map(|i| hasher.signed(i)).collect();
                    let gone: std::collections::BTreeSet<Hash128> = gone.into_iter().collect();
                    part.iter().filter(|hash| !gone.contains(hash)).copied().collect()
                });
                rest.sort();
                expected.sort();
                assert_eq!(rest.len(), left);
                assert_eq!(rest.partitions(), expected.partitions());
            }
        }
        assert!(set(0..0).without(&set(0..5), 2).is_empty());
    }
}
