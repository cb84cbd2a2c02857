//! Lookups of many keys, on several threads if there is enough work.

use super::super::batch;
use super::super::release::released;
use crate::error::Result;
use crate::hash::{Hash128, Hasher};
use crate::memory::{self, TryGrow};
use crate::threads;
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
    pub fn none(keys: usize) -> Result<Found> {
        Ok(Found { counts: memory::filled(keys, 0)?, ids: Vec::new() })
    }

    /// Adds the filters of the next key.
    pub fn push(&mut self, ids: &[u32]) -> Result<()> {
        self.counts.try_push(ids.len() as u32)?;
        self.ids.try_extend(ids)
    }

    /// Where the filters of each key begin, and the end.
    fn offsets(&self) -> Result<Vec<i64>> {
        let mut offsets = memory::with_capacity(self.counts.len() + 1)?;
        offsets.push(0);
        let mut end = 0;
        for &count in &self.counts {
            end += i64::from(count);
            offsets.push(end);
        }
        Ok(offsets)
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
    let found = released(py, || on_threads(&hashes, probes, together, lookup))??;
    Ok((PyArray1::from_vec(py, found.offsets()?), PyArray1::from_vec(py, found.ids)))
}

/// Splits keys over threads, in stretches of at least `together`, if they take this many probes each.
fn on_threads(
    hashes: &[Hash128],
    probes: usize,
    together: usize,
    lookup: impl Fn(&[Hash128]) -> Result<Found> + Sync,
) -> Result<Found> {
    let max_threads = hashes.len().div_ceil(together).max(1);
    let threads = match hashes.len().saturating_mul(probes) {
        ..THREADED => 1,
        _ => threads::available().min(max_threads),
    };
    let share = hashes.len().div_ceil(threads).max(1);
    let mut all = Found::default();
    for found in threads::try_map(hashes.chunks(share), lookup)? {
        if all.counts.is_empty() {
            all = found;
            continue;
        }
        all.counts.try_extend(&found.counts)?;
        all.ids.try_extend(&found.ids)?;
    }
    Ok(all)
}
