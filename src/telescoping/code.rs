//! The shortest code of the selectors of 64 slots.
//!
//! Most elements were never mistaken for another key, and the others only a few times. Let `S₁` be
//! the slots with a selector of 1 or more, `S₂ ⊆ S₁` the slots with 2 or more, and so on until a
//! set is empty. The code stores the size of each set and its rank among the subsets of that size
//!
//! ```text
//! |S₁| of 64, rank(S₁) < C(64, |S₁|);  |S₂| of |S₁|, rank(S₂) < C(|S₁|, |S₂|);  …;  0
//! ```
//!
//! in ⌈log₂⌉ bits each, from the lowest on: an arithmetic code by enumeration (Cover 1973), whose
//! model is refitted for each block, since the sizes are the observed distribution. It needs no
//! division, comes within a few bits of the entropy, and a block where nothing moved takes none.
//! The rank of slots `p₁ < … < pₖ` is `ΣC(pᵢ, i)`: the combinatorial number system.
//!
//! The selectors of an [`Extending`](super::Mode) filter have bits in addition to their length:
//! these follow, slot by slot.

/// Slots per block, so selectors per code.
pub const SELECTORS: usize = 64;
/// The selectors of a block's slots. See [`super::Mode`] for their meaning; 0 is "never moved".
pub type Selectors = [u64; SELECTORS];

/// The highest number of steps, so that it fits a byte.
pub const MAX_STEPS: u64 = 255;
/// The position of the length in an extending selector; its bits are below.
pub const LENGTH_SHIFT: u32 = 56;
/// Maximum length of an extending selector in bits.
pub const MAX_LENGTH: u64 = 40;

/// Bytes of the longest code: 255 sizes of 7 bits, the ranks of 64 selectors of 8 bits, and a bit
/// of rounding for each; or the same for 40 steps and 64·40 bits behind them; in groups, 16 + 64·(1
/// + 7 + 8 + 40) bits.
const MAX_BYTES: usize = 450;
/// Zero bytes behind a code, so that any field of up to 64 bits can be read by one load.
pub const PADDING: usize = 16;

/// `BINOMIALS[k][n]` = C(n, k).
static BINOMIALS: [[u64; 65]; 65] = binomials();

const fn binomials() -> [[u64; 65]; 65] {
    let mut table = [[0u64; 65]; 65];
    let mut n = 0;
    while n <= 64 {
        table[0][n] = 1;
        let mut k = 1;
        while k <= n {
            table[k][n] = table[k - 1][n - 1] + table[k][n - 1];
            k += 1;
        }
        n += 1;
    }
    table
}

/// Bits needed for numbers below `count`.
#[inline(always)]
fn width(count: u64) -> usize {
    (64 - count.saturating_sub(1).leading_zeros()) as usize
}

/// Bits of a set's size, and of its rank.
#[inline(always)]
fn size_width(of: usize) -> usize {
    width(of as u64 + 1)
}

#[inline(always)]
fn rank_width(of: usize, size: usize) -> usize {
    width(BINOMIALS[size][of])
}

/// The largest `p` below 64 with C(p, k) ≤ rank, for k ≥ 1.
#[inline(always)]
fn highest(k: usize, rank: u64) -> usize {
    if k == 1 {
        return rank.min(63) as usize;
    }
    let column = &BINOMIALS[k];
    let mut p = 0;
    for step in [32, 16, 8, 4, 2, 1] {
        p += if column[p + step] <= rank { step } else { 0 };
    }
    p
}

/// A code being written.
pub struct Code {
    bytes: [u8; MAX_BYTES + PADDING],
    bits: usize,
}

impl Code {
    /// The code of selectors that are all 0.
    pub(super) fn new() -> Code {
        Code { bytes: [0; MAX_BYTES + PADDING], bits: 0 }
    }

    /// Encodes selectors; `extending` if they have bits behind their steps.
    pub fn of(selectors: &Selectors, extending: bool) -> Code {
        let mut code = Code::new();
        let steps = |selector: u64| if extending { selector >> LENGTH_SHIFT } else { selector };
        let mut members = [0u64; SELECTORS];
        for (member, selector) in members.iter_mut().zip(selectors) {
            *member = steps(*selector);
        }
        let mut of = SELECTORS;
        loop {
            // The members of the next set move to the front, in order, one step less each.
            let (mut size, mut rank) = (0, 0u64);
            for i in 0..of {
                if members[i] > 0 {
                    members[size] = members[i] - 1;
                    size += 1;
                    rank += BINOMIALS[size][i];
                }
            }
            if size == 0 && code.bits == 0 {
                return code;
            }
            code.push(size as u64, size_width(of));
            if size == 0 {
                break;
            }
            code.push(rank, rank_width(of, size));
            of = size;
        }
        if extending {
            for selector in selectors.iter().filter(|selector| **selector != 0) {
                code.push(selector & ((1 << LENGTH_SHIFT) - 1), steps(*selector) as usize);
            }
        }
        code
    }

