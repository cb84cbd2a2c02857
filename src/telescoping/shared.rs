//! An adaptive filter that threads share, and the remote that it asks for stored hashes.
//!
//! The remote is somebody else's code: no lock is held while it runs. So what it said may be old by
//! the time it is used; the filter's version tells, and the remote is asked again.

use super::adapt::of_quotient;
use super::{Layout, Mode, Step, Stop, Telescoping};
use crate::bits::Buffer;
use crate::distinct::Distinct;
use crate::error::{Error, Result};
use crate::format::{Head, SECTION_BITS, SECTION_MARKS, Section};
use crate::hash::Hash128;
use crate::kernel::{Content, Kernel, Kind};
use crate::quotient::{SLOTS, Table, capacity};
use std::ops::Range;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Telescoping filters.
pub static KIND: Kind = Kind {
    number: 9,
    name: "telescoping",
    layer: false,
    inserts: true,
    deletes: true,
    bounded: true,
    open: |head, sections, opening| Ok(Arc::new(Shared::from_frame(head, sections, opening.own)?)),
};
/// Extending filters.
pub static KIND_EXTENDING: Kind = Kind {
    number: 19,
    name: "extending",
    layer: false,
    inserts: true,
    deletes: true,
    bounded: true,
    open: |head, sections, opening| Ok(Arc::new(Shared::from_frame(head, sections, opening.own)?)),
};

/// How often the remote is asked again when others insert or remove meanwhile. An adaptation is
/// given up then, which is safe; a change is made under the lock of whoever changes.
const TRIES: usize = 16;

/// The stored hashes, insertions under way included.
pub trait Remote {
    /// Those whose first word is in a range, both ends included, with repetitions.
    fn run(&mut self, low: u64, high: u64) -> Result<Vec<Hash128>>;
    /// All of them.
    fn scan(&mut self) -> Result<Vec<Hash128>>;
}

/// A [`Telescoping`] behind a lock, with the number of keys at which it is full.
pub struct Shared {
    /// As in the filter, which never changes it: told without the lock.
    mode: Mode,
    inner: RwLock<Inner>,
}

struct Inner {
    filter: Telescoping,
    capacity: u64,
}

impl Inner {
    /// Whether there are slots for so many keys more.
    fn has_room(&self, more: usize) -> bool {
        let table = self.filter.table();
        let most = capacity::most_slots(self.capacity, table.quotients());
        table.used_slots().saturating_add(more as u64) <= most
    }

    fn no_room(&self, more: usize) -> Error {
        Error::Capacity(format!(
            "there is no room for {more} more keys in a filter of {} that holds {}: give remote=, \
             the stored hashes, and it grows",
            self.capacity,
            self.filter.table().used_slots()
        ))
    }
}

fn full(_block: u64) -> Error {
    Error::Capacity(
        "the selectors of a block do not fit its code, and only the stored hashes tell what its \
         slots hold without them: give remote="
            .into(),
    )
}

fn alone<T>(step: Step<T>) -> Result<T> {
    step.map_err(|stop| match stop {
        Stop::Full(block) => full(block),
        Stop::Failed(error) => error,
    })
}

impl Shared {
    fn over(filter: Telescoping, capacity: u64) -> Shared {
        Shared { mode: filter.store().mode(), inner: RwLock::new(Inner { filter, capacity }) }
    }

    /// An empty filter of this capacity.
    pub fn new(
        quotients: u64,
        bits: u32,
        layout: Layout,
        mode: Mode,
        capacity: u64,
    ) -> Result<Shared> {
        Ok(Shared::over(Telescoping::new(quotients, bits, layout, mode)?, capacity))
    }

    /// A filter of distinct hashes.
    pub fn build(
        quotients: u64,
        bits: u32,
        layout: Layout,
        mode: Mode,
        hashes: &Distinct,
    ) -> Result<Shared> {
        let filter = alone(Telescoping::build(quotients, bits, layout, mode, hashes))?;
        Ok(Shared::over(filter, hashes.len() as u64))
    }

