//! Binary fuse filters: static, and the fastest to query (Graf and Lemire 2022).
//!
//! A table of slots of r bits. Every key has K = 3 or 4 slots and a fingerprint of r bits, and the
//! table is such that
//!
//! ```text
//! slot₀(key) xor … xor slotₖ₋₁(key) = fingerprint(key)        for every key of the set.
//! ```
//!
//! This is both the invariant and the query. The fingerprint of an absent key is independent of its
//! slots, so it passes with probability 2⁻ʳ.
//!
//! The slots of a key lie in K consecutive ones of S segments of L slots, one in each (section 3 of
//! the paper; L is any number here, not a power of two). For a hash (hi, lo):
//!
//! ```text
//! s + f/2⁶⁴ = hi·(S − K + 1)/2⁶⁴              the first segment s, and what is left of hi
//! slot₀ = s·L + ⌊(f's upper half)·L / 2³²⌋
//! slotⱼ = (s + j)·L + ⌊(hi's lower half, rotated left by 11·(j − 1))·L / 2³²⌋
//! fingerprint = ⌊hi·φ / 2³²⌋ mod 2ʳ           with an odd φ, so from the bits of hi below 2³²⁺ʳ
//! ```
//!
//! So slots follow the order of `hi`, in which `build` has the hashes: it walks through the table
//! once. Since a key shares its segments only with neighbouring keys, a table only 1.08 (K = 4) or
//! 1.13 (K = 3) times as long as a large set can be solved by peeling, see `build.rs`: the ends of
//! the table, which fewer keys reach, are peeled first. A set that cannot be peeled is hashed
//! again: attempt number d > 0 takes `remix(d)`, with `hi xor lo` for `hi`, so that hashes that
//! agree in one half are separated.
//!
//! The empty set has no slots, and rejects everything.

mod build;
#[cfg(test)]
mod tests;

use crate::bits::{Buffer, prefetch};
use crate::error::{Error, Result};
use crate::format::{Head, SECTION_BITS, Section};
use crate::hash::{GOLDEN, Hash128};
use crate::kernel::{Content, Kernel, Kind};
use std::ops::Range;
use std::sync::Arc;

/// Binary fuse filters.
pub static KIND: Kind = Kind {
    layer: true,
    ..Kind::new(4, "fuse", |head, sections, opening| {
        Ok(Arc::new(Fuse::from_frame(head, sections, opening.own)?))
    })
};
/// The longest fingerprint.
pub const MAX_FINGERPRINT_BITS: u32 = 32;
/// The longest segment. A table with longer ones would be either a single segment or longer than is
/// useful.
pub const MAX_SEGMENT_LENGTH: u32 = 1 << 24;
/// Slots of the largest table.
const MAX_SLOTS: u64 = 1 << 40;
/// Up to this many bytes, a table is in the cache: out-of-order execution hides its latency, and
/// prefetching only costs time.
const CACHED: usize = 1 << 22;
/// How many keys ahead slots are prefetched.
const AHEAD: usize = 16;
/// Zeros behind the table, so that eight bytes can be read from the start of any slot.
const PADDING: usize = 8;

/// Sizes of a binary fuse filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Slots per key (K), 3 or 4.
    pub arity: u32,
    /// Bits of a slot (r).
    pub fingerprint_bits: u32,
    /// Slots of a segment (L).
    pub segment_length: u32,
    /// The number of segments (S), or 0 for the empty set.
    pub segments: u64,
}

impl Shape {
    /// A shape, or an error that says why it is invalid.
    pub fn new(
        arity: u32,
        fingerprint_bits: u32,
        segment_length: u32,
        segments: u64,
    ) -> Result<Shape> {
        let refuse = |message: String| Err(Error::Parameter(message));
        if !(3..=4).contains(&arity) {
            return refuse(format!("arity must be 3 or 4, not {arity}"));
        }
        if !(1..=MAX_FINGERPRINT_BITS).contains(&fingerprint_bits) {
            return refuse(format!(
                "fingerprint_bits must be from 1 to {MAX_FINGERPRINT_BITS}, not {fingerprint_bits}"
            ));
        }
        if !(1..=MAX_SEGMENT_LENGTH).contains(&segment_length) {
            return refuse(format!(
                "segment_length must be from 1 to {MAX_SEGMENT_LENGTH}, not {segment_length}"
            ));
        }
        let max = MAX_SLOTS / u64::from(segment_length);
        if segments > max || (1..u64::from(arity)).contains(&segments) {
            return refuse(format!(
                "segments must be 0, or from {arity} to 2**40 slots, not {segments}"
            ));
        }
        Ok(Shape { arity, fingerprint_bits, segment_length, segments })
    }

    /// The number of slots.
    pub fn slots(&self) -> u64 {
        self.segments * u64::from(self.segment_length)
    }

