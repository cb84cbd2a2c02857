//! Filters that adapt: the classes that take a remote, and what each structure offers beside it.

use super::batch::{self, Distinct};
use super::filter::{Deleting, Stored};
use super::handle::Kernel;
use super::keys::{self, hasher};
use crate::adaptive_cuckoo::{AdaptiveCuckoo, Motion};
use crate::error::{Error, Result};
use crate::hash::Hash128;
use crate::kernel::Kernel as _;
use crate::telescoping::{Layout, Mode, Remote, Shared};
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::sync::Arc;

/// A Python object with `run` and `scan`, called with the interpreter attached and no lock held.
struct Store {
    object: Py<PyAny>,
    /// What it raised, which is what the caller gets.
    raised: Option<PyErr>,
}

impl Store {
    fn new(remote: &Bound<'_, PyAny>) -> Store {
        Store { object: remote.clone().unbind(), raised: None }
    }

    fn ask<T>(&mut self, question: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T> {
        Python::attach(|py| question(self.object.bind(py))).map_err(|error| {
            self.raised = Some(error);
            Error::Parameter("the remote failed".into())
        })
    }

    /// What a kernel answered, or what the remote raised meanwhile.
    fn result<T>(&mut self, answer: Result<T>) -> PyResult<T> {
        match self.raised.take() {
            Some(raised) => Err(raised),
            None => Ok(answer?),
        }
    }
}

impl Remote for Store {
    fn run(&mut self, low: u64, high: u64) -> Result<Vec<Hash128>> {
        self.ask(|remote| {
            let mut hashes = Vec::new();
            rows("run", &remote.call_method1("run", (low, high))?, &mut hashes)?;
            Ok(hashes)
        })
    }

    fn scan(&mut self) -> Result<Vec<Hash128>> {
        self.ask(|remote| {
            let mut hashes = Vec::new();
            for part in remote.call_method0("scan")?.try_iter()? {
                rows("scan", &part?, &mut hashes)?;
            }
            Ok(hashes)
        })
    }
}

/// Appends the hashes in an array of rows (high half, low half).
pub fn rows(method: &str, array: &Bound<'_, PyAny>, hashes: &mut Vec<Hash128>) -> PyResult<()> {
    let wrong = || {
        let kind = array.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        PyTypeError::new_err(format!(
            "remote.{method}() gave {kind}; an array of uint64 with the shape (n, 2) is wanted, as \
             tamis.hash_keys gives"
        ))
    };
    let array = array.cast::<PyArray2<u64>>().map_err(|_| wrong())?;
    if array.shape()[1] != 2 {
        return Err(wrong());
    }
    let array = array.readonly();
    let view = array.as_array();
    hashes.extend(view.outer_iter().map(|row| Hash128 { hi: row[0], lo: row[1] }));
    Ok(())
}

/// A filter that moves its elements away from the keys they were taken for.
#[pyclass(extends = Deleting, subclass, frozen, module = "tamis._native")]
pub struct Adapting;

impl Adapting {
    fn stored<'a>(self_: &'a Bound<'_, Self>) -> &'a Stored {
        self_.as_super().as_super().as_super().as_super().get()
    }
}

#[pymethods]
impl Adapting {
    #[new]
    fn new(kernel: &Kernel) -> PyClassInitializer<Adapting> {
        Deleting::new(kernel).add_subclass(Adapting)
    }

    /// Insert a key; with the remote, the filter grows where it is full.
    #[pyo3(signature = (key, remote=None))]
    fn add(
        self_: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        remote: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let stored = Adapting::stored(self_);
        insert(self_.py(), stored.of::<Shared>()?, &[stored.hash(key)?], remote)
    }

    /// Insert many keys, or none of them.
    #[pyo3(signature = (keys, remote=None))]
    fn update(
        self_: &Bound<'_, Self>,
        keys: &Bound<'_, PyAny>,
        remote: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let stored = Adapting::stored(self_);
        let hashes = batch::hashes(self_.py(), &stored.hasher, keys)?;
        insert(self_.py(), stored.of::<Shared>()?, &hashes, remote)
    }

