//! Filters of streams: they answer and insert in one step, in the order of the stream.

use super::batch;
use super::filter::{Filter, Inserting, Stored};
use super::handle::Kernel;
use super::keys::{self, hasher};
use crate::hash::Hash128;
use crate::stable::{Shape as StableShape, Stable};
use crate::windowed::{Shape as WindowedShape, Windowed};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A filter that also answers and inserts in one step.
#[pyclass(extends = Inserting, subclass, frozen, module = "tamis._native")]
pub struct Remembering;

#[pymethods]
impl Remembering {
    #[new]
    fn new(kernel: &Kernel) -> PyClassInitializer<Remembering> {
        Inserting::new(kernel).add_subclass(Remembering)
    }

    /// Tell whether the key was there, and insert it.
    fn seen(self_: &Bound<'_, Self>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let filter = self_.as_super().as_super().as_super().get();
        let hash = filter.hash(key)?;
        let mut out = [false];
        filter.change(self_.py(), |kernel| kernel.seen(&[hash], &mut out))?;
        Ok(out[0])
    }

    /// Tell for each key whether it was there just before it came, and insert it.
    fn seen_many<'py>(
        self_: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let filter = self_.as_super().as_super().as_super().get();
        let hashes = batch::hashes(self_.py(), &filter.hasher, keys)?;
        answered(self_.py(), hashes.len(), |out| {
            filter.change(self_.py(), |kernel| kernel.seen(&hashes, out))
        })
    }
}

/// A filter of a window, which a clock may move.
#[pyclass(extends = Inserting, subclass, frozen, module = "tamis._native")]
pub struct Aging;

#[pymethods]
impl Aging {
    #[new]
    fn new(kernel: &Kernel) -> PyClassInitializer<Aging> {
        Inserting::new(kernel).add_subclass(Aging)
    }

    /// Insert a key, at a time in seconds if the window is one of time.
    #[pyo3(signature = (key, *, at=None))]
    fn add(self_: &Bound<'_, Self>, key: &Bound<'_, PyAny>, at: Option<f64>) -> PyResult<()> {
        let filter = stored(self_);
        let (hash, generation) = (filter.hash(key)?, moment(filter, at)?);
        let windowed = filter.of::<Windowed>()?;
        filter.change(self_.py(), |_| windowed.pass(&[hash], generation, None));
        filter.check_room(self_.py())
    }

    /// Insert many keys in their order, or none of them if one is not a key.
    #[pyo3(signature = (keys, *, at=None))]
    fn update<'py>(
        self_: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
        at: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let filter = stored(self_);
        let hashes = batch::hashes(self_.py(), &filter.hasher, keys)?;
        let times = Times::new(filter, at, hashes.len())?;
        let windowed = filter.of::<Windowed>()?;
        self_.py().detach(|| {
            times.runs(&hashes, |first, end, generation| {
                windowed.pass(&hashes[first..end], generation, None);
            });
        });
        filter.check_room(self_.py())
    }

    /// Tell whether the key was there, and insert it.
    #[pyo3(signature = (key, *, at=None))]
    fn seen(self_: &Bound<'_, Self>, key: &Bound<'_, PyAny>, at: Option<f64>) -> PyResult<bool> {
        let filter = stored(self_);
        let (hash, generation) = (filter.hash(key)?, moment(filter, at)?);
        let windowed = filter.of::<Windowed>()?;
        let mut out = [false];
        filter.change(self_.py(), |_| windowed.pass(&[hash], generation, Some(&mut out)));
        filter.check_room(self_.py())?;
        Ok(out[0])
    }

    /// Tell for each key whether it was there just before it came, and insert it.
    #[pyo3(signature = (keys, *, at=None))]
    fn seen_many<'py>(
        self_: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
        at: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let filter = stored(self_);
        let hashes = batch::hashes(self_.py(), &filter.hasher, keys)?;
        let times = Times::new(filter, at, hashes.len())?;
        let windowed = filter.of::<Windowed>()?;
        let answers = answered(self_.py(), hashes.len(), |out| {
            self_.py().detach(|| {
                times.runs(&hashes, |first, end, generation| {
                    windowed.pass(&hashes[first..end], generation, Some(&mut out[first..end]));
                });
            });
            Ok(())
        })?;
        filter.check_room(self_.py())?;
        Ok(answers)
    }

    /// Forget what is too old at this time, without inserting anything.
    #[pyo3(signature = (at=None))]
    fn advance(self_: &Bound<'_, Self>, at: Option<f64>) -> PyResult<()> {
        let filter = stored(self_);
        let generation = moment(filter, at)?;
        let windowed = filter.of::<Windowed>()?;
        filter.change(self_.py(), |_| windowed.advance(generation));
        Ok(())
    }
}

fn stored<'a>(aging: &'a Bound<'_, Aging>) -> &'a Stored {
    let filter: &Bound<'_, Filter> = aging.as_super().as_super();
    filter.as_super().get()
}

