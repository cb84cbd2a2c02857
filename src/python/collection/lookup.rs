//! Lookups of many keys, on several threads if there is enough work.

use super::super::batch;
use crate::error::Result;
use crate::hash::{Hash128, Hasher};
use numpy::PyArray1;
use pyo3::prelude::*;

/// Keys times probes per key from which lookups run on several threads.
const THREADED: usize = 1 << 24;

/// The filters found for each of many keys.
#[derive(Default)]
pub struct Found {
    pub counts: Vec<u32>,
    pub ids: Vec<u32>,
}

impl Found {
    /// No filters for this many keys.
    pub fn none(keys: usize) -> Found {
        Found { counts: vec![0; keys], ids: Vec::new() }
    }

    /// Adds the filters of the next key.
    pub fn push(&mut self, ids: &[u32]) {
        self.counts.push(ids.len() as u32);
        self.ids.extend_from_slice(ids);
    }

    /// Where the filters of each key begin, and the end.
    fn offsets(&self) -> Vec<i64> {
        let mut offsets = Vec::with_capacity(self.counts.len() + 1);
        offsets.push(0);
        let mut end = 0;
        for &count in &self.counts {
            end += i64::from(count);
            offsets.push(end);
        }
        offsets
    }
}

/// Offsets of the filters of each key, and the filters.
pub type Arrays<'py> = (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<u32>>);

/// Hashes keys and looks them up, as [`on_threads`] does.
pub fn candidates_many<'py>(
    py: Python<'py>,
    hasher: &Hasher,
    keys: &Bound<'py, PyAny>,
    (probes, together): (usize, usize),
    lookup: impl Fn(&[Hash128]) -> Result<Found> + Sync + Send,
) -> PyResult<Arrays<'py>> {
    let hashes = batch::hashes(py, hasher, keys)?;
    let found = py.detach(|| on_threads(&hashes, probes, together, lookup))?;
    Ok((PyArray1::from_vec(py, found.offsets()), PyArray1::from_vec(py, found.ids)))
}

/// Splits keys over threads, in stretches of at least `together`, if they take this many probes each.
fn on_threads(
    hashes: &[Hash128],
    probes: usize,
    together: usize,
    lookup: impl Fn(&[Hash128]) -> Result<Found> + Sync,
) -> Result<Found> {
    let most = hashes.len().div_ceil(together).max(1);
    let threads = match hashes.len().saturating_mul(probes) {
        ..THREADED => 1,
        _ => std::thread::available_parallelism().map_or(1, usize::from).min(most),
    };
    let share = hashes.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let mut parts = hashes.chunks(share);
        let (own, lookup) = (parts.next().unwrap_or_default(), &lookup);
        let others: Vec<_> = parts.map(|part| scope.spawn(move || lookup(part))).collect();
        let mut all = lookup(own)?;
        for thread in others {
            let found = match thread.join() {
                Ok(found) => found?,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            all.counts.extend(found.counts);
            all.ids.extend(found.ids);
        }
        Ok(all)
    })
}
