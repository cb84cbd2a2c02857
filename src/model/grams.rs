//! Text to levels: the n-grams of its bytes, hashed into buckets.
//!
//! The text is enclosed by a byte 2 and a byte 3, so that n-grams show where it begins and ends.
//! The n bytes from a position on, as a little-endian number v, fall into bucket `mix13(v + n ·
//! GOLDEN) · buckets / 2⁶⁴`.

use super::Lanes;
use crate::bits::reduce;
use crate::hash::{GOLDEN, mix13};

/// The longest n-gram: one word.
pub const MAX_GRAM: u8 = 8;

/// Which n-grams, and into how many buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grams {
    /// The bytes of the shortest, at least 1.
    pub shortest: u8,
    /// The bytes of the longest, at most [`MAX_GRAM`].
    pub longest: u8,
    /// The number of buckets.
    pub buckets: u32,
}

/// The text moves through a window of this many bytes.
const WINDOW: usize = 256;

impl Grams {
    /// Calls `bucket` with the bucket of each n-gram, by position and then by length.
    #[inline(always)]
    pub fn each(&self, text: &[u8], mut bucket: impl FnMut(u32)) {
        const AHEAD: usize = MAX_GRAM as usize;
        let length = text.len() + 2;
        let byte = |at: usize| match at {
            0 => 2,
            at if at == length - 1 => 3,
            at => text[at - 1],
        };
        let mut start = 0;
        while start < length {
            let mut window = [0u8; WINDOW + AHEAD];
            let stop = length.min(start + WINDOW + AHEAD);
            if start > 0 && stop < length {
                window[..stop - start].copy_from_slice(&text[start - 1..stop - 1]);
            } else {
                (start..stop).for_each(|at| window[at - start] = byte(at));
            }
            for (offset, eight) in
                window.windows(AHEAD).take(WINDOW.min(length - start)).enumerate()
            {
                let word = eight.iter().rev().fold(0u64, |word, &b| word << 8 | u64::from(b));
                let left = length - start - offset;
                for n in self.shortest..=self.longest.min(left.min(AHEAD) as u8) {
                    let gram = word & (u64::MAX >> (64 - 8 * u32::from(n)));
                    let hash = mix13(gram.wrapping_add(GOLDEN.wrapping_mul(n.into())));
                    bucket(reduce(hash, self.buckets.into()) as u32);
                }
            }
            start += WINDOW;
        }
    }
}

/// The buckets that a model uses, and the place of their counts. The bucket after the last stands
/// for the length of the text.
#[derive(Default)]
pub struct Used {
    /// By bucket: the place plus one, or 0 if it is unused.
    places: Vec<u32>,
    count: usize,
    length: Option<usize>,
}

impl Used {
    /// From increasing numbers of buckets; `places` has a zero for each bucket and the length.
    pub fn new(mut places: Vec<u32>, used: &[u32]) -> Option<Used> {
        let rising = used.windows(2).all(|pair| pair[0] < pair[1]);
        if !rising || used.last().is_some_and(|&last| last as usize >= places.len()) {
            return None;
        }
        for (place, &bucket) in used.iter().enumerate() {
            places[bucket as usize] = place as u32 + 1;
        }
        let length =
            places.pop().and_then(|place| place.checked_sub(1)).map(|place| place as usize);
        Some(Used { places, count: used.len(), length })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Writes how often each used bucket occurs in the text, up to 127.
    pub fn count(&self, grams: &Grams, text: &[u8], row: usize, levels: &mut [Lanes]) {
        levels.iter_mut().for_each(|lanes| lanes[row] = 0);
        grams.each(text, |bucket| {
            if let Some(place) = self.places[bucket as usize].checked_sub(1) {
                let count = &mut levels[place as usize][row];
                *count = count.saturating_add(1);
            }
        });
        if let Some(place) = self.length {
            levels[place][row] = text.len().min(127) as i8;
        }
    }
}
