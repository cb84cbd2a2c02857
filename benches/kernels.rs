//! Kernels on hashed keys, one thread, beside a yardstick: reading one random cache line per key
//! of a memory as large as the filter, with the same prefetching. Times drift with the machine;
//! the ratio to the yardstick does less.
//!
//! `make bench` runs it; `cargo bench --bench kernels -- 1000000` for one number of keys.

use std::hint::black_box;
use std::time::Instant;
use tamis::bits::{Buffer, LINE, prefetch, reduce};
use tamis::bloom::{Bloom, Layout, Shape};
use tamis::hash::{Hash128, Hasher};
use tamis::kernel::Kernel;

const REPEATS: usize = 7;

fn main() {
    let asked: Vec<usize> = std::env::args().filter_map(|word| word.parse().ok()).collect();
    let sizes = if asked.is_empty() { vec![1_000_000, 10_000_000] } else { asked };
    println!("ns per key, median of {REPEATS}; the yardstick is a random read of the same memory");
    println!(
        "{:<28} {:>10} {:>9} {:>8} {:>8} {:>8} {:>10}",
        "kernel", "keys", "bits/key", "build", "present", "absent", "yardstick"
    );
    for keys in sizes {
        let hasher = Hasher::seeded(1);
        let hash = |range: std::ops::Range<usize>| -> Vec<Hash128> {
            range.map(|key| hasher.signed(key as i64)).collect()
        };
        let (present, absent) = (hash(0..keys), hash(keys..2 * keys));
        bloom(keys, &present, &absent);
    }
}

fn bloom(keys: usize, present: &[Hash128], absent: &[Hash128]) {
    // 10.67 bits per key and the best k for it, as in the C++ figure.
    let bits = (keys as u64 * 1067 / 100).next_multiple_of(512);
    for (name, layout) in [
        ("blocked Bloom", Layout::Blocked),
        ("standard Bloom", Layout::Standard),
        ("segmented Bloom", Layout::Segmented),
    ] {
        let shape = Shape::new(layout, bits, 7, bits).unwrap();
        let build = median(keys, || {
            let bloom = Bloom::new(shape).unwrap();
            bloom.writer().insert(present);
            black_box(bloom);
        });
        let bloom = Bloom::new(shape).unwrap();
        bloom.writer().insert(present);
        let query = |hashes: &[Hash128]| in_chunks(hashes, |chunk, out| bloom.contains(chunk, out));
        row(name, keys, bits, build, query(present), query(absent), absent);
    }
}

/// Queries as `contains` makes them: chunk by chunk, into a reused buffer.
fn in_chunks(hashes: &[Hash128], mut query: impl FnMut(&[Hash128], &mut [bool])) -> f64 {
    let mut out = [false; 1024];
    median(hashes.len(), || {
        for chunk in hashes.chunks(1024) {
            query(chunk, &mut out[..chunk.len()]);
            black_box(&mut out);
        }
    })
}

fn yardstick(bits: u64, hashes: &[Hash128]) -> f64 {
    let memory = Buffer::copied(&vec![1; (bits / 8) as usize]).unwrap();
    let lines = bits / 8 / LINE as u64;
    let place = |hash: &Hash128| &memory.as_slice()[reduce(hash.hi, lines) as usize * LINE];
    in_chunks(hashes, |chunk, out| {
        for (i, hash) in chunk.iter().enumerate() {
            if let Some(later) = chunk.get(i + 16) {
                prefetch(place(later));
            }
            out[i] = *place(hash) == 1;
        }
    })
}

fn row(
    name: &str,
    keys: usize,
    bits: u64,
    build: f64,
    present: f64,
    absent: f64,
    hashes: &[Hash128],
) {
    let per_key = bits as f64 / keys as f64;
    let yard = yardstick(bits, hashes);
    println!(
        "{name:<28} {keys:>10} {per_key:>9.2} {build:>8.1} {present:>8.1} {absent:>8.1} {yard:>10.1}"
    );
}

fn median(keys: usize, mut run: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_nanos() as f64 / keys as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[REPEATS / 2]
}
