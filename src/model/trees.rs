//! Levels to sums: an ensemble of decision trees, a block of rows at a time.
//!
//! No row walks down a tree. Instead each node, from the last to the first, chooses between the
//! choices of its two children, for all rows of the block at once:
//!
//! ```text
//! chosen[node] = level[feature of node] > level of node ? chosen[right] : chosen[left]
//! ```
//!
//! where the choice of a leaf is itself. Children come after their parents, so the root chooses
//! last and holds the leaf of each row. Leaves are bytes, so one instruction decides for 16 or 32
//! rows, and a tree of L leaves takes 3(L − 1) of them per 32 rows without a branch; walking takes
//! as many per level and row. Evaluating a tree by comparing all of its nodes is the idea of
//! QuickScorer (Lucchese et al. 2015).

use super::leaves::{Leaves, MAX_LEAVES};
use super::{BLOCK, Lanes};
use crate::error::Result;
use crate::memory::TryGrow;

/// Maximum number of nodes per tree: nodes and leaves together fit a byte.
pub const MAX_NODES: usize = MAX_LEAVES - 1;
/// Places for nodes, then for leaves from the last one backwards.
const PLACES: usize = 256;
/// The place of leaf `i` is `LAST - i`.
const LAST: u8 = 255;

/// A split: is this feature above this level?
#[derive(Clone, Copy)]
pub struct Node {
    pub feature: u16,
    pub level: i8,
    /// The next place if not, and if so: a later node or a leaf.
    pub children: [u8; 2],
}

/// The trees, one after the other.
#[derive(Default)]
pub struct Trees {
    nodes: Vec<Node>,
    /// By tree: the number of nodes, and the values of its leaves.
    trees: Vec<(usize, Leaves)>,
}

/// A leaf for each row of a block.
type Chosen = [u8; BLOCK];

/// The choice of each node of one tree for each row.
pub struct State {
    chosen: [Chosen; PLACES],
}

impl State {
    /// A state in which leaves have chosen themselves.
    pub fn new() -> Box<State> {
        let mut state = Box::new(State { chosen: [[0; BLOCK]; PLACES] });
        for leaf in 0..=MAX_NODES {
            state.chosen[usize::from(LAST) - leaf] = [leaf as u8; BLOCK];
        }
        state
    }
}

impl Trees {
    /// Reserves memory for a tree of this many nodes.
    pub fn reserve(&mut self, nodes: usize) -> Result<()> {
        self.nodes.reserve_more(nodes)?;
        self.trees.reserve_more(1)
    }

    /// Appends a tree over this many features, or returns `None` if it is invalid.
    pub fn push(&mut self, nodes: &[Node], leaves: &[i16], features: usize) -> Option<()> {
        if nodes.len() > MAX_NODES || leaves.len() != nodes.len() + 1 {
            return None;
        }
        let exists = |place: u8, parent: usize| match usize::from(place) {
            place if place <= MAX_NODES => parent < place && place < nodes.len(),
            place => usize::from(LAST) - place < leaves.len(),
        };
        let fits = |(i, node): (usize, &Node)| {
            usize::from(node.feature) < features && node.children.iter().all(|&c| exists(c, i))
        };
        if !nodes.iter().enumerate().all(fits) {
            return None;
        }
        self.trees.push((nodes.len(), Leaves::new(leaves)?));
        self.nodes.extend_from_slice(nodes);
        Some(())
    }

    /// Adds to each row's sum the value of its leaf in each tree.
    #[inline(always)]
    pub fn add(&self, levels: &[Lanes], state: &mut State, sums: &mut [i32; BLOCK]) {
        let mut nodes = &self.nodes[..];
        for (count, leaves) in &self.trees {
            let (own, rest) = nodes.split_at(*count);
            nodes = rest;
            for (i, node) in own.iter().enumerate().rev() {
                let [left, right] = node.children.map(|child| &state.chosen[usize::from(child)]);
                let column = &levels[usize::from(node.feature)];
                state.chosen[i % PLACES] = choose(column, node.level, left, right);
            }
            if own.is_empty() {
                state.chosen[0] = [0; BLOCK];
            }
            leaves.add(&state.chosen[0], sums);
        }
    }
}

#[inline(always)]
fn choose(column: &Lanes, level: i8, left: &Chosen, right: &Chosen) -> Chosen {
    // Without a branch, so that the compiler uses vectors.
    std::array::from_fn(|row| {
        let mask = u8::from(column[row] > level).wrapping_neg();
        left[row] ^ ((left[row] ^ right[row]) & mask)
    })
}
