//! Bloom filters: every key sets a few bits; a key may be in the set if all of its bits are set.
//!
//! Three layouts of `bits` bits with `hashes` = k probes per key, for a hash (hi, lo):
//!
//! * **Blocked**: `hi` chooses one of the blocks of 512 bits (a cache line), `lo` the bits in it,
//!   see `block.rs`. One cache miss per key; the uneven load of the blocks costs some rate
//!   (Putze, Sanders, Singler 2009), which `planning/bloom.py` computes exactly.
//! * **Standard**: k independent positions anywhere.
//! * **Segmented**: probe j stays in segment j of k (nearly) equal ones.
//!
//! Filters that are not blocked can be truncated to their first `kept` bits: a probe past them says
//! "yes", so a truncated filter has more false positives but never rejects a key (Mersy, Wang,
//! Sintos, Krishnan 2024, Definition 3.1). The paper truncates standard filters, where the
//! remaining probes differ between keys; a prefix of segments keeps the first probes of every key,
//! which gives a lower rate.
//!
//! Invariant: every position of every inserted hash that lies below `kept` is set.
//!
//! Readers take no lock: bits are atomic words, only ever set. One writer at a time holds the
//! lock, so setting a bit is a plain load and store rather than a locked instruction.
//!
//! In reading order: `shape.rs` (layouts, positions), this file (query, insert, the frame),
//! `probes.rs` (batches of the layouts that are not blocked), `wide.rs` (the same with AVX-512),
//! `build.rs`, `sets.rs` (filters as sets: cardinality, union, intersection, a prefix).

mod build;
mod probes;
mod sets;
mod shape;
mod wide;

pub use build::{Filling, Worker};
pub use shape::{BLOCK_BITS, Layout, MAX_HASHES, Shape};

use crate::bits::Buffer;
use crate::block::Prober;
use crate::error::{Error, Result};
use crate::format::{Head, SECTION_BITS, Section};
use crate::hash::Hash128;
use crate::kernel::{Content, Kernel, Kind};
use crate::lock::{RwLock, WriteGuard};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bloom filters.
pub static KIND: Kind = Kind {
    layer: true,
    inserts: true,
    merges: true,
    ..Kind::new(1, "bloom", |head, sections, opening| {
        Ok(Arc::new(Bloom::from_frame(head, sections, opening.own)?))
    })
};
/// A Bloom filter over hashes.
pub struct Bloom {
    shape: Shape,
    prober: Prober,
    bits: Buffer,
    /// Insertions that changed a bit; after a union or intersection, an estimate.
    count: AtomicU64,
    /// Insertions, and the number of them at which the bits are counted again: in a full filter
    /// most new keys change nothing.
    insertions: AtomicU64,
    recount_at: AtomicU64,
    writer: RwLock<()>,
}

impl Bloom {
    /// An empty filter.
    pub fn new(shape: Shape) -> Result<Bloom> {
        Ok(Bloom::with(shape, Buffer::zeroed(shape.bytes())?, 0))
    }

    fn with(shape: Shape, bits: Buffer, count: u64) -> Bloom {
        Bloom {
            shape,
            prober: Prober::new(shape.hashes),
            bits,
            count: AtomicU64::new(count),
            insertions: AtomicU64::new(count),
            recount_at: AtomicU64::new(0),
            writer: RwLock::new(()),
        }
    }

    /// Locks for the only writer; other writers wait, readers do not.
    pub fn writer(&self) -> Writer<'_> {
        Writer { bloom: self, _lock: self.writer.write() }
    }

    fn with_bytes<R>(&self, visit: impl FnOnce(&[u8]) -> R) -> R {
        let _lock = self.writer.read();
        visit(self.bits.as_slice())
    }

    /// Its sizes.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The fraction of segment `j` that answers "yes": set bits, and all bits that were cut off.
    fn segment_rate(&self, j: u32) -> f64 {
        let segment = self.shape.segment(j);
        let end = segment.start + segment.length;
        let kept = segment.start.min(self.shape.kept)..end.min(self.shape.kept);
        let cut = segment.length - (kept.end - kept.start);
        (self.ones_in(kept) + cut) as f64 / segment.length as f64
    }

    /// Opens the filter of a frame; `own` turns the section's bytes into a buffer.
    pub fn from_frame(
        head: &Head,
        sections: &[Section<'_>],
        own: impl FnOnce(&[u8]) -> Result<Buffer>,
    ) -> Result<Bloom> {
        let damaged = |what: &str| Error::Format(format!("the Bloom filter is damaged: {what}"));
        let (&[layout, bits, hashes, kept], [section]) = (&head.parameters[..], sections) else {
            return Err(damaged("it does not have four parameters and one section"));
        };
        let layout = usize::try_from(layout).ok().and_then(|index| Layout::ALL.get(index));
        let layout = *layout.ok_or_else(|| damaged("its layout is unknown"))?;
        let hashes = u32::try_from(hashes).map_err(|_| damaged("too many hashes"))?;
        let shape =
            Shape::new(layout, bits, hashes, kept).map_err(|error| error.in_frame(damaged))?;
        let as_written = section.kind == SECTION_BITS && section.piece == layout.piece();
        if !as_written || section.bytes.len() != shape.bytes() {
            return Err(damaged("its bits do not match its parameters"));
        }
        let last = section.bytes.last_chunk::<8>().map_or(0, |last| u64::from_le_bytes(*last));
        if last & !last_word_mask(kept) != 0 {
            return Err(damaged("bits are set past its end"));
        }
        Ok(Bloom::with(shape, own(section.bytes)?, head.count))
    }

    fn blocks(&self) -> u64 {
        self.shape.bits / BLOCK_BITS
    }

    /// A bit; set for one that was cut off.
    #[inline(always)]
    fn kept_bit(&self, position: u64) -> bool {
        let word = self.bits.words().get((position / 64) as usize);
        (position >= self.shape.kept)
            | word.is_none_or(|word| word.load(Relaxed) >> (position % 64) & 1 == 1)
    }

    /// Sets the bits of hashes; returns how many set a new bit. Only for the one writer (of their
    /// blocks).
    fn set(&self, hashes: &[Hash128]) -> u64 {
        if self.shape.layout == Layout::Blocked {
            return self.prober.set(self.bits.lines(), hashes);
        }
        self.set_spread(hashes)
    }

    fn ones(&self) -> u64 {
        ones_of(self.bits.words())
    }

    /// The number of set bits in a range of positions. Counted in one pass: while a writer runs, the
    /// difference of two counts could be negative.
    fn ones_in(&self, range: Range<u64>) -> u64 {
        let words = self.bits.words();
        let (first, last) = ((range.start / 64) as usize, (range.end / 64) as usize);
        let from = u64::MAX << (range.start % 64);
        let below = (1 << (range.end % 64)) - 1;
        let masked = |word: usize, mask: u64| match mask {
            0 => 0,
            _ => u64::from((words[word].load(Relaxed) & mask).count_ones()),
        };
        if first == last {
            return masked(first, from & below);
        }
        masked(first, from) + ones_of(&words[first + 1..last]) + masked(last, below)
    }
}

