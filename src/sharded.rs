//! A filter in shards: each hash belongs to one shard, and each shard is a filter.
//!
//! Shard i of S holds the hashes whose remix under a separate domain falls into the i-th of S equal
//! ranges. The shards see the hashes themselves, so a shard equals the filter built of its keys
//! alone, and an absent key belongs to each shard with probability 1/S:
//!
//! ```text
//! rate = Σ rate_i / S
//! ```
//!
//! Shards are built one by one or side by side, in memory, from disk or on other machines
//! (`split.rs`). Until all are joined, some may be missing: a filter accepts every key of a missing
//! shard, so it never rejects a key that was added; its rate includes that.

use crate::bits::reduce;
use crate::error::{Error, Result};
use crate::format::{Head, Section};
use crate::hash::Hash128;
use crate::kernel::{self, Content, Kernel, Kind, Opening};
use crate::memory::{self, TryGrow};
use std::cell::RefCell;
use std::sync::Arc;

/// Sharded filters.
pub static KIND: Kind = Kind::new(7, "sharded", |head, sections, opening| {
    Ok(Arc::new(Sharded::from_frame(head, sections, opening)?))
});
/// Maximum number of shards: each has a section in the frame, whose number has 16 bits.
pub const MAX_SHARDS: u64 = 1 << 15;
/// The domain of the remix that chooses a shard: "shard" in ASCII.
const DOMAIN: u64 = 0x73_6861_7264;

/// The shard of a hash among `shards`.
#[inline(always)]
pub fn shard_of(hash: Hash128, shards: u64) -> usize {
    reduce(hash.remix(DOMAIN).hi, shards) as usize
}

/// Hashes per shard of a batch: enough for a shard to prefetch for many of them at once.
const PER_SHARD: usize = 1 << 10;
/// Maximum number of hashes that are sorted at once: with their answers, they fit a core's caches.
const MAX_SORTED: usize = 1 << 16;

/// A batch by shard: the shard of each hash, the end of each shard's hashes, and the hashes sorted
/// by shard, with their origin and their answers.
#[derive(Default)]
struct Scratch {
    of: Vec<u16>,
    ends: Vec<usize>,
    order: Vec<u16>,
    sorted: Vec<Hash128>,
    answers: Vec<bool>,
}

