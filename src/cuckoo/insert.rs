//! Insertion into full buckets: the shortest path to a free slot is found first, then fingerprints
//! move.
//!
//! Every fingerprint in a full bucket could move to its other bucket, the fingerprints there to
//! theirs, and so on. Breadth-first search over the buckets of the chunk finds the fewest moves
//! that end in a free slot. It marks visited buckets, so it ends, and it fails only if every
//! reachable bucket is full: then these buckets hold only keys that have no others, and no
//! arrangement can hold one more (Hall's condition). Nothing moves before a path is found, so a
//! failed insertion leaves every byte unchanged.

use super::bucket::{SLOTS, Slots, Word};
use super::shape::Shape;
use crate::error::Result;
use crate::memory::TryGrow;

/// A full bucket on the path, and how it was reached.
struct Visit {
    bucket: u64,
    /// The index of the previous visit, and its slot whose fingerprint would move here.
    from: usize,
    slot: u32,
}

/// The memory of a search, kept for the next one.
#[derive(Default)]
pub struct Search {
    visits: Vec<Visit>,
    seen: Vec<u64>,
}

impl Search {
    /// Whether this is the first visit of a bucket in this search; records the visit.
    #[inline(always)]
    fn is_first_visit(&mut self, bucket: u64) -> bool {
        let (word, bit) = (&mut self.seen[(bucket / 64) as usize], 1 << (bucket % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// The number of buckets from the last visit back to a root.
    fn path_length(&self) -> usize {
        let before = |visit: &&Visit| self.visits.get(visit.from);
        std::iter::successors(self.visits.last(), before).count()
    }

    /// Clears the visited buckets, in time proportional to their number.
    fn forget(&mut self) {
        for visit in self.visits.drain(..) {
            self.seen[(visit.bucket / 64) as usize] = 0;
        }
    }
}

/// The undo log of a batch: every slot that changed, and its old content.
pub trait Journal {
    /// Called before anything changes, with the number of slots that will.
    fn reserve(&mut self, count: usize) -> Result<()>;
    /// Called before a slot changes, with its old content.
    fn record(&mut self, bucket: u64, slot: u32, old: u32);
}

/// For insertions that need not be undone.
impl Journal for () {
    #[inline(always)]
    fn reserve(&mut self, _count: usize) -> Result<()> {
        Ok(())
    }

    #[inline(always)]
    fn record(&mut self, _bucket: u64, _slot: u32, _old: u32) {}
}

/// A chunk to insert into: its bytes and at least one word more.
pub struct Chunk<'a, W> {
    pub slots: Slots<W>,
    pub shape: &'a Shape,
    pub bytes: &'a mut [u8],
}

impl<W: Word> Chunk<'_, W> {
    #[inline(always)]
    fn bucket(&self, bucket: u64) -> W {
        self.slots.bucket(self.bytes, self.slots.start(bucket))
    }

    /// Puts a fingerprint into the emptier of its two buckets; returns whether it fits.
    #[inline(always)]
    pub fn insert(
        &mut self,
        pair: [u64; 2],
        fingerprint: u32,
        search: &mut Search,
        journal: &mut impl Journal,
    ) -> Result<bool> {
        let slots = self.slots;
        let [here, there] = pair.map(|bucket| slots.empty(self.bucket(bucket)));
        // Buckets fill from the first slot on, so more free slots give a larger number.
        let (target, marks) = if here >= there { (pair[0], here) } else { (pair[1], there) };
        if let Some(slot) = slots.first(marks) {
            journal.reserve(1)?;
            journal.record(target, slot, 0);
            slots.set(self.bytes, slots.start(target), slot, fingerprint);
            return Ok(true);
        }
        let mut found = self.find(pair, search);
        if let Ok(Some(free)) = found {
            match journal.reserve(search.path_length()) {
                Ok(()) => self.move_along(&search.visits, free, fingerprint, journal),
                Err(error) => found = Err(error),
            }
        }
        search.forget();
        Ok(found?.is_some())
    }

    /// The free slot at the end of the shortest path from two full buckets; the visits lead there.
    fn find(&self, roots: [u64; 2], search: &mut Search) -> Result<Option<u32>> {
        let (slots, shape) = (self.slots, self.shape);
        search.seen.try_resize(shape.buckets.div_ceil(64) as usize, 0)?;
        search.visits.reserve_more(roots.len())?;
        for bucket in roots {
            search.is_first_visit(bucket);
            search.visits.push(Visit { bucket, from: usize::MAX, slot: 0 });
        }
        let mut at = 0;
        while let Some(&Visit { bucket, .. }) = search.visits.get(at) {
            let content = self.bucket(bucket);
            // Before buckets are marked: only visits are cleared.
            search.visits.reserve_more(SLOTS as usize)?;
            for slot in slots.all() {
                let next = shape.other(bucket, slots.get(content, slot));
                if !search.is_first_visit(next) {
                    continue;
                }
                search.visits.push(Visit { bucket: next, from: at, slot });
                let free = slots.first(slots.empty(self.bucket(next)));
                if free.is_some() {
                    return Ok(free);
                }
            }
            at += 1;
        }
        Ok(None)
    }

    /// From the free slot at the last visit back to a root, each fingerprint on the path moves one
    /// bucket on, and the new one takes the slot left free. No bucket is on the path twice.
    fn move_along(
        &mut self,
        visits: &[Visit],
        free: u32,
        fingerprint: u32,
        journal: &mut impl Journal,
    ) {
        let slots = self.slots;
        let (mut at, mut free, mut old) = (visits.len() - 1, free, 0);
        loop {
            let Visit { bucket, from, slot } = visits[at];
            journal.record(bucket, free, old);
            let Some(previous) = visits.get(from) else {
                return slots.set(self.bytes, slots.start(bucket), free, fingerprint);
            };
            old = slots.get(self.bucket(previous.bucket), slot);
            slots.set(self.bytes, slots.start(bucket), free, old);
            (at, free) = (from, slot);
        }
    }
}
