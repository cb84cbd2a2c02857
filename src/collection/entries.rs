//! The fields of each filter in memory that a lookup needs, in about eight bytes per filter.
//!
//! An entry has six bytes: the size (24 bits), the length of the prefix (16 bits) and the index of
//! the kind, hashes and attempt, which many filters share (8 bits). Prefixes lie one after the
//! other, so the position of only every 64th is stored. Filters whose numbers do not fit (ribbons
//! with levels, and large filters) are written out as bytes in `large`, 7 bits of a number each.
//! The numbers of the filters are packed to as many bits as the highest needs.

use super::probe::Sizes;
use super::{Filter, Kind};
use crate::error::Result;
use crate::memory::{self, TryGrow};
use crate::ribbon;

/// Entries that are decoded together; the position of the first of them is stored.
pub const GROUP: usize = 64;
const ENTRY: usize = 6;
/// The last index of shared fields: the entry is in `large`, at the position in its other bits.
const LARGE: u8 = u8::MAX;
const SIZE_BITS: u32 = 24;
const KEPT_BITS: u32 = 16;
/// The bits of an entry that are the position in `large`.
const PLACE: u64 = (1 << (SIZE_BITS + KEPT_BITS)) - 1;
/// The length of a full filter.
const WHOLE: u64 = (1 << KEPT_BITS) - 1;
/// Bytes after the last entry, so that one can be read as a word.
const PAD: usize = 2;

/// The kind, hashes and attempt of filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shared {
    kind: Kind,
    hashes: u8,
    attempt: u16,
}

/// A filter in memory, decoded.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Position of its prefix.
    pub bit: u64,
    /// Length of its prefix in bits.
    pub kept: u64,
    /// How its bits are probed.
    pub sizes: Sizes,
    /// Where the levels of a ribbon are written out; 0 if it has none.
    pub levels: u32,
}

/// Entries in order of utility.
#[derive(Default)]
pub struct Entries {
    entries: Vec<u8>,
    shared: Vec<Shared>,
    /// Starts with an unused byte, so that position 0 means none.
    large: Vec<u8>,
    starts: Vec<u64>,
    ids: Vec<u64>,
    id_bits: u32,
    len: usize,
    /// Total length of the prefixes.
    bits: u64,
}

/// Bits of a filter without levels.
fn full_bits(sizes: &Sizes) -> u64 {
    match sizes.kind {
        Kind::Empty => 0,
        Kind::Truncated => sizes.size,
        Kind::Ribbon => sizes.size * u64::from(sizes.hashes),
        Kind::Segmented => sizes.size * u64::from(sizes.hashes) + u64::from(sizes.attempt),
    }
}

/// Prefixes are multiples of this many bits: of single bits up to 64 Kbit, hence exact.
fn unit(sizes: &Sizes) -> u64 {
    1 + (full_bits(sizes) >> KEPT_BITS)
}

impl Entries {
    /// An empty list for filters with numbers below `ids`.
    pub fn with_capacity(count: usize, ids: usize) -> Result<Entries> {
        let id_bits = usize::BITS - ids.saturating_sub(1).leading_zeros();
        Ok(Entries {
            entries: memory::with_capacity(ENTRY * count + PAD)?,
            starts: memory::with_capacity(count.div_ceil(GROUP))?,
            ids: memory::with_capacity((count * id_bits as usize).div_ceil(64))?,
            large: vec![0],
            id_bits,
            ..Entries::default()
        })
    }

    /// An empty list for more filters, with the shared fields of another list.
    pub fn like(other: &Entries, count: usize, ids: usize) -> Result<Entries> {
        Ok(Entries { shared: other.shared.clone(), ..Entries::with_capacity(count, ids)? })
    }

    /// Copies an entry of the list that this one was made from, with at most `kept` bits; returns how
    /// many.
    pub fn push_entry(
        &mut self,
        other: &Entries,
        at: usize,
        entry: &Entry,
        kept: u64,
    ) -> Result<u64> {
        let id = other.id(at);
        let word = other.word(at);
        if kept == entry.kept && word >> (SIZE_BITS + KEPT_BITS) != u64::from(LARGE) {
            self.push_word(word, id, kept)?;
            return Ok(kept);
        }
        self.push(id, &other.filter(at, entry), kept)
    }

