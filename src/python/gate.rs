//! The gate of a guard: the queries that it answers from memory, in one native call.
//!
//! A gate holds the guard's filter and one deadline. Before the deadline the filter's "no" stands by
//! itself: the guard holds the lease, or the filter was level with the store recently enough. After
//! it, and for every "maybe", the caller asks the store. docs/guard.md says why a "no" that is given
//! here never denies a stored key; this file has to keep to three rules for that:
//!
//! * The deadline is read before the filter, and both together: while a thread is between the two,
//!   no other filter takes its place ([`Gate::replace`] waits, and closes the gate).
//! * The time is read after the query began.
//! * A process that was forked answers nothing: the lease and the connections are its parent's.

use super::error::catch_damage;
use super::filter::Stored;
use super::keys::{self, Secret, hash_object, hasher};
use crate::clock;
use crate::hash::{Hash128, Hasher};
use crate::kernel::Kernel;
use crate::lock::{self, RwLock};
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// The deadline of a gate that is closed: the filter is not asked.
const CLOSED: u64 = 0;
/// A deadline that has passed: the filter is asked, and a "no" has to be confirmed.
const PASSED: u64 = 1;

/// A query that the gate did not answer.
#[pyclass(frozen, module = "tamis._native")]
pub struct Lookup {
    hash: Hash128,
    /// The key in the form in which stores take it.
    #[pyo3(get)]
    key: Py<PyAny>,
    /// Whether the filter accepts the key. If not, the store has to confirm that the filter is level
    /// with it, and `Gate.accepts` asks the filter again.
    #[pyo3(get)]
    accepted: bool,
}

#[pymethods]
impl Lookup {
    /// The hash of the key, as `tamis.hash_keys` has it: one row.
    #[getter]
    fn hashes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        PyArray1::from_slice(py, &[self.hash.hi, self.hash.lo]).reshape([1, 2])
    }
}

impl Lookup {
    fn of(key: &Bound<'_, PyAny>, hash: Hash128, accepted: bool) -> PyResult<Lookup> {
        Ok(Lookup { hash, key: keys::plain_key(key)?.unbind(), accepted })
    }
}

/// How many bits of a hash say in which region it is.
const REGION_BITS: u32 = 6;
/// Parts of the hash space, each of which a guard locks to write to.
pub const REGIONS: u32 = 1 << REGION_BITS;

/// Keys that are to be written, with their hashes.
#[pyclass(frozen, module = "tamis._native")]
pub struct Batch {
    keys: Py<PyList>,
    hashes: Vec<Hash128>,
}

#[pymethods]
impl Batch {
    /// The hashes of the keys, as `tamis.hash_keys` has them.
    #[getter]
    fn hashes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        let words: Vec<u64> = self.hashes.iter().flat_map(|hash| [hash.hi, hash.lo]).collect();
        PyArray1::from_vec(py, words).reshape([self.hashes.len(), 2])
    }

    /// The regions that the hashes are in, each once, in order.
    #[getter]
    fn regions(&self) -> Vec<u64> {
        let region = |hash: &Hash128| hash.hi >> (64 - REGION_BITS);
        let mut regions: Vec<u64> = self.hashes.iter().map(region).collect();
        regions.sort_unstable();
        regions.dedup();
        regions
    }
}

/// The filter of a guard, and until when its "no" needs no access to the store.
#[pyclass(frozen, module = "tamis._native")]
pub struct Gate {
    hasher: Hasher,
    filter: RwLock<Answering>,
    /// In nanoseconds of [`clock::now`].
    until: AtomicU64,
    denied: AtomicU64,
    found: AtomicU64,
    change_checks: AtomicU64,
    process: u64,
}

/// A filter as Python has it, and the kernel of one of ours.
struct Answering {
    object: Py<PyAny>,
    kernel: Option<Arc<dyn Kernel>>,
}

