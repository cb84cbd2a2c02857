//! Insertions into a windowed filter, generation by generation.

use super::{GROUP, Windowed};
use crate::bits::prefetch;
use crate::hash::Hash128;
use std::sync::atomic::Ordering;

impl Windowed {
    /// Starts a generation: the oldest slice becomes the newest, empty.
    fn shift(&self) {
        let slices = self.shape.slices();
        let newest = (self.newest.load(Ordering::Relaxed) + slices - 1) % slices;
        let words = self.shape.slice_bits as usize / 64;
        let slice = &self.bits.words()[newest as usize * words..][..words];
        slice.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.counts.words()[newest as usize].store(0, Ordering::Relaxed);
        self.newest.store(newest, Ordering::Release);
    }

    /// Advances to a generation by time; does nothing for an earlier one.
    fn reach(&self, generation: u64) {
        let now = self.now.load(Ordering::Relaxed);
        if generation <= now {
            return;
        }
        if now > 0 {
            (0..(generation - now).min(self.shape.slices())).for_each(|_| self.shift());
        }
        self.now.store(generation, Ordering::Relaxed);
    }

    /// Forgets the keys that expire by a generation by time, without inserting anything.
    pub fn advance(&self, generation: u64) {
        let _lock = self.lock();
        self.reach(generation);
    }

    /// Inserts hashes of a generation by time (of the current one if 0) in order; reports for each
    /// whether it was present just before.
    pub fn pass(&self, hashes: &[Hash128], generation: u64, mut out: Option<&mut [bool]>) {
        let _lock = self.lock();
        self.reach(generation);
        let mut done = 0;
        while done < hashes.len() {
            let mut newest = self.newest.load(Ordering::Relaxed);
            let mut full = self.counts.words()[newest as usize].load(Ordering::Relaxed);
            if !self.shape.timed() && full == self.shape.generation {
                self.shift();
                newest = self.newest.load(Ordering::Relaxed);
                full = 0;
            }
            // A group ends with its generation.
            let free = if self.shape.timed() { u64::MAX } else { self.shape.generation - full };
            let group = &hashes[done..][..GROUP.min(hashes.len() - done).min(free as usize)];
            let out = out.as_deref_mut().map(|out| &mut out[done..][..group.len()]);
            self.pass_group(group, newest, out);
            let count = full.saturating_add(group.len() as u64);
            self.counts.words()[newest as usize].store(count, Ordering::Relaxed);
            done += group.len();
        }
    }

    /// Inserts up to [`GROUP`] hashes of one generation in their order.
    fn pass_group(&self, hashes: &[Hash128], newest: u64, out: Option<&mut [bool]>) {
        let words = self.bits.words();
        for &hash in hashes {
            for age in 0..self.shape.hashes {
                let position = self.shape.position(hash, self.shape.slice(newest, age));
                prefetch(words.as_ptr().wrapping_add((position / 64) as usize));
            }
        }
        let Some(out) = out else {
            for &hash in hashes {
                self.set(hash, newest);
            }
            return;
        };
        // All are looked up before any is inserted. An answer changes only if an earlier hash of
        // the group has set a bit of the hash: that hash is looked up again.
        let mut ones = [0; GROUP];
        for (ones, &hash) in ones.iter_mut().zip(hashes) {
            *ones = self.ones(hash, newest);
        }
        self.runs(hashes, newest, out);
        for ((&hash, out), ones) in hashes.iter().zip(out).zip(ones) {
            // Writers take turns, so no other one sets a bit between the two.
            let repeated = !*out && self.ones(hash, newest) != ones;
            *out = *out || (repeated && self.run(hash, newest));
            self.set(hash, newest);
        }
    }

    /// How many of the k newest slices have the bit of a hash.
    fn ones(&self, hash: Hash128, newest: u64) -> u64 {
        (0..self.shape.hashes).map(|age| u64::from(self.bit(hash, newest, age))).sum()
    }

    /// Sets the bits of a hash in the k newest slices.
    fn set(&self, hash: Hash128, newest: u64) {
        let words = self.bits.words();
        for age in 0..self.shape.hashes {
            let position = self.shape.position(hash, self.shape.slice(newest, age));
            let word = &words[(position / 64) as usize];
            word.store(word.load(Ordering::Relaxed) | 1 << (position % 64), Ordering::Relaxed);
        }
    }
}
