//! A static function: the exact value of each of its keys, arbitrary values for others.

use super::AHEAD;
use super::build::{Equation, solve};
use super::shape::{Layout, Sizes};
use super::solution::{Solution, columns, parameters};
use crate::bits::Buffer;
use crate::error::{Error, Result};
use crate::format::{Head, Section};
use crate::hash::Hash128;
use crate::kernel::{Content, Kernel, Kind};
use crate::processor::on_best;
use std::sync::Arc;

/// Static functions.
pub static KIND: Kind = Kind {
    layer: true,
    ..Kind::new(6, "function", |head, sections, opening| {
        Ok(Arc::new(Function::from_frame(head, sections, opening.own)?))
    })
};

/// A function from hashes to values of a few bits.
pub struct Function {
    solution: Solution,
    count: u64,
}

impl Function {
    /// Builds the function with these values, given the slots of each level that bumps; equations
    /// are sorted and their hashes distinct.
    pub fn build(bits: u32, levels: &[u64], equations: &[Equation]) -> Result<Function> {
        let max = super::mask(bits);
        if let Some(large) = equations.iter().find(|equation| equation.value > max) {
            let message =
                format!("values must be at most {max} for {bits} bits, not {}", large.value);
            return Err(Error::Parameter(message));
        }
        let sizes = Sizes { columns: bits, levels, ..Sizes::default() };
        let solution = solve(Layout::Interleaved, sizes, equations.iter().copied())?;
        Ok(Function { solution, count: equations.len() as u64 })
    }

    /// Opens the function in a frame.
    pub fn from_frame(
        head: &Head,
        sections: &[Section<'_>],
        own: impl FnOnce(&[u8]) -> Result<Buffer>,
    ) -> Result<Function> {
        let (&[bits], rest) = parameters(head)?;
        let sizes = Sizes { columns: columns(bits)?, ..Sizes::default() };
        let layout = Layout::Interleaved;
        let solution = Solution::from_frame(layout, None, sizes, rest, sections, own)?;
        Ok(Function { solution, count: head.count })
    }

    /// Bits of a value.
    pub fn bits(&self) -> u32 {
        self.solution.shape.columns
    }

    /// The value of each hash.
    pub fn values(&self, hashes: &[Hash128], out: &mut [u32]) {
        let solution = &self.solution;
        on_best!(_processor => {
            for (i, (&hash, out)) in hashes.iter().zip(out).enumerate() {
                if let Some(&later) = hashes.get(i + AHEAD) {
                    solution.fetch(later);
                }
                *out = solution.value(hash);
            }
        });
    }

    /// Whether the lowest bit of each hash's value is set.
    pub fn ones(&self, hashes: &[Hash128], out: &mut [bool]) {
        let solution = &self.solution;
        on_best!(_processor => {
            for (i, (&hash, out)) in hashes.iter().zip(out).enumerate() {
                if let Some(&later) = hashes.get(i + AHEAD) {
                    solution.fetch(later);
                }
                *out = solution.value(hash) & 1 == 1;
            }
        });
    }

    /// [`Function::ones`] for one hash.
    pub fn one(&self, hash: Hash128) -> bool {
        on_best!(_processor => self.solution.value(hash) & 1 == 1)
    }
}

/// A function is saved like a filter but does not know its keys: it accepts all.
impl Kernel for Function {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn contains(&self, _hashes: &[Hash128], out: &mut [bool]) {
        out.fill(true);
    }

    fn count(&self) -> u64 {
        self.count
    }

    fn size_in_bits(&self) -> u64 {
        self.solution.shape.bits()
    }

    fn rate(&self) -> f64 {
        1.0
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        Ok(Arc::new(Function { solution: self.solution.copy()?, count: self.count }))
    }

    fn content(&self) -> Result<Content<'_>> {
        let own = u64::from(self.bits());
        let parameters = std::iter::once(own).chain(self.solution.sizes()).collect();
        let sections = vec![self.solution.section().stored()];
        Ok(Content { parameters, count: self.count, capacity: None, sections, lock: None })
    }
}
