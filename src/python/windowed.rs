//! Windowed filters: created; they answer and insert in one step, in the order of the stream.

use super::batch;
use super::column::Keys;
use super::filter::{Inserting, structure};
use super::keys::shown;
use super::kinds::kind_class;
use super::release::released;
use super::stable::answered;
use crate::hash::Hash128;
use crate::interrupt;
use crate::kernel::PIECE;
use crate::memory;
use crate::windowed::{Shape, Windowed as Kernel};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt};
use std::time::{SystemTime, UNIX_EPOCH};

/// A `planning.windowed.WindowedSize`.
#[derive(FromPyObject)]
pub struct Size {
    hashes: u64,
    ages: u64,
    slice_bits: u64,
    generation: u64,
}

impl Size {
    /// `step` is the seconds of a generation, 0 if generations are counted in keys.
    fn empty(&self, step: f64, _capacity: u64) -> PyResult<Kernel> {
        let &Size { hashes, ages, slice_bits, generation } = self;
        Ok(Kernel::new(Shape::new(hashes, ages, slice_bits, generation, step)?)?)
    }
}

kind_class! {
    /// A filter of a window by keys or by time.
    Windowed(Kernel) extends Inserting, empty from Size, step: f64
}

#[pymethods]
impl Windowed {
    /// Slices per key (k).
    #[getter]
    fn _hashes(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(structure::<Kernel>(self_)?.1.shape().hashes)
    }

    /// Generations that are remembered (l).
    #[getter]
    fn _ages(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(structure::<Kernel>(self_)?.1.shape().ages)
    }

    /// Bits of a slice.
    #[getter]
    fn _slice_bits(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(structure::<Kernel>(self_)?.1.shape().slice_bits)
    }

    /// Keys of a generation.
    #[getter]
    fn _generation(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(structure::<Kernel>(self_)?.1.shape().generation)
    }

    /// Seconds of a generation; 0 if generations are counted in keys.
    #[getter]
    fn _step(self_: &Bound<'_, Self>) -> PyResult<f64> {
        Ok(structure::<Kernel>(self_)?.1.shape().step)
    }

    /// Insert a key, at a time in seconds if the window is by time.
    #[pyo3(signature = (key, *, at=None))]
    fn add(self_: &Bound<'_, Self>, key: &Bound<'_, PyAny>, at: Option<Moment>) -> PyResult<()> {
        let (filter, windowed) = structure::<Kernel>(self_)?;
        let (hash, generation) = (filter.hash(key)?, moment(windowed, at.map(|at| at.0))?);
        filter.change(self_.py(), |_| {
            windowed.pass(&[hash], generation, None);
            Ok(())
        })?;
        filter.warn_if_overfull(self_.py())
    }

    /// Insert many keys in order, or none of them if one is not a key. An iterator without times is
    /// read and inserted in pieces, of which earlier ones stay.
    #[pyo3(signature = (keys, *, at=None))]
    fn update<'py>(
        self_: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
        at: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let (filter, windowed) = structure::<Kernel>(self_)?;
        let (py, hasher) = (self_.py(), &filter.handle.hasher);
        let insert = |hashes: &[Hash128]| {
            let times = Times::new(windowed, at, hashes.len())?;
            released(py, || {
                times.runs(hashes, |first, end, generation| {
                    windowed.pass(&hashes[first..end], generation, None);
                });
            })
        };
        match at {
            None => batch::in_pieces(py, hasher, Keys::find(keys)?, insert)?,
            Some(_) => insert(&batch::hashes(py, hasher, keys)?)?,
        }
        filter.warn_if_overfull(self_.py())
    }

    /// Return whether the key was present, and insert it.
    #[pyo3(signature = (key, *, at=None))]
    fn seen(self_: &Bound<'_, Self>, key: &Bound<'_, PyAny>, at: Option<Moment>) -> PyResult<bool> {
        let (filter, windowed) = structure::<Kernel>(self_)?;
        let (hash, generation) = (filter.hash(key)?, moment(windowed, at.map(|at| at.0))?);
        let mut out = [false];
        filter.change(self_.py(), |_| {
            windowed.pass(&[hash], generation, Some(&mut out));
            Ok(())
        })?;
        filter.warn_if_overfull(self_.py())?;
        Ok(out[0])
    }

    /// Return for each key whether it was present just before, and insert it.
    #[pyo3(signature = (keys, *, at=None))]
    fn seen_many<'py>(
        self_: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
        at: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let (filter, windowed) = structure::<Kernel>(self_)?;
        let hashes = batch::hashes(self_.py(), &filter.handle.hasher, keys)?;
        let times = Times::new(windowed, at, hashes.len())?;
        let answers = answered(self_.py(), hashes.len(), |out| {
            released(self_.py(), || {
                times.runs(&hashes, |first, end, generation| {
                    windowed.pass(&hashes[first..end], generation, Some(&mut out[first..end]));
                });
            })
        })?;
        filter.warn_if_overfull(self_.py())?;
        Ok(answers)
    }

    /// Forget keys that are too old at this time, without inserting anything.
    #[pyo3(signature = (at=None))]
    fn advance(self_: &Bound<'_, Self>, at: Option<Moment>) -> PyResult<()> {
        let (filter, windowed) = structure::<Kernel>(self_)?;
        let generation = moment(windowed, at.map(|at| at.0))?;
        filter.change(self_.py(), |_| {
            windowed.advance(generation);
            Ok(())
        })?;
        Ok(())
    }
}

