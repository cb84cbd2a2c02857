//! The layout of a solution in one array of 64-bit words.
//!
//! ```text
//! codes      per level two bits per bucket, each level from a word of its own; then to a line's end
//! solution   interleaved: level by level, per block of 64 slots one word for each column;
//!                         then the last level's bits, column by column
//!            columns:     one string of bits, column by column; within a column level by level
//! extra      slots of the last level's own system for the extra column, in both layouts
//! ```
//!
//! By columns, the string may be truncated anywhere: its first `kept` bits are present.
//!
//! **The extra column.** A share g of all starts has one column more than the others, so that any
//! rate is possible: 2^−r·(1 − g/2) at r + g columns. In a level these are the last starts. Rows
//! only reach forward, so a row that starts there finds the extra column in every slot that it
//! reaches, and only the slots from there on (`wide` of them) need it. Rows of the last level reach
//! all or a large part of it, so its extra column is a separate system, for the hashes that start
//! in the last share of it.

use crate::bits::LINE;
use crate::error::{Error, Result};
use crate::hash::Hash128;
use crate::ribbon::system::{Row, Wide};

/// Maximum number of columns: values have up to 32 bits.
pub const MAX_COLUMNS: u32 = 32;
/// Starts per bucket, whose rows are bumped together; see [`THRESHOLDS`].
pub const BUCKET: u64 = 128;
/// By code of a bucket: rows that start below this slot of it are bumped. From trials of pairs of
/// multiples of four at 4 to 7 % more equations than slots: 0.04 to 0.09 % of the slots stay empty
/// for any pair near this one, and bucket sizes of 64 and 192 do no better with their codes.
pub const THRESHOLDS: [u64; 4] = [0, 16, 40, BUCKET];
/// Maximum number of levels that bump; each is about a twentieth of the one before, so few are ever
/// needed.
const MAX_LEVELS: usize = 16;
/// Maximum number of slots per level: far more than memory, far less than would overflow.
const MAX_SLOTS: u64 = 1 << 42;
const WORDS_PER_LINE: usize = LINE / 8;

/// The order of the columns of the solution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The columns of a slot together: the fastest.
    Interleaved,
    /// One after the other: columns can be dropped from the end.
    Columns,
}

impl Layout {
    const ALL: [Layout; 2] = [Layout::Interleaved, Layout::Columns];

    /// The layout with this name.
    pub fn named(name: &str) -> Option<Layout> {
        Layout::ALL.into_iter().find(|layout| layout.name() == name)
    }

    /// The layout with this number in a frame.
    pub fn numbered(number: u64) -> Option<Layout> {
        usize::try_from(number).ok().and_then(|index| Layout::ALL.get(index)).copied()
    }

    /// Its name in Python.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Interleaved => "interleaved",
            Layout::Columns => "columns",
        }
    }
}

/// A level whose rows are 64 wide and may be bumped to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// The number of its unknowns, in complete blocks of 64.
    pub slots: u64,
    /// The number of slots where rows start. One less than possible: a row never ends with the last
    /// slot, so the block after the one where it starts always exists.
    pub starts: u64,
    /// The word of its first code.
    pub codes: usize,
    /// The number of slots of the column before its own.
    pub offset: u64,
    /// The number of its slots, at its end, with the extra column; in complete blocks.
    pub wide: u64,
    /// The number of slots of the extra column before its own.
    pub wide_offset: u64,
    /// The word at which an interleaved level begins.
    pub first: usize,
}

impl Level {
    /// Its blocks without the extra column.
    #[inline(always)]
    pub fn narrow_blocks(&self) -> usize {
        ((self.slots - self.wide) / 64) as usize
    }
}

/// The last level, whose rows are 256 wide (or all of it) and never bumped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Last {
    /// The number of its unknowns; 0 if no key reached it.
    pub slots: u64,
    /// The number of the independent hash that made its equations solvable.
    pub attempt: u64,
    /// The number of slots of the column before its own.
    pub offset: u64,
}

impl Last {
    /// The number of slots that a row reaches.
    #[inline(always)]
    pub fn width(&self) -> u64 {
        self.slots.min(Wide::WIDTH)
    }

    /// The number of slots where rows start.
    #[inline(always)]
    pub fn starts(&self) -> u64 {
        self.slots - self.width() + 1
    }
}

/// The parameters of a shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes<'a> {
    /// Columns that all slots have (r).
    pub columns: u32,
    /// The share of the starts that have the extra column (g), in units of 2⁻³².
    pub share: u32,
    /// Slots of each level that bumps.
    pub levels: &'a [u64],
    /// Slots of the last level.
    pub last: u64,
    /// The attempt that solved the last level.
    pub attempt: u64,
    /// Slots of the last level's extra column.
    pub extra: u64,
    /// The attempt that solved the last level's extra column.
    pub extra_attempt: u64,
}

