//! What every structure can do for the boundary: one trait, implemented once per structure.
//!
//! A [`Kind`] says in data what a structure is: each module has a static of it, and `kinds.rs` lists
//! them all. A structure that is made of others opens them through [`Opening`], so that it needs to
//! know neither the list nor the modules of its parts.

use crate::bits::Buffer;
use crate::error::{Error, Result};
use crate::format::{self, Head, SECTION_FRAME, Section};
use crate::hash::Hash128;
use std::any::Any;
use std::io::{self, Write};
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
    /// A kind that can only be queried: its row names what else it can do.
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

/// What it takes to open frames, nested ones included.
pub struct Opening<'a> {
    /// Turns the bytes of a section into the buffer to live in.
    pub own: &'a dyn Fn(&[u8]) -> Result<Buffer>,
    /// Finds a kind by its number.
    pub kind: fn(u16) -> Option<&'static Kind>,
}

impl Opening<'_> {
    /// Opens a frame of any kind.
    pub fn open(&self, head: &Head, sections: &[Section<'_>]) -> Result<Arc<dyn Kernel>> {
        (self.kind_of(head)?.open)(head, sections, self)
    }

    /// Opens what [`nested`] wrote, or `None` where the section is not that or of a kind that may not
    /// be a part. Bytes must not choose how deep this recurses, so `may_be` must refuse every kind
    /// that can hold, itself or in its parts, the kind that asks.
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

/// What a frame holds of a structure.
pub struct Content<'a> {
    /// Sizes and shape, as [`Kind::open`] wants them back.
    pub parameters: Vec<u64>,
    /// How many keys.
    pub count: u64,
    /// Its capacity in keys, where it has one of its own.
    pub capacity: Option<u64>,
    /// The bits.
    pub sections: Vec<Section<'a>>,
}

/// A filter over hashes, shared between threads.
pub trait Kernel: Any + Send + Sync {
    /// Which structure.
    fn kind(&self) -> &'static Kind;
    /// Whether each hash may be in the set; `false` is certain.
    fn contains(&self, hashes: &[Hash128], out: &mut [bool]);
    /// How many hashes [`Kernel::contains`] likes to get at once, where there are this many.
    fn batch(&self) -> usize {
        1
    }
    /// Where in its memory lies what each hash needs, as a share of 2⁶⁴; `false` where that is all over
    /// the memory.
    fn places(&self, _hashes: &[Hash128], _out: &mut [u64]) -> bool {
        false
    }
    /// Reads through one of `parts` equal parts of its memory, where many places are asked for next.
    fn preload(&self, _part: usize, _parts: usize) {}
    /// Prefetches what the first of these hashes need, which are queried soon.
    fn fetch(&self, _hashes: &[Hash128]) {}
    /// [`Kernel::contains`] for one hash: the same, without what only many pay for.
    fn contains_one(&self, hash: Hash128) -> bool {
        let mut out = [false];
        self.contains(&[hash], &mut out);
        out[0]
    }
    /// [`Kernel::contains_one`], or `None` where the answer would have to wait for a writer.
    fn try_contains_one(&self, hash: Hash128) -> Option<bool> {
        Some(self.contains_one(hash))
    }
    /// How many keys it holds.
    fn count(&self) -> u64;
    /// Its capacity in keys, where it changes that itself.
    fn capacity(&self) -> Option<u64> {
        None
    }
    /// Whether it holds more than it was made for, `capacity` unless it changes that itself.
    fn overfull(&self, capacity: u64) -> bool {
        self.count() > capacity
    }
    /// Whether a writer would have to wait now, so that the caller should let others run.
    fn busy(&self) -> bool {
        false
    }
    /// The memory of the structure.
    fn size_in_bits(&self) -> u64;
    /// The probability that a random absent key is answered "yes", given what is stored; over the
    /// queries that it was built for, where it knows them.
    fn rate(&self) -> f64;
    /// The same for a key that it knows nothing of.
    fn unseen_rate(&self) -> f64 {
        self.rate()
    }
    /// An independent copy.
    fn copy(&self) -> Result<Arc<dyn Kernel>>;
    /// Shows what a frame should hold, while no writer changes it. The kernel may be locked meanwhile:
    /// a call to it from within would wait for a writer that waits for this one.
    fn with_content(&self, visit: &mut dyn FnMut(Content<'_>));
    /// Inserts hashes: all of them, or none where it fails.
    fn insert(&self, _hashes: &[Hash128]) -> Result<()> {
        Err(Error::Parameter("keys cannot be added to this filter".into()))
    }
    /// Whether only within one call of [`Kernel::insert`] a failure leaves no trace; otherwise
    /// removing what earlier calls inserted undoes them.
    fn inserts_at_once(&self) -> bool {
        false
    }
    /// Inserts hashes in order, and reports for each whether it was there just before.
    fn seen(&self, _hashes: &[Hash128], _out: &mut [bool]) -> Result<()> {
        Err(Error::Parameter("this filter cannot look up and insert in one step".into()))
    }
    /// Takes one insertion of a hash back.
    fn remove(&self, _hash: Hash128) -> Result<()> {
        Err(Error::Parameter("keys cannot be removed from this filter".into()))
    }
    /// Removes a hash of a batch that was refused midway, as if it had never been inserted.
    fn undo(&self, hash: Hash128) -> Result<()> {
        self.remove(hash)
    }
}

/// [`Kernel::places`] of a kernel whose memory follows the high halves.
pub fn by_high_half(hashes: &[Hash128], out: &mut [u64]) -> bool {
    out.iter_mut().zip(hashes).for_each(|(place, hash)| *place = hash.hi);
    true
}

/// Writes the frame of a filter that was built with this hash (its id and tag).
pub fn write(
    kernel: &dyn Kernel,
    (hash, tag): (u16, u64),
    capacity: u64,
    out: &mut impl Write,
) -> io::Result<()> {
    let (mut written, kind) = (Ok(()), kernel.kind().number);
    kernel.with_content(&mut |content| {
        let Content { parameters, count, capacity: own, sections } = content;
        let capacity = own.unwrap_or(capacity);
        let head = Head { kind, hash, tag, count, capacity, parameters };
        written = format::write(&head, &sections, out);
    });
    written
}

/// The frame of a part of another filter, which leaves the hash to the frame around it.
pub fn nested(part: &dyn Kernel) -> Vec<u8> {
    let mut frame = Vec::new();
    // Writing to memory does not fail.
    let _ = write(part, (0, 0), part.count(), &mut frame);
    frame
}
