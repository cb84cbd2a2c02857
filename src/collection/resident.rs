//! One key and all filters: the prefixes in memory, the most queried first.

use super::probe::{Bits, Query, Sizes, leveled};
use super::{Filter, Kind};
use crate::bits::{prefetch, zeros};
use crate::error::{Error, Result};
use crate::hash::Hash128;
use crate::processor::on_best;
use crate::ribbon;

/// How many filters ahead to prefetch. Values from 4 to 32 hardly differ.
const AHEAD: usize = 12;
/// Offset from the first byte of a ribbon's row to one that may lie in the next cache line.
const ROW_BYTES: usize = 32;
/// Filters that are probed once each before any is probed again, while the next bits are fetched.
const TOGETHER: usize = 64;
/// Rounds of such probes; few filters are left for the remaining probes.
const ROUNDS: u8 = 4;
/// Bits of prefixes that a batch of keys is checked against at a time: half of a private cache.
const BLOCK: u64 = 8 << 18;
/// Padding bytes after the last prefix, so that a window can be read at any bit.
const PAD: usize = 16;

/// A filter in memory: 32 bytes, in order of utility.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Position of its prefix.
    bit: u64,
    /// Length of its prefix in bits.
    kept: u64,
    /// As in [`Sizes`]; for a ribbon with levels, the index of its shape.
    size: u64,
    id: u32,
    attempt: u16,
    kind: Kind,
    hashes: u8,
}

/// The `attempt` of an entry whose `size` is the index of a shape.
const LEVELED: u16 = u16::MAX;

impl Entry {
    #[inline(always)]
    fn sizes(&self) -> Sizes {
        Sizes { kind: self.kind, hashes: self.hashes, attempt: self.attempt, size: self.size }
    }
}

/// The prefixes in memory.
pub struct Resident {
    entries: Vec<Entry>,
    shapes: Vec<ribbon::Shape>,
    arena: Vec<u8>,
    bits: u64,
    hashes: u32,
    attempts: u32,
}

/// A filter that may hold a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The position of the key in the batch.
    pub key: u32,
    /// The filter.
    pub id: u32,
    /// Bits of the filter that are in memory.
    pub kept: u64,
}

struct Prefix<'a> {
    arena: &'a [u8],
    start: u64,
}

impl Bits for Prefix<'_> {
    #[inline(always)]
    fn window(&mut self, bit: u64) -> Result<u64> {
        let bit = self.start + bit;
        let (at, rest) = ((bit / 8) as usize, bit % 8);
        Ok(match self.arena.get(at..).and_then(|bytes| bytes.first_chunk::<9>()) {
            Some(&[a, b, c, d, e, f, g, h, i]) => {
                let low = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
                low >> rest | u64::from(i) << 1 << (63 - rest)
            }
            None => 0,
        })
    }
}

impl Resident {
    /// Loads prefixes of filters, in this order: `read(filter, bytes)` fills in the first bytes.
    pub fn load<'a>(
        wanted: impl Iterator<Item = (u32, &'a Filter, u64)> + Clone,
        mut read: impl FnMut(u32, &mut [u8]) -> Result<()>,
    ) -> Result<Resident> {
        let mut resident = Resident {
            entries: Vec::with_capacity(wanted.clone().count()),
            shapes: Vec::new(),
            arena: Vec::new(),
            bits: 0,
            hashes: 0,
            attempts: 0,
        };
        let total: u64 = wanted.clone().map(|(_, _, kept)| kept).sum();
        let bytes = usize::try_from(total.div_ceil(8)).unwrap_or(usize::MAX);
        let refused = |_| Error::Memory(format!("cannot allocate {bytes} bytes for prefixes"));
        resident.arena = zeros(bytes.saturating_add(PAD)).map_err(refused)?;
        let mut scratch = Vec::new();
        for (id, filter, kept) in wanted {
            if kept > filter.bits()? {
                let most = filter.bits()?;
                return Err(Error::Parameter(format!(
                    "kept must be at most {most}, the bits of the filter, not {kept}"
                )));
            }
            resident.push_entry(id, filter, kept)?;
            scratch.clear();
            scratch.resize(kept.div_ceil(8) as usize, 0);
            if kept > 0 {
                read(id, &mut scratch)?;
            }
            resident.append(&mut scratch, kept);
        }
        Ok(resident)
    }

    fn push_entry(&mut self, id: u32, filter: &Filter, kept: u64) -> Result<()> {
        let Sizes { kind, hashes, mut attempt, mut size } = Sizes::of(filter);
        match kind {
            Kind::Empty => {}
            Kind::Ribbon if !filter.levels.is_empty() => {
                (attempt, size) = (LEVELED, self.shapes.len() as u64);
                self.shapes.push(filter.shape()?);
            }
            Kind::Ribbon => self.attempts = self.attempts.max(u32::from(attempt) + 1),
            _ => self.hashes = self.hashes.max(hashes.into()),
        }
        self.entries.push(Entry { bit: self.bits, kept, size, id, attempt, kind, hashes });
        Ok(())
    }