/// Sizes of a solution, and the positions derived from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The order of the columns.
    pub layout: Layout,
    /// Columns that all slots have (r).
    pub columns: u32,
    /// The share of the starts that have the extra column (g), in units of 2⁻³².
    pub share: u32,
    /// The levels that bump.
    pub levels: Vec<Level>,
    /// The last level.
    pub last: Last,
    /// The extra column of the last level; its offset is in bits of the solution.
    pub extra: Last,
    /// Slots of all levels: bits of a column.
    pub slots: u64,
    /// Bits of the solution that are present; all unless it was truncated.
    pub kept: u64,
    /// The word at which the solution begins.
    pub solution: usize,
    /// The word at which the last level of an interleaved solution begins.
    pub last_at: usize,
}

impl Shape {
    /// The shape of a complete solution of these sizes, or an error that says why it is invalid.
    pub fn new(layout: Layout, sizes: Sizes<'_>) -> Result<Shape> {
        let Sizes { columns, share, levels, last, attempt, extra, extra_attempt } = sizes;
        let refuse = |message: String| Err(Error::Parameter(message));
        let (min, max) = if share == 0 { (1, MAX_COLUMNS) } else { (0, MAX_COLUMNS - 1) };
        if !(min..=max).contains(&columns) {
            return refuse(format!("columns must be from {min} to {max}, not {columns}"));
        }
        if levels.len() > MAX_LEVELS {
            return refuse(format!("levels must be at most {MAX_LEVELS}, not {}", levels.len()));
        }
        let possible = |slots: u64| (128..=MAX_SLOTS).contains(&slots) && slots.is_multiple_of(64);
        if let Some(slots) = levels.iter().find(|&&slots| !possible(slots)) {
            return refuse(format!(
                "a level must have a multiple of 64 slots from 128 on, not {slots}"
            ));
        }
        if last.max(extra) > MAX_SLOTS {
            return refuse(format!("the last level must have at most 2**42 slots, not {last}"));
        }
        if extra > 0 && (share == 0 || last == 0) {
            return refuse(format!("an extra column of {extra} slots belongs to no start"));
        }
        let buckets = |slots: u64| (slots - 64).div_ceil(BUCKET);
        let codes: u64 = levels.iter().map(|&slots| buckets(slots).div_ceil(32)).sum();
        let solution = (codes as usize).next_multiple_of(WORDS_PER_LINE);
        let (mut codes, mut offset, mut wide_offset, mut first) = (0, 0, 0, solution);
        let levels = levels.iter().map(|&slots| {
            let (starts, wide) = (slots - 64, wide_slots(slots, share));
            let level = Level { slots, starts, codes, offset, wide, wide_offset, first };
            codes += buckets(slots).div_ceil(32) as usize;
            offset += slots;
            wide_offset += wide;
            first += ((slots * u64::from(columns) + wide) / 64) as usize;
            level
        });
        let levels = levels.collect();
        let last = Last { slots: last, attempt, offset };
        let slots = offset + last.slots;
        let before = slots * u64::from(columns) + wide_offset;
        let extra = Last { slots: extra, attempt: extra_attempt, offset: before };
        let (kept, last_at) = (before + extra.slots, first);
        Ok(Shape { layout, columns, share, levels, last, extra, slots, kept, solution, last_at })
    }

    /// The same truncated to `kept` bits of the solution, or an error that says why not.
    pub fn cut(self, kept: u64) -> Result<Shape> {
        if kept > self.kept || (kept < self.kept && self.layout != Layout::Columns) {
            let max = self.kept;
            let message =
                format!("kept must be at most {max}, and less only with columns, not {kept}");
            return Err(Error::Parameter(message));
        }
        Ok(Shape { kept, ..self })
    }

    /// Words in total.
    pub fn words(&self) -> usize {
        // The bits of the last level follow complete words, so rounding up once is enough.
        self.solution + self.kept.div_ceil(64) as usize
    }

    /// Bits in total: the codes, and the kept part of the solution.
    pub fn bits(&self) -> u64 {
        let buckets: u64 = self.levels.iter().map(|level| level.starts.div_ceil(BUCKET)).sum();
        2 * buckets + self.kept
    }

    /// Bits of the columns that all slots have.
    #[inline(always)]
    pub fn whole_bits(&self) -> u64 {
        self.slots * u64::from(self.columns)
    }

    /// Whether a hash that reached the last level has the extra column.
    #[inline(always)]
    pub fn has_extra(&self, hash: Hash128) -> bool {
        (hash.hi >> 32) + u64::from(self.share) >= 1 << 32
    }

    /// The bit of the solution, as a string, where `column` of the last level begins; `column` is
    /// one of the columns that all slots have.
    #[inline(always)]
    pub fn last_bit(&self, column: u32) -> u64 {
        let column = u64::from(column);
        match self.layout {
            Layout::Interleaved => {
                64 * (self.last_at - self.solution) as u64 + column * self.last.slots
            }
            Layout::Columns => column * self.slots + self.last.offset,
        }
    }
}

/// The number of slots of a level with the extra column: this share of the blocks where rows start,
/// and one block more, which their rows reach.
fn wide_slots(slots: u64, share: u32) -> u64 {
    let starting = u128::from(slots / 64 - 1) * u128::from(share);
    if share == 0 { 0 } else { 64 * (1 + starting.div_ceil(1 << 32) as u64) }
}
