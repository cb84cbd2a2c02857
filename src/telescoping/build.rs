//! Filters written from front to back: built from hashes, doubled, or merged from two.

use super::code::SELECTORS;
use super::matching::Matching;
use super::rate::Shares;
use super::{Layout, Mode, Step, Stop, Store, Stream, Telescoping};
use crate::distinct::Distinct;
use crate::error::{Error, Result};
use crate::hash::Hash128;
use crate::interrupt;
use crate::memory::{self, TryGrow};
use crate::quotient::{Builder, SLOTS, Table};

/// A slot to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    quotient: u64,
    remainder: u64,
    selector: u64,
    /// The remainder under selector 0, if known.
    fresh: Option<u64>,
}

/// A filter under construction: its slots are written in order.
struct Assembly {
    builder: Builder,
    store: Store,
    block: u64,
    /// The current block: its selectors, and its remainders under selector 0.
    selectors: [u64; SELECTORS],
    fresh: [Option<u64>; SELECTORS],
    max_steps: u64,
    /// Slots whose selectors were reset, with their new remainders.
    forgotten: Vec<(u64, u64)>,
}

impl Assembly {
    fn new(quotients: u64, bits: u32, layout: Layout, mode: Mode) -> Result<Assembly> {
        let table = Table::new(quotients, bits)?;
        let store = Store::new(layout, mode, (table.slots() / SLOTS) as usize)?;
        Ok(Assembly {
            builder: Builder::new(table),
            store,
            block: 0,
            selectors: [0; SELECTORS],
            fresh: [None; SELECTORS],
            max_steps: 0,
            forgotten: Vec::new(),
        })
    }

    /// Appends a slot at or after the last one.
    #[inline(always)]
    fn push(&mut self, entry: Entry) -> Step<()> {
        let slot = self.builder.push(entry.quotient, entry.remainder, 1, |_| 0)?;
        if entry.selector != 0 {
            self.set_selector(slot, entry)?;
        }
        Ok(())
    }

    fn set_selector(&mut self, slot: u64, entry: Entry) -> Step<()> {
        if slot / SLOTS != self.block {
            self.flush()?;
            self.block = slot / SLOTS;
        }
        self.selectors[(slot % SLOTS) as usize] = entry.selector;
        self.fresh[(slot % SLOTS) as usize] = entry.fresh;
        Ok(())
    }

    /// Writes the block's code, or resets its selectors if the code is full.
    fn flush(&mut self) -> Step<()> {
        self.store.reserve(self.block as usize + 1)?;
        let mut code = self.store.coded(&self.selectors);
        if code.is_none() {
            for slot in 0..SELECTORS {
                if let Some(fresh) = self.fresh[slot].filter(|_| self.selectors[slot] != 0) {
                    self.selectors[slot] = 0;
                    self.forgotten.try_push((self.block * SLOTS + slot as u64, fresh))?;
                }
            }
            code = self.store.coded(&self.selectors);
        }
        self.store.set(self.block, &code.ok_or(Stop::Full(self.block))?);
        let steps = |selector: u64| match self.store.mode() {
            Mode::Telescoping => selector,
            Mode::Extending => selector >> super::LENGTH_SHIFT,
        };
        self.max_steps =
            self.selectors.iter().map(|selector| steps(*selector)).fold(self.max_steps, u64::max);
        (self.selectors, self.fresh) = ([0; SELECTORS], [None; SELECTORS]);
        Ok(())
    }

    fn finish(mut self, forgotten: u64) -> Step<Telescoping> {
        self.flush()?;
        let mut table = self.builder.finish();
        for (slot, remainder) in &self.forgotten {
            table.set_slot(*slot, *remainder);
        }
        let mut store = self.store;
        store.reserve((table.slots() / SLOTS) as usize)?;
        let forgotten = forgotten + self.forgotten.len() as u64;
        let shares = Shares::default();
        Ok(Telescoping { table, store, max_steps: self.max_steps, version: 0, forgotten, shares })
    }
}

impl Telescoping {
    /// A filter of distinct hashes.
    pub fn build(
        quotients: u64,
        bits: u32,
        layout: Layout,
        mode: Mode,
        hashes: &Distinct,
    ) -> Step<Telescoping> {
        let mut assembly = Assembly::new(quotients, bits, layout, mode)?;
        let table = Table::new(quotients, bits)?;
        for hash in hashes.sorted()? {
            let (quotient, remainder) = table.address(hash);
            assembly.push(Entry { quotient, remainder, selector: 0, fresh: None })?;
        }
        assembly.finish(0)
    }

