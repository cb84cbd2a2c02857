//! Threads that are inside tamis while the interpreter ends.
//!
//! Before version 3.14, CPython ends a daemon thread that asks for the interpreter during
//! finalization by `pthread_exit`, wherever that thread is: in a generator that yields keys, in an
//! `__index__`, in NumPy while it allocates. glibc then unwinds the thread's stack by force, and a
//! process whose stack has frames of Rust on it is aborted ("FATAL: exception not rethrown"). CPython
//! 3.14 suspends such threads for good instead, and PyO3 does so where it takes the interpreter. Here
//! threads do the same, wherever they are: the process ends without them.
//!
//! glibc runs the handlers of `_pthread_cleanup_push` that lie outside the stack before it unwinds
//! the first frame. So each thread that enters tamis registers one, once, which does not return if
//! the interpreter is finalizing; any other `pthread_exit` is left alone.

use pyo3::prelude::*;

/// Makes this thread wait for good, instead of being unwound, if the interpreter ends while it is
/// here. To be called before anything that may run Python code or release the interpreter.
#[inline]
pub fn outlast() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::register();
}

/// Calls `work` with the interpreter; a thread that comes too late, when it is finalizing, waits for
/// good.
pub fn attached<R>(work: impl for<'py> FnOnce(Python<'py>) -> R) -> R {
    outlast();
    Python::try_attach(work).unwrap_or_else(|| wait_for_good())
}

#[cold]
fn wait_for_good() -> ! {
    loop {
        std::thread::park();
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::cell::{Cell, UnsafeCell};
    use std::ffi::{CStr, c_char, c_int, c_void};
    use std::mem::transmute;
    use std::ptr::null_mut;
    use std::sync::OnceLock;

    /// `struct _pthread_cleanup_buffer` of pthread.h.
    #[repr(C)]
    struct Handler {
        routine: Option<unsafe extern "C" fn(*mut c_void)>,
        argument: *mut c_void,
        cancel_type: c_int,
        previous: *mut Handler,
    }

    type Push =
        unsafe extern "C" fn(*mut Handler, Option<unsafe extern "C" fn(*mut c_void)>, *mut c_void);
    type IsFinalizing = unsafe extern "C" fn() -> c_int;

    unsafe extern "C" {
        fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    }

    thread_local! {
        static REGISTERED: Cell<bool> = const { Cell::new(false) };
        /// In the memory of the thread, but not on its stack, for as long as it lives.
        static HANDLER: UnsafeCell<Handler> = const {
            UnsafeCell::new(Handler {
                routine: None,
                argument: null_mut(),
                cancel_type: 0,
                previous: null_mut(),
            })
        };
    }

    #[inline]
    pub fn register() {
        if !REGISTERED.replace(true) {
            push();
        }
    }

    #[cold]
    fn push() {
        // SAFETY: glibc's function with its signature, or null.
        let push: Option<Push> = unsafe { transmute(symbol(c"_pthread_cleanup_push")) };
        if let (Some(push), Some(_)) = (push, is_finalizing()) {
            // SAFETY: the buffer lives as long as the thread, and is registered once.
            HANDLER.with(|handler| unsafe { push(handler.get(), Some(wait_at_exit), null_mut()) });
        }
    }

    /// The function that reads, without the interpreter, whether it is finalizing: public from
    /// version 3.13 on. It is looked up because the stable ABI does not have it.
    fn is_finalizing() -> Option<IsFinalizing> {
        static FOUND: OnceLock<Option<IsFinalizing>> = OnceLock::new();
        *FOUND.get_or_init(|| {
            [c"Py_IsFinalizing", c"_Py_IsFinalizing"].into_iter().find_map(|name| {
                // SAFETY: CPython's function with its signature, or null.
                unsafe { transmute::<*mut c_void, Option<IsFinalizing>>(symbol(name)) }
            })
        })
    }

    fn symbol(name: &CStr) -> *mut c_void {
        // SAFETY: a null handle searches the loaded libraries of the process.
        unsafe { dlsym(null_mut(), name.as_ptr()) }
    }

    unsafe extern "C" fn wait_at_exit(_: *mut c_void) {
        // SAFETY: the function takes nothing and reads an atomic.
        if is_finalizing().is_some_and(|finalizing| unsafe { finalizing() } != 0) {
            super::wait_for_good();
        }
    }
}
