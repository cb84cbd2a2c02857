//! The slots of an adaptive cuckoo filter, and queries.

use super::{MAX_BITS, Motion};
use crate::bits::{Buffer, prefetch, reduce};
use crate::error::{Error, Result};
use crate::hash::{GOLDEN, Hash128, mix13};

/// How many keys ahead a batch prefetches.
const AHEAD: usize = 16;
/// Bytes behind the last slot, so that each can be read by one load.
pub const PADDING: usize = 8;

/// Slots, and the hashes of their owners.
pub struct Table {
    pub motion: Motion,
    pub fingerprint_bits: u32,
    pub bins: u64,
    pub slots: Buffer,
    pub owners: Vec<Hash128>,
    pub count: u64,
    /// The state of the generator of random walks.
    pub random: u64,
}

impl Table {
    pub fn new(motion: Motion, fingerprint_bits: u32, bins: u64) -> Result<Table> {
        if !(1..=MAX_BITS).contains(&fingerprint_bits) || bins == 0 {
            return Err(Error::Parameter(format!(
                "an adaptive cuckoo filter has fingerprints of 1 to {MAX_BITS} bits and at least 1 \
                 bin, not {fingerprint_bits} and {bins}"
            )));
        }
        let slots = bins.checked_mul(motion.bins().1).and_then(|slots| usize::try_from(slots).ok());
        let bits = u64::from(fingerprint_bits + motion.selector_bits());
        let bytes = slots.and_then(|slots| byte_len(slots as u64, bits));
        let (Some(slots), Some(bytes)) = (slots, bytes) else {
            return Err(Error::Memory(format!("cannot allocate {bins} bins for the filter")));
        };
        let buffer = Buffer::zeroed(bytes)?;
        let mut owners = Vec::new();
        owners
            .try_reserve_exact(slots)
            .map_err(|_| Error::Memory(format!("cannot allocate the hashes of {slots} slots")))?;
        owners.resize(slots, Hash128::default());
        Ok(Table { motion, fingerprint_bits, bins, slots: buffer, owners, count: 0, random: 0 })
    }

    #[inline(always)]
    pub fn width(&self) -> u32 {
        self.fingerprint_bits + self.motion.selector_bits()
    }

    /// The first slot of bin `j` of a key. The hash is mixed again for each `j`.
    #[inline(always)]
    pub fn bin(&self, hash: Hash128, j: u64) -> u64 {
        let mixed = if j == 0 { hash.hi } else { mix13(hash.hi ^ GOLDEN.wrapping_mul(j)) };
        reduce(mixed, self.bins) * self.motion.bins().1
    }

    /// The fingerprint of a key under function `i`.
    #[inline(always)]
    pub fn fingerprint(&self, hash: Hash128, i: u64) -> u64 {
        let mixed =
            if i == 0 { hash.lo } else { mix13(hash.lo.wrapping_add(GOLDEN.wrapping_mul(i))) };
        1 + reduce(mixed, (1 << self.fingerprint_bits) - 1)
    }

    #[inline(always)]
    pub fn slot(&self, index: u64) -> u64 {
        let bit = index as usize * self.width() as usize;
        let mut word = [0; 8];
        word.copy_from_slice(&self.slots.as_slice()[bit / 8..bit / 8 + 8]);
        u64::from_le_bytes(word) >> (bit % 8) & ((1 << self.width()) - 1)
    }

    #[inline(always)]
    pub fn set_slot(&mut self, index: u64, value: u64) {
        let bit = index as usize * self.width() as usize;
        let mask = ((1u64 << self.width()) - 1) << (bit % 8);
        let place = &mut self.slots.as_mut_slice()[bit / 8..bit / 8 + 8];
        let mut word = [0; 8];
        word.copy_from_slice(place);
        let word = u64::from_le_bytes(word) & !mask | value << (bit % 8);
        place.copy_from_slice(&word.to_le_bytes());
    }

    /// The content of a key's slot at `place` in its bin `j`: the selector, initially 0, above the
    /// fingerprint.
    #[inline(always)]
    pub fn held(&self, hash: Hash128, j: u64, place: u64, selector: u64) -> u64 {
        let function = match self.motion {
            Motion::Cyclic(_) => selector,
            Motion::Swapping => place,
            Motion::Cuckooing => j,
        };
        selector << self.fingerprint_bits | self.fingerprint(hash, function)
    }

    #[inline(always)]
    pub fn selector(&self, held: u64) -> u64 {
        held >> self.fingerprint_bits
    }

    /// Whether a slot's content may belong to the key.
    #[inline(always)]
    pub fn fits(&self, hash: Hash128, j: u64, place: u64, held: u64) -> bool {
        held != 0 && self.held(hash, j, place, self.selector(held)) == held
    }

    /// All slots that a key may be in, as (bin, place, slot).
    pub fn places(&self, hash: Hash128) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let (ways, size) = self.motion.bins();
        (0..ways).flat_map(move |j| {
            let first = self.bin(hash, j);
            (0..size).map(move |place| (j, place, first + place))
        })
    }

    #[inline(always)]
    pub fn contains(&self, hash: Hash128) -> bool {
        let (ways, size) = self.motion.bins();
        (0..ways).any(|j| {
            let first = self.bin(hash, j);
            (0..size).any(|place| self.fits(hash, j, place, self.slot(first + place)))
        })
    }

    pub fn contains_batch(&self, hashes: &[Hash128], out: &mut [bool]) {
        for (hashes, out) in hashes.chunks(AHEAD).zip(out.chunks_mut(AHEAD)) {
            for hash in hashes {
                for j in 0..self.motion.bins().0 {
                    let byte = self.bin(*hash, j) as usize * self.width() as usize / 8;
                    prefetch(self.slots.as_slice().as_ptr().wrapping_add(byte));
                }
            }
            for (hash, out) in hashes.iter().zip(out) {
                *out = self.contains(*hash);
            }
        }
    }

    /// The fraction of absent keys that match a slot: bins are independent, and each used slot
    /// matches one of 2^f − 1 fingerprints.
    pub fn rate(&self) -> f64 {
        let (ways, size) = self.motion.bins();
        let missed = 1.0 - 1.0 / (2f64.powi(self.fingerprint_bits as i32) - 1.0);
        let mut sum = 0.0;
        for bin in 0..self.bins {
            let used = (bin * size..(bin + 1) * size).filter(|slot| self.slot(*slot) != 0).count();
            sum += missed.powi(used as i32);
        }
        1.0 - (sum / self.bins as f64).powi(ways as i32)
    }

    /// The first slot that does not match its owner, if any.
    pub fn wrong(&self) -> Option<u64> {
        let right = |slot: u64| {
            let (held, owner) = (self.slot(slot), self.owners[slot as usize]);
            match held {
                0 => owner == Hash128::default(),
                _ => self
                    .places(owner)
                    .any(|(j, place, mine)| mine == slot && self.fits(owner, j, place, held)),
            }
        };
        (0..self.owners.len() as u64).find(|slot| !right(*slot))
    }
}

pub fn byte_len(slots: u64, bits: u64) -> Option<usize> {
    let bits = slots.checked_mul(bits)?;
    usize::try_from(bits.div_ceil(8)).ok()?.checked_add(PADDING)
}
