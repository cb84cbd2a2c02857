//! Numbers and categories to levels.

use super::{BLOCK, Lanes};
use crate::bits::reduce;
use crate::processor::has_avx2;

/// The columns of a table, as a model reads them.
pub trait Rows {
    /// The error if a value cannot be read.
    type Error;
    /// The numbers of a column from row `first` on; missing ones are NaN.
    fn numbers(&self, column: usize, first: usize, out: &mut [f32]) -> Result<(), Self::Error>;
    /// The hashes of its values, for a column of categories.
    fn categories(&self, column: usize, first: usize, out: &mut [u64]) -> Result<(), Self::Error>;
}

/// A column that a model reads.
pub struct Feature {
    /// A hash of the column's name, or 0 if columns have no names.
    pub name: u32,
    /// How its values become levels.
    pub levels: Levels,
}

/// How values become levels.
pub enum Levels {
    /// The level is how many of the rising thresholds the number exceeds; NaN exceeds none.
    Number(Thresholds),
    /// The category's hash selects a bucket, which holds the level.
    Category {
        /// All levels are below this.
        count: u8,
        /// The level of each bucket.
        buckets: Vec<i8>,
    },
}

impl Feature {
    /// How many levels there are.
    pub fn count(&self) -> usize {
        match &self.levels {
            Levels::Number(thresholds) => thresholds.count + 1,
            Levels::Category { count, .. } => usize::from(*count),
        }
    }

    /// The levels of up to [`BLOCK`] rows, read from a column.
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
                out.copy_from_slice(&thresholds.exceeded(&numbers)[..out.len()]);
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

/// Numbers compared with one threshold after the other while they stay in registers.
const STEP: usize = 32;
/// Thresholds compared with one number at once.
const EIGHT: usize = 8;

/// Rising thresholds in groups of eight, padded with infinities that nothing exceeds.
pub struct Thresholds {
    count: usize,
    eights: Vec<[f32; EIGHT]>,
    /// The last threshold of each group without padding.
    lasts: Vec<f32>,
}

impl Thresholds {
    /// From rising thresholds, none of which is NaN.
    pub fn new(rising: &[f32]) -> Thresholds {
        let (whole, rest) = rising.as_chunks::<EIGHT>();
        let mut end = [f32::INFINITY; EIGHT];
        end[..rest.len()].copy_from_slice(rest);
        let lasts = whole.iter().map(|eight| eight[EIGHT - 1]).collect();
        Thresholds { count: rising.len(), eights: [whole, &[end]].concat(), lasts }
    }

    /// How many thresholds each number exceeds.
    fn exceeded(&self, numbers: &[f32; BLOCK]) -> Lanes {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,popcnt")]
            fn wide(thresholds: &Thresholds, numbers: &[f32; BLOCK]) -> Lanes {
                thresholds.exceeded_plain(numbers)
            }
            if has_avx2() {
                // SAFETY: just checked.
                return unsafe { wide(self, numbers) };
            }
        }
        self.exceeded_plain(numbers)
    }

    /// Counts the groups whose last threshold it exceeds, then within the next group: without a
    /// branch, in a third of the time of comparing with all.
    #[inline(always)]
    fn exceeded_plain(&self, numbers: &[f32; BLOCK]) -> Lanes {
        let mut levels = [0; BLOCK];
        let parts = numbers.as_chunks::<STEP>().0.iter().zip(levels.as_chunks_mut::<STEP>().0);
        for (numbers, levels) in parts {
            let mut eights = [0u32; STEP];
            for &last in &self.lasts {
                for (count, &number) in eights.iter_mut().zip(numbers) {
                    *count += u32::from(number > last);
                }
            }
            for ((level, &number), eight) in levels.iter_mut().zip(numbers).zip(eights) {
                let next = &self.eights[eight as usize];
                let more = next.iter().map(|&threshold| u32::from(number > threshold)).sum::<u32>();
                *level = (EIGHT as u32 * eight + more) as i8;
            }
        }
        levels
    }
}
