//! One key and all filters: the prefixes in memory, the most queried first.

use super::entries::{Entries, Entry, GROUP};
use super::probe::{Bits, Query, Sizes, leveled};
use super::{Filter, Kind};
use crate::bits::{prefetch, zeros};
use crate::error::{Error, Result};
use crate::hash::Hash128;
use crate::memory::{self, TryGrow};
use crate::processor::on_best;

/// Offset from the first byte of a ribbon's row to one that may lie in the next cache line.
const ROW_BYTES: usize = 32;
/// Rounds of such probes; few filters are left for the remaining probes.
const ROUNDS: u8 = 4;
/// Bits of prefixes that a batch of keys is checked against at a time: half of a private cache.
const BLOCK: u64 = 8 << 18;
/// Groups of entries that are decoded at a time for a batch of keys, at most.
const DECODED: usize = 64;
/// Padding bytes after the last prefix, so that a window can be read at any bit.
const PAD: usize = 16;
const NO_SIZES: Sizes = Sizes { kind: Kind::Empty, hashes: 0, attempt: 0, size: 0 };
const NO_ENTRIES: [Entry; GROUP] = [Entry { bit: 0, kept: 0, sizes: NO_SIZES, levels: 0 }; GROUP];

/// The prefixes in memory.
pub struct Resident {
    entries: Entries,
    arena: Vec<u8>,
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

/// Prefixes that are in memory already: a new [`Resident`] copies them.
pub struct Loaded<'a> {
    /// The prefixes.
    pub resident: &'a Resident,
    /// The position of each filter, by its number; [`u32::MAX`] if it has none.
    pub positions: &'a [u32],
}

/// Copies bits to a string of zeros, in order and run by run.
struct Copier<'a> {
    from: Prefix<'a>,
    /// The bits to copy, which may grow, and where to.
    run: std::ops::Range<u64>,
    to: u64,
}

impl Copier<'_> {
    /// Copies bits, or only extends the pending copy if they follow it.
    fn copy(&mut self, bits: std::ops::Range<u64>, to: u64, arena: &mut [u8]) {
        if bits.start == self.run.end && to == self.to + (self.run.end - self.run.start) {
            self.run.end = bits.end;
            return;
        }
        self.flush(arena);
        (self.run, self.to) = (bits, to);
    }

    fn flush(&mut self, arena: &mut [u8]) {
        let (mut from, mut to) = (self.run.start, self.to);
        while from < self.run.end {
            // Up to the next byte, then eight bytes at a time.
            let step = if to.is_multiple_of(8) { 64 } else { 8 - to % 8 };
            let step = step.min(self.run.end - from);
            let word = self.from.window(from).unwrap_or(0) & (u64::MAX >> (64 - step));
            let (at, shift) = ((to / 8) as usize, to % 8);
            for (place, byte) in arena[at..].iter_mut().zip((word << shift).to_le_bytes()) {
                *place |= byte;
            }
            (from, to) = (from + step, to + step);
        }
        self.run = 0..0;
    }
}

