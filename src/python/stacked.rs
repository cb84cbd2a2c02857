//! Stacks: negatives through the first layer as they come, survivors from layer to layer.
//!
//! What is built of them, and of which size, is Python's decision: `filters/stacked.py`.

use super::batch::{self, Distinct};
use super::function::Assigned;
use super::handle::Kernel;
use crate::distinct::{self, Partitions};
use crate::hash::Hash128;
use crate::kernel;
use crate::ribbon::Equation;
use crate::sharded::shard_of;
use crate::stack::{Stack, accepted, at_layer};
use pyo3::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Known negatives that the first layer takes for keys; the others are forgotten as they come.
#[pyclass(frozen, module = "tamis._native")]
pub struct Negatives {
    first: Kernel,
    survivors: Mutex<Vec<Hash128>>,
    /// How many came.
    given: AtomicUsize,
}

impl Negatives {
    fn survivors(&self) -> MutexGuard<'_, Vec<Hash128>> {
        self.survivors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Negatives {
    #[new]
    fn new(first: &Kernel) -> Negatives {
        Negatives { first: first.clone(), survivors: Mutex::default(), given: AtomicUsize::new(0) }
    }

    /// Takes a column of negatives in.
    fn add(&self, py: Python<'_>, negatives: &Bound<'_, PyAny>) -> PyResult<()> {
        let Kernel { kernel, hasher, .. } = &self.first;
        let (mut accepted, given) = batch::accepted(py, &**kernel, hasher, negatives)?;
        self.given.fetch_add(given, Relaxed);
        self.survivors().append(&mut accepted);
        Ok(())
    }

    /// How many came, repetitions included.
    #[getter]
    fn given(&self) -> usize {
        self.given.load(Relaxed)
    }

    /// Those that come to each of `shards` shards, the first layers of which were joined to one.
    fn by_shard(&self, shards: u64) -> Vec<Negatives> {
        let mut parts = vec![Vec::new(); shards as usize];
        for &hash in self.survivors().iter() {
            parts[shard_of(hash, shards)].push(hash);
        }
        let part = |survivors| Negatives {
            first: self.first.clone(),
            survivors: Mutex::new(survivors),
            given: AtomicUsize::new(self.given()),
        };
        parts.into_iter().map(part).collect()
    }

    /// The distinct survivors that are no keys, and how many keys were among them. A key passes
    /// the first layer, so none is missed.
    fn distinct(&self, py: Python<'_>, keys: &Distinct) -> PyResult<(Distinct, usize)> {
        py.detach(|| {
            let all = collected(&self.survivors(), keys.threads)?;
            let negatives = all.without(&keys.hashes, keys.threads);
            let overlap = all.len() - negatives.len();
            Ok((keys.with(negatives), overlap))
        })
    }

    /// The `count` of these survivors that came first.
    fn earliest(&self, py: Python<'_>, negatives: &Distinct, count: usize) -> PyResult<Distinct> {
        py.detach(|| {
            let mut left: BTreeSet<Hash128> =
                negatives.hashes.partitions().flatten().copied().collect();
            let survivors = self.survivors();
            let came = survivors.iter().filter(|hash| left.remove(hash)).take(count);
            let earliest: Vec<Hash128> = came.copied().collect();
            Ok(negatives.with(collected(&earliest, 1)?))
        })
    }
}

/// Hashes without repetitions.
fn collected(hashes: &[Hash128], threads: usize) -> PyResult<distinct::Distinct> {
    let mut partitions = Partitions::new(hashes.len(), hashes.len())?;
    partitions.extend(hashes);
    Ok(distinct::Distinct::new(vec![partitions], threads)?)
}

/// Those of the keys that layer `index` accepts.
#[pyfunction]
pub fn stacked_survivors(
    py: Python<'_>,
    layer: &Kernel,
    index: usize,
    keys: &Distinct,
) -> Distinct {
    let kernel = &*layer.kernel;
    py.detach(|| {
        keys.with(keys.hashes.filtered(keys.threads, |part| accepted(kernel, index, part)))
    })
}

/// The keys as layer `index` sees them.
#[pyfunction]
pub fn stacked_seen(py: Python<'_>, index: usize, keys: &Distinct) -> PyResult<Distinct> {
    py.detach(|| {
        let count = keys.hashes.len();
        let mut partitions = Partitions::new(count, count)?;
        for part in keys.hashes.partitions() {
            let seen: Vec<Hash128> = part.iter().map(|&hash| at_layer(hash, index)).collect();
            partitions.extend(&seen);
        }
        Ok(keys.with(distinct::Distinct::new(vec![partitions], keys.threads)?))
    })
}

/// One for each key and zero for each negative, as layer `index` sees them.
#[pyfunction]
pub fn stacked_assigned(
    py: Python<'_>,
    index: usize,
    keys: &Distinct,
    negatives: &Distinct,
) -> Assigned {
    let equations = py.detach(|| {
        let of = |set: &Distinct, value: u32| {
            let hashes = set.hashes.partitions().flatten();
            hashes.map(|&hash| Equation { hash: at_layer(hash, index), value }).collect::<Vec<_>>()
        };
        let mut equations = of(keys, 1);
        equations.append(&mut of(negatives, 0));
        equations.sort_unstable();
        equations
    });
    Assigned { equations, hasher: keys.hasher.clone() }
}

/// A stack of layers, from the first, with the share of known negatives among the questions (psi),
/// how many keys were among the negatives, and whether none of them pass the last layer.
#[pyfunction]
pub fn stacked(
    layers: Vec<PyRef<'_, Kernel>>,
    psi: f64,
    overlap: u64,
    exhausted: bool,
    capacity: u64,
) -> PyResult<Kernel> {
    let kernels: Vec<Arc<dyn kernel::Kernel>> = layers.iter().map(|l| l.kernel.clone()).collect();
    let stack = Stack::new(kernels, psi, overlap, exhausted)?;
    for layer in &layers {
        layers[0].check_hash(layer)?;
    }
    Ok(Kernel { kernel: Arc::new(stack), hasher: layers[0].hasher.clone(), capacity })
}

/// Kind, items, bits and rate of each layer.
#[pyfunction]
pub fn stacked_layers(py: Python<'_>, kernel: &Kernel) -> PyResult<Vec<(u16, u64, u64, f64)>> {
    let stack = kernel.of::<Stack>()?;
    Ok(py.detach(|| {
        let layers = stack.layers().iter();
        layers.map(|l| (l.kind().number, l.count(), l.size_in_bits(), l.rate())).collect()
    }))
}

/// Whether it takes insertions, whether removals, psi, keys among the negatives.
#[pyfunction]
pub fn stacked_facts(kernel: &Kernel) -> PyResult<(bool, bool, f64, u64)> {
    let stack = kernel.of::<Stack>()?;
    let known = stack.knowledge();
    Ok((stack.inserts(), stack.deletes(), known.psi, known.overlap))
}

/// The rate of known negatives.
#[pyfunction]
pub fn stacked_known_rate(py: Python<'_>, kernel: &Kernel) -> PyResult<f64> {
    let stack = kernel.of::<Stack>()?;
    Ok(py.detach(|| stack.known_rate()))
}