    /// The filter of an entry, without the number of its keys.
    fn filter(&self, at: usize, entry: &Entry) -> Filter {
        let word = self.word(at);
        if word >> (SIZE_BITS + KEPT_BITS) == u64::from(LARGE) {
            return self.large((word & PLACE) as u32).0;
        }
        let Sizes { kind, hashes, attempt, size } = entry.sizes;
        let (attempt, size) = match kind {
            Kind::Segmented => (0, full_bits(&entry.sizes)),
            _ => (attempt, size),
        };
        Filter { kind, hashes, attempt, size, count: 0, levels: Box::default() }
    }

    /// Adds a filter with at most the first `kept` bits; returns how many: fewer for filters above
    /// 64 Kbit, by less than a 65,536th.
    pub fn push(&mut self, id: u32, filter: &Filter, kept: u64) -> Result<u64> {
        let sizes = Sizes::of(filter);
        let word = self.small(filter, &sizes, kept);
        let (word, kept) = match word {
            Some(small) => small,
            None => (self.push_large(filter, kept)?, kept),
        };
        self.push_word(word, id, kept)?;
        Ok(kept)
    }

    fn push_word(&mut self, word: u64, id: u32, kept: u64) -> Result<()> {
        if self.len.is_multiple_of(GROUP) {
            self.starts.try_push(self.bits)?;
        }
        self.entries.truncate(ENTRY * self.len);
        self.entries.try_extend(&word.to_le_bytes())?;
        self.push_id(id)?;
        self.len += 1;
        self.bits += kept;
        Ok(())
    }

    /// The six bytes of an entry and the length of its prefix, if they suffice.
    fn small(&mut self, filter: &Filter, sizes: &Sizes, kept: u64) -> Option<(u64, u64)> {
        if !filter.levels.is_empty() || sizes.size >> SIZE_BITS > 0 {
            return None;
        }
        let &Sizes { kind, hashes, attempt, size } = sizes;
        let shared = Shared { kind, hashes, attempt };
        let known = self.shared.iter().position(|each| *each == shared);
        if known.is_none() && self.shared.len() == usize::from(LARGE) {
            return None;
        }
        let (all, unit) = (full_bits(sizes), unit(sizes));
        // Below 2**16, as a unit is more than a 2**16th of all bits.
        let units = if kept == all { WHOLE } else { (kept / unit).min(WHOLE - 1) };
        let kept = if kept == all { all } else { units * unit };
        let index = known.unwrap_or_else(|| {
            self.shared.push(shared);
            self.shared.len() - 1
        });
        Some((size | units << SIZE_BITS | (index as u64) << (SIZE_BITS + KEPT_BITS), kept))
    }

    fn push_large(&mut self, filter: &Filter, kept: u64) -> Result<u64> {
        let place = self.large.len() as u64;
        let head = filter.kind as u64 | u64::from(filter.hashes) << 2;
        let levels = filter.levels.iter().map(|slots| slots / 64);
        let numbers = [head, filter.attempt.into(), filter.size, filter.levels.len() as u64];
        for number in numbers.into_iter().chain(levels) {
            self.push_number(number, number)?;
        }
        // As long as for the full filter, so that the memory does not depend on the prefix.
        self.push_number(kept, filter.bits().unwrap_or(kept).max(kept))?;
        Ok(place | u64::from(LARGE) << (SIZE_BITS + KEPT_BITS))
    }

    /// Writes a number in as many bytes as `max` needs.
    fn push_number(&mut self, mut number: u64, mut max: u64) -> Result<()> {
        while max >= 0x80 {
            self.large.try_push(number as u8 | 0x80)?;
            (number, max) = (number >> 7, max >> 7);
        }
        self.large.try_push(number as u8)
    }

    fn push_id(&mut self, id: u32) -> Result<()> {
        let at = self.len as u64 * u64::from(self.id_bits);
        let (word, shift) = ((at / 64) as usize, at % 64);
        let wide = u128::from(id) << shift;
        for (place, part) in [(word, wide as u64), (word + 1, (wide >> 64) as u64)] {
            if place < self.ids.len() {
                self.ids[place] |= part;
            } else if part != 0 || shift + u64::from(self.id_bits) > 64 * (place - word) as u64 {
                self.ids.try_push(part)?;
            }
        }
        Ok(())
    }

