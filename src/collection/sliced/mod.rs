//! Bit-sliced filters: one row of memory answers for all sets of a class.
//!
//! Sets of about as many keys form a class. Their filters are segmented Bloom filters with segments
//! of one length L (planning/collection/sliced.py), so a key probes the same bit in all of them, and
//! a class is stored row by row instead of filter by filter:
//!
//! ```text
//!                   set 0 1 2 … N₀−1
//! segment 0   row 0     0 1 1 …  0
//!             …
//!             row L−1   1 0 0 …  0      a query ANDs the rows h₀(t), h₁(t), … of its keys t
//! segment 1   row 0     0 0 1 … 1       N₁ ≤ N₀ sets keep the second segment
//! ```
//!
//! Sets are sorted by the number of segments that they keep in memory, so the first N_s sets keep
//! segment s, and its rows have N_s bits. Invariant: bits that are not in memory
//! exclude no set, so a set without any is always a candidate.
//!
//! Sets are ranked by utility; rank 0 is the most useful. Chunks of sets are searched in the order of
//! their best rank, and the search ends when enough sets are found and all later chunks rank lower.
//! (Bit-sliced signatures: BitFunnel, Goodwin et al. 2017; prefixes: Mersy et al. 2024.)
//!
//! This file has the rows and how they are loaded, `search.rs` the lookups.

mod search;

pub use search::{Accept, Match};

use super::{Filter, Kind};
use crate::bits::zeros;
use crate::error::{Error, Result};
use crate::memory::{self, TryGrow};

/// Words of the sets that are searched together: 4,096 sets, 512 bytes of each row.
const CHUNK: usize = 64;
/// Bytes after the last row, so that a word can be read at any byte.
const PAD: usize = 8;

/// The bits per segment, if all segments of a filter have the same length.
pub fn segment_length(filter: &Filter) -> Option<u64> {
    let (bits, hashes) = (filter.size, u64::from(filter.hashes));
    let even = filter.kind == Kind::Segmented && hashes > 0 && bits.is_multiple_of(hashes);
    (even && u32::try_from(bits).is_ok()).then(|| bits / hashes)
}

/// Bits of the numbers below `end`.
fn number_bits(end: usize) -> u32 {
    (usize::BITS - end.saturating_sub(1).leading_zeros()).max(1)
}

/// Numbers packed to as many bits as the highest needs.
struct Packed {
    bytes: Vec<u8>,
    bits: u32,
}

impl Packed {
    fn new(numbers: impl ExactSizeIterator<Item = u32>, end: usize) -> Result<Packed> {
        let bits = number_bits(end);
        let mut bytes = memory::filled(packed_bytes(numbers.len(), bits), 0)?;
        for (i, number) in numbers.enumerate() {
            let at = i * bits as usize;
            let place = &mut bytes[at / 8..at / 8 + 8];
            let shifted = u64::from(number) << (at % 8);
            for (byte, more) in place.iter_mut().zip(shifted.to_le_bytes()) {
                *byte |= more;
            }
        }
        Ok(Packed { bytes, bits })
    }

    #[inline(always)]
    fn get(&self, i: usize) -> u32 {
        let at = i * self.bits as usize;
        // At most 7 + 32 bits from the byte where the number begins.
        let word = self.bytes[at / 8..].first_chunk::<8>().map_or(0, |&b| u64::from_le_bytes(b));
        (word >> (at % 8)) as u32 & (u32::MAX >> (32 - self.bits))
    }
}

/// Bytes of this many packed numbers: whole words, and one more, so that one can be read anywhere.
fn packed_bytes(count: usize, bits: u32) -> usize {
    8 * ((count * bits as usize).div_ceil(64) + 1)
}

/// The rows of a segment.
struct Segment {
    /// Where the first row begins.
    start: usize,
    /// Sets that have it in memory.
    sets: u32,
}

impl Segment {
    #[inline(always)]
    fn sets(&self) -> usize {
        self.sets as usize
    }

    /// Bytes of a row.
    #[inline(always)]
    fn stride(&self) -> usize {
        self.sets().div_ceil(8)
    }
}

/// Sets whose segments have one length.
struct Class {
    length: u64,
    /// The first of its sets, and how many.
    first: usize,
    sets: usize,
    segments: Vec<Segment>,
    /// Segments of the longest filter.
    max_segments: usize,
}

/// The sets to load, class after class.
pub struct Layout<'a> {
    /// Sets per class.
    pub classes: &'a [u32],
    /// The sets; within a class, sets with more segments first.
    pub ids: &'a [u32],
    /// Segments to load of each.
    pub segments: &'a [u8],
    /// All sets, the most useful first.
    pub order: &'a [u32],
}

/// The rows in memory.
pub struct Sliced {
    classes: Vec<Class>,
    /// By position: the rank of each set.
    ranks: Packed,
    /// By rank: the number of each set.
    order: Packed,
    /// Best rank, class, and first word of each chunk, sorted.
    chunks: Vec<(u32, u32, u32)>,
    rows: Vec<u8>,
    hashes: u64,
    /// All sets, including empty ones.
    sets: usize,
}

