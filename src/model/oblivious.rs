//! Levels to sums: an ensemble of oblivious trees, as CatBoost grows them (Prokhorenkova et al.
//! 2018).
//!
//! All nodes of one depth of an oblivious tree ask the same question, so that the answers, as bits,
//! are the number of the leaf:
//!
//! ```text
//! leaf = Σ_d 2^d · [level[feature of d] > level of d]
//! ```
//!
//! A tree of D questions takes 3·D instructions for 32 rows, where one of 2^D leaves with questions
//! of their own takes 3·(2^D − 1).

use super::leaves::Leaves;
use super::{BLOCK, Lanes};

/// The most questions of a tree.
pub const MOST_DEPTH: usize = 7;

/// Is this feature above this level?
#[derive(Clone, Copy)]
pub struct Question {
    pub feature: u16,
    pub level: i8,
}

/// The trees, one after the other.
#[derive(Default)]
pub struct Oblivious {
    questions: Vec<Question>,
    /// By tree: how many questions, and what its leaves add.
    trees: Vec<(usize, Leaves)>,
}

impl Oblivious {
    /// Appends a tree over so many features, or says that it is none.
    pub fn push(&mut self, questions: &[Question], leaves: &[i16], features: usize) -> Option<()> {
        let known = questions.iter().all(|question| usize::from(question.feature) < features);
        if questions.len() > MOST_DEPTH || leaves.len() != 1 << questions.len() || !known {
            return None;
        }
        self.trees.push((questions.len(), Leaves::new(leaves)?));
        self.questions.extend_from_slice(questions);
        Some(())
    }

    /// Adds to each row's sum what the leaf it comes to in each tree has.
    #[inline(always)]
    pub fn add(&self, levels: &[Lanes], sums: &mut [i32; BLOCK]) {
        let mut questions = &self.questions[..];
        for (depth, leaves) in &self.trees {
            let (own, rest) = questions.split_at(*depth);
            questions = rest;
            let mut chosen = [0u8; BLOCK];
            for (d, question) in own.iter().enumerate() {
                let bit = 1u8 << d;
                let asked = &levels[usize::from(question.feature)];
                for (chosen, &level) in chosen.iter_mut().zip(asked) {
                    *chosen |= u8::from(level > question.level).wrapping_neg() & bit;
                }
            }
            leaves.add(&chosen, sums);
        }
    }
}
