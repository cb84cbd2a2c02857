//! Large batches for a large filter, in the order of its memory.
//!
//! A filter that fits no cache is limited by memory: every key reads a few lines at random. But
//! many keys of a large batch need the same lines, or neighbours. So the hashes are first collected
//! by the part of the memory that they need ([`Kernel::places`]), in parts that fit the caches.
//! Each part is read sequentially, which is several times as fast as line by line, and then answers
//! its hashes. Answers do not depend on the order.

use crate::bits::{reduce, zeros};
use crate::hash::Hash128;
use crate::kernel::Kernel;
use crate::memory;

/// Filters up to this many bytes are roughly in the last-level cache.
const CACHED: u64 = 1 << 25;
/// Bytes of a part.
const PART: u64 = 5 << 19;
/// Maximum number of hashes that wait: 40 MiB with their indices.
const MAX_WAITING: usize = 1 << 21;
/// Minimum number of hashes per part: for fewer, reading all of it does not pay.
const MIN_PER_PART: usize = 1 << 12;
/// Hashes whose places are computed at a time.
const CHUNK: usize = 1 << 10;

/// Hashes that wait for answers, by the part of the memory that they need.
pub struct Ordered<'a> {
    kernel: &'a dyn Kernel,
    /// The number of hashes that wait for each part, and the limit per part.
    waiting: Vec<usize>,
    capacity: usize,
    /// The number of hashes since all parts were answered, and the limit after which they are.
    taken: usize,
    limit: usize,
    hashes: Vec<Hash128>,
    indices: Vec<u32>,
    answers: Vec<bool>,
}