    /// Releases memory reserved for more filters.
    pub fn shrink(&mut self) {
        self.shared.shrink_to_fit();
        self.large.shrink_to_fit();
    }

    /// The number of a filter.
    pub fn id(&self, at: usize) -> u32 {
        if self.id_bits == 0 {
            return 0;
        }
        let bit = at as u64 * u64::from(self.id_bits);
        let (word, shift) = ((bit / 64) as usize, bit % 64);
        let high = self.ids.get(word + 1).copied().unwrap_or(0);
        let wide = u128::from(self.ids[word]) | u128::from(high) << 64;
        (wide >> shift) as u32 & (u32::MAX >> (32 - self.id_bits))
    }

    /// Number of filters.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Total length of the prefixes.
    pub fn bits(&self) -> u64 {
        self.bits
    }

    /// Where the prefix of the first filter of a group starts; the end, if there is no such group.
    pub fn start(&self, group: usize) -> u64 {
        self.starts.get(group).copied().unwrap_or(self.bits)
    }

    /// Decodes a group into the front of `out`; returns its size.
    #[inline(always)]
    pub fn group(&self, group: usize, out: &mut [Entry; GROUP]) -> usize {
        let first = group * GROUP;
        let count = self.len.saturating_sub(first).min(GROUP);
        let mut bit = self.start(group);
        for (i, entry) in out[..count].iter_mut().enumerate() {
            *entry = self.decode(self.word(first + i), bit);
            bit += entry.kept;
        }
        count
    }

    /// The six bytes of an entry.
    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        match self.entries.get(ENTRY * at..).and_then(|bytes| bytes.first_chunk::<8>()) {
            Some(&word) => u64::from_le_bytes(word) & (u64::MAX >> 16),
            None => 0,
        }
    }

    #[inline(always)]
    fn decode(&self, word: u64, bit: u64) -> Entry {
        let index = (word >> (SIZE_BITS + KEPT_BITS)) as u8;
        let Some(&Shared { kind, hashes, attempt }) = self.shared.get(usize::from(index)) else {
            return self.decode_large((word & PLACE) as u32, bit);
        };
        let size = word & ((1 << SIZE_BITS) - 1);
        let sizes = Sizes { kind, hashes, attempt, size };
        let units = word >> SIZE_BITS & WHOLE;
        let kept = if units == WHOLE { full_bits(&sizes) } else { units * unit(&sizes) };
        Entry { bit, kept, sizes, levels: 0 }
    }

    #[cold]
    #[inline(never)]
    fn decode_large(&self, place: u32, bit: u64) -> Entry {
        let (filter, kept) = self.large(place);
        let levels = if filter.levels.is_empty() { 0 } else { place };
        Entry { bit, kept, sizes: Sizes::of(&filter), levels }
    }

    /// The shape of a ribbon with levels, written out at a place.
    pub fn shape(&self, place: u32) -> Result<ribbon::Shape> {
        self.large(place).0.shape()
    }

    fn large(&self, place: u32) -> (Filter, u64) {
        let mut bytes = self.large[place as usize..].iter();
        let mut number = || {
            let (mut value, mut shift) = (0u64, 0);
            for &byte in bytes.by_ref() {
                value |= u64::from(byte & 0x7F) << shift;
                shift += 7;
                if byte < 0x80 {
                    break;
                }
            }
            value
        };
        let [head, attempt, size, levels] = std::array::from_fn(|_| number());
        let levels = (0..levels).map(|_| 64 * number()).collect();
        let kept = number();
        let (hashes, attempt) = ((head >> 2) as u8, attempt as u16);
        let kind = Kind::ALL[(head & 3) as usize];
        (Filter { kind, hashes, attempt, size, count: 0, levels }, kept)
    }

    /// Memory of these entries.
    pub fn size_in_bytes(&self) -> usize {
        let shared = self.shared.len() * size_of::<Shared>();
        let words = (self.starts.len() + self.ids.len()) * size_of::<u64>();
        self.entries.len() + shared + self.large.len() + words
    }
}
