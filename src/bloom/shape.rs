//! Layouts and sizes of Bloom filters, and the positions of a hash.

use crate::bits::{LINE, reduce};
use crate::error::{Error, Result};
use crate::hash::{Hash128, mix13};

/// Bits of a block: one cache line.
pub const BLOCK_BITS: u64 = 8 * LINE as u64;
/// Maximum number of probes per key; more would not pay at any rate above 10⁻¹².
pub const MAX_HASHES: u32 = 64;
/// log2 of the bytes of a piece with its own checksum in a segmented filter's file.
const PIECE: u32 = 12;

/// Where a key's bits may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// All in one cache line.
    Blocked,
    /// Anywhere.
    Standard,
    /// One in each segment.
    Segmented,
}

impl Layout {
    pub(super) const ALL: [Layout; 3] = [Layout::Blocked, Layout::Standard, Layout::Segmented];

    /// The layout with this name.
    pub fn named(name: &str) -> Option<Layout> {
        Layout::ALL.into_iter().find(|layout| layout.name() == name)
    }

    /// log2 of the bytes per checksum in a file: layouts that can be truncated have one per piece.
    pub(super) fn piece(self) -> u32 {
        if self == Layout::Segmented { PIECE } else { 0 }
    }

    /// Its name in Python.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Blocked => "blocked",
            Layout::Standard => "standard",
            Layout::Segmented => "segmented",
        }
    }
}

/// Sizes of a Bloom filter; filters of equal sizes can be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Where bits may lie.
    pub layout: Layout,
    /// Bits of the full filter.
    pub bits: u64,
    /// Probes per key (k).
    pub hashes: u32,
    /// The number of leading bits that are kept.
    pub kept: u64,
    /// Bits of a segment; the first `longer` segments have one more. A filter that is not segmented
    /// is one segment that all probes share.
    pub(super) segment: u64,
    pub(super) longer: u64,
}

impl Shape {
    /// A shape, or an error that says why it is invalid.
    pub fn new(layout: Layout, bits: u64, hashes: u32, kept: u64) -> Result<Shape> {
        let refuse = |message: String| Err(Error::Parameter(message));
        if !(1..=MAX_HASHES).contains(&hashes) {
            return refuse(format!("hashes must be from 1 to {MAX_HASHES}, not {hashes}"));
        }
        if bits == 0 || bits > 1 << 56 {
            return refuse(format!("bits must be from 1 to 2**56, not {bits}"));
        }
        if layout == Layout::Blocked && !bits.is_multiple_of(BLOCK_BITS) {
            return refuse(format!(
                "bits of a blocked filter must be a multiple of 512, not {bits}"
            ));
        }
        if layout == Layout::Segmented && bits < u64::from(hashes) {
            return refuse(format!("bits must be at least one per segment, {hashes}, not {bits}"));
        }
        if kept > bits || (kept < bits && layout == Layout::Blocked) {
            return refuse(format!(
                "kept must be {bits}, or less in a filter that is not blocked, not {kept}"
            ));
        }
        let k = u64::from(hashes);
        let (segment, longer) = match layout {
            Layout::Segmented => (bits / k, bits % k),
            _ => (bits, 0),
        };
        Ok(Shape { layout, bits, hashes, kept, segment, longer })
    }

    pub(super) fn bytes(&self) -> usize {
        self.kept.div_ceil(64) as usize * 8
    }

    /// The bits where probe `j` may fall.
    #[inline(always)]
    pub(super) fn segment(&self, j: u32) -> Segment {
        let j = u64::from(j);
        let start = match self.layout {
            Layout::Segmented => j * self.segment + j.min(self.longer),
            _ => 0,
        };
        Segment { start, length: self.segment + u64::from(j < self.longer) }
    }

    /// The positions of a hash among the bits, for the layouts that are not blocked.
    #[inline(always)]
    pub(super) fn positions(&self, hash: Hash128) -> impl Iterator<Item = u64> {
        let mut source = hash.hi;
        (0..self.hashes).map(move |j| {
            let position = self.segment(j).position(source);
            source = source.wrapping_add(hash.lo);
            position
        })
    }
}

/// The bits where a probe may fall.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    pub start: u64,
    pub length: u64,
}

impl Segment {
    /// The position of a probe with `source` hi + j·lo. The source is mixed: multiples alone would
    /// be an arithmetic progression, whose regularity would show in the rate of small filters.
    #[inline(always)]
    pub fn position(self, source: u64) -> u64 {
        self.start + reduce(mix13(source), self.length)
    }

    /// The same in a segment of fewer than 2³² bits: `reduce` in halves, which vectors can
    /// multiply.
    #[inline(always)]
    pub fn near(self, source: u64, length: u32) -> u64 {
        let (probe, length) = (mix13(source), u64::from(length));
        let low = ((probe & 0xFFFF_FFFF) * length) >> 32;
        self.start + (((probe >> 32) * length + low) >> 32)
    }
}