/// The filters that [`Sliced::load`] reads, and the bytes of each; unspecified for a layout that it
/// refuses.
pub fn prefixes<'a>(
    layout: &'a Layout<'_>,
    filters: &'a [&Filter],
) -> impl Iterator<Item = (u32, u64)> + 'a {
    let Layout { classes, ids, segments, .. } = *layout;
    let mut first = 0usize;
    let classes = classes.iter().map(move |&sets| {
        let own = first..first.saturating_add(sets as usize);
        first = own.end;
        own
    });
    let classes = classes.filter_map(move |own| Some((ids.get(own.clone())?, segments.get(own)?)));
    let blocks = classes.flat_map(|(ids, segments)| ids.chunks(64).zip(segments.chunks(64)));
    blocks.flat_map(move |(ids, segments)| {
        let max_segments = u64::from(segments.iter().copied().max().unwrap_or(0));
        ids.iter().filter_map(move |&id| {
            let filter = filters.get(id as usize)?;
            let bits =
                segment_length(filter)?.checked_mul(max_segments.min(filter.hashes.into()))?;
            Some((id, bits.div_ceil(8)))
        })
    })
}

impl Sliced {
    /// Loads segments and transposes them into rows: `read(set, bytes)` fills in the first bytes of
    /// a filter.
    pub fn load(
        layout: &Layout<'_>,
        filters: &[&Filter],
        mut read: impl FnMut(u32, &mut [u8]) -> Result<()>,
    ) -> Result<Sliced> {
        let wrong = |what: &str| Error::Parameter(format!("sliced: {what}"));
        let Layout { classes, ids, segments, order } = *layout;
        let total: usize = classes.iter().map(|&sets| sets as usize).sum();
        let known = |&id: &u32| (id as usize) < filters.len();
        if total != ids.len() || ids.len() != segments.len() || order.len() != filters.len() {
            return Err(wrong("classes, ids, segments and order differ in length"));
        }
        if !ids.iter().chain(order).all(known) {
            return Err(wrong("a set is unknown"));
        }
        let mut rank_of = memory::filled(filters.len(), 0)?;
        order.iter().enumerate().for_each(|(rank, &id)| rank_of[id as usize] = rank as u32);
        let mut sliced = Sliced {
            classes: Vec::new(),
            ranks: Packed::new(ids.iter().map(|&id| rank_of[id as usize]), order.len())?,
            order: Packed::new(order.iter().copied(), order.len())?,
            chunks: Vec::new(),
            rows: Vec::new(),
            hashes: 0,
            sets: order.len(),
        };
        let (mut first, mut bytes) = (0usize, 0usize);
        for &sets in classes {
            let own = first..first + sets as usize;
            let class = plan_class(&ids[own.clone()], &segments[own], filters, first, &mut bytes);
            let class = class.map_err(wrong)?;
            sliced.hashes = sliced.hashes.max(class.segments.len() as u64);
            first += class.sets;
            sliced.classes.try_push(class)?;
        }
        let refused = |_| Error::Memory(format!("cannot allocate {bytes} bytes for rows"));
        sliced.rows = zeros(bytes.saturating_add(PAD)).map_err(refused)?;
        for index in 0..sliced.classes.len() {
            sliced.fill(index, ids, filters, &mut read)?;
        }
        sliced.collect_chunks()?;
        Ok(sliced)
    }

