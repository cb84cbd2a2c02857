//! Levels to sums: an ensemble of oblivious trees, as CatBoost grows them (Prokhorenkova et al.
//! 2018).
//!
//! All nodes of one depth of an oblivious tree have the same split, so the outcomes, as bits, are
//! the number of the leaf:
//!
//! ```text
//! leaf = Σ_d 2^d · [level[feature of d] > level of d]
//! ```
//!
//! A tree of D splits takes 3·D instructions for 32 rows; a tree of 2^D leaves with a split per
//! node takes 3·(2^D − 1).

use super::leaves::Leaves;
use super::{BLOCK, Lanes};
use crate::error::Result;
use crate::memory::TryGrow;

/// Maximum number of splits per tree.
pub const MAX_DEPTH: usize = 7;

/// A split: is this feature above this level?
#[derive(Clone, Copy)]
pub struct Split {
    pub feature: u16,
    pub level: i8,
}

/// The trees, one after the other.
#[derive(Default)]
pub struct Oblivious {
    splits: Vec<Split>,
    /// By tree: the number of splits, and the values of its leaves.
    trees: Vec<(usize, Leaves)>,
}

impl Oblivious {
    /// Reserves memory for a tree of this many splits.
    pub fn reserve(&mut self, splits: usize) -> Result<()> {
        self.splits.reserve_more(splits)?;
        self.trees.reserve_more(1)
    }

    /// Appends a tree over this many features, or returns `None` if it is invalid.
    pub fn push(&mut self, splits: &[Split], leaves: &[i16], features: usize) -> Option<()> {
        let known = splits.iter().all(|split| usize::from(split.feature) < features);
        if splits.len() > MAX_DEPTH || leaves.len() != 1 << splits.len() || !known {
            return None;
        }
        self.trees.push((splits.len(), Leaves::new(leaves)?));
        self.splits.extend_from_slice(splits);
        Some(())
    }

    /// Adds to each row's sum the value of its leaf in each tree.
    #[inline(always)]
    pub fn add(&self, levels: &[Lanes], sums: &mut [i32; BLOCK]) {
        let mut splits = &self.splits[..];
        for (depth, leaves) in &self.trees {
            let (own, rest) = splits.split_at(*depth);
            splits = rest;
            let mut chosen = [0u8; BLOCK];
            for (d, split) in own.iter().enumerate() {
                let bit = 1u8 << d;
                let column = &levels[usize::from(split.feature)];
                for (chosen, &level) in chosen.iter_mut().zip(column) {
                    *chosen |= u8::from(level > split.level).wrapping_neg() & bit;
                }
            }
            leaves.add(&chosen, sums);
        }
    }
}
