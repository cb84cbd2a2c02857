//! A classifier as flat data: it gives a learned filter the score of a key, in [0, 1].
//!
//! A model reads a row in two steps. First each feature becomes a *level*, a small integer: for a
//! number, how many thresholds it exceeds; for a category, the level of its bucket; for text, how
//! often the n-grams of a bucket occur. Then a head adds integers up,
//!
//! ```text
//! linear   sum = Σ_f weight[f][level_f]          (text: Σ weight[bucket] / √n-grams)
//! trees    sum = Σ_t leaf[t][where the levels lead in tree t]
//! score    = 1 / (1 + exp(−(bias + scale · sum)))
//! ```
//!
//! Levels and sums are integers, and the last line uses only +, ×, ÷ and √ as IEEE 754 rounds them,
//! so a score is the same on every machine: a key that was on one side of a threshold when a filter
//! was built stays there. `tamis.learned` trains models and writes them flat (`docs/format.md`).
//! Nothing here executes code from a file; it only looks up values.
//!
//! * `table.rs`: numbers and categories to levels
//! * `grams.rs`: text to levels
//! * `trees.rs`, `oblivious.rs`: levels to leaves
//! * `leaves.rs`: leaves to sums
//! * `frame.rs`: bytes to a model, all of them validated

mod frame;
mod grams;
mod leaves;
mod oblivious;
mod table;
#[cfg(test)]
mod tests;
mod trees;

use crate::error::Result;
use crate::format::{SECTION_BITS, Section};
use crate::hash::Hash128;
use crate::interrupt;
use crate::kernel::{Content, Kernel, Kind};
use crate::memory;
use crate::processor::has_avx2;
use grams::Used;
pub use grams::{Grams, MAX_GRAM};
use oblivious::Oblivious;
use std::sync::Arc;
pub use table::{Feature, Levels, Rows};
use trees::Trees;

/// Models.
pub static KIND: Kind =
    Kind::new(17, "model", |head, sections, _| Ok(Arc::new(Model::from_frame(head, sections)?)));
/// Rows that are scored together: their levels and the state of a tree stay in the first cache.
pub const BLOCK: usize = 128;

/// The level of each row of a block: from 0 to 127, signed because vector instructions compare
/// signed bytes.
pub type Lanes = [i8; BLOCK];
/// Maximum number of levels per feature.
const MAX_LEVELS: u8 = 128;

/// The input of a model.
enum Input {
    Table(Vec<Feature>),
    Text(Grams),
}

/// How levels become a sum.
enum Head {
    /// The weights of all levels, one feature (or bucket) after the other.
    Linear(Vec<i8>),
    Trees {
        trees: Forest,
        /// For text: the buckets that the trees use.
        used: Used,
    },
}

enum Forest {
    /// Every node has its own split.
    Branching(Trees),
    /// All nodes of a depth share a split.
    Oblivious(Oblivious),
}

/// A trained classifier.
pub struct Model {
    input: Input,
    head: Head,
    scale: f64,
    bias: f64,
    /// The number of training rows.
    count: u64,
    /// The flat form, as in the frame.
    flat: Vec<u8>,
}

/// Working memory to score blocks.
pub struct Block {
    levels: Vec<Lanes>,
    /// Σ weight / √n-grams of each row of text.
    sums: [f64; BLOCK],
    state: Box<trees::State>,
}

impl Model {
    /// Whether it reads text rather than a table.
    pub fn reads_text(&self) -> bool {
        matches!(self.input, Input::Text(_))
    }

    /// The features of a table that it reads.
    pub fn features(&self) -> &[Feature] {
        match &self.input {
            Input::Table(features) => features,
            Input::Text(_) => &[],
        }
    }

    /// How many levels a row has.
    pub fn width(&self) -> usize {
        match (&self.input, &self.head) {
            (Input::Table(features), _) => features.len(),
            (_, Head::Trees { used, .. }) => used.len(),
            (_, Head::Linear(_)) => 0,
        }
    }

    /// Working memory for a block of this model.
    pub fn block(&self) -> Result<Block> {
        let levels = memory::filled(self.width(), [0; BLOCK])?;
        Ok(Block { levels, sums: [0.0; BLOCK], state: trees::State::new() })
    }

    /// The scores of rows of a table, from `first` on.
    pub fn score_rows<R: Rows>(
        &self,
        rows: &R,
        first: usize,
        out: &mut [f32],
        block: &mut Block,
    ) -> std::result::Result<(), R::Error> {
        for (i, out) in out.chunks_mut(BLOCK).enumerate() {
            interrupt::check();
            self.levels(rows, first + i * BLOCK, out.len(), block)?;
            self.finish(block, out);
        }
        Ok(())
    }

    /// The levels of up to [`BLOCK`] rows of a table, one feature after the other.
    fn levels<R: Rows>(
        &self,
        rows: &R,
        first: usize,
        count: usize,
        block: &mut Block,
    ) -> std::result::Result<(), R::Error> {
        for (i, (feature, levels)) in self.features().iter().zip(&mut block.levels).enumerate() {
            feature.levels(rows, i, first, &mut levels[..count])?;
        }
        Ok(())
    }

