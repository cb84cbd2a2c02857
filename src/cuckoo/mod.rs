//! Cuckoo filters (Fan, Andersen, Kaminsky, Mitzenmacher 2014) of any size, with the close pairs
//! of buckets of the vacuum filter (Wang, Zhou, Shi, Qian 2019).
//!
//! A table of buckets with four slots of f bits. A key has a fingerprint v from 1 to V = 2^f − 1
//! (zero is an empty slot) and two buckets; the filter is the multiset of the fingerprints of its
//! keys.
//!
//! Invariant: for every inserted key its fingerprint is in one of its two buckets, once for every
//! time that it was inserted.
//!
//! **Two buckets from one.** A fingerprint must find its other bucket without its key. The table is
//! split into chunks of L buckets, L even, which no key leaves, and a chunk into ranges. In a range
//! of s buckets numbered from 0, s even, the numbers of the two buckets of v add up, mod s, to an
//! odd number that depends on v alone:
//!
//! ```text
//! bucket + other ≡ 2·⌊(v·φ mod 2³²)·(s/2) / 2³²⌋ + 1   (mod s),   φ = ⌊2³²/golden ratio⌋
//! ```
//!
//! which is its own inverse for every s, not only for powers of two. The sum is odd, so the two are
//! never the same bucket. Odd fingerprints have the chunk as their range; even ones a near range of
//! 2^near buckets, a few cache lines (the last range also takes the remainder of the chunk).
//!
//! **Rate.** A fingerprint and its pair of buckets are all that the filter knows of a key: one of
//! B·V/2 identities for B buckets, all equally likely. An absent key is a false positive if its
//! identity is stored, so the false-positive rate is, exactly,
//!
//! ```text
//! α = distinct / (B·V/2)
//! ```
//!
//! **Truncation** (Mersy, Wang, Sintos, Krishnan 2024, section 6). A slot may keep only the highest
//! bits of its fingerprint. A key's hash still gives all f bits, so its two buckets are the same
//! and it is found. But a slot no longer determines its other bucket, so nothing can be added, nor
//! its key, so nothing can be removed. α is then the mean over all buckets and fingerprints of
//! whether the kept bits are in either bucket.
//!
//! In reading order: `shape.rs` (sizes, a key's buckets), `bucket.rs` (four slots in a word), this
//! file (query, remove, truncation, rate), `insert.rs` (insertion by moving fingerprints),
//! `build.rs` (from distinct hashes, chunk by chunk), `shared.rs` (threads; untrusted bytes).

mod bucket;
mod build;
mod insert;
mod shape;
mod shared;
#[cfg(test)]
mod tests;

pub use shape::{Address, MAX_BITS, Shape};
pub use shared::{Cuckoo, KIND};

use crate::bits::{Buffer, prefetch};
use crate::error::{Error, Result};
use crate::hash::Hash128;
use crate::memory::TryGrow;
use bucket::{Slots, Word};
use insert::{Chunk, Journal, Search};

/// Keys that are looked up together: all their buckets are prefetched before the first is read.
/// More than a core has cache misses in flight.
const TOGETHER: usize = 32;

/// Samples taken to compute the rate of a truncated filter, and the minimum per slot: the error
/// falls with the root of the first.
const SAMPLES: u64 = 1 << 20;
const MIN_SAMPLES: u64 = 4;

/// Evaluates an expression with the name bound to the narrowest word that holds a bucket.
macro_rules! on_width {
    ($shape:expr, $word:ident => $work:expr) => {
        if $shape.narrow() {
            type $word = u64;
            $work
        } else {
            type $word = u128;
            $work
        }
    };
}
use on_width;

/// A multiset of fingerprints.
pub struct Table {
    shape: Shape,
    slots: Buffer,
    /// Slots in use.
    count: u64,
    search: Search,
}

/// The changes of a batch: the first bit of a bucket, a slot and its old content.
pub type Changes = Vec<(u64, u32, u32)>;

/// Notes the changes of one chunk.
struct UndoLog<'a, W> {
    changes: &'a mut Changes,
    slots: Slots<W>,
    /// The first bucket of the chunk.
    first: u64,
}

impl<W: Word> Journal for UndoLog<'_, W> {
    #[inline(always)]
    fn reserve(&mut self, count: usize) -> Result<()> {
        self.changes.reserve_more(count)
    }

    #[inline(always)]
    fn record(&mut self, bucket: u64, slot: u32, old: u32) {
        self.changes.push((self.slots.start(self.first + bucket), slot, old));
    }
}

impl Table {
    fn over(shape: Shape, slots: Buffer, count: u64) -> Table {
        Table { shape, slots, count, search: Search::default() }
    }

    /// An empty table.
    pub fn new(shape: Shape) -> Result<Table> {
        Ok(Table::over(shape, Buffer::zeroed(shape.bytes())?, 0))
    }

