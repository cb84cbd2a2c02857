//! The lock of every structure that changes: one writer or many readers, also across `fork`.
//!
//! A forked child has the memory of its parent but only the thread that forked. A lock held by
//! another thread stays locked there, and a structure that it was writing stays half written. So:
//!
//! * Writers are counted, and a fork waits until there are none: the child never has a structure that
//!   is half written. A write is computation (no structure waits for Python or a remote while it is
//!   locked for writing) and, where hashes or filters are spilled, a write to a temporary file, so the
//!   wait ends.
//! * Readers are not counted, because some take long (saving a filter, say) and leave nothing behind
//!   but a locked lock. Each lock knows the process in which it was last used; in another one, it is
//!   unlocked first.
//!
//! A thread that holds the interpreter is not counted as a writer ([`holding_interpreter`]): a
//! thread that forks holds it too. Counting takes two locked instructions, a tenth of the time of a
//! single insertion.
//!
//! A writer lets readers that wait go first, so one that writes piece by piece shuts nobody out; and
//! [`RwLock::in_pieces`] keeps other writers out between its pieces. A thread that must not wait,
//! because it holds the interpreter, reads [`at_once`] or not at all.
//!
//! The handlers are installed by [`install_fork_handlers`], once per process. Without them, the
//! locks behave like the standard library's.

use crate::interrupt::Unwound;
use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Mutex, PoisonError, RwLock as RawLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// How many forks lie between this process and the one that loaded this library.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// Number of threads that write.
static WRITERS: AtomicUsize = AtomicUsize::new(0);
/// Number of threads that are about to fork.
static FORKING: AtomicUsize = AtomicUsize::new(0);
/// Held while a lock of another process is unlocked.
static UNLOCKING: Mutex<()> = Mutex::new(());

thread_local! {
    /// The number of structures that this thread is writing to: one, and its parts.
    static WRITING: Cell<usize> = const { Cell::new(0) };
    /// Whether this thread is counted in [`WRITERS`].
    static COUNTED: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread holds the interpreter, and does so until it stops writing.
    static HOLDING: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread must not wait for a writer.
    static AT_ONCE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `read`, which only reads; `None` if it would have to wait for a writer. For threads that
/// hold the interpreter, for which others wait.
#[inline]
pub fn at_once<R>(read: impl FnOnce() -> R) -> Option<R> {
    let before = AT_ONCE.replace(true);
    let done = catch_unwind(AssertUnwindSafe(read));
    AT_ONCE.set(before);
    match done.map_err(|payload| payload.downcast::<Unwound>()) {
        Ok(result) => Some(result),
        Err(Ok(why)) if matches!(*why, Unwound::Waiting) => None,
        Err(Ok(why)) => resume_unwind(why),
        Err(Err(panic)) => resume_unwind(panic),
    }
}

/// Whether this thread is writing to a structure, for which forks and other threads wait.
#[inline]
pub fn is_writing() -> bool {
    WRITING.get() > 0
}

/// Runs `work` in a thread that holds the interpreter. `work` must neither release the interpreter
/// nor call Python code while it writes.
#[inline]
pub fn holding_interpreter<R>(work: impl FnOnce() -> R) -> R {
    struct Reset(bool);
    impl Drop for Reset {
        #[inline]
        fn drop(&mut self) {
            HOLDING.set(self.0);
        }
    }
    let _reset = Reset(HOLDING.replace(true));
    work()
}

/// A read-write lock. A panic while it is held does not poison it: a structure that panics is
/// damaged in any case, and its opening reports that.
#[derive(Default)]
pub struct RwLock<T> {
    /// The process that `raw` belongs to, as counted by [`FORKS`].
    process: AtomicU64,
    raw: UnsafeCell<RawLock<()>>,
    /// Readers that wait.
    waiting: AtomicUsize,
    /// Whether a writer has it for itself, also between its pieces.
    reserved: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: as for the standard library's: the value is handed out as `&T` to readers and as `&mut T`
// to the one writer, and `raw` is replaced only while no thread of this process uses it.
unsafe impl<T: Send> Send for RwLock<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for RwLock<T> {}

/// The right to read.
pub struct ReadGuard<'a, T> {
    value: &'a T,
    // Fields are dropped in order: ThreadSanitizer learns of the release before the lock is unlocked.
    _order: Order,
    _raw: RwLockReadGuard<'a, ()>,
}

/// The right to read, apart from the value: writers wait while it lives.
pub struct Held<'a> {
    _order: Order,
    _raw: RwLockReadGuard<'a, ()>,
}

