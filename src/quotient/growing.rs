//! A quotient filter that is shared by threads and doubles when it is full.

use super::{Quotient, capacity};
use crate::bits::Buffer;
use crate::distinct::Distinct;
use crate::error::{Error, Result};
use crate::format::{Head, SECTION_BITS, Section};
use crate::hash::Hash128;
use crate::kernel::{Content, Kernel, Kind, by_high_half};
use crate::lock::{ReadGuard, RwLock, WriteGuard};
use std::sync::Arc;

/// Quotient filters.
pub static KIND: Kind = Kind {
    layer: true,
    inserts: true,
    deletes: true,
    counts: true,
    merges: true,
    ..Kind::new(2, "quotient", |head, sections, opening| {
        Ok(Arc::new(Growing::from_frame(head, sections, opening.own)?))
    })
};

/// A [`Quotient`] behind a lock, with the capacity at which it doubles.
pub struct Growing {
    inner: RwLock<Inner>,
}

struct Inner {
    quotient: Quotient,
    /// Capacity in keys of its present size.
    capacity: u64,
    /// Whether it doubled because of insertions.
    overran: bool,
}

impl Inner {
    /// The slots that may be used before it doubles.
    fn max_slots(&self) -> u64 {
        capacity::max_slots(self.capacity, self.quotient.quotients())
    }

    /// Doubles until another slot may be used.
    fn grow_if_full(&mut self) -> Result<()> {
        while self.quotient.used_slots() >= self.max_slots() {
            self.double()?;
            self.overran = true;
        }
        Ok(())
    }

    fn double(&mut self) -> Result<()> {
        self.quotient = self.quotient.double()?;
        self.capacity = capacity::doubled(self.capacity);
        Ok(())
    }

