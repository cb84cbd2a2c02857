//! Learned filters: keys split by their scores, filters joined, queries with scores.

use super::arrays;
use super::batch::{self, Batch, Distinct};
use super::column::CHUNK;
use super::filter::{Filter, structure};
use super::handle::Handle;
use super::keys::{self, Secret, hasher};
use super::kinds::kind_class;
use super::model::hash_and_score;
use super::release::released;
use crate::distinct;
use crate::hash::{Hash128, Hasher};
use crate::interrupt;
use crate::memory::{self, TryGrow};

use crate::learned::{Learned as Kernel, Region, in_front, region_of};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Keys with their scores, in the order of their hashes, each pair once.
#[pyclass(frozen, module = "tamis._native")]
pub struct ScoredKeys {
    pairs: Vec<(Hash128, u32)>,
    hasher: Hasher,
}

/// Added to p·(1 − p), so that scores of 0 and 1 have a margin for their rounding, too.
const ROUNDING: f32 = 1.0 / 1024.0;

#[pymethods]
impl ScoredKeys {
    #[new]
    #[pyo3(signature = (keys, scores, seed=0, key=None))]
    fn new(
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        scores: PyReadonlyArray1<'_, f32>,
        #[pyo3(from_py_with = keys::seed)] seed: u64,
        #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
    ) -> PyResult<ScoredKeys> {
        let hasher = hasher(seed, key)?;
        let hashes = batch::hashes(py, &hasher, keys)?;
        let scores = one_each(&scores, hashes.len())?.iter().map(|score| score.to_bits());
        let mut pairs: Vec<(Hash128, u32)> = memory::collected(hashes.into_iter().zip(scores))?;
        released(py, || {
            interrupt::sort(&mut pairs);
            pairs.dedup();
        })?;
        Ok(ScoredKeys { pairs, hasher })
    }

    /// The scores, one for each key.
    #[getter]
    fn scores<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let scores = self.pairs.iter().map(|&(_, score)| f32::from_bits(score));
        Ok(PyArray1::from_vec(py, memory::collected(scores)?))
    }

    /// All keys, as the filter in front of the regions sees them.
    fn in_front(&self, py: Python<'_>) -> PyResult<Distinct> {
        released(py, || self.distinct(self.pairs.iter().map(|&(hash, _)| in_front(hash))))?
    }

    /// The keys of each region of scores. A key whose score could be on the other side of a border,
    /// if the classifier's logits are off by `margin`, is a key of both regions: dp = p·(1 − p)·dz.
    #[pyo3(signature = (borders, margin=0.0))]
    fn by_region(&self, py: Python<'_>, borders: Vec<f32>, margin: f32) -> PyResult<Vec<Distinct>> {
        released(py, || {
            let mut regions = memory::filled(borders.len() + 1, Vec::new())?;
            for (i, &(hash, score)) in self.pairs.iter().enumerate() {
                if i.is_multiple_of(CHUNK) {
                    interrupt::check();
                }
                let score = f32::from_bits(score);
                let near = margin * (score * (1.0 - score) + ROUNDING);
                let (low, high) =
                    (region_of(score - near, &borders), region_of(score + near, &borders));
                for region in &mut regions[low..=high] {
                    region.try_push(hash)?;
                }
            }
            memory::collected_ok(
                regions.into_iter().map(|region| self.distinct(region.into_iter())),
            )
        })?
    }
}

impl ScoredKeys {
    fn distinct(&self, hashes: impl Iterator<Item = Hash128>) -> PyResult<Distinct> {
        let hashes = memory::collected(hashes)?;
        let mut partitions = distinct::Partitions::new(hashes.len(), hashes.len())?;
        partitions.extend(&hashes);
        let hashes = distinct::Distinct::new(vec![partitions], 1)?;
        Ok(Distinct { hashes, hasher: self.hasher.clone(), threads: 1 })
    }
}

/// The scores, if there is one for each key.
pub(super) fn one_each<'a>(
    scores: &'a PyReadonlyArray1<'_, f32>,
    keys: usize,
) -> PyResult<&'a [f32]> {
    let scores = scores.as_slice()?;
    if scores.len() != keys {
        let message =
            format!("features has {} rows for {keys} keys; pass one row per key", scores.len());
        return Err(PyValueError::new_err(message));
    }
    Ok(scores)
}

