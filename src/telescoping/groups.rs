//! A code of the selectors of 64 slots from which one selector can be read in a few steps.
//!
//! [`code`](super::code) is shorter, but reading one selector goes through the slots one by one. A
//! filter whose queries read codes all the time uses this code instead: with `S₁ ⊇ S₂ ⊇ …` as
//! there,
//!
//! ```text
//! which of the 16 groups of four slots have members of S₁     16 bits
//! which slots of each such group are members                   4 bits each
//! which members of S₁ are in S₂, which of S₂ in S₃, … S₈       a bit each, until there are none
//! by how much the selectors of S₈ are above 8                  8 bits each
//! ```
//!
//! With a share `s` of the slots moved, the first two lines take `1/4 + 1 − (1 − s)⁴` bits per slot,
//! which is within 8 % of the entropy for `s` from 0.06 to 0.4: groups of four are the best there.
//! The bits of an [`Extending`](super::Mode) filter's selectors follow, slot by slot.

use super::code::{Code, LENGTH_SHIFT, SELECTORS, Selectors};
use crate::processor::Processor;

/// Bits of the first line, and slots of a group.
const GROUPS: usize = 16;
const GROUP: usize = SELECTORS / GROUPS;
/// The lowest bit of each group.
const LOWEST: u64 = u64::MAX / 15;
/// From this step on, the excess is stored in a byte.
const MANY: u64 = 8;

/// The `n` lowest bits, set.
#[inline(always)]
fn below(n: usize) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}

#[inline(always)]
fn count(bits: u64) -> usize {
    bits.count_ones() as usize
}

/// `width` bits, at most 64, from bit `at` on.
#[inline(always)]
fn field(bytes: &[u8], at: usize, width: usize) -> u64 {
    let mut word = [0; 16];
    if let Some(loaded) = bytes.get(at / 8..at / 8 + 16) {
        word.copy_from_slice(loaded);
    }
    (u128::from_le_bytes(word) >> (at % 8)) as u64 & below(width)
}

/// The groups with members as bits, and the members among their slots.
#[inline(always)]
fn first(bytes: &[u8]) -> (u64, u64) {
    let groups = field(bytes, 0, GROUPS);
    (groups, field(bytes, GROUPS, GROUP * count(groups)))
}

/// The slots that have moved, as bits, from a nonempty code.
#[inline(always)]
pub fn moved<P: Processor>(p: P, bytes: &[u8]) -> u64 {
    let (groups, members) = first(bytes);
    p.scatter(members, p.scatter(groups, LOWEST) * 15)
}

/// The steps of the selector of one slot, from a nonempty code.
#[inline(always)]
pub fn steps_of(bytes: &[u8], slot: usize) -> u64 {
    let (groups, members) = first(bytes);
    let group = slot / GROUP;
    let place = GROUP * count(groups & below(group)) + slot % GROUP;
    if groups >> group & members.checked_shr(place as u32).unwrap_or(0) & 1 == 0 {
        return 0;
    }
    let (mut at, mut size) = (GROUPS + GROUP * count(groups), count(members));
    let (mut rank, mut steps) = (count(members & below(place)), 1);
    while steps < MANY {
        let more = field(bytes, at, size);
        if more >> rank & 1 == 0 {
            return steps;
        }
        (at, rank, size) = (at + size, count(more & below(rank)), count(more));
        steps += 1;
    }
    MANY + field(bytes, at + 8 * rank, 8)
}

/// Encodes selectors; `extending` if they have bits behind their steps.
pub fn encode(selectors: &Selectors, extending: bool) -> Code {
    let steps = |selector: u64| if extending { selector >> LENGTH_SHIFT } else { selector };
    let mut code = Code::new();
    let in_group =
        |group: &[u64]| (0..GROUP).fold(0, |bits, slot| bits | u64::from(group[slot] != 0) << slot);
    let mut groups = [0; GROUPS];
    for (bits, group) in groups.iter_mut().zip(selectors.chunks_exact(GROUP)) {
        *bits = in_group(group);
    }
    let occupied = (0..GROUPS).fold(0, |bits, i| bits | u64::from(groups[i] != 0) << i);
    if occupied == 0 {
        return code;
    }
    code.push(occupied, GROUPS);
    for group in groups.iter().filter(|group| **group != 0) {
        code.push(*group, GROUP);
    }
    let mut members = [0; SELECTORS];
    let mut size = 0;
    for selector in selectors.iter().filter(|selector| **selector != 0) {
        members[size] = steps(*selector);
        size += 1;
    }
    for step in 1..MANY {
        let mut later = 0;
        for i in 0..size {
            let more = members[i] > step;
            code.push(u64::from(more), 1);
            if more {
                members[later] = members[i];
                later += 1;
            }
        }
        size = later;
    }
    for member in &members[..size] {
        code.push(member - MANY, 8);
    }
    if extending {
        for selector in selectors.iter().filter(|selector| **selector != 0) {
            code.push(selector & ((1 << LENGTH_SHIFT) - 1), steps(*selector) as usize);
        }
    }
    code
}