    /// The same keys in twice the quotients, with remainders of the same length. `stored` are the
    /// stored hashes in any order, of which the ones with a slot are taken. Slots without an owner are
    /// dropped.
    ///
    /// A hash that fits no slot belongs to an insertion in progress, which will add its slot. A
    /// hash that fits slots which are all taken may belong to one too, or own a slot that such a
    /// hash took: it gets a slot of its own, which is a ghost in the first case.
    ///
    /// An element keeps its steps. One bit of the hash moves from the remainder to the quotient, so
    /// most keys that an element was separated from stay separated.
    pub fn grown(&self, mut stored: Vec<Hash128>) -> Step<Telescoping> {
        let (mode, bits) = (self.store.mode(), self.table.remainder_bits());
        let quotients = self.table.quotients().checked_mul(2).ok_or_else(|| {
            Error::Capacity(format!("{} quotients cannot be doubled", self.table.quotients()))
        })?;
        let mut assembly = Assembly::new(quotients, bits, self.store.layout(), mode)?;
        let larger = Table::new(quotients, bits)?;
        interrupt::sort(&mut stored);
        for own in stored.chunk_by(|a, b| self.table.split(*a).0 == self.table.split(*b).0) {
            let quotient = self.table.split(own[0]).0;
            let run = self.table.run(quotient).unwrap_or(0..0);
            interrupt::check();
            let slots: Vec<(u64, u64)> = memory::collected(self.contents(run))?;
            let streams = self.streams(own)?;
            let fits = |hash: usize, slot: usize| streams[hash].fits(mode, bits, slots[slot]);
            let mut matching = Matching::new(slots.len())?;
            let fitting = (0..own.len()).filter(|&hash| (0..slots.len()).any(|i| fits(hash, i)));
            let unplaced = memory::collected(fitting.filter(|&hash| !matching.place(hash, &fits)))?;
            let owned = matching.owners.iter().zip(&slots);
            let owned = owned.filter_map(|(owner, (_, selector))| Some(((*owner)?, *selector)));
            let entries =
                owned.chain(unplaced.into_iter().map(|hash| (hash, 0))).map(|(owner, selector)| {
                    let (quotient, stream) = Stream::new(&larger, own[owner]);
                    let selector = match mode {
                        Mode::Telescoping => selector,
                        Mode::Extending => stream
                            .extended(bits, (selector >> super::LENGTH_SHIFT).saturating_sub(1)),
                    };
                    let remainder = stream.remainder(mode, bits, selector);
                    let fresh = Some(stream.remainder(mode, bits, 0));
                    Entry { quotient, remainder, selector, fresh }
                });
            let mut entries = memory::collected(entries)?;
            entries.sort_unstable();
            for entry in entries {
                assembly.push(entry)?;
            }
        }
        let mut grown = assembly.finish(self.forgotten)?;
        grown.version = self.version + 1;
        Ok(grown)
    }

    /// Merges the slots of two filters, which must have the same shape.
    pub fn merged(&self, other: &Telescoping) -> Step<Telescoping> {
        let shape = |filter: &Telescoping| {
            let (table, store) = (&filter.table, &filter.store);
            (table.quotients(), table.remainder_bits(), store.layout(), store.mode())
        };
        if shape(self) != shape(other) {
            let described = |filter: &Telescoping| {
                let (quotients, bits, layout, _) = shape(filter);
                format!("{quotients} quotients, {bits}-bit remainders and {layout:?} selectors")
            };
            return Err(Error::Incompatible(format!(
                "adaptive filters can be merged only if they have the same shape: one has {}, the other {}",
                described(self),
                described(other)
            ))
            .into());
        }
        let (quotients, bits, layout, mode) = shape(self);
        let mut assembly = Assembly::new(quotients, bits, layout, mode)?;
        let mut entries = Vec::new();
        for block in 0..quotients.div_ceil(SLOTS) {
            entries.clear();
            for filter in [self, other] {
                for (quotient, run) in filter.table.runs(block * SLOTS..(block + 1) * SLOTS) {
                    entries.try_append(filter.contents(run).map(|(remainder, selector)| {
                        let fresh = (selector == 0).then_some(remainder);
                        Entry { quotient, remainder, selector, fresh }
                    }))?;
                }
            }
            entries.sort_unstable();
            for entry in &entries {
                assembly.push(*entry)?;
            }
        }
        assembly.finish(self.forgotten + other.forgotten)
    }
}
