//! Stacks: negatives are filtered by the first layer as they come, survivors from layer to layer.
//!
//! Python decides the layers and their sizes: `filters/stacked.py`.

use super::batch::{self, Distinct};
use super::filter::{Deleting, structure};
use super::handle::Handle;
use super::kinds::kind_class;
use super::release::{briefly, released};
use crate::distinct::{self, Partitions};
use crate::error::Result;
use crate::hash::Hash128;
use crate::kernel::Kernel;
use crate::lock::{ReadGuard, RwLock};
use crate::memory::{self, TryGrow};
use crate::sharded::shard_of;
use crate::stack::Stack;
use numpy::PyArray1;
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Known negatives that the first layer accepts; the others are dropped as they are added.
#[pyclass(frozen, module = "tamis._native")]
pub struct Negatives {
    first: Handle,
    /// Each with its rank: the number of negatives added before it.
    survivors: RwLock<Vec<(Hash128, usize)>>,
    /// How many were added.
    given: AtomicUsize,
}

impl Negatives {
    /// Some of the survivors, in the order in which each was first added.
    fn ranked(&self, some: &Distinct) -> Result<Vec<(Hash128, usize)>> {
        let chosen = memory::collected(some.hashes.sorted()?)?;
        let mut met = memory::filled(chosen.len(), false)?;
        let mut found = memory::with_capacity(chosen.len())?;
        for &(hash, rank) in self.survivors().iter() {
            if let Ok(at) = chosen.binary_search(&hash)
                && !std::mem::replace(&mut met[at], true)
            {
                found.push((hash, rank));
            }
        }
        found.sort_unstable_by_key(|&(_, rank)| rank);
        Ok(found)
    }

    fn hashes(&self) -> Result<Vec<Hash128>> {
        memory::collected(self.survivors().iter().map(|&(hash, _)| hash))
    }

    fn survivors(&self) -> ReadGuard<'_, Vec<(Hash128, usize)>> {
        self.survivors.read()
    }
}

#[pymethods]
impl Negatives {
    #[new]
    fn new(first: &Handle) -> Negatives {
        Negatives { first: first.clone(), survivors: RwLock::default(), given: AtomicUsize::new(0) }
    }

    /// Adds a column of negatives.
    fn add(&self, py: Python<'_>, negatives: &Bound<'_, PyAny>) -> PyResult<()> {
        let Handle { kernel, hasher, .. } = &self.first;
        let (accepted, given) = batch::accepted(py, &**kernel, hasher, negatives)?;
        let before = self.given.fetch_add(given, Relaxed);
        let ranked = accepted.into_iter().map(|(hash, index)| (hash, before + index));
        Ok(self.survivors.write().try_append(ranked)?)
    }

    /// How many were added, repetitions included.
    #[getter]
    fn given(&self) -> usize {
        self.given.load(Relaxed)
    }

    /// The survivors of each of `shards` shards, whose first layers were joined to one.
    fn by_shard(&self, shards: u64) -> PyResult<Vec<Negatives>> {
        let mut parts = memory::filled(shards as usize, Vec::new())?;
        for &(hash, rank) in self.survivors().iter() {
            parts[shard_of(hash, shards)].try_push((hash, rank))?;
        }
        let part = |survivors| Negatives {
            first: self.first.clone(),
            survivors: RwLock::new(survivors),
            given: AtomicUsize::new(self.given()),
        };
        Ok(memory::collected(parts.into_iter().map(part))?)
    }

    /// The distinct survivors, keys among them.
    fn distinct(&self, py: Python<'_>, keys: &Distinct) -> PyResult<Distinct> {
        released(py, || Ok(keys.with(collected(&self.hashes()?, keys.threads)?)))?
    }

    /// How many negatives were added before each of these survivors, in rising order.
    fn ranks<'py>(&self, py: Python<'py>, some: &Distinct) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let ranks = released(py, || {
            let ranked = self.ranked(some)?.into_iter();
            memory::collected(ranked.map(|(_, rank)| rank as u64))
        })??;
        Ok(PyArray1::from_vec(py, ranks))
    }

    /// The `count` of these survivors that were added first.
    fn earliest(&self, py: Python<'_>, negatives: &Distinct, count: usize) -> PyResult<Distinct> {
        released(py, || {
            let came = self.ranked(negatives)?.into_iter().take(count);
            let earliest = memory::collected(came.map(|(hash, _)| hash))?;
            Ok(negatives.with(collected(&earliest, 1)?))
        })?
    }
}

