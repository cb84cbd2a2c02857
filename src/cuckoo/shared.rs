//! A cuckoo filter shared by threads, and its frame.

use super::{Changes, Shape, Table, on_width};
use crate::bits::Buffer;
use crate::distinct::Distinct;
use crate::error::{Error, Result};
use crate::format::{Head, SECTION_BITS, Section};
use crate::hash::Hash128;
use crate::interrupt;
use crate::kernel::{Content, Kernel, Kind, PIECE, by_high_half};
use crate::lock::{ReadGuard, RwLock, WriteGuard};
use std::sync::Arc;

/// Cuckoo filters.
pub static KIND: Kind = Kind {
    layer: true,
    inserts: true,
    deletes: true,
    bounded: true,
    ..Kind::new(3, "cuckoo", |head, sections, opening| {
        Ok(Arc::new(Cuckoo::from_frame(head, sections, opening.own)?))
    })
};

/// A [`Table`] behind a lock.
pub struct Cuckoo {
    table: RwLock<Table>,
}

impl Cuckoo {
    /// An empty filter.
    pub fn new(shape: Shape) -> Result<Cuckoo> {
        Ok(Cuckoo::over(Table::new(shape)?))
    }

    /// Builds a filter of distinct hashes, or fails with [`Error::Capacity`] if they do not fit.
    pub fn build(shape: Shape, hashes: &Distinct, threads: usize) -> Result<Cuckoo> {
        Ok(Cuckoo::over(Table::build(shape, hashes, threads)?))
    }

    fn over(table: Table) -> Cuckoo {
        Cuckoo { table: RwLock::new(table) }
    }

    /// Opens the filter of a frame; `own` turns the section's bytes into a buffer. Any fingerprints
    /// in the slots are a valid filter; their number is checked.
    pub fn from_frame(
        head: &Head,
        sections: &[Section<'_>],
        own: impl FnOnce(&[u8]) -> Result<Buffer>,
    ) -> Result<Cuckoo> {
        let damaged = |what: &str| Error::Format(format!("the cuckoo filter is damaged: {what}"));
        let (&[chunks, buckets, bits, near, ref kept @ ..], [section]) =
            (&head.parameters[..], sections)
        else {
            return Err(damaged("it does not have four parameters and one section"));
        };
        let short = |value: u64| u32::try_from(value).map_err(|_| damaged("a size is too large"));
        let shape = Shape::new(chunks, buckets, short(bits)?, short(near)?)
            .map_err(|error| error.in_frame(damaged))?;
        let shape = match *kept {
            [] => shape,
            [kept] if kept < bits => {
                shape.truncated(short(kept)?).map_err(|error| error.in_frame(damaged))?
            }
            _ => return Err(damaged("its kept bits are not a part of its fingerprints")),
        };
        let as_written = (section.kind, section.piece) == (SECTION_BITS, 0);
        if !as_written || section.bytes.len() != shape.bytes() {
            return Err(damaged("its slots do not match its parameters"));
        }
        if section.bytes[shape.bytes() - shape.tail()..].iter().any(|&byte| byte != 0) {
            return Err(damaged("bits are set past its end"));
        }
        let table = Table::over(shape, own(section.bytes)?, head.count);
        if on_width!(shape, W => table.used::<W>()) != head.count {
            return Err(damaged("its number of keys does not match its slots"));
        }
        Ok(Cuckoo::over(table))
    }

    /// The same filter with fewer bits of each fingerprint.
    pub fn truncated(&self, kept: u32) -> Result<Cuckoo> {
        Ok(Cuckoo::over(self.read().truncated(kept)?))
    }

    /// Reads the filter while no writer changes it.
    pub fn with<R>(&self, visit: impl FnOnce(&Table) -> R) -> R {
        visit(&self.read())
    }

    fn read(&self) -> ReadGuard<'_, Table> {
        self.table.read()
    }

    fn write(&self) -> WriteGuard<'_, Table> {
        self.table.write()
    }
}

impl Kernel for Cuckoo {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn contains(&self, hashes: &[Hash128], out: &mut [bool]) {
        self.read().contains_batch(hashes, out);
    }

    fn places(&self, hashes: &[Hash128], out: &mut [u64]) -> bool {
        by_high_half(hashes, out)
    }

    fn preload(&self, part: usize, parts: usize) {
        let table = self.read();
        table.slots.preload(table.slots.part(part, parts));
    }

    fn contains_one(&self, hash: Hash128) -> bool {
        self.read().contains(hash)
    }

    fn try_contains_one(&self, hash: Hash128) -> Option<bool> {
        Some(self.table.try_read()?.contains(hash))
    }

    fn count(&self) -> u64 {
        self.with(Table::len)
    }

    fn busy(&self) -> bool {
        self.table.is_locked()
    }

    fn size_in_bits(&self) -> u64 {
        self.with(|table| 8 * table.slots.len() as u64)
    }

    fn rate(&self) -> f64 {
        self.with(Table::rate)
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        let table = self.read();
        let slots = Buffer::copied(table.slots.as_slice())?;
        Ok(Arc::new(Cuckoo::over(Table::over(table.shape, slots, table.count))))
    }

    fn content(&self) -> Result<Content<'_>> {
        // SAFETY: the sections are dropped with the lock.
        let (table, lock) = unsafe { self.read().split() };
        let Shape { chunks, buckets, bits, kept, near, .. } = table.shape;
        let mut parameters = vec![chunks, buckets, u64::from(bits), u64::from(near)];
        if kept < bits {
            parameters.push(u64::from(kept));
        }
        let bytes = table.slots.as_slice();
        let sections = vec![Section { kind: SECTION_BITS, piece: 0, bytes }.stored()];
        let (count, lock) = (table.count, Some(lock));
        Ok(Content { parameters, count, capacity: None, sections, lock })
    }

    fn insert(&self, hashes: &[Hash128]) -> Result<()> {
        if hashes.len() <= PIECE {
            return self.write().insert(hashes);
        }
        let (pieces, mut changes, count) = (self.table.in_pieces(), Changes::new(), self.count());
        for piece in hashes.chunks(PIECE) {
            let mut table = pieces.write();
            if let Err(error) = table.insert_recorded(piece, Some(&mut changes)) {
                table.undo(changes, count);
                return Err(error);
            }
            drop(table);
            interrupt::check();
        }
        Ok(())
    }

    /// Removing inserted keys would leave other keys where they were moved.
    fn inserts_at_once(&self) -> bool {
        true
    }

    fn remove(&self, hash: Hash128) -> Result<()> {
        self.write().remove(hash)
    }
}
