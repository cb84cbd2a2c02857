//! Readers, writers and savers of every kind at once, from the golden files. Its own assertions are
//! few: it is there for ThreadSanitizer, see CONTRIBUTING.md.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use tamis::adaptive_cuckoo::AdaptiveCuckoo;
use tamis::adaptive_stack::AdaptiveStack;
use tamis::bits::Buffer;
use tamis::error::Result;
use tamis::hash::{Hash128, Hasher};
use tamis::kernel::{self, Kernel};
use tamis::telescoping::{Remote, Shared};
use tamis::{format, kinds};

const ROUNDS: u64 = 8;

/// Streams forget: a key that was inserted may be denied.
const STREAMS: [&str; 3] = ["stable", "windowed", "stable_learned"];

/// The hashes of the keys from `first` on.
fn hashes(first: i64, count: i64) -> Vec<Hash128> {
    let hasher = Hasher::seeded(0);
    (first..first + count).map(|key| hasher.signed(key)).collect()
}

/// A store without keys.
struct Empty;

impl Remote for Empty {
    fn run(&mut self, _: u64, _: u64) -> Result<Vec<Hash128>> {
        Ok(Vec::new())
    }

    fn scan(&mut self) -> Result<Vec<Hash128>> {
        Ok(Vec::new())
    }
}

/// Reports absent keys to the kinds that learn from them.
fn adapt(filter: &dyn Kernel, absent: &[Hash128]) {
    let mut moved = vec![false; absent.len()];
    let any: &dyn Any = filter;
    if let Some(cuckoo) = any.downcast_ref::<AdaptiveCuckoo>() {
        cuckoo.adapt(absent, &mut moved);
    } else if let Some(shared) = any.downcast_ref::<Shared>() {
        drop(shared.adapt(absent, &mut moved, &mut Empty));
    } else if let Some(stack) = any.downcast_ref::<AdaptiveStack>() {
        drop(stack.observe(absent, &mut moved));
        stack.state();
    }
}

fn read(filter: &dyn Kernel, round: u64) {
    let many = hashes(1000 * round as i64, 200);
    let mut out = [false; 200];
    filter.contains(&many, &mut out);
    filter.contains_one(many[0]);
    filter.try_contains_one(many[1]);
    assert!(filter.rate() >= 0.0 && filter.unseen_rate() >= 0.0);
    let sizes = (filter.count(), filter.capacity(), filter.busy());
    assert!(filter.size_in_bits() > 0, "{sizes:?}");
}

fn write(filter: &dyn Kernel, thread: i64, round: u64) {
    let own = hashes(1_000_000 * (thread + 1) + 4 * round as i64, 4);
    if filter.insert(&own).is_ok() {
        let mut out = [false; 4];
        filter.contains(&own, &mut out);
        assert!(
            STREAMS.contains(&filter.kind().name) || out == [true; 4],
            "{}",
            filter.kind().name
        );
        own.iter().for_each(|&hash| drop(filter.remove(hash)));
    }
    drop(filter.seen(&own, &mut [false; 4]));
    adapt(filter, &hashes(1000 * round as i64, 50));
}

fn save(filter: &dyn Kernel) {
    let frame = kernel::frame(filter, (1, 0), 0).unwrap().to_bytes().unwrap();
    let (head, sections) = format::read(&frame).unwrap();
    assert!(kinds::open(&head, &sections, &Buffer::copied).is_ok());
    filter.copy().unwrap();
}

#[test]
fn all_kinds_at_once() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut used = 0;
    for entry in golden.read_dir().unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let Ok((head, sections)) = format::read(&bytes) else { continue };
        // Collections, text indexes and classifiers change nothing once they are open.
        let Ok(filter) = kinds::open(&head, &sections, &Buffer::copied) else { continue };
        used += 1;
        // Not `thread::scope`, whose end ThreadSanitizer cannot see.
        let threads: Vec<_> = (0..5)
            .map(|i| {
                let filter = Arc::clone(&filter);
                thread::spawn(move || {
                    (0..ROUNDS).for_each(|round| match i {
                        0 | 1 => write(&*filter, i, round),
                        2 | 3 => read(&*filter, round),
                        _ => save(&*filter),
                    });
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
    assert!(used >= 40, "only {used} golden files are filters");
}
