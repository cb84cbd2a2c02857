//! Queries: the value of a hash from the solved slots.
//!
//! A hash finds its level by the codes, its start and row there by its halves, and bit j of its
//! value is the product of the row and the slots of column j. In a truncated solution, a row that
//! reaches beyond the kept bits of a column has no bit there; neither has a row without the extra
//! column in that column.

use super::mask;
use super::shape::{BUCKET, Last, Layout, Level, Shape, Sizes, THRESHOLDS};
use super::system::{Row, Wide};
use crate::bits::{Buffer, LINE, part_start, prefetch, reduce};
use crate::error::{Error, Result};
use crate::format::{Head, SECTION_BITS, Section};
use crate::hash::{Hash128, mix13};

/// The domain of the remixed hashes of levels; no other structure uses it.
const DOMAIN: u64 = 0x7269_6262_6F6E_0000;
/// The domain of the last level's first attempt.
const DOMAIN_LAST: u64 = DOMAIN + 0x100;
/// The domain of the first attempt at the last level's extra column.
const DOMAIN_EXTRA: u64 = DOMAIN + 0x8000;
/// log2 of the bytes of a piece with its own checksum, by columns.
const PIECE: u32 = 12;
/// Maximum number of columns that are prefetched: an absent key needs two on average.
const FETCHED_COLUMNS: u32 = 4;

/// The hash of the next level, counted from 1.
#[inline(always)]
pub fn next_level(hash: Hash128, level: usize) -> Hash128 {
    hash.remix(DOMAIN + level as u64)
}

/// The hash for the last level. Each half depends on both halves of the previous hash: hashes that
/// share one, however many, still differ in their starts and in their rows.
#[inline(always)]
pub fn last_level(hash: Hash128, attempt: u64) -> Hash128 {
    crossed(hash.remix(DOMAIN_LAST.wrapping_add(attempt)))
}

/// The hash for the extra column of the last level, from the hash there.
#[inline(always)]
pub fn extra_level(hash: Hash128, attempt: u64) -> Hash128 {
    crossed(hash.remix(DOMAIN_EXTRA.wrapping_add(attempt)))
}

/// Mixes both halves of a hash into each other, for the start and row in the next level.
#[inline(always)]
fn crossed(Hash128 { hi, lo }: Hash128) -> Hash128 {
    Hash128 { hi: mix13(hi.wrapping_add(lo)), lo: hi ^ lo.rotate_left(32) }
}

/// The row of a hash in a level: the first coefficient is always set.
#[inline(always)]
pub fn row(hash: Hash128) -> u64 {
    hash.lo | 1
}

/// The row of a hash in a last level of this width.
#[inline(always)]
pub fn wide_row(hash: Hash128, width: u64) -> Wide {
    std::array::from_fn(|i| {
        let here = width.saturating_sub(64 * i as u64).min(64);
        let mask = if here == 0 { 0 } else { u64::MAX >> (64 - here) };
        mix13(hash.lo.wrapping_add(i as u64)) & mask
    })
}

/// A solved system in its buffer.
pub struct Solution {
    pub shape: Shape,
    bits: Buffer,
}

/// The equation of a hash.
enum Place<'a> {
    Level(&'a Level, Hash128),
    Last(Hash128),
}

impl Solution {
    pub fn new(shape: Shape, bits: Buffer) -> Solution {
        debug_assert_eq!(bits.len(), 8 * shape.words());
        Solution { shape, bits }
    }

    /// Opens the solution of a frame. After the parameters for `layout`, `kept` and `sizes` come
    /// the attempt, the slots of the last level and of each level.
    pub fn from_frame(
        layout: Layout,
        kept: Option<u64>,
        sizes: Sizes<'_>,
        rest: &[u64],
        sections: &[Section<'_>],
        own: impl FnOnce(&[u8]) -> Result<Buffer>,
    ) -> Result<Solution> {
        let (&[attempt, last, ref levels @ ..], [section]) = (rest, sections) else {
            return Err(damaged("parameters or its section are missing"));
        };
        let shape = Shape::new(layout, Sizes { levels, last, attempt, ..sizes })
            .and_then(|shape| kept.map_or(Ok(shape.clone()), |kept| shape.cut(kept)))
            .map_err(|error| error.in_frame(damaged))?;
        if section.piece != piece(layout) {
            return Err(damaged("its pieces do not match its layout"));
        }
        if section.kind != SECTION_BITS || Some(section.bytes.len()) != shape.words().checked_mul(8)
        {
            return Err(damaged("the length of its bits does not match its parameters"));
        }
        let rest = shape.kept % 64;
        let end = section.bytes.last_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
        if rest > 0 && end >> rest != 0 {
            return Err(damaged("bits are set past its end"));
        }
        Ok(Solution::new(shape, own(section.bytes)?))
    }

    /// The parameters of a frame after the kind's own.
    pub fn sizes(&self) -> impl Iterator<Item = u64> {
        let last = [self.shape.last.attempt, self.shape.last.slots];
        last.into_iter().chain(self.shape.levels.iter().map(|level| level.slots))
    }

    pub fn section(&self) -> Section<'_> {
        let piece = piece(self.shape.layout);
        Section { kind: SECTION_BITS, piece, bytes: self.bits.as_slice() }
    }