impl Ordered<'_> {
    /// For a batch of this many hashes, or `None` if it is best answered in its own order.
    pub fn new(kernel: &dyn Kernel, count: usize) -> Option<Ordered<'_>> {
        let bytes = kernel.size_in_bits() / 8;
        let (parts, limit) = (usize::try_from(bytes / PART).ok()?, count.min(MAX_WAITING));
        let worth = bytes > CACHED && limit / parts >= MIN_PER_PART;
        if !worth || u32::try_from(count).is_err() {
            return None;
        }
        Ordered::in_parts(kernel, parts, limit)
    }

    /// With this many parts, for up to `limit` hashes at a time; `None` if the places of a hash are
    /// scattered, or memory is missing.
    fn in_parts(kernel: &dyn Kernel, parts: usize, limit: usize) -> Option<Ordered<'_>> {
        if !kernel.places(&[], &mut []) {
            return None;
        }
        // With some slack, few parts are full before the others.
        let capacity = limit / parts + limit / parts / 8 + 1;
        Some(Ordered {
            kernel,
            waiting: memory::filled(parts, 0).ok()?,
            capacity,
            taken: 0,
            limit,
            hashes: zeros(parts * capacity).ok()?,
            indices: zeros(parts * capacity).ok()?,
            answers: memory::filled(capacity, false).ok()?,
        })
    }

    /// Adds the hashes whose answers belong at `first` and after it; may write some answers.
    pub fn ask(&mut self, first: usize, hashes: &[Hash128], out: &mut [bool]) {
        let (mut places, parts) = ([0; CHUNK], self.waiting.len() as u64);
        for (first, hashes) in (first..).step_by(CHUNK).zip(hashes.chunks(CHUNK)) {
            self.kernel.places(hashes, &mut places[..hashes.len()]);
            for ((index, &hash), &place) in (first as u32..).zip(hashes).zip(&places) {
                let part = reduce(place, parts) as usize;
                let at = part * self.capacity + self.waiting[part];
                (self.hashes[at], self.indices[at]) = (hash, index);
                self.waiting[part] += 1;
                if self.waiting[part] == self.capacity {
                    self.answer(part, out);
                }
            }
            self.taken += hashes.len();
            if self.taken >= self.limit {
                self.answer_all(out);
            }
        }
    }

    /// Writes all remaining answers, in the order of the memory: threads that do so at the same
    /// time share the last-level cache.
    pub fn answer_all(&mut self, out: &mut [bool]) {
        (0..self.waiting.len()).for_each(|part| self.answer(part, out));
        self.taken = 0;
    }

    fn answer(&mut self, part: usize, out: &mut [bool]) {
        let waiting = std::mem::take(&mut self.waiting[part]);
        if waiting == 0 {
            return;
        }
        let all = part * self.capacity..part * self.capacity + waiting;
        let answers = &mut self.answers[..waiting];
        self.kernel.preload(part, self.waiting.len());
        self.kernel.contains(&self.hashes[all.clone()], answers);
        for (&index, &answer) in self.indices[all].iter().zip(&*answers) {
            out[index as usize] = answer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuckoo::{self, Cuckoo};
    use crate::distinct::{Distinct, Partitions};
    use crate::fuse::{self, Fuse};
    use crate::hash::Hasher;
    use crate::quotient::Growing;
    use crate::ribbon::{self, Ribbon, Sizes};
    use crate::telescoping::{self, Mode, Shared};
    use std::sync::Arc;

    const KEYS: i64 = 5000;

    fn kernels(keys: &Distinct) -> Vec<Arc<dyn Kernel>> {
        let mut all: Vec<Arc<dyn Kernel>> = Vec::new();
        for arity in [3, 4] {
            let shape = fuse::Shape::new(arity, 7, 1500, 5).unwrap();
            all.push(Arc::new(Fuse::build(shape, keys, 1).unwrap()));
        }
        // Far too small, so that a later attempt is used.
        let shape = fuse::Shape::new(3, 7, 500, 10).unwrap();
        let fuse = Fuse::build(shape, keys, 1).unwrap();
        assert!(fuse.attempts() > 1);
        all.push(Arc::new(fuse));
        for layout in [ribbon::Layout::Interleaved, ribbon::Layout::Columns] {
            for share in [0, 1 << 31] {
                let sizes = Sizes { columns: 7, share, levels: &[4672, 256], ..Sizes::default() };
                all.push(Arc::new(Ribbon::build(layout, sizes, keys).unwrap()));
            }
        }
        let shape = cuckoo::Shape::new(3, 500, 9, 3).unwrap();
        all.push(Arc::new(Cuckoo::build(shape, keys, 1).unwrap()));
        all.push(Arc::new(Growing::build(5400, 7, keys, 0).unwrap()));
        let layout = telescoping::Layout::Growing;
        all.push(Arc::new(Shared::build(5400, 7, layout, Mode::Telescoping, keys).unwrap()));
        all
    }

    /// Few hashes in a part or many, more than its capacity, the same one repeatedly, and more than
    /// the limit.
    #[test]
    fn order_does_not_change_answers() {
        let hasher = Hasher::seeded(5);
        let hashes: Vec<Hash128> = (0..2 * KEYS).map(|key| hasher.signed(key)).collect();
        let mut partitions = Partitions::new(KEYS as usize, KEYS as usize).unwrap();
        partitions.extend(&hashes[..KEYS as usize]);
        let keys = Distinct::new(vec![partitions], 1).unwrap();
        let mixed: Vec<Hash128> =
            (0..20_000).map(|i| hashes[(i * 7919 % hashes.len()) >> (i % 5 * 3)]).collect();
        for kernel in kernels(&keys) {
            let mut expected = vec![false; mixed.len()];
            kernel.contains(&mixed, &mut expected);
            assert!(expected.iter().any(|&yes| yes) && !expected.iter().all(|&yes| yes));
            for (parts, limit) in [(1, 100), (7, 3000), (64, 20_000), (500, 50_000)] {
                let mut out = vec![false; mixed.len()];
                let mut ordered = Ordered::in_parts(&*kernel, parts, limit).unwrap();
                let mut first = 0;
                for chunk in mixed.chunks(1500) {
                    ordered.ask(first, chunk, &mut out);
                    first += chunk.len();
                }
                ordered.answer_all(&mut out);
                assert!(out == expected, "{} in {parts} parts", kernel.kind().name);
            }
        }
    }
}