impl<'a, T> ReadGuard<'a, T> {
    /// The value, and the lock that keeps it as it is.
    ///
    /// # Safety
    /// The value must not be used once the lock is dropped.
    pub unsafe fn split(self) -> (&'a T, Held<'a>) {
        (self.value, Held { _order: self._order, _raw: self._raw })
    }
}

/// The right to write.
pub struct WriteGuard<'a, T> {
    value: &'a mut T,
    _order: Order,
    // Unlocked first, then no longer counted.
    _raw: RwLockWriteGuard<'a, ()>,
    _writer: Writer,
}

/// Tells ThreadSanitizer that work under a lock happens before later work under it. It cannot see
/// that itself, because the locks of the standard library are not compiled with it.
struct Order(#[cfg(tsan)] *const std::ffi::c_void);

#[cfg(tsan)]
unsafe extern "C" {
    fn __tsan_acquire(lock: *const std::ffi::c_void);
    fn __tsan_release(lock: *const std::ffi::c_void);
}

impl Order {
    #[inline(always)]
    fn of<T>(_lock: &RwLock<T>) -> Order {
        #[cfg(tsan)]
        {
            let lock = std::ptr::from_ref(_lock).cast();
            // SAFETY: any address is valid.
            unsafe { __tsan_acquire(lock) };
            Order(lock)
        }
        #[cfg(not(tsan))]
        Order()
    }
}

#[cfg(tsan)]
impl Drop for Order {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { __tsan_release(self.0) }
    }
}

