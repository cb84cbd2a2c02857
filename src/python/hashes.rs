//! A table of hashes in memory: the remote of an adaptive filter that has no store.

use super::adapting::hash_rows;
use super::arrays;
use super::batch;
use super::keys::{self, Secret, hash_object, hasher};
use super::release::released;
use crate::hash::{Hash128, Hasher};
use crate::interrupt;
use crate::kernel::PIECE;
use crate::lock::{RwLock, WriteGuard};
use crate::memory::{self, TryGrow};
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyList;
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
        released(py, || {
            // A map cannot report a failed allocation, so its memory is tried before.
            drop(memory::with_capacity::<[u64; 6]>(hashes.len())?);
            interrupt::sort(&mut hashes);
            for piece in hashes.chunks(PIECE) {
                interrupt::check();
                let mut table = self.table();
                for same in piece.chunk_by(|one, other| one == other) {
                    *table.counts.entry(same[0]).or_default() += same.len();
                }
                table.total += piece.len();
            }
            Ok(())
        })?
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
                for _ in 0..*count {
                    rows.try_extend(&[hash.hi, hash.lo])?;
                }
            }
        }
        drop(table);
        array(py, rows)
    }

    /// Return all hashes, in parts.
    fn scan<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let all = self.run(py, 0, u64::MAX)?;
        let rows = all.readonly();
        let parts = rows.as_slice()?.chunks(2 * PART);
        let parts = parts.map(|part| array(py, memory::copied(part)?));
        Ok(arrays::list(py, parts)?.try_iter()?.into_any())
    }
}

/// Encode each hash as sixteen big-endian bytes, which sort in numeric order.
#[pyfunction]
pub fn encode_hashes<'py>(hashes: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let encoded = hash_rows("hashes", hashes)?.into_iter().map(|hash| {
        let words = u128::from(hash.hi) << 64 | u128::from(hash.lo);
        arrays::bytes(hashes.py(), &words.to_be_bytes())
    });
    arrays::list(hashes.py(), encoded)
}

fn array(py: Python<'_>, rows: Vec<u64>) -> PyResult<Bound<'_, PyArray2<u64>>> {
    let count = rows.len() / 2;
    PyArray1::from_vec(py, rows).reshape([count, 2])
}
