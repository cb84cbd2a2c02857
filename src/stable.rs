//! Stable Bloom filters: small counters that decay at random, so that the rate stays bounded.
//!
//! `cells` = m counters from 0 to `max` = Max. Inserting a hash first decrements P cells (if above
//! zero), then sets the K cells of the hash to Max; a hash may be present if none of its cells is
//! zero. Each insertion sets a cell with probability s ≈ K/m and otherwise decrements it with
//! probability P/m, so a cell is zero if its last Max changes all decremented it, and the fraction
//! of zeros has a limit whatever the stream (Deng and Rafiei 2006, theorem 2; Liu et al. 2020, Eq.
//! 5):
//!
//! ```text
//! zeros → (1 / (1 + 1/(P·(1/K − 1/m))))^Max        rate → (1 − zeros)^K
//! ```
//!
//! The price is that keys fade too: `planning/stable.py` computes the fraction of false negatives
//! by age.
//!
//! Which P cells: `adjacent` ones from a random start (the original's choice: one random number per
//! insertion, and each cell is still decremented with probability P/m), or `independent` ones. The
//! random numbers are mixed multiples of [`GOLDEN`], whose state is part of the filter: equal
//! streams give equal filters.
//!
//! Cells lie in blocks of 64: one word per bit of the counter, lowest first (a bit-sliced array),
//! so that a few instructions per word decrement up to 64 neighbours.
//!
//! One writer at a time holds the lock; readers take none. A counter changes word by word: when it
//! goes from one value above zero to another, ones are written before zeros and low words before
//! high ones, and readers read from high to low, so that they never see a zero in between.

use crate::bits::{Buffer, prefetch, reduce};
use crate::error::{Error, Result};
use crate::format::{Head, SECTION_BITS, Section};
use crate::hash::{GOLDEN, Hash128, mix13};
use crate::interrupt;
use crate::kernel::{Content, Kernel, Kind, PIECE};
use crate::lock::{RwLock, WriteGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Stable Bloom filters.
pub static KIND: Kind = Kind {
    inserts: true,
    forgets: true,
    ..Kind::new(12, "stable", |head, sections, opening| {
        Ok(Arc::new(Stable::from_frame(head, sections, opening.own)?))
    })
};
/// Maximum number of cells per key; more would not pay at any rate above 10⁻⁹.
pub const MAX_HASHES: u32 = 32;
/// The largest counter: three bits.
pub const MAX_VALUE: u32 = 7;
/// Hashes whose cells are computed and prefetched before the first of them is read.
const GROUP: usize = 16;

/// Sizes of a stable Bloom filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Counters (m).
    pub cells: u64,
    /// The value that a counter is set to (Max).
    pub max: u32,
    /// Counters per key (K).
    pub hashes: u32,
    /// Counters decremented per insertion (P).
    pub decrements: u64,
    /// Whether each of them is chosen independently, rather than all in a row.
    pub independent: bool,
}

impl Shape {
    /// A shape, or an error that says why it is invalid.
    pub fn new(
        cells: u64,
        max: u32,
        hashes: u32,
        decrements: u64,
        independent: bool,
    ) -> Result<Shape> {
        let refuse = |message: String| Err(Error::Parameter(message));
        if cells == 0 || cells > 1 << 48 {
            return refuse(format!("cells must be from 1 to 2**48, not {cells}"));
        }
        if !(1..=MAX_VALUE).contains(&max) {
            return refuse(format!("max must be from 1 to {MAX_VALUE}, not {max}"));
        }
        if !(1..=MAX_HASHES).contains(&hashes) {
            return refuse(format!("hashes must be from 1 to {MAX_HASHES}, not {hashes}"));
        }
        if decrements == 0 || decrements > cells {
            let message = format!("decrements must be from 1 to {cells}, not {decrements}");
            return refuse(message);
        }
        Ok(Shape { cells, max, hashes, decrements, independent })
    }

    /// Bits of a counter.
    fn planes(&self) -> usize {
        (u32::BITS - self.max.leading_zeros()) as usize
    }

    fn bytes(&self) -> usize {
        8 * self.planes() * self.cells.div_ceil(64) as usize
    }

    /// The cell of probe `j` of a hash.
    #[inline(always)]
    fn cell(&self, hash: Hash128, j: usize) -> u64 {
        reduce(mix13(hash.hi.wrapping_add(hash.lo.wrapping_mul(j as u64))), self.cells)
    }
}

/// A stable Bloom filter over hashes.
pub struct Stable {
    shape: Shape,
    cells: Buffer,
    insertions: AtomicU64,
    /// The state of the random numbers; changed by the writer.
    random: AtomicU64,
    writer: RwLock<()>,
}

/// Runs code with the number of bits per counter as a constant.
macro_rules! on_planes {
    ($shape:expr, $D:ident => $code:expr) => {
        match $shape.planes() {
            1 => {
                const $D: usize = 1;
                $code
            }
            2 => {
                const $D: usize = 2;
                $code
            }
            _ => {
                const $D: usize = 3;
                $code
            }
        }
    };
}