    /// Inserts all hashes or none.
    fn insert(&mut self, hashes: &[Hash128]) -> Result<()> {
        let mut done = 0;
        while done < hashes.len() {
            let step = self
                .grow_if_full()
                .and_then(|()| self.quotient.insert_batch(&hashes[done..], self.max_slots()));
            match step {
                Ok(inserted) => done += inserted,
                Err(error) => {
                    for &hash in &hashes[..done] {
                        self.quotient.remove(hash)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl Growing {
    /// An empty filter that doubles when it holds about `capacity` keys.
    pub fn new(quotients: u64, remainder_bits: u32, capacity: u64) -> Result<Growing> {
        Ok(Growing::with_capacity(Quotient::new(quotients, remainder_bits)?, capacity))
    }

    /// A filter that doubles when it holds about `capacity` keys.
    fn with_capacity(quotient: Quotient, capacity: u64) -> Growing {
        Growing { inner: RwLock::new(Inner { quotient, capacity, overran: false }) }
    }

    /// A filter of distinct hashes, whose order is the order of their fingerprints; it doubles when
    /// it holds about `capacity` keys.
    pub fn build(
        quotients: u64,
        remainder_bits: u32,
        hashes: &Distinct,
        capacity: u64,
    ) -> Result<Growing> {
        let empty = Quotient::new(quotients, remainder_bits)?;
        let fingerprints = hashes.sorted()?.map(|hash| {
            let (quotient, remainder) = empty.address(hash);
            (quotient, remainder, 1)
        });
        let quotient = Quotient::from_sorted(quotients, remainder_bits, fingerprints)?;
        Ok(Growing::with_capacity(quotient, capacity))
    }

    /// Opens the filter of a frame; `own` turns the section's bytes into a buffer.
    pub fn from_frame(
        head: &Head,
        sections: &[Section<'_>],
        own: impl FnOnce(&[u8]) -> Result<Buffer>,
    ) -> Result<Growing> {
        let damaged = |what: &str| Error::Format(format!("the quotient filter is damaged: {what}"));
        let (&[quotients, remainder_bits, distinct, capacity], [section]) =
            (&head.parameters[..], sections)
        else {
            return Err(damaged("it does not have four parameters and one section"));
        };
        let bits =
            u32::try_from(remainder_bits).map_err(|_| damaged("its remainders are too long"))?;
        if section.kind != SECTION_BITS || section.piece != 0 || capacity != head.capacity {
            return Err(damaged("its sections do not match its parameters"));
        }
        let slots = own(section.bytes)?;
        let quotient = Quotient::from_parts(quotients, bits, head.count, distinct, slots)?;
        Ok(Growing::with_capacity(quotient, capacity))
    }

    /// Merges two filters; counts add up.
    pub fn merge(&self, other: &Growing) -> Result<Growing> {
        // Locks in the order of addresses, and only once for a filter with itself: a second lock
        // could wait for a writer that waits for the first.
        let (first, second) = if std::ptr::from_ref(self) <= std::ptr::from_ref(other) {
            (self, other)
        } else {
            (other, self)
        };
        let one = first.read();
        let second = (!std::ptr::eq(self, other)).then(|| second.read());
        let two = second.as_ref().unwrap_or(&one);
        let larger = if one.quotient.quotients() > two.quotient.quotients() { &one } else { two };
        let quotient = one.quotient.merge(&two.quotient)?;
        let mut merged = Inner { quotient, capacity: larger.capacity, overran: false };
        while merged.quotient.used_slots() > merged.max_slots() {
            merged.double()?;
        }
        Ok(Growing { inner: RwLock::new(merged) })
    }

    /// Doubles the capacity: twice the quotients, one bit less of remainder.
    pub fn double(&self) -> Result<()> {
        self.write()?.double()
    }

    /// The same filter with fewer bits of each remainder.
    pub fn truncated(&self, remainder_bits: u32) -> Result<Growing> {
        let inner = self.read();
        Ok(Growing::with_capacity(inner.quotient.truncated(remainder_bits)?, inner.capacity))
    }

    /// Reads the filter while no writer changes it.
    pub fn with<R>(&self, visit: impl FnOnce(&Quotient) -> R) -> R {
        visit(&self.read().quotient)
    }

    fn read(&self) -> ReadGuard<'_, Inner> {
        self.inner.read()
    }

    fn write(&self) -> Result<WriteGuard<'_, Inner>> {
        let mut inner = self.inner.write();
        inner.quotient.leave_mapping()?;
        Ok(inner)
    }
}

impl Kernel for Growing {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn contains(&self, hashes: &[Hash128], out: &mut [bool]) {
        self.read().quotient.contains_batch(hashes, out);
    }

    fn places(&self, hashes: &[Hash128], out: &mut [u64]) -> bool {
        by_high_half(hashes, out)
    }

    fn preload(&self, part: usize, parts: usize) {
        self.read().quotient.preload(part, parts);
    }

    fn contains_one(&self, hash: Hash128) -> bool {
        self.read().quotient.contains(hash)
    }

    fn try_contains_one(&self, hash: Hash128) -> Option<bool> {
        Some(self.inner.try_read()?.quotient.contains(hash))
    }

    fn count(&self) -> u64 {
        self.with(Quotient::len)
    }

    fn capacity(&self) -> Option<u64> {
        Some(self.read().capacity)
    }

    fn overfull(&self, _capacity: u64) -> bool {
        self.read().overran
    }

    fn busy(&self) -> bool {
        self.inner.is_locked()
    }

    fn size_in_bits(&self) -> u64 {
        self.with(|quotient| 8 * quotient.size_in_bytes() as u64)
    }

    fn rate(&self) -> f64 {
        self.with(Quotient::rate)
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        let inner = self.read();
        let Inner { quotient, capacity, .. } = &*inner;
        let slots = Buffer::copied(quotient.as_bytes())?;
        let copy = Quotient::from_parts(
            quotient.quotients(),
            quotient.remainder_bits(),
            quotient.len(),
            quotient.distinct(),
            slots,
        )?;
        Ok(Arc::new(Growing::with_capacity(copy, *capacity)))
    }

    fn content(&self) -> Result<Content<'_>> {
        // SAFETY: the sections are dropped with the lock.
        let (inner, lock) = unsafe { self.read().split() };
        let Inner { quotient, capacity, .. } = inner;
        let parameters = vec![
            quotient.quotients(),
            u64::from(quotient.remainder_bits()),
            quotient.distinct(),
            *capacity,
        ];
        let section = Section { kind: SECTION_BITS, piece: 0, bytes: quotient.as_bytes() };
        Ok(Content {
            parameters,
            count: quotient.len(),
            capacity: Some(*capacity),
            sections: vec![section.stored()],
            lock: Some(lock),
        })
    }

    fn insert(&self, hashes: &[Hash128]) -> Result<()> {
        self.write()?.insert(hashes)
    }

    fn remove(&self, hash: Hash128) -> Result<()> {
        self.write()?.quotient.remove(hash)
    }
}
