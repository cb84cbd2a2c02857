//! Tests that need threads in certain positions.

use super::{Layout, Mode, Shared};
use crate::hash::Hash128;
use crate::kernel::Kernel;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Saving a filter asks it for its kind. A writer that waits for the lock at that moment blocks new
/// readers; the two must not deadlock.
#[test]
fn kind_needs_no_lock_while_the_filter_is_saved_and_a_writer_waits() {
    for (mode, kind) in [(Mode::Telescoping, 9), (Mode::Extending, 19)] {
        let shared = Arc::new(Shared::new(64, 8, Layout::Growing, mode, 60).unwrap());
        let (say, heard) = mpsc::channel();
        let saver = Arc::clone(&shared);
        thread::spawn(move || {
            let content = saver.content().unwrap();
            let own = Arc::clone(&saver);
            let writer = thread::spawn(move || own.insert(&[Hash128 { hi: 1, lo: 1 }]));
            let until = Instant::now() + Duration::from_secs(5);
            while saver.try_contains_one(Hash128 { hi: 2, lo: 2 }).is_some() {
                assert!(Instant::now() < until, "no writer waits");
                thread::yield_now();
            }
            say.send(saver.kind().number).unwrap();
            drop(content);
            writer.join().unwrap().unwrap();
            say.send(saver.kind().number).unwrap();
        });
        let wait = Duration::from_secs(20);
        assert_eq!(heard.recv_timeout(wait), Ok(kind), "saving and writing wait for each other");
        assert_eq!(heard.recv_timeout(wait), Ok(kind));
        assert_eq!(shared.count(), 1);
    }
}
