//! One key and one filter: whether the bits in memory allow the key.
//!
//! The probes of a key depend on a filter only through its sizes, so they are computed once per
//! key: the hashes of Bloom probes, and the rows of ribbons by attempt.

use super::{Filter, Kind};
use crate::bits::reduce;
use crate::error::Result;
use crate::hash::{Hash128, mix13};
use crate::memory;
use crate::ribbon::{self, Wide, fingerprint};
use std::ops::Range;

/// Attempts whose rows are computed in advance; later attempts are rare and computed on demand.
const ROWS: usize = 16;
/// Slots that a row of a ribbon's last level reaches, if it has as many.
pub const WIDTH: u64 = 256;

/// A key prepared for lookups in many filters.
pub struct Query {
    hash: Hash128,
    probes: Vec<u64>,
    rows: Vec<(u64, Wide)>,
}

impl Query {
    /// Prepares a key for filters with at most this many probes and attempts.
    pub fn new(hash: Hash128, hashes: u32, attempts: u32) -> Result<Query> {
        let probe = |j: u32| mix13(hash.hi.wrapping_add(hash.lo.wrapping_mul(u64::from(j))));
        let probes = memory::collected((0..hashes).map(probe))?;
        let rows = (0..attempts.min(ROWS as u32)).map(|attempt| row(hash, attempt.into()));
        Ok(Query { hash, probes, rows: memory::collected(rows)? })
    }

    #[inline(always)]
    fn row(&self, attempt: u16) -> (u64, Wide) {
        match self.rows.get(usize::from(attempt)) {
            Some(&row) => row,
            None => row(self.hash, attempt.into()),
        }
    }
}

/// The start and the coefficients of a key in the last level, for an attempt.
fn row(hash: Hash128, attempt: u64) -> (u64, Wide) {
    let hash = ribbon::last_level(hash, attempt);
    (hash.hi, ribbon::wide_row(hash, WIDTH))
}

/// A bit string, in memory or in a file.
pub trait Bits {
    /// The 64 bits that start at `bit`; bits past the end of the string are unspecified.
    fn window(&mut self, bit: u64) -> Result<u64>;
}

/// The properties of a filter without levels that a probe needs; see [`leveled`] for others.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub kind: Kind,
    pub hashes: u8,
    /// A ribbon's attempt, or the number of segments that are one bit longer than the others.
    pub attempt: u16,
    /// Bits of the filter, slots of a ribbon, or bits of a short segment, so that a probe needs no
    /// division.
    pub size: u64,
}

impl Sizes {
    pub fn of(filter: &Filter) -> Sizes {
        let &Filter { kind, hashes, mut attempt, mut size, .. } = filter;
        if kind == Kind::Segmented {
            let segments = u64::from(hashes.max(1));
            (attempt, size) = ((size % segments) as u16, size / segments);
        }
        Sizes { kind, hashes, attempt, size }
    }

    /// The first bit that probe or column `j` of a key reads.
    #[inline(always)]
    pub fn bit(&self, query: &Query, j: u8) -> u64 {
        let probe = |j: u8| query.probes.get(usize::from(j)).copied().unwrap_or(0);
        match self.kind {
            Kind::Empty => 0,
            Kind::Ribbon => {
                let (start, _) = query.row(self.attempt);
                reduce(start, self.size - self.size.min(WIDTH) + 1) + u64::from(j) * self.size
            }
            Kind::Truncated => reduce(probe(j), self.size),
            Kind::Segmented => {
                u64::from(j) * self.size
                    + u64::from(self.attempt.min(j.into()))
                    + reduce(probe(j), self.size)
            }
        }
    }

