//! Filters that adapt: the class of filters that use a remote, and remotes that are Python objects.

use super::batch;
use super::column::Keys;
use super::error::catch_damage;
use super::exit;
use super::filter::{Deleting, structure};
use super::handle::Handle;
use super::release::{briefly, released};
use crate::error::{Error, Result};
use crate::hash::Hash128;
use crate::kernel::Kernel as _;
use crate::memory::{self, TryGrow};
use crate::telescoping::{Remote, Shared};
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyList;

/// A Python object with `run` and `scan`, called with the interpreter attached and no lock held.
struct RemoteObject {
    object: Py<PyAny>,
    /// The exception that it raised, which is passed to the caller.
    raised: Option<PyErr>,
}

impl RemoteObject {
    fn new(remote: &Bound<'_, PyAny>) -> PyResult<RemoteObject> {
        if !(remote.hasattr("run")? || remote.hasattr("scan")?) {
            let kind = remote.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "remote must have the methods run and scan, as tamis.stores.Hashes has, not {kind}"
            )));
        }
        Ok(RemoteObject { object: remote.clone().unbind(), raised: None })
    }

    fn ask<T>(&mut self, query: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T> {
        exit::attached(|py| query(self.object.bind(py))).map_err(|error| {
            self.raised = Some(error);
            Error::Parameter("the remote failed".into())
        })
    }

    /// The result of a kernel, or the exception that the remote raised meanwhile.
    fn result<T>(&mut self, answer: Result<T>) -> PyResult<T> {
        match self.raised.take() {
            Some(raised) => Err(raised),
            None => Ok(answer?),
        }
    }
}

impl Remote for RemoteObject {
    fn run(&mut self, low: u64, high: u64) -> Result<Vec<Hash128>> {
        self.ask(|remote| hash_rows("remote.run()", &remote.call_method1("run", (low, high))?))
    }

    fn runs(&mut self, ranges: &[(u64, u64)]) -> Result<Vec<Vec<Hash128>>> {
        self.ask(|remote| {
            if !remote.hasattr("runs")? {
                let run = |&range| hash_rows("remote.run()", &remote.call_method1("run", range)?);
                return ranges.iter().map(run).collect();
            }
            let ranges = PyList::new(remote.py(), ranges)?;
            let runs = remote.call_method1("runs", (ranges,))?;
            runs.try_iter()?.map(|run| hash_rows("remote.runs()", &run?)).collect()
        })
    }

    fn scan(&mut self) -> Result<Vec<Hash128>> {
        self.ask(|remote| {
            let mut hashes = Vec::new();
            for part in remote.call_method0("scan")?.try_iter()? {
                rows("remote.scan()", &part?, &mut hashes)?;
            }
            Ok(hashes)
        })
    }
}

/// The hashes in an array of rows (high half, low half); `source` names it in errors.
pub fn hash_rows(source: &str, array: &Bound<'_, PyAny>) -> PyResult<Vec<Hash128>> {
    let mut hashes = Vec::new();
    rows(source, array, &mut hashes)?;
    Ok(hashes)
}

/// Appends the hashes in an array of rows.
pub fn rows(source: &str, array: &Bound<'_, PyAny>, hashes: &mut Vec<Hash128>) -> PyResult<()> {
    let wrong = || {
        let kind = array.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        PyTypeError::new_err(format!(
            "{source} returned {kind}; it must return an array of uint64 of shape (n, 2), as \
             tamis.hash_keys does"
        ))
    };
    let array = array.cast::<PyArray2<u64>>().map_err(|_| wrong())?;
    if array.shape()[1] != 2 {
        return Err(wrong());
    }
    let array = array.readonly();
    let view = array.as_array();
    hashes.reserve_more(view.nrows())?;
    hashes.extend(view.outer_iter().map(|row| Hash128 { hi: row[0], lo: row[1] }));
    Ok(())
}

/// A filter that moves elements to fix false positives.
#[pyclass(extends = Deleting, subclass, frozen, module = "tamis._native")]
pub struct Adapting;

#[pymethods]
impl Adapting {
    #[new]
    pub(super) fn new(handle: &Handle) -> PyClassInitializer<Adapting> {
        Deleting::new(handle).add_subclass(Adapting)
    }

    /// Insert a key; with the remote, a full filter grows.
    #[pyo3(signature = (key, remote=None))]
    fn add(
        self_: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        remote: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (stored, shared) = structure::<Shared>(self_)?;
        insert(self_.py(), shared, &[stored.hash(key)?], remote)
    }

