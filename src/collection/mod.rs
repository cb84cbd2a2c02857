//! A collection: many filters in one file, with a prefix of each filter in memory.
//!
//! The file stores every filter in full, one after the other. Each filter is a bit string whose
//! prefixes are filters themselves: a shorter prefix has a higher false-positive rate and still no
//! false negatives (Mersy, Wang, Sintos, Krishnan 2024). There are three kinds, for a set of n keys:
//!
//! ```text
//! segmented   Bloom, probe j in segment j: keeps whole segments and a part of the next
//! ribbon      by columns: each column halves the rate and takes about n bits
//! truncated   Bloom, probes anywhere: probes beyond the prefix are ignored (the paper's)
//! ```
//!
//! `planning/collection/` decides how many bits of each filter to keep. In memory the prefixes are
//! packed bit by bit, the most queried filter first, so that a lookup in all filters reads memory in
//! order and can stop after the first few candidates.
//!
//! Invariant: a probe whose bits are not all within the prefix returns "maybe", and so does a filter
//! with no bits in memory. Only a set without keys returns "no" for every key.
//!
//! In reading order: this file (the directory entry of a filter), `probe.rs` (one key, one filter),
//! `entries.rs` (the sizes and places of the filters in memory), `resident.rs` (one key, all filters);
//! `sliced/` (the same by rows, for many small sets).

mod entries;
mod probe;
mod resident;
pub mod sliced;
#[cfg(test)]
mod tests;

pub use probe::{Bits, Query, may_hold};
pub use resident::{Candidate, Loaded, Resident};

use crate::bloom;
use crate::distinct::Distinct;
use crate::error::{Error, Result};
use crate::format::Source;
use crate::kernel::Kernel;
use crate::memory;
use crate::ribbon::{self, Ribbon};

/// The kind number of a collection in a frame.
pub const KIND: u16 = 16;
/// Section type: the directory, 32 bytes per filter, see [`Filter::record`].
pub const SECTION_DIRECTORY: u32 = 16;
/// Section type: the slots of all levels of all ribbons, 8 bytes each.
pub const SECTION_LEVELS: u32 = 17;
/// Section type: where each name ends, 4 bytes each.
pub const SECTION_ENDS: u32 = 18;
/// Section type: the names, as UTF-8.
pub const SECTION_NAMES: u32 = 19;
/// log2 of the bytes per checksum: reading a prefix reads and checks whole pieces of this size.
pub const PIECE: u32 = 9;
/// Bytes of a directory record.
pub const RECORD: usize = 32;

/// No ribbon needs this many attempts to build.
const MAX_ATTEMPTS: u16 = 10_000;

/// How the bits of a filter are interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No keys and no bits.
    Empty,
    /// Bloom in segments.
    Segmented,
    /// Ribbon by columns.
    Ribbon,
    /// Bloom with probes anywhere.
    Truncated,
}

impl Kind {
    pub(crate) const ALL: [Kind; 4] = [Kind::Empty, Kind::Segmented, Kind::Ribbon, Kind::Truncated];

    /// The kind with this name.
    pub fn named(name: &str) -> Option<Kind> {
        let names = ["empty", "segmented", "ribbon", "truncated"];
        names.iter().position(|known| *known == name).map(|index| Kind::ALL[index])
    }

    fn layout(self) -> bloom::Layout {
        match self {
            Kind::Segmented => bloom::Layout::Segmented,
            _ => bloom::Layout::Standard,
        }
    }
}

/// The directory entry of a full filter.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    /// How its bits are interpreted.
    pub kind: Kind,
    /// Probes per key of a Bloom filter, columns of a ribbon.
    pub hashes: u8,
    /// The hash attempt that made a ribbon's last level solvable.
    pub attempt: u16,
    /// Bits of a Bloom filter, slots of a ribbon's last level.
    pub size: u64,
    /// Keys in the set.
    pub count: u64,
    /// Slots of each level of a ribbon that bumps.
    pub levels: Box<[u64]>,
}

impl Filter {
    /// The filter of a set without keys.
    pub fn empty() -> Filter {
        let levels = Box::default();
        Filter { kind: Kind::Empty, hashes: 0, attempt: 0, size: 0, count: 0, levels }
    }

