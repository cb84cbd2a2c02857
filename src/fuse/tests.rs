//! What is particular to the kernel: sizes by simulation.

use super::build::successes;
use super::*;
use crate::distinct::{Distinct, Partitions};
use crate::hash::Hasher;

fn distinct(hashes: &[Hash128]) -> Distinct {
    let mut partitions = Partitions::new(hashes.len(), hashes.len());
    partitions.extend(hashes);
    Distinct::new(vec![partitions], 1)
}

fn keys(count: u64) -> Distinct {
    let hasher = Hasher::seeded(7);
    distinct(&(0..count).map(|key| hasher.int(key, false)).collect::<Vec<_>>())
}

/// Prints the fewest slots per key with which nine attempts of ten succeed, by the number of
/// segments: where the constants of `planning/fuse.py` come from.
///
/// `cargo test --release fuse::tests::fewest_slots -- --ignored --nocapture`
#[test]
#[ignore = "prints a table, for minutes"]
fn fewest_slots() {
    let number = |name, default| std::env::var(name).map_or(default, |n| n.parse().unwrap());
    let (least, most): (u64, u64) = (number("LEAST", 1), number("MOST", 1_000_000));
    for arity in [3, 4] {
        let mut n = least;
        while n <= most {
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

#[test]
#[ignore]
fn probe() {
    let spec = std::env::var("PROBE").unwrap();
    for word in spec.split(' ') {
        let f: Vec<f64> = word.split(',').map(|x| x.parse().unwrap()).collect();
        let (n, arity, length, factor, trials) =
            (f[0] as u64, f[1] as u32, f[2], f[3], f[4] as u64);
        let hashes = keys(n);
        let segments = (n as f64 * factor / length).round();
        let length = (n as f64 * factor / segments) as u32;
        let shape = Shape::new(arity, 8, length, segments as u64).unwrap();
        let solved = successes(shape, &hashes, trials);
        println!(
            "{n} {arity} {segments}x{length} {:.4}: {solved}/{trials}",
            shape.slots() as f64 / n as f64
        );
    }
}

#[test]
#[ignore]
fn timing() {
    let hashes = keys(1_000_000);
    for _ in 0..12 {
        let t = std::time::Instant::now();
        let shape = Shape::new(3, 8, 5515, 205).unwrap();
        let f = Fuse::build(shape, &hashes).unwrap();
        println!("all {:?} {}", t.elapsed(), f.attempts());
    }
}
