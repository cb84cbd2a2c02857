//! One cache line as a tiny Bloom filter: the unit that a blocked filter reads or writes per key.
//!
//! A line is eight words of 64 bits. A key with k ≤ 8 probes sets one bit in each of k words: the
//! three top bits of `lo` choose the first word s, the words s, s+1, …, s+k−1 (mod 8) take part,
//! and the bit within word w is six bits of `lo`, from bit 6·w on. For k > 8 there are whole
//! rounds over all eight words before that, each with a remix of `lo`.
//!
//! A key is thus a mask of 512 bits, computed and compared eight words at a time if the processor
//! has AVX2. One bit per word rather than k bits anywhere costs little of the rate, which
//! `planning/bloom.py` computes exactly.

use crate::bits::{LINE, prefetch, reduce};
use crate::hash::{Hash128, mix13};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// 64-bit words of a line.
pub const WORDS: usize = LINE / 8;
/// How many keys ahead of the probe its line is prefetched. From `make bench`: 8 to 64 are alike
/// in cache for queries; insertions gain up to 32.
const AHEAD: usize = 32;

/// A cache line that readers share with one writer.
pub type Line = [AtomicU64; WORDS];
type Mask = [u64; WORDS];

/// How a hash becomes a mask, for a given number of probes.
#[derive(Clone, Debug)]
pub struct Prober {
    /// Rounds over all eight words before the last one.
    full_rounds: u64,
    /// Which words take part in the last round, by first word.
    last_round: [Mask; WORDS],
    /// Whether this processor works on four words at once.
    wide: bool,
}

impl Prober {
    /// For `hashes` ≥ 1 probes per key.
    pub fn new(hashes: u32) -> Prober {
        let full_rounds = (hashes as usize - 1) / WORDS;
        let rest = hashes as usize - full_rounds * WORDS;
        let takes_part = |first, word: usize| (word + WORDS - first) % WORDS < rest;
        let last_round = std::array::from_fn(|first| {
            std::array::from_fn(|word| if takes_part(first, word) { u64::MAX } else { 0 })
        });
        #[cfg(target_arch = "x86_64")]
        let wide = std::arch::is_x86_feature_detected!("avx2");
        #[cfg(not(target_arch = "x86_64"))]
        let wide = false;
        Prober { full_rounds: full_rounds as u64, last_round, wide }
    }

    /// The source of the bits of a round.
    #[inline(always)]
    fn source(lo: u64, round: u64) -> u64 {
        if round == 0 { lo } else { mix13(lo.wrapping_add(round)) }
    }

    fn mask(&self, lo: u64) -> Mask {
        let one_bit_each = |round: u64| -> Mask {
            let source = Prober::source(lo, round);
            std::array::from_fn(|word| 1 << (source >> (6 * word) & 63))
        };
        let takes_part = &self.last_round[(lo >> 61) as usize];
        let mut mask = one_bit_each(self.full_rounds);
        for (word, part) in mask.iter_mut().zip(takes_part) {
            *word &= part;
        }
        for round in 0..self.full_rounds {
            for (word, bit) in mask.iter_mut().zip(one_bit_each(round)) {
                *word |= bit;
            }
        }
        mask
    }

    /// Whether each hash finds all of its bits in its line.
    pub fn test(&self, lines: &[Line], hashes: &[Hash128], out: &mut [bool]) {
        #[cfg(target_arch = "x86_64")]
        if self.wide {
            // SAFETY: the processor has AVX2.
            return unsafe { avx2::test(self, lines, hashes, out) };
        }
        self.test_with::<Portable>(lines, hashes, out);
    }

    /// [`Prober::test`] for one hash.
    #[inline]
    pub fn test_one(&self, lines: &[Line], hash: Hash128) -> bool {
        let line = line(lines, &hash);
        #[cfg(target_arch = "x86_64")]
        if self.wide {
            // SAFETY: the processor has AVX2.
            return unsafe { avx2::test_one(self, line, hash.lo) };
        }
        Portable::covers(self, line, hash.lo)
    }

    /// Prefetches the lines of the first of these hashes.
    pub fn fetch(&self, lines: &[Line], hashes: &[Hash128]) {
        hashes.iter().take(AHEAD).for_each(|hash| prefetch(line(lines, hash)));
    }

