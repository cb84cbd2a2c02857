//! A table of hashes in memory: the remote of an adaptive filter that has no store.

use super::adapting::hash_rows;
use super::arrays;
use super::batch;
use super::column::Keys;
use super::keys::{self, Secret, hash_object, hasher};
use super::release::{briefly, read, released};
use crate::error::Result as TamisResult;
use crate::hash::{Hash128, Hasher};
use crate::interrupt;
use crate::kernel::PIECE;
use crate::lock::RwLock;
use crate::memory::{self, TryGrow};
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// Rows per part of a scan.
const PART: usize = 1 << 16;

/// Sorted hashes with their counts.
#[pyclass(frozen, subclass, module = "tamis._native")]
pub struct Hashes {
    hasher: Hasher,
    table: RwLock<Table>,
}

/// Entries of a leaf.
const LEAF: usize = 256;

/// Hashes in ascending order, each with its count, in leaves of up to [`LEAF`], none of them empty. It
/// grows or says that there is no memory, which a map of the standard library cannot.
#[derive(Default)]
struct Table {
    leaves: Vec<Vec<(Hash128, usize)>>,
    total: usize,
}

impl Table {
    /// The leaf of a hash, and its place there: of its entry, or where that would be.
    fn find(&self, hash: Hash128) -> (usize, Result<usize, usize>) {
        let leaf = self.leaves.partition_point(|leaf| leaf[0].0 <= hash).saturating_sub(1);
        let entries = self.leaves.get(leaf).map_or(&[][..], |entries| entries);
        (leaf, entries.binary_search_by_key(&hash, |entry| entry.0))
    }

    fn add(&mut self, hash: Hash128, count: usize) -> TamisResult<()> {
        let (mut leaf, mut place) = match self.find(hash) {
            (leaf, Ok(place)) => {
                self.leaves[leaf][place].1 += count;
                self.total += count;
                return Ok(());
            }
            (leaf, Err(place)) => (leaf, place),
        };
        let is_full = self.leaves.get(leaf).is_none_or(|entries| entries.len() == LEAF);
        if is_full {
            self.leaves.reserve_more(1)?;
            let mut upper = memory::with_capacity(LEAF)?;
            if let Some(lower) = self.leaves.get_mut(leaf) {
                upper.extend(lower.drain(LEAF / 2..));
                self.leaves.insert(leaf + 1, upper);
                if place > LEAF / 2 {
                    (leaf, place) = (leaf + 1, place - LEAF / 2);
                }
            } else {
                self.leaves.push(upper);
            }
        }
        self.leaves[leaf].insert(place, (hash, count));
        self.total += count;
        Ok(())
    }

    /// Removes a hash `count` times; returns whether it was stored.
    fn remove(&mut self, hash: Hash128, count: usize) -> bool {
        let (leaf, Ok(place)) = self.find(hash) else { return false };
        let entries = &mut self.leaves[leaf];
        entries[place].1 -= count;
        if entries[place].1 == 0 {
            entries.remove(place);
            if entries.is_empty() {
                self.leaves.remove(leaf);
            }
        }
        self.total -= count;
        true
    }

    /// The entries from a hash on.
    fn from(&self, first: Hash128) -> impl Iterator<Item = &(Hash128, usize)> {
        let leaves = self.leaves.iter().skip(self.find(first).0);
        leaves.flatten().skip_while(move |entry| entry.0 < first)
    }
}

impl Hashes {
    fn hash(&self, key: &Bound<'_, PyAny>) -> PyResult<Hash128> {
        Ok(hash_object(&self.hasher, key).map_err(|reason| reason.named("key"))?.0)
    }

    /// Stores hashes, which are sorted; if there is no memory for one, none.
    fn insert(&self, hashes: &[Hash128]) -> TamisResult<()> {
        for (index, piece) in hashes.chunks(PIECE).enumerate() {
            interrupt::check();
            let mut table = self.table.write();
            for (at, &hash) in piece.iter().enumerate() {
                if let Err(error) = table.add(hash, 1) {
                    for &hash in &hashes[..index * PIECE + at] {
                        table.remove(hash, 1);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
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
    fn __len__(&self, py: Python<'_>) -> usize {
        read(py, || self.table.read().total)
    }

    /// Store the hash of a key, again if it is already stored.
    fn add(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let hash = self.hash(key)?;
        Ok(briefly(py, || self.table.write().add(hash, 1))?)
    }

    /// Store the hashes of many keys; if memory is short, of none. An iterator is read and stored in
    /// pieces, of which earlier ones stay.
    fn update(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        batch::in_pieces(py, &self.hasher, Keys::find(keys)?, |hashes| {
            let mut hashes = memory::copied(hashes)?;
            released(py, || {
                interrupt::sort(&mut hashes);
                Ok(self.insert(&hashes)?)
            })?
        })
    }

    /// Remove the hash of a key once; KeyError if it is not stored.
    fn remove(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let hash = self.hash(key)?;
        if briefly(py, || self.table.write().remove(hash, 1)) {
            Ok(())
        } else {
            Err(PyKeyError::new_err(key.clone().unbind()))
        }
    }

    /// Return the hashes whose first word is from `low` to `high`, with repetitions.
    fn run<'py>(
        &self,
        py: Python<'py>,
        low: u64,
        high: u64,
    ) -> PyResult<Bound<'py, PyArray2<u64>>> {
        let rows = briefly(py, || {
            let (table, mut rows) = (self.table.read(), Vec::new());
            let entries = table.from(Hash128 { hi: low, lo: 0 });
            for &(hash, count) in entries.take_while(|entry| entry.0.hi <= high) {
                for _ in 0..count {
                    rows.try_extend(&[hash.hi, hash.lo])?;
                }
            }
            TamisResult::Ok(rows)
        })?;
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