    fn bits(&self) -> u64 {
        self.slots() * u64::from(self.fingerprint_bits)
    }

    fn bytes(&self) -> usize {
        if self.segments == 0 { 0 } else { self.bits().div_ceil(64) as usize * 8 + PADDING }
    }
}

/// How hashes become slots and fingerprints: all that a query needs besides the table.
#[derive(Clone, Copy)]
struct Map {
    /// The number of attempts that failed before this one.
    domain: u64,
    /// The number of segments that may be a key's first (S − K + 1).
    starts: u64,
    segment_length: u64,
    fingerprint_bits: u32,
    fingerprint_mask: u64,
}

impl Map {
    fn new(shape: Shape, domain: u64) -> Map {
        let Shape { arity, fingerprint_bits, segment_length, segments } = shape;
        Map {
            domain,
            starts: segments.saturating_sub(u64::from(arity) - 1),
            segment_length: u64::from(segment_length),
            fingerprint_bits,
            fingerprint_mask: (1 << fingerprint_bits) - 1,
        }
    }

    #[inline(always)]
    fn place(&self, hash: Hash128) -> u64 {
        if self.domain == 0 {
            return hash.hi;
        }
        let other = hash.remix(self.domain);
        other.hi ^ other.lo
    }

    /// The fingerprint, with other bits above it.
    #[inline(always)]
    fn fingerprint(&self, place: u64) -> u64 {
        place.wrapping_mul(GOLDEN) >> 32
    }

    /// The slots of a key, in the order of their segments.
    #[inline(always)]
    fn slots<const K: usize>(&self, place: u64) -> [u64; K] {
        let wide = u128::from(place) * u128::from(self.starts);
        let first = (wide >> 64) as u64 * self.segment_length;
        let lower = place as u32;
        std::array::from_fn(|j| {
            let part = match j {
                0 => (wide as u64 >> 32) as u32,
                _ => lower.rotate_left(11 * (j as u32 - 1)),
            };
            first + j as u64 * self.segment_length + ((u64::from(part) * self.segment_length) >> 32)
        })
    }

    /// Bounds of the places of keys that may have one of these slots.
    fn reaching<const K: usize>(&self, slots: Range<u64>) -> (u64, u64) {
        // The first place whose keys begin in a segment.
        let first_place = |segment: u64| {
            let place = (u128::from(segment) << 64).div_ceil(u128::from(self.starts));
            u64::try_from(place).unwrap_or(u64::MAX)
        };
        let first = (slots.start / self.segment_length).saturating_sub(K as u64 - 1);
        (first_place(first), first_place(slots.end.div_ceil(self.segment_length)))
    }

    /// The bits of a slot, with bits of others above them. `R` is the bits of a slot if known at
    /// compile time, else 0.
    #[inline(always)]
    fn load<const R: u32>(&self, table: &[u8], slot: u64) -> u64 {
        if R == 8 {
            return u64::from(table[slot as usize]);
        }
        let bit = slot * u64::from(if R == 0 { self.fingerprint_bits } else { R });
        let at = (bit / 8) as usize;
        let bytes: [u8; 8] = table[at..at + 8].try_into().unwrap_or_default();
        u64::from_le_bytes(bytes) >> (bit % 8)
    }

    /// Prefetches the slots of a key.
    #[inline(always)]
    fn fetch<const K: usize, const R: u32>(&self, table: &[u8], hash: Hash128) {
        let bits = u64::from(if R == 0 { self.fingerprint_bits } else { R });
        for slot in self.slots::<K>(self.place(hash)) {
            prefetch(table.as_ptr().wrapping_add((slot * bits / 8) as usize));
        }
    }

    /// The xor of a key's slots with its fingerprint: zero if it is in the set.
    #[inline(always)]
    fn differ<const K: usize, const R: u32>(&self, table: &[u8], hash: Hash128) -> u64 {
        let place = self.place(hash);
        let slots = self.slots::<K>(place);
        let stored = slots.into_iter().fold(0, |all, slot| all ^ self.load::<R>(table, slot));
        (stored ^ self.fingerprint(place)) & self.fingerprint_mask
    }
}

/// A binary fuse filter over hashes.
pub struct Fuse {
    shape: Shape,
    map: Map,
    table: Buffer,
    count: u64,
}

impl Fuse {
    fn with(shape: Shape, domain: u64, table: Buffer, count: u64) -> Fuse {
        Fuse { shape, map: Map::new(shape, domain), table, count }
    }

    /// Its sizes.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The number of attempts to build it.
    pub fn attempts(&self) -> u64 {
        self.map.domain.saturating_add(1)
    }