    pub fn copy(&self) -> Result<Solution> {
        Ok(Solution::new(self.shape.clone(), Buffer::copied(self.bits.as_slice())?))
    }

    /// The first `kept` bits of a solution by columns.
    pub fn cut(&self, kept: u64) -> Result<Solution> {
        let shape = self.shape.clone().cut(kept)?;
        let mut bits = Buffer::copied(&self.bits.as_slice()[..8 * shape.words()])?;
        if let (rest @ 1.., Some(end)) = (kept % 64, bits.as_mut_slice().last_chunk_mut::<8>()) {
            *end = (u64::from_le_bytes(*end) & ((1 << rest) - 1)).to_le_bytes();
        }
        Ok(Solution::new(shape, bits))
    }

    #[inline(always)]
    fn words(&self) -> &[[u8; 8]] {
        self.bits.as_slice().as_chunks().0
    }

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        self.words().get(index).map_or(0, |&word| u64::from_le_bytes(word))
    }

    /// 64 bits of the solution as a string, zeros past its end.
    #[inline(always)]
    fn window(&self, bit: u64) -> u64 {
        let (at, rest) = (self.shape.solution + (bit / 64) as usize, bit % 64);
        self.word(at) >> rest | self.word(at + 1) << 1 << (63 - rest)
    }

    /// The first start of a bucket that is not bumped.
    #[inline(always)]
    fn threshold(&self, level: &Level, bucket: u64) -> u64 {
        let codes = self.word(level.codes + (bucket / 32) as usize);
        bucket * BUCKET + THRESHOLDS[(codes >> (2 * (bucket % 32)) & 3) as usize]
    }

    #[inline(always)]
    fn place(&self, mut hash: Hash128) -> Place<'_> {
        for (index, level) in self.shape.levels.iter().enumerate() {
            if index > 0 {
                hash = next_level(hash, index);
            }
            let start = reduce(hash.hi, level.starts);
            if start >= self.threshold(level, start / BUCKET) {
                return Place::Level(level, hash);
            }
        }
        Place::Last(last_level(hash, self.shape.last.attempt))
    }

    /// Prefetches the words that most hashes need: their place in the first level.
    #[inline(always)]
    pub fn fetch(&self, hash: Hash128) {
        let Some(level) = self.shape.levels.first() else { return };
        let start = reduce(hash.hi, level.starts);
        let words = self.words().as_ptr();
        match self.shape.layout {
            Layout::Interleaved => {
                // The same number of lines for each start: a branch would be mispredicted.
                let read = self.shape.columns as usize + usize::from(self.shape.share > 0);
                let (first, _) = self.block_words(level, start);
                for word in (first..first + 2 * read).step_by(LINE / 8) {
                    prefetch(words.wrapping_add(word));
                }
            }
            Layout::Columns => {
                for column in 0..u64::from(self.shape.columns.min(FETCHED_COLUMNS)) {
                    let bit = column * self.shape.slots + start;
                    prefetch(words.wrapping_add(self.shape.solution + (bit / 64) as usize));
                }
                if self.shape.share > 0 && self.shape.columns < FETCHED_COLUMNS {
                    let bit = self.extra_bit(level, start);
                    prefetch(words.wrapping_add(self.shape.solution + (bit / 64) as usize));
                }
            }
        }
    }

    /// Reads the words that most hashes of one of `parts` equal parts need into the cache.
    pub fn preload(&self, part: usize, parts: usize) {
        let Some(level) = self.shape.levels.first() else { return };
        let (first, end) =
            (part_start(level.starts, part, parts), part_start(level.starts, part + 1, parts));
        match self.shape.layout {
            Layout::Interleaved => {
                let (first, _) = self.block_words(level, first);
                self.bits.preload(first..self.block_words(level, end).1);
            }
            Layout::Columns => {
                let word = |bit: u64| self.shape.solution + (bit / 64) as usize;
                for column in 0..u64::from(self.shape.columns) {
                    let bits = column * self.shape.slots + level.offset;
                    self.bits.preload(word(bits + first)..word(bits + end) + 1);
                }
            }
        }
    }

    /// The first word of the block of a start in an interleaved level, and of the next block.
    #[inline(always)]
    fn block_words(&self, level: &Level, start: u64) -> (usize, usize) {
        let (block, columns) = ((start / 64) as usize, self.shape.columns as usize);
        let wide = (block + 1).saturating_sub(level.narrow_blocks());
        let next = level.first + (block + 1) * columns + wide;
        (next - columns - usize::from(wide > 0), next)
    }

    /// The slots of a row in an interleaved level: the words of its first block and of the next,
    /// and its coefficients for each. Words of the extra column are included even if the row has
    /// none, and are then arbitrary: the blocks without the column are followed by two or more with
    /// it.
    #[inline(always)]
    fn blocks(&self, level: &Level, hash: Hash128) -> Blocks<'_> {
        let columns = self.shape.columns as usize;
        let (start, row) = (reduce(hash.hi, level.starts), row(hash));
        let (first, next) = self.block_words(level, start);
        let (words, read) = (self.words(), columns + usize::from(self.shape.share > 0));
        let rest = start % 64;
        Blocks {
            block: &words[first..first + read],
            next: &words[next..next + read],
            rows: [row << rest, row >> 1 >> (63 - rest)],
            mask: mask(columns as u32) | u32::from(next - first > columns) << columns,
        }
    }

    /// Whether the value of a hash may be the low bits of `value`. No key reaches a last level
    /// without slots.
    #[inline(always)]
    pub fn may_have(&self, hash: Hash128, value: u32) -> bool {
        match (self.place(hash), self.shape.layout) {
            (Place::Level(level, hash), Layout::Interleaved) => {
                self.blocks(level, hash).agree(value)
            }
            (Place::Level(level, hash), Layout::Columns) => {
                let (start, row) = (reduce(hash.hi, level.starts), row(hash));
                let Shape { columns, share, slots, kept, .. } = self.shape;
                let contradicts = |bit: u64, column: u32| {
                    let unlike = row.times(self.window(bit)) as u32 ^ value >> column & 1;
                    unlike & u32::from(bit + u64::WIDTH <= kept)
                };
                let mut bit = level.offset + start;
                for column in 0..columns {
                    if contradicts(bit, column) != 0 {
                        return false;
                    }
                    bit += slots;
                }
                // As in an interleaved level, it reads in either case.
                share == 0 || {
                    let (bit, narrow) = (self.extra_bit(level, start), level.slots - level.wide);
                    contradicts(bit, columns) & u32::from(start >= narrow) == 0
                }
            }
            (Place::Last(hash), _) => self.last_may_have(hash, value),
        }
    }

    /// The bit of the extra column, in the layout by columns, where a row of a level begins; its
    /// first bit if the row has none.
    #[inline(always)]
    fn extra_bit(&self, level: &Level, start: u64) -> u64 {
        let inside = start.saturating_sub(level.slots - level.wide);
        self.shape.whole_bits() + level.wide_offset + inside
    }

    fn last_may_have(&self, hash: Hash128, value: u32) -> bool {
        let Shape { columns, last, extra, kept, .. } = self.shape;
        if last.slots == 0 {
            return false;
        }
        let agrees = |of: Last, first: u64, hash: Hash128, column: u32| {
            let end = first + reduce(hash.hi, of.starts()) + of.width();
            end > kept || self.wide_bit(of, first, hash) == value >> column & 1
        };
        (0..columns).all(|column| agrees(last, self.shape.last_bit(column), hash, column))
            && (!self.shape.has_extra(hash)
                || kept < self.shape.whole_bits()
                || extra.slots > 0
                    && agrees(extra, extra.offset, extra_level(hash, extra.attempt), columns))
    }

    /// The sum of a row of the last level, or of its extra column; the slots of the column begin at
    /// bit `first`.
    fn wide_bit(&self, of: Last, first: u64, hash: Hash128) -> u32 {
        let (bit, row) = (first + reduce(hash.hi, of.starts()), wide_row(hash, of.width()));
        row.times(std::array::from_fn(|i| self.window(bit + 64 * i as u64))) as u32
    }

    /// The value of a hash, in an interleaved solution.
    #[inline(always)]
    pub fn value(&self, hash: Hash128) -> u32 {
        match self.place(hash) {
            Place::Level(level, hash) => {
                let Blocks { block, next, rows, .. } = self.blocks(level, hash);
                let bits = block.iter().zip(next).enumerate();
                bits.fold(0, |value, (column, (&a, &b))| value | bit(a, b, rows) << column)
            }
            Place::Last(_) if self.shape.last.slots == 0 => 0,
            Place::Last(hash) => (0..self.shape.columns).fold(0, |value, column| {
                let first = self.shape.last_bit(column);
                value | self.wide_bit(self.shape.last, first, hash) << column
            }),
        }
    }

    /// The fraction of all hashes that accept a random value: 2^−j for hashes whose rows lie within
    /// j of the kept columns.
    pub fn rate(&self) -> f64 {
        let Shape { columns, last, extra, kept, .. } = self.shape;
        let whole_bits = self.shape.whole_bits();
        // The truncated column is one of all slots, or the extra one.
        let cut = kept < whole_bits;
        let whole = if cut { (kept / self.shape.slots) as i32 } else { columns as i32 };
        let accepted = |inside: u64, all: u64| 1.0 - inside as f64 / all as f64 / 2.0;
        let (mut rate, mut reach) = (0.0, 1.0);
        for level in &self.shape.levels {
            // The starts that have one bit more than the columns common to all.
            let (from, left) = if cut {
                (0, (kept % self.shape.slots).saturating_sub(level.offset))
            } else {
                let left = kept.saturating_sub(whole_bits + level.wide_offset);
                (level.slots - level.wide, left.min(level.wide))
            };
            let to = (from + (left + 1).saturating_sub(u64::WIDTH)).min(level.starts);
            let (mut here, mut inside) = (0, 0);
            for bucket in 0..level.starts.div_ceil(BUCKET) {
                let (first, end) = (self.threshold(level, bucket), (bucket + 1) * BUCKET);
                here += end.min(level.starts).saturating_sub(first);
                inside += end.min(to).saturating_sub(first.max(from));
            }
            let share = here as f64 / level.starts as f64;
            if here > 0 {
                rate += reach * share * accepted(inside, here);
            }
            reach *= 1.0 - share;
        }
        if last.slots > 0 {
            let within = |of: Last, end: u64| (end + 1).saturating_sub(of.width()).min(of.starts());
            rate += reach
                * if cut {
                    let end = (kept % self.shape.slots).saturating_sub(last.offset);
                    accepted(within(last, end), last.starts())
                } else {
                    let share = f64::from(self.shape.share) / 2f64.powi(32);
                    // Without slots, the extra column has no key and rejects all.
                    let of_extra = match extra.slots {
                        0 => 0.0,
                        _ => accepted(
                            within(extra, kept.saturating_sub(extra.offset)),
                            extra.starts(),
                        ),
                    };
                    1.0 - share + share * of_extra
                };
        }
        rate * 0.5f64.powi(whole)
    }
}

