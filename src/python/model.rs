//! Models: created from their flat form, and scoring.

use super::arrays;
use super::batch::{at_index, in_threads};
use super::column::{CHUNK, Keys};
use super::filter::{Stored, structure};
use super::handle::Handle;
use super::keys::{NotAKey, hash_object, with_text};
use super::kinds::kind_class;
use super::release::released;
use super::table::{NoValue, Table};
use crate::error::Error;
use crate::hash::{Hash128, Hasher};
use crate::kernel;
use crate::memory::TryGrow;
use crate::model::{BLOCK, Block, Grams, MAX_GRAM, Model};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// From this many rows on, scoring uses all cores.
const THREADED: usize = 1 << 16;

kind_class! {
    /// A classifier.
    Classifier(Model) extends Stored
}

#[pymethods]
impl Classifier {
    /// A classifier from its flat form (docs/format.md): its input, its head, the number of
    /// features, scale and bias of the sum, and the number of training rows.
    #[staticmethod]
    fn _from_flat(
        input: u64,
        head: u64,
        features: u64,
        scale: f64,
        bias: f64,
        rows: u64,
        flat: Vec<u8>,
    ) -> PyResult<Handle> {
        let model = Model::from_flat([input, head, features], (scale, bias, rows), flat)?;
        Ok(Handle::new(model, rows, Hasher::seeded(0)))
    }

    /// Whether it scores the text of keys rather than the columns of a table.
    #[getter]
    fn _reads_text(self_: &Bound<'_, Self>) -> PyResult<bool> {
        Ok(structure::<Model>(self_)?.1.reads_text())
    }

    /// The score of each row of a table, or of each key as text.
    fn scores<'py>(
        self_: &Bound<'py, Self>,
        rows: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let (py, (_, model)) = (self_.py(), structure::<Model>(self_)?);
        let scores = if model.reads_text() { text_scores } else { table_scores };
        scores(py, model, rows)
    }
}

/// The name of a column in a model; 0 for none.
#[pyfunction]
pub fn column_name(name: &str) -> u32 {
    (xxh3_64(name.as_bytes()) as u32).max(1)
}

fn array(py: Python<'_>, len: usize) -> PyResult<Bound<'_, PyArray1<f32>>> {
    arrays::zeros(py, len)
}

fn table_scores<'py>(
    py: Python<'py>,
    model: &Model,
    rows: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let table = Table::of(rows)?;
    let order = order(model, &table)?;
    let scores = array(py, table.len())?;
    // SAFETY: the array is new, so nobody else has it yet.
    let out = unsafe { scores.as_slice_mut()? };
    let work = |range: Range<usize>, out: &mut [f32]| {
        let (mut block, start) = (model.block().map_err(NoValue::from)?, range.start);
        table.for_each_part(&order, range, |rows, first, range| {
            let out = &mut out[range.start - start..range.end - start];
            model.score_rows(&rows, first, out, &mut block)
        })
    };
    let done = released(py, || in_threads(out, THREADED, work))?;
    done.map_err(|lack: NoValue| table.refused(lack))?;
    Ok(scores)
}

fn text_scores<'py>(
    py: Python<'py>,
    model: &Model,
    keys: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let keys = Keys::new(keys)?;
    let scores = array(py, keys.len())?;
    // SAFETY: the array is new, so nobody else has it yet.
    let out = unsafe { scores.as_slice_mut()? };
    match keys {
        Keys::Column(column) => {
            let done = released(py, || {
                in_threads(out, THREADED, |range: Range<usize>, out: &mut [f32]| {
                    let refused = |error: Error| (range.start, NotAKey::Raised(error.into()));
                    let (mut block, start) = (model.block().map_err(refused)?, range.start);
                    let stop = range.end;
                    column.each_text(range, |i, text| {
                        model.read_text((i - start) % BLOCK, text, &mut block);
                        if (i + 1 - start) % BLOCK == 0 || i + 1 == stop {
                            let from = (i - start) / BLOCK * BLOCK;
                            model.score_text(&mut block, &mut out[from..=i - start]);
                        }
                    })
                })
            })?;
            done.map_err(at_index)?
        }
        Keys::Objects(list) => {
            let mut block = model.block()?;
            for (b, out) in out.chunks_mut(BLOCK).enumerate() {
                py.check_signals()?;
                for i in 0..out.len() {
                    let index = b * BLOCK + i;
                    with_text(&list.get_item(index)?, |text| model.read_text(i, text, &mut block))
                        .map_err(|reason| at_index((index, reason)))?;
                }
                model.score_text(&mut block, out);
            }
        }
    }
    Ok(scores)
}