impl<T> RwLock<T> {
    /// An unlocked lock.
    pub fn new(value: T) -> RwLock<T> {
        let process = AtomicU64::new(FORKS.load(Relaxed));
        RwLock {
            process,
            raw: UnsafeCell::default(),
            waiting: AtomicUsize::new(0),
            reserved: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the writer.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        self.try_read().unwrap_or_else(|| self.wait_to_read())
    }

    #[cold]
    fn wait_to_read(&self) -> ReadGuard<'_, T> {
        if AT_ONCE.get() {
            resume_unwind(Box::new(Unwound::Waiting));
        }
        self.waiting.fetch_add(1, Relaxed);
        let raw = self.raw().read().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Relaxed);
        // SAFETY: while `raw` is locked for readers, nobody writes.
        ReadGuard { value: unsafe { &*self.value.get() }, _order: Order::of(self), _raw: raw }
    }

    /// [`RwLock::read`], or `None` if it would wait.
    #[inline]
    pub fn try_read(&self) -> Option<ReadGuard<'_, T>> {
        let raw = self.raw().try_read().ok()?;
        // SAFETY: as in `wait_to_read`.
        Some(ReadGuard { value: unsafe { &*self.value.get() }, _order: Order::of(self), _raw: raw })
    }

    /// Waits for all others, and for a fork in progress.
    #[inline]
    pub fn write(&self) -> WriteGuard<'_, T> {
        loop {
            let guard = self.write_piece();
            if !self.reserved.load(Relaxed) {
                return guard;
            }
            drop(guard);
            wait_until(|| !self.reserved.load(Relaxed));
        }
    }

    /// Waits for other writers, and keeps them out until dropped. Readers come in between two
    /// pieces, so the state that they see then must be consistent.
    pub fn in_pieces(&self) -> Pieces<'_, T> {
        let _first = self.write();
        self.reserved.store(true, Relaxed);
        Pieces { lock: self }
    }

    #[inline]
    fn write_piece(&self) -> WriteGuard<'_, T> {
        let writer = Writer::new();
        let raw = self.raw();
        if self.waiting.load(Relaxed) > 0 {
            self.let_readers_in();
        }
        let raw = raw.write().unwrap_or_else(PoisonError::into_inner);
        WriteGuard {
            // SAFETY: while `raw` is locked for a writer, nobody else reads or writes.
            value: unsafe { &mut *self.value.get() },
            _order: Order::of(self),
            _raw: raw,
            _writer: writer,
        }
    }

    /// Lets readers that wait go first: a lock that is released and taken again at once would never
    /// be theirs. For a short time only, because there may always be another one.
    #[cold]
    fn let_readers_in(&self) {
        for _ in 0..20 {
            if self.waiting.load(Relaxed) == 0 {
                return;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Whether a writer would have to wait now.
    pub fn is_locked(&self) -> bool {
        self.raw().try_write().is_err() || self.reserved.load(Relaxed)
    }

    #[inline(always)]
    fn raw(&self) -> &RawLock<()> {
        if self.process.load(Acquire) != FORKS.load(Relaxed) {
            self.unlock_after_fork();
        }
        // SAFETY: it belongs to this process now, and is not replaced again while the process runs.
        unsafe { &*self.raw.get() }
    }

    /// Unlocks a lock that threads of another process held. The forking thread, which continues in
    /// the child, holds no guard: no Python code runs while one is held.
    #[cold]
    fn unlock_after_fork(&self) {
        let _writer = Writer::new(); // a fork of this process waits
        let _one = UNLOCKING.lock().unwrap_or_else(PoisonError::into_inner);
        let process = FORKS.load(Relaxed);
        if self.process.load(Relaxed) != process {
            // SAFETY: threads of this process use `raw` only after they have seen that it belongs
            // to this process, which none has yet; threads of another process do not exist here.
            unsafe { self.raw.get().write(RawLock::new(())) };
            self.waiting.store(0, Relaxed);
            self.reserved.store(false, Relaxed);
            self.process.store(process, Release);
        }
    }
}

/// The right to write several times, with no other writer in between.
pub struct Pieces<'a, T> {
    lock: &'a RwLock<T>,
}

impl<T> Pieces<'_, T> {
    /// Waits for readers, and for a fork in progress.
    pub fn write(&self) -> WriteGuard<'_, T> {
        self.lock.write_piece()
    }
}

impl<T> Drop for Pieces<'_, T> {
    fn drop(&mut self) {
        self.lock.reserved.store(false, Relaxed);
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        self.value
    }
}

/// A number of this process that its forked children do not share: the number of forks between it
/// and the process that loaded this library.
#[inline]
pub fn process() -> u64 {
    FORKS.load(Relaxed)
}

/// Counts the thread as a writer until dropped.
struct Writer;

impl Writer {
    #[inline]
    fn new() -> Writer {
        if WRITING.with(|writing| writing.replace(writing.get() + 1)) == 0 && !HOLDING.get() {
            COUNTED.set(true);
            // Either the forking thread sees this writer, or this one sees that it is forking.
            WRITERS.fetch_add(1, SeqCst);
            while FORKING.load(SeqCst) > 0 {
                WRITERS.fetch_sub(1, SeqCst);
                wait_until(|| FORKING.load(SeqCst) == 0);
                WRITERS.fetch_add(1, SeqCst);
            }
        }
        Writer
    }
}

impl Drop for Writer {
    #[inline]
    fn drop(&mut self) {
        if WRITING.with(|writing| writing.replace(writing.get() - 1)) == 1 && COUNTED.replace(false)
        {
            WRITERS.fetch_sub(1, Release);
        }
    }
}

