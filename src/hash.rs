//! Keys to 128-bit hashes. All other kernels see only hashes.
//!
//! `key.rs` has the plain form of every kind of key: bytes or an integer. Bytes are hashed with
//! XXH3-128 under the seed, integers through two bijections.
//!
//! With a secret key both go through SipHash-2-4 with 128 bits of output, integers under a
//! derived key so that no integer shares its hash with a byte string by construction.
//!
//! The integer mix: for each half of the hash, `value ^ s` with a constant `s` derived from (seed,
//! sign, half) goes through a 64-bit bijection with full avalanche: Evensen's *moremur* for the
//! high half, Stafford's *mix13* for the low one. So two integers of one sign never share a 128-bit
//! hash, and their high halves are unrelated to their low halves.

use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher as _;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Identifies the seeded family (XXH3-128 and the integer mix) in a file.
pub const HASH_SEEDED: u16 = 1;
/// Identifies the keyed family (SipHash-2-4-128) in a file.
pub const HASH_KEYED: u16 = 2;

/// Weyl increment (2⁶⁴ over the golden ratio): turns small counters into unrelated constants.
pub const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// A key as every filter sees it: 128 uniform bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct Hash128 {
    /// The half that chooses a place (block, quotient, partition).
    pub hi: u64,
    /// The half that chooses the content written there.
    pub lo: u64,
}

impl Hash128 {
    /// An independent hash for another use of the same key (a layer, a shard). Uses that remix
    /// under different domains share no bits.
    #[inline(always)]
    pub fn remix(self, domain: u64) -> Hash128 {
        let whitening = GOLDEN.wrapping_mul(domain.wrapping_add(1));
        Hash128 { hi: moremur(self.hi ^ mix13(whitening)), lo: mix13(self.lo ^ moremur(whitening)) }
    }
}

/// Pelle Evensen's *moremur*: a bijection of 64 bits with full avalanche.
#[inline(always)]
pub fn moremur(mut x: u64) -> u64 {
    x ^= x >> 27;
    x = x.wrapping_mul(0x3C79_AC49_2BA7_B653);
    x ^= x >> 33;
    x = x.wrapping_mul(0x1C69_B3F7_4AC4_AE35);
    x ^ (x >> 27)
}

