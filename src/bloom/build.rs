//! Filling a filter: with distinct hashes, whose number is known, or with any, in any order.
//!
//! Bits are set without locked instructions, so a block may have one writer at a time. With distinct
//! hashes, which come in the order of their blocks, each thread has a range of blocks. With others,
//! each thread sorts its hashes by stripe, a range of blocks with a lock, and sets the bits of many
//! hashes under it. Either way the bits are those of the set, whatever the order and the threads.

use super::{BLOCK_BITS, Bloom, Layout, Shape};
use crate::bits::reduce;
use crate::distinct::Distinct;
use crate::error::Result;
use crate::hash::Hash128;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

/// The most stripes: enough that two threads seldom wait for one, few enough that what waits for
/// them (16 KiB each) fits a core's cache.
const STRIPES: u64 = 32;
/// Hashes that wait for a stripe.
const WAITING: usize = 1 << 10;

impl Bloom {
    /// A filter of these distinct hashes.
    pub fn build(shape: Shape, hashes: &Distinct, threads: usize) -> Result<Bloom> {
        let bloom = Bloom::new(shape)?;
        match shape.layout {
            Layout::Blocked if threads > 1 => bloom.fill_in_parallel(hashes, threads as u64),
            _ => hashes.partitions().for_each(|part| {
                bloom.set(part);
            }),
        }
        bloom.hold(hashes.len() as u64);
        Ok(bloom)
    }

    /// Each thread sets the bits of its own range of blocks; a partition across the border of two
    /// ranges is read by both.
    fn fill_in_parallel(&self, hashes: &Distinct, threads: u64) {
        let blocks = self.blocks();
        // The least `hi` that falls into `block`, or one past every `hi`.
        let start = |block: u64| ((block as u128) << 64).div_ceil(blocks as u128);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let first = start(blocks * thread / threads);
                let end = start(blocks * (thread + 1) / threads);
                if first == end {
                    continue;
                }
                let (first, last) = (first as u64, (end - 1) as u64);
                scope.spawn(move || {
                    let own = |hash: &&Hash128| (first..=last).contains(&hash.hi);
                    let mut kept = Vec::new();
                    for partition in hashes.overlapping(first, last) {
                        kept.clear();
                        kept.extend(partition.iter().filter(own));
                        self.set(&kept);
                    }
                });
            }
        });
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
    /// log2 of the blocks of a stripe.
    shift: u32,
}

impl Filling {
    /// Of an empty filter.
    pub fn new(shape: Shape) -> Result<Filling> {
        // Of other layouts, a key has bits everywhere: they are one stripe.
        let blocks = if shape.layout == Layout::Blocked { shape.bits / BLOCK_BITS } else { 1 };
        let shift = blocks.div_ceil(STRIPES).next_power_of_two().ilog2();
        let stripes = (0..=(blocks - 1) >> shift).map(|_| Mutex::default()).collect();
        Ok(Filling { bloom: Bloom::new(shape)?, stripes, shift })
    }

    /// What one thread needs to set bits.
    pub fn share(&self) -> Share<'_> {
        Share { filling: self, waiting: vec![Vec::with_capacity(WAITING); self.stripes.len()] }
    }

    /// The filter of all hashes that were inserted: at most `most`, and as many as its bits say.
    pub fn finish(self, most: u64) -> Bloom {
        let count = self.bloom.cardinality().round() as u64;
        self.bloom.hold(count.min(most));
        self.bloom
    }

    fn set(&self, stripe: usize, hashes: &mut Vec<Hash128>) {
        let _lock = self.stripes[stripe].lock().unwrap_or_else(PoisonError::into_inner);
        self.bloom.set(hashes);
        hashes.clear();
    }
}

/// The hashes of one thread that wait for their stripe.
pub struct Share<'a> {
    filling: &'a Filling,
    waiting: Vec<Vec<Hash128>>,
}

impl Share<'_> {
    /// Takes hashes in, any number of times each.
    pub fn insert(&mut self, hashes: &[Hash128]) {
        let blocks = self.filling.bloom.blocks();
        for &hash in hashes {
            let stripe = match self.waiting.len() {
                1 => 0,
                _ => (reduce(hash.hi, blocks) >> self.filling.shift) as usize,
            };
            let waiting = &mut self.waiting[stripe];
            waiting.push(hash);
            if waiting.len() == WAITING {
                self.filling.set(stripe, waiting);
            }
        }
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        for (stripe, waiting) in self.waiting.iter_mut().enumerate() {
            self.filling.set(stripe, waiting);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Hasher;
    use crate::kernel::Kernel;

    /// The bits do not depend on order, repetitions and threads, whatever the layout; the filter
    /// has fewer blocks than stripes, or more.
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
                assert!(layout != Layout::Blocked || filling.stripes.len() > 1);
                std::thread::scope(|scope| {
                    for part in hashes.rchunks(3000) {
                        let mut share = filling.share();
                        scope.spawn(move || part.chunks(999).for_each(|few| share.insert(few)));
                    }
                });
                let many = filling.finish(20_000);
                assert_eq!(many.bits.as_slice(), one.bits.as_slice());
                let held = one.cardinality().round().min(20_000.0);
                assert_eq!(many.count() as f64, held);
            }
        }
    }
}
