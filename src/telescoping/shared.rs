//! An adaptive filter shared by threads.

use super::open::blocks;
use super::{Layout, Mode, Step, Stop, Telescoping};
use crate::bits::Buffer;
use crate::distinct::Distinct;
use crate::error::{Error, Result};
use crate::format::{SECTION_BITS, SECTION_SELECTORS, Section, Source, Stored};
use crate::hash::Hash128;
use crate::interrupt;
use crate::kernel::{Content, Kernel, Kind, PIECE, by_high_half};
use crate::lock::{ReadGuard, RwLock, WriteGuard};
use crate::quotient::capacity;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Telescoping filters.
pub static KIND: Kind = Kind {
    inserts: true,
    deletes: true,
    bounded: true,
    merges: true,
    adapts: true,
    ..Kind::new(9, "telescoping", |head, sections, opening| {
        Ok(Arc::new(Shared::from_frame(head, sections, opening.own)?))
    })
};
/// Extending filters.
pub static KIND_EXTENDING: Kind = Kind {
    inserts: true,
    deletes: true,
    bounded: true,
    merges: true,
    adapts: true,
    ..Kind::new(19, "extending", |head, sections, opening| {
        Ok(Arc::new(Shared::from_frame(head, sections, opening.own)?))
    })
};

/// A [`Telescoping`] behind a lock, with its capacity in keys.
pub struct Shared {
    /// A copy of the filter's mode, which never changes: readable without the lock.
    mode: Mode,
    inner: RwLock<Inner>,
    /// Adaptations that were skipped because the run was too long, since the filter was opened.
    pub(super) skipped: AtomicU64,
}

pub(super) struct Inner {
    pub(super) filter: Telescoping,
    pub(super) capacity: u64,
}

impl Inner {
    /// Whether this many more keys fit.
    pub(super) fn can_hold(&self, more: usize) -> bool {
        let table = self.filter.table();
        let max = capacity::max_slots(self.capacity, table.quotients());
        table.used_slots().saturating_add(more as u64) <= max
    }

    /// Before insertions of this many keys: refuses more than fit.
    fn prepare(&mut self, more: usize) -> Result<()> {
        if !self.can_hold(more) {
            return Err(self.over_capacity(more));
        }
        if more as u64 > self.filter.table().used_slots() / 8 {
            self.filter.shares.forget(); // one pass over all runs is faster than following each change
        }
        Ok(())
    }

    /// After insertions: undoes all of them if one failed.
    fn finish(&mut self, done: &[Hash128], step: Step<()>) -> Result<()> {
        if step.is_err() {
            for hash in done {
                without_remote(self.filter.undo_insert(*hash))?;
            }
        }
        without_remote(step)
    }

    fn over_capacity(&self, more: usize) -> Error {
        Error::Capacity(format!(
            "the filter is full: {more} more keys exceed its capacity of {} ({} slots are in use); \
             pass remote=, the stored hashes, to let it grow",
            self.capacity,
            self.filter.table().used_slots()
        ))
    }
}

pub(super) fn full(_block: u64) -> Error {
    Error::Capacity(
        "the selectors of a block do not fit its code, and resetting them needs the stored \
         hashes: pass remote="
            .into(),
    )
}

/// The result of a change without a remote, which could free a full block.
pub(super) fn without_remote<T>(step: Step<T>) -> Result<T> {
    step.map_err(|stop| match stop {
        Stop::Full(block) => full(block),
        Stop::Failed(error) => error,
    })
}

impl Shared {
    /// A filter that holds about `capacity` keys, behind a lock.
    pub(super) fn with_capacity(filter: Telescoping, capacity: u64) -> Shared {
        Shared {
            mode: filter.store().mode(),
            inner: RwLock::new(Inner { filter, capacity }),
            skipped: AtomicU64::new(0),
        }
    }

    /// An empty filter of this capacity.
    pub fn new(
        quotients: u64,
        bits: u32,
        layout: Layout,
        mode: Mode,
        capacity: u64,
    ) -> Result<Shared> {
        Ok(Shared::with_capacity(Telescoping::new(quotients, bits, layout, mode)?, capacity))
    }

    /// A filter of distinct hashes.
    pub fn build(
        quotients: u64,
        bits: u32,
        layout: Layout,
        mode: Mode,
        hashes: &Distinct,
    ) -> Result<Shared> {
        let filter = without_remote(Telescoping::build(quotients, bits, layout, mode, hashes))?;
        Ok(Shared::with_capacity(filter, hashes.len() as u64))
    }

