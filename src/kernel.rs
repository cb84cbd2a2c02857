//! The interface of every structure: one trait, implemented once per structure.
//!
//! A [`Kind`] describes a structure as data: each module has a static of it, and `kinds.rs` lists
//! them all. A structure made of others opens them through [`Opening`], so that it depends neither
//! on the list nor on the modules of its parts.

use crate::bits::Buffer;
use crate::error::{Error, Result};
use crate::format::{self, Frame, Head, SECTION_FRAME, Section, Source, Stored};
use crate::hash::Hash128;
use crate::lock::Held;
use std::any::Any;
use std::sync::Arc;

/// A kind of structure: its row in the table of kinds, which Python reads.
pub struct Kind {
    /// Its number in a frame (docs/format.md).
    pub number: u16,
    /// Its name: of its page, its planning module, and in messages.
    pub name: &'static str,
    /// Whether it may be a layer of a stack. Such a kind holds no other filters.
    pub layer: bool,
    /// Whether every filter of the kind takes keys after it was built.
    pub inserts: bool,
    /// Whether every filter of the kind deletes keys.
    pub deletes: bool,
    /// Whether it counts how often a key was inserted.
    pub counts: bool,
    /// Whether it refuses keys beyond its capacity, rather than grow or have more false positives.
    pub bounded: bool,
    /// Whether two filters of the kind can be merged.
    pub merges: bool,
    /// Whether it changes its answers when a false positive is reported to it.
    pub adapts: bool,
    /// Whether it forgets keys, so that it may reject one that was inserted.
    pub forgets: bool,
    /// Opens a frame of the kind.
    pub open: Open,
}

impl Kind {
    /// A kind that can only be queried: its row adds other abilities.
    pub const fn new(number: u16, name: &'static str, open: Open) -> Kind {
        Kind {
            number,
            name,
            layer: false,
            inserts: false,
            deletes: false,
            counts: false,
            bounded: false,
            merges: false,
            adapts: false,
            forgets: false,
            open,
        }
    }
}

/// Opens a frame, given its head and its sections.
pub type Open = fn(&Head, &[Section<'_>], &Opening<'_>) -> Result<Arc<dyn Kernel>>;

/// The functions needed to open frames, nested ones included.
pub struct Opening<'a> {
    /// Turns the bytes of a section into a buffer.
    pub own: &'a dyn Fn(&[u8]) -> Result<Buffer>,
    /// Finds a kind by its number.
    pub kind: fn(u16) -> Option<&'static Kind>,
}

impl Opening<'_> {
    /// Opens a frame of any kind.
    pub fn open(&self, head: &Head, sections: &[Section<'_>]) -> Result<Arc<dyn Kernel>> {
        (self.kind_of(head)?.open)(head, sections, self)
    }

    /// Opens a frame written by [`nested`], or `None` if the section is not one or its kind may not
    /// be a part. Bytes must not choose the depth of recursion, so `may_be` must refuse every kind
    /// that can contain, directly or in its parts, the calling kind.
    pub fn nested(
        &self,
        section: &Section<'_>,
        may_be: impl FnOnce(&Kind) -> bool,
    ) -> Result<Option<Arc<dyn Kernel>>> {
        if (section.kind, section.piece) != (SECTION_FRAME, 0) {
            return Ok(None);
        }
        let (inner, sections) = format::read(section.bytes)?;
        if (inner.hash, inner.tag) != (0, 0) || !may_be(self.kind_of(&inner)?) {
            return Ok(None);
        }
        self.open(&inner, &sections).map(Some)
    }

    fn kind_of(&self, head: &Head) -> Result<&'static Kind> {
        let unknown =
            || Error::Format(format!("kind {} is unknown to this version of tamis", head.kind));
        (self.kind)(head.kind).ok_or_else(unknown)
    }
}

/// The content of a structure's frame.
pub struct Content<'a> {
    /// Sizes and shape, as [`Kind::open`] reads them.
    pub parameters: Vec<u64>,
    /// The number of keys.
    pub count: u64,
    /// Its capacity in keys, if it manages its own.
    pub capacity: Option<u64>,
    /// The bits.
    pub sections: Vec<Stored<'a>>,
    /// Keeps writers out while the sections are used.
    pub lock: Option<Held<'a>>,
}

/// Hashes that are inserted at a time, so that readers need not wait for all of a large batch: a
/// millisecond at most.
pub const PIECE: usize = 1 << 12;

