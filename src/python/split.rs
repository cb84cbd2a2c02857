//! Keys sent to a build elsewhere: hashed and split by shard, and combined again.

use super::arrays;
use super::batch::{Batch, Distinct, THREADED_BUILD, for_each, threads};
use super::handle::{copied, hasher_for};
use super::keys::{self, Secret, hasher, shown};
use super::release::released;
use crate::distinct;
use crate::error::Error;
use crate::hash::Hash128;
use crate::memory::{self, TryGrow};
use crate::sharded::{MAX_SHARDS, shard_of};
use crate::split::{Part, write};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// Split keys by shard: a part per shard, with the hashes of its keys.
#[pyfunction]
#[pyo3(signature = (keys, shards, *, seed=0, key=None))]
pub fn split<'py>(
    py: Python<'py>,
    keys: &Bound<'py, PyAny>,
    shards: u64,
    #[pyo3(from_py_with = keys::seed)] seed: u64,
    #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
) -> PyResult<Bound<'py, PyList>> {
    if !(1..=MAX_SHARDS).contains(&shards) {
        let message = format!("shards must be from 1 to {MAX_SHARDS}, not {shards}");
        return Err(PyValueError::new_err(message));
    }
    let hasher = hasher(seed, key)?;
    let mut hashes: Vec<Vec<Hash128>> = memory::filled(shards as usize, Vec::new())?;
    let mut failed = Ok(());
    for_each(py, &hasher, &Batch::new(keys, &hasher)?, |_, some| {
        if failed.is_ok() {
            let mut some = some.iter();
            failed = some.try_for_each(|&hash| hashes[shard_of(hash, shards)].try_push(hash));
        }
    })?;
    failed?;
    let part = |(shard, hashes): (usize, Vec<Hash128>)| {
        let bytes = released(py, || write(&hashes, shard as u64, shards, &hasher))??;
        arrays::bytes(py, &bytes)
    };
    arrays::list(py, hashes.into_iter().enumerate().map(part))
}

/// The keys of the parts of one shard.
#[pyclass(frozen, get_all, module = "tamis._native")]
pub struct Shard {
    /// The keys.
    keys: Py<Distinct>,
    /// The index of their shard.
    index: u64,
    /// The number of shards.
    shards: u64,
}

#[pymethods]
impl Shard {
    #[new]
    #[pyo3(signature = (parts, key=None))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = arrays::items)] parts: Vec<Bound<'_, PyAny>>,
        #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
    ) -> PyResult<Shard> {
        let bytes = parts.iter().enumerate().map(|(i, part)| PyBackedPart::new(i, part));
        let bytes: Vec<PyBackedPart> = memory::collected_ok(bytes)?;
        let keyed = key.map(|key| hasher(0, Some(key))).transpose()?;
        let read = bytes.iter().enumerate().map(|(i, bytes)| {
            Part::read(bytes.as_slice()).map_err(|error| match error {
                Error::Format(text) => Error::Format(format!("parts[{i}]: {text}")),
                other => other,
            })
        });
        let read: Vec<Part<'_>> = memory::collected_ok::<_, Error>(read)?;
        let Some(first) = read.first() else {
            return Err(PyValueError::new_err("parts is empty; pass at least one"));
        };
        for (i, part) in read.iter().enumerate() {
            if (part.shard, part.shards) != (first.shard, first.shards) {
                return Err(PyValueError::new_err(format!(
                    "parts must belong to one shard: parts[0] belongs to shard {} of {}, parts[{i}] \
                     to shard {} of {}",
                    first.shard, first.shards, part.shard, part.shards
                )));
            }
            if part.hash != first.hash {
                return Err(Error::Incompatible(format!(
                    "parts must be hashed with the same seed or key: parts[{i}] differs from \
                     parts[0]"
                ))
                .into());
            }
        }
        let (id, tag) = first.hash;
        let hasher = hasher_for(id, tag, keyed, "these parts were split")?;
        let count = read.iter().map(Part::len).sum();
        let threads = threads(count, THREADED_BUILD);
        let hashes = released(py, || {
            let mut partitions = distinct::Partitions::new(count, count)?;
            read.iter().for_each(|part| partitions.extend_from(part.hashes()));
            distinct::Distinct::new(vec![partitions], threads)
        })??;
        let (index, shards) = (first.shard, first.shards);
        Ok(Shard { keys: Py::new(py, Distinct { hashes, hasher, threads })?, index, shards })
    }
}

/// The bytes of a part: borrowed if they are immutable, else a copy.
enum PyBackedPart<'py> {
    Own(Bound<'py, PyBytes>),
    Copy(Vec<u8>),
}

impl<'py> PyBackedPart<'py> {
    fn new(index: usize, part: &Bound<'py, PyAny>) -> PyResult<PyBackedPart<'py>> {
        if let Ok(bytes) = part.cast::<PyBytes>() {
            return Ok(PyBackedPart::Own(bytes.clone()));
        }
        let buffer = PyBuffer::<u8>::get(part).map_err(|_| {
            let message = "must be bytes that tamis.split made, or a buffer of them, not";
            PyTypeError::new_err(format!("parts[{index}] {message} {}", shown(part)))
        })?;
        Ok(PyBackedPart::Copy(copied(part.py(), &buffer)?))
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            PyBackedPart::Own(bytes) => bytes.as_bytes(),
            PyBackedPart::Copy(bytes) => bytes,
        }
    }
}
