//! Filling a filter: with distinct hashes, whose number is known, or with any hashes in any order.
//!
//! Bits are set without locked instructions, so a cache line must have one writer at a time. In a
//! blocked filter of distinct hashes, which come in the order of their blocks, each thread has a
//! range of blocks. Otherwise each thread sorts its hashes (or positions, if the filter is not
//! blocked) by stripe, a range of lines with a lock, and sets many bits under each lock. Either way
//! the bits depend only on the set, not on order and threads.

use super::probes::Probes;
use super::{BLOCK_BITS, Bloom, Layout, Shape};
use crate::bits::reduce;
use crate::distinct::Distinct;
use crate::error::Result;
use crate::hash::Hash128;
use crate::memory::{self, TryGrow};
use crate::threads;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

/// Maximum number of stripes: enough that threads seldom wait for each other, few enough that the
/// buffers (8 or 16 KiB each) fit a core's cache.
const STRIPES: u64 = 32;
/// Hashes or positions buffered per stripe.
const WAITING: usize = 1 << 10;

impl Bloom {
    /// A filter of these distinct hashes.
    pub fn build(shape: Shape, hashes: &Distinct, threads: usize) -> Result<Bloom> {
        let bloom = Bloom::new(shape)?;
        match shape.layout {
            _ if threads < 2 => hashes.partitions().for_each(|part| {
                bloom.set(part);
            }),
            Layout::Blocked => bloom.fill_in_parallel(hashes, threads as u64)?,
            _ => return bloom.fill_by_stripe(hashes, threads),
        }
        bloom.hold(hashes.len() as u64);
        Ok(bloom)
    }

    /// Fills by stripes; each thread reads some of the partitions.
    fn fill_by_stripe(self, hashes: &Distinct, threads: usize) -> Result<Bloom> {
        let filling = Filling::of(self);
        threads::try_map(0..threads, |thread| {
            let mut worker = filling.worker()?;
            let partitions = hashes.partitions().skip(thread).step_by(threads);
            partitions.for_each(|partition| worker.insert(partition));
            Result::Ok(())
        })?;
        filling.bloom.hold(hashes.len() as u64);
        Ok(filling.bloom)
    }

    /// Each thread sets the bits of its own range of blocks; a partition across the border of two
    /// ranges is read by both.
    fn fill_in_parallel(&self, hashes: &Distinct, threads: u64) -> Result<()> {
        let blocks = self.blocks();
        // The lowest `hi` of a block, or one past every `hi`.
        let start = |block: u64| ((block as u128) << 64).div_ceil(blocks as u128);
        threads::try_map(0..threads as usize, |thread| {
            let first = start(blocks * thread as u64 / threads);
            let end = start(blocks * (thread as u64 + 1) / threads);
            if first == end {
                return Result::Ok(());
            }
            let (first, last) = (first as u64, (end - 1) as u64);
            let own = |hash: &&Hash128| (first..=last).contains(&hash.hi);
            let mut kept = Vec::new();
            for partition in hashes.overlapping(first, last) {
                kept.clear();
                kept.reserve_more(partition.len())?;
                kept.extend(partition.iter().filter(own));
                self.set(&kept);
            }
            Ok(())
        })?;
        Ok(())
    }

    fn hold(&self, count: u64) {
        self.count.store(count, Relaxed);
        self.insertions.store(count, Relaxed);
    }
}

/// A filter that several threads fill.
pub struct Filling {
    bloom: Bloom,
    stripes: Vec<Mutex<()>>,
    /// log2 of the lines of a stripe.
    shift: u32,
}

impl Filling {
    /// Starts with an empty filter.
    pub fn new(shape: Shape) -> Result<Filling> {
        Ok(Filling::of(Bloom::new(shape)?))
    }

    fn of(bloom: Bloom) -> Filling {
        let lines = bloom.shape.bits.div_ceil(BLOCK_BITS);
        let shift = lines.div_ceil(STRIPES).next_power_of_two().ilog2();
        let stripes = (0..=(lines - 1) >> shift).map(|_| Mutex::default()).collect();
        Filling { bloom, stripes, shift }
    }