    /// Its sizes.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The number of keys inserted and not removed.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether a key may have been inserted.
    pub fn contains(&self, hash: Hash128) -> bool {
        on_width!(self.shape, W => {
            let slots = Slots::<W>::new(self.shape.kept);
            self.matches(slots, self.starts(slots, hash))
        })
    }

    /// [`Table::contains`] for each hash, into `out` at the same index.
    pub fn contains_batch(&self, hashes: &[Hash128], out: &mut [bool]) {
        on_width!(self.shape, W => self.contains_batch_in::<W>(hashes, out))
    }

    fn contains_batch_in<W: Word>(&self, hashes: &[Hash128], out: &mut [bool]) {
        let slots = Slots::<W>::new(self.shape.kept);
        let mut pairs = [(0, 0, 0); TOGETHER];
        for (hashes, out) in hashes.chunks(TOGETHER).zip(out.chunks_mut(TOGETHER)) {
            for (pair, &hash) in pairs.iter_mut().zip(hashes) {
                *pair = self.starts(slots, hash);
                self.prefetch(*pair);
            }
            for (out, &pair) in out.iter_mut().zip(&pairs) {
                *out = self.matches(slots, pair);
            }
        }
    }

    /// The starts of the two buckets of a key, and the stored part of its fingerprint.
    #[inline(always)]
    fn starts<W: Word>(&self, slots: Slots<W>, hash: Hash128) -> (u64, u64, u32) {
        let Address { chunk, bucket, fingerprint } = self.shape.address(hash);
        let start = chunk * self.shape.buckets;
        let other = self.shape.other(bucket, fingerprint);
        (slots.start(start + bucket), slots.start(start + other), self.shape.held(fingerprint))
    }

    #[inline(always)]
    fn prefetch(&self, (first, other, _): (u64, u64, u32)) {
        for start in [first, other] {
            prefetch(self.slots.as_slice().as_ptr().wrapping_add((start / 8) as usize));
        }
    }

    #[inline(always)]
    fn matches<W: Word>(&self, slots: Slots<W>, pair: (u64, u64, u32)) -> bool {
        let (first, other, fingerprint) = pair;
        let bytes = self.slots.as_slice();
        let marks = slots.matching(slots.bucket(bytes, first), fingerprint)
            | slots.matching(slots.bucket(bytes, other), fingerprint);
        marks != W::from(0)
    }

    /// Inserts hashes: all of them, or none, with every byte unchanged.
    pub fn insert(&mut self, hashes: &[Hash128]) -> Result<()> {
        // A single key fails before anything moves; only a batch can leave something to undo.
        if hashes.len() == 1 {
            return self.insert_recorded(hashes, None);
        }
        let (mut changes, count) = (Changes::new(), self.count);
        let inserted = self.insert_recorded(hashes, Some(&mut changes));
        if inserted.is_err() {
            self.undo(changes, count);
        }
        inserted
    }

    /// Inserts hashes up to the first that does not fit, and records the changes for undo.
    pub fn insert_recorded(
        &mut self,
        hashes: &[Hash128],
        changes: Option<&mut Changes>,
    ) -> Result<()> {
        self.check_whole("additions")?;
        on_width!(self.shape, W => self.insert_in::<W>(hashes, changes))
    }

    /// Undoes the insertions since the table had `count` keys.
    pub fn undo(&mut self, changes: Changes, count: u64) {
        on_width!(self.shape, W => {
            let slots = Slots::<W>::new(self.shape.kept);
            let bytes = self.slots.as_mut_slice();
            for (start, slot, old) in changes.into_iter().rev() {
                slots.set(bytes, start, slot, old);
            }
        });
        self.count = count;
    }

    fn insert_in<W: Word>(
        &mut self,
        hashes: &[Hash128],
        mut changes: Option<&mut Changes>,
    ) -> Result<()> {
        let slots = Slots::<W>::new(self.shape.kept);
        let mut pairs = [(0, [0, 0], 0); TOGETHER];
        for hashes in hashes.chunks(TOGETHER) {
            for (pair, &hash) in pairs.iter_mut().zip(hashes) {
                let Address { chunk, bucket, fingerprint } = self.shape.address(hash);
                let other = self.shape.other(bucket, fingerprint);
                let start = chunk * self.shape.buckets;
                self.prefetch((slots.start(start + bucket), slots.start(start + other), 0));
                *pair = (chunk, [bucket, other], fingerprint);
            }
            for &(chunk, pair, fingerprint) in &pairs[..hashes.len()] {
                let from = self.shape.chunk_bytes() * chunk as usize;
                let end = from + self.shape.chunk_bytes() + self.shape.tail();
                let bytes = &mut self.slots.as_mut_slice()[from..end];
                let mut target = Chunk { slots, shape: &self.shape, bytes };
                let inserted = match &mut changes {
                    Some(changes) => {
                        let first = chunk * self.shape.buckets;
                        let mut noted = UndoLog { changes, slots, first };
                        target.insert(pair, fingerprint, &mut self.search, &mut noted)
                    }
                    None => target.insert(pair, fingerprint, &mut self.search, &mut ()),
                };
                if !inserted? {
                    return Err(self.full(self.count));
                }
                self.count += 1;
            }
        }
        Ok(())
    }