/// David Stafford's *mix13*, the finalizer of SplitMix64: a bijection with full avalanche.
#[inline(always)]
pub fn mix13(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The function from keys to hashes that a filter was built with.
#[derive(Clone, Debug)]
pub struct Hasher {
    id: u16,
    /// The seed, or the identifier of the secret key, which may be stored in a file.
    tag: u64,
    family: Family,
}

#[derive(Clone, Debug)]
enum Family {
    /// XXH3 seed, and the constants `s` of the integer mix by sign and half.
    Seeded { seed: u64, ints: [[u64; 2]; 2] },
    /// Keyed states: one for bytes, one (under a derived key) for integers.
    Keyed { bytes: SipHasher24, ints: SipHasher24 },
}

impl Hasher {
    /// The deterministic family: equal seeds give equal filters.
    pub fn seeded(seed: u64) -> Hasher {
        let constant = |i: u64| moremur(mix13(seed).wrapping_add(GOLDEN.wrapping_mul(i)));
        let ints = [[constant(1), constant(2)], [constant(3), constant(4)]];
        Hasher { id: HASH_SEEDED, tag: seed, family: Family::Seeded { seed, ints } }
    }

    /// The keyed family, for filters that untrusted users query.
    pub fn keyed(key: &[u8; 16]) -> Hasher {
        let bytes = SipHasher24::new_with_key(key);
        let derived = sip(&bytes, b"tamis: integers").to_le_bytes();
        let identifier = sip(&bytes, b"tamis: identifier of this key");
        let ints = SipHasher24::new_with_key(&derived);
        Hasher { id: HASH_KEYED, tag: identifier as u64, family: Family::Keyed { bytes, ints } }
    }

    /// The family: [`HASH_SEEDED`] or [`HASH_KEYED`].
    pub fn id(&self) -> u16 {
        self.id
    }

    /// The seed of a seeded family, or the identifier of the key of a keyed one.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Whether both map every key to the same hash.
    pub fn same_as(&self, other: &Hasher) -> bool {
        self.id == other.id && self.tag == other.tag
    }

    /// Hashes a byte string (text: its UTF-8).
    #[inline(always)]
    pub fn bytes(&self, key: &[u8]) -> Hash128 {
        let wide = match &self.family {
            Family::Seeded { seed, .. } => xxh3_128_with_seed(key, *seed),
            Family::Keyed { bytes, .. } => sip(bytes, key),
        };
        split(wide)
    }

    /// Hashes the integer whose low 64 bits are `bits`: negative if `negative`, else in 0..2⁶⁴.
    #[inline(always)]
    pub fn int(&self, bits: u64, negative: bool) -> Hash128 {
        match &self.family {
            Family::Seeded { ints, .. } => {
                let [hi, lo] = ints[negative as usize];
                Hash128 { hi: moremur(bits ^ hi), lo: mix13(bits ^ lo) }
            }
            Family::Keyed { ints, .. } => {
                let mut message = [negative as u8; 9];
                message[..8].copy_from_slice(&bits.to_le_bytes());
                split(sip(ints, &message))
            }
        }
    }

    /// Hashes a signed integer by value.
    #[inline(always)]
    pub fn signed(&self, value: i64) -> Hash128 {
        self.int(value as u64, value < 0)
    }
}

fn split(wide: u128) -> Hash128 {
    Hash128 { hi: (wide >> 64) as u64, lo: wide as u64 }
}

fn sip(keyed: &SipHasher24, message: &[u8]) -> u128 {
    let mut state = *keyed;
    state.write(message);
    state.finish128().as_u128()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published vectors of SipHash-2-4-128 (key 00…0f, message 00…(n−1)) for n = 0 and 1.
    #[test]
    fn keyed_hash_is_siphash_2_4_128() {
        let key: [u8; 16] = std::array::from_fn(|i| i as u8);
        let hasher = Hasher::keyed(&key);
        let digest = |message: &[u8]| {
            let hash = hasher.bytes(message);
            ((hash.hi as u128) << 64 | hash.lo as u128).to_le_bytes()
        };
        assert_eq!(
            digest(b""),
            [
                0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55,
                0x02, 0x93
            ]
        );
        assert_eq!(
            digest(&[0]),
            [
                0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22,
                0xfc, 0x45
            ]
        );
    }

    /// XXH3-128 of the empty string with seed 0, from the xxHash sanity table.
    #[test]
    fn seeded_hash_is_xxh3_128() {
        let hash = Hasher::seeded(0).bytes(b"");
        assert_eq!((hash.hi, hash.lo), (0x99aa_06d3_0147_98d8, 0x6001_c324_468d_497f));
    }

    /// Each input bit of an integer flips each output bit half of the time, for both signs.
    #[test]
    fn integer_mix_avalanches() {
        let hasher = Hasher::seeded(7);
        let trials = 4096u64;
        // A fair coin exceeds ±6 standard deviations once in 5·10⁸ of the 16,384 cells.
        let allowed = 6.0 * (trials as f64).sqrt() / 2.0;
        for negative in [false, true] {
            for input in 0..64 {
                let mut flips = [0u32; 128];
                for trial in 0..trials {
                    let x = trial.wrapping_mul(GOLDEN) >> (trial % 48);
                    let (a, b) = (hasher.int(x, negative), hasher.int(x ^ (1 << input), negative));
                    for (bit, count) in flips.iter_mut().enumerate() {
                        let changed = if bit < 64 { a.lo ^ b.lo } else { a.hi ^ b.hi };
                        *count += (changed >> (bit % 64) & 1) as u32;
                    }
                }
                for count in flips {
                    assert!((f64::from(count) - trials as f64 / 2.0).abs() < allowed);
                }
            }
        }
    }
}
