//! Adaptive stacks: what is counted, and the steps of their growth, each of them whole.
//!
//! Which step comes when, and of what size the layers are, is Python's decision:
//! `filters/adaptive_stacked.py`.

use super::adapting::rows;
use super::batch;
use super::handle::Kernel;
use crate::adaptive_stack::{AdaptiveStack, Counted, Filling};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;

/// As [`adaptive_stacked_state`] says.
type State = ((u64, bool, u64, f64, u64), [u64; 2], [u64; 7]);

fn filling(layer: Option<&Kernel>, room: u64) -> Option<Filling> {
    layer.map(|layer| Filling { layer: layer.kernel.clone(), room })
}

/// A stack of one layer of keys, with a layer to fill behind it.
#[pyfunction]
pub fn adaptive_stacked(
    first: &Kernel,
    negatives: Option<&Kernel>,
    room: u64,
    plan: &[u8],
    capacity: u64,
) -> PyResult<Kernel> {
    let stack = AdaptiveStack::new(first.kernel.clone(), filling(negatives, room), plan.to_vec())?;
    Ok(Kernel { kernel: Arc::new(stack), hasher: first.hasher.clone(), capacity })
}

/// Learn that keys are absent; for each, whether it was collected.
#[pyfunction]
pub fn adaptive_stacked_observe<'py>(
    py: Python<'py>,
    kernel: &Kernel,
    keys: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    let stack = kernel.of::<AdaptiveStack>()?;
    let hashes = batch::hashes(py, &kernel.hasher, keys)?;
    let mut changed = vec![false; hashes.len()];
    py.detach(|| stack.observe(&hashes, &mut changed))?;
    Ok(PyArray1::from_vec(py, changed))
}

/// Version, whether a layer is being built, generation, ψ, layers that answer; negatives in the
/// layer that is being filled, and its room; questions for absent keys since it was begun, those and
/// the false positives in the window, strikes, both over all, and n if one in 2^n false positives of
/// the first layer is in the sample.
#[pyfunction]
pub fn adaptive_stacked_state(py: Python<'_>, kernel: &Kernel) -> PyResult<State> {
    let stack = kernel.of::<AdaptiveStack>()?;
    let state = py.detach(|| stack.state());
    let Counted { collecting, asked, wrong, strikes, total: [total, mistakes], shift, .. } =
        state.counted;
    Ok((
        (state.version, state.building, state.generation, state.psi, state.layers),
        state.filled,
        [collecting, asked, wrong, strikes, total, mistakes, shift],
    ))
}

/// Kind, items, bits and rate of each layer that answers and, behind them, of the one that is being
/// filled, if there is one: then there is an even number.
#[pyfunction]
pub fn adaptive_stacked_layers(
    py: Python<'_>,
    kernel: &Kernel,
) -> PyResult<Vec<(u16, u64, u64, f64)>> {
    let stack = kernel.of::<AdaptiveStack>()?;
    Ok(py.detach(|| {
        let layers = stack.layers();
        layers.iter().map(|l| (l.kind().number, l.count(), l.size_in_bits(), l.rate())).collect()
    }))
}

/// The rate of known negatives.
#[pyfunction]
pub fn adaptive_stacked_known_rate(py: Python<'_>, kernel: &Kernel) -> PyResult<f64> {
    let stack = kernel.of::<AdaptiveStack>()?;
    Ok(py.detach(|| stack.known_rate()))
}

/// How often each sampled false positive of the first layer came.
#[pyfunction]
pub fn adaptive_stacked_sample<'py>(
    py: Python<'py>,
    kernel: &Kernel,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    Ok(PyArray1::from_vec(py, kernel.of::<AdaptiveStack>()?.sample()))
}

/// The plan that it was given.
#[pyfunction]
pub fn adaptive_stacked_plan<'py>(
    py: Python<'py>,
    kernel: &Kernel,
) -> PyResult<Bound<'py, PyBytes>> {
    Ok(PyBytes::new(py, &kernel.of::<AdaptiveStack>()?.plan()))
}

/// Begin to build a layer of keys, the first or one behind the last; the ticket to go on with, or
/// None where the layers have changed since this version.
#[pyfunction]
pub fn adaptive_stacked_begin(
    py: Python<'_>,
    kernel: &Kernel,
    version: u64,
    layer: &Kernel,
    first: bool,
) -> PyResult<Option<u64>> {
    let stack = kernel.of::<AdaptiveStack>()?;
    Ok(py.detach(|| stack.begin(version, layer.kernel.clone(), first))?)
}

/// Bring a part of the stored hashes to the layer that is being built.
#[pyfunction]
pub fn adaptive_stacked_fill(
    py: Python<'_>,
    kernel: &Kernel,
    ticket: u64,
    hashes: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let stack = kernel.of::<AdaptiveStack>()?;
    let mut stored = Vec::new();
    rows("scan", hashes, &mut stored)?;
    Ok(py.detach(|| stack.fill(ticket, &stored))?)
}

/// Let the layer that was built answer; whether it does.
#[pyfunction]
pub fn adaptive_stacked_finish(
    py: Python<'_>,
    kernel: &Kernel,
    ticket: u64,
    psi: f64,
    negatives: Option<&Kernel>,
    room: u64,
    plan: Option<&[u8]>,
) -> PyResult<bool> {
    let stack = kernel.of::<AdaptiveStack>()?;
    let (next, plan) = (filling(negatives, room), plan.map(<[u8]>::to_vec));
    Ok(py.detach(|| stack.finish(ticket, psi, next, plan))?)
}

/// Give up the layer that is being built.
#[pyfunction]
pub fn adaptive_stacked_abandon(py: Python<'_>, kernel: &Kernel, ticket: u64) -> PyResult<()> {
    let stack = kernel.of::<AdaptiveStack>()?;
    py.detach(|| stack.abandon(ticket));
    Ok(())
}

/// Give up all layers but the first, and fill this one; whether it did.
#[pyfunction]
pub fn adaptive_stacked_drop(
    py: Python<'_>,
    kernel: &Kernel,
    version: u64,
    negatives: Option<&Kernel>,
    room: u64,
) -> PyResult<bool> {
    let stack = kernel.of::<AdaptiveStack>()?;
    let next = filling(negatives, room);
    Ok(py.detach(|| stack.drop_behind_first(version, next))?)
}

/// Begin a new window: the last was as expected, or another ψ is from now on.
#[pyfunction]
#[pyo3(signature = (kernel, version, psi=None))]
pub fn adaptive_stacked_content(
    py: Python<'_>,
    kernel: &Kernel,
    version: u64,
    psi: Option<f64>,
) -> PyResult<()> {
    let stack = kernel.of::<AdaptiveStack>()?;
    py.detach(|| stack.content(version, psi));
    Ok(())
}