impl Stable {
    /// An empty filter whose random numbers follow from `seed`.
    pub fn new(shape: Shape, seed: u64) -> Result<Stable> {
        Ok(Stable::with(shape, Buffer::zeroed(shape.bytes())?, 0, mix13(seed ^ GOLDEN)))
    }

    fn with(shape: Shape, cells: Buffer, insertions: u64, random: u64) -> Stable {
        Stable {
            shape,
            cells,
            insertions: AtomicU64::new(insertions),
            random: AtomicU64::new(random),
            writer: RwLock::new(()),
        }
    }

    /// Its sizes.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    fn lock(&self) -> WriteGuard<'_, ()> {
        self.writer.write()
    }

    /// Whether a cell is above zero.
    #[inline(always)]
    fn above_zero<const D: usize>(&self, cell: u64) -> bool {
        let words = self.cells.words();
        let first = (cell / 64) as usize * D;
        let any =
            (0..D).rev().fold(0, |any, plane| any | words[first + plane].load(Ordering::Acquire));
        any >> (cell % 64) & 1 == 1
    }

    /// Sets a cell to Max.
    #[inline(always)]
    fn raise<const D: usize>(&self, cell: u64) {
        let block = &self.cells.words()[(cell / 64) as usize * D..][..D];
        let bit = 1 << (cell % 64);
        for ones in [true, false] {
            for (plane, word) in block.iter().enumerate() {
                let one = self.shape.max >> plane & 1 == 1;
                if one == ones {
                    let old = word.load(Ordering::Relaxed);
                    word.store(if one { old | bit } else { old & !bit }, Ordering::Release);
                }
            }
        }
    }

    /// Decrements the cells of a block that are in `mask` and above zero.
    #[inline(always)]
    fn lower<const D: usize>(&self, block: u64, mask: u64) {
        let block = &self.cells.words()[block as usize * D..][..D];
        let above = block.iter().fold(0, |any, word| any | word.load(Ordering::Relaxed));
        let mut borrow = mask & above;
        for word in block {
            let lowered = word.load(Ordering::Relaxed) ^ borrow;
            word.store(lowered, Ordering::Release);
            borrow &= lowered; // where a zero became a one, the next word lends
        }
    }

    /// Decrements the cells from `first` to before `end`.
    #[inline(always)]
    fn lower_row<const D: usize>(&self, first: u64, end: u64) {
        let mut at = first;
        while at < end {
            let block = at / 64;
            let stop = end.min(64 * (block + 1));
            let ones = u64::MAX >> (64 - (stop - at));
            self.lower::<D>(block, ones << (at % 64));
            at = stop;
        }
    }

    /// Decrements P cells, chosen by `random`.
    #[inline(always)]
    fn fade<const D: usize>(&self, random: &mut Random) {
        let Shape { cells, decrements, independent, .. } = self.shape;
        if independent {
            for _ in 0..decrements {
                let cell = reduce(random.next(), cells);
                self.lower::<D>(cell / 64, 1 << (cell % 64));
            }
            return;
        }
        let first = reduce(random.next(), cells);
        let end = first + decrements;
        self.lower_row::<D>(first, end.min(cells));
        if end > cells {
            self.lower_row::<D>(0, end - cells);
        }
    }

    /// Inserts hashes in order, and reports for each whether it was present just before.
    fn pass<const D: usize>(&self, hashes: &[Hash128], mut out: Option<&mut [bool]>) {
        let _lock = self.lock();
        let mut random = Random(self.random.load(Ordering::Relaxed));
        let words = self.cells.words().as_ptr();
        let k = self.shape.hashes as usize;
        let mut cells = [[0u64; MAX_HASHES as usize]; GROUP];
        for (i, group) in hashes.chunks(GROUP).enumerate() {
            for (&hash, cells) in group.iter().zip(&mut cells) {
                for (j, cell) in cells[..k].iter_mut().enumerate() {
                    *cell = self.shape.cell(hash, j);
                    prefetch(words.wrapping_add((*cell / 64) as usize * D));
                }
            }
            for (n, cells) in cells[..group.len()].iter().enumerate() {
                let cells = &cells[..k];
                if let Some(out) = &mut out {
                    out[i * GROUP + n] = cells.iter().all(|&cell| self.above_zero::<D>(cell));
                }
                self.fade::<D>(&mut random);
                cells.iter().for_each(|&cell| self.raise::<D>(cell));
            }
        }
        self.random.store(random.0, Ordering::Relaxed);
        let insertions = self.count().saturating_add(hashes.len() as u64);
        self.insertions.store(insertions, Ordering::Relaxed);
    }

    fn above_zero_count(&self) -> u64 {
        let planes = self.shape.planes();
        let blocks = self.cells.words().chunks_exact(planes);
        let any = |block: &[AtomicU64]| {
            block.iter().fold(0, |any, word| any | word.load(Ordering::Relaxed))
        };
        blocks.map(|block| u64::from(any(block).count_ones())).sum()
    }

    /// Opens the filter of a frame; `own` turns the section's bytes into a buffer.
    pub fn from_frame(
        head: &Head,
        sections: &[Section<'_>],
        own: impl FnOnce(&[u8]) -> Result<Buffer>,
    ) -> Result<Stable> {
        let damaged =
            |what: &str| Error::Format(format!("the stable Bloom filter is damaged: {what}"));
        let (&[cells, max, hashes, decrements, independent, random], [section]) =
            (&head.parameters[..], sections)
        else {
            return Err(damaged("it does not have six parameters and one section"));
        };
        let short = |value: u64| u32::try_from(value).map_err(|_| damaged("a size is too large"));
        if independent > 1 {
            return Err(damaged("its way to decrement counters is unknown"));
        }
        let shape = Shape::new(cells, short(max)?, short(hashes)?, decrements, independent == 1)
            .map_err(|error| error.in_frame(damaged))?;
        let as_written = (section.kind, section.piece) == (SECTION_BITS, 0);
        if !as_written || section.bytes.len() != shape.bytes() {
            return Err(damaged("its counters do not match its parameters"));
        }
        let stable = Stable::with(shape, own(section.bytes)?, head.count, random);
        if stable.beyond_max() {
            return Err(damaged("a counter is above the maximum, or past the end"));
        }
        Ok(stable)
    }

    /// Whether a counter is above Max, or one past the last is above zero.
    fn beyond_max(&self) -> bool {
        let planes = self.shape.planes();
        let rest = self.shape.cells % 64;
        let last = self.cells.len() / 8 / planes - 1;
        self.cells.words().chunks_exact(planes).enumerate().any(|(i, block)| {
            let (mut above, mut any, mut equal) = (0, 0, u64::MAX);
            for (plane, word) in block.iter().enumerate().rev() {
                let bits = word.load(Ordering::Relaxed);
                any |= bits;
                if self.shape.max >> plane & 1 == 1 {
                    equal &= bits;
                } else {
                    above |= equal & bits;
                    equal &= !bits;
                }
            }
            above != 0 || (i == last && rest != 0 && any >> rest != 0)
        })
    }
}