/// The error for a damaged frame.
pub fn damaged(what: &str) -> Error {
    Error::Format(format!("the ribbon is damaged: {what}"))
}

/// log2 of the bytes of a piece: only the layout by columns can be truncated.
fn piece(layout: Layout) -> u32 {
    if layout == Layout::Columns { PIECE } else { 0 }
}

/// Bit of a value: the product of a row with the two words of a column.
#[inline(always)]
fn bit(block: [u8; 8], next: [u8; 8], rows: [u64; 2]) -> u32 {
    let met = u64::from_le_bytes(block) & rows[0] ^ u64::from_le_bytes(next) & rows[1];
    met.count_ones() & 1
}

/// The slots of a row in an interleaved level.
struct Blocks<'a> {
    block: &'a [[u8; 8]],
    next: &'a [[u8; 8]],
    rows: [u64; 2],
    /// The columns of the row.
    mask: u32,
}

impl Blocks<'_> {
    /// Whether all columns agree with `value`: four at a time, since a branch per column would be
    /// mispredicted for half of the absent keys.
    #[inline(always)]
    fn agree(self, mut value: u32) -> bool {
        let Blocks { block, next, rows, mut mask } = self;
        let ((blocks, block), (nexts, next)) = (block.as_chunks::<4>(), next.as_chunks::<4>());
        for (block, next) in blocks.iter().zip(nexts) {
            let four = (0..4).fold(0, |four, i| four | bit(block[i], next[i], rows) << i);
            if (four ^ value) & mask & 15 != 0 {
                return false;
            }
            (value, mask) = (value >> 4, mask >> 4);
        }
        let rest = block.iter().zip(next).enumerate();
        let rest = rest.fold(0, |rest, (i, (&a, &b))| rest | bit(a, b, rows) << i);
        (rest ^ value) & mask == 0
    }
}

/// The parameters of a frame, if there are enough.
pub fn parameters<const N: usize>(head: &Head) -> Result<(&[u64; N], &[u64])> {
    let parts = head.parameters.split_first_chunk();
    parts.ok_or_else(|| damaged("parameters are missing"))
}

/// The number of columns in a frame.
pub fn columns(parameter: u64) -> Result<u32> {
    u32::try_from(parameter).map_err(|_| damaged("too many columns"))
}