/// A region of scores: its fraction of absent keys, and the rate of its filter.
#[pyclass(frozen, get_all, module = "tamis._native")]
pub struct ScoreRegion {
    share: f64,
    rate: f64,
}

kind_class! {
    /// A classifier, and filters by region of its scores.
    LearnedBloom(Kernel) extends Filter
}

#[pymethods]
impl LearnedBloom {
    /// A learned filter of its parts. A region without a filter answers `accepts`.
    #[staticmethod]
    fn _join(
        keys: &Distinct,
        model: Option<&Handle>,
        front: Option<&Handle>,
        borders: Vec<f32>,
        shares: Vec<f64>,
        filters: Vec<Option<PyRef<'_, Handle>>>,
        accepts: Vec<bool>,
    ) -> PyResult<Handle> {
        let kernel = |handle: &Handle| handle.kernel.clone();
        let region =
            |(filter, accepts): (&Option<PyRef<'_, Handle>>, &bool)| match (filter, accepts) {
                (Some(filter), _) => Region::Filter(filter.kernel.clone()),
                (None, true) => Region::All,
                (None, false) => Region::None,
            };
        let learned = Kernel {
            model: model.map(kernel),
            front: front.map(kernel),
            borders,
            regions: filters.iter().zip(&accepts).map(region).zip(shares).collect(),
            count: keys.hashes.len() as u64,
        };
        Ok(Handle::new(learned.checked()?, keys.hashes.len() as u64, keys.hasher.clone()))
    }

    /// Whether each key, with its score, may be in the set.
    fn _contains_scored<'py>(
        self_: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
        scores: PyReadonlyArray1<'py, f32>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let (py, (stored, learned)) = (self_.py(), structure::<Kernel>(self_)?);
        let keys = Batch::new(keys, &stored.handle.hasher)?;
        let scores = one_each(&scores, keys.len())?;
        let answers = arrays::zeros::<bool>(py, keys.len())?;
        let mut failed = Ok(());
        // SAFETY: the array is new, so nobody else has it yet.
        let out = unsafe { answers.as_slice_mut()? };
        batch::for_each(py, &stored.handle.hasher, &keys, |first, hashes| {
            let range = first..first + hashes.len();
            if failed.is_ok() {
                failed = learned.contains_scored(hashes, &scores[range.clone()], &mut out[range]);
            }
        })?;
        failed?;
        Ok(answers)
    }

    /// Whether one key, scored as text, may be in the set.
    fn _contains_text(self_: &Bound<'_, Self>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (stored, learned) = structure::<Kernel>(self_)?;
        let (hash, score) = hash_and_score(&stored.handle, learned.model.as_ref(), key)?;
        Ok(learned.contains_one_scored(hash, score))
    }

    /// The classifier, if it is saved.
    #[getter]
    fn _model(self_: &Bound<'_, Self>) -> PyResult<Option<Handle>> {
        Ok(structure::<Kernel>(self_)?.1.model.clone().map(of_model))
    }

    /// Whether a filter stands in front of the regions.
    #[getter]
    fn _front(self_: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(structure::<Kernel>(self_)?.1.front.is_some())
    }

    /// The scores that divide the regions.
    #[getter]
    fn _borders(self_: &Bound<'_, Self>) -> PyResult<Vec<f32>> {
        Ok(structure::<Kernel>(self_)?.1.borders.clone())
    }

    /// The regions, from the lowest scores.
    #[getter]
    fn _regions(self_: &Bound<'_, Self>) -> PyResult<Vec<ScoreRegion>> {
        let regions = structure::<Kernel>(self_)?.1.regions.iter();
        Ok(regions
            .map(|(region, share)| ScoreRegion { share: *share, rate: region.rate() })
            .collect())
    }
}

/// The handle of a classifier in a filter.
pub(super) fn of_model(kernel: std::sync::Arc<dyn crate::kernel::Kernel>) -> Handle {
    let capacity = kernel.count();
    Handle { kernel, hasher: Hasher::seeded(0), capacity }
}