/// An array of answers, filled by `fill`.
fn answered<'py>(
    py: Python<'py>,
    length: usize,
    fill: impl FnOnce(&mut [bool]) -> crate::error::Result<()>,
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    batch::check_memory(py, length)?;
    let answers = PyArray1::<bool>::zeros(py, length, false);
    // SAFETY: the array was just made, and nobody else has it yet.
    fill(unsafe { answers.as_slice_mut()? })?;
    Ok(answers)
}

/// The generation of a time, of now, or 0 where generations are counted in keys.
fn moment(filter: &Stored, at: Option<f64>) -> PyResult<u64> {
    let shape = filter.of::<Windowed>()?.shape();
    if !shape.timed() {
        return match at {
            None => Ok(0),
            Some(at) => Err(PyValueError::new_err(format!(
                "at is {at}, but this window is one of keys; make it with seconds= to use times"
            ))),
        };
    }
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
    let seconds = at.unwrap_or_else(now);
    shape.generation_at(seconds).ok_or_else(|| wrong_time("at", seconds))
}

fn wrong_time(name: &str, seconds: f64) -> PyErr {
    PyValueError::new_err(format!("{name} is {seconds}; seconds from 0 on are wanted"))
}

/// When the keys of a batch come: all at once, or each with a generation of its own.
enum Times {
    Together(u64),
    Each(Vec<u64>),
}

impl Times {
    fn new(filter: &Stored, at: Option<&Bound<'_, PyAny>>, length: usize) -> PyResult<Times> {
        let Some(at) = at else { return Ok(Times::Together(moment(filter, None)?)) };
        if let Ok(seconds) = at.extract::<f64>() {
            return Ok(Times::Together(moment(filter, Some(seconds))?));
        }
        moment(filter, Some(0.0))?;
        let numpy = at.py().import("numpy")?;
        let array = numpy.call_method1("ascontiguousarray", (at, "f8"))?;
        let array = array.cast_into::<PyArray1<f64>>()?;
        let array = array.readonly();
        let seconds = array.as_slice()?;
        if seconds.len() != length {
            let message = format!("at has {} times for {length} keys", seconds.len());
            return Err(PyValueError::new_err(message));
        }
        let shape = filter.of::<Windowed>()?.shape();
        let generation = |(i, &seconds): (usize, &f64)| {
            let found = shape.generation_at(seconds);
            found.ok_or_else(|| wrong_time(&format!("at[{i}]"), seconds))
        };
        Ok(Times::Each(seconds.iter().enumerate().map(generation).collect::<PyResult<_>>()?))
    }

    /// Calls `run(first, end, generation)` for each stretch of keys of one generation.
    fn runs(&self, hashes: &[Hash128], mut run: impl FnMut(usize, usize, u64)) {
        match self {
            Times::Together(generation) => run(0, hashes.len(), *generation),
            Times::Each(generations) => {
                let mut first = 0;
                for stretch in generations.chunk_by(|a, b| a == b) {
                    run(first, first + stretch.len(), stretch[0]);
                    first += stretch.len();
                }
            }
        }
    }
}

/// An empty stable Bloom filter.
#[pyfunction]
#[pyo3(signature = (cells, most, hashes, decrements, independent, capacity, seed=0, key=None))]
#[allow(clippy::too_many_arguments)]
pub fn stable(
    cells: u64,
    most: u32,
    hashes: u32,
    decrements: u64,
    independent: bool,
    capacity: u64,
    #[pyo3(from_py_with = keys::seed)] seed: u64,
    key: Option<&[u8]>,
) -> PyResult<Kernel> {
    let shape = StableShape::new(cells, most, hashes, decrements, independent)?;
    let hasher = hasher(seed, key)?;
    let kernel = Arc::new(Stable::new(shape, hasher.tag())?);
    Ok(Kernel { kernel, hasher, capacity })
}

/// Cells, what a counter is set to, cells per key, cells lowered, whether independent ones.
#[pyfunction]
pub fn stable_shape(kernel: &Kernel) -> PyResult<(u64, u32, u32, u64, bool)> {
    let StableShape { cells, most, hashes, decrements, independent } =
        kernel.of::<Stable>()?.shape();
    Ok((cells, most, hashes, decrements, independent))
}

/// An empty windowed filter.
#[pyfunction]
#[pyo3(signature = (hashes, ages, slice_bits, generation, step, capacity, seed=0, key=None))]
#[allow(clippy::too_many_arguments)]
pub fn windowed(
    hashes: u64,
    ages: u64,
    slice_bits: u64,
    generation: u64,
    step: f64,
    capacity: u64,
    #[pyo3(from_py_with = keys::seed)] seed: u64,
    key: Option<&[u8]>,
) -> PyResult<Kernel> {
    let shape = WindowedShape::new(hashes, ages, slice_bits, generation, step)?;
    let kernel = Arc::new(Windowed::new(shape)?);
    Ok(Kernel { kernel, hasher: hasher(seed, key)?, capacity })
}

/// Slices per key, generations remembered, bits of a slice, keys and seconds of a generation.
#[pyfunction]
pub fn windowed_shape(kernel: &Kernel) -> PyResult<(u64, u64, u64, u64, f64)> {
    let WindowedShape { hashes, ages, slice_bits, generation, step } =
        kernel.of::<Windowed>()?.shape();
    Ok((hashes, ages, slice_bits, generation, step))
}
