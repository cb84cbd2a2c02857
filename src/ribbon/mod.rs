//! Ribbon: a value of r bits per key, stored as the solution of linear equations.
//!
//! A solution is m slots of r bits. A key's hash selects a few slots near each other, and the sum
//! (exclusive or) of these slots is the key's value: one equation over GF(2) per key. Since values
//! are arbitrary, the same method gives a filter, [`Ribbon`], where the value is a fingerprint
//! taken from the hash, and a static function, [`Function`], where the caller provides it.
//!
//! Invariant: every key's equation holds. An absent key's equation holds by chance:
//!
//! ```text
//! α = 2^−r      at m·r bits, m/n ≈ 1.005: close to the log2(1/α) bits per key that any filter needs
//! ```
//!
//! Rates in between are mixtures: a share g of the starts has one column more, which costs at most
//! 0.086 bits per key over log2(1/α) (g = 0.557):
//!
//! ```text
//! α = 2^−r·(1 − g/2)      at m·(r + g) bits
//! ```
//!
//! Equations are narrow so that building takes linear time and a query reads two words per column:
//! a row starts at slot ⌊hi·starts/2⁶⁴⌋ and has the coefficients lo, the first of them set
//! (Dillinger, Walzer 2021). Equations that do not fit are bumped, bucket by bucket, to a smaller
//! level, so that a level can be full and building never fails (Dillinger, Hübschle-Schneider,
//! Sanders, Walzer 2022). The last level has a few thousand equations at most, with rows of 256.
//!
//! In reading order: `shape.rs` (the memory layout), `solution.rs` (query), this file (the filter),
//! `function.rs` (the function), `system.rs` (equations and their solution), `build.rs` (bumping,
//! the last level).

mod build;
mod function;
mod shape;
mod solution;
mod system;
#[cfg(test)]
mod tests;

pub use build::Equation;
pub use function::{Function, KIND as KIND_FUNCTION};
pub use shape::{BUCKET, Layout, Level, MAX_COLUMNS, Shape, Sizes, THRESHOLDS};
pub use solution::{last_level, next_level, row, wide_row};
pub use system::Wide;

use crate::bits::Buffer;
use crate::distinct::Distinct;
use crate::error::Result;
use crate::format::{Head, Section};
use crate::hash::Hash128;
use crate::kernel::{Content, Kernel, Kind, by_high_half};
use crate::processor::on_best;
use solution::{Solution, columns, damaged, parameters};
use std::sync::Arc;

/// Ribbon filters.
pub static KIND: Kind = Kind {
    layer: true,
    ..Kind::new(5, "ribbon", |head, sections, opening| {
        Ok(Arc::new(Ribbon::from_frame(head, sections, opening.own)?))
    })
};
/// How many keys ahead words are prefetched.
const AHEAD: usize = 16;
/// In a frame, added to the number of the layout if there is an extra column.
const EXTRA: u64 = 2;

/// The value of a key of the filter: bits of the high half that hardly affect its place (the start
/// is its top bits), so independent of its equation.
#[inline(always)]
pub fn fingerprint(hash: Hash128) -> u32 {
    hash.hi as u32
}

/// The low `columns` bits.
#[inline(always)]
fn mask(columns: u32) -> u32 {
    u32::MAX.unbounded_shr(32u32.saturating_sub(columns))
}

/// A ribbon filter over hashes.
pub struct Ribbon {
    solution: Solution,
    count: u64,
}

impl Ribbon {
    /// Builds the filter of these distinct hashes; from `sizes`, it takes the columns, the share
    /// with one more and the levels that bump.
    pub fn build(layout: Layout, sizes: Sizes<'_>, hashes: &Distinct) -> Result<Ribbon> {
        let mask = mask(sizes.columns + u32::from(sizes.share > 0));
        let equation = |hash| Equation { hash, value: fingerprint(hash) & mask };
        let equations = hashes.sorted()?.map(equation);
        let solution = build::solve(layout, sizes, equations)?;
        Ok(Ribbon { solution, count: hashes.len() as u64 })
    }

