//! Sizes of a cuckoo filter, and the two buckets of a key.

use super::bucket::SLOTS;
use crate::bits::reduce;
use crate::error::{Error, Result};
use crate::hash::Hash128;

/// The longest fingerprint.
pub const MAX_BITS: u32 = 32;
/// Maximum number of buckets per chunk: half of them, times 32 bits, is a product of 64 bits.
const MAX_BUCKETS: u64 = 1 << 31;
/// 2³² over the golden ratio: its multiples are spread evenly over 0..2³², however few they are.
const GOLDEN: u32 = 0x9E37_79B9;

/// Sizes of a cuckoo filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The number of chunks, which no key leaves.
    pub chunks: u64,
    /// Buckets of a chunk, an even number.
    pub buckets: u64,
    /// Bits of a fingerprint (f).
    pub bits: u32,
    /// How many of them a slot holds: fewer in a truncated filter.
    pub kept: u32,
    /// log2 of the near range, in which even fingerprints have their other bucket.
    pub near: u32,
    /// By the lowest bit of a fingerprint: log2 of its range, and the index of the last range.
    ranges: [(u32, u64); 2],
}

/// The address of a key: the first of its buckets, and its fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The chunk.
    pub chunk: u64,
    /// The bucket in the chunk.
    pub bucket: u64,
    /// From 1 to 2^f − 1; zero is an empty slot.
    pub fingerprint: u32,
}

impl Shape {
    /// A shape, or an error that says why it is invalid.
    pub fn new(chunks: u64, buckets: u64, bits: u32, near: u32) -> Result<Shape> {
        let refuse = |message: String| Err(Error::Parameter(message));
        if !(1..=MAX_BITS).contains(&bits) {
            return refuse(format!("fingerprint bits must be from 1 to {MAX_BITS}, not {bits}"));
        }
        if !buckets.is_multiple_of(2) || !(2..=MAX_BUCKETS).contains(&buckets) {
            return refuse(format!("buckets must be an even number up to 2**31, not {buckets}"));
        }
        if chunks == 0 || chunks > (1 << 48) / buckets {
            return refuse(format!(
                "chunks must be at least 1, of at most 2**48 buckets together, not {chunks}"
            ));
        }
        if !(1..=31).contains(&near) {
            return refuse(format!("near must be from 1 to 31, not {near}"));
        }
        let ranges = [(near, (buckets >> near).max(1) - 1), (63, 0)];
        Ok(Shape { chunks, buckets, bits, kept: bits, near, ranges })
    }

    /// The same with only this many bits of each fingerprint in its slot.
    pub fn truncated(self, kept: u32) -> Result<Shape> {
        if !(1..=self.kept).contains(&kept) {
            let max = self.kept;
            return Err(Error::Parameter(format!("kept must be from 1 to {max}, not {kept}")));
        }
        Ok(Shape { kept, ..self })
    }

    /// The stored part of a fingerprint: its highest bits, or 1 if these are all zero, since zero
    /// is an empty slot.
    #[inline(always)]
    pub fn held(&self, fingerprint: u32) -> u32 {
        (fingerprint >> (self.bits - self.kept)).max(1)
    }

    /// The number of fingerprints that a slot may stand for, and up to `max` of them, evenly
    /// spread; by odd steps, so that fingerprints with near and far buckets alternate.
    pub fn standing_for(&self, held: u32, max: u64) -> (u64, impl Iterator<Item = u32> + use<>) {
        let cut = self.bits - self.kept;
        let (first, size) =
            if held == 1 { (0, 2 << cut) } else { (u64::from(held) << cut, 1 << cut) };
        // Zero is not a fingerprint, and would come last.
        let count: u64 = if held == 1 { size - 1 } else { size };
        let step = move |i| (first + ((i * u64::from(GOLDEN)) & (size - 1))) as u32;
        (count, (1..=count.min(max)).map(step))
    }

    /// The number of slots.
    pub fn slots(&self) -> u64 {
        SLOTS * self.chunks * self.buckets
    }

    /// Whether a bucket fits 64 bits.
    pub fn narrow(&self) -> bool {
        self.kept <= 16
    }

    /// Bytes of a chunk, an integer because its buckets are even.
    pub fn chunk_bytes(&self) -> usize {
        (self.buckets / 2 * u64::from(self.kept)) as usize
    }

    /// Zero bytes behind the last bucket, for the word that reads it.
    pub fn tail(&self) -> usize {
        if self.narrow() { 8 } else { 16 }
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        self.chunk_bytes() * self.chunks as usize + self.tail()
    }

    /// The number of different fingerprints.
    pub fn fingerprints(&self) -> u64 {
        (1 << self.bits) - 1
    }

    /// The address of a key.
    #[inline(always)]
    pub fn address(&self, hash: Hash128) -> Address {
        let wide = hash.hi as u128 * self.chunks as u128;
        Address {
            chunk: (wide >> 64) as u64,
            bucket: reduce(wide as u64, self.buckets),
            fingerprint: reduce(hash.lo, self.fingerprints()) as u32 + 1,
        }
    }

    /// The other bucket of a fingerprint that may be in this bucket of a chunk.
    #[inline(always)]
    pub fn other(&self, bucket: u64, fingerprint: u32) -> u64 {
        let (log, last) = self.ranges[(fingerprint & 1) as usize];
        let range = (bucket >> log).min(last);
        let start = range << log;
        // The last range includes the remainder of the chunk.
        let size = if range == last { self.buckets - start } else { 1 << log };
        let spread = u64::from(fingerprint.wrapping_mul(GOLDEN));
        let sum = 2 * ((spread * (size / 2)) >> 32) + 1;
        let at = bucket - start;
        // A branch here would be random, so it is avoided.
        let around = u64::from(sum < at).wrapping_neg() & size;
        start + sum + around - at
    }
}
