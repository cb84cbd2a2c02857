//! Where everything of a solution lies in its one stretch of 64-bit words.
//!
//! ```text
//! codes      per level two bits per bucket, each level from a word of its own; then to a line's end
//! solution   interleaved: level by level, per block of 64 slots one word for each column;
//!                         then the last level's bits, column by column
//!            columns:     one string of bits, column by column; within a column level by level
//! ```
//!
//! By columns, the string may be cut anywhere: `kept` bits of it are there.

use crate::bits::LINE;
use crate::error::{Error, Result};
use crate::ribbon::system::{Row, Wide};

/// The most columns: values have up to 32 bits.
pub const MOST_COLUMNS: u32 = 32;
/// Starts per bucket, whose rows are bumped together; see [`THRESHOLDS`].
pub const BUCKET: u64 = 128;
/// By code of a bucket: rows that start below this slot of it are bumped. From trying pairs of
/// multiples of four at 4 to 7 % more equations than slots: 0.04 to 0.09 % of the slots stay empty
/// for any pair near this one, and bucket sizes of 64 and 192 do no better with their codes.
pub const THRESHOLDS: [u64; 4] = [0, 16, 40, BUCKET];
/// Levels that bump; each is about a twentieth of the one before, so few are ever needed.
const MOST_LEVELS: usize = 16;
/// Slots of a level: far above what fits in memory, far below what overflows.
const MOST_SLOTS: u64 = 1 << 42;
const WORDS_PER_LINE: usize = LINE / 8;

/// How the columns of the solution lie to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Those of a slot together: the fastest.
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
    /// Its unknowns, in whole blocks of 64.
    pub slots: u64,
    /// How many of them start rows. One less than could: a row never ends with the last slot, so
    /// the block behind the one it starts in always exists.
    pub starts: u64,
    /// The word of its first code.
    pub codes: usize,
    /// How many slots of the column come before its own.
    pub offset: u64,
}

/// The last level, whose rows are 256 wide (or all of it) and never bumped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Last {
    /// Its unknowns; none where no key has come so far.
    pub slots: u64,
    /// Which of the independent hashes made its equations solvable.
    pub attempt: u64,
    /// How many slots of the column come before its own.
    pub offset: u64,
}

impl Last {
    /// How many slots a row reaches.
    #[inline(always)]
    pub fn width(&self) -> u64 {
        self.slots.min(Wide::WIDTH)
    }

    /// How many slots start rows.
    #[inline(always)]
    pub fn starts(&self) -> u64 {
        self.slots - self.width() + 1
    }
}

/// Sizes of a solution, and what follows from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How columns lie.
    pub layout: Layout,
    /// Bits of a value (r).
    pub columns: u32,
    /// The levels that bump.
    pub levels: Vec<Level>,
    /// The last level.
    pub last: Last,
    /// Slots of all levels: bits of a column.
    pub slots: u64,
    /// Bits of the solution that are there; all unless it was cut.
    pub kept: u64,
    /// The word at which the solution begins.
    pub solution: usize,
    /// The word at which the last level of an interleaved solution begins.
    pub last_at: usize,
}

impl Shape {
    /// The shape of a whole solution with these level sizes, or the reason why it cannot be.
    pub fn new(
        layout: Layout,
        columns: u32,
        levels: &[u64],
        last: u64,
        attempt: u64,
    ) -> Result<Shape> {
        let refuse = |message: String| Err(Error::Parameter(message));
        if !(1..=MOST_COLUMNS).contains(&columns) {
            return refuse(format!("columns must be from 1 to {MOST_COLUMNS}, not {columns}"));
        }
        if levels.len() > MOST_LEVELS {
            return refuse(format!("levels must be at most {MOST_LEVELS}, not {}", levels.len()));
        }
        let possible = |slots: u64| (128..=MOST_SLOTS).contains(&slots) && slots.is_multiple_of(64);
        if let Some(slots) = levels.iter().find(|&&slots| !possible(slots)) {
            return refuse(format!("a level has {slots} slots; multiples of 64 from 128 are"));
        }
        if last > MOST_SLOTS {
            return refuse(format!("the last level must have at most 2**42 slots, not {last}"));
        }
        let (mut codes, mut offset) = (0, 0);
        let levels = levels.iter().map(|&slots| {
            let level = Level { slots, starts: slots - 64, codes, offset };
            codes += level.starts.div_ceil(BUCKET).div_ceil(32) as usize;
            offset += slots;
            level
        });
        let levels = levels.collect();
        let solution = codes.next_multiple_of(WORDS_PER_LINE);
        let last_at = solution + (offset / 64 * u64::from(columns)) as usize;
        let last = Last { slots: last, attempt, offset };
        let slots = offset + last.slots;
        let kept = slots * u64::from(columns);
        Ok(Shape { layout, columns, levels, last, slots, kept, solution, last_at })
    }

    /// The same cut to `kept` bits of the solution, or the reason why not.
    pub fn cut(self, kept: u64) -> Result<Shape> {
        if kept > self.kept || (kept < self.kept && self.layout != Layout::Columns) {
            let most = self.kept;
            let message = format!("kept is {kept}; only columns are cut, to at most {most} bits");
            return Err(Error::Parameter(message));
        }
        Ok(Shape { kept, ..self })
    }

    /// Words of the whole.
    pub fn words(&self) -> usize {
        // The bits of the last level follow whole words, so rounding up once is enough.
        self.solution + self.kept.div_ceil(64) as usize
    }

    /// Bits of the whole: the codes, and what is kept of the solution.
    pub fn bits(&self) -> u64 {
        let buckets: u64 = self.levels.iter().map(|level| level.starts.div_ceil(BUCKET)).sum();
        2 * buckets + self.kept
    }

    /// Whole columns kept, and bits kept of the next.
    pub fn kept_columns(&self) -> (u32, u64) {
        match self.slots {
            0 => (self.columns, 0),
            slots => ((self.kept / slots) as u32, self.kept % slots),
        }
    }

    /// The bit of the solution, as a string, at which `column` of the last level begins.
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
