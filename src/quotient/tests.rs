//! The filter against a map from fingerprints to counts, over many shapes.

use super::*;
use crate::bits::Buffer;
use crate::hash::mix13;
use crate::processor::Plain;
use std::collections::BTreeMap;

type Model = BTreeMap<(u64, u64), u64>;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix13(self.0)
    }

    fn below(&mut self, n: u64) -> u64 {
        crate::bits::reduce(self.next(), n)
    }
}

/// The smallest hash with a fingerprint: ⌈F·2¹²⁸ / (Q·2^r)⌉, by long division, one byte of the
/// hash at a time; the space of fingerprints is below 2¹²⁰.
fn hash_of(quotients: u64, bits: u32, (quotient, remainder): (u64, u64)) -> Hash128 {
    let space = u128::from(quotients) << bits;
    let mut rest = u128::from(quotient) << bits | u128::from(remainder);
    let mut hash = 0u128;
    for _ in 0..16 {
        rest <<= 8;
        hash = (hash << 8) | (rest / space);
        rest %= space;
    }
    hash += u128::from(rest > 0);
    Hash128 { hi: (hash >> 64) as u64, lo: hash as u64 }
}

fn reopened(filter: &Quotient) -> Result<Quotient> {
    let buffer = Buffer::copied(filter.as_bytes())?;
    let (quotients, bits) = (filter.quotients(), filter.remainder_bits());
    Quotient::from_parts(quotients, bits, filter.len(), filter.distinct(), buffer)
}

fn built(quotients: u64, bits: u32, model: &Model) -> Quotient {
    let sorted = model.iter().map(|((quotient, remainder), count)| (*quotient, *remainder, *count));
    Quotient::from_sorted(quotients, bits, sorted).unwrap()
}

/// Compares all answers of a filter with its expected content.
fn check(filter: &Quotient, model: &Model, random: &mut Random) {
    let (quotients, bits) = (filter.quotients(), filter.remainder_bits());
    assert_eq!(filter.distinct(), model.len() as u64);
    assert_eq!(filter.len(), model.values().fold(0, |sum: u64, count| sum.saturating_add(*count)));
    let held: Vec<_> = filter.fingerprints(0..u64::MAX).map(|(q, x, c)| ((q, x), c)).collect();
    assert!(held.iter().copied().eq(model.iter().map(|(f, c)| (*f, *c))));
    let (low, high) = (random.below(quotients), random.below(quotients + 2));
    let part = filter.fingerprints(low..high).map(|(q, x, _)| (q, x));
    let expected = held.iter().map(|(f, _)| *f).filter(|(q, _)| (low..high).contains(q));
    assert!(part.eq(expected));

    let mut asked: Vec<(u64, u64)> = model.keys().copied().collect();
    for index in 0..100 {
        let near = asked.get(index % model.len().max(1)).map_or(0, |(q, _)| *q);
        let quotient = if index % 2 == 0 { near } else { random.below(quotients) };
        asked.push((quotient, random.below(1 << bits)));
    }
    let hashes: Vec<_> = asked.iter().map(|f| hash_of(quotients, bits, *f)).collect();
    let mut answers = vec![false; asked.len()];
    filter.contains_batch(&hashes, &mut answers);
    for ((fingerprint, hash), answer) in asked.iter().zip(&hashes).zip(answers) {
        assert_eq!(filter.address(*hash), *fingerprint);
        let count = model.get(fingerprint).copied().unwrap_or(0);
        assert_eq!(filter.count(*hash), count);
        assert_eq!(filter.contains(*hash), count > 0);
        assert_eq!(filter.contains_on(Plain, fingerprint.0, fingerprint.1), count > 0);
        assert_eq!(answer, count > 0);
    }

    let twin = built(quotients, bits, model);
    assert!(filter.as_bytes() == twin.as_bytes(), "bytes differ from the bulk build");
    assert_eq!(filter.used_slots(), twin.used_slots());
    let again = reopened(filter).unwrap();
    assert!(again.as_bytes() == filter.as_bytes());
    assert_eq!(again.used_slots(), filter.used_slots());
}

/// The distribution of the keys of a test.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Uniform,
    /// Half of them in three quotients.
    Few,
    /// In the last two quotients.
    Last,
    /// Some keys again and again.
    Repeated,
}

