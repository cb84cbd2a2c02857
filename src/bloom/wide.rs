//! All probes of eight keys at once with AVX-512, which multiplies 64-bit numbers and gathers words
//! from eight addresses. With fewer instructions per probe, more cache misses are in flight.

use super::Bloom;
use crate::hash::Hash128;

/// Keys in a vector.
const LANES: usize = 8;

/// Answers hashes and returns how many are accepted; `None` if the processor or the filter is not
/// suited.
pub fn contains(bloom: &Bloom, hashes: &[Hash128], out: &mut [bool]) -> Option<usize> {
    #[cfg(target_arch = "x86_64")]
    if bloom.shape.bits <= u64::from(u32::MAX) && crate::processor::has_avx512() {
        // SAFETY: the processor has AVX-512.
        return Some(unsafe { avx512::contains(bloom, hashes, out) });
    }
    None
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{Bloom, Hash128, LANES};
    use crate::kernel::Kernel;
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::sync::atomic::AtomicU64;

    #[target_feature(enable = "avx512f,avx512dq")]
    pub fn contains(bloom: &Bloom, hashes: &[Hash128], out: &mut [bool]) -> usize {
        let (groups, rest) = hashes.as_chunks::<LANES>();
        let (answers, others) = out.as_chunks_mut::<LANES>();
        let mut found = 0;
        for (group, out) in groups.iter().zip(answers) {
            let yes = together(bloom, group);
            *out = std::array::from_fn(|i| yes >> i & 1 == 1);
            found += yes.count_ones() as usize;
        }
        for (&hash, out) in rest.iter().zip(others) {
            *out = bloom.contains_one(hash);
            found += usize::from(*out);
        }
        found
    }

    /// A bit per hash: whether all its bits that were not cut off are set.
    #[target_feature(enable = "avx512f,avx512dq")]
    #[inline]
    fn together(bloom: &Bloom, hashes: &[Hash128; LANES]) -> u8 {
        let (shape, words) = (bloom.shape, bloom.bits.words());
        let kept = _mm512_set1_epi64(shape.kept as i64);
        let mut sources = vector(hashes.map(|hash| hash.hi));
        let steps = vector(hashes.map(|hash| hash.lo));
        let mut all = _mm512_set1_epi64(-1);
        for j in 0..shape.hashes {
            let segment = shape.segment(j);
            let length = _mm512_set1_epi64(segment.length as i64);
            let probes = mix13(sources);
            sources = _mm512_add_epi64(sources, steps);
            // As `Segment::near`.
            let low = _mm512_srli_epi64::<32>(_mm512_mul_epu32(probes, length));
            let high = _mm512_mul_epu32(_mm512_srli_epi64::<32>(probes), length);
            let within = _mm512_srli_epi64::<32>(_mm512_add_epi64(high, low));
            let positions = _mm512_add_epi64(within, _mm512_set1_epi64(segment.start as i64));
            let there = _mm512_cmplt_epu64_mask(positions, kept);
            // SAFETY: the words have all bits below `kept`.
            let found = unsafe { gather(words, _mm512_srli_epi64::<6>(positions), there) };
            let bits = _mm512_and_si512(positions, _mm512_set1_epi64(63));
            all = _mm512_and_si512(all, _mm512_srlv_epi64(found, bits));
        }
        _mm512_test_epi64_mask(all, _mm512_set1_epi64(1))
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn vector(numbers: [u64; LANES]) -> __m512i {
        // SAFETY: eight numbers of 64 bits.
        unsafe { _mm512_loadu_si512(numbers.as_ptr().cast()) }
    }

    /// [`crate::hash::mix13`] of each.
    #[target_feature(enable = "avx512f,avx512dq")]
    #[inline]
    fn mix13(x: __m512i) -> __m512i {
        let x = _mm512_xor_si512(x, _mm512_srli_epi64::<30>(x));
        let x = _mm512_mullo_epi64(x, _mm512_set1_epi64(0xBF58_476D_1CE4_E5B9_u64 as i64));
        let x = _mm512_xor_si512(x, _mm512_srli_epi64::<27>(x));
        let x = _mm512_mullo_epi64(x, _mm512_set1_epi64(0x94D0_49BB_1331_11EB_u64 as i64));
        _mm512_xor_si512(x, _mm512_srli_epi64::<31>(x))
    }

    /// Reads words that other threads may change, with all ones where `there` has no bit. Inline
    /// assembly, because the intrinsic would tell the compiler that nobody writes.
    ///
    /// # Safety
    /// Every place with a bit in `there` is below the number of words.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn gather(words: &[AtomicU64], places: __m512i, there: __mmask8) -> __m512i {
        let mut found = _mm512_set1_epi64(-1);
        // SAFETY: aligned words are read atomically, and these places exist.
        unsafe {
            asm!("vpgatherqq {found} {{{there}}}, qword ptr [{words} + 8*{places}]",
                found = inout(zmm_reg) found, there = inout(kreg) there => _,
                words = in(reg) words.as_ptr(), places = in(zmm_reg) places,
                options(readonly, nostack, preserves_flags));
        }
        found
    }
}
