//! Kernels on hashed keys, one thread, next to a yardstick: reading one random cache line per key
//! in as much memory as the filter takes, with the same prefetching. Times are processor times, so that
//! other processes matter only by the caches and the memory they use; the ratio to the yardstick
//! drifts less than they do.
//!
//! Below some kernels is the time of a C or C++ implementation, measured on the kind of machine this
//! was developed on (two cores of an AMD EPYC with AVX2): blocked and plain Bloom, cuckoo, binary fuse
//! and balanced ribbon of fastfilter_cpp, and the rank-and-select quotient filter of the authors of the
//! telescoping filter, built with link-time optimization and PDEP.
//!
//! Those are times of another day. Two of those filters are also written down here as they are there
//! (`cpp/mod.rs`), and take turns with ours: the rows "- as in C++" are of the same minute.
//!
//! `make bench` runs it; `cargo bench --bench kernels -- 1000000 bloom` for one number of keys and one
//! kind.

mod cpp;

use cpp::{Peer, Plain, Split};
use std::hint::black_box;
use tamis::bits::{Buffer, LINE, prefetch, reduce};
use tamis::bloom::{Bloom, Layout, Shape};
use tamis::cuckoo::{self, Cuckoo};
use tamis::distinct::{Distinct, Highs, Partitions};
use tamis::fuse::{self, Fuse};
use tamis::hash::{Hash128, Hasher};
use tamis::kernel::Kernel;
use tamis::quotient::{Growing, Quotient};
use tamis::ribbon::{self, Ribbon};
use tamis::telescoping::{self, Mode, Remote, Shared};

const REPEATS: usize = 9;
/// Keys per batch, as in `contains`.
const CHUNK: usize = 1024;

/// The times of one kernel, in ns per key.
struct Times {
    build: f64,
    present: f64,
    absent: f64,
}

/// Times a kind with present and absent keys, and prints its rows.
type Run = fn(&[Hash128], &[Hash128]);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let asked: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let sizes = if asked.is_empty() { vec![1_000_000, 10_000_000] } else { asked };
    let kinds: [(&str, Run); 6] = [
        ("bloom", bloom),
        ("cuckoo", cuckoo),
        ("quotient", quotient),
        ("telescoping", telescoping),
        ("fuse", fuse),
        ("ribbon", ribbon),
    ];
    let named = |name: &&str| words.iter().any(|word| word == name);
    let all = !kinds.iter().any(|(name, _)| named(name));
    println!("ns per key, median of {REPEATS}; yardstick: a random read of as much memory");
    println!(
        "{:<24} {:>10} {:>9} {:>8} {:>8} {:>8} {:>10}",
        "kernel", "keys", "bits/key", "build", "present", "absent", "yardstick"
    );
    for keys in sizes {
        let hasher = Hasher::seeded(1);
        let hash = |range: std::ops::Range<usize>| -> Vec<Hash128> {
            range.map(|key| hasher.signed(key as i64)).collect()
        };
        let (present, absent) = (hash(0..keys), hash(keys..2 * keys));
        for (_, run) in kinds.iter().filter(|(name, _)| all || named(name)) {
            run(&present, &absent);
        }
    }
}

/// Bits per key as in the C++ measurements, and the best number of hashes for them.
fn bloom(present: &[Hash128], absent: &[Hash128]) {
    for layout in [Layout::Blocked, Layout::Standard, Layout::Segmented] {
        let (hundredths, hashes) = if layout == Layout::Blocked { (1067, 7) } else { (1200, 8) };
        let bits = (present.len() as u64 * hundredths / 100).next_multiple_of(512);
        let shape = Shape::new(layout, bits, hashes, bits).unwrap();
        let fill = || {
            let bloom = Bloom::new(shape).unwrap();
            bloom.insert(present).unwrap();
            bloom
        };
        let build = median(present.len(), || drop(black_box(fill())));
        let times = ask(&fill(), build, present, absent);
        let reference = match (layout, present.len()) {
            (Layout::Blocked, 1_000_000) => Some([4.0, 5.1, 4.9]),
            (Layout::Blocked, 10_000_000) => Some([22.0, 37.0, 29.0]),
            (_, 1_000_000) => Some([10.0, 13.0, 21.0]),
            (_, 10_000_000) => Some([67.0, 94.0, 53.0]),
            _ => None,
        };
        row(&format!("Bloom, {}", layout.name()), bits, times, absent, reference);
        match layout {
            Layout::Blocked => compare::<Split>(shape, present, absent),
            _ => compare::<Plain>(shape, present, absent),
        }
    }
}