    /// Take one insertion of the key back; KeyError if it is surely absent.
    #[pyo3(signature = (key, remote=None))]
    fn remove(
        self_: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        remote: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let stored = Adapting::stored(self_);
        let (shared, hash) = (stored.of::<Shared>()?, stored.hash(key)?);
        let removed = match remote {
            None => self_.py().detach(|| shared.remove(hash)),
            Some(remote) => {
                let mut store = Store::new(remote);
                let removed = self_.py().detach(|| shared.remove_with(hash, &mut store));
                if let Some(raised) = store.raised {
                    return Err(raised);
                }
                removed
            }
        };
        match removed {
            Err(Error::Absent(_)) => Err(PyKeyError::new_err(key.clone().unbind())),
            other => Ok(other?),
        }
    }

    /// Tell an absent key apart that was taken for a stored one; whether anything changed.
    fn adapt(
        self_: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        remote: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let stored = Adapting::stored(self_);
        let (shared, hash) = (stored.of::<Shared>()?, stored.hash(key)?);
        let (mut store, mut moved) = (Store::new(remote), [false]);
        let adapted = self_.py().detach(|| shared.adapt(&[hash], &mut moved, &mut store));
        store.result(adapted)?;
        Ok(moved[0])
    }

    /// Tell many absent keys apart; for each, whether anything changed.
    fn adapt_many<'py>(
        self_: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
        remote: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let stored = Adapting::stored(self_);
        let shared = stored.of::<Shared>()?;
        let hashes = batch::hashes(self_.py(), &stored.hasher, keys)?;
        let (mut store, mut moved) = (Store::new(remote), vec![false; hashes.len()]);
        let adapted = self_.py().detach(|| shared.adapt(&hashes, &mut moved, &mut store));
        store.result(adapted)?;
        Ok(PyArray1::from_vec(self_.py(), moved))
    }

    /// Make room for as many keys again, from the stored hashes.
    fn grow(self_: &Bound<'_, Self>, remote: &Bound<'_, PyAny>) -> PyResult<()> {
        let shared = Adapting::stored(self_).of::<Shared>()?;
        let mut store = Store::new(remote);
        let grown = self_.py().detach(|| shared.grow(&mut store));
        store.result(grown)
    }
}

fn insert(
    py: Python<'_>,
    shared: &Shared,
    hashes: &[Hash128],
    remote: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let Some(remote) = remote else { return Ok(py.detach(|| shared.insert(hashes))?) };
    let mut store = Store::new(remote);
    let inserted = py.detach(|| shared.insert_with(hashes, &mut store));
    store.result(inserted)
}

fn layout(selectors: &str) -> PyResult<Layout> {
    match selectors {
        "block" => Ok(Layout::Block),
        "growing" => Ok(Layout::Growing),
        "plain" => Ok(Layout::Plain),
        other => Err(PyValueError::new_err(format!("selectors is {other:?}"))),
    }
}

fn mode(extending: bool) -> Mode {
    if extending { Mode::Extending } else { Mode::Telescoping }
}

/// An empty telescoping or extending filter.
#[pyfunction]
#[pyo3(signature = (extending, selectors, quotients, remainder_bits, capacity, seed=0, key=None))]
pub fn telescoping(
    extending: bool,
    selectors: &str,
    quotients: u64,
    remainder_bits: u32,
    capacity: u64,
    #[pyo3(from_py_with = keys::seed)] seed: u64,
    key: Option<&[u8]>,
) -> PyResult<Kernel> {
    let hasher = hasher(seed, key)?;
    let layout = layout(selectors)?;
    let kernel = Shared::new(quotients, remainder_bits, layout, mode(extending), capacity)?;
    Ok(Kernel { kernel: Arc::new(kernel), hasher, capacity })
}

/// A telescoping or extending filter of distinct keys.
#[pyfunction]
pub fn telescoping_build(
    py: Python<'_>,
    extending: bool,
    selectors: &str,
    quotients: u64,
    remainder_bits: u32,
    keys: &Distinct,
) -> PyResult<Kernel> {
    let (layout, mode) = (layout(selectors)?, mode(extending));
    let built =
        py.detach(|| Shared::build(quotients, remainder_bits, layout, mode, &keys.hashes))?;
    let capacity = keys.hashes.len() as u64;
    Ok(Kernel { kernel: Arc::new(built), hasher: keys.hasher.clone(), capacity })
}