    /// Opens the filter of a frame; `own` turns the section's bytes into a buffer.
    pub fn from_frame(
        head: &Head,
        sections: &[Section<'_>],
        own: impl FnOnce(&[u8]) -> Result<Buffer>,
    ) -> Result<Fuse> {
        let damaged = |what: &str| Error::Format(format!("the fuse filter is damaged: {what}"));
        let (&[arity, fingerprint_bits, segment_length, segments, domain], [section]) =
            (&head.parameters[..], sections)
        else {
            return Err(damaged("it does not have five parameters and one section"));
        };
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let shape =
            Shape::new(small(arity), small(fingerprint_bits), small(segment_length), segments)
                .map_err(|error| error.in_frame(damaged))?;
        if (head.count == 0) != (segments == 0) || head.count > shape.slots() {
            return Err(damaged("it has fewer slots than keys"));
        }
        let as_written = (section.kind, section.piece) == (SECTION_BITS, 0);
        if !as_written || section.bytes.len() != shape.bytes() {
            return Err(damaged("the length of its table does not match its parameters"));
        }
        let (whole, rest) = ((shape.bits() / 8) as usize, shape.bits() % 8);
        let mut behind = section.bytes[whole..].iter();
        let partial = if rest > 0 { behind.next().map_or(0, |byte| byte >> rest) } else { 0 };
        if partial != 0 || behind.any(|&byte| byte != 0) {
            return Err(damaged("bits are set past its end"));
        }
        Ok(Fuse::with(shape, domain, own(section.bytes)?, head.count))
    }

    /// Answers with the slots per key known at compile time, and the bits of a slot if they are
    /// whole bytes.
    fn query<const K: usize>(&self, hashes: &[Hash128], out: &mut [bool]) {
        match self.shape.fingerprint_bits {
            8 => self.ask_with::<K, 8>(hashes, out),
            16 => self.ask_with::<K, 16>(hashes, out),
            32 => self.ask_with::<K, 32>(hashes, out),
            _ => self.ask_with::<K, 0>(hashes, out),
        }
    }

    fn ask_with<const K: usize, const R: u32>(&self, hashes: &[Hash128], out: &mut [bool]) {
        let (map, table) = (self.map, self.table.as_slice());
        if table.len() <= CACHED {
            for (&hash, out) in hashes.iter().zip(out) {
                *out = map.differ::<K, R>(table, hash) == 0;
            }
            return;
        }
        for (i, (&hash, out)) in hashes.iter().zip(out).enumerate() {
            if let Some(&later) = hashes.get(i + AHEAD) {
                map.fetch::<K, R>(table, later);
            }
            *out = map.differ::<K, R>(table, hash) == 0;
        }
    }
}

impl Kernel for Fuse {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn contains(&self, hashes: &[Hash128], out: &mut [bool]) {
        match (self.count, self.shape.arity) {
            (0, _) => out.fill(false),
            (_, 3) => self.query::<3>(hashes, out),
            _ => self.query::<4>(hashes, out),
        }
    }

    fn places(&self, hashes: &[Hash128], out: &mut [u64]) -> bool {
        out.iter_mut().zip(hashes).for_each(|(place, &hash)| *place = self.map.place(hash));
        true
    }

    fn preload(&self, part: usize, parts: usize) {
        self.table.preload(self.table.part(part, parts));
    }

    fn fetch(&self, hashes: &[Hash128]) {
        let (map, table) = (self.map, self.table.as_slice());
        for &hash in hashes.iter().take(AHEAD) {
            match self.shape.arity {
                3 => map.fetch::<3, 0>(table, hash),
                _ => map.fetch::<4, 0>(table, hash),
            }
        }
    }

    fn contains_one(&self, hash: Hash128) -> bool {
        let table = self.table.as_slice();
        match (self.count, self.shape.arity) {
            (0, _) => false,
            (_, 3) => self.map.differ::<3, 0>(table, hash) == 0,
            _ => self.map.differ::<4, 0>(table, hash) == 0,
        }
    }

    fn count(&self) -> u64 {
        self.count
    }

    fn size_in_bits(&self) -> u64 {
        self.shape.bits()
    }

    /// Independent of the set, see above.
    fn rate(&self) -> f64 {
        if self.count == 0 { 0.0 } else { f64::from(self.shape.fingerprint_bits).exp2().recip() }
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        let table = Buffer::copied(self.table.as_slice())?;
        Ok(Arc::new(Fuse { shape: self.shape, map: self.map, table, count: self.count }))
    }

    fn content(&self) -> Result<Content<'_>> {
        let Shape { arity, fingerprint_bits, segment_length, segments } = self.shape;
        let [arity, fingerprint_bits, segment_length] =
            [arity, fingerprint_bits, segment_length].map(u64::from);
        let domain = self.map.domain;
        let parameters = vec![arity, fingerprint_bits, segment_length, segments, domain];
        let section = Section { kind: SECTION_BITS, piece: 0, bytes: self.table.as_slice() };
        let sections = vec![section.stored()];
        Ok(Content { parameters, count: self.count, capacity: None, sections, lock: None })
    }
}
