//! Linear equations over GF(2) with narrow rows, solved incrementally.
//!
//! An equation has a start, a row of coefficients for the slots from there on, and a value of up to
//! 32 bits: 32 systems with the same left side, one per column. Invariant: the row stored at slot i
//! has its first coefficient at i, so the rows are always in echelon form. A new row is reduced by
//! the stored rows until it reaches an empty slot (Dillinger and Walzer 2021, section 2); a row
//! that vanishes depends on earlier ones.

use crate::error::{Error, Result};
use crate::interrupt;
use crate::memory;

/// The coefficients of an equation, from its start on: bit i belongs to slot start + i.
pub trait Row: Copy {
    /// The number of slots that a row can reach.
    const WIDTH: u64;
    /// The row without coefficients.
    const ZERO: Self;
    /// Whether the first coefficient is set.
    fn leads(self) -> bool;
    /// The number of coefficients before the first that is set; `WIDTH` if none is.
    fn zeros(self) -> u32;
    /// Without the first `count` coefficients, fewer than `WIDTH`.
    fn skip(self, count: u32) -> Self;
    /// The sum of two rows.
    fn plus(self, other: Self) -> Self;
    /// The product: whether they have an odd number of coefficients in common.
    fn times(self, other: Self) -> u64;
    /// Moved one slot earlier, with this first bit.
    fn before(self, bit: u64) -> Self;
    /// The first 64 coefficients.
    fn word(self) -> u64;
}

impl Row for u64 {
    const WIDTH: u64 = 64;
    const ZERO: u64 = 0;

    #[inline(always)]
    fn leads(self) -> bool {
        self & 1 == 1
    }

    #[inline(always)]
    fn zeros(self) -> u32 {
        self.trailing_zeros()
    }

    #[inline(always)]
    fn skip(self, count: u32) -> u64 {
        self >> count
    }

    #[inline(always)]
    fn plus(self, other: u64) -> u64 {
        self ^ other
    }

    #[inline(always)]
    fn times(self, other: u64) -> u64 {
        u64::from((self & other).count_ones() & 1)
    }

    #[inline(always)]
    fn before(self, bit: u64) -> u64 {
        self << 1 | bit
    }

    #[inline(always)]
    fn word(self) -> u64 {
        self
    }
}

/// Words of a [`Wide`] row.
pub const WORDS: usize = 4;

/// A row of 256 coefficients, for systems so small that every slot counts.
pub type Wide = [u64; WORDS];

impl Row for Wide {
    const WIDTH: u64 = 64 * WORDS as u64;
    const ZERO: Wide = [0; WORDS];

    #[inline(always)]
    fn leads(self) -> bool {
        self[0] & 1 == 1
    }

    fn zeros(self) -> u32 {
        let whole = self.iter().take_while(|&&word| word == 0).count();
        64 * whole as u32 + self.get(whole).map_or(0, |word| word.trailing_zeros())
    }

    fn skip(self, count: u32) -> Wide {
        let (whole, rest) = ((count / 64) as usize, count % 64);
        std::array::from_fn(|i| {
            let word = |i: usize| self.get(i).copied().unwrap_or(0);
            // Shifts by 63 − rest and by one more, since a shift by 64 is not possible.
            word(i + whole) >> rest | word(i + whole + 1) << 1 << (63 - rest)
        })
    }

    #[inline(always)]
    fn plus(self, other: Wide) -> Wide {
        std::array::from_fn(|i| self[i] ^ other[i])
    }

    #[inline(always)]
    fn times(self, other: Wide) -> u64 {
        (0..WORDS).fold(0, |sum, i| sum ^ self[i] & other[i]).times(u64::MAX)
    }

    #[inline(always)]
    fn before(self, bit: u64) -> Wide {
        std::array::from_fn(|i| self[i] << 1 | if i == 0 { bit } else { self[i - 1] >> 63 })
    }

    #[inline(always)]
    fn word(self) -> u64 {
        self[0]
    }
}

/// The result of adding an equation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// Its row is stored at this slot.
    At(usize),
    /// It follows from the others.
    Implied,
    /// It contradicts the others; nothing has changed.
    Refused,
}

/// Equations in echelon form.
pub struct System<R> {
    rows: Vec<R>,
    values: Vec<u32>,
}

impl<R: Row> System<R> {
    /// A system without equations, over this many slots.
    pub fn new(slots: u64) -> Result<System<R>> {
        Ok(System { rows: filled(slots, R::ZERO)?, values: filled(slots, 0)? })
    }

    /// The number of unknowns.
    pub fn slots(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Adds an equation; `start` and its last coefficient lie within the slots.
    #[inline(always)]
    pub fn add(&mut self, start: u64, row: R, value: u32) -> Added {
        let (mut slot, mut row, mut value) = (start as usize, row, value);
        loop {
            let zeros = row.zeros();
            if u64::from(zeros) == R::WIDTH {
                return if value == 0 { Added::Implied } else { Added::Refused };
            }
            slot += zeros as usize;
            row = row.skip(zeros);
            let kept = &mut self.rows[slot];
            if !kept.leads() {
                *kept = row;
                self.values[slot] = value;
                return Added::At(slot);
            }
            row = row.plus(*kept);
            value ^= self.values[slot];
        }
    }

    /// Removes the last equation that was added and not yet removed, stored at `slot`: no other row
    /// was reduced by it.
    pub fn take_back(&mut self, slot: usize) {
        self.rows[slot] = R::ZERO;
    }

    /// Solves for `columns` bits per slot and one more for the last `wide` slots, in complete
    /// blocks, from the last slot to the first; undetermined unknowns are 0. `emit(block, column,
    /// word)` is called with the solution 64 slots at a time.
    #[inline(always)]
    pub fn solve(&self, columns: usize, wide: u64, mut emit: impl FnMut(usize, usize, u64)) {
        // By column: the solution of the slots after the current one, nearest first.
        let mut solved = [R::ZERO; 32];
        let narrow = self.rows.len() - wide as usize;
        for slot in (0..self.rows.len()).rev() {
            let (row, value) = (self.rows[slot], self.values[slot]);
            let solved = &mut solved[..columns + usize::from(slot >= narrow)];
            // An absent row is zero, and so is its product with the value.
            let there = u64::from(row.leads());
            for (column, solved) in solved.iter_mut().enumerate() {
                let behind = solved.before(0);
                let bit = row.times(behind) ^ (u64::from(value >> column) & there);
                *solved = solved.before(bit);
            }
            if slot % 64 == 0 {
                if slot % 4096 == 0 {
                    interrupt::check();
                }
                for (column, solved) in solved.iter().enumerate() {
                    emit(slot / 64, column, solved.word());
                }
            }
        }
    }
}

fn filled<T: Clone>(count: u64, value: T) -> Result<Vec<T>> {
    let refused = || Error::Memory(format!("cannot allocate {count} equations to build a ribbon"));
    let count = usize::try_from(count).map_err(|_| refused())?;
    memory::filled(count, value).map_err(|_| refused())
}
