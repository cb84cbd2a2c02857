//! Stable learned filters: joined, queried and updated with scores.

use super::batch;
use super::filter::{Filter, structure};
use super::handle::Handle;
use super::keys::{self, Secret, hasher};
use super::kinds::kind_class;
use super::learned::{of_model, one_each};
use super::model::hash_and_score;
use super::release::{briefly, released};
use super::stable::{Size, answered};
use crate::hash::Hash128;
use crate::kernel;
use crate::stable::{Shape, Stable};
use crate::stable_learned::{Counts, Group, StableLearned as Kernel};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A `planning.stable.groups.Group`: the size of its filter or, without one, its constant answer,
/// and the fractions of absent keys and members.
#[derive(FromPyObject)]
struct PlannedGroup {
    size: Option<Size>,
    answer: bool,
    nonmembers: f64,
    members: f64,
}

/// The fractions of absent keys and of members in a group.
#[derive(FromPyObject)]
struct Shares {
    nonmembers: f64,
    members: f64,
}

/// The present state of a group of scores: the sizes of its filter, None if it has none.
#[pyclass(frozen, get_all, module = "tamis._native")]
pub struct ScoreGroup {
    cells: Option<u64>,
    max: Option<u32>,
    hashes: Option<u32>,
    decrements: Option<u64>,
    answer: bool,
    nonmembers: f64,
    members: f64,
    inserted: u64,
    queried: u64,
    accepted: u64,
}

impl ScoreGroup {
    fn of(group: &Group) -> ScoreGroup {
        let any = group.filter.as_ref().map(|filter| &**filter as &dyn Any);
        let shape: Option<Shape> =
            any.and_then(|any| any.downcast_ref::<Stable>()).map(|filter| filter.shape());
        ScoreGroup {
            cells: shape.map(|shape| shape.cells),
            max: shape.map(|shape| shape.max),
            hashes: shape.map(|shape| shape.hashes),
            decrements: shape.map(|shape| shape.decrements),
            answer: group.answer,
            nonmembers: group.nonmembers,
            members: group.members,
            inserted: group.counts.inserted.load(Relaxed),
            queried: group.counts.queried.load(Relaxed),
            accepted: group.counts.accepted.load(Relaxed),
        }
    }
}

kind_class! {
    /// A classifier, and a stable filter for each group of its scores.
    StableLearned(Kernel) extends Filter
}

#[pymethods]
impl StableLearned {
    /// An empty filter of these groups.
    #[staticmethod]
    #[pyo3(signature = (model, borders, groups, independent, capacity, seed=0, key=None))]
    fn _empty(
        model: Option<&Handle>,
        borders: Vec<f32>,
        groups: Vec<PlannedGroup>,
        independent: bool,
        capacity: u64,
        #[pyo3(from_py_with = keys::seed)] seed: u64,
        #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
    ) -> PyResult<Handle> {
        let hasher = hasher(seed, key)?;
        let group = |(j, planned): (usize, PlannedGroup)| {
            let PlannedGroup { size, answer, nonmembers, members } = planned;
            let filter = match size {
                Some(size) => {
                    let seed = hasher.tag().wrapping_add(j as u64);
                    let stable = Stable::new(size.shape(independent)?, seed)?;
                    Some(Arc::new(stable) as Arc<dyn kernel::Kernel>)
                }
                None => None,
            };
            PyResult::Ok(Group { filter, answer, nonmembers, members, counts: Counts::default() })
        };
        let groups = groups.into_iter().enumerate().map(group).collect::<PyResult<_>>()?;
        let model = model.map(|model| model.kernel.clone());
        let kernel = Kernel { model, borders, groups }.checked()?;
        Ok(Handle::new(kernel, capacity, hasher))
    }

    /// The same counters with another classifier, other borders and shares.
    fn _swapped(
        self_: &Bound<'_, Self>,
        model: Option<&Handle>,
        borders: Vec<f32>,
        shares: Vec<Shares>,
    ) -> PyResult<Handle> {
        let (stored, old) = structure::<Kernel>(self_)?;
        if shares.len() != old.groups.len() {
            return Err(PyValueError::new_err("the number of groups must stay the same"));
        }
        let group = |(group, shares): (&Group, &Shares)| {
            let filter = group.filter.as_ref().map(|filter| filter.copy()).transpose()?;
            PyResult::Ok(Group {
                filter,
                answer: group.answer,
                nonmembers: shares.nonmembers,
                members: shares.members,
                counts: Counts::default(),
            })
        };
        let groups = old.groups.iter().zip(&shares).map(group).collect::<PyResult<_>>()?;
        let model = model.map(|model| model.kernel.clone());
        Ok(stored.handle.with(Kernel { model, borders, groups }.checked()?))
    }

    /// Whether each key, with its score, may have occurred before; `insert` adds it.
    fn _lookup_scored<'py>(
        self_: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
        scores: PyReadonlyArray1<'py, f32>,
        insert: bool,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let (py, (stored, learned)) = (self_.py(), structure::<Kernel>(self_)?);
        let hashes: Vec<Hash128> = batch::hashes(py, &stored.handle.hasher, keys)?;
        let scores = one_each(&scores, hashes.len())?;
        answered(py, hashes.len(), |out| {
            Ok(released(py, || learned.pass(&hashes, scores, insert, out))??)
        })
    }

    /// Whether one key, scored as text, may have occurred before; `insert` adds it.
    fn _lookup_text(
        self_: &Bound<'_, Self>,
        key: &Bound<'_, PyAny>,
        insert: bool,
    ) -> PyResult<bool> {
        let (stored, learned) = structure::<Kernel>(self_)?;
        let (hash, score) = hash_and_score(&stored.handle, learned.model.as_ref(), key)?;
        Ok(briefly(self_.py(), || learned.pass_one(hash, score, insert))?)
    }

    /// The classifier, if it is saved.
    #[getter]
    fn _model(self_: &Bound<'_, Self>) -> PyResult<Option<Handle>> {
        Ok(structure::<Kernel>(self_)?.1.model.clone().map(of_model))
    }

    /// The scores that divide the groups.
    #[getter]
    fn _borders(self_: &Bound<'_, Self>) -> PyResult<Vec<f32>> {
        Ok(structure::<Kernel>(self_)?.1.borders.clone())
    }

    /// The groups, from the lowest scores.
    #[getter]
    fn _groups(self_: &Bound<'_, Self>) -> PyResult<Vec<ScoreGroup>> {
        Ok(structure::<Kernel>(self_)?.1.groups.iter().map(ScoreGroup::of).collect())
    }
}