    /// A byte for each selector, uncoded.
    pub fn plain(selectors: &Selectors) -> Code {
        let mut code = Code { bytes: [0; MAX_BYTES + PADDING], bits: 8 * SELECTORS };
        for (byte, selector) in code.bytes.iter_mut().zip(selectors) {
            *byte = *selector as u8;
        }
        code
    }

    /// The bytes; empty if all selectors are 0.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.bits.div_ceil(8)]
    }

    /// Appends a number of this many bits, at most 64.
    #[inline(always)]
    pub(super) fn push(&mut self, value: u64, width: usize) {
        let at = self.bits / 8;
        let mut word = [0; 16];
        word.copy_from_slice(&self.bytes[at..at + 16]);
        let word = u128::from_le_bytes(word) | u128::from(value) << (self.bits % 8);
        self.bytes[at..at + 16].copy_from_slice(&word.to_le_bytes());
        self.bits += width;
    }
}

/// Reads a code from the start of `bytes`, which may continue behind it.
struct Reader<'a> {
    bytes: &'a [u8],
    bits: usize,
}

impl Reader<'_> {
    #[inline(always)]
    fn take(&mut self, width: usize) -> u64 {
        let mut word = [0; 16];
        let at = self.bits / 8;
        if let Some(loaded) = self.bytes.get(at..at + 16) {
            word.copy_from_slice(loaded);
        }
        let word = (u128::from_le_bytes(word) >> (self.bits % 8)) as u64;
        self.bits += width;
        if width >= 64 { word } else { word & ((1 << width) - 1) }
    }
}

/// The steps of the selector of one slot, from a code with [`PADDING`] bytes behind it.
#[inline(always)]
pub fn steps_of(bytes: &[u8], slot: usize) -> u64 {
    let mut reader = Reader { bytes, bits: 0 };
    let (mut of, mut place, mut steps) = (SELECTORS, slot, 0);
    while steps < MAX_STEPS {
        let size = (reader.take(size_width(of)) as usize).min(of);
        if size == 0 {
            return steps;
        }
        let mut rank = reader.take(rank_width(of, size));
        let mut k = size;
        // From the highest member down to the first that is at or below the position.
        let found = loop {
            let p = highest(k, rank);
            if p <= place {
                break p == place;
            }
            rank -= BINOMIALS[k][p];
            k -= 1;
            if k == 0 {
                break false;
            }
        };
        if !found {
            return steps;
        }
        (of, place, steps) = (size, k - 1, steps + 1);
    }
    steps
}