    /// Sets the bits of each hash in its line, and returns how many hashes set a new bit. Requires
    /// that no other thread writes to these lines.
    pub fn set(&self, lines: &[Line], hashes: &[Hash128]) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if self.wide {
            // SAFETY: the processor has AVX2.
            return unsafe { avx2::set(self, lines, hashes) };
        }
        self.set_with::<Portable>(lines, hashes)
    }

    /// The probability that a random absent hash finds all of its bits in this line.
    pub fn rate(&self, line: &Line) -> f64 {
        let fill = line.each_ref().map(|word| f64::from(word.load(Relaxed).count_ones()) / 64.0);
        let before: f64 = fill.iter().product::<f64>().powi(self.full_rounds as i32);
        let by_first_word = self.last_round.iter().map(|takes_part| {
            let parts = fill.iter().zip(takes_part).filter(|(_, part)| **part != 0);
            parts.map(|(fill, _)| fill).product::<f64>()
        });
        before * by_first_word.sum::<f64>() / WORDS as f64
    }

    /// The probability that a key does not set a given bit of its line.
    pub fn miss(&self) -> f64 {
        let rest = self.last_round[0].iter().filter(|part| **part != 0).count();
        let last = 1.0 - rest as f64 / (WORDS * 64) as f64;
        (63.0f64 / 64.0).powi(self.full_rounds as i32) * last
    }

    #[inline(always)]
    fn test_with<L: Lanes>(&self, lines: &[Line], hashes: &[Hash128], out: &mut [bool]) {
        for (i, (hash, out)) in hashes.iter().zip(out).enumerate() {
            if let Some(later) = hashes.get(i + AHEAD) {
                prefetch(line(lines, later));
            }
            *out = L::covers(self, line(lines, hash), hash.lo);
        }
    }

    #[inline(always)]
    fn set_with<L: Lanes>(&self, lines: &[Line], hashes: &[Hash128]) -> u64 {
        let mut new = 0;
        for (i, hash) in hashes.iter().enumerate() {
            if let Some(later) = hashes.get(i + AHEAD) {
                prefetch(line(lines, later));
            }
            new += u64::from(!L::merge(self, line(lines, hash), hash.lo));
        }
        new
    }
}

/// The line of a hash.
#[inline(always)]
fn line<'a>(lines: &'a [Line], hash: &Hash128) -> &'a Line {
    &lines[reduce(hash.hi, lines.len() as u64) as usize]
}

/// Two ways to work on a line.
trait Lanes {
    /// Whether every bit of the mask of `lo` is set.
    fn covers(prober: &Prober, line: &Line, lo: u64) -> bool;
    /// Sets the bits of the mask of `lo`; whether they all were set before.
    fn merge(prober: &Prober, line: &Line, lo: u64) -> bool;
}

struct Portable;

impl Lanes for Portable {
    #[inline(always)]
    fn covers(prober: &Prober, line: &Line, lo: u64) -> bool {
        let mask = prober.mask(lo);
        line.iter().zip(mask).fold(0, |missing, (w, m)| missing | (m & !w.load(Relaxed))) == 0
    }

    #[inline(always)]
    fn merge(prober: &Prober, line: &Line, lo: u64) -> bool {
        let mut missing = 0;
        for (word, mask) in line.iter().zip(prober.mask(lo)) {
            let old = word.load(Relaxed);
            word.store(old | mask, Relaxed);
            missing |= mask & !old;
        }
        missing == 0
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Lanes, Line, Prober};
    use crate::hash::Hash128;
    use std::arch::asm;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2")]
    pub fn test(prober: &Prober, lines: &[Line], hashes: &[Hash128], out: &mut [bool]) {
        prober.test_with::<Avx2>(lines, hashes, out);
    }

    #[target_feature(enable = "avx2")]
    pub fn test_one(prober: &Prober, line: &Line, lo: u64) -> bool {
        Avx2::covers(prober, line, lo)
    }

    #[target_feature(enable = "avx2")]
    pub fn set(prober: &Prober, lines: &[Line], hashes: &[Hash128]) -> u64 {
        prober.set_with::<Avx2>(lines, hashes)
    }

    /// Only used by the functions above, which have the feature.
    struct Avx2;

    impl Lanes for Avx2 {
        #[inline(always)]
        fn covers(prober: &Prober, line: &Line, lo: u64) -> bool {
            // SAFETY: called where AVX2 is present.
            unsafe {
                let (low, high) = (load(line, 0), load(line, 1));
                let [low_mask, high_mask] = mask(prober, lo);
                _mm256_testc_si256(low, low_mask) & _mm256_testc_si256(high, high_mask) != 0
            }
        }

