//! A key's hash as an endless stream of bits, and the bits that a selector selects.

use super::code::{LENGTH_SHIFT, MAX_LENGTH, MAX_STEPS};
use crate::hash::{GOLDEN, Hash128, mix13};
use crate::quotient::Table;

/// How an element moves away from a key that it was mistaken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It slides: under selector `i` the slot holds bits `i·r` to `i·r + r`.
    Telescoping,
    /// It grows: the `ℓ` bits of the selector follow the `r` bits in the slot.
    Extending,
}

/// The bits of a key behind its quotient: first the 64 bits of [`Table::split`], then any number,
/// 64 at a time, by a mix of the hash's low half.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    fraction: u64,
    lo: u64,
}

impl Stream {
    /// The quotient of a hash, and the bits behind it.
    #[inline(always)]
    pub fn new(table: &Table, hash: Hash128) -> (u64, Stream) {
        let (quotient, fraction) = table.split(hash);
        (quotient, Stream { fraction, lo: hash.lo })
    }

    /// `width` bits (1 to 56) from bit `at` on, the first of them highest.
    #[inline(always)]
    pub fn window(self, at: u64, width: u32) -> u64 {
        if at + u64::from(width) <= 64 {
            return self.fraction << at >> (64 - width);
        }
        let (word, bit) = (at / 64, at % 64);
        let pair = u128::from(self.word(word)) << 64 | u128::from(self.word(word + 1));
        (pair << bit >> (128 - width)) as u64
    }

    #[inline(always)]
    fn word(self, index: u64) -> u64 {
        match index {
            0 => self.fraction,
            index => mix13(self.lo.wrapping_add(GOLDEN.wrapping_mul(index))),
        }
    }

    /// The content of the key's slot under a selector.
    #[inline(always)]
    pub fn remainder(self, mode: Mode, bits: u32, selector: u64) -> u64 {
        match mode {
            Mode::Telescoping => self.window(selector * u64::from(bits), bits),
            Mode::Extending => self.window(0, bits),
        }
    }

    /// Whether a slot may belong to the key.
    #[inline(always)]
    pub fn fits(self, mode: Mode, bits: u32, (remainder, selector): (u64, u64)) -> bool {
        self.remainder(mode, bits, selector) == remainder
            && (mode == Mode::Telescoping
                || self.extended(bits, selector >> LENGTH_SHIFT) == selector)
    }

    /// The selector of an extending filter with this many of the key's bits.
    pub fn extended(self, bits: u32, length: u64) -> u64 {
        match length {
            0 => 0,
            _ => length << LENGTH_SHIFT | self.window(u64::from(bits), length as u32),
        }
    }

    /// The first selector from `selector` on that separates the key from another; after the last
    /// selector, the search wraps around. `None` if no selector does.
    pub fn apart(self, other: Stream, mode: Mode, bits: u32, selector: u64) -> Option<u64> {
        match mode {
            Mode::Telescoping => {
                let differ = |selector: &u64| {
                    self.remainder(mode, bits, *selector) != other.remainder(mode, bits, *selector)
                };
                (selector..=MAX_STEPS).find(differ).or_else(|| (0..selector).find(differ))
            }
            Mode::Extending => (selector >> LENGTH_SHIFT..=MAX_LENGTH)
                .map(|length| self.extended(bits, length))
                .find(|selector| other.extended(bits, selector >> LENGTH_SHIFT) != *selector),
        }
    }
}