/// Decodes selectors from a code with [`PADDING`] bytes behind it; also returns the length of the
/// code in bits. `None` if it is not a valid code.
pub fn decode(bytes: &[u8], extending: bool) -> Option<(Selectors, usize)> {
    let mut selectors = [0; SELECTORS];
    let mut reader = Reader { bytes, bits: 0 };
    let mut slots: [u8; SELECTORS] = std::array::from_fn(|slot| slot as u8);
    let (mut of, max) = (SELECTORS, if extending { MAX_LENGTH } else { MAX_STEPS });
    loop {
        let size = reader.take(size_width(of)) as usize;
        if size == 0 {
            break;
        }
        if size > of {
            return None;
        }
        let mut rank = reader.take(rank_width(of, size));
        if rank >= BINOMIALS[size][of] {
            return None;
        }
        let mut members = [0u8; SELECTORS];
        for k in (1..=size).rev() {
            let p = highest(k, rank);
            rank -= BINOMIALS[k][p];
            members[k - 1] = slots[p];
            selectors[usize::from(slots[p])] += 1;
            if selectors[usize::from(slots[p])] > max {
                return None;
            }
        }
        (slots, of) = (members, size);
    }
    if extending {
        for selector in selectors.iter_mut().filter(|selector| **selector != 0) {
            *selector = *selector << LENGTH_SHIFT | reader.take(*selector as usize);
        }
    }
    (reader.bits <= 8 * bytes.len().saturating_sub(PADDING)).then_some((selectors, reader.bits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::mix13;

    fn padded(code: &Code) -> Vec<u8> {
        [code.bytes(), &[0; PADDING]].concat()
    }

    fn check(selectors: &Selectors, extending: bool) -> usize {
        let code = Code::of(selectors, extending);
        let bytes = padded(&code);
        if code.bytes().is_empty() {
            assert!(selectors.iter().all(|selector| *selector == 0));
            return 0;
        }
        let (decoded, bits) = decode(&bytes, extending).unwrap();
        assert_eq!((decoded, bits), (*selectors, code.bits));
        for (slot, selector) in selectors.iter().enumerate() {
            let steps = if extending { selector >> LENGTH_SHIFT } else { *selector };
            assert_eq!(steps_of(&bytes, slot), steps);
        }
        code.bits
    }

    #[test]
    fn every_selector_round_trips() {
        let mut random = 1;
        let mut next = || {
            random = mix13(random + 1);
            random
        };
        for density in [1u64, 5, 20, 80, 200, 256] {
            for max in [1u64, 2, 6, 40] {
                for _ in 0..60 {
                    let selectors: Selectors = std::array::from_fn(|_| {
                        if next() % 256 < density { next() % max + 1 } else { 0 }
                    });
                    check(&selectors, false);
                    check(&selectors.map(|m| m << LENGTH_SHIFT | next() & ((1 << m) - 1)), true);
                }
            }
        }
        assert_eq!(check(&[0; SELECTORS], false), 0);
        check(&[MAX_STEPS; SELECTORS], false);
        check(&std::array::from_fn(|slot| 4 * slot as u64), false);
        check(&[MAX_LENGTH << LENGTH_SHIFT | ((1 << MAX_LENGTH) - 1); SELECTORS], true);
    }

    #[test]
    fn the_longest_codes_fit() {
        // The worst cases: every set half of the one before, or one element less.
        let halves: Selectors =
            std::array::from_fn(|slot| MAX_STEPS.min(MAX_STEPS - 6 + slot.trailing_zeros() as u64));
        check(&halves, false);
        let falling: Selectors = std::array::from_fn(|slot| MAX_STEPS - (slot as u64 * 37) % 64);
        check(&falling, false);
        let long = |slot: usize| (MAX_LENGTH - slot as u64 % 40) << LENGTH_SHIFT;
        check(&std::array::from_fn(long), true);
    }

    #[test]
    fn codes_are_near_the_entropy() {
        // Selectors after random queries: Poisson with mean λ. The sizes cost some bits per block.
        let mut random = 7;
        for lambda in [0.074f64, 0.186, 0.371] {
            let (mut bits, blocks) = (0, 2000);
            for _ in 0..blocks {
                let selectors: Selectors = std::array::from_fn(|_| {
                    random = mix13(random + 1);
                    let mut uniform = random as f64 / 2f64.powi(64);
                    let (mut p, mut k) = ((-lambda).exp(), 0);
                    while uniform > p && k < 20 {
                        uniform -= p;
                        k += 1;
                        p *= lambda / k as f64;
                    }
                    k
                });
                bits += check(&selectors, false);
            }
            let mut entropy = 0.0;
            let mut p = (-lambda).exp();
            for k in 1..20 {
                entropy -= p * p.log2();
                p *= lambda / f64::from(k);
            }
            let per_block = bits as f64 / f64::from(blocks);
            assert!(per_block > 64.0 * entropy && per_block < 64.0 * entropy + 12.0);
        }
    }

    #[test]
    fn any_bytes_are_safe() {
        let mut random = 3;
        for length in 0..40 {
            for _ in 0..300 {
                let mut bytes = vec![0; length];
                for byte in &mut bytes {
                    random = mix13(random + 1);
                    *byte = random as u8 & (random >> 8) as u8;
                }
                bytes.extend([0; PADDING]);
                for extending in [false, true] {
                    if let Some((selectors, bits)) = decode(&bytes, extending) {
                        let code = Code::of(&selectors, extending);
                        assert!(code.bits == bits || code.bits == 0 && bits == 7);
                    }
                }
                for slot in 0..SELECTORS {
                    steps_of(&bytes, slot);
                }
            }
        }
    }
}
