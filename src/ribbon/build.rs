//! Building: equations are distributed level by level, then all are solved.
//!
//! **Bumping.** A level has slightly fewer slots than equations, and takes them bucket by bucket
//! from the first to the last; within a bucket from the last start to the first. If an equation
//! contradicts earlier ones, the bucket gets the lowest threshold above its start, and every
//! equation that starts below is bumped to the next level, even if it was already placed. So
//! equations that do not fit are not a failure but a smaller level, and next to no slot stays empty
//! (Dillinger et al. 2022, section 4).
//!
//! **The last level** takes all equations bumped to it as a ribbon of width 256, which up to 256
//! slots is a dense system: n random equations in n + e unknowns are solvable with probability
//! above 1 − 2^−e. It tries independent hashes one after the other and gets more slots from time to
//! time, so it always ends. Its extra column is solved in the same way, for the equations that have
//! it.
//!
//! **The extra column** of a level is solved for all equations, as if each had it; but only from
//! the last slot to the first that stores it. Equations that start there never reach further back.

use super::mask;
use super::shape::{BUCKET, Layout, Shape, Sizes, THRESHOLDS};
use super::solution::{Solution, extra_level, last_level, next_level, row, wide_row};
use super::system::{Added, Row, System, Wide};
use crate::bits::{Buffer, reduce};
use crate::error::{Error, Result};
use crate::hash::Hash128;
use crate::memory::{self, TryGrow};
use crate::processor::on_best;

/// An equation: the sum that a key's slots must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Equation {
    /// The hash that places it.
    pub hash: Hash128,
    /// The value to store.
    pub value: u32,
}

/// A level and the equations that it could not take.
struct Bumped {
    system: System<u64>,
    codes: Vec<u64>,
    rest: Vec<Equation>,
}

/// Solves equations in the order of their hashes; the hashes are distinct, and values have as many
/// bits as there are columns, and one more for an extra one. The last level's part of `sizes` is
/// determined here.
pub fn solve(
    layout: Layout,
    sizes: Sizes<'_>,
    equations: impl Iterator<Item = Equation>,
) -> Result<Solution> {
    // Checked before any memory is allocated for it.
    let Shape { levels, .. } = Shape::new(layout, sizes)?;
    let (mut systems, mut rest) = (Vec::new(), Vec::new());
    match levels.split_first() {
        None => rest.try_append(equations)?,
        Some((first, others)) => {
            let mut bumped = bump(first.slots, equations)?;
            for (index, level) in others.iter().enumerate() {
                let mut next = std::mem::take(&mut bumped.rest);
                next.iter_mut().for_each(|next| next.hash = next_level(next.hash, index + 1));
                next.sort_unstable();
                systems.push(bumped);
                bumped = bump(level.slots, next.into_iter())?;
            }
            rest = std::mem::take(&mut bumped.rest);
            systems.push(bumped);
        }
    }
    let mut extra = memory::copied(&rest)?;
    rest.iter_mut().for_each(|equation| equation.value &= mask(sizes.columns));
    let (last, attempt) = solvable(&rest, last_level)?;
    let sizes = Sizes { last: last.slots(), attempt, ..sizes };
    let shape = Shape::new(layout, sizes)?;
    extra.retain_mut(|equation| {
        equation.hash = last_level(equation.hash, attempt);
        equation.value = equation.value.unbounded_shr(sizes.columns) & 1;
        shape.has_extra(equation.hash)
    });
    let (extra, extra_attempt) = solvable(&extra, extra_level)?;
    let shape = Shape::new(layout, Sizes { extra: extra.slots(), extra_attempt, ..sizes })?;
    let mut bits = Buffer::zeroed(8 * shape.words())?;
    let words = bits.as_mut_slice().as_chunks_mut().0;
    on_best!(_processor => write(&shape, &systems, &last, &extra, words));
    Ok(Solution::new(shape, bits))
}

/// Places the equations that fit into a level.
fn bump(slots: u64, equations: impl Iterator<Item = Equation>) -> Result<Bumped> {
    let starts = slots - 64;
    let buckets = starts.div_ceil(BUCKET);
    let codes = memory::filled(buckets.div_ceil(32) as usize, 0)?;
    let mut level = Bumped { system: System::new(slots)?, codes, rest: Vec::new() };
    let (mut bucket, mut waiting) = (0, Vec::new());
    let mut taken = Vec::new();
    for equation in equations {
        let own = reduce(equation.hash.hi, starts) / BUCKET;
        if own != bucket {
            level.take(starts, bucket, &waiting, &mut taken)?;
            waiting.clear();
            bucket = own;
        }
        waiting.try_push(equation)?;
    }
    level.take(starts, bucket, &waiting, &mut taken)?;
    Ok(level)
}

