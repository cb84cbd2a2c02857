//! Learned filters: keys split by their scores, filters joined, questions with scores.

use super::batch::{self, Distinct};
use super::column::Keys;
use super::handle::Kernel;
use super::keys::{self, hasher};
use super::model::hash_and_score;
use crate::distinct;
use crate::hash::Hash128;
use crate::learned::{Learned, Region, in_front, region_of};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// The distinct keys of each region, and all of them as the filter in front sees them.
#[pyfunction]
#[pyo3(signature = (keys, scores, borders, seed=0, key=None))]
pub fn learned_split(
    py: Python<'_>,
    keys: &Bound<'_, PyAny>,
    scores: PyReadonlyArray1<'_, f32>,
    borders: Vec<f32>,
    #[pyo3(from_py_with = keys::seed)] seed: u64,
    key: Option<&[u8]>,
) -> PyResult<(Distinct, Vec<Distinct>)> {
    let hasher = hasher(seed, key)?;
    let hashes = batch::hashes(py, &hasher, keys)?;
    let scores = one_each(&scores, hashes.len())?;
    let mut regions = vec![Vec::new(); borders.len() + 1];
    for (&hash, &score) in hashes.iter().zip(scores) {
        regions[region_of(score, &borders)].push(hash);
    }
    let distinct = |hashes: &[Hash128]| {
        let mut partitions = distinct::Partitions::new(hashes.len(), hashes.len())?;
        partitions.extend(hashes);
        let hashes = distinct::Distinct::new(vec![partitions], 1)?;
        PyResult::Ok(Distinct { hashes, hasher: hasher.clone(), threads: 1 })
    };
    let remixed: Vec<Hash128> = hashes.iter().map(|&hash| in_front(hash)).collect();
    let regions = regions.iter().map(|region| distinct(region)).collect::<PyResult<_>>()?;
    Ok((distinct(&remixed)?, regions))
}

/// The scores of distinct keys, in the order of their hashes.
#[pyfunction]
#[pyo3(signature = (keys, scores, seed=0, key=None))]
pub fn learned_scores<'py>(
    py: Python<'py>,
    keys: &Bound<'py, PyAny>,
    scores: PyReadonlyArray1<'py, f32>,
    #[pyo3(from_py_with = keys::seed)] seed: u64,
    key: Option<&[u8]>,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let hashes = batch::hashes(py, &hasher(seed, key)?, keys)?;
    let scores = one_each(&scores, hashes.len())?.iter().map(|score| score.to_bits());
    let mut pairs: Vec<(Hash128, u32)> = hashes.into_iter().zip(scores).collect();
    py.detach(|| {
        pairs.sort_unstable();
        pairs.dedup();
    });
    let scores = pairs.into_iter().map(|(_, score)| f32::from_bits(score)).collect();
    Ok(PyArray1::from_vec(py, scores))
}

/// The scores, if there is one for each key.
pub(super) fn one_each<'a>(
    scores: &'a PyReadonlyArray1<'_, f32>,
    keys: usize,
) -> PyResult<&'a [f32]> {
    let scores = scores.as_slice()?;
    if scores.len() != keys {
        let message =
            format!("features has {} rows for {keys} keys; one each is wanted", scores.len());
        return Err(PyValueError::new_err(message));
    }
    Ok(scores)
}

/// A learned filter of its parts. A region without filter answers yes where `accepts`, else no.
#[pyfunction]
pub fn learned(
    keys: &Distinct,
    model: Option<&Kernel>,
    front: Option<&Kernel>,
    borders: Vec<f32>,
    shares: Vec<f64>,
    filters: Vec<Option<PyRef<'_, Kernel>>>,
    accepts: Vec<bool>,
) -> PyResult<Kernel> {
    let kernel = |kernel: &Kernel| kernel.kernel.clone();
    let region = |(filter, accepts): (&Option<PyRef<'_, Kernel>>, &bool)| match (filter, accepts) {
        (Some(filter), _) => Region::Filter(filter.kernel.clone()),
        (None, true) => Region::All,
        (None, false) => Region::None,
    };
    let count = keys.hashes.len() as u64;
    let learned = Learned {
        model: model.map(kernel),
        front: front.map(kernel),
        borders,
        regions: filters.iter().zip(&accepts).map(region).zip(shares).collect(),
        count,
    };
    let kernel = Arc::new(learned.checked()?);
    Ok(Kernel { kernel, hasher: keys.hasher.clone(), capacity: count })
}

/// Whether each key, with its score, may be in the set.
#[pyfunction]
pub fn learned_contains<'py>(
    py: Python<'py>,
    kernel: &Kernel,
    keys: &Bound<'py, PyAny>,
    scores: PyReadonlyArray1<'py, f32>,
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    let learned = kernel.of::<Learned>()?;
    let keys = Keys::new(keys)?;
    let scores = one_each(&scores, keys.len())?;
    let answers = PyArray1::<bool>::zeros(py, keys.len(), false);
    // SAFETY: the array was just made, and nobody else has it yet.
    let out = unsafe { answers.as_slice_mut()? };
    batch::for_each(py, &kernel.hasher, keys, |first, hashes| {
        let range = first..first + hashes.len();
        learned.contains_scored(hashes, &scores[range.clone()], &mut out[range]);
    })?;
    Ok(answers)
}

/// Whether one key, scored as text, may be in the set.
#[pyfunction]
pub fn learned_contains_one(kernel: &Kernel, key: &Bound<'_, PyAny>) -> PyResult<bool> {
    let learned = kernel.of::<Learned>()?;
    let (hash, score) = hash_and_score(kernel, learned.model.as_ref(), key)?;
    Ok(learned.contains_one_scored(hash, score))
}

/// The classifier, where it is kept.
#[pyfunction]
pub fn learned_model(kernel: &Kernel) -> PyResult<Option<Kernel>> {
    let model = kernel.of::<Learned>()?.model.clone();
    let capacity = model.as_ref().map_or(0, |model| model.count());
    let hasher = crate::hash::Hasher::seeded(0);
    Ok(model.map(|kernel| Kernel { kernel, hasher, capacity }))
}

/// What [`learned_shape`] tells.
type Shape = (bool, Vec<f32>, Vec<(f64, f64)>);

/// Whether a filter stands in front, the borders, and by region: its share of absent keys, its rate.
#[pyfunction]
pub fn learned_shape(kernel: &Kernel) -> PyResult<Shape> {
    let learned = kernel.of::<Learned>()?;
    let regions = learned.regions.iter().map(|(region, share)| (*share, region.rate()));
    Ok((learned.front.is_some(), learned.borders.clone(), regions.collect()))
}
