//! Adaptive quotient filters: telescoping (Lee, McCauley, Singh and Stein 2021) and extending, the
//! broom filter (Bender et al. 2018).
//!
//! Each inserted key has one slot in the run of its quotient, with a remainder of `r` bits and a
//! *selector* that says which of the key's bits the remainder is ([`Mode`]). All selectors start at
//! 0. When an absent key `y` fits the slot of a stored key `x`, the slot moves to a selector under
//! which `x` and `y` differ: from then on `y` does not fit it, and neither do most other keys that
//! shared the old bits. The expected rate of a query, repeated or not, stays
//!
//! ```text
//! α ≤ ε = 2^−r per slot of its quotient          (Theorem 1)
//! ```
//!
//! Rewriting a slot needs the hash of its owner, which the filter does not have. It is in the
//! *remote*, the store's index of hashes, where the hashes of a quotient are one range. The hashes
//! of the range are matched to the slots by content ([`matching`]). The invariant:
//!
//! > Every stored hash has a slot of its own that it fits.
//!
//! So no stored key is rejected. There may be more slots than stored hashes: ghosts of insertions
//! that were never committed. They are left alone. A run is rewritten only if all hashes that the
//! remote lists for it have slots, and only if nothing was inserted or removed between reading the
//! remote and rewriting (`version`). `tests/filters/test_protocol.py` is this protocol as a model.
//!
//! The selectors of 64 slots are coded together ([`code`], [`groups`]); [`Store`] has three layouts
//! for the codes. In [`Layout::Block`] a code has 56 bits: if one overflows, all selectors of its
//! block are reset to 0, with the remainders of their owners, which needs the hashes of every run
//! with slots in the block ([`Stop::Full`]).
//!
//! In reading order: `stream.rs` (bits of a key), `code.rs`, `groups.rs`, `store.rs`, this file
//! (query), `insert.rs` (insert, remove), `matching.rs`, `adapt.rs` (given the remote's hashes),
//! `build.rs` (from sorted hashes; grow, merge), `rate.rs`, `shared.rs` (threads), `remote.rs` (the
//! remote), `open.rs` (the frame).

mod adapt;
mod build;
pub mod code;
pub mod groups;
mod insert;
pub mod matching;
mod open;
mod rate;
mod remote;
mod shared;
mod store;
mod stream;
#[cfg(test)]
mod tests;

pub use remote::Remote;
pub use shared::{KIND, KIND_EXTENDING, Shared};
pub use store::{Layout, Store};
pub use stream::{Mode, Stream};

use crate::error::{Error, Result};
use crate::hash::Hash128;
use crate::processor::{Processor, on_best};
use crate::quotient::{SLOTS, Table};
use code::{LENGTH_SHIFT, Selectors};
use rate::Shares;
use std::ops::Range;

/// How many keys ahead a batch prefetches, as in the quotient filter.
const AHEAD: usize = 32;

/// The reason why a change was not made; the filter is unchanged.
#[derive(Debug)]
pub enum Stop {
    /// The selectors of this block do not fit its code.
    Full(u64),
    /// Anything else.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

/// The result of a change.
pub type Step<T> = std::result::Result<T, Stop>;

/// Slots with selectors. See the head of this file.
pub struct Telescoping {
    table: Table,
    store: Store,
    /// An upper bound of the steps of all selectors.
    max_steps: u64,
    /// How often a slot was added or removed.
    version: u64,
    /// How many selectors were reset to 0 because their block's code was full.
    forgotten: u64,
    /// The sum that the rate is computed from.
    shares: Shares,
}

impl Telescoping {
    /// An empty filter.
    pub fn new(
        quotients: u64,
        remainder_bits: u32,
        layout: Layout,
        mode: Mode,
    ) -> Result<Telescoping> {
        let table = Table::new(quotients, remainder_bits)?;
        let store = Store::new(layout, mode, (table.slots() / SLOTS) as usize)?;
        Ok(Telescoping {
            table,
            store,
            max_steps: 0,
            version: 0,
            forgotten: 0,
            shares: Shares::default(),
        })
    }

    /// The slots without their selectors.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The selectors.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// How often a slot was added or removed: hashes of the remote read at an earlier version are
    /// outdated.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// How many selectors were reset because a code was full.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// The number of slots by their steps, from 0 on.
    pub fn histogram(&self) -> Vec<u64> {
        let mut counts = vec![self.table.used_slots()];
        for block in 0..self.table.slots() / SLOTS {
            if self.store.is_clear(block) {
                continue;
            }
            for steps in self.store.selectors(block).map(|selector| self.steps(selector)) {
                if steps > 0 {
                    counts.resize(counts.len().max(steps as usize + 1), 0);
                    counts[0] -= 1;
                    counts[steps as usize] += 1;
                }
            }
        }
        counts
    }

