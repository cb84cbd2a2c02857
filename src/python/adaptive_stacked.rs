//! Adaptive stacks: their counts, and the steps of their growth, each of them atomic.
//!
//! Python decides the order of steps and the sizes of layers: `filters/adaptive_stacked.py`.

use super::adapting::{hash_rows, rows};
use super::arrays;
use super::batch;
use super::filter::{Deleting, structure};
use super::handle::Handle;
use super::kinds::kind_class;
use super::release::{briefly, read};
use super::stacked::BuiltLayer;
use crate::adaptive_stack::{AdaptiveStack as Kernel, Counted, Filling};
use crate::hash::Hash128;
use crate::memory;
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

fn filling(layer: Option<&Handle>, capacity: u64) -> Option<Filling> {
    layer.map(|layer| Filling { layer: layer.kernel.clone(), capacity })
}

/// The counts and the progress of an adaptive stack.
#[pyclass(frozen, get_all, module = "tamis._native")]
pub struct AdaptiveState {
    /// How often the layers changed.
    version: u64,
    /// Whether a layer is being built.
    building: bool,
    /// How often the layers behind the first were started again.
    rebuilds: u64,
    /// The expected fraction of queries for known negatives (ψ).
    psi: f64,
    /// The number of layers that answer queries.
    layers: u64,
    /// Negatives in the layer that is being filled.
    collected: u64,
    /// The capacity of that layer.
    negatives_capacity: u64,
    /// Queries for absent keys since that layer was started.
    collecting: u64,
    /// Queries for absent keys in the present window.
    window_negatives: u64,
    /// False positives in the present window.
    window_false_positives: u64,
    /// How often in a row the layers behind the first were dropped.
    strikes: u64,
    /// Queries for absent keys in total.
    negatives: u64,
    /// False positives in total.
    false_positives: u64,
    /// One in 2^this false positives of the first layer is in the sample.
    sample_shift: u64,
}

kind_class! {
    /// A stack that grows from its false positives.
    AdaptiveStacked(Kernel) extends Deleting
}

#[pymethods]
impl AdaptiveStacked {
    /// A stack of one layer of keys, with a layer to fill behind it.
    #[staticmethod]
    fn _begin_with(
        first: &Handle,
        negatives: Option<&Handle>,
        negatives_capacity: u64,
        plan: &[u8],
        capacity: u64,
    ) -> PyResult<Handle> {
        let kernel = Kernel::new(
            first.kernel.clone(),
            filling(negatives, negatives_capacity),
            memory::copied(plan)?,
        )?;
        Ok(Handle::new(kernel, capacity, first.hasher.clone()))
    }