    /// How many adaptations were skipped because the run was too long, since it was opened.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(Relaxed)
    }

    /// Reads the filter while no writer changes it.
    pub fn with<R>(&self, visit: impl FnOnce(&Telescoping) -> R) -> R {
        visit(&self.read().filter)
    }

    pub(super) fn read(&self) -> ReadGuard<'_, Inner> {
        self.inner.read()
    }

    pub(super) fn write(&self) -> Result<WriteGuard<'_, Inner>> {
        let mut inner = self.inner.write();
        inner.filter.leave_mapping()?;
        Ok(inner)
    }

    /// A filter of the insertions into both.
    pub fn merge(&self, other: &Shared) -> Result<Shared> {
        // One lock at a time: a copy of the first is made, so that no thread holds two. Merging a
        // filter with itself merges that copy twice, which cannot grow in between.
        let copy = self.duplicate()?;
        let one = copy.read();
        let second = (!std::ptr::eq(self, other)).then(|| other.read());
        let two = second.as_ref().unwrap_or(&one);
        let capacity = one.capacity.max(two.capacity);
        let merged = Inner { filter: without_remote(one.filter.merged(&two.filter))?, capacity };
        if !merged.can_hold(0) {
            return Err(Error::Capacity(format!(
                "the {} keys of both filters do not fit into a capacity of {capacity}: grow both first",
                merged.filter.table().used_slots()
            )));
        }
        Ok(Shared::with_capacity(merged.filter, capacity))
    }

    fn duplicate(&self) -> Result<Shared> {
        let Inner { filter, capacity } = &*self.read();
        let (table, store) = (filter.table(), filter.store());
        let blocks = blocks(table);
        let selectors = store.to_bytes(blocks)?;
        let slots = Buffer::copied(table.as_bytes())?;
        let shape = (table.quotients(), table.remainder_bits());
        let mut copy = Telescoping::open(shape, store.layout(), store.mode(), slots, &selectors)?;
        copy.forgotten = filter.forgotten;
        Ok(Shared::with_capacity(copy, *capacity))
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

    fn places(&self, hashes: &[Hash128], out: &mut [u64]) -> bool {
        by_high_half(hashes, out)
    }

    fn preload(&self, part: usize, parts: usize) {
        self.read().filter.table().preload(part, parts);
    }

    fn contains_one(&self, hash: Hash128) -> bool {
        self.read().filter.contains(hash)
    }

    fn try_contains_one(&self, hash: Hash128) -> Option<bool> {
        Some(self.inner.try_read()?.filter.contains(hash))
    }

    fn count(&self) -> u64 {
        self.with(|filter| filter.table().used_slots())
    }

    fn capacity(&self) -> Option<u64> {
        Some(self.read().capacity)
    }

    fn overfull(&self, _capacity: u64) -> bool {
        false
    }

    fn busy(&self) -> bool {
        self.inner.is_locked()
    }

    fn size_in_bits(&self) -> u64 {
        self.with(|filter| {
            8 * (filter.table().size_in_bytes() + filter.store().size_in_bytes()) as u64
        })
    }

    fn rate(&self) -> f64 {
        self.with(Telescoping::rate)
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        Ok(Arc::new(self.duplicate()?))
    }

    fn content(&self) -> Result<Content<'_>> {
        // SAFETY: the sections are dropped with the lock.
        let (inner, lock) = unsafe { self.read().split() };
        let Inner { filter, capacity } = inner;
        let (table, store) = (filter.table(), filter.store());
        let layout = match store.layout() {
            Layout::Block => 0,
            Layout::Growing => 1,
            Layout::Plain => 2,
        };
        let bits = u64::from(table.remainder_bits());
        let parameters = vec![table.quotients(), bits, layout, *capacity, filter.forgotten()];
        let selectors = Source::Made(store.to_bytes(blocks(table))?);
        let sections = vec![
            Section { kind: SECTION_BITS, piece: 0, bytes: table.as_bytes() }.stored(),
            Stored { kind: SECTION_SELECTORS, piece: 0, content: selectors },
        ];
        Ok(Content {
            parameters,
            count: table.used_slots(),
            capacity: Some(*capacity),
            sections,
            lock: Some(lock),
        })
    }

    fn insert(&self, hashes: &[Hash128]) -> Result<()> {
        if hashes.len() <= PIECE {
            let mut inner = self.write()?;
            inner.prepare(hashes.len())?;
            let (done, step) = inner.filter.insert_batch(hashes);
            return inner.finish(&hashes[..done], step);
        }
        let (pieces, mut done) = (self.inner.in_pieces(), 0);
        let mut first = pieces.write();
        first.filter.leave_mapping()?;
        first.prepare(hashes.len())?;
        drop(first);
        for piece in hashes.chunks(PIECE) {
            let mut inner = pieces.write();
            let (inserted, step) = inner.filter.insert_batch(piece);
            done += inserted;
            inner.finish(&hashes[..done], step)?;
            drop(inner);
            interrupt::check();
        }
        Ok(())
    }

    fn inserts_at_once(&self) -> bool {
        true
    }

    fn remove(&self, hash: Hash128) -> Result<()> {
        without_remote(self.write()?.filter.remove(hash))
    }
}
