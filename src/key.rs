//! The plain form of a key: bytes, or an integer of 64 bits and a sign. Every key has exactly one,
//! whichever library it comes from, and filters hash nothing else.
//!
//! | key                               | plain form                                                |
//! |-----------------------------------|-----------------------------------------------------------|
//! | text                              | its UTF-8 bytes                                           |
//! | bytes                             | the same bytes                                            |
//! | integer from −2⁶³ to 2⁶⁴−1        | the same integer                                          |
//! | date                              | the integer of days since 1970-01-01                      |
//! | timestamp                         | the integer of nanoseconds since 1970-01-01 UTC           |
//! | decimal                           | the integer that it equals, or 16 bytes of the unscaled   |
//! |                                   | value without trailing zeros, then one byte of scale      |
//! | timestamp or decimal beyond 64 bits | the 16 two's complement bytes of the integer            |
//! | tuple of keys, row of a table     | the bytes that [`push_part`] writes for each of its parts |
//!
//! Everything is little-endian. `docs/keys.md` documents the table, and `tests/vectors.json` freezes
//! it.

use crate::error::Result;
use crate::hash::{Hash128, Hasher};
use crate::memory::TryGrow;

/// Milliseconds of a day.
pub const DAY_MILLISECONDS: i128 = 86_400_000;
/// Nanoseconds of a second.
pub const SECOND: i128 = 1_000_000_000;
/// Nanoseconds of a day.
pub const DAY: i128 = 86_400 * SECOND;

/// A key in its plain form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain<'a> {
    /// The integer with these low 64 bits: below zero if `negative`, otherwise from 0 to 2⁶⁴−1.
    Int {
        /// The low 64 bits of its two's complement.
        bits: u64,
        /// Whether it is below zero.
        negative: bool,
    },
    /// Bytes; text as UTF-8.
    Bytes(&'a [u8]),
}

impl Plain<'_> {
    /// A signed integer.
    #[inline(always)]
    pub fn signed(value: i64) -> Plain<'static> {
        Plain::Int { bits: value as u64, negative: value < 0 }
    }

    /// An unsigned integer.
    #[inline(always)]
    pub fn unsigned(value: u64) -> Plain<'static> {
        Plain::Int { bits: value, negative: false }
    }

    /// The hash of the key.
    #[inline(always)]
    pub fn hash(self, hasher: &Hasher) -> Hash128 {
        match self {
            Plain::Int { bits, negative } => hasher.int(bits, negative),
            Plain::Bytes(bytes) => hasher.bytes(bytes),
        }
    }
}