    /// Looks at the filter while nobody changes it.
    pub fn look<R>(&self, look: impl FnOnce(&Telescoping) -> R) -> R {
        look(&self.read().filter)
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(|lock| lock.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(|lock| lock.into_inner())
    }

    /// Asks the remote for the hashes of some quotients; with the version of the filter before.
    fn ask(
        &self,
        remote: &mut dyn Remote,
        quotients: impl FnOnce(&Telescoping) -> Range<u64>,
    ) -> Result<(u64, Vec<Hash128>)> {
        let (version, (low, high)) =
            self.look(|filter| (filter.version(), filter.words(quotients(filter))));
        Ok((version, remote.run(low, high)?))
    }

    /// Moves the slots that keys which are not stored fit; for each key, whether any slot moved.
    pub fn adapt(
        &self,
        hashes: &[Hash128],
        moved: &mut [bool],
        remote: &mut dyn Remote,
    ) -> Result<()> {
        moved.fill(false);
        let mut fitting = vec![false; hashes.len()];
        self.contains(hashes, &mut fitting);
        let mut indices: Vec<usize> = (0..hashes.len()).filter(|&index| fitting[index]).collect();
        let quotient = |filter: &Telescoping, index: usize| filter.table().split(hashes[index]).0;
        self.look(|filter| indices.sort_by_key(|&index| (quotient(filter, index), index)));
        let mut rest = &indices[..];
        while let Some(&first) = rest.first() {
            let many = self.look(|filter| {
                let own = |&&index: &&usize| quotient(filter, index) == quotient(filter, first);
                rest.iter().take_while(own).count()
            });
            let (own, later) = rest.split_at(many);
            self.adapt_run(hashes, own, moved, remote)?;
            rest = later;
        }
        Ok(())
    }

    /// [`Shared::adapt`] for keys of one quotient.
    fn adapt_run(
        &self,
        hashes: &[Hash128],
        mut own: &[usize],
        moved: &mut [bool],
        remote: &mut dyn Remote,
    ) -> Result<()> {
        for _ in 0..TRIES {
            let Some(&first) = own.first() else { break };
            let (version, stored) = self.ask(remote, |filter| {
                let quotient = filter.table().split(hashes[first]).0;
                quotient..quotient + 1
            })?;
            let mut inner = self.write();
            if inner.filter.version() != version {
                continue;
            }
            let quotient = inner.filter.table().split(hashes[first]).0;
            let stored = of_quotient(&inner.filter, quotient, &stored);
            let mut stopped = None;
            while let Some((&index, later)) = own.split_first() {
                if inner.filter.table().split(hashes[index]).0 != quotient {
                    break; // it has grown since
                }
                match inner.filter.adapt(hashes[index], &stored) {
                    Ok(changed) => moved[index] |= changed,
                    Err(Stop::Failed(error)) => return Err(error),
                    Err(Stop::Full(block)) => {
                        stopped = Some(block);
                        break;
                    }
                }
                own = later;
            }
            drop(inner);
            match stopped {
                Some(block) if self.forget(block, remote)? => {}
                _ => break,
            }
        }
        Ok(())
    }

    /// Forgets the marks of a block whose code is full; whether there is room now.
    fn forget(&self, block: u64, remote: &mut dyn Remote) -> Result<bool> {
        for _ in 0..TRIES {
            let (version, stored) = self.ask(remote, |filter| filter.quotients_of(block))?;
            let mut inner = self.write();
            if inner.filter.version() == version {
                return Ok(alone(inner.filter.forget(block, &stored))? > 0);
            }
        }
        Ok(false)
    }

    /// Inserts hashes, all or none; grows where there is no room. The remote may list those that
    /// are being inserted or not.
    pub fn insert_with(&self, hashes: &[Hash128], remote: &mut dyn Remote) -> Result<()> {
        let mut done = 0;
        while !self.read().has_room(hashes.len() - done) {
            self.grow(remote)?;
        }
        loop {
            let mut inner = self.write();
            let (inserted, step) = inner.filter.insert_batch(&hashes[done..]);
            done += inserted;
            let failed = match step {
                Ok(()) => return Ok(()),
                Err(Stop::Failed(error)) => Some(error),
                Err(Stop::Full(block)) => {
                    drop(inner);
                    let forgotten = self.forget(block, remote);
                    inner = self.write();
                    match forgotten {
                        Ok(true) => None,
                        Ok(false) => Some(full(block)),
                        Err(error) => Some(error),
                    }
                }
            };
            if let Some(error) = failed {
                for hash in &hashes[..done] {
                    alone(inner.filter.undo_insert(*hash))?;
                }
                return Err(error);
            }
        }
    }

    /// Takes a slot of a key away that the remote, where the key is gone already, does not need.
    pub fn remove_with(&self, hash: Hash128, remote: &mut dyn Remote) -> Result<()> {
        for _ in 0..TRIES {
            let quotient = |filter: &Telescoping| filter.table().split(hash).0;
            let (version, stored) =
                self.ask(remote, |filter| quotient(filter)..quotient(filter) + 1)?;
            let mut inner = self.write();
            if inner.filter.version() != version {
                continue;
            }
            let stored = of_quotient(&inner.filter, quotient(&inner.filter), &stored);
            let removed = inner.filter.remove_known(hash, &stored);
            drop(inner);
            match removed {
                Err(Stop::Full(block)) if self.forget(block, remote)? => {}
                other => return alone(other),
            }
        }
        // Never a quiet moment: without the remote, or not at all.
        match self.remove(hash) {
            Err(Error::Parameter(_) | Error::Capacity(_)) => Ok(()),
            other => other,
        }
    }

    /// Doubles the capacity, from the stored hashes.
    pub fn grow(&self, remote: &mut dyn Remote) -> Result<()> {
        for _ in 0..TRIES {
            let version = self.look(Telescoping::version);
            let stored = remote.scan()?;
            let mut inner = self.write();
            if inner.filter.version() == version {
                inner.filter = alone(inner.filter.grown(stored))?;
                inner.capacity = capacity::doubled(inner.capacity);
                return Ok(());
            }
        }
        Err(Error::Capacity(
            "the filter cannot grow while others insert and remove all the time".into(),
        ))
    }

    /// The filter of the insertions into both.
    pub fn merge(&self, other: &Shared) -> Result<Shared> {
        // One after the other: a copy of the first, so that no thread holds two locks.
        let copy = self.twin()?;
        let one = copy.read();
        let two = other.read();
        let capacity = one.capacity.max(two.capacity);
        let merged = Inner { filter: alone(one.filter.merged(&two.filter))?, capacity };
        if !merged.has_room(0) {
            return Err(Error::Capacity(format!(
                "there is no room for the {} keys of both in a filter of {capacity}: let both grow",
                merged.filter.table().used_slots()
            )));
        }
        Ok(Shared::over(merged.filter, capacity))
    }

    fn twin(&self) -> Result<Shared> {
        let Inner { filter, capacity } = &*self.read();
        let (table, store) = (filter.table(), filter.store());
        let blocks = blocks(table);
        let marks = store.to_bytes(blocks);
        let slots = Buffer::copied(table.as_bytes())?;
        let shape = (table.quotients(), table.remainder_bits());
        let mut copy = Telescoping::open(shape, store.layout(), store.mode(), slots, &marks)?;
        copy.forgotten = filter.forgotten;
        Ok(Shared::over(copy, *capacity))
    }

    /// Opens what a frame holds; `own` turns the bytes of the slots into a buffer.
    pub fn from_frame(
        head: &Head,
        sections: &[Section<'_>],
        own: impl FnOnce(&[u8]) -> Result<Buffer>,
    ) -> Result<Shared> {
        let damaged = |what: &str| Error::Format(format!("the adaptive filter is damaged: {what}"));
        let (&[quotients, bits, layout, capacity, forgotten], [slots, marks]) =
            (&head.parameters[..], sections)
        else {
            return Err(damaged("it has not five parameters and two sections"));
        };
        let bits = u32::try_from(bits).map_err(|_| damaged("its remainders are long"))?;
        let mode = if head.kind == KIND.number { Mode::Telescoping } else { Mode::Extending };
        let layout = match layout {
            0 => Layout::Block,
            1 => Layout::Growing,
            2 if mode == Mode::Telescoping => Layout::Plain,
            _ => return Err(damaged("its selectors are of no known layout")),
        };
        let kinds = [(slots.kind, slots.piece), (marks.kind, marks.piece)];
        if kinds != [(SECTION_BITS, 0), (SECTION_MARKS, 0)] || capacity != head.capacity {
            return Err(damaged("it is not as its parameters say"));
        }
        let buffer = own(slots.bytes)?;
        let mut filter = Telescoping::open((quotients, bits), layout, mode, buffer, marks.bytes)?;
        filter.forgotten = forgotten;
        if filter.table().used_slots() != head.count {
            return Err(damaged("it holds another number of keys"));
        }
        Ok(Shared::over(filter, capacity))
    }
}

/// The blocks that a frame has.
fn blocks(table: &Table) -> usize {
    table.quotients().div_ceil(SLOTS).max(table.end().div_ceil(SLOTS)) as usize
}

impl Telescoping {
    /// The filter with these bytes of slots and of marks, which may come from anybody.
    fn open(
        (quotients, bits): (u64, u32),
        layout: Layout,
        mode: Mode,
        slots: Buffer,
        marks: &[u8],
    ) -> Result<Telescoping> {
        let table = Table::from_bytes(quotients, bits, slots)?;
        let store = super::Store::from_bytes(layout, mode, blocks(&table), marks)?;
        let mut filter = Telescoping { table, store, most: 0, version: 0, forgotten: 0 };
        let mut free_from = 0;
        let mut used = vec![0u64; blocks(&filter.table)];
        for (_, run) in filter.table.runs(0..quotients) {
            for slot in run.start.max(free_from)..run.end {
                used[(slot / SLOTS) as usize] |= 1 << (slot % SLOTS);
            }
            free_from = run.end;
        }
        for (block, used) in used.iter().enumerate() {
            for (slot, mark) in filter.store.marks(block as u64).into_iter().enumerate() {
                filter.most = filter.most.max(filter.steps(mark));
                if mark != 0 && used >> slot & 1 == 0 {
                    let message = "the adaptive filter is damaged: a free slot has a selector";
                    return Err(Error::Format(message.into()));
                }
            }
        }
        Ok(filter)
    }
}

impl Kernel for Shared {
    fn kind(&self) -> &'static Kind {
        match self.mode {
            Mode::Telescoping => &KIND,
            Mode::Extending => &KIND_EXTENDING,
        }
    }

    fn contains(&self, hashes: &[Hash128], out: &mut [bool]) {
        self.read().filter.contains_batch(hashes, out);
    }

    fn contains_one(&self, hash: Hash128) -> bool {
        self.read().filter.contains(hash)
    }

    fn try_contains_one(&self, hash: Hash128) -> Option<bool> {
        Some(self.inner.try_read().ok()?.filter.contains(hash))
    }

    fn count(&self) -> u64 {
        self.look(|filter| filter.table().used_slots())
    }

    fn capacity(&self) -> Option<u64> {
        Some(self.read().capacity)
    }

    fn overfull(&self, _capacity: u64) -> bool {
        false
    }

    fn busy(&self) -> bool {
        self.inner.try_write().is_err()
    }

    fn size_in_bits(&self) -> u64 {
        self.look(|filter| {
            8 * (filter.table().size_in_bytes() + filter.store().size_in_bytes()) as u64
        })
    }

    fn rate(&self) -> f64 {
        self.look(Telescoping::rate)
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        Ok(Arc::new(self.twin()?))
    }

    fn frozen(&self, look: &mut dyn FnMut(Content<'_>)) {
        let Inner { filter, capacity } = &*self.read();
        let (table, store) = (filter.table(), filter.store());
        let layout = match store.layout() {
            Layout::Block => 0,
            Layout::Growing => 1,
            Layout::Plain => 2,
        };
        let bits = u64::from(table.remainder_bits());
        let parameters = vec![table.quotients(), bits, layout, *capacity, filter.forgotten()];
        let marks = store.to_bytes(blocks(table));
        let sections = vec![
            Section { kind: SECTION_BITS, piece: 0, bytes: table.as_bytes() },
            Section { kind: SECTION_MARKS, piece: 0, bytes: &marks },
        ];
        look(Content {
            parameters,
            count: table.used_slots(),
            capacity: Some(*capacity),
            sections,
        });
    }

    fn insert(&self, hashes: &[Hash128]) -> Result<()> {
        let mut inner = self.write();
        if !inner.has_room(hashes.len()) {
            return Err(inner.no_room(hashes.len()));
        }
        let (done, step) = inner.filter.insert_batch(hashes);
        if step.is_err() {
            for hash in &hashes[..done] {
                alone(inner.filter.undo_insert(*hash))?;
            }
        }
        alone(step)
    }

    fn inserts_at_once(&self) -> bool {
        true
    }

    fn remove(&self, hash: Hash128) -> Result<()> {
        alone(self.write().filter.remove(hash))
    }
}