/// Ours, and a filter of fastfilter_cpp of the same size, in turns.
fn compare<P: Peer>(shape: Shape, present: &[Hash128], absent: &[Hash128]) {
    let ours = || {
        let bloom = Bloom::new(shape).unwrap();
        bloom.insert(present).unwrap();
        bloom
    };
    let build = in_turns(
        present.len(),
        || drop(black_box(ours())),
        || drop(black_box(P::of(shape, present))),
    );
    let (bloom, peer) = (ours(), P::of(shape, present));
    let query = |hashes: &[Hash128]| {
        let (mut out, mut other) = ([false; CHUNK], [false; CHUNK]);
        in_turns(
            hashes.len(),
            || {
                for chunk in hashes.chunks(CHUNK) {
                    bloom.contains(chunk, &mut out[..chunk.len()]);
                    black_box(&mut out);
                }
            },
            || {
                for chunk in hashes.chunks(CHUNK) {
                    peer.contains(chunk, &mut other);
                    black_box(&mut other);
                }
            },
        )
    };
    let columns = [build, query(present), query(absent)];
    for (i, name) in ["- as in C++", "- ours over that"].into_iter().enumerate() {
        let [build, present, absent] = columns.map(|column| column[i]);
        println!("{name:<24} {:>10} {:>9} {build:>8.2} {present:>8.2} {absent:>8.2}", "", "");
    }
}

/// Fingerprints of 12 bits at a load of 0.95: one by one, then as `build` does.
fn cuckoo(present: &[Hash128], absent: &[Hash128]) {
    let buckets = present.len() as u64 * 5 / 19;
    let chunks = (buckets >> 14).max(1);
    let shape = cuckoo::Shape::new(chunks, buckets / chunks / 2 * 2, 12, 5).unwrap();
    let fill = || {
        let filter = Cuckoo::new(shape).unwrap();
        present.chunks(CHUNK).for_each(|chunk| filter.insert(chunk).unwrap());
        filter
    };
    let build = median(present.len(), || drop(black_box(fill())));
    let filter = fill();
    let times = ask(&filter, build, present, absent);
    let reference = match present.len() {
        1_000_000 => Some([45.0, 10.0, 10.0]),
        10_000_000 => Some([200.0, 53.0, 52.0]),
        _ => None,
    };
    row("Cuckoo, 12 bits", filter.size_in_bits(), times, absent, reference);

    let mut partitions = Partitions::new(present.len(), present.len()).unwrap();
    partitions.extend(present);
    let distinct = Distinct::new(vec![partitions], 1).unwrap();
    let build = median(present.len(), || {
        drop(black_box(Cuckoo::build(shape, &distinct, 1).unwrap()));
    });
    println!("{:<24} {:>10} {:>9} {build:>8.1}", "- from distinct hashes", "", "");
}

/// Remainders of 8 bits at a load of 0.95: one by one, then from sorted hashes.
fn quotient(present: &[Hash128], absent: &[Hash128]) {
    let quotients = present.len() as u64 * 20 / 19;
    let fill = || {
        let filter = Growing::new(quotients, 8, present.len() as u64).unwrap();
        present.chunks(CHUNK).for_each(|chunk| filter.insert(chunk).unwrap());
        filter
    };
    let build = median(present.len(), || drop(black_box(fill())));
    let filter = fill();
    let times = ask(&filter, build, present, absent);
    let reference = match present.len() {
        1_000_000 => Some([129.0, 40.0, 41.0]),
        _ => None,
    };
    let bits = filter.size_in_bits();
    row("Quotient, 8 bits", bits, times, absent, reference);

    let mut sorted = present.to_vec();
    sorted.sort_unstable();
    let build = median(present.len(), || {
        let fingerprints = sorted.iter().map(|&hash| {
            let (quotient, remainder) = filter.with(|filter| filter.address(hash));
            (quotient, remainder, 1)
        });
        drop(black_box(Quotient::from_sorted(quotients, 8, fingerprints).unwrap()));
    });
    println!("{:<24} {:>10} {:>9} {build:>8.1}", "- from sorted hashes", "", "");
}

/// The stored hashes, sorted.
struct Stored(Vec<Hash128>);

impl Remote for Stored {
    fn run(&mut self, low: u64, high: u64) -> tamis::error::Result<Vec<Hash128>> {
        let from = self.0.partition_point(|hash| hash.hi < low);
        let to = self.0.partition_point(|hash| hash.hi <= high);
        Ok(self.0[from..to].to_vec())
    }

