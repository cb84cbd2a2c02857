//! Numbers and categories to levels.

use super::BLOCK;
use crate::bits::reduce;

/// The columns of a table, as a model reads them.
pub trait Rows {
    /// Why a value cannot be read.
    type Error;
    /// The numbers of a column from row `first` on; one that is missing is NaN.
    fn numbers(&self, column: usize, first: usize, out: &mut [f32]) -> Result<(), Self::Error>;
    /// The hashes of its values, for a column of categories.
    fn categories(&self, column: usize, first: usize, out: &mut [u64]) -> Result<(), Self::Error>;
}

/// A column that a model reads.
pub struct Feature {
    /// A hash of the column's name, or 0 where columns have none.
    pub name: u32,
    /// How its values become levels.
    pub levels: Levels,
}

/// How values become levels.
pub enum Levels {
    /// A number exceeds so many of these thresholds, which rise; NaN exceeds none.
    Number(Vec<f32>),
    /// A category's hash chooses a bucket, which holds the level.
    Category {
        /// The levels are below this.
        count: u8,
        /// The level of each bucket.
        buckets: Vec<i8>,
    },
}

impl Feature {
    /// How many levels there are.
    pub fn count(&self) -> usize {
        match &self.levels {
            Levels::Number(thresholds) => thresholds.len() + 1,
            Levels::Category { count, .. } => usize::from(*count),
        }
    }

    /// The levels of up to [`BLOCK`] rows, read from a column.
    #[inline(always)]
    pub fn levels<R: Rows>(
        &self,
        rows: &R,
        column: usize,
        first: usize,
        out: &mut [i8],
    ) -> Result<(), R::Error> {
        match &self.levels {
            Levels::Number(thresholds) => {
                let mut numbers = [0.0; BLOCK];
                rows.numbers(column, first, &mut numbers[..out.len()])?;
                let mut levels = [0; BLOCK];
                for (numbers, levels) in
                    numbers.as_chunks::<STEP>().0.iter().zip(levels.as_chunks_mut::<STEP>().0)
                {
                    exceeded(thresholds, numbers, levels);
                }
                out.copy_from_slice(&levels[..out.len()]);
            }
            Levels::Category { buckets, .. } => {
                let mut hashes = [0; BLOCK];
                rows.categories(column, first, &mut hashes[..out.len()])?;
                for (out, &hash) in out.iter_mut().zip(&hashes) {
                    *out = buckets[reduce(hash, buckets.len() as u64) as usize];
                }
            }
        }
        Ok(())
    }
}

/// Numbers that are compared with one threshold after the other while they stay in registers.
const STEP: usize = 32;

/// Counts them all: with few thresholds and no branch, faster than searching.
#[inline(always)]
fn exceeded(thresholds: &[f32], numbers: &[f32; STEP], levels: &mut [i8; STEP]) {
    let mut counts = [0u32; STEP];
    for &threshold in thresholds {
        for (count, &number) in counts.iter_mut().zip(numbers) {
            *count += u32::from(number > threshold);
        }
    }
    for (level, count) in levels.iter_mut().zip(counts) {
        *level = count as i8;
    }
}