impl Answering {
    fn new(filter: &Bound<'_, PyAny>) -> Answering {
        let kernel = filter.cast::<Stored>().ok().map(|stored| stored.get().handle.kernel.clone());
        Answering { object: filter.clone().unbind(), kernel }
    }
}

/// Who has to answer a query, since that may wait or run Python, which a lock must not outlive.
enum Asked {
    Answered(bool),
    Kernel(Arc<dyn Kernel>),
    Object(Py<PyAny>),
}

#[pymethods]
impl Gate {
    /// A closed gate.
    #[new]
    #[pyo3(signature = (filter, seed=None, key=None))]
    fn new(
        filter: &Bound<'_, PyAny>,
        seed: Option<u64>,
        #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
    ) -> PyResult<Gate> {
        Ok(Gate {
            hasher: hasher(seed.unwrap_or(0), key)?,
            filter: RwLock::new(Answering::new(filter)),
            until: AtomicU64::new(CLOSED),
            denied: AtomicU64::new(0),
            found: AtomicU64::new(0),
            change_checks: AtomicU64::new(0),
            process: lock::process(),
        })
    }

    /// The filter.
    #[getter]
    fn filter(&self, py: Python<'_>) -> Py<PyAny> {
        self.filter.read().object.clone_ref(py)
    }

    /// The filter, or None if its "no" has to be confirmed by the store.
    fn current_filter(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.check_process()?;
        let filter = self.filter.read();
        let current = clock::now() < self.until.load(Acquire);
        Ok(current.then(|| filter.object.clone_ref(py)))
    }

    /// Put another filter with the same hash in place of this one, and close the gate.
    fn replace(&self, filter: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(stored) = filter.cast::<Stored>()
            && !stored.get().handle.hasher.same_as(&self.hasher)
        {
            return Err(PyValueError::new_err("the filter has another seed or key"));
        }
        let next = Answering::new(filter);
        let last = {
            let mut filter = self.filter.write();
            self.until.store(CLOSED, Release);
            std::mem::replace(&mut *filter, next)
        };
        drop(last); // which may run Python, and so must not hold the lock
        Ok(())
    }

    /// Let the filter's "no" stand until this time of `now`; 0.0 asks for confirmation each time.
    fn open_until(&self, seconds: f64) {
        self.until.store(((seconds * 1e9) as u64).max(PASSED), Release);
    }

    /// Ask the filter nothing until the gate is opened again.
    fn close(&self) {
        self.until.store(CLOSED, Release);
    }

    /// Answer a query with None if the key is absent; otherwise return what the caller needs to go on.
    fn lookup(&self, key: &Bound<'_, PyAny>) -> PyResult<Option<Lookup>> {
        self.check_process()?;
        let hash = self.hash(key)?;
        let (until, asked) = {
            let filter = self.filter.read();
            let until = self.until.load(Acquire);
            if until == CLOSED {
                return Lookup::of(key, hash, false).map(Some);
            }
            (until, filter.ask(key.py(), hash)?)
        };
        if asked.answer(key, hash)? {
            return Lookup::of(key, hash, true).map(Some);
        }
        if until == PASSED || clock::now() >= until {
            return Lookup::of(key, hash, false).map(Some);
        }
        self.denied.fetch_add(1, Relaxed);
        Ok(None)
    }

    /// Ask the filter again about a key that was looked up.
    fn accepts(&self, py: Python<'_>, lookup: &Lookup) -> PyResult<bool> {
        let asked = self.filter.read().ask(py, lookup.hash)?;
        asked.answer(lookup.key.bind(py), lookup.hash)
    }

    /// Hash keys that are to be written.
    fn batch(&self, keys: &Bound<'_, PyList>) -> PyResult<Batch> {
        self.check_process()?;
        let named = |(index, key): (usize, Bound<'_, PyAny>)| {
            let hash = hash_object(&self.hasher, &key).map(|(hash, _)| hash);
            hash.map_err(|reason| reason.named(&format!("keys[{index}]")))
        };
        let hashes = keys.iter().enumerate().map(named).collect::<PyResult<Vec<_>>>()?;
        Ok(Batch { keys: keys.clone().unbind(), hashes })
    }

