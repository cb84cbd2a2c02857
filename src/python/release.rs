//! Long work with the interpreter released, which Ctrl-C ends.

use super::exit;
use crate::interrupt::{self, Request};
use crate::lock;
use pyo3::prelude::*;
use std::cell::Cell;

thread_local! {
    /// The error that a signal handler raised.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Runs `work` with the interpreter released. Signal handlers run meanwhile; if one raises, as
/// Python's does on Ctrl-C, the work ends at its next `interrupt::check`, and this is the error.
pub fn released<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    exit::outlast();
    let done = briefly(py, || interrupt::watched(run_handlers, work));
    done.ok_or_else(|| RAISED.take().unwrap_or_else(|| PyErr::fetch(py)))
}

/// Runs short work with the interpreter released, because it may wait for a writer or a disk.
pub fn briefly<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    #[expect(clippy::disallowed_methods)]
    py.detach(work)
}

/// Only the main thread runs handlers.
fn run_handlers() -> Request {
    exit::attached(|py| match py.check_signals() {
        Ok(()) if is_main(py) => Request::Continue,
        Ok(()) => Request::Finish,
        Err(error) => {
            RAISED.set(Some(error));
            Request::End
        }
    })
}

fn is_main(py: Python<'_>) -> bool {
    let ident = || {
        let threading = py.import("threading")?;
        let main = threading.call_method0("main_thread")?.getattr("ident")?;
        main.eq(threading.call_method0("get_ident")?)
    };
    ident().unwrap_or(true)
}

/// Reads a structure: directly, or with the interpreter released if a writer has it.
#[inline]
pub fn read<R: Send>(py: Python<'_>, read: impl Fn() -> R + Send + Sync) -> R {
    lock::at_once(&read).unwrap_or_else(|| briefly(py, read))
}
