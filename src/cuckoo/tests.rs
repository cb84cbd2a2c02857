//! The kernel beside a plain model.

use super::*;
use crate::hash::Hasher;

/// At which number of keys insertions first fail.
#[test]
#[ignore]
fn loads() {
    for bits in [4, 8] {
        for buckets in [4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 256, 512] {
            show(bits, 1, buckets, 2_000_000 / buckets / 4);
        }
    }
    for bits in [1, 2, 3] {
        for (chunks, buckets, runs) in [
            (1, 6, 10000),
            (1, 10, 10000),
            (1, 16, 10000),
            (1, 32, 10000),
            (1, 64, 10000),
            (1, 256, 2000),
            (1, 1024, 1000),
            (1, 16384, 100),
            (16, 16384, 20),
        ] {
            show(bits, chunks, buckets, runs);
        }
    }
}

fn show(bits: u32, chunks: u64, buckets: u64, runs: u64) {
    let mut first = Vec::new();
    let shape = Shape::new(chunks, buckets, bits, 5).unwrap();
    for seed in 0..runs {
        let mut table = Table::new(shape).unwrap();
        let hasher = Hasher::seeded(seed);
        let mut key = 0;
        while table.insert(&[hasher.signed(key)]).is_ok() {
            key += 1;
        }
        first.push(key);
    }
    first.sort();
    let at = |q: f64| first[(q * runs as f64) as usize];
    println!(
        "f {bits} {chunks}x{buckets}={}: least {} 1e-3 {} 1e-2 {} 1e-1 {} median {} of {runs}",
        shape.slots(),
        first[0],
        at(1e-3),
        at(1e-2),
        at(1e-1),
        at(0.5)
    );
}
