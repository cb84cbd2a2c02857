//! The counts of an adaptive stack, and the sample of its false positives.

use std::collections::BTreeMap;

/// Maximum number of sampled keys: enough to estimate a distribution, and 16 KiB.
pub const MAX_SAMPLED: usize = 1024;

/// The counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// Queries for absent keys since the layer that is being filled was started.
    pub collecting: u64,
    /// Queries for absent keys in the present window.
    pub asked: u64,
    /// False positives in the present window.
    pub wrong: u64,
    /// How often in a row the layers behind the first were dropped.
    pub strikes: u64,
    /// Queries for absent keys and false positives in total.
    pub total: [u64; 2],
    /// One in 2^shift of the false positives of the first layer, by a word of its hash, is in the
    /// sample, with the number of its occurrences.
    pub shift: u64,
    pub(super) sample: BTreeMap<u64, u64>,
}

impl Counted {
    pub(super) fn saw(&mut self, asked: u64, wrong: u64) {
        self.collecting = self.collecting.saturating_add(asked);
        self.asked = self.asked.saturating_add(asked);
        self.wrong = self.wrong.saturating_add(wrong);
        self.total[0] = self.total[0].saturating_add(asked);
        self.total[1] = self.total[1].saturating_add(wrong);
    }

    pub(super) fn sampled(&mut self, word: u64) {
        if !self.takes(word) {
            return;
        }
        let count = self.sample.entry(word).or_default();
        *count = count.saturating_add(1);
        while self.sample.len() > MAX_SAMPLED && self.shift < 63 {
            self.shift += 1;
            let shift = self.shift;
            self.sample.retain(|&word, _| word.trailing_zeros() as u64 >= shift);
        }
    }

    fn takes(&self, word: u64) -> bool {
        u64::from(word.trailing_zeros()) >= self.shift
    }

    pub(super) fn window(&mut self) {
        (self.asked, self.wrong) = (0, 0);
    }
}

/// The sample of a frame: a word and a count of 8 bytes each, by ascending words.
pub(super) fn with_sample(mut counted: Counted, bytes: &[u8]) -> Option<Counted> {
    let (pairs, rest) = bytes.as_chunks::<16>();
    if !rest.is_empty() || pairs.len() > MAX_SAMPLED || counted.shift > 63 {
        return None;
    }
    let mut last = None;
    for pair in pairs {
        let pair = u128::from_le_bytes(*pair);
        let (word, count) = (pair as u64, (pair >> 64) as u64);
        if last >= Some(word) || count == 0 || !counted.takes(word) {
            return None;
        }
        last = Some(word);
        counted.sample.insert(word, count);
    }
    Some(counted)
}