    /// Whether the probes or columns in `range` allow the key, reading only bits in `kept`:
    /// earlier bits were checked already, later ones are not available.
    #[inline(always)]
    pub fn may_hold(
        &self,
        query: &Query,
        range: Range<u8>,
        kept: Range<u64>,
        bits: &mut impl Bits,
    ) -> Result<bool> {
        match self.kind {
            Kind::Empty => Ok(false),
            Kind::Ribbon => {
                let (start, row) = query.row(self.attempt);
                let width = self.size.min(WIDTH);
                let at = reduce(start, self.size - width + 1);
                columns_match(query, (row, width), at, self.size, range, kept, bits)
            }
            Kind::Truncated => self.bloom(query, range, kept, bits, |_| (0, self.size)),
            Kind::Segmented => {
                let (length, longer) = (self.size, u64::from(self.attempt));
                self.bloom(query, range, kept, bits, |j| {
                    (j * length + j.min(longer), length + u64::from(j < longer))
                })
            }
        }
    }

    #[inline(always)]
    fn bloom(
        &self,
        query: &Query,
        range: Range<u8>,
        kept: Range<u64>,
        bits: &mut impl Bits,
        segment: impl Fn(u64) -> (u64, u64),
    ) -> Result<bool> {
        let probes = &query.probes[range.start.into()..range.end.into()];
        for (j, &probe) in (u64::from(range.start)..).zip(probes) {
            let (start, length) = segment(j);
            if start >= kept.end {
                break;
            }
            let position = start + reduce(probe, length);
            if kept.contains(&position) && bits.window(position)? & 1 == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether the columns in `range` match the fingerprint of the key. The row of the key has this
/// width and starts at bit `at` in the first column. Columns in which it ends before `kept` were
/// checked already.
#[inline(always)]
fn columns_match(
    query: &Query,
    (row, width): (Wide, u64),
    at: u64,
    slots: u64,
    range: Range<u8>,
    kept: Range<u64>,
    bits: &mut impl Bits,
) -> Result<bool> {
    for column in range {
        let at = at + u64::from(column) * slots;
        if at + width > kept.end {
            break;
        }
        if at + width > kept.start {
            let mut met = 0;
            for (i, coefficients) in row.iter().enumerate() {
                let here = width.saturating_sub(64 * i as u64);
                if here == 0 {
                    break;
                }
                let mask = u64::MAX >> (64 - here.min(64));
                met ^= bits.window(at + 64 * i as u64)? & coefficients & mask;
            }
            if met.count_ones() & 1 != fingerprint(query.hash) >> column & 1 {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// [`Sizes::may_hold`] for a ribbon with levels, whose codes precede its columns.
pub fn leveled(
    shape: &ribbon::Shape,
    query: &Query,
    kept: Range<u64>,
    bits: &mut impl Bits,
) -> Result<bool> {
    let before = 64 * shape.solution as u64;
    if kept.end <= before {
        return Ok(true);
    }
    let (mut hash, range) = (query.hash, 0..shape.columns as u8);
    for (index, level) in shape.levels.iter().enumerate() {
        if index > 0 {
            hash = ribbon::next_level(hash, index);
        }
        let start = reduce(hash.hi, level.starts);
        let bucket = start / ribbon::BUCKET;
        let code = bits.window(64 * level.codes as u64 + 2 * bucket)? & 3;
        if start >= bucket * ribbon::BUCKET + ribbon::THRESHOLDS[code as usize] {
            let (row, at) = ([ribbon::row(hash), 0, 0, 0], before + level.offset + start);
            return columns_match(query, (row, 64), at, shape.slots, range, kept, bits);
        }
    }
    let last = shape.last;
    if last.slots == 0 {
        return Ok(false);
    }
    let (start, row) = row(hash, last.attempt);
    let at = before + last.offset + reduce(start, last.starts());
    columns_match(query, (row, last.width()), at, shape.slots, range, kept, bits)
}

/// Whether the bits of a filter in `kept` allow the key.
pub fn may_hold(
    filter: &Filter,
    query: &Query,
    kept: Range<u64>,
    bits: &mut impl Bits,
) -> Result<bool> {
    if filter.levels.is_empty() {
        return Sizes::of(filter).may_hold(query, 0..filter.hashes, kept, bits);
    }
    leveled(&filter.shape()?, query, kept, bits)
}