/// A filter over hashes, shared between threads.
pub trait Kernel: Any + Send + Sync {
    /// Its kind.
    fn kind(&self) -> &'static Kind;
    /// Whether each hash may be in the set; `false` is certain.
    fn contains(&self, hashes: &[Hash128], out: &mut [bool]);
    /// The preferred number of hashes per call of [`Kernel::contains`].
    fn batch(&self) -> usize {
        1
    }
    /// The place of each hash in its memory, as a fraction of 2⁶⁴; `false` if the places of a hash
    /// are scattered over the memory.
    fn places(&self, _hashes: &[Hash128], _out: &mut [u64]) -> bool {
        false
    }
    /// Reads one of `parts` equal parts of its memory into the cache, before many queries of that
    /// part.
    fn preload(&self, _part: usize, _parts: usize) {}
    /// Prefetches for the first of these hashes, which are queried soon.
    fn fetch(&self, _hashes: &[Hash128]) {}
    /// [`Kernel::contains`] for one hash, without the overhead of batches.
    fn contains_one(&self, hash: Hash128) -> bool {
        let mut out = [false];
        self.contains(&[hash], &mut out);
        out[0]
    }
    /// [`Kernel::contains_one`], or `None` if the answer would have to wait for a writer.
    fn try_contains_one(&self, hash: Hash128) -> Option<bool> {
        Some(self.contains_one(hash))
    }
    /// The number of keys.
    fn count(&self) -> u64;
    /// Its capacity in keys, if it changes with insertions.
    fn capacity(&self) -> Option<u64> {
        None
    }
    /// Whether it holds more keys than `capacity`; kinds that limit or extend it override this.
    fn overfull(&self, capacity: u64) -> bool {
        self.count() > capacity
    }
    /// Whether a writer would have to wait now, so that the caller should let other threads run.
    fn busy(&self) -> bool {
        false
    }
    /// The memory of the structure.
    fn size_in_bits(&self) -> u64;
    /// The false-positive rate, given the stored keys: of random absent keys, or of the workload
    /// that it was built for if it has one.
    fn rate(&self) -> f64;
    /// The same for a key outside the workload.
    fn unseen_rate(&self) -> f64 {
        self.rate()
    }
    /// An independent copy.
    fn copy(&self) -> Result<Arc<dyn Kernel>>;
    /// The content of a frame, which no writer changes while it lives. Who holds it must not call
    /// the kernel: the two can deadlock with a waiting writer.
    fn content(&self) -> Result<Content<'_>>;
    /// Inserts hashes: all of them, or none if it fails.
    fn insert(&self, _hashes: &[Hash128]) -> Result<()> {
        Err(Error::Parameter("keys cannot be added to this filter".into()))
    }
    /// Whether a failure can be undone only within one call of [`Kernel::insert`]; otherwise
    /// removing the keys of earlier calls undoes them.
    fn inserts_at_once(&self) -> bool {
        false
    }
    /// Inserts hashes in order, and reports for each whether it was present just before.
    fn seen(&self, _hashes: &[Hash128], _out: &mut [bool]) -> Result<()> {
        Err(Error::Parameter("this filter cannot look up and insert in one step".into()))
    }
    /// Undoes one insertion of a hash.
    fn remove(&self, _hash: Hash128) -> Result<()> {
        Err(Error::Parameter("keys cannot be removed from this filter".into()))
    }
    /// Removes a hash of a batch that failed midway, as if it had never been inserted.
    fn undo(&self, hash: Hash128) -> Result<()> {
        self.remove(hash)
    }
}

/// [`Kernel::places`] of a kernel whose memory follows the high halves.
pub fn by_high_half(hashes: &[Hash128], out: &mut [u64]) -> bool {
    out.iter_mut().zip(hashes).for_each(|(place, hash)| *place = hash.hi);
    true
}

/// The frame of a filter that was built with this hash (its id and tag).
pub fn frame(kernel: &dyn Kernel, (hash, tag): (u16, u64), capacity: u64) -> Result<Frame<'_>> {
    let Content { parameters, count, capacity: own, sections, lock } = kernel.content()?;
    let (kind, capacity) = (kernel.kind().number, own.unwrap_or(capacity));
    Frame::new(&Head { kind, hash, tag, count, capacity, parameters }, sections, lock)
}

/// A part of another filter, as a section of its frame; the hash is in the outer one.
pub fn nested(part: &dyn Kernel) -> Result<Stored<'_>> {
    let frame = frame(part, (0, 0), part.count())?;
    Ok(Stored { kind: SECTION_FRAME, piece: 0, content: Source::Frame(frame) })
}