    /// The indices of the keys that the filter accepts.
    fn accepted(&self, py: Python<'_>, batch: &Batch) -> PyResult<Vec<usize>> {
        let (object, kernel) = {
            let filter = self.filter.read();
            (filter.object.clone_ref(py), filter.kernel.clone())
        };
        let mut answers = vec![false; batch.hashes.len()];
        if let Some(kernel) = kernel {
            // One key at once, unless that would wait.
            let at_once = match batch.hashes[..] {
                [hash] => catch_damage(|| kernel.try_contains_one(hash))?,
                _ => None,
            };
            match at_once {
                Some(answer) => answers[0] = answer,
                None => {
                    py.detach(|| catch_damage(|| kernel.contains(&batch.hashes, &mut answers)))?
                }
            }
        } else {
            for (answer, key) in answers.iter_mut().zip(batch.keys.bind(py)) {
                *answer = object.bind(py).contains(key)?;
            }
        }
        Ok((0..answers.len()).filter(|&index| answers[index]).collect())
    }

    /// Whether this process has been forked from the one that made the gate.
    #[getter]
    fn forked(&self) -> bool {
        self.process != lock::process()
    }

    /// Queries that were answered "no", here or by `count_denied`.
    #[getter]
    fn denied(&self) -> u64 {
        self.denied.load(Relaxed)
    }

    /// Queries whose value the store had.
    #[getter]
    fn found(&self) -> u64 {
        self.found.load(Relaxed)
    }

    /// How often the store was checked for changes of its keys.
    #[getter]
    fn change_checks(&self) -> u64 {
        self.change_checks.load(Relaxed)
    }

    /// Count a check of the store for changes.
    fn count_change_check(&self) {
        self.change_checks.fetch_add(1, Relaxed);
    }

    /// Count queries that the filter answered "no" after the store confirmed it.
    fn count_denied(&self, queries: u64) {
        self.denied.fetch_add(queries, Relaxed);
    }

    /// Count queries whose value the store had.
    fn count_found(&self, queries: u64) {
        self.found.fetch_add(queries, Relaxed);
    }
}

impl Gate {
    #[inline(always)]
    fn hash(&self, key: &Bound<'_, PyAny>) -> PyResult<Hash128> {
        let hash = hash_object(&self.hasher, key).map(|(hash, _)| hash);
        hash.map_err(|reason| reason.named("key"))
    }

    #[inline(always)]
    fn check_process(&self) -> PyResult<()> {
        if self.process == lock::process() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(
            "this guard was opened in the parent process, whose lease and connections it holds: open \
             another one after the fork",
        ))
    }
}

impl Answering {
    #[inline(always)]
    fn ask(&self, py: Python<'_>, hash: Hash128) -> PyResult<Asked> {
        let Some(kernel) = &self.kernel else {
            return Ok(Asked::Object(self.object.clone_ref(py)));
        };
        Ok(match catch_damage(|| kernel.try_contains_one(hash))? {
            Some(answer) => Asked::Answered(answer),
            None => Asked::Kernel(kernel.clone()),
        })
    }
}

impl Asked {
    #[inline(always)]
    fn answer(self, key: &Bound<'_, PyAny>, hash: Hash128) -> PyResult<bool> {
        match self {
            Asked::Answered(answer) => Ok(answer),
            Asked::Kernel(kernel) => {
                Ok(key.py().detach(|| catch_damage(|| kernel.contains_one(hash)))?)
            }
            Asked::Object(object) => object.bind(key.py()).contains(key),
        }
    }
}

/// The time of leases and deadlines, in seconds since the machine was started: it never steps, and
/// counts the time that the machine was suspended.
#[pyfunction]
pub fn now() -> f64 {
    clock::now() as f64 / 1e9
}
