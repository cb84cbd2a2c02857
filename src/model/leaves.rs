//! Leaves to sums: the value of each row's leaf, looked up for a vector of rows at once.
//!
//! The values of a tree's leaves are stored as two planes of bytes, low and high. With AVX2, a
//! shuffle looks up 32 rows among 16 leaves, and a tree of L leaves takes L/16 shuffles and as many
//! blends per plane. Row by row, this took longer than finding the leaves.

use super::BLOCK;
use crate::processor::has_avx2;

/// Maximum number of leaves per tree: a leaf is a byte whose highest bit is clear.
pub const MAX_LEAVES: usize = 128;

/// The values that the leaves of a tree add to their rows.
pub struct Leaves {
    planes: [[u8; MAX_LEAVES]; 2],
    /// Sixteenths of the planes that are used, rounded up to a power of two.
    parts: usize,
}

impl Leaves {
    /// From the value of each leaf; there are 1 to [`MAX_LEAVES`].
    pub fn new(values: &[i16]) -> Option<Leaves> {
        if values.is_empty() || values.len() > MAX_LEAVES {
            return None;
        }
        let mut planes = [[0; MAX_LEAVES]; 2];
        for (i, value) in values.iter().enumerate() {
            [planes[0][i], planes[1][i]] = value.to_le_bytes();
        }
        Some(Leaves { planes, parts: values.len().div_ceil(16).next_power_of_two() })
    }

    /// Adds to the sum of each row the value of its leaf.
    #[inline(always)]
    pub fn add(&self, chosen: &[u8; BLOCK], sums: &mut [i32; BLOCK]) {
        #[cfg(target_arch = "x86_64")]
        if has_avx2() {
            // SAFETY: just checked.
            return unsafe { self.add_avx2(chosen, sums) };
        }
        self.add_plain(chosen, sums);
    }

    fn add_plain(&self, chosen: &[u8; BLOCK], sums: &mut [i32; BLOCK]) {
        for (sum, &leaf) in sums.iter_mut().zip(chosen) {
            let leaf = usize::from(leaf) % MAX_LEAVES;
            let value = i16::from_le_bytes(self.planes.map(|plane| plane[leaf]));
            *sum += i32::from(value);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn add_avx2(&self, chosen: &[u8; BLOCK], sums: &mut [i32; BLOCK]) {
        match self.parts {
            1 => self.add_parts::<1>(chosen, sums),
            2 => self.add_parts::<2>(chosen, sums),
            4 => self.add_parts::<4>(chosen, sums),
            _ => self.add_parts::<8>(chosen, sums),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    #[inline]
    fn add_parts<const PARTS: usize>(&self, chosen: &[u8; BLOCK], sums: &mut [i32; BLOCK]) {
        use std::arch::x86_64::*;
        let tables = [0, 1].map(|plane| {
            std::array::from_fn::<_, PARTS, _>(|part| {
                let start = self.planes[plane][16 * part..16 * (part + 1)].as_ptr();
                // SAFETY: sixteen bytes of the plane; no alignment needed.
                _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(start.cast()) })
            })
        });
        let rows = chosen.as_chunks::<32>().0.iter().zip(sums.as_chunks_mut::<32>().0);
        for (chosen, sums) in rows {
            // SAFETY: 32 bytes; their address may be any.
            let chosen = unsafe { _mm256_loadu_si256(chosen.as_ptr().cast()) };
            let [low, high] = tables.map(|table| look_up(table, chosen));
            // Each half of a register is interleaved on its own.
            let [near, far] = [_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)];
            let eights = [
                _mm256_castsi256_si128(near),
                _mm256_castsi256_si128(far),
                _mm256_extracti128_si256::<1>(near),
                _mm256_extracti128_si256::<1>(far),
            ];
            for (sums, eight) in sums.as_chunks_mut::<8>().0.iter_mut().zip(eights) {
                let place = sums.as_mut_ptr().cast();
                // SAFETY: eight sums of 32 bits; their address may be any.
                unsafe {
                    let sum = _mm256_loadu_si256(place);
                    let sum = _mm256_add_epi32(sum, _mm256_cvtepi16_epi32(eight));
                    _mm256_storeu_si256(place, sum);
                }
            }
        }
    }
}

/// The byte of each index in a table of 16, 32, 64 or 128 of them: the low four bits choose within
/// each part, the others one after the other between halves of the parts.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn look_up<const PARTS: usize>(
    table: [std::arch::x86_64::__m256i; PARTS],
    index: std::arch::x86_64::__m256i,
) -> std::arch::x86_64::__m256i {
    use std::arch::x86_64::*;
    let mut found = table.map(|part| _mm256_shuffle_epi8(part, index));
    // A blend tests the top bit of each byte: bits 4, 5 and 6 are shifted there in turn.
    let choosers = [
        _mm256_slli_epi16::<3>(index),
        _mm256_slli_epi16::<2>(index),
        _mm256_slli_epi16::<1>(index),
    ];
    let mut left = PARTS;
    for chooser in choosers {
        left /= 2;
        for i in 0..left {
            found[i] = _mm256_blendv_epi8(found[2 * i], found[2 * i + 1], chooser);
        }
    }
    found[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn vectors_add_like_a_loop(
            values in proptest::collection::vec(any::<i16>(), 1..=MAX_LEAVES),
            picks in proptest::collection::vec(any::<u8>(), BLOCK),
        ) {
            let leaves = Leaves::new(&values).unwrap();
            let chosen: [u8; BLOCK] =
                std::array::from_fn(|i| (usize::from(picks[i]) % values.len()) as u8);
            let (mut sums, mut wanted) = ([7; BLOCK], [7; BLOCK]);
            leaves.add(&chosen, &mut sums);
            leaves.add_plain(&chosen, &mut wanted);
            prop_assert_eq!(sums, wanted);
            for (sum, leaf) in wanted.iter().zip(chosen) {
                prop_assert_eq!(*sum, 7 + i32::from(values[usize::from(leaf)]));
            }
        }
    }
}