impl Kernel for Bloom {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn contains(&self, hashes: &[Hash128], out: &mut [bool]) {
        if self.shape.layout == Layout::Blocked {
            return self.prober.test(self.bits.lines(), hashes, out);
        }
        self.contains_in_rounds(hashes, out);
    }

    fn fetch(&self, hashes: &[Hash128]) {
        if self.shape.layout == Layout::Blocked {
            self.prober.fetch(self.bits.lines(), hashes);
        }
    }

    fn contains_one(&self, hash: Hash128) -> bool {
        match self.shape.layout {
            Layout::Blocked => self.prober.test_one(self.bits.lines(), hash),
            _ => self.shape.positions(hash).all(|position| self.kept_bit(position)),
        }
    }

    /// The number of inserted keys that changed a bit; an estimate after a merge.
    fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Beyond its capacity, the count follows an estimate from the bits.
    fn overfull(&self, capacity: u64) -> bool {
        let insertions = self.insertions.load(Relaxed);
        if insertions > capacity && insertions >= self.recount_at.load(Relaxed) {
            let estimate = (self.cardinality().round() as u64).min(insertions);
            self.count.fetch_max(estimate, Relaxed);
            self.recount_at.store(insertions.saturating_add(capacity / 8 + 1024), Relaxed);
        }
        // An estimate is within a few percent; a filter that is just full should not warn.
        self.count() > capacity.saturating_add(capacity / 32)
    }

    fn busy(&self) -> bool {
        self.writer.is_locked()
    }

    fn size_in_bits(&self) -> u64 {
        self.shape.kept
    }

    /// Exact for the present bits: per block, per segment or in total.
    fn rate(&self) -> f64 {
        match self.shape.layout {
            Layout::Blocked => {
                let lines = self.bits.lines();
                lines.iter().map(|line| self.prober.rate(line)).sum::<f64>() / lines.len() as f64
            }
            Layout::Standard => {
                let yes = self.ones() + (self.shape.bits - self.shape.kept);
                (yes as f64 / self.shape.bits as f64).powi(self.shape.hashes as i32)
            }
            Layout::Segmented => (0..self.shape.hashes).map(|j| self.segment_rate(j)).product(),
        }
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        let bits = self.with_bytes(Buffer::copied)?;
        Ok(Arc::new(Bloom::with(self.shape, bits, self.count())))
    }

    fn content(&self) -> Result<Content<'_>> {
        let Shape { layout, bits, hashes, kept, .. } = self.shape;
        let parameters = vec![layout as u64, bits, u64::from(hashes), kept];
        let piece = layout.piece();
        // SAFETY: the section is dropped with the lock.
        let (_, lock) = unsafe { self.writer.read().split() };
        let section = Section { kind: SECTION_BITS, piece, bytes: self.bits.as_slice() };
        let (count, sections) = (self.count(), vec![section.stored()]);
        Ok(Content { parameters, count, capacity: None, sections, lock: Some(lock) })
    }

    fn insert(&self, hashes: &[Hash128]) -> Result<()> {
        self.writer().insert(hashes);
        Ok(())
    }
}

/// The right to insert into a [`Bloom`].
pub struct Writer<'a> {
    bloom: &'a Bloom,
    _lock: WriteGuard<'a, ()>,
}

impl Writer<'_> {
    /// Inserts hashes.
    pub fn insert(&mut self, hashes: &[Hash128]) {
        let new = self.bloom.set(hashes);
        let bloom = self.bloom;
        bloom.count.store(bloom.count().saturating_add(new), Relaxed);
        let insertions = bloom.insertions.load(Relaxed).saturating_add(hashes.len() as u64);
        bloom.insertions.store(insertions, Relaxed);
    }
}

fn ones(line: &[AtomicU64]) -> u32 {
    line.iter().map(|word| word.load(Relaxed).count_ones()).sum()
}

fn ones_of(words: &[AtomicU64]) -> u64 {
    words.chunks(1 << 20).map(|chunk| u64::from(ones(chunk))).sum()
}

/// The bits of the last word that belong to a filter of `kept` bits.
fn last_word_mask(kept: u64) -> u64 {
    if kept.is_multiple_of(64) { u64::MAX } else { (1 << (kept % 64)) - 1 }
}