    /// The state of one thread that sets bits.
    pub fn worker(&self) -> Result<Worker<'_>> {
        let stripes = self.stripes.len();
        let waiting = match self.bloom.shape.layout {
            Layout::Blocked => Waiting::Hashes(buffers(stripes)?),
            _ => {
                Waiting::Positions { positions: buffers(stripes)?, probes: Box::new(Probes::new()) }
            }
        };
        Ok(Worker { filling: self, waiting })
    }

    /// The filter of all inserted hashes. Its count is estimated from the bits, and at most `max`.
    pub fn finish(self, max: u64) -> Bloom {
        let count = self.bloom.cardinality().round() as u64;
        self.bloom.hold(count.min(max));
        self.bloom
    }

    /// Adds to the buffer of a stripe; if it is full, passes it to `set` under the lock.
    #[inline(always)]
    fn push<T: Copy>(
        &self,
        line: u64,
        waiting: &mut [Vec<T>],
        item: T,
        set: impl FnOnce(&Bloom, &[T]),
    ) {
        let stripe = (line >> self.shift) as usize;
        let items = &mut waiting[stripe];
        items.push(item);
        if items.len() == WAITING {
            self.set(stripe, items, set);
        }
    }

    fn set<T>(&self, stripe: usize, items: &mut Vec<T>, set: impl FnOnce(&Bloom, &[T])) {
        let _lock = self.stripes[stripe].lock().unwrap_or_else(PoisonError::into_inner);
        set(&self.bloom, items);
        items.clear();
    }
}

/// The state of one thread.
pub struct Worker<'a> {
    filling: &'a Filling,
    waiting: Waiting,
}

/// An empty buffer for each stripe.
fn buffers<T>(stripes: usize) -> Result<Vec<Vec<T>>> {
    memory::collected_ok((0..stripes).map(|_| memory::with_capacity(WAITING)))
}

/// The buffers, by stripe.
enum Waiting {
    Hashes(Vec<Vec<Hash128>>),
    Positions { positions: Vec<Vec<u64>>, probes: Box<Probes> },
}

impl Worker<'_> {
    /// Inserts hashes, any number of times each.
    pub fn insert(&mut self, hashes: &[Hash128]) {
        let Worker { filling, waiting } = self;
        let bloom = &filling.bloom;
        match waiting {
            Waiting::Hashes(waiting) => {
                let blocks = bloom.blocks();
                for &hash in hashes {
                    filling.push(reduce(hash.hi, blocks), waiting, hash, set_hashes);
                }
            }
            Waiting::Positions { positions, probes } => {
                probes.positions_of(&bloom.shape, hashes, |position| {
                    let line = position / BLOCK_BITS;
                    filling.push(line, positions, position, Bloom::set_positions);
                });
            }
        }
    }
}

fn set_hashes(bloom: &Bloom, hashes: &[Hash128]) {
    bloom.set(hashes);
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        let Worker { filling, waiting } = self;
        match waiting {
            Waiting::Hashes(waiting) => {
                for (stripe, hashes) in waiting.iter_mut().enumerate() {
                    filling.set(stripe, hashes, set_hashes);
                }
            }
            Waiting::Positions { positions, .. } => {
                for (stripe, positions) in positions.iter_mut().enumerate() {
                    filling.set(stripe, positions, Bloom::set_positions);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distinct::Partitions;
    use crate::hash::Hasher;
    use crate::kernel::Kernel;

    /// The bits do not depend on order, repetitions and threads in any layout; the filter has fewer
    /// blocks than stripes, or more.
    #[test]
    fn threads_fill_as_one() {
        let hasher = Hasher::seeded(9);
        let hashes: Vec<_> = (0..20_000).map(|key| hasher.signed(key % 15_000)).collect();
        for layout in Layout::ALL {
            for bits in [512 * 7, 512 * 300] {
                let shape = Shape::new(layout, bits, 7, bits).unwrap();
                let one = Bloom::new(shape).unwrap();
                one.insert(&hashes).unwrap();
                let filling = Filling::new(shape).unwrap();
                assert!(filling.stripes.len() <= STRIPES as usize);
                assert!(filling.stripes.len() > 1);
                std::thread::scope(|scope| {
                    for part in hashes.rchunks(3000) {
                        let mut worker = filling.worker().unwrap();
                        scope.spawn(move || part.chunks(999).for_each(|few| worker.insert(few)));
                    }
                });
                let many = filling.finish(20_000);
                assert_eq!(many.bits.as_slice(), one.bits.as_slice());
                let held = one.cardinality().round().min(20_000.0);
                assert_eq!(many.count() as f64, held);
                let mut partitions = Partitions::new(hashes.len(), hashes.len()).unwrap();
                partitions.extend(&hashes);
                let distinct = Distinct::new(vec![partitions], 1).unwrap();
                for threads in [1, 2, 5] {
                    let built = Bloom::build(shape, &distinct, threads).unwrap();
                    assert_eq!(built.bits.as_slice(), one.bits.as_slice());
                    assert_eq!(built.count(), 15_000);
                }
            }
        }
    }
}
