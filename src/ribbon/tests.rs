use super::*;
use crate::distinct::Partitions;
use crate::hash::Hasher;

fn distinct(n: usize, seed: u64) -> Distinct {
    let hasher = Hasher::seeded(seed);
    let hashes: Vec<Hash128> = (0..n).map(|i| hasher.signed(i as i64)).collect();
    let mut partitions = Partitions::new(n, n);
    partitions.extend(&hashes);
    Distinct::new(vec![partitions], 1)
}

#[test]
fn tune() {
    let n: usize = std::env::var("N").map_or(1_000_000, |n| n.parse().unwrap());
    let load: f64 = std::env::var("LOAD").map_or(1.0, |n| n.parse().unwrap());
    let second: f64 = std::env::var("SHARE").map_or(0.0, |n| n.parse().unwrap());
    let keys = distinct(n, 1);
    let s = |x: f64| ((x / load) as u64 / 64 * 64).max(128);
    let mut levels = vec![];
    let mut x = n as f64;
    while x > 4000.0 {
        levels.push(s(x));
        if second == 0.0 {
            break;
        };
        x *= second;
    }
    let start = std::time::Instant::now();
    let f = Ribbon::build(Layout::Interleaved, 8, &levels, &keys).unwrap();
    let t = start.elapsed();
    println!(
        "levels {:?} last {} attempt {} over {:.5} bump {:.5} {:.1}ns",
        levels,
        f.solution.shape.last.slots,
        f.solution.shape.last.attempt,
        f.size_in_bits() as f64 / 8.0 / n as f64,
        f.solution.shape.last.slots as f64 / n as f64,
        t.as_nanos() as f64 / n as f64
    );
    let mut out = vec![false; n];
    let hashes: Vec<Hash128> = keys.partitions().concat();
    f.contains(&hashes, &mut out);
    assert!(out.iter().all(|&x| x));
}