    /// Whether a key may have been inserted.
    pub fn contains(&self, hash: Hash128) -> bool {
        let (quotient, stream) = Stream::new(&self.table, hash);
        on_best!(p => self.contains_on(p, quotient, stream))
    }

    /// [`Telescoping::contains`] for each hash, into `out` at the same index.
    pub fn contains_batch(&self, hashes: &[Hash128], out: &mut [bool]) {
        on_best!(p => self.contains_batch_on(p, hashes, out))
    }

    #[inline(always)]
    fn contains_batch_on<P: Processor>(&self, p: P, hashes: &[Hash128], out: &mut [bool]) {
        let Some(first) = hashes.first() else { return };
        let mut addresses = [Stream::new(&self.table, *first); AHEAD];
        for (hashes, out) in hashes.chunks(AHEAD).zip(out.chunks_mut(AHEAD)) {
            for (address, hash) in addresses.iter_mut().zip(hashes) {
                *address = Stream::new(&self.table, *hash);
                self.table.prefetch(address.0);
                if self.max_steps > 0 {
                    self.store.prefetch(address.0 / SLOTS);
                }
            }
            if self.max_steps > 0 {
                for (quotient, _) in &addresses[..hashes.len()] {
                    self.store.prefetch_code(quotient / SLOTS);
                }
            }
            for ((quotient, stream), out) in addresses.iter().zip(out) {
                *out = self.contains_on(p, *quotient, *stream);
            }
        }
    }

    #[inline(always)]
    fn contains_on<P: Processor>(&self, p: P, quotient: u64, stream: Stream) -> bool {
        if !self.table.is_occupied(quotient) {
            return false;
        }
        let start = self.table.start_on(p, quotient);
        let bits = self.table.remainder_bits();
        let fresh = stream.window(0, bits);
        if self.max_steps == 0 {
            return self.table.run_has(start, fresh);
        }
        let end = self.table.runend_from(start);
        if self.store.mode() == Mode::Extending {
            return self.table.run_has(start, fresh) && self.run_fits(start..end + 1, stream);
        }
        let block = start / SLOTS;
        if let Some(moved) = self.store.moved_on(p, block) {
            let here = moved >> (start % SLOTS) << (63 - (end - start).min(63));
            // In most runs nothing has moved.
            if here == 0 && end / SLOTS == block {
                return self.table.run_has(start, fresh);
            }
            return self.run_fits(start..end + 1, stream);
        }
        // Decode only if a slot holds the key's remainder under some selector.
        let step = u64::from(bits);
        self.table.run_has_any(start, self.max_steps, |i| stream.window(i * step, bits))
            && self.run_fits(start..end + 1, stream)
    }

    /// Whether a slot of a run fits the key. Called rarely, so kept out of the hot path.
    #[inline(never)]
    fn run_fits(&self, mut run: Range<u64>, stream: Stream) -> bool {
        let (mode, bits) = (self.store.mode(), self.table.remainder_bits());
        let may_fit = |held: u64| match (mode, self.store.layout()) {
            (Mode::Extending, _) => stream.window(0, bits) == held,
            // Decoding a selector is as fast as trying the key's windows.
            (Mode::Telescoping, Layout::Growing) => true,
            (Mode::Telescoping, _) => {
                (0..=self.max_steps).any(|selector| stream.remainder(mode, bits, selector) == held)
            }
        };
        run.any(|slot| {
            let held = self.table.slot(slot);
            may_fit(held) && stream.fits(mode, bits, (held, self.store.selector(slot)))
        })
    }

    /// The slots of a run as remainders with selectors.
    fn contents(&self, run: Range<u64>) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut decoded: Option<(u64, Selectors)> = None;
        run.map(move |slot| {
            let block = slot / SLOTS;
            if self.max_steps == 0 || self.store.is_clear(block) {
                return (self.table.slot(slot), 0);
            }
            let selectors = match decoded {
                Some((known, selectors)) if known == block => selectors,
                _ => self.store.selectors(block),
            };
            decoded = Some((block, selectors));
            (self.table.slot(slot), selectors[(slot % SLOTS) as usize])
        })
    }

    fn steps(&self, selector: u64) -> u64 {
        match self.store.mode() {
            Mode::Telescoping => selector,
            Mode::Extending => selector >> LENGTH_SHIFT,
        }
    }
}
