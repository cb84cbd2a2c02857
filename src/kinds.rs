//! The table of kinds: every structure that a frame can hold.
//!
//! The row of a kind, the `KIND` of its module, states its abilities. Structures do not import this
//! table, so that the modules stay a tree; they see other kinds as [`Kind`]s.

use crate::bits::Buffer;
use crate::error::{Error, Result};
use crate::format::{Head, Section};
use crate::kernel::{Kernel, Kind, Opening};
use crate::{adaptive_cuckoo, adaptive_stack, bloom, collection, cuckoo, fuse, learned, model};
use crate::{
    quotient, ribbon, sharded, stable, stable_learned, stack, telescoping, text, windowed,
};
use std::sync::Arc;

/// Every kind, in ascending order of number.
pub static KINDS: [&Kind; 22] = [
    &bloom::KIND,
    &quotient::KIND,
    &cuckoo::KIND,
    &fuse::KIND,
    &ribbon::KIND,
    &ribbon::KIND_FUNCTION,
    &sharded::KIND,
    &stack::KIND,
    &telescoping::KIND,
    &adaptive_cuckoo::KIND,
    &adaptive_stack::KIND,
    &stable::KIND,
    &windowed::KIND,
    &learned::KIND,
    &stable_learned::KIND,
    &COLLECTION,
    &model::KIND,
    &TEXT,
    &telescoping::KIND_EXTENDING,
    &RUNS,
    &SKIPPING,
    &SNAPSHOT,
];

/// Collections are not kernels: `src/python/collection` opens them, a part at a time.
static COLLECTION: Kind = Kind::new(collection::KIND, "collection", |_, _, _| {
    Err(Error::Format("this is a collection: open it with tamis.Collection.open".into()))
});

static TEXT: Kind =
    Kind::new(text::KIND, "text", |_, _, _| Err(Error::Format(text::OPENS_IT.into())));

/// Containers of frames: `tamis.collection.runs` opens them.
static RUNS: Kind = Kind::new(20, "runs", |_, _, _| {
    Err(Error::Format("this is a file of runs: open it with tamis.Collection.open".into()))
});

/// `tamis.parquet` opens them.
static SKIPPING: Kind = Kind::new(21, "skipping", |_, _, _| {
    let message = "this is a skipping index: open it with tamis.parquet.SkippingIndex.open";
    Err(Error::Format(message.into()))
});

/// `tamis.guard` opens them.
static SNAPSHOT: Kind = Kind::new(22, "snapshot", |_, _, _| {
    let message = "this is a snapshot of a guard: open it with tamis.Guard(store, snapshot=...)";
    Err(Error::Format(message.into()))
});

/// The kind with this number.
pub fn kind(number: u16) -> Option<&'static Kind> {
    KINDS.into_iter().find(|kind| kind.number == number)
}

/// Opens the filter of a frame; `own` turns a section into a buffer.
pub fn open(
    head: &Head,
    sections: &[Section<'_>],
    own: &dyn Fn(&[u8]) -> Result<Buffer>,
) -> Result<Arc<dyn Kernel>> {
    Opening { own, kind }.open(head, sections)
}
