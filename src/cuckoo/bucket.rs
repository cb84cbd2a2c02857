//! A bucket as one machine word: four slots of f bits, compared and searched at once.
//!
//! Bucket `i` of a table is the 4·f bits from bit `4·f·i` on, so it starts at a byte or in the
//! middle of one (f odd, i odd), and one unaligned word holds it: 64 bits for f up to 16, 128
//! above. A table ends with the bytes of one more word, zeros, so that the last load stays inside.

use std::ops::{Add, BitAnd, BitOr, BitXor, Mul, Not, Shl, Shr, Sub};

/// Slots of a bucket.
pub const SLOTS: u64 = 4;

/// An integer wide enough for a bucket.
pub trait Word:
    Copy
    + Ord
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + BitXor<Output = Self>
    + Not<Output = Self>
    + Shl<u32, Output = Self>
    + Shr<u32, Output = Self>
    + From<u32>
{
    /// The word at a byte; zero past the end, which a table's length excludes.
    fn load(bytes: &[u8], at: usize) -> Self;
    /// Puts the word at a byte.
    fn store(self, bytes: &mut [u8], at: usize);
    /// The lowest 32 bits.
    fn low_half(self) -> u32;
    /// The position of the lowest set bit.
    fn lowest(self) -> u32;
    /// How many bits are set.
    fn ones(self) -> u32;
}

macro_rules! word {
    ($type:ty) => {
        impl Word for $type {
            #[inline(always)]
            fn load(bytes: &[u8], at: usize) -> Self {
                let end = at + size_of::<Self>();
                let word = bytes.get(at..end).and_then(|word| word.try_into().ok());
                word.map_or(0, Self::from_le_bytes)
            }

            #[inline(always)]
            fn store(self, bytes: &mut [u8], at: usize) {
                bytes[at..at + size_of::<Self>()].copy_from_slice(&self.to_le_bytes());
            }

            #[inline(always)]
            fn low_half(self) -> u32 {
                self as u32
            }

            #[inline(always)]
            fn lowest(self) -> u32 {
                self.trailing_zeros()
            }

            #[inline(always)]
            fn ones(self) -> u32 {
                self.count_ones()
            }
        }
    };
}

word!(u64);
word!(u128);

/// The slots of buckets of one fingerprint length. A bucket is named by its first bit in the table,
/// a slot by its first bit in the bucket. The bits of a word above the four slots belong to other
/// buckets and are ignored.
#[derive(Clone, Copy)]
pub struct Slots<W> {
    bits: u32,
    /// The lowest bit of each slot.
    ones: W,
    /// The highest bit of each slot.
    high: W,
}

impl<W: Word> Slots<W> {
    /// For fingerprints of this many bits: up to 16 in 64-bit words, up to 32 in 128-bit ones.
    #[inline(always)]
    pub fn new(bits: u32) -> Slots<W> {
        let one = W::from(1);
        let pair = one | one << bits;
        let ones = pair | pair << (2 * bits);
        Slots { bits, ones, high: ones << (bits - 1) }
    }

    /// The bit at which a bucket starts.
    #[inline(always)]
    pub fn start(&self, bucket: u64) -> u64 {
        bucket * (SLOTS * u64::from(self.bits))
    }

    /// The slots.
    pub fn all(&self) -> [u32; SLOTS as usize] {
        [0, self.bits, 2 * self.bits, 3 * self.bits]
    }

    /// The bucket that starts at a bit, in the lowest bits of the result.
    #[inline(always)]
    pub fn bucket(&self, bytes: &[u8], start: u64) -> W {
        W::load(bytes, (start / 8) as usize) >> (start % 8) as u32
    }

    /// Sets the highest bit of each slot that is zero. Adding all ones to the lower bits of a slot
    /// carries into its highest bit exactly if they are not zero.
    #[inline(always)]
    pub fn empty(&self, bucket: W) -> W {
        let low = self.high - self.ones;
        !(((bucket & low) + low) | bucket) & self.high
    }

    /// Sets the highest bit of each slot with this fingerprint.
    #[inline(always)]
    pub fn matching(&self, bucket: W, fingerprint: u32) -> W {
        self.empty(bucket ^ (W::from(fingerprint) * self.ones))
    }

    /// The first slot whose highest bit is set, if any.
    #[inline(always)]
    pub fn first(&self, marks: W) -> Option<u32> {
        (marks != W::from(0)).then(|| marks.lowest() + 1 - self.bits)
    }

    /// The fingerprint in a slot of a bucket.
    #[inline(always)]
    pub fn get(&self, bucket: W, slot: u32) -> u32 {
        (bucket >> slot).low_half() & (u32::MAX >> (32 - self.bits))
    }

    /// Writes a fingerprint into a slot of the bucket that starts at a bit.
    #[inline(always)]
    pub fn set(&self, bytes: &mut [u8], start: u64, slot: u32, fingerprint: u32) {
        let (at, shift) = ((start / 8) as usize, (start % 8) as u32 + slot);
        let old = W::load(bytes, at);
        let mask = W::from(u32::MAX >> (32 - self.bits)) << shift;
        ((old & !mask) | W::from(fingerprint) << shift).store(bytes, at);
    }
}
