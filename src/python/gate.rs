//! The gate of a guard: answers queries from memory, in one native call.
//!
//! A gate holds the guard's filter and one deadline. Before the deadline the filter's "no" is
//! final: the guard holds the lease, or the filter was in sync with the store recently enough.
//! After it, and for every "maybe", the caller asks the store. docs/guard.md explains why a "no" of
//! the gate never denies a stored key; for that, this file follows three rules:
//!
//! * The deadline is read before the filter, and both together: while a thread is between the two,
//!   no other filter takes its place ([`Gate::replace`] waits, and closes the gate).
//! * The time is read after the query began.
//! * A process that was forked answers nothing: the lease and the connections are its parent's.

use super::error::catch_damage;
use super::exit;
use super::filter::Stored;
use super::keys::{self, Secret, hash_object, hasher};
use super::release::briefly;
use crate::clock;
use crate::hash::{Hash128, Hasher};
use crate::kernel::Kernel;
use crate::lock::{self, RwLock};
use crate::memory;
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// The deadline of a closed gate: the filter is not queried.
const CLOSED: u64 = 0;
/// A deadline that has passed: the filter is queried, and a "no" must be confirmed.
const PASSED: u64 = 1;

/// A query that the gate did not answer.
#[pyclass(frozen, module = "tamis._native")]
pub struct Lookup {
    hash: Hash128,
    /// The key in the form that stores take.
    #[pyo3(get)]
    key: Py<PyAny>,
    /// Whether the filter accepts the key. If not, the store must confirm that the filter is in
    /// sync with it, and `Gate.accepts` queries the filter again.
    #[pyo3(get)]
    accepted: bool,
}

#[pymethods]
impl Lookup {
    /// The hash of the key as one row of `tamis.hash_keys`.
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

/// The number of bits of a hash that select its region.
const REGION_BITS: u32 = 6;
/// Parts of the hash space, each of which a guard locks for writing.
pub const REGIONS: u32 = 1 << REGION_BITS;

/// Keys to be written, with their hashes.
#[pyclass(frozen, module = "tamis._native")]
pub struct Batch {
    keys: Py<PyList>,
    hashes: Vec<Hash128>,
}

#[pymethods]
impl Batch {
    /// The hashes of the keys as from `tamis.hash_keys`.
    #[getter]
    fn hashes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        let mut words = memory::with_capacity(2 * self.hashes.len())?;
        words.extend(self.hashes.iter().flat_map(|hash| [hash.hi, hash.lo]));
        PyArray1::from_vec(py, words).reshape([self.hashes.len(), 2])
    }

    /// The regions that the hashes are in, each once, in order.
    #[getter]
    fn regions(&self) -> Vec<u64> {
        let region = |hash: &Hash128| hash.hi >> (64 - REGION_BITS);
        let met = self.hashes.iter().fold(0u64, |met, hash| met | 1 << region(hash));
        (0..u64::from(REGIONS)).filter(|region| met >> region & 1 == 1).collect()
    }
}

/// The filter of a guard, and the time until which its "no" needs no access to the store.
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

/// A filter as a Python object, and its kernel if it is one of ours.
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

/// Who must answer a query, since that may wait or run Python, which must not happen under the
/// lock.
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

    /// The filter, or None if its "no" must be confirmed by the store.
    fn current_filter(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.check_process()?;
        let filter = self.filter.read();
        let current = clock::now() < self.until.load(Acquire);
        Ok(current.then(|| filter.object.clone_ref(py)))
    }

    /// Replace the filter by another one with the same hash, and close the gate.
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

    /// Make the filter's "no" final until this time of `now`; with 0.0 every "no" is confirmed.
    fn open_until(&self, seconds: f64) {
        self.until.store(((seconds * 1e9) as u64).max(PASSED), Release);
    }

    /// Do not query the filter until the gate is opened again.
    fn close(&self) {
        self.until.store(CLOSED, Release);
    }

    /// Return None if the key is absent; otherwise return the values with which the caller continues.
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

    /// Query the filter again for a key that was looked up.
    fn accepts(&self, py: Python<'_>, lookup: &Lookup) -> PyResult<bool> {
        let asked = self.filter.read().ask(py, lookup.hash)?;
        asked.answer(lookup.key.bind(py), lookup.hash)
    }

    /// Hash keys to be written.
    fn batch(&self, keys: &Bound<'_, PyList>) -> PyResult<Batch> {
        exit::outlast();
        self.check_process()?;
        let named = |(index, key): (usize, Bound<'_, PyAny>)| {
            let hash = hash_object(&self.hasher, &key).map(|(hash, _)| hash);
            hash.map_err(|reason| reason.named(&format!("keys[{index}]")))
        };
        let hashes = memory::collected_ok(keys.iter().enumerate().map(named))?;
        Ok(Batch { keys: keys.clone().unbind(), hashes })
    }

    /// The indices of the keys that the filter accepts.
    fn accepted<'py>(&self, py: Python<'py>, batch: &Batch) -> PyResult<Bound<'py, PyAny>> {
        let (object, kernel) = {
            let filter = self.filter.read();
            (filter.object.clone_ref(py), filter.kernel.clone())
        };
        let mut answers = memory::filled(batch.hashes.len(), false)?;
        if let Some(kernel) = kernel {
            // A single key directly, unless that would wait.
            let at_once = match batch.hashes[..] {
                [hash] => catch_damage(|| kernel.try_contains_one(hash))?,
                _ => None,
            };
            match at_once {
                Some(answer) => answers[0] = answer,
                None => {
                    briefly(py, || catch_damage(|| kernel.contains(&batch.hashes, &mut answers)))?
                }
            }
        } else {
            for (answer, key) in answers.iter_mut().zip(batch.keys.bind(py)) {
                *answer = object.bind(py).contains(key)?;
            }
        }
        let yes = memory::collected((0..answers.len()).filter(|&index| answers[index]))?;
        PyArray1::from_vec(py, yes).call_method0("tolist")
    }

    /// Whether this process was forked from the process that created the gate.
    #[getter]
    fn forked(&self) -> bool {
        self.process != lock::process()
    }

    /// Queries answered "no", here or counted by `count_denied`.
    #[getter]
    fn denied(&self) -> u64 {
        self.denied.load(Relaxed)
    }

    /// Queries whose value was in the store.
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

    /// Count queries whose value was in the store.
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
                Ok(briefly(key.py(), || catch_damage(|| kernel.contains_one(hash)))?)
            }
            Asked::Object(object) => {
                exit::outlast();
                object.bind(key.py()).contains(key)
            }
        }
    }
}

/// The time of leases and deadlines, in seconds since the machine was started: it never jumps, and
/// includes the time that the machine was suspended.
#[pyfunction]
pub fn now() -> f64 {
    clock::now() as f64 / 1e9
}