    /// Builds the full filter of distinct hashes and returns its entry and bytes.
    pub fn build(
        kind: Kind,
        hashes: u8,
        bits: u64,
        levels: &[u64],
        keys: &Distinct,
    ) -> Result<(Filter, Vec<u8>)> {
        if keys.is_empty() || kind == Kind::Empty {
            return Ok((Filter::empty(), Vec::new()));
        }
        let kernel: Box<dyn Kernel> = match kind {
            Kind::Ribbon => {
                let columns = hashes.into();
                let sizes = ribbon::Sizes { columns, levels, ..Default::default() };
                Box::new(Ribbon::build(ribbon::Layout::Columns, sizes, keys)?)
            }
            _ => {
                let shape = bloom::Shape::new(kind.layout(), bits, hashes.into(), bits)?;
                Box::new(bloom::Bloom::build(shape, keys, 1)?)
            }
        };
        let content = kernel.content()?;
        let (attempt, size) = match (kind, &content.parameters[..]) {
            (Kind::Ribbon, &[_, _, _, tried, last, ..]) => (tried as u16, last),
            _ => (0, bits),
        };
        let count = keys.len() as u64;
        let filter = Filter { kind, hashes, attempt, size, count, levels: levels.into() };
        let bytes = match &content.sections[0].content {
            Source::Bytes(bytes) => &bytes[..bytes.len().min(filter.bytes()? as usize)],
            _ => &[],
        };
        Ok((filter, memory::copied(bytes)?))
    }

    /// Encodes the directory record: this entry and its utility.
    pub fn record(&self, utility: f64) -> [u8; RECORD] {
        let (levels, attempt) = (self.levels.len() as u64, u64::from(self.attempt));
        let first = self.kind as u64 | u64::from(self.hashes) << 8 | levels << 16 | attempt << 32;
        let mut record = [0; RECORD];
        let fields = [first, self.count, self.size, utility.to_bits()];
        for (place, field) in record.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        record
    }

    /// The number of levels in a directory record.
    pub fn levels_in(record: &[u8; RECORD]) -> usize {
        usize::from(u16::from_le_bytes([record[2], record[3]]))
    }

    /// Decodes a directory record and consumes its levels from the front of `levels`.
    pub fn from_record(record: &[u8; RECORD], levels: &mut &[[u8; 8]]) -> Result<(Filter, f64)> {
        let damaged = |what: &str| Error::Format(format!("the directory is damaged: {what}"));
        let (fields, _) = record.as_chunks::<8>();
        let [first, count, size, utility] = [0, 1, 2, 3].map(|i| u64::from_le_bytes(fields[i]));
        let kind = Kind::ALL.get((first & 0xFF) as usize);
        let kind = *kind.ok_or_else(|| damaged("a filter has an unknown kind"))?;
        let number = Filter::levels_in(record);
        let (own, rest) =
            levels.split_at_checked(number).ok_or_else(|| damaged("levels are missing"))?;
        *levels = rest;
        let own: Box<[u64]> = own.iter().map(|&slots| u64::from_le_bytes(slots)).collect();
        let hashes = (first >> 8) as u8;
        let attempt = u16::try_from(first >> 32).ok().filter(|&attempt| attempt < MAX_ATTEMPTS);
        let attempt = attempt.ok_or_else(|| damaged("an attempt is out of range"))?;
        let filter = Filter { kind, hashes, attempt, size, count, levels: own };
        filter.bits().map_err(|error| error.in_frame(damaged))?;
        if (kind == Kind::Empty && filter != Filter::empty())
            || (kind != Kind::Empty && count == 0)
            || (kind != Kind::Ribbon && (number > 0 || attempt > 0))
        {
            return Err(damaged("a filter has fields that its kind does not"));
        }
        let utility = f64::from_bits(utility);
        if !utility.is_finite() || utility < 0.0 {
            return Err(damaged("a utility is negative or not finite"));
        }
        Ok((filter, utility))
    }

    /// The shape of a ribbon, or an error if it is invalid.
    pub fn shape(&self) -> Result<ribbon::Shape> {
        let (columns, attempt) = (u32::from(self.hashes), u64::from(self.attempt));
        let (levels, last) = (&self.levels[..], self.size);
        let sizes = ribbon::Sizes { columns, levels, last, attempt, ..Default::default() };
        ribbon::Shape::new(ribbon::Layout::Columns, sizes)
    }

    /// For a ribbon: bits before the columns, bits per column, and the width of a row (64 if there
    /// are levels). Zeros for other kinds.
    pub fn columns(&self) -> Result<(u64, u64, u64)> {
        if self.kind != Kind::Ribbon {
            return Ok((0, 0, 0));
        }
        if self.levels.is_empty() {
            return Ok((0, self.size, self.size.min(probe::WIDTH)));
        }
        let shape = self.shape()?;
        Ok((64 * shape.solution as u64, shape.slots, 64))
    }

    /// Bits of the full filter, or an error if its parameters are invalid.
    pub fn bits(&self) -> Result<u64> {
        match self.kind {
            Kind::Empty => Ok(0),
            Kind::Ribbon => {
                let shape = self.shape()?;
                if shape.slots == 0 {
                    return Err(Error::Parameter("a ribbon has no slots".into()));
                }
                Ok(64 * shape.solution as u64 + shape.kept)
            }
            kind => {
                bloom::Shape::new(kind.layout(), self.size, self.hashes.into(), self.size)?;
                Ok(self.size)
            }
        }
    }

    /// Bytes of the full filter in a file.
    pub fn bytes(&self) -> Result<u64> {
        Ok(self.bits()?.div_ceil(8))
    }
}
