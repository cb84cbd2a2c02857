//! One key and one filter: whether the bits that are there allow the key.
//!
//! What a key asks does not depend on the filter but for its sizes, so it is computed once:
//! the probes of Bloom filters, and the rows of ribbons by attempt.

use super::{Filter, Kind};
use crate::bits::reduce;
use crate::error::Result;
use crate::hash::{Hash128, mix13};
use crate::ribbon::{self, Wide, fingerprint};
use std::ops::Range;

/// Rows by attempt that are computed ahead; a later attempt is rare and computed when met.
const ROWS: usize = 16;

/// A key as it asks every filter.
pub struct Asked {
    hash: Hash128,
    probes: Vec<u64>,
    rows: Vec<(u64, Wide)>,
}

impl Asked {
    /// For filters with up to this many probes and attempts.
    pub fn new(hash: Hash128, hashes: u32, attempts: u32) -> Asked {
        let probe = |j: u32| mix13(hash.hi.wrapping_add(hash.lo.wrapping_mul(u64::from(j))));
        let probes = (0..hashes).map(probe).collect();
        let rows = (0..attempts.min(ROWS as u32)).map(|attempt| row(hash, attempt.into()));
        Asked { hash, probes, rows: rows.collect() }
    }

    #[inline(always)]
    fn row(&self, attempt: u16) -> (u64, Wide) {
        match self.rows.get(usize::from(attempt)) {
            Some(&row) => row,
            None => row(self.hash, attempt.into()),
        }
    }
}

/// The start and the coefficients of a key in a last level, by attempt.
fn row(hash: Hash128, attempt: u64) -> (u64, Wide) {
    let hash = ribbon::last_level(hash, attempt);
    (hash.hi, ribbon::wide_row(hash, 256))
}

/// A string of bits, in memory or not.
pub trait Bits {
    /// 64 bits from this one on; what lies behind the end of the string may be anything.
    fn window(&mut self, bit: u64) -> Result<u64>;
}

/// What a probe needs of a filter without levels; one with levels brings its [`Filter`].
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub kind: Kind,
    pub hashes: u8,
    /// A ribbon's attempt, or how many segments have one bit more than the others.
    pub attempt: u16,
    /// Bits of all, slots of a ribbon, or bits of a short segment: a probe must not divide.
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

    /// The first bit that a key needs of its probe, or column, `j`.
    #[inline(always)]
    pub fn bit(&self, asked: &Asked, j: u8) -> u64 {
        let probe = |j: u8| asked.probes.get(usize::from(j)).copied().unwrap_or(0);
        match self.kind {
            Kind::Empty => 0,
            Kind::Ribbon => {
                let (start, _) = asked.row(self.attempt);
                reduce(start, self.size - self.size.min(256) + 1) + u64::from(j) * self.size
            }
            Kind::Truncated => reduce(probe(j), self.size),
            Kind::Segmented => {
                u64::from(j) * self.size
                    + u64::from(self.attempt.min(j.into()))
                    + reduce(probe(j), self.size)
            }
        }
    }

    /// Whether the key may be there by its probes, or columns, of this range, and of their bits
    /// those from `known` (those before were asked) to `kept`.
    #[inline(always)]
    pub fn may_hold(
        &self,
        asked: &Asked,
        range: Range<u8>,
        kept: Range<u64>,
        bits: &mut impl Bits,
    ) -> Result<bool> {
        match self.kind {
            Kind::Empty => Ok(false),
            Kind::Ribbon => {
                let (start, row) = asked.row(self.attempt);
                let width = self.size.min(256);
                let at = reduce(start, self.size - width + 1);
                columns(asked, (row, width), at, self.size, range, kept, bits)
            }
            Kind::Truncated => self.bloom(asked, range, kept, bits, |_| (0, self.size)),
            Kind::Segmented => {
                let (length, longer) = (self.size, u64::from(self.attempt));
                self.bloom(asked, range, kept, bits, |j| {
                    (j * length + j.min(longer), length + u64::from(j < longer))
                })
            }
        }
    }

    #[inline(always)]
    fn bloom(
        &self,
        asked: &Asked,
        range: Range<u8>,
        kept: Range<u64>,
        bits: &mut impl Bits,
        segment: impl Fn(u64) -> (u64, u64),
    ) -> Result<bool> {
        let probes = &asked.probes[range.start.into()..range.end.into()];
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

/// Whether the columns of a range have the key's bits, where a row of this width that starts at
/// `at` in the first column lies before the end of what is kept, and was not asked before.
#[inline(always)]
fn columns(
    asked: &Asked,
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
            if met.count_ones() & 1 != fingerprint(asked.hash) >> column & 1 {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// [`Sizes::may_hold`] for a ribbon with levels, whose codes come before its columns.
pub fn leveled(
    shape: &ribbon::Shape,
    asked: &Asked,
    kept: Range<u64>,
    bits: &mut impl Bits,
) -> Result<bool> {
    let before = 64 * shape.solution as u64;
    if kept.end <= before {
        return Ok(true);
    }
    let (mut hash, range) = (asked.hash, 0..shape.columns as u8);
    for (index, level) in shape.levels.iter().enumerate() {
        if index > 0 {
            hash = ribbon::next_level(hash, index);
        }
        let start = reduce(hash.hi, level.starts);
        let bucket = start / ribbon::BUCKET;
        let code = bits.window(64 * level.codes as u64 + 2 * bucket)? & 3;
        if start >= bucket * ribbon::BUCKET + ribbon::THRESHOLDS[code as usize] {
            let (row, at) = ([ribbon::row(hash), 0, 0, 0], before + level.offset + start);
            return columns(asked, (row, 64), at, shape.slots, range, kept, bits);
        }
    }
    let last = shape.last;
    if last.slots == 0 {
        return Ok(false);
    }
    let (start, row) = row(hash, last.attempt);
    let at = before + last.offset + reduce(start, last.starts());
    columns(asked, (row, last.width()), at, shape.slots, range, kept, bits)
}

/// Whether the key may be in a filter, by the bits of this range: those before were asked.
pub fn may_hold(
    filter: &Filter,
    asked: &Asked,
    kept: Range<u64>,
    bits: &mut impl Bits,
) -> Result<bool> {
    if filter.levels.is_empty() {
        return Sizes::of(filter).may_hold(asked, 0..filter.hashes, kept, bits);
    }
    leveled(&filter.shape()?, asked, kept, bits)
}
