//! Levels to sums: an ensemble of decision trees, a block of rows at a time.
//!
//! No row walks down a tree. Instead each node, from the last to the first, chooses for all rows
//! of the block between what its two children chose:
//!
//! ```text
//! chosen[node] = level[feature of node] > level of node ? chosen[right] : chosen[left]
//! ```
//!
//! where a leaf chose itself. Children come after their parents, so the root is the last to
//! choose, and holds the leaf of each row. Leaves are bytes, so that one instruction decides for 16
//! or 32 rows, and a tree of L leaves takes 3(L − 1) of them per 32 rows without a branch; walking
//! takes as many per level and row. (The idea that a whole tree is evaluated by comparing all of
//! its nodes is QuickScorer's: Lucchese et al. 2015.)

use super::leaves::{Leaves, MAX_LEAVES};
use super::{BLOCK, Lanes};

/// The most nodes of a tree: with one leaf more, all places fit a byte.
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
    /// Where to go if not, and if so: the place of a later node or of a leaf.
    pub children: [u8; 2],
}

/// The trees, one after the other.
#[derive(Default)]
pub struct Trees {
    nodes: Vec<Node>,
    /// By tree: how many nodes, and what its leaves add.
    trees: Vec<(usize, Leaves)>,
}

/// A leaf for each row of a block.
type Chosen = [u8; BLOCK];

/// What each node of one tree chose for each row.
pub struct State {
    chosen: [Chosen; PLACES],
}

impl State {
    /// Leaves that chose themselves.
    pub fn new() -> Box<State> {
        let mut state = Box::new(State { chosen: [[0; BLOCK]; PLACES] });
        for leaf in 0..=MAX_NODES {
            state.chosen[usize::from(LAST) - leaf] = [leaf as u8; BLOCK];
        }
        state
    }
}

impl Trees {
    /// Appends a tree over this many features, or says that it is none.
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

    /// Adds to each row's sum what the leaf it comes to in each tree has.
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