    /// Reads the text of one row of the block; rows come in order.
    pub fn read_text(&self, row: usize, text: &[u8], block: &mut Block) {
        let Input::Text(grams) = &self.input else { return };
        match &self.head {
            Head::Linear(weights) => {
                let (mut sum, mut total) = (0i64, 0u64);
                grams.each(text, |bucket| {
                    sum += i64::from(weights[bucket as usize]);
                    total += 1;
                });
                block.sums[row] = sum as f64 / (total.max(1) as f64).sqrt();
            }
            Head::Trees { used, .. } => used.count(grams, text, row, &mut block.levels),
        }
    }

    /// The scores of the rows whose text was read.
    pub fn score_text(&self, block: &mut Block, out: &mut [f32]) {
        self.finish(block, out);
    }

    /// The scores of the rows whose levels or text sums are in the block.
    fn finish(&self, block: &mut Block, out: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,popcnt")]
            fn wide(model: &Model, block: &mut Block, out: &mut [f32]) {
                model.finish_plain(block, out);
            }
            if has_avx2() {
                // SAFETY: just checked.
                return unsafe { wide(self, block, out) };
            }
        }
        self.finish_plain(block, out);
    }

    #[inline(always)]
    fn finish_plain(&self, block: &mut Block, out: &mut [f32]) {
        match (&self.head, &self.input) {
            (Head::Linear(_), Input::Text(_)) => {
                for (out, sum) in out.iter_mut().zip(block.sums) {
                    *out = self.score(sum);
                }
            }
            (Head::Linear(weights), Input::Table(features)) => {
                let mut sums = [0; BLOCK];
                let mut weights = &weights[..];
                for (feature, levels) in features.iter().zip(&block.levels) {
                    let (own, rest) = weights.split_at(feature.count());
                    for (sum, &level) in sums.iter_mut().zip(levels) {
                        *sum += i32::from(own[level as usize]);
                    }
                    weights = rest;
                }
                self.score_sums(&sums, out);
            }
            (Head::Trees { trees, .. }, _) => {
                let mut sums = [0; BLOCK];
                match trees {
                    Forest::Branching(trees) => {
                        trees.add(&block.levels, &mut block.state, &mut sums);
                    }
                    Forest::Oblivious(trees) => trees.add(&block.levels, &mut sums),
                }
                self.score_sums(&sums, out);
            }
        }
    }

    #[inline(always)]
    fn score_sums(&self, sums: &[i32; BLOCK], out: &mut [f32]) {
        let mut all = [0.0; BLOCK];
        for (out, &sum) in all.iter_mut().zip(sums) {
            *out = self.score(f64::from(sum));
        }
        out.copy_from_slice(&all[..out.len()]);
    }

    #[inline(always)]
    fn score(&self, sum: f64) -> f32 {
        sigmoid(self.bias + self.scale * sum) as f32
    }
}

/// 1 / (1 + e^−x), from operations that every machine rounds alike; the error is below 10⁻¹⁰.
#[inline(always)]
fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + exp(-x))
}

/// e^x for |x| up to 40; beyond, a score is 0 or 1 in 32-bit floats.
#[inline(always)]
fn exp(x: f64) -> f64 {
    // e^x = 2^k · e^r with integer k and |r| ≤ ln 2 / 2. Adding 1.5 · 2⁵² rounds to an integer and
    // leaves it in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let x = x.clamp(-40.0, 40.0);
    let shifted = x * std::f64::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let r = x - whole * std::f64::consts::LN_2;
    // Taylor to r⁹: the next term is below 10⁻¹¹.
    let mut sum = 1.0;
    let mut n = 9.0;
    while n > 0.0 {
        sum = 1.0 + sum * r * (1.0 / n);
        n -= 1.0;
    }
    let power = (shifted.to_bits().wrapping_add(1023) << 52) & (0x7FF << 52);
    sum * f64::from_bits(power)
}

/// A model is saved like a filter but knows no keys: it accepts all.
impl Kernel for Model {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn contains(&self, _hashes: &[Hash128], out: &mut [bool]) {
        out.fill(true);
    }

    fn count(&self) -> u64 {
        self.count
    }

    /// The flat form, scale and bias.
    fn size_in_bits(&self) -> u64 {
        8 * (self.flat.len() as u64 + 16)
    }

    fn rate(&self) -> f64 {
        1.0
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        let parts = (self.scale, self.bias, self.count);
        Ok(Arc::new(Model::from_flat(self.form(), parts, memory::copied(&self.flat)?)?))
    }

    fn content(&self) -> Result<Content<'_>> {
        let [input, head, features] = self.form();
        let parameters = vec![input, head, features, self.scale.to_bits(), self.bias.to_bits()];
        let section = Section { kind: SECTION_BITS, piece: 0, bytes: &self.flat };
        let sections = vec![section.stored()];
        let capacity = Some(self.count);
        Ok(Content { parameters, count: self.count, capacity, sections, lock: None })
    }
}