/// The insertions into both.
#[pyfunction]
pub fn telescoping_merge(py: Python<'_>, a: &Kernel, b: &Kernel) -> PyResult<Kernel> {
    a.check_hash(b)?;
    let (one, other) = (a.of::<Shared>()?, b.of::<Shared>()?);
    let merged = py.detach(|| one.merge(other))?;
    let capacity = merged.capacity().unwrap_or(a.capacity);
    Ok(Kernel { capacity, ..a.with(merged) })
}

/// Layout of the selectors, quotients, bits of a remainder, slots, selectors forgotten.
#[pyfunction]
pub fn telescoping_shape(kernel: &Kernel) -> PyResult<(&'static str, u64, u32, u64, u64)> {
    Ok(kernel.of::<Shared>()?.look(|filter| {
        let selectors = match filter.store().layout() {
            Layout::Block => "block",
            Layout::Growing => "growing",
            Layout::Plain => "plain",
        };
        let table = filter.table();
        (selectors, table.quotients(), table.remainder_bits(), table.slots(), filter.forgotten())
    }))
}

/// How many elements have moved so many steps, from 0 on.
#[pyfunction]
pub fn telescoping_steps<'py>(
    py: Python<'py>,
    kernel: &Kernel,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let shared = kernel.of::<Shared>()?;
    let counts = py.detach(|| shared.look(|filter| filter.histogram()));
    Ok(PyArray1::from_vec(py, counts))
}

fn motion(number: u64) -> PyResult<Motion> {
    Motion::from_number(number)
        .ok_or_else(|| PyValueError::new_err(format!("motion {number} is not one")))
}

/// An empty adaptive cuckoo filter; the motion as a file has it.
#[pyfunction]
#[pyo3(signature = (number, fingerprint_bits, bins, capacity, seed=0, key=None))]
pub fn adaptive_cuckoo(
    number: u64,
    fingerprint_bits: u32,
    bins: u64,
    capacity: u64,
    #[pyo3(from_py_with = keys::seed)] seed: u64,
    key: Option<&[u8]>,
) -> PyResult<Kernel> {
    let hasher = hasher(seed, key)?;
    let kernel = AdaptiveCuckoo::new(motion(number)?, fingerprint_bits, bins)?;
    Ok(Kernel { kernel: Arc::new(kernel), hasher, capacity })
}

/// An adaptive cuckoo filter of distinct keys.
#[pyfunction]
pub fn adaptive_cuckoo_build(
    py: Python<'_>,
    number: u64,
    fingerprint_bits: u32,
    bins: u64,
    keys: &Distinct,
) -> PyResult<Kernel> {
    let motion = motion(number)?;
    let built =
        py.detach(|| AdaptiveCuckoo::build(motion, fingerprint_bits, bins, &keys.hashes))?;
    let capacity = keys.hashes.len() as u64;
    Ok(Kernel { kernel: Arc::new(built), hasher: keys.hasher.clone(), capacity })
}

/// Tell absent keys apart; for each, whether anything changed.
#[pyfunction]
pub fn adaptive_cuckoo_adapt<'py>(
    py: Python<'py>,
    kernel: &Kernel,
    keys: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    let cuckoo = kernel.of::<AdaptiveCuckoo>()?;
    let hashes = batch::hashes(py, &kernel.hasher, keys)?;
    let mut moved = vec![false; hashes.len()];
    py.detach(|| cuckoo.adapt(&hashes, &mut moved));
    Ok(PyArray1::from_vec(py, moved))
}

/// Motion as a file has it, bits of a fingerprint, bins, slots.
#[pyfunction]
pub fn adaptive_cuckoo_shape(kernel: &Kernel) -> PyResult<(u64, u32, u64, u64)> {
    let (motion, bits, bins, slots) = kernel.of::<AdaptiveCuckoo>()?.shape();
    Ok((motion.number(), bits, bins, slots))
}
