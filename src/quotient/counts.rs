//! How a run encodes the count of each of its remainders.
//!
//! A run lists its distinct remainders in increasing order. A slot that is not above its
//! predecessor is therefore not a remainder but encodes the count `c` of the last one, `x`:
//!
//! | `c`  | `x > 0`               | `x = 0`                   |
//! |------|-----------------------|---------------------------|
//! | 1    | `x`                   | `0`                       |
//! | 2    | `x x`                 | `0 0`                     |
//! | ≥ 3  | `x 0 varint(c − 3)`   | `0 0 0 varint(c − 3)`     |
//!
//! A varint is a sequence of digits of `r − 1` bits, lowest first; a slot's top bit says that
//! another digit follows, and the last digit is not 0 unless it is the only one. The slot after a
//! group is above `x`, or the run ends. Decoding is unique: after `x > 0`, a larger slot starts the
//! next group, an equal one ends this group with count 2, and 0 announces a varint, which marks its
//! own end; after `0 0`, only another 0 is not above `x`.
//!
//! With `r = 1` a digit has no bits, so `x` is repeated `c` times.

/// A remainder in a run, and its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub remainder: u64,
    pub count: u64,
    /// The slot after it.
    pub end: u64,
}

/// Reads the group that starts at slot `at` of a run that ends before slot `end`; `None` if these
/// slots are not a valid group.
#[inline(always)]
pub(super) fn decode(
    slot: impl Fn(u64) -> u64,
    at: u64,
    end: u64,
    remainder_bits: u32,
) -> Option<Group> {
    if at >= end {
        return None;
    }
    let remainder = slot(at);
    let group = |count, end| Some(Group { remainder, count, end });
    if remainder_bits == 1 {
        let mut behind = at + 1;
        while behind < end && slot(behind) == remainder {
            behind += 1;
        }
        return group(behind - at, behind);
    }
    if at + 1 == end {
        return group(1, end);
    }
    let next = slot(at + 1);
    if next > remainder {
        return group(1, at + 1);
    }
    let digits = if remainder > 0 {
        match next {
            0 => at + 2,
            _ if next == remainder => return group(2, at + 2),
            _ => return None,
        }
    } else if at + 2 < end && slot(at + 2) == 0 {
        at + 3
    } else {
        return group(2, at + 2);
    };
    let (value, behind) = decode_varint(slot, digits, end, remainder_bits)?;
    group(value.checked_add(3)?, behind)
}

/// Reads a varint of at most 64 bits in its shortest form; also returns the slot after it.
fn decode_varint(
    slot: impl Fn(u64) -> u64,
    at: u64,
    end: u64,
    remainder_bits: u32,
) -> Option<(u64, u64)> {
    let payload = remainder_bits - 1;
    let (mut value, mut shift) = (0u64, 0u32);
    for here in at..end {
        let digit = slot(here) & !(1 << payload);
        if shift >= 64 || digit << shift >> shift != digit {
            return None;
        }
        value |= digit << shift;
        shift += payload;
        if slot(here) >> payload == 0 {
            return (digit > 0 || here == at).then_some((value, here + 1));
        }
    }
    None
}

/// The number of slots of a group.
#[inline(always)]
pub(super) fn encoded_len(remainder: u64, count: u64, remainder_bits: u32) -> u64 {
    if count < 3 || remainder_bits == 1 {
        return count;
    }
    let bits = u64::from(64 - (count - 3).leading_zeros()).max(1);
    2 + u64::from(remainder == 0) + bits.div_ceil(u64::from(remainder_bits - 1))
}

/// The slot at `index` of a group's encoding.
#[inline(always)]
pub(super) fn encoded_slot(remainder: u64, count: u64, remainder_bits: u32, index: u64) -> u64 {
    if index == 0 || count < 3 || remainder_bits == 1 {
        return remainder;
    }
    let zeros = 1 + u64::from(remainder == 0);
    if index <= zeros {
        return 0;
    }
    let payload = remainder_bits - 1;
    // Below 64: every index within `encoded_len` has a digit.
    let rest = (count - 3) >> (u64::from(payload) * (index - 1 - zeros)).min(63);
    let digit = rest & ((1 << payload) - 1);
    if rest >> payload > 0 { digit | 1 << payload } else { digit }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every sequence of up to 8 slots that decodes to increasing groups is their encoding: no two
    /// multisets share an encoding and no multiset has two.
    #[test]
    fn encodings_are_unique() {
        for (bits, longest) in [(1u32, 10u32), (2, 8), (3, 6)] {
            for len in 1..=longest {
                for word in 0..1u64 << (bits * len) {
                    let slot = |i: u64| word >> (u64::from(bits) * i) & ((1 << bits) - 1);
                    let (mut at, mut last) = (0, None);
                    while at < u64::from(len) {
                        let Some(group) = decode(slot, at, u64::from(len), bits) else { break };
                        if last.is_some_and(|last| last >= group.remainder) {
                            break;
                        }
                        let (x, c) = (group.remainder, group.count);
                        assert_eq!(encoded_len(x, c, bits), group.end - at);
                        for index in at..group.end {
                            assert_eq!(encoded_slot(x, c, bits, index - at), slot(index));
                        }
                        (at, last) = (group.end, Some(group.remainder));
                    }
                }
            }
        }
    }

    #[test]
    fn counts_round_trip() {
        for bits in [2u32, 3, 8, 33, 56] {
            let top = (1u64 << bits) - 1;
            for shift in 0..64 {
                for count in [1 << shift, (1 << shift) + 3, u64::MAX >> shift, u64::MAX - shift] {
                    for (remainder, next) in [(0, None), (0, Some(1)), (1, None), (1, Some(top))] {
                        let len = encoded_len(remainder, count, bits);
                        let mut slots: Vec<u64> =
                            (0..len).map(|i| encoded_slot(remainder, count, bits, i)).collect();
                        assert!(slots.iter().all(|slot| *slot <= top));
                        slots.extend(next);
                        let group =
                            decode(|i| slots[i as usize], 0, slots.len() as u64, bits).unwrap();
                        assert_eq!(group, Group { remainder, count, end: len });
                    }
                }
            }
        }
    }
}