    /// Insert many keys; if one is refused, none is inserted, but the filter may have grown. An
    /// iterator is read and inserted in pieces, of which earlier ones stay.
    #[pyo3(signature = (keys, remote=None))]
    fn update(
        self_: &Bound<'_, Self>,
        keys: &Bound<'_, PyAny>,
        remote: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (stored, shared) = structure::<Shared>(self_)?;
        batch::in_pieces(self_.py(), &stored.handle.hasher, Keys::find(keys)?, |hashes| {
            insert(self_.py(), shared, hashes, remote)
        })
    }

    /// Remove one insertion of the key; KeyError if it is certainly absent.
    #[pyo3(signature = (key, remote=None))]
    fn remove(
        self_: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        remote: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (stored, shared) = structure::<Shared>(self_)?;
        let hash = stored.hash(key)?;
        let removed = match remote {
            None => briefly(self_.py(), || catch_damage(|| shared.remove(hash))?),
            Some(remote) => {
                let mut remote = RemoteObject::new(remote)?;
                let removed =
                    briefly(self_.py(), || catch_damage(|| shared.remove_with(hash, &mut remote))?);
                if let Some(raised) = remote.raised {
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

    /// Report a false positive; return whether anything changed.
    fn adapt(
        self_: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        remote: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let (stored, shared) = structure::<Shared>(self_)?;
        let hash = stored.hash(key)?;
        let (mut remote, mut moved) = (RemoteObject::new(remote)?, [false]);
        let adapted = released(self_.py(), || {
            catch_damage(|| shared.adapt(&[hash], &mut moved, &mut remote))?
        })?;
        remote.result(adapted)?;
        Ok(moved[0])
    }

    /// Remove one insertion of each key; return for each whether it may have been present.
    #[pyo3(signature = (keys, remote=None))]
    fn remove_many<'py>(
        self_: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
        remote: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let (stored, shared) = structure::<Shared>(self_)?;
        let hashes = batch::hashes(self_.py(), &stored.handle.hasher, keys)?;
        let Some(remote) = remote else { return batch::remove(self_.py(), shared, &hashes) };
        let (mut remote, mut removed) =
            (RemoteObject::new(remote)?, memory::filled(hashes.len(), false)?);
        let done = released(self_.py(), || {
            catch_damage(|| shared.remove_many_with(&hashes, &mut removed, &mut remote))?
        })?;
        remote.result(done)?;
        Ok(PyArray1::from_vec(self_.py(), removed))
    }

    /// Remove keys each of which has a slot, without the remote where that is certain; read the
    /// remote for the others.
    fn _remove_owned(
        self_: &Bound<'_, Self>,
        keys: &Bound<'_, PyList>,
        remote: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (stored, shared) = structure::<Shared>(self_)?;
        let hashes = memory::collected_ok(keys.iter().map(|key| stored.hash(&key)))?;
        let mut remote = RemoteObject::new(remote)?;
        let done =
            briefly(self_.py(), || catch_damage(|| shared.remove_owned(&hashes, &mut remote))?);
        remote.result(done)
    }

    /// Report false positives; return for each whether anything changed.
    fn adapt_many<'py>(
        self_: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
        remote: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let (stored, shared) = structure::<Shared>(self_)?;
        let hashes = batch::hashes(self_.py(), &stored.handle.hasher, keys)?;
        adapt(self_.py(), shared, &hashes, remote)
    }

    /// [`Adapting::adapt_many`] of keys that are hashed already.
    fn _adapt_hashes<'py>(
        self_: &Bound<'py, Self>,
        hashes: &Bound<'py, PyAny>,
        remote: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let (_, shared) = structure::<Shared>(self_)?;
        adapt(self_.py(), shared, &hash_rows("hashes", hashes)?, remote)
    }

    /// Double the capacity, from the stored hashes.
    fn grow(self_: &Bound<'_, Self>, remote: &Bound<'_, PyAny>) -> PyResult<()> {
        let (_, shared) = structure::<Shared>(self_)?;
        let mut remote = RemoteObject::new(remote)?;
        let grown = released(self_.py(), || catch_damage(|| shared.grow(&mut remote))?)?;
        remote.result(grown)
    }
}

fn adapt<'py>(
    py: Python<'py>,
    shared: &Shared,
    hashes: &[Hash128],
    remote: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    let (mut remote, mut moved) =
        (RemoteObject::new(remote)?, memory::filled(hashes.len(), false)?);
    let adapted = released(py, || catch_damage(|| shared.adapt(hashes, &mut moved, &mut remote))?)?;
    remote.result(adapted)?;
    Ok(PyArray1::from_vec(py, moved))
}

fn insert(
    py: Python<'_>,
    shared: &Shared,
    hashes: &[Hash128],
    remote: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let Some(remote) = remote else {
        return Ok(released(py, || catch_damage(|| shared.insert(hashes))?)??);
    };
    let mut remote = RemoteObject::new(remote)?;
    let inserted = released(py, || catch_damage(|| shared.insert_with(hashes, &mut remote))?)?;
    remote.result(inserted)
}
