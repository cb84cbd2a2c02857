//! Select, popcount and wide vectors with the instructions that this machine has.
//!
//! The baseline of x86-64 has neither POPCNT nor PDEP, on which quotient and ribbon filters spend
//! most of their time. So their inner code is always inlined (and generic over a [`Processor`] if
//! it selects), and is compiled twice: plainly, and inside [`Bmi2::enabled`], where the compiler
//! may use both.

use crate::bits;

/// The instructions to compile for.
pub trait Processor: Copy {
    /// The position of the set bit of rank `rank` (from 0) in `word`, or 64 if there are too few.
    fn select(self, word: u64, rank: u64) -> u64;
    /// The lowest bits of `word`, in order, deposited at the set bits of `mask`.
    fn scatter(self, word: u64, mask: u64) -> u64;
}

/// Any processor.
#[derive(Clone, Copy)]
pub struct Plain;

impl Processor for Plain {
    #[inline(always)]
    fn select(self, word: u64, rank: u64) -> u64 {
        u64::from(bits::select_plain(word, rank.min(64) as u32))
    }

    #[inline(always)]
    fn scatter(self, mut word: u64, mut mask: u64) -> u64 {
        let mut scattered = 0;
        while mask != 0 {
            let lowest = mask & mask.wrapping_neg();
            scattered |= lowest & (word & 1).wrapping_neg();
            word >>= 1;
            mask ^= lowest;
        }
        scattered
    }
}

/// A processor with BMI1, BMI2 and POPCNT. Only [`Bmi2::detect`] creates one, so holding it proves
/// that the instructions are available.
#[derive(Clone, Copy)]
pub struct Bmi2(());

impl Bmi2 {
    /// The proof, if this processor has the instructions.
    #[inline(always)]
    pub fn detect() -> Option<Bmi2> {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("bmi1")
            && std::arch::is_x86_feature_detected!("bmi2")
            && std::arch::is_x86_feature_detected!("popcnt")
        {
            return Some(Bmi2(()));
        }
        None
    }

    /// Runs `work` in a function where the compiler may use the instructions.
    #[inline(always)]
    pub fn enabled<R>(self, work: impl FnOnce() -> R) -> R {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "bmi1,bmi2,popcnt")]
            fn enabled<R>(work: impl FnOnce() -> R) -> R {
                work()
            }
            // SAFETY: self proves that the processor has these.
            unsafe { enabled(work) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        work()
    }
}

impl Processor for Bmi2 {
    #[inline(always)]
    fn select(self, word: u64, rank: u64) -> u64 {
        if rank >= 64 {
            return 64;
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: self proves BMI2, and the rank is below 64.
        unsafe {
            u64::from(bits::select_pdep(word, rank as u32))
        }
        #[cfg(not(target_arch = "x86_64"))]
        u64::from(bits::select_plain(word, rank as u32))
    }

    #[inline(always)]
    fn scatter(self, word: u64, mask: u64) -> u64 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: self proves BMI2.
        unsafe {
            bits::scatter_pdep(word, mask)
        }
        #[cfg(not(target_arch = "x86_64"))]
        Plain.scatter(word, mask)
    }
}

/// Whether this processor has AVX2 and POPCNT, for which loops over many rows are also compiled.
#[inline(always)]
pub fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("bmi1")
        && std::arch::is_x86_feature_detected!("popcnt");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether this processor has the vectors of AVX-512 that also multiply 64-bit numbers.
#[inline(always)]
pub fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512dq")
        && std::arch::is_x86_feature_detected!("avx512vl");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Compiles a function three times, and calls the version for the widest vectors of this processor:
/// with AVX-512, with AVX2, or plain. Functions that it calls must always be inlined, or they are
/// compiled plain. That is also why this takes no closure: a closure called in three places is
/// inlined in none.
macro_rules! vectorized {
    ($(#[$about:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty $body:block) => {
        $(#[$about])*
        fn $name($($argument: $type),*) -> $result {
            #[inline(always)]
            fn plain($($argument: $type),*) -> $result $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx2,bmi1,bmi2,popcnt")]
                fn with_avx512($($argument: $type),*) -> $result {
                    plain($($argument),*)
                }
                #[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
                fn with_avx2($($argument: $type),*) -> $result {
                    plain($($argument),*)
                }
                if $crate::processor::has_avx2() && $crate::processor::Bmi2::detect().is_some() {
                    if $crate::processor::has_avx512() {
                        // SAFETY: just checked.
                        return unsafe { with_avx512($($argument),*) };
                    }
                    // SAFETY: just checked.
                    return unsafe { with_avx2($($argument),*) };
                }
            }
            plain($($argument),*)
        }
    };
}
pub(crate) use vectorized;

/// Evaluates an expression with the name bound to the best [`Processor`] of this machine.
macro_rules! on_best {
    ($processor:ident => $work:expr) => {
        match $crate::processor::Bmi2::detect() {
            Some($processor) => $processor.enabled(|| $work),
            None => {
                let $processor = $crate::processor::Plain;
                $work
            }
        }
    };
}
pub(crate) use on_best;
