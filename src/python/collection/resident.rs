//! The prefixes of a collection in memory: lookups of one key or many in all filters.

use super::super::files::{Files, Tail};
use super::super::keys::hash_object;
use super::super::release::briefly;
use super::directory::Directory;
use super::lookup::{Arrays, Found, candidates_many};
use crate::collection::{self, Loaded, may_hold};
use crate::error::Result;
use crate::hash::{Hash128, Hasher};
use crate::interrupt;
use crate::memory::{self, TryGrow};
use numpy::{PyArray1, PyReadwriteArray1};
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Keys that are looked up together in as many filters as fit in a cache.
const TOGETHER: usize = 256;

/// The prefixes of a collection's filters in memory, the most queried first.
#[pyclass(frozen, module = "tamis._native")]
pub struct Resident {
    pub resident: collection::Resident,
    files: Arc<Files>,
    directory: Arc<Directory>,
    hasher: Hasher,
    /// How many times the rest of a filter was read.
    reads: AtomicU64,
}

impl Resident {
    pub fn new(
        resident: collection::Resident,
        files: Arc<Files>,
        directory: Arc<Directory>,
        hasher: Hasher,
    ) -> Resident {
        Resident { resident, files, directory, hasher, reads: AtomicU64::new(0) }
    }

    /// Whether the bits of a filter that are not in memory allow the key too.
    fn tail_allows(&self, query: &collection::Query, found: collection::Candidate) -> Result<bool> {
        let row = self.directory.row(&self.files, found.id as usize)?;
        let bits = row.filter.bits()?;
        if found.kept >= bits {
            return Ok(true);
        }
        self.reads.fetch_add(1, Relaxed);
        let mut tail = Tail::new(&self.files, row.place);
        may_hold(&row.filter, query, found.kept..bits, &mut tail)
    }

    /// The position of each of `count` filters, by its number. Filter i was number `before[i]` when
    /// these were loaded, or had the same number.
    pub fn positions(&self, count: usize, before: Option<&[u32]>) -> Result<Vec<u32>> {
        let ids = self.resident.ids()?;
        let end = ids.iter().max().map_or(0, |&id| id as usize + 1);
        let mut positions = memory::filled(count.max(end), u32::MAX)?;
        for (position, id) in (0..).zip(ids) {
            positions[id as usize] = position;
        }
        match before {
            Some(before) => {
                let position = |&id: &u32| positions.get(id as usize).copied();
                memory::collected(before.iter().map(|id| position(id).unwrap_or(u32::MAX)))
            }
            None => Ok(positions),
        }
    }

    /// These prefixes, as the source of a copy.
    pub fn at<'a>(&'a self, positions: &'a [u32]) -> Loaded<'a> {
        Loaded { resident: &self.resident, positions }
    }

    fn lookup(&self, hashes: &[Hash128], limit: usize, hybrid: bool) -> Result<Found> {
        if limit == 0 {
            return Found::none(hashes.len());
        }
        let (mut counts, mut pairs) = (memory::filled(hashes.len(), 0u32)?, Vec::new());
        let (mut ids, mut failed) = (Vec::new(), Ok(()));
        for (chunk, hashes) in hashes.chunks(TOGETHER).enumerate() {
            interrupt::check();
            let first = (chunk * TOGETHER) as u32;
            pairs.clear();
            self.resident.candidates_many(hashes, |found| {
                if hybrid {
                    let query = self.resident.query(hashes[found.key as usize]);
                    match query.and_then(|query| self.tail_allows(&query, found)) {
                        Ok(true) => {}
                        Ok(false) => return true,
                        Err(error) => {
                            failed = Err(error);
                            return false;
                        }
                    }
                }
                let count = &mut counts[(first + found.key) as usize];
                *count += 1;
                if let Err(error) = pairs.try_push((found.key, found.id)) {
                    failed = Err(error);
                    return false;
                }
                (*count as usize) < limit
            })?;
            // Sort by key; the candidates of a key stay in the order of utility in which they came.
            let mut places = memory::collected(0..pairs.len() as u32)?;
            places.sort_unstable_by_key(|&at| (pairs[at as usize].0, at));
            ids.try_append(places.iter().map(|&at| pairs[at as usize].1))?;
        }
        failed?;
        Ok(Found { counts, ids })
    }
}

#[pymethods]
impl Resident {
    /// The filters that may hold a key, the most queried first.
    fn candidates<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        limit: usize,
        hybrid: bool,
    ) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let (hash, _) = hash_object(&self.hasher, key).map_err(|reason| reason.named("key"))?;
        let mut ids = Vec::new();
        if limit > 0 {
            briefly(py, || {
                let query = self.resident.query(hash)?;
                let mut failed = Ok(());
                self.resident.candidates(&query, |found| {
                    let allowed = if hybrid { self.tail_allows(&query, found) } else { Ok(true) };
                    match allowed {
                        Ok(true) => failed = ids.try_push(found.id),
                        Ok(false) => {}
                        Err(error) => failed = Err(error),
                    }
                    ids.len() < limit && failed.is_ok()
                });
                failed
            })?;
        }
        Ok(PyArray1::from_vec(py, ids))
    }

    /// The same for many keys: offsets of the filters of each key, and the filters.
    fn candidates_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        limit: usize,
        hybrid: bool,
    ) -> PyResult<Arrays<'py>> {
        let work = (self.resident.len(), TOGETHER);
        candidates_many(py, &self.hasher, keys, work, |part| self.lookup(part, limit, hybrid))
    }

    /// Writes the length of each prefix in bits to the element of its filter.
    fn kept_into(&self, mut out: PyReadwriteArray1<'_, i64>) -> PyResult<()> {
        let out = out.as_slice_mut()?;
        for (id, kept) in self.resident.kept()? {
            if let Some(place) = out.get_mut(id as usize) {
                *place = kept as i64;
            }
        }
        Ok(())
    }

    /// Total bits of the prefixes.
    #[getter]
    fn bits(&self) -> u64 {
        self.resident.bits()
    }

    /// Memory apart from the bits of the prefixes.
    #[getter]
    fn overhead(&self) -> usize {
        self.resident.overhead()
    }

    /// How many times the rest of a filter was read from the file.
    #[getter]
    fn tail_reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }
}