        #[inline(always)]
        fn merge(prober: &Prober, line: &Line, lo: u64) -> bool {
            // SAFETY: called where AVX2 is present.
            unsafe {
                let (low, high) = (load(line, 0), load(line, 1));
                let [low_mask, high_mask] = mask(prober, lo);
                store(line, 0, _mm256_or_si256(low, low_mask));
                store(line, 1, _mm256_or_si256(high, high_mask));
                _mm256_testc_si256(low, low_mask) & _mm256_testc_si256(high, high_mask) != 0
            }
        }
    }

    /// [`Prober::mask`] in vectors. Written out, because closures do not have the feature of the
    /// function around them: the compiler calls them, and passes masks through memory.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn mask(prober: &Prober, lo: u64) -> [__m256i; 2] {
        let part: *const __m256i = prober.last_round[(lo >> 61) as usize].as_ptr().cast();
        // SAFETY: eight words are two unaligned vectors of 32 bytes.
        let part = unsafe { [_mm256_loadu_si256(part), _mm256_loadu_si256(part.add(1))] };
        let [low, high] = one_bit_each(Prober::source(lo, prober.full_rounds));
        let mut mask = [_mm256_and_si256(low, part[0]), _mm256_and_si256(high, part[1])];
        for round in 0..prober.full_rounds {
            let [low, high] = one_bit_each(Prober::source(lo, round));
            mask = [_mm256_or_si256(mask[0], low), _mm256_or_si256(mask[1], high)];
        }
        mask
    }

    /// In word w, the bit of six bits of the source, from bit 6·w on.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn one_bit_each(source: u64) -> [__m256i; 2] {
        let (source, one, six) =
            (_mm256_set1_epi64x(source as i64), _mm256_set1_epi64x(1), _mm256_set1_epi64x(63));
        let low = _mm256_srlv_epi64(source, _mm256_set_epi64x(18, 12, 6, 0));
        let high = _mm256_srlv_epi64(source, _mm256_set_epi64x(42, 36, 30, 24));
        [
            _mm256_sllv_epi64(one, _mm256_and_si256(low, six)),
            _mm256_sllv_epi64(one, _mm256_and_si256(high, six)),
        ]
    }

    /// Four relaxed atomic loads. Rust has no vector atomics, and a plain load would race with the
    /// writer, so the instruction is written out: each aligned 8-byte lane of it is read at once.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn load(line: &Line, half: usize) -> __m256i {
        let lanes: __m256i;
        // SAFETY: half of a line, aligned to 32 bytes as lines are to 64.
        unsafe {
            asm!("vmovdqa {lanes}, ymmword ptr [{place}]",
                place = in(reg) line.as_ptr().add(4 * half), lanes = out(ymm_reg) lanes,
                options(readonly, nostack, preserves_flags));
        }
        lanes
    }

    /// Four relaxed atomic stores, as [`load`] is four loads; by the only writer.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn store(line: &Line, half: usize, lanes: __m256i) {
        // SAFETY: half of a line, aligned to 32 bytes; atomics may be written through a shared
        // reference.
        unsafe {
            asm!("vmovdqa ymmword ptr [{place}], {lanes}",
                place = in(reg) line.as_ptr().add(4 * half), lanes = in(ymm_reg) lanes,
                options(nostack, preserves_flags));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::Buffer;
    use crate::hash::Hasher;

    /// Both ways of working on a line agree, for every number of probes.
    #[test]
    fn lanes_agree() {
        let hasher = Hasher::seeded(5);
        for hashes in 1..=40 {
            let prober = Prober::new(hashes);
            let (ours, plain) =
                (Buffer::zeroed(13 * LINE).unwrap(), Buffer::zeroed(13 * LINE).unwrap());
            let keys: Vec<Hash128> = (0..200).map(|key| hasher.signed(key)).collect();
            let (members, _) = keys.split_at(100);
            let new = prober.set(ours.lines(), members);
            assert_eq!(new, prober.set_with::<Portable>(plain.lines(), members));
            assert_eq!(ours.as_slice(), plain.as_slice());
            let (mut a, mut b) = ([false; 200], [true; 200]);
            prober.test(ours.lines(), &keys, &mut a);
            prober.test_with::<Portable>(plain.lines(), &keys, &mut b);
            assert_eq!(a, b);
            assert!(a[..100].iter().all(|&yes| yes));
            let set =
                |hash: &Hash128| prober.mask(hash.lo).iter().map(|w| w.count_ones()).sum::<u32>();
            assert!(
                keys.iter().all(|key| set(key) <= hashes && (hashes > 8 || set(key) == hashes))
            );
        }
    }
}