    /// Transposes the segments of a class, 64 sets at a time.
    fn fill(
        &mut self,
        index: usize,
        ids: &[u32],
        filters: &[&Filter],
        read: &mut impl FnMut(u32, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let (class, rows) = (&self.classes[index], &mut self.rows);
        let mut scratch: Vec<Vec<u8>> = vec![Vec::new(); 64];
        for start in (0..class.sets).step_by(64) {
            let own = &ids[class.first..][start..class.sets.min(start + 64)];
            let loaded =
                class.segments.iter().filter(|segment| segment.sets() > start).count() as u64;
            for (&id, bytes) in own.iter().zip(&mut scratch) {
                let kept = loaded.min(filters[id as usize].hashes.into()) * class.length;
                bytes.clear();
                bytes.try_resize(kept.div_ceil(8) as usize, 0)?;
                read(id, bytes)?;
                bytes.try_extend(&[0; 8])?;
            }
            for (j, segment) in (0..loaded).zip(&class.segments) {
                for row in (0..class.length).step_by(64) {
                    let mut block = [0; 64];
                    for ((column, bytes), &id) in block.iter_mut().zip(&scratch).zip(own) {
                        // A set without this segment is excluded by none of its rows.
                        let has = j < u64::from(filters[id as usize].hashes);
                        let bit = j * class.length + row;
                        *column = if has { window(bytes, bit) } else { u64::MAX };
                    }
                    transpose(&mut block);
                    let here = (class.length - row).min(64) as usize;
                    for (i, word) in block[..here].iter().enumerate() {
                        let at = segment.start + (row as usize + i) * segment.stride() + start / 8;
                        let end = segment.start + (row as usize + i + 1) * segment.stride();
                        let place = &mut rows[at..end.min(at + 8)];
                        place.copy_from_slice(&word.to_le_bytes()[..place.len()]);
                    }
                }
            }
        }
        Ok(())
    }

    fn collect_chunks(&mut self) -> Result<()> {
        for (index, class) in (0..).zip(&self.classes) {
            for word in (0..class.sets.div_ceil(64)).step_by(CHUNK) {
                let own = 64 * word..class.sets.min(64 * (word + CHUNK));
                let best = own.map(|at| self.ranks.get(class.first + at)).min();
                self.chunks.try_push((best.unwrap_or(0), index, word as u32))?;
            }
        }
        self.chunks.sort_unstable();
        Ok(())
    }

    /// Bits of all rows.
    pub fn bits(&self) -> u64 {
        8 * (self.rows.len() - PAD) as u64
    }

    /// Number of sets with keys.
    pub fn len(&self) -> usize {
        self.classes.iter().map(|class| class.sets).sum()
    }

    /// Whether no set has keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory apart from the rows, as if all segments were in memory: it does not depend on them.
    pub fn overhead(&self) -> Result<usize> {
        let classes = memory::collected(self.classes.iter().map(|class| class.sets))?;
        let segments = self.classes.iter().map(|class| class.max_segments).sum();
        Ok(Sliced::max_overhead(&classes, self.sets, segments))
    }

    /// [`Sliced::overhead`] of `sets` sets, where `classes` counts the sets with keys by class, and
    /// there are this many segments in all classes.
    pub fn max_overhead(classes: &[usize], sets: usize, segments: usize) -> usize {
        let packed = |count: usize| packed_bytes(count, number_bits(sets));
        let chunks = classes.iter().map(|sets| sets.div_ceil(64 * CHUNK)).sum::<usize>();
        PAD + packed(classes.iter().sum())
            + packed(sets)
            + size_of::<(u32, u32, u32)>() * chunks
            + size_of::<Class>() * classes.len()
            + size_of::<Segment>() * segments
    }

    /// The number of each set and its segments in memory, unless it has fewer.
    pub fn kept(&self) -> impl Iterator<Item = (u32, u32)> {
        self.classes.iter().flat_map(move |class| {
            (0..class.sets).map(move |at| {
                let id = self.order.get(self.ranks.get(class.first + at) as usize);
                (id, class.segments_of(at))
            })
        })
    }
}

impl Class {
    /// Segments in memory that a set may have.
    fn segments_of(&self, at: usize) -> u32 {
        self.segments.partition_point(|segment| segment.sets() > at) as u32
    }
}

/// The sizes of a class whose sets keep these segments; its rows begin at `bytes`, which moves on.
fn plan_class(
    ids: &[u32],
    segments: &[u8],
    filters: &[&Filter],
    first: usize,
    bytes: &mut usize,
) -> std::result::Result<Class, &'static str> {
    let shape = |&id: &u32| segment_length(filters[id as usize]);
    let length = ids.first().and_then(shape).ok_or("a class is empty, or has no segments")?;
    if !ids.iter().all(|id| shape(id) == Some(length)) {
        return Err("a class has segments of different lengths");
    }
    if ids.iter().zip(segments).any(|(&id, &own)| own > filters[id as usize].hashes) {
        return Err("a set has fewer segments");
    }
    if !segments.is_sorted_by(|a, b| a >= b) {
        return Err("the sets of a class are not sorted by their segments");
    }
    let max_segments = ids.iter().map(|&id| filters[id as usize].hashes.into()).max().unwrap_or(0);
    let mut class = Class { length, first, sets: ids.len(), segments: Vec::new(), max_segments };
    for j in 0..segments.first().copied().unwrap_or(0) {
        // Whole bytes: the bits that would be left over serve the next sets.
        let sets = segments.partition_point(|&own| own > j).next_multiple_of(8).min(ids.len());
        let (start, stride) = (*bytes, sets.div_ceil(8));
        let size = stride.checked_mul(length as usize).and_then(|size| bytes.checked_add(size));
        *bytes = size.ok_or("the rows are too large")?;
        class.segments.push(Segment { start, sets: sets as u32 });
    }
    Ok(class)
}

/// The 64 bits from `bit` on, of bytes with eight more after the last.
fn window(bytes: &[u8], bit: u64) -> u64 {
    let (at, rest) = ((bit / 8) as usize, bit % 8);
    let word = |at: usize| {
        let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk::<8>());
        bytes.map_or(0, |&bytes| u64::from_le_bytes(bytes))
    };
    let next = bytes.get(at + 8).copied().unwrap_or(0);
    word(at) >> rest | u64::from(next) << 1 << (63 - rest)
}

/// Transposes 64 × 64 bits, by halves (Warren, Hacker's Delight, section 7-3).
fn transpose(block: &mut [u64; 64]) {
    let (mut width, mut mask) = (32, u64::MAX >> 32);
    while width > 0 {
        let mut row = 0;
        while row < 64 {
            let swapped = (block[row] >> width ^ block[row + width]) & mask;
            block[row] ^= swapped << width;
            block[row + width] ^= swapped;
            row = (row + width + 1) & !width;
        }
        width /= 2;
        mask ^= mask << width;
    }
}