thread_local! {
    /// Working memory for one key's score, kept for the next one.
    static SCORING: Cell<Option<(usize, Block)>> = const { Cell::new(None) };
}

/// The hash of one key, and its score as text by the model of a learned filter.
pub(super) fn hash_and_score(
    handle: &Handle,
    model: Option<&Arc<dyn kernel::Kernel>>,
    key: &Bound<'_, PyAny>,
) -> PyResult<(Hash128, f32)> {
    let model = model.and_then(|model| (&**model as &dyn Any).downcast_ref::<Model>());
    let Some(model) = model.filter(|model| model.reads_text()) else {
        return Err(PyTypeError::new_err(
            "features is missing; the model reads a table, with a row for each key",
        ));
    };
    let named = |reason: NotAKey| reason.named("key");
    let (hash, _) = hash_object(&handle.hasher, key).map_err(named)?;
    // Taken out while in use: reading a key may run foreign code, which may score another key.
    let kept = SCORING.take().filter(|(width, _)| *width == model.width());
    let mut block = match kept {
        Some((_, block)) => block,
        None => model.block()?,
    };
    with_text(key, |text| model.read_text(0, text, &mut block)).map_err(named)?;
    let mut score = [0.0];
    model.score_text(&mut block, &mut score);
    SCORING.set(Some((model.width(), block)));
    Ok((hash, score[0]))
}

/// The n-grams of keys, one key after the other: the bucket of each, the end of each key's n-grams,
/// and the lengths of the keys, up to 127.
#[pyclass(frozen, get_all, module = "tamis._native")]
pub struct TextGrams {
    ends: Py<PyArray1<i64>>,
    buckets: Py<PyArray1<i32>>,
    lengths: Py<PyArray1<u8>>,
}

/// The buckets of the n-grams of each key, one key after the other, and the end of each key's.
#[pyfunction]
pub fn text_grams(
    py: Python<'_>,
    keys: &Bound<'_, PyAny>,
    shortest: u8,
    longest: u8,
    buckets: u32,
) -> PyResult<TextGrams> {
    if shortest < 1 || longest < shortest || longest > MAX_GRAM || buckets < 1 {
        let message =
            format!("ngrams must be lengths from 1 to {MAX_GRAM}, not ({shortest}, {longest})");
        return Err(PyValueError::new_err(message));
    }
    let grams = Grams { shortest, longest, buckets };
    let (mut ends, mut all, mut lengths) = (vec![0], Vec::new(), Vec::new());
    let mut failed = Ok(());
    let mut push = |text: &[u8]| {
        // An n-gram of each length at each byte, at most.
        let lengths_of_grams = usize::from(longest - shortest) + 1;
        all.reserve_more(text.len().saturating_mul(lengths_of_grams))?;
        grams.each(text, |bucket| all.push(bucket as i32));
        ends.try_push(all.len() as i64)?;
        lengths.try_push(text.len().min(127) as u8)
    };
    let mut take = |text: &[u8]| {
        if failed.is_ok() {
            failed = push(text);
        }
    };
    match Keys::new(keys)? {
        Keys::Column(column) => {
            released(py, || column.each_text(0..column.len(), |_, text| take(text)))?
                .map_err(at_index)?
        }
        Keys::Objects(list) => {
            for (i, key) in list.iter().enumerate() {
                if i.is_multiple_of(CHUNK) {
                    py.check_signals()?;
                }
                with_text(&key, &mut take).map_err(|reason| at_index((i, reason)))?;
            }
        }
    }
    failed?;
    Ok(TextGrams {
        ends: PyArray1::from_vec(py, ends).unbind(),
        buckets: PyArray1::from_vec(py, all).unbind(),
        lengths: PyArray1::from_vec(py, lengths).unbind(),
    })
}

/// The column of each feature: by name if both have names, else by position.
fn order(model: &Model, table: &Table) -> PyResult<Vec<usize>> {
    let names: Vec<Option<u32>> = table.names().map(|name| name.map(column_name)).collect();
    let by_name = names.iter().all(Option::is_some) && model.features().iter().all(|f| f.name != 0);
    if by_name {
        let place = |(i, feature): (usize, &crate::model::Feature)| {
            names.iter().position(|&name| name == Some(feature.name)).ok_or_else(|| {
                PyTypeError::new_err(format!(
                    "features has no column with the name of the model's feature {i}; it has {}",
                    table.names().flatten().collect::<Vec<_>>().join(", ")
                ))
            })
        };
        return model.features().iter().enumerate().map(place).collect();
    }
    if table.width() != model.width() {
        return Err(PyTypeError::new_err(format!(
            "features has {} columns; the model reads {}",
            table.width(),
            model.width()
        )));
    }
    Ok((0..table.width()).collect())
}
