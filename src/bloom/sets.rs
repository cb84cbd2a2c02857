//! Bloom filters as sets: cardinality, union, intersection, truncation.

use super::{Bloom, Layout, Shape, last_word_mask};
use crate::bits::Buffer;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use std::sync::atomic::Ordering::Relaxed;

impl Bloom {
    /// The number of distinct keys that would set as many bits (Swamidass and Baldi 2007, by
    /// layout). Infinite if all bits are set.
    pub fn cardinality(&self) -> f64 {
        let ones = self.ones();
        if ones == self.shape.kept {
            return f64::INFINITY;
        }
        let zeros = 1.0 - ones as f64 / self.shape.kept as f64;
        let k = f64::from(self.shape.hashes);
        // One key sets this fraction of the zeros: it hits one of the blocks, and in it a given bit
        // with one of its probes.
        let hit_by_one_key = match self.shape.layout {
            Layout::Blocked => (1.0 - self.prober.miss()) / self.blocks() as f64,
            Layout::Standard => -f64::exp_m1(k * f64::ln_1p(-1.0 / self.shape.bits as f64)),
            Layout::Segmented => k / self.shape.bits as f64,
        };
        (zeros.ln() / f64::ln_1p(-hit_by_one_key)).abs()
    }

    /// A filter of the keys of both.
    pub fn union(&self, other: &Bloom) -> Result<Bloom> {
        let merged = self.combine(other, |a, b| a | b)?;
        let (a, b) = (self.count(), other.count());
        let estimate = merged.cardinality().round() as u64;
        merged.count.store(estimate.clamp(a.max(b), a.saturating_add(b)), Relaxed);
        Ok(merged)
    }

    /// A filter of the keys in both; it also keeps bits that are set in both by chance.
    pub fn intersection(&self, other: &Bloom) -> Result<Bloom> {
        let either = self.combine(other, |a, b| a | b)?.cardinality();
        let merged = self.combine(other, |a, b| a & b)?;
        let (a, b) = (self.count(), other.count());
        let estimate = match either.is_finite() {
            true => (a as f64 + b as f64 - either).round().max(0.0) as u64,
            false => u64::MAX,
        };
        merged.count.store(estimate.min(a.min(b)), Relaxed);
        Ok(merged)
    }

    fn combine(&self, other: &Bloom, word: impl Fn(u64, u64) -> u64) -> Result<Bloom> {
        let kept = self.shape.kept.min(other.shape.kept);
        let (mine, others) = (self.shape, other.shape);
        if (Shape { kept, ..mine }) != (Shape { kept, ..others }) {
            let described = |shape: Shape| {
                let Shape { layout, bits, hashes, kept, .. } = shape;
                format!("{} with {kept} of {bits} bits and {hashes} hashes", layout.name())
            };
            return Err(Error::Incompatible(format!(
                "Bloom filters can be merged only if they have the same size: one is {}, the other {}",
                described(mine),
                described(others)
            )));
        }
        // Of truncated filters, the part that both keep (Mersy et al. 2024, section 5.4).
        let merged = Bloom::new(Shape { kept, ..mine })?;
        let pairs = self.bits.words().iter().zip(other.bits.words());
        for (target, (a, b)) in merged.bits.words().iter().zip(pairs) {
            target.store(word(a.load(Relaxed), b.load(Relaxed)), Relaxed);
        }
        if let Some(last) = merged.bits.words().last() {
            last.store(last.load(Relaxed) & last_word_mask(kept), Relaxed);
        }
        Ok(merged)
    }

    /// The same filter with only the first `kept` bits.
    pub fn truncated(&self, kept: u64) -> Result<Bloom> {
        let Shape { layout, bits, hashes, kept: current, .. } = self.shape;
        if kept > current {
            let message =
                format!("bits must be at most {current}, the size of the filter, not {kept}");
            return Err(Error::Parameter(message));
        }
        let shape = Shape::new(layout, bits, hashes, kept)?;
        let mut buffer = self.with_bytes(|bytes| Buffer::copied(&bytes[..shape.bytes()]))?;
        if let Some(last) = buffer.as_mut_slice().last_chunk_mut::<8>() {
            *last = (u64::from_le_bytes(*last) & last_word_mask(kept)).to_le_bytes();
        }
        Ok(Bloom::with(shape, buffer, self.count()))
    }
}