/// Hashes without repetitions.
fn collected(hashes: &[Hash128], threads: usize) -> PyResult<distinct::Distinct> {
    let mut partitions = Partitions::new(hashes.len(), hashes.len())?;
    partitions.extend(hashes);
    Ok(distinct::Distinct::new(vec![partitions], threads)?)
}

/// A layer of a stack, as it is now.
#[pyclass(frozen, get_all, eq, module = "tamis._native")]
#[derive(PartialEq)]
pub struct BuiltLayer {
    kind: &'static str,
    /// "keys", "negatives", or "both" for the function at the end of an exact stack.
    stores: &'static str,
    items: u64,
    bits: u64,
    rate: f64,
}

impl BuiltLayer {
    /// Describes the layers of a stack, from the first; of an `exact` one, the last stores both.
    pub fn all(layers: &[Arc<dyn Kernel>], exact: bool) -> Vec<BuiltLayer> {
        let describe = |(index, layer): (usize, &Arc<dyn Kernel>)| BuiltLayer {
            kind: layer.kind().name,
            stores: match index % 2 {
                _ if exact && index + 1 == layers.len() => "both",
                0 => "keys",
                _ => "negatives",
            },
            items: layer.count(),
            bits: layer.size_in_bits(),
            rate: layer.rate(),
        };
        layers.iter().enumerate().map(describe).collect()
    }
}

#[pymethods]
impl BuiltLayer {
    fn __repr__(&self) -> String {
        let BuiltLayer { kind, stores, items, bits, rate } = self;
        format!(
            "BuiltLayer(kind={kind:?}, stores={stores:?}, items={items}, bits={bits}, rate={rate})"
        )
    }
}

kind_class! {
    /// A stack of filters.
    Stacked(Stack) extends Deleting
}

#[pymethods]
impl Stacked {
    /// A stack of layers, from the first, with the fraction of queries for known negatives (psi),
    /// the number of keys among the negatives, and whether no negative passes the last layer.
    #[staticmethod]
    fn _join(
        layers: Vec<PyRef<'_, Handle>>,
        psi: f64,
        keys_among_negatives: u64,
        exhausted: bool,
        capacity: u64,
    ) -> PyResult<Handle> {
        let kernels = layers.iter().map(|layer| layer.kernel.clone()).collect();
        let stack = Stack::new(kernels, psi, keys_among_negatives, exhausted)?;
        for layer in &layers {
            layers[0].check_hash(layer)?;
        }
        Ok(Handle::new(stack, capacity, layers[0].hasher.clone()))
    }

    /// Whether keys can be added: every layer of keys supports insertion.
    #[getter]
    fn inserts(self_: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(structure::<Stack>(self_)?.1.inserts())
    }

    /// Whether keys can be removed: every layer of keys supports deletion.
    #[getter]
    fn deletes(self_: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(structure::<Stack>(self_)?.1.deletes())
    }

    /// Whether keys beyond the capacity are refused: by a layer of keys that is full.
    #[getter]
    fn bounded(self_: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(structure::<Stack>(self_)?.1.bounded())
    }

    /// The fraction of queries for absent keys that are for known negatives (ψ).
    #[getter]
    fn psi(self_: &Bound<'_, Self>) -> PyResult<f64> {
        Ok(structure::<Stack>(self_)?.1.knowledge().psi)
    }

    /// The number of keys that were also given as negatives, and were ignored.
    #[getter]
    fn keys_among_negatives(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(structure::<Stack>(self_)?.1.knowledge().overlap)
    }

    /// The rate of known negatives, if removals affect old and new keys alike.
    #[getter]
    fn known_fpr(self_: &Bound<'_, Self>) -> PyResult<f64> {
        let (_, stack) = structure::<Stack>(self_)?;
        Ok(briefly(self_.py(), || stack.known_rate()))
    }

    /// The layers, from the first.
    #[getter]
    fn _layers(self_: &Bound<'_, Self>) -> PyResult<Vec<BuiltLayer>> {
        let (_, stack) = structure::<Stack>(self_)?;
        Ok(briefly(self_.py(), || BuiltLayer::all(stack.layers(), stack.is_exact())))
    }
}
