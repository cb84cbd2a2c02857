//! Age-partitioned Bloom filters: the most recent keys of a stream, none of which is rejected
//! (Shtul, Baquero, Almeida 2020).
//!
//! k + l slices of `slice_bits` bits in a ring, each with its own hash function. The slice of age 0
//! is the newest. A key sets one bit in each of the k newest slices. After a generation of
//! insertions (or of seconds), the oldest slice is cleared and becomes the newest, so every other
//! slice is one age older. A key may be present if k consecutive slices have its bits.
//!
//! Invariant: a key whose generation ended at most l generations ago has all of its k bits in
//! slices of consecutive ages, so it is not rejected. With g insertions per generation, this covers
//! at least the last l·g insertions. A slice is filled by k generations and stays for l more, so it
//! never holds more than k·g keys: the rate has a bound that no stream exceeds, and
//! `planning/windowed.py` chooses k, l and the bits for it.
//!
//! A query searches the run from its far end: if the slice of age i + k − 1 lacks the bit, no run
//! from i to i + k − 1 is possible, and the next candidate ends k further. Most absent keys are
//! rejected after about (k + l)/k probes of slices that are half full, not k + l. Many keys are
//! looked up in turns of one probe each ([`Search`]): the memory of a probe is loaded while the
//! others proceed, and the next step is computed without a branch, since it cannot be predicted.
//!
//! Readers take no lock: bits are atomic words. One writer at a time holds the lock. A reader
//! during a change of generation answers as before or after it.
//!
//! In reading order: `shape.rs` (sizes, positions), this file (query, the frame), `pass.rs` (insert).

mod pass;
mod shape;

pub use shape::{MAX_SLICES, Shape};