/// Decodes the selectors of a nonempty code.
pub fn decode(bytes: &[u8], extending: bool) -> Selectors {
    let mut selectors = [0; SELECTORS];
    let (groups, members) = first(bytes);
    let (mut slots, mut size) = ([0; SELECTORS], 0);
    for (slot, selector) in selectors.iter_mut().enumerate() {
        let (group, place) = (slot / GROUP, GROUP * count(groups & below(slot / GROUP)));
        if groups >> group & 1 == 1 && members >> (place + slot % GROUP) & 1 == 1 {
            slots[size] = slot;
            size += 1;
            *selector = 1;
        }
    }
    let mut at = GROUPS + GROUP * count(groups);
    for step in 1..MANY {
        let more = field(bytes, at, size);
        at += size;
        let mut later = 0;
        for i in 0..size {
            if more >> i & 1 == 1 {
                selectors[slots[i]] = step + 1;
                slots[later] = slots[i];
                later += 1;
            }
        }
        size = later;
    }
    for slot in &slots[..size] {
        selectors[*slot] += field(bytes, at, 8);
        at += 8;
    }
    if extending {
        for selector in selectors.iter_mut().filter(|selector| **selector != 0) {
            let width = *selector as usize;
            *selector = *selector << LENGTH_SHIFT | field(bytes, at, width);
            at += width;
        }
    }
    selectors
}

#[cfg(test)]
mod tests {
    use super::super::code::{MAX_LENGTH, MAX_STEPS, PADDING};
    use super::*;
    use crate::hash::mix13;
    use crate::processor::{Bmi2, Plain};

    fn check(selectors: &Selectors, extending: bool) -> usize {
        let code = encode(selectors, extending);
        if code.bytes().is_empty() {
            assert!(selectors.iter().all(|selector| *selector == 0));
            return 0;
        }
        // The bytes behind a code belong to the next one.
        let bytes = [code.bytes(), &[0xa5; PADDING]].concat();
        assert_eq!(decode(&bytes, extending), *selectors);
        let mut there = 0;
        for (slot, selector) in selectors.iter().enumerate() {
            let steps = if extending { selector >> LENGTH_SHIFT } else { *selector };
            assert_eq!(steps_of(&bytes, slot), steps);
            there |= u64::from(*selector != 0) << slot;
        }
        assert_eq!(moved(Plain, &bytes), there);
        if let Some(p) = Bmi2::detect() {
            assert_eq!(moved(p, &bytes), there);
        }
        8 * code.bytes().len()
    }

    #[test]
    fn every_selector_round_trips() {
        let mut random = 1;
        let mut next = || {
            random = mix13(random + 1);
            random
        };
        for density in [1u64, 5, 20, 80, 200, 256] {
            for max in [1u64, 2, 6, 12, 40] {
                for _ in 0..60 {
                    let selectors: Selectors = std::array::from_fn(|_| {
                        if next() % 256 < density { next() % max + 1 } else { 0 }
                    });
                    check(&selectors, false);
                    check(&selectors.map(|m| m << LENGTH_SHIFT | next() & ((1 << m) - 1)), true);
                }
            }
        }
        assert_eq!(check(&[0; SELECTORS], false), 0);
        assert_eq!(check(&[MAX_STEPS; SELECTORS], false), 16 + 64 * (1 + 7 + 8));
        check(&std::array::from_fn(|slot| 4 * slot as u64), false);
        check(&[MAX_LENGTH << LENGTH_SHIFT | ((1 << MAX_LENGTH) - 1); SELECTORS], true);
    }
}