impl Bumped {
    /// Places the equations of a bucket, from the last, or bumps the first of them; `taken` is
    /// scratch memory for the slots of the placed ones.
    fn take(
        &mut self,
        starts: u64,
        bucket: u64,
        equations: &[Equation],
        taken: &mut Vec<(u64, usize)>,
    ) -> Result<()> {
        let start = |equation: &Equation| reduce(equation.hash.hi, starts);
        taken.clear();
        taken.reserve_more(equations.len())?;
        for equation in equations.iter().rev() {
            let start = start(equation);
            match self.system.add(start, row(equation.hash), equation.value) {
                Added::At(slot) => taken.push((start, slot)),
                Added::Implied => {}
                Added::Refused => {
                    let above = |&threshold: &u64| bucket * BUCKET + threshold > start;
                    let code = THRESHOLDS.iter().position(above).unwrap_or(THRESHOLDS.len() - 1);
                    self.codes[(bucket / 32) as usize] |= (code as u64) << (2 * (bucket % 32));
                    break;
                }
            }
        }
        let code = self.codes[(bucket / 32) as usize] >> (2 * (bucket % 32)) & 3;
        let threshold = bucket * BUCKET + THRESHOLDS[code as usize];
        for (_, slot) in taken.iter().rev().take_while(|(start, _)| *start < threshold) {
            self.system.take_back(*slot);
        }
        let below = equations.partition_point(|equation| start(equation) < threshold);
        self.rest.try_extend(&equations[..below])
    }
}

/// The number of slots of the last level for this many equations at an attempt: one more than
/// equations while it is dense, one in 64 more beyond, to absorb fluctuations between its parts;
/// and a little more after every few failed attempts.
fn last_slots(equations: u64, attempt: u64) -> u64 {
    let spread = equations.saturating_sub(Wide::WIDTH) / 64;
    equations + 1 + spread + attempt / 4 * (1 + equations / 256)
}

/// The last level or its extra column in echelon form, and the attempt that succeeded; `hashed` is
/// the hash of an attempt.
fn solvable(
    equations: &[Equation],
    hashed: impl Fn(Hash128, u64) -> Hash128,
) -> Result<(System<Wide>, u64)> {
    if equations.is_empty() {
        return Ok((System::new(0)?, 0));
    }
    let mut sorted = Vec::new();
    for attempt in 0..10_000 {
        let slots = last_slots(equations.len() as u64, attempt);
        let (width, mut system) = (slots.min(Wide::WIDTH), System::new(slots)?);
        let starts = slots - width + 1;
        sorted.clear();
        sorted.try_append(
            equations.iter().map(|equation| (hashed(equation.hash, attempt), equation.value)),
        )?;
        sorted.sort_unstable();
        let added = sorted.iter().all(|&(hash, value)| {
            let start = reduce(hash.hi, starts);
            system.add(start, wide_row(hash, width), value) != Added::Refused
        });
        if added {
            return Ok((system, attempt));
        }
    }
    // With 2,500 more slots than equations, only equal hashes with different values remain.
    Err(Error::Parameter("two keys with the same hash have different values".into()))
}

/// Solves every level in its place.
#[inline(always)]
fn write(
    shape: &Shape,
    systems: &[Bumped],
    last: &System<Wide>,
    extra: &System<Wide>,
    words: &mut [[u8; 8]],
) {
    let columns = shape.columns as usize;
    for (level, bumped) in shape.levels.iter().zip(systems) {
        for (word, code) in words[level.codes..].iter_mut().zip(&bumped.codes) {
            *word = code.to_le_bytes();
        }
        let narrow = level.narrow_blocks();
        match shape.layout {
            Layout::Interleaved => {
                bumped.system.solve(columns, level.wide, |block, column, word| {
                    let before = block * columns + block.saturating_sub(narrow);
                    words[level.first + before + column] = word.to_le_bytes();
                })
            }
            Layout::Columns => bumped.system.solve(columns, level.wide, |block, column, word| {
                let bit = if column < columns {
                    column as u64 * shape.slots + level.offset + 64 * block as u64
                } else {
                    shape.whole_bits() + level.wide_offset + 64 * (block - narrow) as u64
                };
                put(&mut words[shape.solution..], bit, word);
            }),
        }
    }
    last.solve(columns, 0, |block, column, word| {
        let bit = shape.last_bit(column as u32) + 64 * block as u64;
        put(&mut words[shape.solution..], bit, word);
    });
    extra.solve(1, 0, |block, _, word| {
        put(&mut words[shape.solution..], shape.extra.offset + 64 * block as u64, word);
    });
}

/// Sets the bits of a word in a string of bits.
fn put(words: &mut [[u8; 8]], bit: u64, word: u64) {
    let (at, rest) = ((bit / 64) as usize, bit % 64);
    for (at, part) in [(at, word << rest), (at + 1, word >> 1 >> (63 - rest))] {
        if part != 0 {
            words[at] = (u64::from_le_bytes(words[at]) | part).to_le_bytes();
        }
    }
}