    /// Refuses to change a truncated table.
    fn check_whole(&self, what: &str) -> Result<()> {
        let Shape { bits, kept, .. } = self.shape;
        if kept == bits {
            return Ok(());
        }
        Err(Error::Parameter(format!(
            "the filter was truncated from {bits} bits of each fingerprint to {kept}, so it does not \
             support {what}; change the original filter"
        )))
    }

    /// The error for a key that did not fit when this many slots were in use.
    fn full(&self, used: u64) -> Error {
        Error::Capacity(format!(
            "the key does not fit: its buckets are full, and moving other keys frees no slot \
             ({used} of {} slots are in use); build a filter with more capacity",
            self.shape.slots()
        ))
    }

    /// Removes one copy of a key's fingerprint; [`Error::Absent`] if it was surely never inserted.
    pub fn remove(&mut self, hash: Hash128) -> Result<()> {
        self.check_whole("removals")?;
        on_width!(self.shape, W => self.remove_in::<W>(hash))
    }

    fn remove_in<W: Word>(&mut self, hash: Hash128) -> Result<()> {
        let slots = Slots::<W>::new(self.shape.kept);
        let (first, other, fingerprint) = self.starts(slots, hash);
        for start in [first, other] {
            let content = slots.bucket(self.slots.as_slice(), start);
            if let Some(slot) = slots.first(slots.matching(content, fingerprint)) {
                slots.set(self.slots.as_mut_slice(), start, slot, 0);
                self.count -= 1;
                return Ok(());
            }
        }
        Err(Error::Absent("the key is not in the filter".into()))
    }

    /// The same keys with fewer bits of each fingerprint, from 1 on.
    pub fn truncated(&self, kept: u32) -> Result<Table> {
        let shape = self.shape.truncated(kept)?;
        let mut table = Table::over(shape, Buffer::zeroed(shape.bytes())?, self.count);
        on_width!(self.shape, From => on_width!(shape, To => self.cut::<From, To>(&mut table)));
        Ok(table)
    }

    fn cut<From: Word, To: Word>(&self, table: &mut Table) {
        let from = Slots::<From>::new(self.shape.kept);
        let to = Slots::<To>::new(table.shape.kept);
        let cut = self.shape.kept - table.shape.kept;
        let bytes = table.slots.as_mut_slice();
        for bucket in 0..self.shape.chunks * self.shape.buckets {
            let content = from.bucket(self.slots.as_slice(), from.start(bucket));
            for (old, new) in from.all().into_iter().zip(to.all()) {
                let held = from.get(content, old);
                if held != 0 {
                    to.set(bytes, to.start(bucket), new, (held >> cut).max(1));
                }
            }
        }
    }

    /// α: the fraction of absent keys that are accepted. Exact, except for a filter truncated by
    /// many bits, where it is estimated from a sample of the bits that were cut off.
    pub fn rate(&self) -> f64 {
        let identities = on_width!(self.shape, W => self.identities::<W>());
        let buckets = self.shape.chunks * self.shape.buckets;
        identities / (buckets as f64 * self.shape.fingerprints() as f64 / 2.0)
    }

    /// The number of accepted identities: of the different fingerprints in each bucket. An identity
    /// that is also in its other bucket counts half in each.
    fn identities<W: Word>(&self) -> f64 {
        let slots = Slots::<W>::new(self.shape.kept);
        let bytes = self.slots.as_slice();
        let max = (SAMPLES / self.shape.slots()).max(MIN_SAMPLES);
        let mut halves = 0.0;
        for chunk in 0..self.shape.chunks {
            let start = chunk * self.shape.buckets;
            for bucket in 0..self.shape.buckets {
                let content = slots.bucket(bytes, slots.start(start + bucket));
                for slot in slots.all() {
                    let held = slots.get(content, slot);
                    let first = slots.first(slots.matching(content, held)) == Some(slot);
                    if held == 0 || !first {
                        continue;
                    }
                    let again = |fingerprint| {
                        let other = slots.start(start + self.shape.other(bucket, fingerprint));
                        slots.matching(slots.bucket(bytes, other), held) != W::from(0)
                    };
                    let (count, some) = self.shape.standing_for(held, max);
                    let met = some.filter(|&fingerprint| again(fingerprint)).count() as f64;
                    halves += 2.0 * count as f64 - met * (count as f64 / count.min(max) as f64);
                }
            }
        }
        halves / 2.0
    }

    /// The number of used slots, counted.
    fn used<W: Word>(&self) -> u64 {
        let slots = Slots::<W>::new(self.shape.kept);
        let buckets = 0..self.shape.chunks * self.shape.buckets;
        let bytes = self.slots.as_slice();
        let free = |bucket| slots.empty(slots.bucket(bytes, slots.start(bucket))).ones();
        self.shape.slots() - buckets.map(|bucket| u64::from(free(bucket))).sum::<u64>()
    }
}