/// Times as read by `tamis._times.seconds`: timestamps of any unit become seconds.
fn seconds<'py>(at: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    at.py().import("tamis._times")?.call_method1("seconds", (at,))
}

/// One time in seconds.
struct Moment(f64);

impl<'py> FromPyObject<'_, 'py> for Moment {
    type Error = PyErr;

    fn extract(at: Borrowed<'_, 'py, PyAny>) -> PyResult<Moment> {
        if at.is_exact_instance_of::<PyFloat>() || at.is_exact_instance_of::<PyInt>() {
            // An int that is too large for a float gets an error that names the argument.
            if let Ok(seconds) = at.extract() {
                return Ok(Moment(seconds));
            }
        }
        let seconds = seconds(&at)?;
        let one = seconds.extract().map_err(|_| {
            PyTypeError::new_err(format!("at must be one time, not {}", shown(&at)))
        })?;
        Ok(Moment(one))
    }
}

/// The generation of a time, or of now, or 0 if generations are counted in keys.
fn moment(windowed: &Kernel, at: Option<f64>) -> PyResult<u64> {
    let shape = windowed.shape();
    if !shape.timed() {
        return match at {
            None => Ok(0),
            Some(at) => Err(PyValueError::new_err(format!(
                "at is {at}, but this window counts keys; make it with seconds= to use times"
            ))),
        };
    }
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
    let seconds = at.unwrap_or_else(now);
    shape.generation_at(seconds).ok_or_else(|| wrong_time("at", seconds))
}

fn wrong_time(name: &str, seconds: f64) -> PyErr {
    PyValueError::new_err(format!("{name} must be seconds from 0 on, not {seconds}"))
}

/// The times of the keys of a batch: one for all, or a generation for each.
enum Times {
    Together(u64),
    Each(Vec<u64>),
}

impl Times {
    fn new(windowed: &Kernel, at: Option<&Bound<'_, PyAny>>, length: usize) -> PyResult<Times> {
        let Some(at) = at else { return Ok(Times::Together(moment(windowed, None)?)) };
        let array = seconds(at)?;
        if array.getattr("ndim")?.extract::<usize>()? == 0 {
            return Ok(Times::Together(moment(windowed, Some(array.extract()?))?));
        }
        moment(windowed, Some(0.0))?;
        let array = array.cast_into::<PyArray1<f64>>()?;
        let array = array.readonly();
        let seconds = array.as_slice()?;
        if seconds.len() != length {
            let message = format!("at has {} times for {length} keys", seconds.len());
            return Err(PyValueError::new_err(message));
        }
        let shape = windowed.shape();
        let generation = |(i, &seconds): (usize, &f64)| {
            let found = shape.generation_at(seconds);
            found.ok_or_else(|| wrong_time(&format!("at[{i}]"), seconds))
        };
        Ok(Times::Each(memory::collected_ok(seconds.iter().enumerate().map(generation))?))
    }

    /// Calls `run(first, end, generation)` for each sequence of keys of one generation, in pieces.
    fn runs(&self, hashes: &[Hash128], mut run: impl FnMut(usize, usize, u64)) {
        let mut run = |first: usize, end: usize, generation| {
            for from in (first..end).step_by(PIECE) {
                interrupt::check();
                run(from, end.min(from + PIECE), generation);
            }
        };
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