use crate::bits::{Buffer, prefetch};
use crate::error::{Error, Result};
use crate::format::{Head, SECTION_BITS, Section};
use crate::hash::Hash128;
use crate::kernel::{Content, Kernel, Kind};
use crate::lock::{RwLock, WriteGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Windowed filters.
pub static KIND: Kind = Kind {
    inserts: true,
    forgets: true,
    ..Kind::new(13, "windowed", |head, sections, opening| {
        Ok(Arc::new(Windowed::from_frame(head, sections, opening.own)?))
    })
};
/// Hashes that are looked up in turns.
const GROUP: usize = 32;

/// The state of the search for a run: from its far end, `age`, down to `low`, below which the
/// slices from `start` on are known to have their bits.
#[derive(Clone, Copy)]
struct Search {
    start: u64,
    low: u64,
    age: u64,
}

impl Search {
    fn new(shape: Shape) -> Search {
        Search { start: 0, low: 0, age: shape.hashes - 1 }
    }

    /// Records whether the slice of `age` has the bit; returns the answer once it is decided.
    #[inline(always)]
    fn step(&mut self, shape: Shape, found: bool) -> Option<bool> {
        let Search { start, low, age } = *self;
        // After a missing bit the next run begins behind it. The known slices extend to the end of
        // the previous run, at `start + k`. The last values are never read, but must name a slice.
        let next = (age + shape.hashes).min(shape.slices() - 1);
        self.start = if found { start } else { age + 1 };
        self.low = if found { low } else { start + shape.hashes };
        self.age = if found { age.saturating_sub(1) } else { next };
        let ended = if found { age == low } else { age >= shape.ages };
        ended.then_some(found)
    }
}

/// A windowed filter over hashes.
pub struct Windowed {
    shape: Shape,
    bits: Buffer,
    /// Per slice, the insertions of the generation in which it was the newest.
    counts: Buffer,
    newest: AtomicU64,
    /// The generation of the newest slice by time, or 0 before the first; always 0 if generations
    /// are counted in keys.
    now: AtomicU64,
    writer: RwLock<()>,
}

impl Windowed {
    /// An empty filter.
    pub fn new(shape: Shape) -> Result<Windowed> {
        let counts = Buffer::zeroed(8 * shape.slices() as usize)?;
        Ok(Windowed::with(shape, Buffer::zeroed(shape.bytes())?, counts, 0, 0))
    }

    fn with(shape: Shape, bits: Buffer, counts: Buffer, newest: u64, now: u64) -> Windowed {
        Windowed {
            shape,
            bits,
            counts,
            newest: AtomicU64::new(newest),
            now: AtomicU64::new(now),
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

    #[inline(always)]
    fn bit(&self, hash: Hash128, newest: u64, age: u64) -> bool {
        let position = self.shape.position(hash, self.shape.slice(newest, age));
        let word = &self.bits.words()[(position / 64) as usize];
        word.load(Ordering::Relaxed) >> (position % 64) & 1 == 1
    }

    /// Whether k consecutive slices have the bits of a hash.
    #[inline(always)]
    fn run(&self, hash: Hash128, newest: u64) -> bool {
        let mut search = Search::new(self.shape);
        loop {
            let found = self.bit(hash, newest, search.age);
            if let Some(answer) = search.step(self.shape, found) {
                return answer;
            }
        }
    }

    /// [`Windowed::run`] for up to [`GROUP`] hashes, in turns of one probe each.
    fn runs(&self, hashes: &[Hash128], newest: u64, out: &mut [bool]) {
        let words = self.bits.words();
        let place = |hash: Hash128, age: u64| {
            let position = self.shape.position(hash, self.shape.slice(newest, age));
            prefetch(words.as_ptr().wrapping_add((position / 64) as usize));
            position
        };
        let mut searches = [(Search::new(self.shape), 0, 0); GROUP];
        for (i, (&hash, search)) in hashes.iter().zip(&mut searches).enumerate() {
            (search.1, search.2) = (i, place(hash, search.0.age));
        }
        let mut left = hashes.len();
        while left > 0 {
            let mut open = 0;
            for at in 0..left {
                let (mut search, i, position) = searches[at];
                let word = words[(position / 64) as usize].load(Ordering::Relaxed);
                let ended = search.step(self.shape, word >> (position % 64) & 1 == 1);
                // Unfinished searches move to the front and overwrite finished ones.
                out[i] = ended == Some(true);
                searches[open] = (search, i, place(hashes[i], search.age));
                open += usize::from(ended.is_none());
            }
            left = open;
        }
    }

    /// Opens the filter of a frame; `own` turns a section's bytes into a buffer.
    pub fn from_frame(
        head: &Head,
        sections: &[Section<'_>],
        own: &dyn Fn(&[u8]) -> Result<Buffer>,
    ) -> Result<Windowed> {
        let damaged = |what: &str| Error::Format(format!("the windowed filter is damaged: {what}"));
        let (&[hashes, ages, slice_bits, generation, step, newest, now], [bits, counts]) =
            (&head.parameters[..], sections)
        else {
            return Err(damaged("it does not have seven parameters and two sections"));
        };
        let shape = Shape::new(hashes, ages, slice_bits, generation, f64::from_bits(step))
            .map_err(|error| error.in_frame(damaged))?;
        let as_written = [bits, counts].iter().all(|s| (s.kind, s.piece) == (SECTION_BITS, 0));
        if !as_written
            || bits.bytes.len() != shape.bytes()
            || counts.bytes.len() as u64 != 8 * shape.slices()
        {
            return Err(damaged("its slices do not match its parameters"));
        }
        if newest >= shape.slices() || (now > 0 && !shape.timed()) {
            return Err(damaged("its newest slice does not exist"));
        }
        let windowed = Windowed::with(shape, own(bits.bytes)?, own(counts.bytes)?, newest, now);
        let full = |count: &AtomicU64| count.load(Ordering::Relaxed) > shape.generation;
        if !shape.timed() && windowed.counts.words().iter().any(full) {
            return Err(damaged("a generation has too many keys"));
        }
        if windowed.count() != head.count {
            return Err(damaged("its number of keys does not match its generations"));
        }
        Ok(windowed)
    }
}

impl Kernel for Windowed {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn contains(&self, hashes: &[Hash128], out: &mut [bool]) {
        let newest = self.newest.load(Ordering::Acquire);
        for (hashes, out) in hashes.chunks(GROUP).zip(out.chunks_mut(GROUP)) {
            self.runs(hashes, newest, out);
        }
    }

    fn contains_one(&self, hash: Hash128) -> bool {
        self.run(hash, self.newest.load(Ordering::Acquire))
    }

    /// Insertions of the generations that are completely remembered.
    fn count(&self) -> u64 {
        let newest = self.newest.load(Ordering::Acquire);
        let counts = self.counts.words();
        (0..=self.shape.ages).fold(0, |sum, age| {
            let slice = self.shape.slice(newest, age) as usize;
            sum.saturating_add(counts[slice].load(Ordering::Relaxed))
        })
    }

    /// By time, a stream that is faster than planned overfills the slices. Keys come unevenly, so
    /// up to a tenth more does not warn.
    fn overfull(&self, capacity: u64) -> bool {
        let planned = capacity.saturating_add(self.shape.generation);
        self.shape.timed() && self.count() > planned.saturating_add(planned / 10)
    }

    fn busy(&self) -> bool {
        self.writer.is_locked()
    }

    fn size_in_bits(&self) -> u64 {
        self.shape.slices() * self.shape.slice_bits
    }

    /// Exact for the present bits: the probability of k consecutive slices that answer "yes".
    fn rate(&self) -> f64 {
        let newest = self.newest.load(Ordering::Acquire);
        let words = self.shape.slice_bits as usize / 64;
        let k = self.shape.hashes as usize;
        // `runs[r]`: no run of k so far, and the last r slices said "yes".
        let mut runs = vec![0.0; k];
        runs[0] = 1.0;
        let mut found = 0.0;
        for age in 0..self.shape.slices() {
            let slice = self.shape.slice(newest, age) as usize;
            let slice = &self.bits.words()[slice * words..][..words];
            let ones =
                slice.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones()));
            let yes = ones.sum::<u64>() as f64 / self.shape.slice_bits as f64;
            let open: f64 = runs.iter().sum();
            found += runs[k - 1] * yes;
            runs.rotate_right(1);
            runs.iter_mut().for_each(|share| *share *= yes);
            runs[0] = open * (1.0 - yes);
        }
        found
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        let _lock = self.writer.read();
        let bits = Buffer::copied(self.bits.as_slice())?;
        let counts = Buffer::copied(self.counts.as_slice())?;
        let (newest, now) = (self.newest.load(Ordering::Relaxed), self.now.load(Ordering::Relaxed));
        Ok(Arc::new(Windowed::with(self.shape, bits, counts, newest, now)))
    }

    fn content(&self) -> Result<Content<'_>> {
        let Shape { hashes, ages, slice_bits, generation, step } = self.shape;
        // SAFETY: the sections are dropped with the lock.
        let (_, lock) = unsafe { self.writer.read().split() };
        let (newest, now) = (self.newest.load(Ordering::Relaxed), self.now.load(Ordering::Relaxed));
        let parameters = vec![hashes, ages, slice_bits, generation, step.to_bits(), newest, now];
        let section = |bytes| Section { kind: SECTION_BITS, piece: 0, bytes }.stored();
        let sections = vec![section(self.bits.as_slice()), section(self.counts.as_slice())];
        let (count, lock) = (self.count(), Some(lock));
        Ok(Content { parameters, count, capacity: None, sections, lock })
    }

    fn insert(&self, hashes: &[Hash128]) -> Result<()> {
        self.pass(hashes, 0, None);
        Ok(())
    }

    fn seen(&self, hashes: &[Hash128], out: &mut [bool]) -> Result<()> {
        self.pass(hashes, 0, Some(out));
        Ok(())
    }
}