    fn scan(&mut self) -> tamis::error::Result<Vec<Hash128>> {
        Ok(self.0.clone())
    }
}

/// Adaptive quotient filters, before any query and after 20 distinct ones per key.
fn telescoping(present: &[Hash128], absent: &[Hash128]) {
    let quotients = (present.len() as u64 * 20 / 19).next_multiple_of(64);
    let hasher = Hasher::seeded(1);
    let mut stored = present.to_vec();
    stored.sort_unstable();
    let mut remote = Stored(stored);
    for (name, layout, mode) in [
        ("Telescoping", telescoping::Layout::Growing, Mode::Telescoping),
        ("- 56-bit codes", telescoping::Layout::Block, Mode::Telescoping),
        ("- uncoded", telescoping::Layout::Plain, Mode::Telescoping),
        ("Extending", telescoping::Layout::Growing, Mode::Extending),
    ] {
        let fill = || {
            let keys = present.len() as u64;
            let filter = Shared::new(quotients, 8, layout, mode, keys).unwrap();
            present.chunks(CHUNK).for_each(|chunk| filter.insert(chunk).unwrap());
            filter
        };
        let build = median(present.len(), || drop(black_box(fill())));
        let filter = fill();
        let times = ask(&filter, build, present, absent);
        row(name, filter.size_in_bits(), times, absent, None);
        let mut moved = vec![false; CHUNK];
        for start in (2 * present.len()..22 * present.len()).step_by(CHUNK) {
            let asked: Vec<_> =
                (start..start + CHUNK).map(|key| hasher.signed(key as i64)).collect();
            filter.adapt(&asked, &mut moved, &mut remote).unwrap();
        }
        let times = ask(&filter, f64::NAN, present, absent);
        row("- after A/S = 20", filter.size_in_bits(), times, absent, None);
    }
}

/// Fingerprints of 8 bits; the build is from hashes in any order, as `Fuse.build` does it. The second
/// line removes duplicates first, as builds from parts of `tamis.split` do; C++ does so only after a
/// failure, too. Sizes as planned by `planning/fuse.py` at 10⁶ keys.
fn fuse(present: &[Hash128], absent: &[Hash128]) {
    let keys = present.len() as u64;
    for (arity, slots, segments) in [(3, 1.129, 205.0), (4, 1.073, 331.0)] {
        let segments = (segments * (keys as f64 / 1e6).powf(0.42)).round().max(4.0);
        let length = (keys as f64 * slots / segments).ceil() as u32;
        let shape = fuse::Shape::new(arity, 8, length, segments as u64).unwrap();
        let distinct = || {
            let mut partitions = Partitions::new(present.len(), present.len()).unwrap();
            present.chunks(CHUNK).for_each(|chunk| partitions.extend(chunk));
            Distinct::new(vec![partitions], 1).unwrap()
        };
        let highs = || {
            let mut partitions = Partitions::new(present.len(), present.len()).unwrap();
            partitions.extend_from(present.iter().map(|hash| hash.hi));
            Highs::new(vec![partitions]).filter(|highs| !highs.seem_repeated().unwrap()).unwrap()
        };
        let built = || Fuse::of_highs(shape, &highs(), 1).unwrap().unwrap();
        let build = median(present.len(), || drop(black_box(built())));
        let filter = built();
        let times = ask(&filter, build, present, absent);
        let reference = match (arity, keys) {
            (3, 1_000_000) => Some([45.0, 7.0, 7.0]),
            (3, 10_000_000) => Some([78.0, 29.0, 35.0]),
            (4, 1_000_000) => Some([49.0, 8.0, 8.6]),
            (4, 10_000_000) => Some([80.0, 33.0, 38.0]),
            _ => None,
        };
        row(&format!("Fuse, {arity}-wise"), filter.size_in_bits(), times, absent, reference);
        let build = median(present.len(), || {
            drop(black_box(Fuse::build(shape, &distinct(), 1).unwrap()));
        });
        println!("{:<24} {:>10} {:>9} {build:>8.1}", "- duplicates removed", "", "");
    }
}

