//! Hashes of keys sent to a build elsewhere: in another process, or on another machine.
//!
//! A part holds the hashes of some keys that belong to one of `shards` shards. It is a frame like a
//! filter's, so it records how the keys were hashed, and damage is detected: with another seed, or
//! in the place of another shard, these hashes would make a filter that rejects its keys. The
//! parameters are the shard and the number of shards; the one section has the hashes, 16 bytes each
//! (`hi`, then `lo`), in the order of the keys and with repetitions.

use crate::error::{Error, Result};
use crate::format::{self, Head, SECTION_HASHES, Section};
use crate::hash::{Hash128, Hasher};
use crate::memory;
use crate::sharded::{MAX_SHARDS, shard_of};

/// The kind of a part in its frame. It cannot be opened as a structure: see docs/format.md.
const NUMBER: u16 = 64;

/// A part that was read.
pub struct Part<'a> {
    /// The hash of the keys, as [`Hasher::id`] and [`Hasher::tag`].
    pub hash: (u16, u64),
    /// The shard that the keys belong to.
    pub shard: u64,
    /// The number of shards.
    pub shards: u64,
    hashes: &'a [[u8; 16]],
}

impl Part<'_> {
    /// Reads a part and checks it.
    pub fn read(bytes: &[u8]) -> Result<Part<'_>> {
        let damaged = |what: &str| Error::Format(format!("the part is damaged: {what}"));
        let (head, sections) = format::read(bytes)?;
        if head.kind != NUMBER {
            let message = "this is not a part that tamis.split made, but a saved filter";
            return Err(Error::Format(message.into()));
        }
        let (&[shard, shards], &[Section { kind: SECTION_HASHES, piece: 0, bytes }]) =
            (&head.parameters[..], &sections[..])
        else {
            return Err(damaged("it is not two parameters and a section of hashes"));
        };
        let (hashes, rest) = bytes.as_chunks::<16>();
        if !rest.is_empty() || hashes.len() as u64 != head.count || head.count != head.capacity {
            return Err(damaged("its number of hashes does not match its length"));
        }
        if !(1..=MAX_SHARDS).contains(&shards) || shard >= shards {
            return Err(damaged("there is no such shard"));
        }
        let part = Part { hash: (head.hash, head.tag), shard, shards, hashes };
        // A filter never queries this shard for such a key, so it would reject it.
        if shards > 1 && part.hashes().any(|hash| shard_of(hash, shards) as u64 != shard) {
            return Err(damaged("a hash belongs to another shard"));
        }
        Ok(part)
    }

    /// The number of hashes, repetitions included.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// The hashes.
    pub fn hashes(&self) -> impl Iterator<Item = Hash128> {
        self.hashes.iter().map(|pair| {
            let (hi, lo) = pair.split_at(8);
            let word =
                |half: &[u8]| half.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
            Hash128 { hi: word(hi), lo: word(lo) }
        })
    }
}

/// Writes the part of a shard.
pub fn write(hashes: &[Hash128], shard: u64, shards: u64, hasher: &Hasher) -> Result<Vec<u8>> {
    let mut bytes = memory::with_capacity(16 * hashes.len())?;
    for word in hashes.iter().flat_map(|hash| [hash.hi, hash.lo]) {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    let count = hashes.len() as u64;
    let (hash, tag) = (hasher.id(), hasher.tag());
    let parameters = vec![shard, shards];
    let head = Head { kind: NUMBER, hash, tag, count, capacity: count, parameters };
    format::to_bytes(&head, &[Section { kind: SECTION_HASHES, piece: 0, bytes: &bytes }])
}