    /// Report that keys are absent; return for each whether it was collected.
    fn _observe<'py>(
        self_: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let (py, (stored, stack)) = (self_.py(), structure::<Kernel>(self_)?);
        observe(py, stack, &batch::hashes(py, &stored.handle.hasher, keys)?)
    }

    /// The same for hashed keys.
    fn _observe_hashes<'py>(
        self_: &Bound<'py, Self>,
        hashes: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let (_, stack) = structure::<Kernel>(self_)?;
        observe(self_.py(), stack, &hash_rows("hashes", hashes)?)
    }

    /// The counts and the progress.
    #[getter]
    fn _state(self_: &Bound<'_, Self>) -> PyResult<AdaptiveState> {
        let (_, stack) = structure::<Kernel>(self_)?;
        let state = briefly(self_.py(), || stack.state());
        let Counted { collecting, asked, wrong, strikes, total, shift, .. } = state.counted;
        let ([collected, negatives_capacity], [negatives, false_positives]) = (state.filled, total);
        Ok(AdaptiveState {
            version: state.version,
            building: state.building,
            rebuilds: state.generation,
            psi: state.psi,
            layers: state.layers,
            collected,
            negatives_capacity,
            collecting,
            window_negatives: asked,
            window_false_positives: wrong,
            strikes,
            negatives,
            false_positives,
            sample_shift: shift,
        })
    }

    /// The layers that answer queries and, behind them, the one that is being filled, if any: then
    /// their number is even.
    #[getter]
    fn _layers(self_: &Bound<'_, Self>) -> PyResult<Vec<BuiltLayer>> {
        let (_, stack) = structure::<Kernel>(self_)?;
        Ok(briefly(self_.py(), || BuiltLayer::all(&stack.layers(), false)))
    }

    /// The rate of known negatives.
    #[getter]
    fn known_fpr(self_: &Bound<'_, Self>) -> PyResult<f64> {
        let (_, stack) = structure::<Kernel>(self_)?;
        Ok(briefly(self_.py(), || stack.known_rate()))
    }

    /// How often each sampled false positive of the first layer occurred.
    #[getter]
    fn _sample<'py>(self_: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let (_, stack) = structure::<Kernel>(self_)?;
        Ok(PyArray1::from_vec(self_.py(), stack.sample()?))
    }

    /// The plan as JSON.
    #[getter]
    fn _plan<'py>(self_: &Bound<'py, Self>) -> PyResult<Bound<'py, PyBytes>> {
        let (py, (_, stack)) = (self_.py(), structure::<Kernel>(self_)?);
        arrays::bytes(py, &read(py, || stack.plan())?)
    }

    /// Begin to build a layer of keys, the first or one behind the last; return a ticket for the
    /// next steps, or None if the layers have changed since this version.
    fn _begin_layer(
        self_: &Bound<'_, Self>,
        version: u64,
        layer: &Handle,
        first: bool,
    ) -> PyResult<Option<u64>> {
        let (_, stack) = structure::<Kernel>(self_)?;
        Ok(briefly(self_.py(), || stack.begin(version, layer.kernel.clone(), first))?)
    }

    /// Add a part of the stored hashes to the layer that is being built.
    fn _fill(self_: &Bound<'_, Self>, ticket: u64, hashes: &Bound<'_, PyAny>) -> PyResult<()> {
        let (_, stack) = structure::<Kernel>(self_)?;
        let mut stored = Vec::new();
        rows("remote.scan()", hashes, &mut stored)?;
        Ok(briefly(self_.py(), || stack.fill(ticket, &stored))?)
    }

    /// Activate the layer that was built; return whether it was.
    fn _finish(
        self_: &Bound<'_, Self>,
        ticket: u64,
        psi: f64,
        negatives: Option<&Handle>,
        negatives_capacity: u64,
        plan: Option<&[u8]>,
    ) -> PyResult<bool> {
        let (_, stack) = structure::<Kernel>(self_)?;
        let (next, plan) = (filling(negatives, negatives_capacity), plan.map(<[u8]>::to_vec));
        Ok(briefly(self_.py(), || stack.finish(ticket, psi, next, plan))?)
    }

    /// Discard the layer that is being built.
    fn _abandon(self_: &Bound<'_, Self>, ticket: u64) -> PyResult<()> {
        let (_, stack) = structure::<Kernel>(self_)?;
        briefly(self_.py(), || stack.abandon(ticket));
        Ok(())
    }

    /// Drop all layers but the first, and fill this one next; return whether it was done.
    fn _drop_behind_first(
        self_: &Bound<'_, Self>,
        version: u64,
        negatives: Option<&Handle>,
        negatives_capacity: u64,
    ) -> PyResult<bool> {
        let (_, stack) = structure::<Kernel>(self_)?;
        let next = filling(negatives, negatives_capacity);
        Ok(briefly(self_.py(), || stack.drop_behind_first(version, next))?)
    }

    /// Begin a new window, because the last was as expected or ψ has changed.
    #[pyo3(signature = (version, psi=None))]
    fn _begin_window(self_: &Bound<'_, Self>, version: u64, psi: Option<f64>) -> PyResult<()> {
        let (_, stack) = structure::<Kernel>(self_)?;
        briefly(self_.py(), || stack.begin_window(version, psi));
        Ok(())
    }
}

fn observe<'py>(
    py: Python<'py>,
    stack: &Kernel,
    hashes: &[Hash128],
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    let mut changed = memory::filled(hashes.len(), false)?;
    briefly(py, || stack.observe(hashes, &mut changed))?;
    Ok(PyArray1::from_vec(py, changed))
}