/// Eight columns, and seven and a half, with the levels that `tamis.planning.ribbon` chooses. The build starts from hashes
/// in any order, so it includes removing duplicates and sorting.
fn ribbon(present: &[Hash128], absent: &[Hash128]) {
    let mut levels = Vec::new();
    let mut left = present.len() as u64;
    while left > 4000 {
        let slots = (left as f64 / 1.06) as u64 / 64 * 64;
        levels.push(slots);
        left -= (slots as f64 * 0.999) as u64 - 64;
    }
    let layouts = [ribbon::Layout::Interleaved, ribbon::Layout::Columns];
    let both = layouts.into_iter().flat_map(|layout| [(layout, 8, 0), (layout, 7, 1 << 31)]);
    for (layout, columns, share) in both {
        let fill = || {
            let mut partitions = Partitions::new(present.len(), present.len()).unwrap();
            partitions.extend(present);
            let distinct = Distinct::new(vec![partitions], 1).unwrap();
            let sizes = ribbon::Sizes { columns, share, levels: &levels, ..Default::default() };
            Ribbon::build(layout, sizes, &distinct).unwrap()
        };
        let build = median(present.len(), || drop(black_box(fill())));
        let filter = fill();
        let times = ask(&filter, build, present, absent);
        let reference = match (layout, share, present.len()) {
            (ribbon::Layout::Interleaved, 0, 1_000_000) => Some([128.0, 27.0, 29.0]),
            (ribbon::Layout::Interleaved, 0, 10_000_000) => Some([180.0, 87.0, 86.0]),
            _ => None,
        };
        let part = if share > 0 { ", 7.5" } else { "" };
        let name = format!("Ribbon, {}{part}", layout.name());
        row(&name, filter.size_in_bits(), times, absent, reference);
    }
}

fn ask(filter: &dyn Kernel, build: f64, present: &[Hash128], absent: &[Hash128]) -> Times {
    let query = |hashes: &[Hash128]| in_chunks(hashes, |chunk, out| filter.contains(chunk, out));
    Times { build, present: query(present), absent: query(absent) }
}

fn in_chunks(hashes: &[Hash128], mut query: impl FnMut(&[Hash128], &mut [bool])) -> f64 {
    let mut out = [false; CHUNK];
    median(hashes.len(), || {
        for chunk in hashes.chunks(CHUNK) {
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

fn row(name: &str, bits: u64, times: Times, absent: &[Hash128], reference: Option<[f64; 3]>) {
    let (keys, yard) = (absent.len(), yardstick(bits, absent));
    let per_key = bits as f64 / keys as f64;
    let Times { build, present, absent } = times;
    println!(
        "{name:<24} {keys:>10} {per_key:>9.2} {build:>8.1} {present:>8.1} {absent:>8.1} {yard:>10.1}"
    );
    if let Some(figures) = reference {
        let [a, b, c] = figures;
        println!("{:<24} {:>10} {:>9} {a:>8.1} {b:>8.1} {c:>8.1}", "- in C or C++", "", "");
        let [a, b, c] = [build / a, present / b, absent / c];
        println!("{:<24} {:>10} {:>9} {a:>8.2} {b:>8.2} {c:>8.2}", "- ours over theirs", "", "");
    }
}

/// The time of theirs, and how many times as long ours takes: medians of rounds in which both run.
fn in_turns(keys: usize, mut ours: impl FnMut(), mut theirs: impl FnMut()) -> [f64; 2] {
    let rounds: Vec<[f64; 2]> =
        (0..REPEATS).map(|_| [timed(&mut ours), timed(&mut theirs)]).collect();
    let time = middle(rounds.iter().map(|[_, theirs]| theirs / keys as f64));
    [time, middle(rounds.iter().map(|[ours, theirs]| ours / theirs))]
}

fn median(keys: usize, mut run: impl FnMut()) -> f64 {
    middle((0..REPEATS).map(|_| timed(&mut run) / keys as f64))
}

fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn timed(run: &mut impl FnMut()) -> f64 {
    let start = processor_time();
    run();
    processor_time() - start
}

/// Nanoseconds that this thread has run.
fn processor_time() -> f64 {
    #[repr(C)]
    struct Time {
        seconds: i64,
        nanoseconds: i64,
    }
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut Time) -> i32;
    }
    /// `CLOCK_THREAD_CPUTIME_ID` of Linux.
    const THREAD: i32 = 3;
    let mut time = Time { seconds: 0, nanoseconds: 0 };
    // SAFETY: the C library fills in a `timespec`, which has this layout on 64-bit Linux.
    let failed = unsafe { clock_gettime(THREAD, &mut time) };
    assert_eq!(failed, 0, "no processor time of a thread");
    time.seconds as f64 * 1e9 + time.nanoseconds as f64
}
