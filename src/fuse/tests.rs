//! Tests of the kernel alone: sizes by simulation, and hashes that no key has.

use super::build::successes;
use super::*;
use crate::distinct::{Distinct, Highs, Partitions};
use crate::hash::Hasher;

fn distinct(hashes: &[Hash128]) -> Distinct {
    let mut partitions = Partitions::new(hashes.len(), hashes.len()).unwrap();
    partitions.extend(hashes);
    Distinct::new(vec![partitions], 1).unwrap()
}

fn keys(count: u64) -> Distinct {
    let hasher = Hasher::seeded(7);
    distinct(&(0..count).map(|key| hasher.int(key, false)).collect::<Vec<_>>())
}

/// Prints the fewest slots per key with which nine of ten attempts succeed, by the number of
/// segments: the source of the constants of `planning/fuse.py`.
///
/// `cargo test --release fuse::tests::fewest_slots -- --ignored --nocapture`
#[test]
#[ignore = "prints a table, for minutes"]
fn fewest_slots() {
    let number = |name, default| std::env::var(name).map_or(default, |n| n.parse().unwrap());
    let (min, max): (u64, u64) = (number("MIN", 1), number("MAX", 1_000_000));
    for arity in [3, 4] {
        let mut n = min;
        while n <= max {
            let hashes = keys(n);
            let trials = (2_000_000 / n).clamp(10, 400);
            print!("{arity} {n:>8}");
            for segments in [3, 4, 6, 12, 20, 30, 45, 70, 100, 140, 200, 280].map(|s| s.max(arity))
            {
                let enough = |length: u64| {
                    let shape = Shape::new(arity, 8, length as u32, segments.into()).unwrap();
                    successes(shape, &hashes, trials) * 10 >= 9 * trials
                };
                let (mut low, mut high) = (n * 21 / 20, n * 5 / 4 + 50 + n / 20);
                low /= u64::from(segments);
                high /= u64::from(segments);
                let limit = high;
                low = low.max(1);
                while low < high {
                    let middle = (low + high) / 2;
                    if enough(middle) { high = middle } else { low = middle + 1 }
                }
                if high < limit {
                    print!("  {segments}:{:.3}", (high * u64::from(segments)) as f64 / n as f64);
                }
            }
            println!();
            n = (n + 1).max(n * 7 / 4);
        }
    }
}

/// Hashes that agree in the half that chooses slots are separated by the second attempt.
#[test]
fn hashes_that_agree_in_one_half() {
    let hashes: Vec<Hash128> =
        (0..600).map(|i| Hash128 { hi: i / 3 * (u64::MAX / 200), lo: i % 3 }).collect();
    for arity in [3, 4] {
        let shape = Shape::new(arity, 8, 300, arity.into()).unwrap();
        let filter = Fuse::build(shape, &distinct(&hashes), 1).unwrap();
        assert!(filter.attempts() > 1);
        let mut out = vec![false; hashes.len()];
        filter.contains(&hashes, &mut out);
        assert!(out.iter().all(|&found| found));
    }
}

/// A table that is peeled from both ends is the same with one thread and with two, even if the
/// second attempt visits the keys in another order than their slots.
#[test]
fn threads_do_not_change_the_table() {
    let hasher = Hasher::seeded(3);
    let uniform: Vec<Hash128> = (0..150_000).map(|key| hasher.int(key, false)).collect();
    let mut pairs = uniform.clone();
    pairs[1].hi = pairs[0].hi;
    for (arity, segments, slots) in [(3, 93, 174_000), (4, 150, 166_000)] {
        for (hashes, attempts) in [(&uniform, 1), (&pairs, 2)] {
            let shape = Shape::new(arity, 11, slots / segments, segments.into()).unwrap();
            let build = |threads| Fuse::build(shape, &distinct(hashes), threads).unwrap();
            let (one, two) = (build(1), build(2));
            assert_eq!(one.attempts(), attempts);
            assert!(one.table.as_slice() == two.table.as_slice());
            let mut out = vec![false; hashes.len()];
            two.contains(hashes, &mut out);
            assert!(out.iter().all(|&found| found));
        }
    }
}

/// High halves alone give the same table as the hashes, however they were collected; none if two
/// are equal.
#[test]
fn high_halves_that_differ_are_enough() {
    let hasher = Hasher::seeded(4);
    let hashes: Vec<Hash128> = (0..150_000).map(|key| hasher.int(key, false)).collect();
    let highs: Vec<u64> = hashes.iter().map(|hash| hash.hi).collect();
    let collected = |parts: &[&[u64]]| {
        let count = parts.concat().len();
        let collected = parts.iter().map(|part| {
            let mut partitions = Partitions::new(count, part.len()).unwrap();
            partitions.extend(part);
            partitions
        });
        Highs::new(collected.collect()).unwrap()
    };
    for (arity, segments, slots) in [(3, 93, 174_000), (4, 150, 166_000)] {
        let shape = Shape::new(arity, 11, slots / segments, segments.into()).unwrap();
        let build = |highs: &Highs, threads| Fuse::of_highs(shape, highs, threads).unwrap();
        let expected = Fuse::build(shape, &distinct(&hashes), 1).unwrap();
        let (front, back) = highs.split_at(40_000);
        for (parts, threads) in [(&[&highs[..]][..], 1), (&[front, back], 2), (&[back, front], 1)] {
            let highs = collected(parts);
            assert!(!highs.seem_repeated().unwrap());
            let built = build(&highs, threads).unwrap();
            assert_eq!((built.count, built.attempts()), (hashes.len() as u64, 1));
            assert!(built.table.as_slice() == expected.table.as_slice());
        }
        assert!(build(&collected(&[&highs, &highs[77..78]]), 1).is_none());
        let twice = collected(&[&highs, &highs]);
        assert!(twice.seem_repeated().unwrap() && build(&twice, 2).is_none());
    }
    assert!(Highs::new(Vec::new()).is_none());
}