/// Calls `then` with the plain form of an integer of any width.
#[inline(always)]
pub fn with_wide<T>(value: i128, then: impl FnOnce(Plain<'_>) -> T) -> T {
    match (i64::try_from(value), u64::try_from(value)) {
        (Ok(narrow), _) => then(Plain::signed(narrow)),
        (_, Ok(narrow)) => then(Plain::unsigned(narrow)),
        _ => then(Plain::Bytes(&value.to_le_bytes())),
    }
}

/// Calls `then` with the plain form of `unscaled · 10^−scale`; `None` if an integer exceeds 128 bits.
pub fn with_decimal<T>(
    mut unscaled: i128,
    mut scale: i8,
    then: impl FnOnce(Plain<'_>) -> T,
) -> Option<T> {
    while scale > 0 && unscaled % 10 == 0 {
        (unscaled, scale) = (unscaled / 10, if unscaled == 0 { 0 } else { scale - 1 });
    }
    while scale < 0 && unscaled != 0 {
        (unscaled, scale) = (unscaled.checked_mul(10)?, scale + 1);
    }
    if scale <= 0 {
        return Some(with_wide(unscaled, then));
    }
    let mut form = [scale as u8; 17];
    form[..16].copy_from_slice(&unscaled.to_le_bytes());
    Some(then(Plain::Bytes(&form)))
}

/// Appends one part of a tuple to its form. A part is a tag byte and 8 bytes: `+` or `-` and the
/// low 64 bits of an integer, or `b` and a length, followed by that many bytes. Each part ends where
/// its first nine bytes say, so no two tuples have the same form.
#[inline]
pub fn push_part(form: &mut Vec<u8>, part: Plain<'_>) -> Result<()> {
    let (tag, word, bytes): (u8, u64, &[u8]) = match part {
        Plain::Int { bits, negative: false } => (b'+', bits, &[]),
        Plain::Int { bits, negative: true } => (b'-', bits, &[]),
        Plain::Bytes(bytes) => (b'b', bytes.len() as u64, bytes),
    };
    let mut head = [tag; 9];
    head[1..].copy_from_slice(&word.to_le_bytes());
    form.reserve_more(head.len() + bytes.len())?;
    form.extend_from_slice(&head);
    form.extend_from_slice(bytes);
    Ok(())
}

/// The parts of a tuple's form, or `None` if these bytes are not one.
pub fn parts(mut form: &[u8]) -> Option<Vec<Plain<'_>>> {
    let mut parts = Vec::new();
    while let Some((head, rest)) = form.split_first_chunk::<9>() {
        let [tag, word @ ..] = *head;
        let bits = u64::from_le_bytes(word);
        form = rest;
        parts.push(match tag {
            b'+' => Plain::unsigned(bits),
            b'-' if bits >> 63 == 1 => Plain::Int { bits, negative: true },
            b'b' => {
                let (bytes, rest) = rest.split_at_checked(usize::try_from(bits).ok()?)?;
                form = rest;
                Plain::Bytes(bytes)
            }
            _ => return None,
        });
    }
    (form.is_empty() && parts.len() > 1).then_some(parts)
}

/// The days from 1970-01-01 to a day of the proleptic Gregorian calendar; months and days from 1.
/// After Howard Hinnant's `days_from_civil`: years begin in March, so that a leap day is their last.
pub fn days_since_1970(year: i128, month: i128, day: i128) -> i128 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let leap_days = of_era / 4 - of_era / 100;
    era * 146_097 + of_era * 365 + leap_days + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn form(parts: &[Plain<'_>]) -> Vec<u8> {
        let mut form = Vec::new();
        parts.iter().for_each(|&part| push_part(&mut form, part).unwrap());
        form
    }

    #[test]
    fn a_tuple_is_its_documented_bytes() {
        let found = form(&[Plain::Bytes(b"acme"), Plain::signed(7), Plain::signed(-1)]);
        let documented =
            b"b\x04\0\0\0\0\0\0\0acme+\x07\0\0\0\0\0\0\0-\xff\xff\xff\xff\xff\xff\xff\xff";
        assert_eq!(found, documented);
    }

    proptest! {
        #[test]
        fn a_tuple_is_read_back(
            values in prop::collection::vec(
                prop_oneof![
                    any::<i64>().prop_map(Ok),
                    prop::collection::vec(any::<u8>(), 0..20).prop_map(Err),
                ],
                2..6,
            ),
            cut in 0usize..20,
        ) {
            let plain: Vec<_> = values.iter().map(|value| match value {
                Ok(number) => Plain::signed(*number),
                Err(bytes) => Plain::Bytes(bytes),
            }).collect();
            let whole = form(&plain);
            prop_assert_eq!(parts(&whole), Some(plain));
            let cut = &whole[..whole.len() - cut.min(whole.len())];
            prop_assert!(parts(cut).is_none_or(|fewer| form(&fewer) == cut));
        }
    }

    #[test]
    fn bytes_that_are_no_tuple_have_no_parts() {
        for bytes in [&b""[..], b"b", b"+\0\0\0\0\0\0\0\0", b"-\0\0\0\0\0\0\0\0+\0\0\0\0\0\0\0\0"] {
            assert_eq!(parts(bytes), None);
        }
        let endless = [b'b', 255, 255, 255, 255, 255, 255, 255, 255, 0];
        assert_eq!(parts(&endless), None);
    }

    #[test]
    fn days_follow_the_calendar() {
        let mut expected = days_since_1970(1599, 12, 31);
        for year in 1600..2101 {
            let leap = year % 4 == 0 && year % 100 != 0 || year % 400 == 0;
            let february = if leap { 29 } else { 28 };
            let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            for (month, length) in (1..).zip(lengths) {
                for day in 1..=length {
                    expected += 1;
                    assert_eq!(days_since_1970(year, month, day), expected);
                }
            }
        }
        assert_eq!(days_since_1970(1970, 1, 1), 0);
        assert_eq!(days_since_1970(1, 1, 1), -719_162);
    }

    #[test]
    fn values_not_widths_are_hashed() {
        let hash = |hasher: &Hasher, value| with_wide(value, |plain| plain.hash(hasher));
        for hasher in [Hasher::seeded(1), Hasher::keyed(&[9; 16])] {
            assert_eq!(hasher.signed(5), hash(&hasher, 5));
            assert_eq!(hash(&hasher, u64::MAX as i128), hasher.int(u64::MAX, false));
            assert_ne!(hasher.signed(-1), hasher.int(u64::MAX, false));
            assert_eq!(hash(&hasher, i128::MAX), hasher.bytes(&i128::MAX.to_le_bytes()));
        }
    }

    #[test]
    fn equal_decimals_are_one_key() {
        let hasher = Hasher::seeded(0);
        let hash = |value, scale| with_decimal(value, scale, |plain| plain.hash(&hasher));
        assert_eq!(hash(150, 2), hash(15, 1));
        assert_eq!(hash(-300, 2), Some(hasher.signed(-3)));
        assert_eq!(hash(7, -2), Some(hasher.signed(700)));
        assert_eq!(hash(0, -128), Some(hasher.signed(0)));
        assert_eq!(hash(0, 127), Some(hasher.signed(0)));
        assert_eq!(hash(999, -38), None);
    }
}
