//! Bit-sliced prefixes in memory: lookups of one key or many in all sets, and searches for several.

use super::super::arrays;
use super::super::batch;
use super::super::files::{Files, Tail};
use super::super::keys::hash_object;
use super::super::release::{briefly, released};
use super::directory::Directory;
use super::lookup::{Arrays, Found, candidates_many};
use crate::collection::sliced::{self, Match};
use crate::collection::{Query, may_hold};
use crate::error::Result;
use crate::hash::{Hash128, Hasher};
use crate::interrupt;
use numpy::{PyArray1, PyReadwriteArray1};
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The prefixes of a collection's or text index's filters in memory, by rows.
#[pyclass(frozen, module = "tamis._native")]
pub struct Sliced {
    sliced: sliced::Sliced,
    files: Arc<Files>,
    directory: Arc<Directory>,
    hasher: Hasher,
    /// How many times the rest of a filter was read.
    reads: AtomicU64,
}

impl Sliced {
    pub fn new(
        sliced: sliced::Sliced,
        files: Arc<Files>,
        directory: Arc<Directory>,
        hasher: Hasher,
    ) -> Sliced {
        Sliced { sliced, files, directory, hasher, reads: AtomicU64::new(0) }
    }

    /// Whether the bits of a filter that are not in memory allow the key too.
    fn tail_allows(&self, hash: Hash128, found: Match) -> Result<bool> {
        let row = self.directory.row(&self.files, found.id as usize)?;
        let filter = &row.filter;
        if found.segments >= u32::from(filter.hashes) {
            return Ok(true);
        }
        self.reads.fetch_add(1, Relaxed);
        let kept = filter.size / u64::from(filter.hashes.max(1)) * u64::from(found.segments);
        let query = Query::new(hash, filter.hashes.into(), 0)?;
        may_hold(filter, &query, kept..filter.size, &mut Tail::new(&self.files, row.place))
    }

    fn lookup(&self, hash: Hash128, limit: usize, hybrid: bool) -> Result<Vec<u32>> {
        let mut accept = |found| self.tail_allows(hash, found);
        self.sliced.search(&[hash], limit, if hybrid { Some(&mut accept) } else { None })
    }
}

#[pymethods]
impl Sliced {
    /// The sets that may hold a key, the most queried first.
    fn candidates<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        limit: usize,
        hybrid: bool,
    ) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let (hash, _) = hash_object(&self.hasher, key).map_err(|reason| reason.named("key"))?;
        let ids = briefly(py, || self.lookup(hash, limit, hybrid))?;
        Ok(PyArray1::from_vec(py, ids))
    }

    /// The same for many keys: offsets of the sets of each key, and the sets.
    fn candidates_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        limit: usize,
        hybrid: bool,
    ) -> PyResult<Arrays<'py>> {
        // A row answers for 64 sets a word.
        let work = (self.sliced.len() / 64, 1);
        candidates_many(py, &self.hasher, keys, work, |part| {
            let mut found = Found::default();
            for &hash in part {
                interrupt::check();
                found.push(&self.lookup(hash, limit, hybrid)?)?;
            }
            Ok(found)
        })
    }

    /// The best sets that may contain all terms, best first.
    fn search<'py>(
        &self,
        py: Python<'py>,
        terms: &Bound<'py, PyAny>,
        limit: usize,
    ) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let hashes = batch::hashes(py, &self.hasher, terms)?;
        let ids = released(py, || self.sliced.search(&hashes, limit, None))??;
        Ok(PyArray1::from_vec(py, ids))
    }

    /// Writes the length of each prefix in bits to the element of its filter.
    fn kept_into(&self, mut out: PyReadwriteArray1<'_, i64>) -> PyResult<()> {
        let rows = self.directory.all_rows(&self.files)?;
        let out = out.as_slice_mut()?;
        for (id, segments) in self.sliced.kept() {
            if let (Some(place), Some(row)) = (out.get_mut(id as usize), rows.get(id as usize)) {
                let hashes = u32::from(row.filter.hashes.max(1));
                *place =
                    row.filter.size as i64 / i64::from(hashes) * i64::from(segments.min(hashes));
            }
        }
        Ok(())
    }

    /// Memory of this many sets apart from their bits, by class, with at most this many segments in all.
    #[staticmethod]
    fn max_overhead(
        #[pyo3(from_py_with = arrays::items)] classes: Vec<usize>,
        sets: usize,
        segments: usize,
    ) -> usize {
        sliced::Sliced::max_overhead(&classes, sets, segments)
    }

    /// Total bits of the rows.
    #[getter]
    fn bits(&self) -> u64 {
        self.sliced.bits()
    }

    /// Memory apart from the bits of the rows.
    #[getter]
    fn overhead(&self) -> PyResult<usize> {
        Ok(self.sliced.overhead()?)
    }

    /// How many times the rest of a filter was read from the file.
    #[getter]
    fn tail_reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }
}
