//! Which slot of a run belongs to which hash, by content.
//!
//! Several hashes may fit a slot and several slots a hash, so owners are found together: a matching
//! that gives each hash a slot of its own, by shortest augmenting paths (Berge 1957). Runs have one
//! element on average, so the search is short. Keys chosen to share a quotient, or inserted many
//! times, make a long run, and matching takes up to the cube of its length: after [`MAX_STEPS`] the
//! search is abandoned, which is safe.

use crate::error::Result;
use crate::memory;

/// The longest run that is adapted. Random keys never make a longer one: a quotient has at most one
/// key on average, and more than 64 with probability 1e-90.
pub const MAX_RUN: u64 = 64;
/// Limit on the pairs of a hash and a slot that are compared for one matching: enough for any run
/// of [`MAX_RUN`].
const MAX_STEPS: usize = 2 * (MAX_RUN * MAX_RUN * MAX_RUN) as usize;

/// The slots of a run with their owners.
pub struct Matching {
    /// By slot: the index of the hash that owns it.
    pub owners: Vec<Option<usize>>,
    /// Pairs compared so far.
    pub steps: usize,
}

impl Matching {
    /// An empty matching of this many slots.
    pub fn new(slots: usize) -> Result<Matching> {
        Ok(Matching { owners: memory::filled(slots, None)?, steps: 0 })
    }

    /// Gives hash `index` a slot of its own, and moves others if necessary. Returns `false`, and
    /// changes nothing, if that is impossible or takes too long or too much memory. `fits(hash, slot)` says whether a
    /// hash fits a slot.
    pub fn place(&mut self, index: usize, fits: &impl Fn(usize, usize) -> bool) -> bool {
        let slots = self.owners.len();
        // By slot: the slot whose owner would move here; itself if the new hash would.
        let (Ok(mut from), Ok(mut queue)) =
            (memory::filled::<Option<usize>>(slots, None), memory::with_capacity(slots))
        else {
            return false;
        };
        self.steps += slots;
        for (slot, from) in from.iter_mut().enumerate() {
            if fits(index, slot) {
                *from = Some(slot);
                queue.push(slot);
                if self.owners[slot].is_none() {
                    break;
                }
            }
        }
        let mut next = 0;
        while next < queue.len() {
            let slot = queue[next];
            next += 1;
            let Some(owner) = self.owners[slot] else {
                self.shift(slot, index, &from);
                return true;
            };
            self.steps += slots;
            if self.steps > MAX_STEPS {
                return false;
            }
            for (other, from) in from.iter_mut().enumerate() {
                if from.is_none() && fits(owner, other) {
                    *from = Some(slot);
                    queue.push(other);
                }
            }
        }
        false
    }

    /// Moves the owners along the path that ends in a free slot.
    fn shift(&mut self, free: usize, index: usize, from: &[Option<usize>]) {
        let mut slot = free;
        while let Some(before) = from[slot].filter(|before| *before != slot) {
            self.owners[slot] = self.owners[before];
            slot = before;
        }
        self.owners[slot] = Some(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::mix13;

    /// The size of a largest matching, by trying everything.
    fn largest(edges: &[u64], taken: u64) -> usize {
        let Some((first, rest)) = edges.split_first() else { return 0 };
        let mut best = largest(rest, taken);
        for slot in (0..8).filter(|slot| first >> slot & 1 == 1 && taken >> slot & 1 == 0) {
            best = best.max(1 + largest(rest, taken | 1 << slot));
        }
        best
    }

    /// All hashes fit all slots, so each search visits every owner: the cube of the length for any
    /// run that is adapted, and no more for longer ones.
    #[test]
    fn steps_are_bounded() {
        let steps = |length: usize| {
            let mut matching = Matching::new(length).unwrap();
            let placed = (0..length).filter(|&hash| matching.place(hash, &|_, _| true)).count();
            (matching.steps, placed)
        };
        assert_eq!(steps(MAX_RUN as usize).1, MAX_RUN as usize);
        for length in [100, 500, 2000] {
            // After an abandoned search, the next ones stop at their first slot.
            assert!(steps(length).0 <= MAX_STEPS + 2 * length * length);
        }
    }

    #[test]
    fn matchings_are_maximum() {
        let mut random = 5;
        for _ in 0..400 {
            let edges: Vec<u64> = (0..6)
                .map(|_| {
                    random = mix13(random + 1);
                    random & (random >> 20) & 255
                })
                .collect();
            let mut matching = Matching::new(8).unwrap();
            let fits = |hash: usize, slot: usize| edges[hash] >> slot & 1 == 1;
            let placed = (0..6).filter(|&hash| matching.place(hash, &fits)).count();
            assert_eq!(placed, largest(&edges, 0));
            let owned = matching.owners.iter().enumerate().filter_map(|(s, o)| Some((s, (*o)?)));
            let owned: Vec<_> = owned.collect();
            assert_eq!(owned.len(), placed);
            assert!(owned.iter().all(|(slot, hash)| fits(*hash, *slot)));
        }
    }
}