    /// Appends the first `kept` bits of `bytes`.
    fn append(&mut self, bytes: &mut [u8], kept: u64) {
        if let (rest @ 1.., Some(last)) = (kept % 8, bytes.last_mut()) {
            *last &= (1 << rest) - 1;
        }
        let (at, rest) = ((self.bits / 8) as usize, self.bits % 8);
        for (i, &byte) in bytes.iter().enumerate() {
            let wide = u16::from(byte) << rest;
            self.arena[at + i] |= wide as u8;
            self.arena[at + i + 1] |= (wide >> 8) as u8;
        }
        self.bits += kept;
    }

    /// Total bits of the prefixes.
    pub fn bits(&self) -> u64 {
        self.bits
    }

    /// Memory that these filters take apart from the bits of their prefixes.
    pub fn least_bytes(filters: &[Filter]) -> usize {
        let shape = |filter: &&Filter| {
            let levels = filter.levels.len();
            size_of::<ribbon::Shape>() + levels * size_of::<ribbon::Level>()
        };
        let leveled = filters.iter().filter(|filter| !filter.levels.is_empty());
        PAD + size_of::<Entry>() * filters.len() + leveled.map(|f| shape(&f)).sum::<usize>()
    }

    /// Number of filters.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Prepares a key for a lookup in these filters.
    pub fn query(&self, hash: Hash128) -> Query {
        Query::new(hash, self.hashes, self.attempts)
    }

    /// Prefetches the bits of a probe or column, if they are in memory.
    #[inline(always)]
    fn prefetch_probe(&self, entry: &Entry, query: &Query, j: u8) {
        if entry.attempt != LEVELED && entry.kind != Kind::Empty {
            let bit = entry.sizes().bit(query, j);
            if bit < entry.kept {
                let place = self.arena.as_ptr().wrapping_add(((entry.bit + bit) / 8) as usize);
                prefetch(place);
                if entry.kind == Kind::Ribbon {
                    prefetch(place.wrapping_add(ROW_BYTES));
                }
            }
        }
    }

    /// Whether these probes or columns allow the key; ribbons with levels are checked in the last
    /// round only.
    #[inline(always)]
    fn allows(&self, entry: &Entry, query: &Query, range: std::ops::Range<u8>) -> bool {
        let mut bits = Prefix { arena: &self.arena, start: entry.bit };
        if entry.attempt == LEVELED {
            let last = range.end == u8::MAX;
            let shape = &self.shapes[entry.size as usize];
            // Reading memory cannot fail.
            return !last || leveled(shape, query, 0..entry.kept, &mut bits).unwrap_or(true);
        }
        let range = range.start.min(entry.hashes)..range.end.min(entry.hashes);
        entry.sizes().may_hold(query, range, 0..entry.kept, &mut bits).unwrap_or(true)
    }

    /// Calls `found` with each filter that may hold a key, the most queried first, until it returns
    /// false.
    pub fn candidates(&self, query: &Query, mut found: impl FnMut(Candidate) -> bool) {
        on_best!(_processor => self.walk(0..self.entries.len(), 0, query, &mut found));
    }

    #[inline(always)]
    fn walk(
        &self,
        range: std::ops::Range<usize>,
        key: u32,
        query: &Query,
        found: &mut impl FnMut(Candidate) -> bool,
    ) {
        let mut passed = [0; TOGETHER];
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + TOGETHER);
            let mut count = 0;
            for at in start..end {
                if let Some(later) = self.entries.get(at + AHEAD) {
                    self.prefetch_probe(later, query, 0);
                }
                let entry = &self.entries[at];
                // Each probe rejects about half of the filters: a branch would be mispredicted.
                passed[count] = at;
                count += usize::from(self.allows(entry, query, 0..1));
            }
            let (mut round, mut before) = (1, end - start);
            // If most filters pass, few of them have more bits to check.
            while round < ROUNDS && 4 * count < 3 * before {
                for &at in &passed[..count] {
                    self.prefetch_probe(&self.entries[at], query, round);
                }
                before = std::mem::take(&mut count);
                for i in 0..before {
                    let at = passed[i];
                    passed[count] = at;
                    let allows = self.allows(&self.entries[at], query, round..round + 1);
                    count += usize::from(allows);
                }
                round += 1;
            }
            for &at in &passed[..count] {
                self.prefetch_probe(&self.entries[at], query, round);
            }
            for &at in &passed[..count] {
                let entry = &self.entries[at];
                let Entry { id, kept, .. } = *entry;
                let allows = self.allows(entry, query, round..u8::MAX);
                if allows && !found(Candidate { key, id, kept }) {
                    return;
                }
            }
            start = end;
        }
    }

    /// [`Resident::candidates`] for many keys, as many filters at a time as fit in a cache. The
    /// candidates of each key come in order of utility; `found` returns false to end a key.
    pub fn candidates_many(&self, hashes: &[Hash128], mut found: impl FnMut(Candidate) -> bool) {
        let queries: Vec<Query> = hashes.iter().map(|&hash| self.query(hash)).collect();
        let mut open: Vec<u32> = (0..hashes.len() as u32).collect();
        let mut start = 0;
        while start < self.entries.len() && !open.is_empty() {
            let limit = self.entries[start].bit + BLOCK;
            let end = start + self.entries[start..].partition_point(|entry| entry.bit < limit);
            open.retain(|&key| {
                let mut more = true;
                on_best!(_processor => {
                    self.walk(start..end, key, &queries[key as usize], &mut |candidate| {
                        more = found(candidate);
                        more
                    });
                });
                more
            });
            start = end;
        }
    }
}
