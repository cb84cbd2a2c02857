//! Stable learned filters: joined, asked and fed with scores.

use super::batch;
use super::handle::Kernel;
use super::keys::{self, hasher};
use super::learned::one_each;
use super::model::hash_and_score;
use crate::hash::{Hash128, Hasher};
use crate::kernel;
use crate::stable::{Shape, Stable};
use crate::stable_learned::{Group, StableLearned};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A group as Python tells it: sizes of its filter if it has one, the answer to all if not, and
/// the shares of absent keys and members that were planned for.
type Told = (Option<(u64, u32, u32, u64)>, bool, f64, f64);

/// An empty stable learned filter.
#[pyfunction]
#[pyo3(signature = (model, borders, groups, independent, capacity, seed=0, key=None))]
pub fn stable_learned(
    model: Option<&Kernel>,
    borders: Vec<f32>,
    groups: Vec<Told>,
    independent: bool,
    capacity: u64,
    #[pyo3(from_py_with = keys::seed)] seed: u64,
    key: Option<&[u8]>,
) -> PyResult<Kernel> {
    let hasher = hasher(seed, key)?;
    let group = |(j, &(size, answer, nonmembers, members)): (usize, &Told)| {
        let filter = match size {
            Some((cells, most, hashes, decrements)) => {
                let shape = Shape::new(cells, most, hashes, decrements, independent)?;
                let stable = Stable::new(shape, hasher.tag().wrapping_add(j as u64))?;
                Some(Arc::new(stable) as Arc<dyn kernel::Kernel>)
            }
            None => None,
        };
        PyResult::Ok(Group { filter, answer, nonmembers, members, inserted: AtomicU64::new(0) })
    };
    let groups = groups.iter().enumerate().map(group).collect::<PyResult<_>>()?;
    let model = model.map(|model| model.kernel.clone());
    let kernel = Arc::new(StableLearned { model, borders, groups }.checked()?);
    Ok(Kernel { kernel, hasher, capacity })
}

/// The same counters behind another classifier, with other borders and shares.
#[pyfunction]
pub fn stable_learned_swapped(
    kernel: &Kernel,
    model: Option<&Kernel>,
    borders: Vec<f32>,
    shares: Vec<(f64, f64)>,
) -> PyResult<Kernel> {
    let old = kernel.of::<StableLearned>()?;
    if shares.len() != old.groups.len() {
        return Err(PyValueError::new_err("as many groups as before are wanted"));
    }
    let group = |(group, &(nonmembers, members)): (&Group, &(f64, f64))| {
        let filter = group.filter.as_ref().map(|filter| filter.copy()).transpose()?;
        let inserted = AtomicU64::new(0);
        PyResult::Ok(Group { filter, answer: group.answer, nonmembers, members, inserted })
    };
    let groups = old.groups.iter().zip(&shares).map(group).collect::<PyResult<_>>()?;
    let model = model.map(|model| model.kernel.clone());
    Ok(kernel.with(StableLearned { model, borders, groups }.checked()?))
}

/// Whether each key, with its score, may have come before; with `insert`, it comes now.
#[pyfunction]
pub fn stable_learned_pass<'py>(
    py: Python<'py>,
    kernel: &Kernel,
    keys: &Bound<'py, PyAny>,
    scores: PyReadonlyArray1<'py, f32>,
    insert: bool,
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    let learned = kernel.of::<StableLearned>()?;
    let hashes: Vec<Hash128> = batch::hashes(py, &kernel.hasher, keys)?;
    let scores = one_each(&scores, hashes.len())?;
    batch::check_memory(py, hashes.len())?;
    let answers = PyArray1::<bool>::zeros(py, hashes.len(), false);
    // SAFETY: the array was just made, and nobody else has it yet.
    let out = unsafe { answers.as_slice_mut()? };
    py.detach(|| learned.pass(&hashes, scores, insert, out))?;
    Ok(answers)
}

/// Whether one key, scored as text, may have come before; with `insert`, it comes now.
#[pyfunction]
pub fn stable_learned_pass_one(
    py: Python<'_>,
    kernel: &Kernel,
    key: &Bound<'_, PyAny>,
    insert: bool,
) -> PyResult<bool> {
    let learned = kernel.of::<StableLearned>()?;
    let (hash, score) = hash_and_score(kernel, learned.model.as_ref(), key)?;
    Ok(py.detach(|| learned.pass_one(hash, score, insert))?)
}

/// The classifier, where it is kept.
#[pyfunction]
pub fn stable_learned_model(kernel: &Kernel) -> PyResult<Option<Kernel>> {
    let model = kernel.of::<StableLearned>()?.model.clone();
    let capacity = model.as_ref().map_or(0, |model| model.count());
    Ok(model.map(|kernel| Kernel { kernel, hasher: Hasher::seeded(0), capacity }))
}

/// The borders, and by group what `stable_learned` takes, and its insertions.
#[pyfunction]
pub fn stable_learned_shape(kernel: &Kernel) -> PyResult<(Vec<f32>, Vec<Told>, Vec<u64>)> {
    let learned = kernel.of::<StableLearned>()?;
    let told = |group: &Group| {
        let any = group.filter.as_ref().map(|filter| &**filter as &dyn Any);
        let size = any.and_then(|any| any.downcast_ref::<Stable>()).map(|filter| {
            let Shape { cells, most, hashes, decrements, .. } = filter.shape();
            (cells, most, hashes, decrements)
        });
        (size, group.answer, group.nonmembers, group.members)
    };
    let inserted = learned.groups.iter().map(|group| group.inserted.load(Relaxed)).collect();
    Ok((learned.borders.clone(), learned.groups.iter().map(told).collect(), inserted))
}
