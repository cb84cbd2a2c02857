//! A table of hashes in memory: the remote of an adaptive filter that has no store.

use super::adapting::hash_rows;
use super::batch;
use super::keys::{self, Secret, hash_object, hasher};
use crate::hash::{Hash128, Hasher};
use crate::lock::{RwLock, WriteGuard};
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use std::collections::BTreeMap;

/// Rows per part of a scan.
const PART: usize = 1 << 16;

/// Sorted hashes with their counts.
#[pyclass(frozen, subclass, module = "tamis._native")]
pub struct Hashes {
    hasher: Hasher,
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    counts: BTreeMap<Hash128, usize>,
    total: usize,
}

impl Hashes {
    fn table(&self) -> WriteGuard<'_, Table> {
        self.table.write()
    }

    fn hash(&self, key: &Bound<'_, PyAny>) -> PyResult<Hash128> {
        Ok(hash_object(&self.hasher, key).map_err(|reason| reason.named("key"))?.0)
    }
}

#[pymethods]
impl Hashes {
    #[new]
    #[pyo3(signature = (keys=None, *, seed=0, key=None))]
    fn new(
        py: Python<'_>,
        keys: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = keys::seed)] seed: u64,
        #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
    ) -> PyResult<Hashes> {
        let hashes = Hashes { hasher: hasher(seed, key)?, table: RwLock::default() };
        if let Some(keys) = keys {
            hashes.update(py, keys)?;
        }
        Ok(hashes)
    }

    /// Return the number of stored hashes, including repetitions.
    fn __len__(&self) -> usize {
        self.table.read().total
    }

    /// Store the hash of a key, again if it is already stored.
    fn add(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let hash = self.hash(key)?;
        let mut table = self.table();
        *table.counts.entry(hash).or_default() += 1;
        table.total += 1;
        Ok(())
    }

    /// Store the hashes of many keys.
    fn update(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut hashes = batch::hashes(py, &self.hasher, keys)?;
        py.detach(|| {
            hashes.sort_unstable();
            let mut table = self.table();
            for same in hashes.chunk_by(|one, other| one == other) {
                *table.counts.entry(same[0]).or_default() += same.len();
            }
            table.total += hashes.len();
        });
        Ok(())
    }

    /// Remove the hash of a key once; KeyError if it is not stored.
    fn remove(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let hash = self.hash(key)?;
        let mut table = self.table();
        let Some(count) = table.counts.get_mut(&hash) else {
            return Err(PyKeyError::new_err(key.clone().unbind()));
        };
        *count -= 1;
        if *count == 0 {
            table.counts.remove(&hash);
        }
        table.total -= 1;
        Ok(())
    }

    /// Return the hashes whose first word is from `low` to `high`, with repetitions.
    fn run<'py>(
        &self,
        py: Python<'py>,
        low: u64,
        high: u64,
    ) -> PyResult<Bound<'py, PyArray2<u64>>> {
        let table = self.table.read();
        let mut rows = Vec::new();
        if low <= high {
            let range = Hash128 { hi: low, lo: 0 }..=Hash128 { hi: high, lo: u64::MAX };
            for (hash, count) in table.counts.range(range) {
                (0..*count).for_each(|_| rows.extend([hash.hi, hash.lo]));
            }
        }
        drop(table);
        array(py, rows)
    }

    /// Return all hashes, in parts.
    fn scan<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let all = self.run(py, 0, u64::MAX)?;
        let rows = all.readonly();
        let parts: Vec<_> = rows
            .as_slice()?
            .chunks(2 * PART)
            .map(|part| array(py, part.to_vec()))
            .collect::<PyResult<_>>()?;
        Ok(PyTuple::new(py, parts)?.try_iter()?.into_any())
    }
}

/// Encode each hash as sixteen big-endian bytes, which sort in numeric order.
#[pyfunction]
pub fn encode_hashes<'py>(hashes: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let encoded = hash_rows("hashes", hashes)?.into_iter().map(|hash| {
        let words = u128::from(hash.hi) << 64 | u128::from(hash.lo);
        PyBytes::new(hashes.py(), &words.to_be_bytes())
    });
    PyList::new(hashes.py(), encoded.collect::<Vec<_>>())
}

/// Return the index entry of each key: its hash in sixteen big-endian bytes, which sort in numeric
/// order, then the key, after a letter that says whether it is text or an integer.
#[pyfunction]
pub fn index_entries<'py>(
    hashes: &Bound<'py, PyAny>,
    keys: &Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyList>> {
    let mut entry = Vec::new();
    let entries = hash_rows("hashes", hashes)?.into_iter().zip(keys).map(|(hash, key)| {
        entry.clear();
        entry.extend_from_slice(&hash.hi.to_be_bytes());
        entry.extend_from_slice(&hash.lo.to_be_bytes());
        match key.cast::<PyBytes>() {
            Ok(text) => {
                entry.push(b'b');
                entry.extend_from_slice(text.as_bytes());
            }
            Err(_) => {
                entry.push(b'i');
                entry.extend_from_slice(key.str()?.to_str()?.as_bytes());
            }
        }
        Ok(PyBytes::new(hashes.py(), &entry))
    });
    PyList::new(hashes.py(), entries.collect::<PyResult<Vec<_>>>()?)
}

fn array(py: Python<'_>, rows: Vec<u64>) -> PyResult<Bound<'_, PyArray2<u64>>> {
    let count = rows.len() / 2;
    PyArray1::from_vec(py, rows).reshape([count, 2])
}
