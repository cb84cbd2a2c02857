//! Sizes of windowed filters, and the positions of a hash.

use crate::bits::reduce;
use crate::error::{Error, Result};
use crate::hash::{Hash128, mix13};

/// Maximum number of slices.
pub const MAX_SLICES: u64 = 256;
/// The shortest generation in seconds: the number of a shorter one would overflow in this century.
const MIN_STEP: f64 = 1e-6;

/// Sizes of a windowed filter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Slices that a key is written to (k).
    pub hashes: u64,
    /// Generations that a key is remembered after its own (l).
    pub ages: u64,
    /// Bits of a slice, in whole words.
    pub slice_bits: u64,
    /// Keys of a generation (g): the exact number, or the planned number if generations are by
    /// time.
    pub generation: u64,
    /// Seconds of a generation, or 0 if generations are counted in keys.
    pub step: f64,
}

impl Shape {
    /// A shape, or an error that says why it is invalid.
    pub fn new(
        hashes: u64,
        ages: u64,
        slice_bits: u64,
        generation: u64,
        step: f64,
    ) -> Result<Shape> {
        let refuse = |message: String| Err(Error::Parameter(message));
        if hashes == 0 || ages == 0 || hashes.saturating_add(ages) > MAX_SLICES {
            return refuse(format!(
                "hashes and ages must be at least 1 and together at most {MAX_SLICES}, not {hashes} \
                 and {ages}"
            ));
        }
        if slice_bits == 0 || !slice_bits.is_multiple_of(64) || slice_bits > 1 << 48 {
            return refuse(format!(
                "slice_bits must be a multiple of 64 up to 2**48, not {slice_bits}"
            ));
        }
        if generation == 0 || generation > 1 << 48 {
            return refuse(format!("generation must be from 1 to 2**48, not {generation}"));
        }
        if step.to_bits() != 0 && !(MIN_STEP..1e15).contains(&step) {
            return refuse(format!(
                "step must be 0, or from {MIN_STEP} to 1e15 seconds, not {step}"
            ));
        }
        Ok(Shape { hashes, ages, slice_bits, generation, step })
    }

    pub(super) fn slices(&self) -> u64 {
        self.hashes + self.ages
    }

    pub(super) fn bytes(&self) -> usize {
        (self.slices() * self.slice_bits / 8) as usize
    }

    /// Whether generations are counted in seconds.
    pub fn timed(&self) -> bool {
        self.step > 0.0
    }

    /// The generation of a time in seconds, from 1 on; `None` for an invalid time.
    pub fn generation_at(&self, seconds: f64) -> Option<u64> {
        let generation = (seconds / self.step).floor();
        (0.0..9e15).contains(&generation).then_some(generation as u64 + 1)
    }

    /// The slice of an age, given the `newest` slice, of age 0.
    #[inline(always)]
    pub(super) fn slice(&self, newest: u64, age: u64) -> u64 {
        let slice = newest + age;
        if slice < self.slices() { slice } else { slice - self.slices() }
    }

    /// The bit of a hash in a slice.
    #[inline(always)]
    pub(super) fn position(&self, hash: Hash128, slice: u64) -> u64 {
        let probe = mix13(hash.hi.wrapping_add(hash.lo.wrapping_mul(slice)));
        slice * self.slice_bits + reduce(probe, self.slice_bits)
    }
}