impl Resident {
    /// Loads prefixes of filters with numbers below `ids`, in this order. Prefixes that are `loaded`
    /// are copied; for others `read(filter, bytes)` fills in the first bytes.
    pub fn load<'a>(
        chosen: impl Iterator<Item = (u32, &'a Filter, u64)> + Clone,
        ids: usize,
        loaded: Option<Loaded<'_>>,
        mut read: impl FnMut(u32, &mut [u8]) -> Result<()>,
    ) -> Result<Resident> {
        let total: u64 = chosen.clone().map(|(_, _, kept)| kept).sum();
        let bytes = usize::try_from(total.div_ceil(8)).unwrap_or(usize::MAX);
        let refused = |_| Error::Memory(format!("cannot allocate {bytes} bytes for prefixes"));
        let mut resident = Resident {
            entries: Entries::with_capacity(chosen.clone().count(), ids)?,
            arena: zeros(bytes.saturating_add(PAD)).map_err(refused)?,
            hashes: 0,
            attempts: 0,
        };
        let (none, mut scratch, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        let arena = loaded.as_ref().map_or(&none, |loaded| &loaded.resident.arena);
        let mut copier = Copier { from: Prefix { arena, start: 0 }, run: 0..0, to: 0 };
        if let Some(loaded) = &loaded {
            lengths = loaded.resident.prefixes()?;
        }
        for (id, filter, kept) in chosen {
            let bits = filter.bits()?;
            if kept > bits {
                return Err(Error::Parameter(format!(
                    "kept must be at most {bits}, the bits of the filter, not {kept}"
                )));
            }
            resident.fit_queries_to(filter);
            let to = resident.entries.bits();
            let kept = resident.entries.push(id, filter, kept)?;
            let position = loaded.as_ref().and_then(|loaded| loaded.positions.get(id as usize));
            match position.and_then(|&position| lengths.get(position as usize)) {
                Some((start, had)) if *had >= kept => {
                    copier.copy(*start..start + kept, to, &mut resident.arena);
                }
                _ if kept > 0 => {
                    scratch.clear();
                    scratch.try_resize(kept.div_ceil(8) as usize, 0)?;
                    read(id, &mut scratch)?;
                    resident.write(&mut scratch, to, kept);
                }
                _ => {}
            }
        }
        copier.flush(&mut resident.arena);
        resident.entries.shrink();
        Ok(resident)
    }

    /// The same prefixes with changes: `kept` has positions, in order, and the new lengths of their
    /// prefixes; `added` has the position that each new filter comes before, in order,
    /// its number, the filter and the length of its prefix. `read` fills in bits that are not in memory.
    pub fn changed(
        &self,
        ids: usize,
        kept: &[(usize, u64)],
        added: &[(usize, u32, &Filter, u64)],
        mut read: impl FnMut(u32, &mut [u8]) -> Result<()>,
    ) -> Result<Resident> {
        let mut group = NO_ENTRIES;
        let mut total = self.bits() + added.iter().map(|(_, _, _, kept)| kept).sum::<u64>();
        for (at, kept) in kept {
            self.entries.group(at / GROUP, &mut group);
            total = total + kept - group[at % GROUP].kept;
        }
        let bytes = usize::try_from(total.div_ceil(8)).unwrap_or(usize::MAX);
        let mut changed = Resident {
            entries: Entries::like(&self.entries, self.len() + added.len(), ids)?,
            arena: zeros(bytes.saturating_add(PAD))?,
            hashes: self.hashes,
            attempts: self.attempts,
        };
        let from = Prefix { arena: &self.arena, start: 0 };
        let mut copier = Copier { from, run: 0..0, to: 0 };
        let (mut added, mut lengths) = (added.iter().peekable(), kept.iter().peekable());
        let mut scratch = Vec::new();
        let mut read_prefix = |changed: &mut Resident, id: u32, to: u64, kept: u64| {
            scratch.clear();
            scratch.try_resize(kept.div_ceil(8) as usize, 0)?;
            read(id, &mut scratch)?;
            changed.write(&mut scratch, to, kept);
            Ok::<(), Error>(())
        };
        for at in 0..=self.len() {
            while let Some(&&(_, id, filter, kept)) = added.peek().filter(|new| new.0 <= at) {
                added.next();
                changed.fit_queries_to(filter);
                let to = changed.bits();
                let kept = changed.entries.push(id, filter, kept.min(filter.bits()?))?;
                read_prefix(&mut changed, id, to, kept)?;
            }
            if at == self.len() {
                break;
            }
            if at.is_multiple_of(GROUP) {
                self.entries.group(at / GROUP, &mut group);
            }
            let entry = &group[at % GROUP];
            let chosen = lengths.next_if(|length| length.0 == at).map_or(entry.kept, |own| own.1);
            let to = changed.bits();
            let kept = changed.entries.push_entry(&self.entries, at, entry, chosen)?;
            if kept > entry.kept {
                read_prefix(&mut changed, self.entries.id(at), to, kept)?;
            } else {
                copier.copy(entry.bit..entry.bit + kept, to, &mut changed.arena);
            }
        }
        copier.flush(&mut changed.arena);
        changed.entries.shrink();
        Ok(changed)
    }

    /// Updates how many hashes and attempts a query needs.
    fn fit_queries_to(&mut self, filter: &Filter) {
        match filter.kind {
            Kind::Empty => {}
            Kind::Ribbon => {
                if filter.levels.is_empty() {
                    self.attempts = self.attempts.max(u32::from(filter.attempt) + 1);
                }
            }
            _ => self.hashes = self.hashes.max(filter.hashes.into()),
        }
    }

    /// Writes the first `kept` bits of `bytes` at `to`.
    fn write(&mut self, bytes: &mut [u8], to: u64, kept: u64) {
        if let (rest @ 1.., Some(last)) = (kept % 8, bytes.last_mut()) {
            *last &= (1 << rest) - 1;
        }
        let (at, rest) = ((to / 8) as usize, to % 8);
        for (i, &byte) in bytes.iter().enumerate() {
            let wide = u16::from(byte) << rest;
            self.arena[at + i] |= wide as u8;
            self.arena[at + i + 1] |= (wide >> 8) as u8;
        }
    }

    /// The start and length of each prefix, in order.
    fn prefixes(&self) -> Result<Vec<(u64, u64)>> {
        let (mut prefixes, mut group) = (memory::with_capacity(self.len())?, NO_ENTRIES);
        for index in 0..self.len().div_ceil(GROUP) {
            let count = self.entries.group(index, &mut group);
            prefixes.extend(group[..count].iter().map(|entry| (entry.bit, entry.kept)));
        }
        Ok(prefixes)
    }

    /// The number of each filter and the length of its prefix, in order.
    pub fn kept(&self) -> Result<impl Iterator<Item = (u32, u64)>> {
        let prefixes = self.prefixes()?.into_iter().enumerate();
        Ok(prefixes.map(|(at, (_, kept))| (self.entries.id(at), kept)))
    }

    /// The numbers of the filters, in order.
    pub fn ids(&self) -> Result<Vec<u32>> {
        memory::collected((0..self.len()).map(|at| self.entries.id(at)))
    }

    /// Total bits of the prefixes.
    pub fn bits(&self) -> u64 {
        self.entries.bits()
    }

    /// Memory apart from the bits of the prefixes.
    pub fn overhead(&self) -> usize {
        PAD + self.entries.size_in_bytes()
    }

    /// The same for filters with numbers below `ids` that are not loaded yet.
    pub fn overhead_of<'a>(
        mut filters: impl Iterator<Item = &'a Filter>,
        ids: usize,
    ) -> Result<usize> {
        let mut entries = Entries::with_capacity(0, ids)?;
        filters.try_for_each(|filter| entries.push(0, filter, 0).map(drop))?;
        Ok(PAD + entries.size_in_bytes())
    }