fn draw(shape: Shape, quotients: u64, bits: u32, random: &mut Random) -> (u64, u64) {
    let quotient = match shape {
        Shape::Few if random.below(2) == 0 => {
            [0, quotients / 3, quotients - 1][random.below(3) as usize]
        }
        Shape::Last => quotients - 1 - random.below(2.min(quotients)),
        Shape::Repeated => random.below(quotients.min(40)),
        _ => random.below(quotients),
    };
    let remainder = match shape {
        Shape::Repeated => random.below(4.min(1 << bits)),
        // Zeros and small remainders look most like counters.
        _ if random.below(8) == 0 => random.below(3.min(1 << bits)),
        _ => random.below(1 << bits),
    };
    (quotient, remainder)
}

fn live_through(quotients: u64, bits: u32, shape: Shape, seed: u64) {
    let mut random = Random(seed);
    let mut filter = Quotient::new(quotients, bits).unwrap();
    let mut model = Model::new();
    for round in 0..3 {
        let inserts = (quotients / 3).clamp(150, 700);
        for _ in 0..inserts {
            let fingerprint = draw(shape, quotients, bits, &mut random);
            *model.entry(fingerprint).or_insert(0) += 1;
            if random.below(2) == 0 {
                filter.insert(hash_of(quotients, bits, fingerprint)).unwrap();
            } else {
                filter.insert_on(Plain, fingerprint.0, fingerprint.1).unwrap();
            }
        }
        check(&filter, &model, &mut random);
        let removals = if round % 3 == 2 { inserts * 2 } else { inserts / 2 };
        for _ in 0..removals {
            let fingerprint = match random.below(3) {
                0 => draw(shape, quotients, bits, &mut random),
                _ => {
                    let from = draw(shape, quotients, bits, &mut random);
                    model.range(from..).next().map_or(from, |(f, _)| *f)
                }
            };
            let result = filter.remove(hash_of(quotients, bits, fingerprint));
            match model.get_mut(&fingerprint) {
                None => assert!(matches!(result, Err(Error::Absent(_)))),
                Some(count) => {
                    result.unwrap();
                    *count -= 1;
                    if *count == 0 {
                        model.remove(&fingerprint);
                    }
                }
            }
        }
        check(&filter, &model, &mut random);
    }
    if bits > 1 {
        let doubled = filter.double().unwrap();
        let fine = |(q, x): &(u64, u64)| (q << 1 | x >> (bits - 1), x & ((1 << (bits - 1)) - 1));
        let mut refined: Model = model.iter().map(|(f, count)| (fine(f), *count)).collect();
        check(&doubled, &refined, &mut random);
        let merged = doubled.merge(&filter).unwrap();
        assert!(merged.as_bytes() == filter.merge(&doubled).unwrap().as_bytes());
        refined.values_mut().for_each(|count| *count *= 2);
        check(&merged, &refined, &mut random);
    } else {
        assert!(matches!(filter.double(), Err(Error::Capacity(_))));
    }
    for fingerprint in model.clone().keys() {
        for _ in 0..model[fingerprint] {
            filter.remove(hash_of(quotients, bits, *fingerprint)).unwrap();
        }
    }
    assert!(filter.is_empty() && filter.as_bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn behaves_like_a_map_of_counts() {
    let mut seed = 0;
    for quotients in [1, 2, 63, 64, 65, 100, 1000, 2500] {
        for bits in [1, 2, 3, 7, 8, 9, 13, 33, 56] {
            for shape in [Shape::Uniform, Shape::Few, Shape::Last, Shape::Repeated] {
                seed += 1;
                live_through(quotients, bits, shape, seed);
            }
        }
    }
}

/// More than a thousand keys of one quotient, so that offsets are long over dozens of blocks, and
/// updates around them.
#[test]
fn long_clusters_keep_their_place() {
    for (quotients, bits, crowded) in [(3000, 16, 700), (3000, 12, 2999), (70, 13, 3)] {
        let mut random = Random(quotients + crowded);
        let mut filter = Quotient::new(quotients, bits).unwrap();
        let mut model = Model::new();
        let mut order: Vec<(u64, u64)> = (0..1500).map(|i| (crowded, (i * 7919) % 4096)).collect();
        order.extend((0..700).map(|_| (random.below(quotients), random.below(4096))));
        for index in (1..order.len()).rev() {
            order.swap(index, random.below(index as u64 + 1) as usize);
        }
        for part in order.chunks(1100) {
            let hashes: Vec<_> = part.iter().map(|f| hash_of(quotients, bits, *f)).collect();
            assert_eq!(filter.insert_batch(&hashes, u64::MAX), Ok(hashes.len()));
            part.iter().for_each(|f| *model.entry(*f).or_insert(0) += 1);
            check(&filter, &model, &mut random);
        }
        for part in order.chunks(550) {
            for fingerprint in part {
                filter.remove(hash_of(quotients, bits, *fingerprint)).unwrap();
                let count = model.get_mut(fingerprint).unwrap();
                *count -= 1;
                if *count == 0 {
                    model.remove(fingerprint);
                }
            }
            check(&filter, &model, &mut random);
        }
        assert!(filter.is_empty());
    }
}

/// The ranges that insert_slot and remove_slot return describe how the slots moved.
#[test]
fn moved_ranges_match_the_moves() {
    let mut random = Random(5);
    for quotients in [1, 60, 300] {
        let mut table = Table::new(quotients, 24).unwrap();
        let mut shadow = vec![0u64; 4096];
        for step in 1..2000u64 {
            let quotient = random.below(quotients).min(random.below(quotients));
            let run = table.run(quotient);
            assert_eq!(run.is_some(), table.is_occupied(quotient));
            let grow = step % 1000 < 600;
            match run {
                Some(run) if !grow => {
                    let position = run.start + random.below(run.end - run.start);
                    let moved = table.remove_slot(quotient, position).unwrap();
                    assert_eq!(moved.start, position + 1);
                    shadow.copy_within(moved.start as usize..moved.end as usize, position as usize);
                    shadow[moved.end as usize - 1] = 0;
                }
                None if !grow => assert!(table.remove_slot(quotient, 0).is_err()),
                run => {
                    let start = table.start(quotient);
                    let end = run.map_or(start, |run| run.end);
                    let position = start + random.below(end - start + 1);
                    assert!(table.insert_slot(quotient, end + 1, step).is_err());
                    let moved = table.insert_slot(quotient, position, step).unwrap();
                    assert_eq!(moved.start, position);
                    let to = moved.start as usize + 1;
                    shadow.copy_within(moved.start as usize..moved.end as usize, to);
                    shadow[position as usize] = step;
                }
            }
            let slots: Vec<_> = (0..table.slots()).map(|slot| table.slot(slot)).collect();
            assert_eq!(slots, shadow[..slots.len()]);
            assert!(shadow[slots.len()..].iter().all(|slot| *slot == 0));
            if step % 50 == 0 {
                let buffer = Buffer::copied(table.as_bytes()).unwrap();
                let again = Table::from_bytes(quotients, 24, buffer).unwrap();
                assert_eq!(again.used_slots(), table.used_slots());
            }
        }
        assert!(table.insert_slot(quotients, 0, 0).is_err());
        assert!(table.insert_slot(u64::MAX, u64::MAX, 0).is_err());
    }
}

#[test]
fn huge_counts_saturate_and_stay() {
    for remainder in [0, 5] {
        let part = |count| Quotient::from_sorted(10, 4, [(3, remainder, count)]).unwrap();
        let hash = hash_of(10, 4, (3, remainder));
        let mut filter = part(u64::MAX - 1);
        filter.insert(hash).unwrap();
        assert_eq!((filter.count(hash), filter.len()), (u64::MAX, u64::MAX));
        assert!(filter.as_bytes() == part(u64::MAX).as_bytes());
        filter.insert(hash).unwrap();
        filter.remove(hash).unwrap();
        assert_eq!(filter.count(hash), u64::MAX);
        let merged = filter.merge(&part(7)).unwrap();
        assert_eq!(merged.count(hash), u64::MAX);
        reopened(&merged).unwrap();
        // Remainders of one bit have no counters; a table of 2⁶⁴ slots is refused.
        let fine = merged.double().unwrap().double().unwrap();
        assert!(matches!(fine.double(), Err(Error::Memory(_))));
    }
}

#[test]
fn a_batch_stops_at_its_limit() {
    let mut random = Random(1);
    let hashes: Vec<_> =
        (0..500).map(|_| Hash128 { hi: random.next(), lo: random.next() }).collect();
    let mut filter = Quotient::new(600, 20).unwrap();
    assert_eq!(filter.insert_batch(&hashes, 300), Ok(300));
    assert_eq!(filter.insert_batch(&hashes[300..], 300), Ok(0));
    assert_eq!(filter.insert_batch(&hashes[300..], u64::MAX), Ok(200));
    assert_eq!(filter.used_slots(), 500);
}

#[test]
fn sizes_and_inputs_out_of_bounds_are_refused() {
    assert!(matches!(Quotient::new(0, 8), Err(Error::Parameter(_))));
    assert!(matches!(Quotient::new(10, 0), Err(Error::Parameter(_))));
    assert!(matches!(Quotient::new(10, 57), Err(Error::Parameter(_))));
    assert!(matches!(Quotient::new(u64::MAX, 56), Err(Error::Memory(_))));
    let sorted = |list: &[(u64, u64, u64)]| Quotient::from_sorted(10, 4, list.iter().copied());
    assert!(matches!(sorted(&[(10, 0, 1)]), Err(Error::Parameter(_))));
    assert!(matches!(sorted(&[(1, 16, 1)]), Err(Error::Parameter(_))));
    assert!(matches!(sorted(&[(1, 2, 1), (1, 1, 1)]), Err(Error::Parameter(_))));
    assert_eq!(sorted(&[(1, 2, 0), (1, 2, 1), (1, 2, 2)]).unwrap().len(), 3);
    let (a, b) = (sorted(&[]).unwrap(), Quotient::new(20, 4).unwrap());
    assert!(matches!(a.merge(&b), Err(Error::Incompatible(_))));
    assert!(a.double().unwrap().double().unwrap().merge(&a).is_ok());
}

/// Exactly the stored fingerprints are accepted, so the rate of random hashes is α within six
/// standard deviations of its binomial.
#[test]
fn rate_is_the_share_of_fingerprints() {
    let mut random = Random(3);
    let mut filter = Quotient::new(1000, 5).unwrap();
    for _ in 0..950 {
        filter.insert(Hash128 { hi: random.next(), lo: random.next() }).unwrap();
    }
    let asked: Vec<_> =
        (0..200_000).map(|_| Hash128 { hi: random.next(), lo: random.next() }).collect();
    let mut answers = vec![false; asked.len()];
    filter.contains_batch(&asked, &mut answers);
    let n = asked.len() as f64;
    let found = answers.iter().filter(|answer| **answer).count() as f64;
    let rate = filter.rate();
    assert!((found - n * rate).abs() < 6.0 * (n * rate * (1.0 - rate)).sqrt());
}

/// A damaged table is refused, or opens as a valid one and works.
#[test]
fn flipped_bytes_are_refused_or_harmless() {
    let mut random = Random(9);
    for (quotients, bits, shape) in [
        (70, 3, Shape::Repeated),
        (5, 8, Shape::Last),
        (130, 2, Shape::Few),
        (64, 1, Shape::Uniform),
    ] {
        let mut filter = Quotient::new(quotients, bits).unwrap();
        for _ in 0..150 {
            let (quotient, remainder) = draw(shape, quotients, bits, &mut random);
            filter.insert_on(Plain, quotient, remainder).unwrap();
        }
        let bytes = filter.as_bytes();
        let open = |bytes: &[u8], quotients, bits, len, distinct| {
            Quotient::from_parts(quotients, bits, len, distinct, Buffer::copied(bytes).unwrap())
        };
        let (len, distinct) = (filter.len(), filter.distinct());
        for cut in 0..bytes.len() {
            assert!(matches!(
                open(&bytes[..cut], quotients, bits, len, distinct),
                Err(Error::Format(_))
            ));
        }
        assert!(open(bytes, quotients, bits, len + 1, distinct).is_err());
        assert!(open(bytes, quotients, bits, len, distinct - 1).is_err());
        assert!(open(bytes, quotients + 1000, bits, len, distinct).is_err());
        assert!(open(bytes, u64::MAX, bits, len, distinct).is_err());
        assert!(open(bytes, 0, bits, len, distinct).is_err());
        assert!(open(bytes, quotients, 57, len, distinct).is_err());
        for at in 0..bytes.len() {
            for flip in [1, 2, 4, 8, 16, 32, 64, 128, 255, random.next() as u8 | 1] {
                let mut damaged = bytes.to_vec();
                damaged[at] ^= flip;
                // An attacker also chooses the counts in the header.
                for (len, distinct) in [(len, distinct), (len + 1, distinct), (len - 1, distinct)] {
                    let Ok(mut filter) = open(&damaged, quotients, bits, len, distinct) else {
                        continue;
                    };
                    let mut model: Model =
                        filter.fingerprints(0..quotients).map(|(q, x, c)| ((q, x), c)).collect();
                    check(&filter, &model, &mut random);
                    for _ in 0..20 {
                        let fingerprint = draw(shape, quotients, bits, &mut random);
                        filter.insert_on(Plain, fingerprint.0, fingerprint.1).unwrap();
                        *model.entry(fingerprint).or_insert(0) += 1;
                    }
                    check(&filter, &model, &mut random);
                }
            }
        }
    }
}
