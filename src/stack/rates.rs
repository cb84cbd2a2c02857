//! The rates of a stack: of unknown keys and of known negatives.

use super::Stack;

impl Stack {
    /// The probability that an unknown key that reaches layer `index` of keys is answered "yes" (U).
    pub(super) fn unseen_from(&self, index: usize) -> f64 {
        self.layers[index].rate() * self.unseen_after(index)
    }

    /// The same for a key that layer `index` of keys accepts by chance.
    fn unseen_after(&self, index: usize) -> f64 {
        match self.layers.get(index + 1) {
            None => 1.0,
            // A random row of the function: its sum is 0 or 1 with equal probability.
            Some(_) if index + 2 == self.layers.len() => 0.5,
            Some(negatives) => {
                let accepted = negatives.rate();
                1.0 - accepted + accepted * self.unseen_from(index + 2)
            }
        }
    }

    /// The probability that a known negative is accepted, given the insertions and removals since.
    ///
    /// Let a layer of keys have rate r now. The fingerprints or bits of the build still accept with
    /// rate s = 1 − (1 − b)ᵘ (b the rate then, u the fraction not removed: each removal thins out
    /// the matches that a negative has by chance), so the later insertions accept with a = (r −
    /// s)/(1 − s). A known negative that was accepted at the build is still accepted with s/b + (1
    /// − s/b)·a, and the layers below know it; one that was rejected is accepted with a, and is
    /// unknown to them. In an adaptive stack, removals do not change the layers below the first.
    pub fn known_rate(&self) -> f64 {
        self.known_from(0, self.writer.read().kept)
    }

    fn known_from(&self, index: usize, kept: f64) -> f64 {
        let (then, now) = (self.knowledge.built[index / 2], self.layers[index].rate());
        // All of it if nothing was removed, without rounding.
        let still = if kept < 1.0 { 1.0 - (1.0 - then).powf(kept) } else { then };
        let lasting = if then > 0.0 { still / then } else { 1.0 };
        let added = if still < 1.0 { ((now - still) / (1.0 - still)).clamp(0.0, 1.0) } else { 0.0 };
        let last = index + 1 == self.layers.len();
        let passed = if last && self.knowledge.exhausted { 0.0 } else { then };
        let below = match self.layers.len() - index {
            1 => 1.0,
            2 => 0.0,
            _ => self.known_from(index + 2, if self.adaptive { 1.0 } else { kept }),
        };
        passed * (lasting + (1.0 - lasting) * added) * below
            + (1.0 - passed) * added * self.unseen_after(index)
    }
}
