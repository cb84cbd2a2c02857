//! What every structure can do for the boundary: one trait, implemented once per structure.

use crate::adaptive_cuckoo;
use crate::adaptive_stack;
use crate::bits::Buffer;
use crate::bloom;
use crate::collection;
use crate::cuckoo;
use crate::error::{Error, Result};
use crate::format::{self, Head, SECTION_FRAME, Section};
use crate::fuse;
use crate::hash::Hash128;
use crate::learned;
use crate::model;
use crate::quotient;
use crate::ribbon;
use crate::sharded;
use crate::stable;
use crate::stable_learned;
use crate::stack;
use crate::telescoping;
use crate::text;
use crate::windowed;
use std::any::Any;
use std::io::{self, Write};
use std::sync::Arc;

/// What a frame holds of a structure.
pub struct Content<'a> {
    /// Sizes and shape, as [`open`] wants them back.
    pub parameters: Vec<u64>,
    /// How many keys.
    pub count: u64,
    /// How many it has room for, where it says so itself.
    pub capacity: Option<u64>,
    /// The bits.
    pub sections: Vec<Section<'a>>,
}

/// A filter over hashes, shared between threads.
pub trait Kernel: Any + Send + Sync {
    /// Which structure, as a frame says it.
    fn kind(&self) -> u16;
    /// Whether each hash may be in the set; `false` is certain.
    fn contains(&self, hashes: &[Hash128], out: &mut [bool]);
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
    /// How many keys it has room for, where it changes that itself.
    fn capacity(&self) -> Option<u64> {
        None
    }
    /// Whether it holds more than it was made for, `capacity` unless it changes that itself.
    fn overfull(&self, capacity: u64) -> bool {
        self.count() > capacity
    }
    /// Whether a writer would have to wait now: then others should run meanwhile.
    fn busy(&self) -> bool {
        false
    }
    /// The memory of the structure.
    fn size_in_bits(&self) -> u64;
    /// The probability that a random absent key is answered "yes", given what is stored; over the
    /// questions that it was built for, where it knows them.
    fn rate(&self) -> f64;
    /// The same for a key that it knows nothing of.
    fn unseen_rate(&self) -> f64 {
        self.rate()
    }
    /// A copy of its own.
    fn copy(&self) -> Result<Arc<dyn Kernel>>;
    /// Shows what a frame should hold, while nobody changes it. The kernel may be locked meanwhile:
    /// asked anything from within, it would wait for a writer that waits for it.
    fn frozen(&self, look: &mut dyn FnMut(Content<'_>));
    /// Inserts hashes: all of them, or none where it fails.
    fn insert(&self, _hashes: &[Hash128]) -> Result<()> {
        Err(Error::Parameter("this filter takes no insertions".into()))
    }
    /// Whether only within one call of [`Kernel::insert`] a failure leaves no trace; otherwise
    /// removing what earlier calls inserted undoes them.
    fn inserts_at_once(&self) -> bool {
        false
    }
    /// Inserts hashes in their order, and tells of each whether it was there just before.
    fn seen(&self, _hashes: &[Hash128], _out: &mut [bool]) -> Result<()> {
        Err(Error::Parameter("this filter does not answer and insert in one step".into()))
    }
    /// Takes one insertion of a hash back.
    fn remove(&self, _hash: Hash128) -> Result<()> {
        Err(Error::Parameter("this filter takes no deletions".into()))
    }
}

/// Writes the frame of a filter that was built with this hash (its id and tag).
pub fn write(
    kernel: &dyn Kernel,
    (hash, tag): (u16, u64),
    capacity: u64,
    out: &mut impl Write,
) -> io::Result<()> {
    let (mut written, kind) = (Ok(()), kernel.kind());
    kernel.frozen(&mut |content| {
        let Content { parameters, count, capacity: own, sections } = content;
        let capacity = own.unwrap_or(capacity);
        let head = Head { kind, hash, tag, count, capacity, parameters };
        written = format::write(&head, &sections, out);
    });
    written
}

/// Opens the filter in a frame; `own` turns a section into the buffer to live in.
pub fn open(
    head: &Head,
    sections: &[Section<'_>],
    own: &dyn Fn(&[u8]) -> Result<Buffer>,
) -> Result<Arc<dyn Kernel>> {
    match head.kind {
        bloom::KIND => Ok(Arc::new(bloom::Bloom::from_frame(head, sections, own)?)),
        quotient::KIND => Ok(Arc::new(quotient::Growing::from_frame(head, sections, own)?)),
        sharded::KIND => Ok(Arc::new(sharded::Sharded::from_frame(head, sections, own)?)),
        cuckoo::KIND => Ok(Arc::new(cuckoo::Cuckoo::from_frame(head, sections, own)?)),
        fuse::KIND => Ok(Arc::new(fuse::Fuse::from_frame(head, sections, own)?)),
        ribbon::KIND => Ok(Arc::new(ribbon::Ribbon::from_frame(head, sections, own)?)),
        ribbon::KIND_FUNCTION => Ok(Arc::new(ribbon::Function::from_frame(head, sections, own)?)),
        stack::KIND => Ok(Arc::new(stack::Stack::from_frame(head, sections, own)?)),
        learned::KIND => Ok(Arc::new(learned::Learned::from_frame(head, sections, own)?)),
        model::KIND => Ok(Arc::new(model::Model::from_frame(head, sections)?)),
        adaptive_cuckoo::KIND => {
            Ok(Arc::new(adaptive_cuckoo::AdaptiveCuckoo::from_frame(head, sections)?))
        }
        adaptive_stack::KIND => {
            Ok(Arc::new(adaptive_stack::AdaptiveStack::from_frame(head, sections, own)?))
        }
        telescoping::KIND | telescoping::KIND_EXTENDING => {
            Ok(Arc::new(telescoping::Shared::from_frame(head, sections, own)?))
        }
        collection::KIND => {
            let message = "this is a collection: tamis.Collection.open opens it";
            Err(Error::Format(message.into()))
        }
        text::KIND => Err(Error::Format(text::OPENS_IT.into())),
        stable::KIND => Ok(Arc::new(stable::Stable::from_frame(head, sections, own)?)),
        stable_learned::KIND => {
            Ok(Arc::new(stable_learned::StableLearned::from_frame(head, sections, own)?))
        }
        windowed::KIND => Ok(Arc::new(windowed::Windowed::from_frame(head, sections, own)?)),
        kind => Err(Error::Format(format!("kind {kind} is not one this tamis knows"))),
    }
}

/// The frame of a part of another filter, which leaves the hash to the frame around it.
pub fn nested(part: &dyn Kernel) -> Vec<u8> {
    let mut frame = Vec::new();
    // Writing to memory does not fail.
    let _ = write(part, (0, 0), part.count(), &mut frame);
    frame
}

/// Opens what [`nested`] wrote, or `None` where the section is not that or of a kind that may not
/// be a part: a part that could hold parts would let bytes choose how deep this goes.
pub fn open_nested(
    section: &Section<'_>,
    may_be: impl FnOnce(u16) -> bool,
    own: &dyn Fn(&[u8]) -> Result<Buffer>,
) -> Result<Option<Arc<dyn Kernel>>> {
    if (section.kind, section.piece) != (SECTION_FRAME, 0) {
        return Ok(None);
    }
    let (inner, sections) = format::read(section.bytes)?;
    if (inner.hash, inner.tag) != (0, 0) || !may_be(inner.kind) {
        return Ok(None);
    }
    open(&inner, &sections, own).map(Some)
}