    /// Opens the filter in a frame.
    pub fn from_frame(
        head: &Head,
        sections: &[Section<'_>],
        own: impl FnOnce(&[u8]) -> Result<Buffer>,
    ) -> Result<Ribbon> {
        let (&[form, whole, kept], mut rest) = parameters(head)?;
        let layout = Layout::numbered(form & !EXTRA);
        let layout = layout.ok_or_else(|| damaged("its layout is unknown"))?;
        let mut sizes = Sizes { columns: columns(whole)?, ..Sizes::default() };
        if form & EXTRA != 0 {
            let Some((&[share, extra_attempt, extra], others)) = rest.split_first_chunk() else {
                return Err(damaged("parameters are missing"));
            };
            let share = u32::try_from(share).ok().filter(|&share| share > 0);
            let share = share.ok_or_else(|| damaged("the share of its extra column is invalid"))?;
            (sizes, rest) = (Sizes { share, extra, extra_attempt, ..sizes }, others);
        }
        let solution = Solution::from_frame(layout, Some(kept), sizes, rest, sections, own)?;
        Ok(Ribbon { solution, count: head.count })
    }

    /// The order of its columns.
    pub fn layout(&self) -> Layout {
        self.solution.shape.layout
    }

    /// Bits of a column, and bits kept of all columns.
    pub fn column_bits(&self) -> (u64, u64) {
        (self.solution.shape.slots, self.solution.shape.kept)
    }

    /// The columns of all slots, and the share of the starts with one more, in units of 2⁻³².
    pub fn columns(&self) -> (u32, u32) {
        (self.solution.shape.columns, self.solution.shape.share)
    }

    /// The same filter with only the first `kept` bits of its columns.
    pub fn truncated(&self, kept: u64) -> Result<Ribbon> {
        Ok(Ribbon { solution: self.solution.cut(kept)?, count: self.count })
    }
}

impl Kernel for Ribbon {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn contains(&self, hashes: &[Hash128], out: &mut [bool]) {
        let solution = &self.solution;
        on_best!(_processor => {
            for (i, (&hash, out)) in hashes.iter().zip(out).enumerate() {
                if let Some(&later) = hashes.get(i + AHEAD) {
                    solution.fetch(later);
                }
                *out = solution.may_have(hash, fingerprint(hash));
            }
        });
    }

    fn fetch(&self, hashes: &[Hash128]) {
        hashes.iter().take(AHEAD).for_each(|&hash| self.solution.fetch(hash));
    }

    fn places(&self, hashes: &[Hash128], out: &mut [u64]) -> bool {
        by_high_half(hashes, out)
    }

    fn preload(&self, part: usize, parts: usize) {
        self.solution.preload(part, parts);
    }

    fn contains_one(&self, hash: Hash128) -> bool {
        on_best!(_processor => self.solution.may_have(hash, fingerprint(hash)))
    }

    fn count(&self) -> u64 {
        self.count
    }

    fn size_in_bits(&self) -> u64 {
        self.solution.shape.bits()
    }

    /// Exact: fingerprints are independent of rows.
    fn rate(&self) -> f64 {
        self.solution.rate()
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        Ok(Arc::new(Ribbon { solution: self.solution.copy()?, count: self.count }))
    }

    fn content(&self) -> Result<Content<'_>> {
        let shape = &self.solution.shape;
        let form = shape.layout as u64 | if shape.share > 0 { EXTRA } else { 0 };
        let mut parameters = vec![form, u64::from(shape.columns), shape.kept];
        if shape.share > 0 {
            parameters.extend([shape.share.into(), shape.extra.attempt, shape.extra.slots]);
        }
        parameters.extend(self.solution.sizes());
        let sections = vec![self.solution.section().stored()];
        Ok(Content { parameters, count: self.count, capacity: None, sections, lock: None })
    }
}