thread_local! {
    /// Kept for the next batch: allocating a megabyte for each took longer than the sorting. A
    /// shard is never sharded itself, so it is not borrowed twice.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Whether a shard may be of this kind: any but this one, which no other kind holds.
fn may_be(kind: &Kind) -> bool {
    kind.number != KIND.number
}

/// Filters of one kind, one per range of hashes.
pub struct Sharded {
    shards: Vec<Arc<dyn Kernel>>,
    /// Which shards are present, in ascending order.
    present: Vec<usize>,
}

impl Sharded {
    /// Joins shards, each with its index among `total`; at least one, each at most once.
    pub fn new(total: u64, mut shards: Vec<(usize, Arc<dyn Kernel>)>) -> Result<Sharded> {
        if !(1..=MAX_SHARDS).contains(&total) {
            let message = format!("shards must be from 1 to {MAX_SHARDS}, not {total}");
            return Err(Error::Parameter(message));
        }
        shards.sort_unstable_by_key(|(index, _)| *index);
        let present = memory::collected(shards.iter().map(|(index, _)| *index))?;
        let twice = present.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        let outside = present.last().copied().filter(|&last| last as u64 >= total);
        if let Some(index) = outside.or(twice) {
            let how = if outside.is_some() { "does not exist" } else { "is given twice" };
            return Err(Error::Parameter(format!("shard {index} of {total} {how}")));
        }
        let Some(kind) = shards.first().map(|(_, shard)| shard.kind().number) else {
            return Err(Error::Parameter("shards is empty; pass at least one".into()));
        };
        let other = |(_, shard): &(usize, Arc<dyn Kernel>)| {
            !may_be(shard.kind()) || shard.kind().number != kind
        };
        if shards.iter().any(other) {
            return Err(Error::Parameter(
                "shards must be of one kind, and not Sharded themselves".into(),
            ));
        }
        // A saver locks all shards at once, and none of them twice.
        let address = |shard: &Arc<dyn Kernel>| Arc::as_ptr(shard).addr();
        let mut known = memory::with_capacity(shards.len())?;
        for (_, shard) in &mut shards {
            match known.binary_search(&address(shard)) {
                Ok(_) => *shard = shard.copy()?,
                Err(place) => known.insert(place, address(shard)),
            }
        }
        let mut all: Vec<Arc<dyn Kernel>> = memory::with_capacity(total as usize)?;
        all.resize_with(total as usize, || Arc::new(Missing));
        shards.into_iter().for_each(|(index, shard)| all[index] = shard);
        Ok(Sharded { shards: all, present })
    }

    /// The number of shards, including missing ones.
    pub fn total(&self) -> usize {
        self.shards.len()
    }

    /// The shards that are present, each with its index.
    pub fn present(&self) -> impl Iterator<Item = (usize, &Arc<dyn Kernel>)> {
        self.present.iter().map(|&index| (index, &self.shards[index]))
    }

    /// Answers a batch by shard, or nothing if there is no memory to sort it.
    fn contains_sorted(
        &self,
        hashes: &[Hash128],
        out: &mut [bool],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let (count, len) = (self.shards.len(), hashes.len());
        let Scratch { of, ends, order, sorted, answers } = scratch;
        of.clear();
        of.try_append(hashes.iter().map(|&hash| shard_of(hash, count as u64) as u16))?;
        // First the number of hashes of each shard, two places after it; then their start, at the
        // next place, which moves to their end as they are placed.
        ends.clear();
        ends.try_resize(count + 2, 0)?;
        of.iter().for_each(|&shard| ends[usize::from(shard) + 2] += 1);
        (2..count + 2).for_each(|at| ends[at] += ends[at - 1]);
        order.try_resize(order.len().max(len), 0)?;
        sorted.try_resize(sorted.len().max(len), Hash128::default())?;
        answers.try_resize(answers.len().max(len), false)?;
        for ((i, &hash), &shard) in (0..=u16::MAX).zip(hashes).zip(&*of) {
            let place = &mut ends[usize::from(shard) + 1];
            (order[*place], sorted[*place]) = (i, hash);
            *place += 1;
        }
        let mut shards = self.shards.iter().zip(ends.windows(2)).peekable();
        while let Some((shard, range)) = shards.next() {
            // Otherwise each shard would begin by waiting for memory.
            if let Some((next, range)) = shards.peek() {
                next.fetch(&sorted[range[0]..range[1]]);
            }
            if range[0] < range[1] {
                shard.contains(&sorted[range[0]..range[1]], &mut answers[range[0]..range[1]]);
            }
        }
        for (&i, &answer) in order[..len].iter().zip(&*answers) {
            out[usize::from(i)] = answer;
        }
        Ok(())
    }

    /// Opens the filter of a frame: each section is the frame of a shard.
    pub fn from_frame(
        head: &Head,
        sections: &[Section<'_>],
        opening: &Opening<'_>,
    ) -> Result<Sharded> {
        let damaged = |what: &str| Error::Format(format!("the sharded filter is damaged: {what}"));
        let (total, present): (u64, Vec<usize>) = match &head.parameters[..] {
            [] => return Err(damaged("it has no parameters")),
            &[total] => (total, memory::collected(0..sections.len())?),
            [total, present @ ..] => {
                (*total, memory::collected(present.iter().map(|&i| i as usize))?)
            }
        };
        let all_shards = head.parameters.len() == 1;
        if present.len() != sections.len() || all_shards != (sections.len() as u64 == total) {
            return Err(damaged("its number of shards does not match its parameters"));
        }
        if present.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(damaged("its shards are not in order"));
        }
        let open = |(&index, section): (&usize, &Section<'_>)| {
            let shard = opening.nested(section, may_be)?;
            Result::Ok((index, shard.ok_or_else(|| damaged("a shard is not a filter"))?))
        };
        let shards = memory::collected_ok(present.iter().zip(sections).map(open))?;
        let sharded = Sharded::new(total, shards).map_err(|error| error.in_frame(damaged))?;
        if sharded.count() != head.count {
            return Err(damaged("its number of keys does not match its shards"));
        }
        Ok(sharded)
    }
}

impl Kernel for Sharded {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    /// Sorts the hashes by shard, so that each shard answers a batch of its own.
    fn contains(&self, hashes: &[Hash128], out: &mut [bool]) {
        if let [only] = &self.shards[..] {
            return only.contains(hashes, out);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            for (hashes, out) in hashes.chunks(MAX_SORTED).zip(out.chunks_mut(MAX_SORTED)) {
                if self.contains_sorted(hashes, out, scratch).is_err() {
                    let each = out.iter_mut().zip(hashes);
                    each.for_each(|(out, &hash)| *out = self.contains_one(hash));
                }
            }
        });
    }

    fn batch(&self) -> usize {
        (self.shards.len() * PER_SHARD).min(MAX_SORTED)
    }

    fn contains_one(&self, hash: Hash128) -> bool {
        self.shards[shard_of(hash, self.shards.len() as u64)].contains_one(hash)
    }

    fn count(&self) -> u64 {
        self.shards.iter().fold(0, |sum, shard| sum.saturating_add(shard.count()))
    }

    fn size_in_bits(&self) -> u64 {
        self.shards.iter().map(|shard| shard.size_in_bits()).sum()
    }

    fn rate(&self) -> f64 {
        self.shards.iter().map(|shard| shard.rate()).sum::<f64>() / self.shards.len() as f64
    }

    fn unseen_rate(&self) -> f64 {
        let sum: f64 = self.shards.iter().map(|shard| shard.unseen_rate()).sum();
        sum / self.shards.len() as f64
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        let shards = memory::collected_ok(self.shards.iter().map(|shard| shard.copy()))?;
        Ok(Arc::new(Sharded { shards, present: memory::copied(&self.present)? }))
    }

    fn content(&self) -> Result<Content<'_>> {
        let count = self.count(); // before the shards are locked
        let shards = self.present().map(|(_, shard)| kernel::nested(&**shard));
        let sections = memory::collected_ok(shards)?;
        let mut parameters = vec![self.total() as u64];
        if self.present.len() < self.total() {
            parameters.try_append(self.present.iter().map(|&index| index as u64))?;
        }
        Ok(Content { parameters, count, capacity: None, sections, lock: None })
    }
}

/// A shard that is not present: it may hold any key.
struct Missing;

impl Kernel for Missing {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn contains(&self, _hashes: &[Hash128], out: &mut [bool]) {
        out.fill(true);
    }

    fn count(&self) -> u64 {
        0
    }

    fn size_in_bits(&self) -> u64 {
        0
    }

    fn rate(&self) -> f64 {
        1.0
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        Ok(Arc::new(Missing))
    }

    /// Never saved: [`Sharded`] saves the shards that are present.
    fn content(&self) -> Result<Content<'_>> {
        Err(Error::Parameter("a missing shard cannot be saved".into()))
    }
}
