//! Two Bloom filters as fastfilter_cpp has them, to take turns with ours in one run.

use std::arch::x86_64::*;
use tamis::bits::reduce;
use tamis::bloom::Shape;
use tamis::hash::{Hash128, mix13};

/// What is timed of them.
pub trait Peer {
    /// A filter of these hashes, with the bits of a shape.
    fn of(shape: Shape, hashes: &[Hash128]) -> Self;
    /// Whether each may be in the set.
    fn contains(&self, hashes: &[Hash128], out: &mut [bool]);
}

/// Theirs is `murmur64` of a 64-bit key, which takes as long.
#[inline(always)]
fn hash(key: &Hash128) -> u64 {
    mix13(key.hi)
}

/// `BloomFilter`: double hashing, one key after the other, until a bit is unset.
pub struct Plain {
    words: Vec<u64>,
    hashes: u32,
}

impl Plain {
    /// The words and bits that a key sets, in a filter of `words` words.
    #[inline(always)]
    fn probes(words: u64, hashes: u32, key: &Hash128) -> impl Iterator<Item = (usize, u64)> {
        let (mut a, b) = (hash(key).rotate_left(32), hash(key));
        (0..hashes).map(move |_| {
            let probe = (reduce(a, words) as usize, 1 << (a % 64));
            a = a.wrapping_add(b);
            probe
        })
    }
}

impl Peer for Plain {
    fn of(shape: Shape, hashes: &[Hash128]) -> Plain {
        let mut words = vec![0; (shape.bits / 64) as usize];
        for key in hashes {
            for (word, bit) in Plain::probes(words.len() as u64, shape.hashes, key) {
                words[word] |= bit;
            }
        }
        Plain { words, hashes: shape.hashes }
    }

    fn contains(&self, hashes: &[Hash128], out: &mut [bool]) {
        for (key, out) in hashes.iter().zip(out) {
            let mut probes = Plain::probes(self.words.len() as u64, self.hashes, key);
            *out = probes.all(|(word, bit)| self.words[word] & bit != 0);
        }
    }
}

/// `SimdBlockFilterFixed`: a bit in each of the eight words of a block of 256 bits. On a processor
/// without AVX2 it panics.
pub struct Split {
    blocks: Vec<__m256i>,
}

impl Split {
    #[target_feature(enable = "avx2")]
    fn place(blocks: usize, key: &Hash128) -> (usize, __m256i) {
        let hash = hash(key);
        let odd = _mm256_setr_epi32(
            0x47b6_137b,
            0x4497_4d91,
            0x8824_ad5bu32 as i32,
            0xa2b7_289du32 as i32,
            0x7054_95c7,
            0x2df1_424b,
            0x9efc_4947u32 as i32,
            0x5c6b_fb31,
        );
        let bits = _mm256_srli_epi32::<27>(_mm256_mullo_epi32(odd, _mm256_set1_epi32(hash as i32)));
        let block = ((hash >> 32) * blocks as u64) >> 32;
        (block as usize, _mm256_sllv_epi32(_mm256_set1_epi32(1), bits))
    }

    #[target_feature(enable = "avx2")]
    fn insert(&mut self, hashes: &[Hash128]) {
        for key in hashes {
            let (block, mask) = Split::place(self.blocks.len(), key);
            self.blocks[block] = _mm256_or_si256(self.blocks[block], mask);
        }
    }

    #[target_feature(enable = "avx2")]
    fn test(&self, hashes: &[Hash128], out: &mut [bool]) {
        for (key, out) in hashes.iter().zip(out) {
            let (block, mask) = Split::place(self.blocks.len(), key);
            *out = _mm256_testc_si256(self.blocks[block], mask) == 1;
        }
    }
}

impl Peer for Split {
    fn of(shape: Shape, hashes: &[Hash128]) -> Split {
        assert!(is_x86_feature_detected!("avx2"));
        // SAFETY: just checked; zeros are a vector.
        unsafe {
            let mut split =
                Split { blocks: vec![_mm256_setzero_si256(); (shape.bits / 256) as usize] };
            split.insert(hashes);
            split
        }
    }

    fn contains(&self, hashes: &[Hash128], out: &mut [bool]) {
        // SAFETY: there is none without AVX2.
        unsafe { self.test(hashes, out) }
    }
}