/// Mixed multiples of [`GOLDEN`] (SplitMix64).
struct Random(u64);

impl Random {
    #[inline(always)]
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix13(self.0)
    }
}

impl Kernel for Stable {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn contains(&self, hashes: &[Hash128], out: &mut [bool]) {
        let words = self.cells.words().as_ptr();
        let planes = self.shape.planes();
        for (hashes, out) in hashes.chunks(GROUP).zip(out.chunks_mut(GROUP)) {
            // The first cell alone: most absent keys are rejected by it or the next.
            for &hash in hashes {
                prefetch(words.wrapping_add((self.shape.cell(hash, 0) / 64) as usize * planes));
            }
            for (&hash, out) in hashes.iter().zip(out) {
                *out = self.contains_one(hash);
            }
        }
    }

    fn contains_one(&self, hash: Hash128) -> bool {
        let mut cells = (0..self.shape.hashes as usize).map(|j| self.shape.cell(hash, j));
        on_planes!(self.shape, D => cells.all(|cell| self.above_zero::<D>(cell)))
    }

    /// The number of insertions: faded keys cannot be counted.
    fn count(&self) -> u64 {
        self.insertions.load(Ordering::Relaxed)
    }

    /// Never: its rate is bounded.
    fn overfull(&self, _capacity: u64) -> bool {
        false
    }

    fn busy(&self) -> bool {
        self.writer.is_locked()
    }

    fn size_in_bits(&self) -> u64 {
        self.shape.cells * self.shape.planes() as u64
    }

    fn rate(&self) -> f64 {
        let share = self.above_zero_count() as f64 / self.shape.cells as f64;
        share.powi(self.shape.hashes as i32)
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        let _lock = self.writer.read();
        let cells = Buffer::copied(self.cells.as_slice())?;
        let random = self.random.load(Ordering::Relaxed);
        Ok(Arc::new(Stable::with(self.shape, cells, self.count(), random)))
    }

    fn content(&self) -> Result<Content<'_>> {
        let Shape { cells, max, hashes, decrements, independent } = self.shape;
        // SAFETY: the section is dropped with the lock.
        let (_, lock) = unsafe { self.writer.read().split() };
        let random = self.random.load(Ordering::Relaxed);
        let (max, hashes) = (u64::from(max), u64::from(hashes));
        let parameters = vec![cells, max, hashes, decrements, u64::from(independent), random];
        let section = Section { kind: SECTION_BITS, piece: 0, bytes: self.cells.as_slice() };
        let (count, sections) = (self.count(), vec![section.stored()]);
        Ok(Content { parameters, count, capacity: None, sections, lock: Some(lock) })
    }

    fn insert(&self, hashes: &[Hash128]) -> Result<()> {
        on_planes!(self.shape, D => self.pass::<D>(hashes, None));
        Ok(())
    }

    fn seen(&self, hashes: &[Hash128], out: &mut [bool]) -> Result<()> {
        for (hashes, out) in hashes.chunks(PIECE).zip(out.chunks_mut(PIECE)) {
            on_planes!(self.shape, D => self.pass::<D>(hashes, Some(out)));
            interrupt::check();
        }
        Ok(())
    }
}
