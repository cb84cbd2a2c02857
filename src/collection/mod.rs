//! A collection: many filters in one file, of each of which a prefix is in memory.
//!
//! The file holds every filter in full, one after the other, as strings of bits whose prefixes are
//! filters themselves: fewer bits, a higher rate, never a key denied (Mersy, Wang, Sintos,
//! Krishnan 2024). Three kinds of strings, for a set of n keys:
//!
//! ```text
//! segmented   Bloom, probe j in segment j: whole segments and a part of the next are kept
//! ribbon      by columns: each halves the rate, at about n bits
//! truncated   Bloom, probes anywhere: those beyond the prefix say nothing (the paper's)
//! ```
//!
//! How many bits of each to keep is decided in `planning/collection.py`. In memory the prefixes lie
//! bit by bit one behind the other, the most asked filter first, so that one key asked of all
//! filters walks through memory in order and an answer can stop at the first few candidates.
//!
//! Invariant: a probe whose bits are not all within the prefix says "maybe"; so does a filter of no
//! bits. Only a set of no keys says "no" to all.
//!
//! In reading order: this file (what a directory says of a filter), `probe.rs` (one key, one
//! filter), `resident.rs` (one key, all filters).

mod probe;
mod resident;
#[cfg(test)]
mod tests;

pub use probe::{Asked, Bits, may_hold};
pub use resident::{Found, Resident};

use crate::bloom;
use crate::distinct::Distinct;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::ribbon::{self, Ribbon};

/// The kind of a collection in a frame.
pub const KIND: u16 = 16;
/// Section type: 32 bytes for each filter, see [`Filter::record`].
pub const SECTION_DIRECTORY: u32 = 16;
/// Section type: the slots of all levels of all ribbons, 8 bytes each.
pub const SECTION_LEVELS: u32 = 17;
/// Section type: where each name ends, 4 bytes each.
pub const SECTION_ENDS: u32 = 18;
/// Section type: the names, as UTF-8.
pub const SECTION_NAMES: u32 = 19;
/// log2 of the bytes of a piece with its own checksum: what is read beyond a prefix to trust it.
pub const PIECE: u32 = 9;
/// Bytes of a record of the directory.
pub const RECORD: usize = 32;

/// More than any ribbon tries before it is built.
const MOST_ATTEMPTS: u16 = 10_000;

/// How the bits of a filter are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No keys, no bits.
    Empty,
    /// Bloom in segments.
    Segmented,
    /// Ribbon by columns.
    Ribbon,
    /// Bloom with probes anywhere.
    Truncated,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Empty, Kind::Segmented, Kind::Ribbon, Kind::Truncated];

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

/// A full filter, as the directory has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    /// How its bits are read.
    pub kind: Kind,
    /// Probes per key, or columns.
    pub hashes: u8,
    /// Which of the hashes made a ribbon's last level solvable.
    pub attempt: u16,
    /// Bits of a Bloom filter, slots of a ribbon's last level.
    pub size: u64,
    /// Keys of the set.
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

    /// Builds the full filter of distinct hashes; what it is, and its bytes.
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
                Box::new(Ribbon::build(ribbon::Layout::Columns, hashes.into(), levels, keys)?)
            }
            _ => {
                let shape = bloom::Shape::new(kind.layout(), bits, hashes.into(), bits)?;
                Box::new(bloom::Bloom::build(shape, keys, 1)?)
            }
        };
        let (count, mut bytes) = (keys.len() as u64, Vec::new());
        let (mut attempt, mut size) = (0, bits);
        kernel.frozen(&mut |content| {
            if let (Kind::Ribbon, &[_, _, _, tried, last, ..]) = (kind, &content.parameters[..]) {
                (attempt, size) = (tried as u16, last);
            }
            bytes.extend_from_slice(content.sections[0].bytes);
        });
        let filter = Filter { kind, hashes, attempt, size, count, levels: levels.into() };
        bytes.truncate(filter.bytes()? as usize);
        Ok((filter, bytes))
    }

    /// A record of the directory, and behind it a utility.
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

    /// What a record says; takes its levels off `levels`.
    pub fn from_record(record: &[u8; RECORD], levels: &mut &[[u8; 8]]) -> Result<(Filter, f64)> {
        let damaged = |what: &str| Error::Format(format!("the directory is damaged: {what}"));
        let (fields, _) = record.as_chunks::<8>();
        let [first, count, size, utility] = [0, 1, 2, 3].map(|i| u64::from_le_bytes(fields[i]));
        let kind = Kind::ALL.get((first & 0xFF) as usize);
        let kind = *kind.ok_or_else(|| damaged("a filter is of no known kind"))?;
        let number = (first >> 16 & 0xFFFF) as usize;
        let (own, rest) =
            levels.split_at_checked(number).ok_or_else(|| damaged("levels are missing"))?;
        *levels = rest;
        let own: Box<[u64]> = own.iter().map(|&slots| u64::from_le_bytes(slots)).collect();
        let hashes = (first >> 8) as u8;
        let attempt = u16::try_from(first >> 32).ok().filter(|&attempt| attempt < MOST_ATTEMPTS);
        let attempt = attempt.ok_or_else(|| damaged("an attempt is out of range"))?;
        let filter = Filter { kind, hashes, attempt, size, count, levels: own };
        filter.bits().map_err(|error| damaged(&error.to_string()))?;
        if (kind == Kind::Empty && filter != Filter::empty())
            || (kind != Kind::Empty && count == 0)
            || (kind != Kind::Ribbon && (number > 0 || attempt > 0))
        {
            return Err(damaged("a filter has what its kind has not"));
        }
        let utility = f64::from_bits(utility);
        if !utility.is_finite() || utility < 0.0 {
            return Err(damaged("a utility is negative or no number"));
        }
        Ok((filter, utility))
    }

    /// The shape of a ribbon, or the reason why it is none.
    pub fn shape(&self) -> Result<ribbon::Shape> {
        let (columns, attempt) = (u32::from(self.hashes), u64::from(self.attempt));
        ribbon::Shape::new(ribbon::Layout::Columns, columns, &self.levels, self.size, attempt)
    }

    /// Bits before the columns, bits of a column, coefficients of a row where none bump.
    pub fn columns(&self) -> Result<(u64, u64, u64)> {
        if self.kind != Kind::Ribbon {
            return Ok((0, 0, 0));
        }
        let shape = self.shape()?;
        let width = if self.levels.is_empty() { shape.last.width() } else { 64 };
        Ok((64 * shape.solution as u64, shape.slots, width))
    }

    /// Bits of the whole, or the reason why it cannot be.
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

    /// Bytes of the whole in a file.
    pub fn bytes(&self) -> Result<u64> {
        Ok(self.bits()?.div_ceil(8))
    }
}