#[cold]
fn wait_until(done: impl Fn() -> bool) {
    while !done() {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Makes forks of this process wait for writers, and lets children detect the fork.
pub fn install_fork_handlers() {
    #[cfg(unix)]
    {
        type Handler = Option<unsafe extern "C" fn()>;
        unsafe extern "C" {
            fn pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> i32;
        }
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: functions that live as long as the process; they neither allocate nor panic. If
        // it fails for lack of memory, forks do not wait.
        ONCE.call_once(|| unsafe {
            pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child));
        });
    }
}

/// Waits for writers other than this thread, which is one only if foreign code forks while it
/// writes.
#[cfg(unix)]
extern "C" fn before_fork() {
    FORKING.fetch_add(1, SeqCst);
    let own = usize::from(COUNTED.get());
    wait_until(|| WRITERS.load(SeqCst) <= own);
}

#[cfg(unix)]
extern "C" fn after_fork() {
    FORKING.fetch_sub(1, SeqCst);
}

#[cfg(unix)]
extern "C" fn in_child() {
    FORKS.fetch_add(1, Relaxed);
    WRITERS.store(usize::from(COUNTED.get()), SeqCst);
    FORKING.store(0, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_writer_or_many_readers() {
        let lock = RwLock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| *lock.write() += 1));
            }
        });
        assert_eq!(*lock.read(), 4000);
        let (one, two) = (lock.read(), lock.try_read());
        assert!(lock.is_locked() && two.is_some());
        drop((one, two));
        let writing = lock.write();
        assert!(lock.try_read().is_none());
        drop(writing);
        assert!(!lock.is_locked());
    }

    #[test]
    fn readers_come_between_pieces_and_writers_do_not() {
        let lock = RwLock::new(0);
        let pieces = lock.in_pieces();
        *pieces.write() += 1;
        assert_eq!(at_once(|| *lock.read()), Some(1));
        assert!(lock.is_locked());
        std::thread::scope(|scope| {
            let piece = pieces.write();
            assert_eq!(at_once(|| *lock.read()), None);
            let reader = scope.spawn(|| *lock.read());
            let writer = scope.spawn(|| std::mem::replace(&mut *lock.write(), 9));
            wait_until(|| lock.waiting.load(Relaxed) == 1);
            drop(piece);
            assert_eq!(reader.join().unwrap(), 1);
            *pieces.write() += 1;
            drop(pieces);
            assert_eq!(writer.join().unwrap(), 2);
        });
        assert_eq!((at_once(|| *lock.read()), lock.is_locked()), (Some(9), false));
    }

    #[test]
    fn a_child_unlocks_locks_of_its_parent() {
        let lock = RwLock::new(7);
        std::mem::forget(lock.read());
        assert!(lock.is_locked());
        lock.process.store(u64::MAX, Relaxed); // as after a fork
        assert!(!lock.is_locked());
        assert_eq!(*lock.write(), 7);
    }

    #[test]
    fn a_thread_with_the_interpreter_is_not_counted() {
        let lock = RwLock::new(());
        let (counted, writing) = holding_interpreter(|| {
            let _writing = lock.write();
            (COUNTED.get(), WRITING.get())
        });
        assert_eq!((counted, writing, HOLDING.get(), WRITING.get()), (false, 1, false, 0));
        let writing = lock.write();
        assert!(COUNTED.get());
        drop(writing);
        assert!(!COUNTED.get());
    }

    #[test]
    fn a_thread_writes_until_its_last_guard_is_gone() {
        let (whole, part) = (RwLock::new(()), RwLock::new(()));
        let (whole, part) = (whole.write(), part.write());
        assert_eq!(WRITING.get(), 2);
        drop(whole);
        assert_eq!(WRITING.get(), 1);
        assert!(WRITERS.load(SeqCst) > 0);
        drop(part);
        assert_eq!(WRITING.get(), 0);
    }
}