    /// Number of filters.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no filters.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Prepares a key for a lookup in these filters.
    pub fn query(&self, hash: Hash128) -> Result<Query> {
        Query::new(hash, self.hashes, self.attempts)
    }

    /// Prefetches the bits of a probe or column, if they are in memory.
    #[inline(always)]
    fn prefetch_probe(&self, entry: &Entry, query: &Query, j: u8) {
        if entry.levels == 0 && entry.sizes.kind != Kind::Empty {
            let bit = entry.sizes.bit(query, j);
            if bit < entry.kept {
                let place = self.arena.as_ptr().wrapping_add(((entry.bit + bit) / 8) as usize);
                prefetch(place);
                if entry.sizes.kind == Kind::Ribbon {
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
        if entry.levels > 0 {
            let last = range.end == u8::MAX;
            // Reading memory cannot fail, and the shape was valid when it was loaded.
            return !last
                || self.entries.shape(entry.levels).is_ok_and(|shape| {
                    leveled(&shape, query, 0..entry.kept, &mut bits).unwrap_or(true)
                });
        }
        let range = range.start.min(entry.sizes.hashes)..range.end.min(entry.sizes.hashes);
        entry.sizes.may_hold(query, range, 0..entry.kept, &mut bits).unwrap_or(true)
    }

    /// Decodes a group of entries and prefetches the bits of its first probes.
    #[inline(always)]
    fn decode(&self, group: usize, query: &Query, out: &mut [Entry; GROUP]) -> usize {
        let count = self.entries.group(group, out);
        for entry in &out[..count] {
            self.prefetch_probe(entry, query, 0);
        }
        count
    }

    /// Calls `found` with each filter that may hold a key, the most queried first, until it returns
    /// false.
    pub fn candidates(&self, query: &Query, mut found: impl FnMut(Candidate) -> bool) {
        on_best!(_processor => {
            let (mut now, mut next) = (NO_ENTRIES, NO_ENTRIES);
            let mut count = self.decode(0, query, &mut now);
            for group in 0.. {
                if count == 0 {
                    return;
                }
                let later = self.decode(group + 1, query, &mut next);
                if !self.probe(&now[..count], group * GROUP, 0, query, &mut found) {
                    return;
                }
                (now, next, count) = (next, now, later);
            }
        });
    }

    /// Probes a group of filters, each once before any is probed again, while the next bits are
    /// fetched; returns false if `found` did.
    #[inline(always)]
    fn probe(
        &self,
        entries: &[Entry],
        first: usize,
        key: u32,
        query: &Query,
        found: &mut impl FnMut(Candidate) -> bool,
    ) -> bool {
        let mut passed = [0; GROUP];
        let mut count = 0;
        for (at, entry) in entries.iter().enumerate() {
            // Each probe rejects about half of the filters: a branch would be mispredicted.
            passed[count] = at;
            count += usize::from(self.allows(entry, query, 0..1));
        }
        let (mut round, mut before) = (1, entries.len());
        // If most filters pass, few of them have more bits to check.
        while round < ROUNDS && 4 * count < 3 * before {
            for &at in &passed[..count] {
                self.prefetch_probe(&entries[at], query, round);
            }
            before = std::mem::take(&mut count);
            for i in 0..before {
                let at = passed[i];
                passed[count] = at;
                count += usize::from(self.allows(&entries[at], query, round..round + 1));
            }
            round += 1;
        }
        for &at in &passed[..count] {
            self.prefetch_probe(&entries[at], query, round);
        }
        passed[..count].iter().all(|&at| {
            let entry = &entries[at];
            let (id, kept) = (self.entries.id(first + at), entry.kept);
            !self.allows(entry, query, round..u8::MAX) || found(Candidate { key, id, kept })
        })
    }

    /// [`Resident::candidates`] for many keys, as many filters at a time as fit in a cache. The
    /// candidates of each key come in order of utility; `found` returns false to end a key.
    pub fn candidates_many(
        &self,
        hashes: &[Hash128],
        mut found: impl FnMut(Candidate) -> bool,
    ) -> Result<()> {
        let queries = memory::collected_ok(hashes.iter().map(|&hash| self.query(hash)))?;
        let mut open = memory::collected(0..hashes.len() as u32)?;
        let (groups, mut start) = (self.len().div_ceil(GROUP), 0);
        let mut decoded = Vec::new();
        while start < groups && !open.is_empty() {
            let limit = self.entries.start(start) + BLOCK;
            decoded.clear();
            let mut end = start;
            while end < groups && self.entries.start(end) < limit && decoded.len() < DECODED {
                let mut group = NO_ENTRIES;
                let count = self.entries.group(end, &mut group);
                decoded.try_push((group, count))?;
                end += 1;
            }
            open.retain(|&key| {
                let query = &queries[key as usize];
                on_best!(_processor => {
                    let mut groups = decoded.iter().enumerate();
                    groups.all(|(i, (group, count))| {
                        if let Some((later, count)) = decoded.get(i + 1) {
                            for entry in &later[..*count] {
                                self.prefetch_probe(entry, query, 0);
                            }
                        }
                        self.probe(&group[..*count], (start + i) * GROUP, key, query, &mut found)
                    })
                })
            });
            start = end;
        }
        Ok(())
    }
}
