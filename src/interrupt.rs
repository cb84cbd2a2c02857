//! Ends long work at the request of its caller.
//!
//! Work that may take long calls [`check`] now and then, at points where it can be left: between
//! two pieces of a batch, or anywhere in a structure that nobody else has yet. If the caller wants
//! to end, `check` unwinds the stack up to [`watched`], as a panic would but without a message;
//! locks are released and memory is freed on the way. So kernels need no result for it.
//!
//! The caller's own thread asks it, every [`INTERVAL`], unless it is writing to a structure: the
//! caller waits for the interpreter, and whoever has that may wait for the structure. Threads that
//! work for it look at one flag.

use crate::lock;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The time between two requests to the caller.
const INTERVAL: Duration = Duration::from_millis(100);
/// Checks between two readings of the clock, which takes longer than the rest of a check.
const CHECKS: u32 = 8;

/// The caller's request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// The work goes on.
    Continue,
    /// The work goes on, and the caller need not be asked again.
    Finish,
    /// The work ends.
    End,
}

/// Why a stack is unwound, other than by a panic.
pub enum Unwound {
    /// The caller asked the work to end.
    Interrupted,
    /// A lock would have to be awaited (`lock::at_once`).
    Waiting,
}

/// Passes on the unwinding of this module, and returns the payload of a panic.
pub fn panics_only(payload: Box<dyn Any + Send>) -> Box<dyn Any + Send> {
    if payload.is::<Unwound>() { resume_unwind(payload) } else { payload }
}

/// Work that its caller may end.
pub struct Watch {
    ended: AtomicBool,
}

thread_local! {
    /// The work that this thread takes part in.
    static WATCH: Cell<Option<&'static Watch>> = const { Cell::new(None) };
    /// The caller, on its own thread.
    static ASK: Cell<Option<fn() -> Request>> = const { Cell::new(None) };
    static NEXT: Cell<Option<Instant>> = const { Cell::new(None) };
    static COUNT: Cell<u32> = const { Cell::new(0) };
}

/// Runs `work`; `None` if `ask` ended it.
pub fn watched<R>(ask: fn() -> Request, work: impl FnOnce() -> R) -> Option<R> {
    let watch = Watch { ended: AtomicBool::new(false) };
    // SAFETY: the reference is gone from this thread when `within` returns, and from others, which
    // `threads` starts in a scope, before.
    let lasting: &'static Watch = unsafe { &*std::ptr::from_ref(&watch) };
    let before = (ASK.replace(Some(ask)), NEXT.replace(Some(Instant::now() + INTERVAL)));
    let done = catch_unwind(AssertUnwindSafe(|| within(Some(lasting), work)));
    ASK.set(before.0);
    NEXT.set(before.1);
    match done.map_err(|payload| payload.downcast::<Unwound>()) {
        Ok(result) => Some(result),
        Err(Ok(why)) if matches!(*why, Unwound::Interrupted) => None,
        Err(Ok(why)) => resume_unwind(why),
        Err(Err(panic)) => resume_unwind(panic),
    }
}

/// The work that this thread takes part in, for threads that it starts.
pub fn current() -> Option<&'static Watch> {
    WATCH.get()
}

/// Runs `work` as a part of another thread's, which must outlast it.
pub fn within<R>(watch: Option<&'static Watch>, work: impl FnOnce() -> R) -> R {
    struct Reset(Option<&'static Watch>);
    impl Drop for Reset {
        fn drop(&mut self) {
            WATCH.set(self.0);
        }
    }
    let _reset = Reset(WATCH.replace(watch));
    work()
}

/// Ends this work if its caller asks for it. To be called at least once per few thousand keys.
#[inline]
pub fn check() {
    if let Some(watch) = WATCH.get() {
        check_watch(watch);
    }
}

/// Sorts with a check now and then. If the work ends, the items are all there, in any order.
pub fn sort<T: Ord>(items: &mut [T]) {
    let mut compared = 0u32;
    items.sort_unstable_by(|one, other| {
        compared = compared.wrapping_add(1);
        if compared.is_multiple_of(1 << 16) {
            check();
        }
        one.cmp(other)
    });
}

#[inline(never)]
fn check_watch(watch: &Watch) {
    if !watch.ended.load(Relaxed) {
        let count = COUNT.get().wrapping_add(1);
        COUNT.set(count);
        if !count.is_multiple_of(CHECKS) || NEXT.get().is_none_or(|next| Instant::now() < next) {
            return;
        }
        let Some(ask) = ASK.get() else { return };
        if lock::is_writing() {
            return;
        }
        NEXT.set(Some(Instant::now() + INTERVAL));
        match ask() {
            Request::Continue => return,
            Request::Finish => return NEXT.set(None),
            Request::End => watch.ended.store(true, Relaxed),
        }
    }
    if !std::thread::panicking() {
        resume_unwind(Box::new(Unwound::Interrupted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    fn end() -> Request {
        Request::End
    }

    fn endless() {
        loop {
            check();
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    #[test]
    fn endless_work_ends_on_every_thread() {
        assert!(watched(end, endless).is_none());
        assert!(watched(end, || threads::map(0..3, |_: i32| endless())).is_none());
        assert!(watched(end, || threads::both(|| (), endless)).is_none());
        assert!(current().is_none());
        check();
    }

    #[test]
    fn a_sort_ends_and_loses_nothing() {
        let mixed = |i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut items: Vec<u64> = (0..300_000).map(mixed).collect();
        let sum = |items: &[u64]| items.iter().fold(0, |sum: u64, item| sum.wrapping_add(*item));
        let before = sum(&items);
        assert!(
            watched(end, || loop {
                sort(&mut items);
                items.reverse()
            })
            .is_none()
        );
        assert_eq!(sum(&items), before);
        sort(&mut items);
        assert!(items.is_sorted());
    }

    #[test]
    fn nobody_is_asked_while_a_structure_is_locked_for_writing() {
        let structure = lock::RwLock::new(());
        let ask = || if lock::is_writing() { Request::Finish } else { Request::End };
        let checks = || {
            std::thread::sleep(INTERVAL);
            (0..CHECKS).for_each(|_| check());
        };
        let work = || {
            let writing = structure.write();
            checks();
            drop(writing);
            checks();
        };
        assert!(watched(ask, work).is_none());
    }

    #[test]
    fn work_that_nobody_ends_has_a_result() {
        assert_eq!(watched(|| Request::Finish, || (0..100).map(|_| check()).count()), Some(100));
        let nested = watched(|| Request::Continue, || watched(end, endless).is_none());
        assert_eq!(nested, Some(true));
    }
}
