//! What every structure can do for the boundary: one trait, implemented once per structure.

use crate::bits::Buffer;
use crate::bloom;
use crate::error::{Error, Result};
use crate::format::{Head, Section};
use crate::hash::Hash128;
use crate::quotient;
use crate::ribbon;
use std::any::Any;
use std::sync::Arc;

/// What a frame holds of a structure.
pub struct Content<'a> {
    /// Sizes and shape, as [`open`] wants them back.
    pub parameters: Vec<u64>,
    /// How many keys.
    pub count: u64,
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
    /// How many keys it holds.
    fn count(&self) -> u64;
    /// How many keys it has room for, where it changes that itself.
    fn capacity(&self) -> Option<u64> {
        None
    }
    /// The memory of the structure.
    fn size_in_bits(&self) -> u64;
    /// The probability that a random absent key is answered "yes", given what is stored.
    fn rate(&self) -> f64;
    /// A copy of its own.
    fn copy(&self) -> Result<Arc<dyn Kernel>>;
    /// Shows what a frame should hold, while nobody changes it.
    fn frozen(&self, look: &mut dyn FnMut(Content<'_>));
    /// Inserts hashes: all of them, or none where it fails.
    fn insert(&self, _hashes: &[Hash128]) -> Result<()> {
        Err(Error::Parameter("this filter takes no insertions".into()))
    }
    /// Takes one insertion of a hash back.
    fn remove(&self, _hash: Hash128) -> Result<()> {
        Err(Error::Parameter("this filter takes no deletions".into()))
    }
}

/// Opens the filter in a frame; `own` turns a section into the buffer to live in.
pub fn open(
    head: &Head,
    sections: &[Section<'_>],
    own: impl Fn(&[u8]) -> Result<Buffer>,
) -> Result<Arc<dyn Kernel>> {
    match head.kind {
        bloom::KIND => Ok(Arc::new(bloom::Bloom::from_frame(head, sections, own)?)),
        quotient::KIND => Ok(Arc::new(quotient::Growing::from_frame(head, sections, own)?)),
        ribbon::KIND => Ok(Arc::new(ribbon::Ribbon::from_frame(head, sections, own)?)),
        ribbon::KIND_FUNCTION => Ok(Arc::new(ribbon::Function::from_frame(head, sections, own)?)),
        kind => Err(Error::Format(format!("kind {kind} is not one this tamis knows"))),
    }
}
