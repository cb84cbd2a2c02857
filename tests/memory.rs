//! Every allocation of 4 KiB or more may fail: each operation then returns `Error::Memory` and leaves
//! its filter as it was, or succeeds. Smaller allocations, of messages and handles, are exempt.
//!
//! `cargo test` draws which allocations fail from fixed seeds. `fuzz/run` sets `TAMIS_FUZZ_SECONDS`,
//! and seeds follow until then.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};
use tamis::bits::Buffer;
use tamis::distinct::{Distinct, Partitions};
use tamis::error::{Error, Result};
use tamis::hash::{Hash128, Hasher};
use tamis::kernel::{self, Kernel};
use tamis::{bloom, format, fuse, kinds, ribbon, split};

/// Bytes from which an allocation may fail.
const LARGE: usize = 4096;

/// The system's allocator; large allocations of this thread fail when it is their turn.
struct Failing;

thread_local! {
    /// How many large allocations succeed before one fails; none fails if negative.
    static LEFT: Cell<i64> = const { Cell::new(-1) };
}

fn fails(bytes: usize) -> bool {
    if bytes < LARGE {
        return false;
    }
    LEFT.with(|left| match left.get() {
        ..0 => false,
        0 => {
            left.set(-1);
            true
        }
        some => {
            left.set(some - 1);
            false
        }
    })
}

// SAFETY: the system's allocator, or a null pointer, which means that there is no memory.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        if fails(layout.size()) { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if fails(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > layout.size() && fails(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.realloc(place, layout, size) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// Runs `work`, of which large allocation number `turn` fails; returns whether one did. Any error
/// but missing memory is one that `work` has without it too.
fn starved<T>(turn: i64, what: &str, work: impl FnOnce() -> Result<T>) -> (Option<T>, bool) {
    LEFT.set(turn);
    let result = work();
    let failed = LEFT.replace(-1) < 0;
    match result {
        Ok(value) => (Some(value), failed),
        Err(Error::Memory(_)) if failed => (None, true),
        Err(error) => panic!("{what}: {error}"),
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ x >> 31) % end
    }
}

fn hashes(count: i64) -> Vec<Hash128> {
    (0..count).map(|key| Hasher::seeded(0).signed(key)).collect()
}

fn distinct(hashes: &[Hash128]) -> Result<Distinct> {
    let mut partitions = Partitions::new(hashes.len(), hashes.len())?;
    partitions.extend(hashes);
    Distinct::new(vec![partitions], 1)
}

/// Writes, opens, copies, queries and fills a filter, with an allocation missing in each.
fn exercise(filter: &dyn Kernel, keys: &[Hash128], random: &mut Random) {
    let name = filter.kind().name;
    let written = || kernel::frame(filter, (1, 0), filter.count())?.to_bytes();
    let frame = written().unwrap();
    let open = || {
        let (head, sections) = format::read(&frame)?;
        kinds::open(&head, &sections, &Buffer::copied)
    };
    starved(random.below(6) as i64, name, written);
    starved(random.below(6) as i64, name, open);
    starved(random.below(6) as i64, name, || filter.copy());
    let (mut before, mut after) = (vec![false; keys.len()], vec![false; keys.len()]);
    filter.contains(keys, &mut before);
    LEFT.set(random.below(4) as i64);
    filter.contains(keys, &mut after);
    LEFT.set(-1);
    assert_eq!(before, after, "{name}: other answers without memory");
    let copy = filter.copy().unwrap();
    LEFT.set(random.below(6) as i64);
    let inserted = copy.insert(keys);
    LEFT.set(-1);
    let refused = matches!(inserted, Err(Error::Memory(_)));
    copy.contains(keys, &mut after);
    let kept = before.iter().zip(&after).all(|(&was, &is)| !was || is);
    assert!(kept || filter.kind().forgets, "{name}: a key is lost");
    if refused {
        assert_eq!(copy.count(), filter.count(), "{name}: a failed insertion left keys");
    }
    if inserted.is_ok() && !filter.kind().forgets {
        assert!(after.iter().all(|&is| is), "{name}: an inserted key is denied");
    }
}

fn build(kind: u64, set: &Distinct) -> Result<Box<dyn Kernel>> {
    let n = set.len() as u64;
    Ok(match kind {
        0 => {
            let bits = 512 * n.div_ceil(40);
            let shape = bloom::Shape::new(bloom::Layout::Blocked, bits, 7, bits)?;
            Box::new(bloom::Bloom::build(shape, set, 1)?)
        }
        1 => {
            let sizes = ribbon::Sizes { columns: 8, ..ribbon::Sizes::default() };
            Box::new(ribbon::Ribbon::build(ribbon::Layout::Columns, sizes, set)?)
        }
        _ => {
            let shape = fuse::Shape::new(3, 8, 256, n.div_ceil(200) + 3)?;
            Box::new(fuse::Fuse::build(shape, set, 1)?)
        }
    })
}

#[test]
fn missing_memory_is_an_error_and_changes_nothing() {
    let seconds = std::env::var("TAMIS_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut frames: Vec<_> =
        golden.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    frames.sort();
    let frames: Vec<Vec<u8>> = frames.iter().map(|path| std::fs::read(path).unwrap()).collect();
    let keys = hashes(20_000);
    let few = hashes(3000);
    for seed in 0.. {
        let mut random = Random(seed);
        for frame in &frames {
            let Ok((head, sections)) = format::read(frame) else { continue };
            let Ok(filter) = kinds::open(&head, &sections, &Buffer::copied) else { continue };
            exercise(&*filter, &few, &mut random);
        }
        let set = distinct(&keys).unwrap();
        for kind in 0..3 {
            starved(random.below(12) as i64, "build", || build(kind, &set));
            exercise(&*build(kind, &set).unwrap(), &few, &mut random);
        }
        starved(random.below(6) as i64, "distinct", || distinct(&keys));
        starved(random.below(3) as i64, "split", || split::write(&keys, 0, 1, &Hasher::seeded(0)));
        if until.map_or(seed >= 2, |until| Instant::now() > until) {
            break;
        }
    }
}
