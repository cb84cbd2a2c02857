//! Work on several threads, or on fewer if the system has no more of them.

use crate::interrupt;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, ScopedJoinHandle, scope, sleep};
use std::time::Duration;

/// The number of threads that the machine runs at once.
pub fn available() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Calls `work` with each part, on this thread and as many others as there are further parts, and
/// returns the results in order. Threads take the next part when they are done with one: so
/// wherever fewer can be started, this one alone included, they still do all of it.
pub fn map<P: Send, R: Send>(
    parts: impl ExactSizeIterator<Item = P> + Send,
    work: impl Fn(P) -> R + Sync,
) -> Vec<R> {
    let others = parts.len().saturating_sub(1);
    let (waiting, done) = (Mutex::new(parts.enumerate()), Mutex::new(Vec::new()));
    let run = || {
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((index, part)) = next else { return };
            let result = (index, work(part));
            done.lock().unwrap_or_else(PoisonError::into_inner).push(result);
        }
    };
    let watch = interrupt::current();
    scope(|scope| {
        let part = || interrupt::within(watch, run);
        let start = |_| Builder::new().spawn_scoped(scope, part).ok();
        let started: Vec<_> = (0..others).map_while(start).collect();
        run();
        started.into_iter().for_each(join);
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// [`map`], up to the first error.
pub fn try_map<P: Send, R: Send, E: Send>(
    parts: impl ExactSizeIterator<Item = P> + Send,
    work: impl Fn(P) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    map(parts, work).into_iter().collect()
}

/// Calls both, the second on another thread if there is one.
pub fn both<A, B: Send>(one: impl FnOnce() -> A, two: impl FnOnce() -> B + Send) -> (A, B) {
    let two = Mutex::new(Some(two));
    let run = || two.lock().unwrap_or_else(PoisonError::into_inner).take().map(|two| two());
    let watch = interrupt::current();
    scope(|scope| {
        let other = Builder::new().spawn_scoped(scope, || interrupt::within(watch, run)).ok();
        let one = one();
        let two = match other {
            Some(thread) => join(thread),
            None => run(),
        };
        (one, two.expect("it was called once"))
    })
}

/// Waits for a thread, unless the caller ends the work.
fn join<R>(thread: ScopedJoinHandle<'_, R>) -> R {
    let mut pause = Duration::from_micros(20);
    while !thread.is_finished() {
        interrupt::check();
        sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(5));
    }
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_worked_on_once_and_results_are_in_order() {
        for count in [0, 1, 2, 7] {
            let squares: Vec<usize> = map(0..count, |part: usize| part * part);
            assert_eq!(squares, (0..count).map(|part| part * part).collect::<Vec<_>>());
        }
        assert_eq!(try_map(0..5, |part: i32| if part < 3 { Ok(part) } else { Err(part) }), Err(3));
        assert_eq!(both(|| 1, || 2), (1, 2));
    }
}
