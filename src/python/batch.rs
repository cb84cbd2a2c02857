//! Batches of keys: chunk by chunk from column to hashes to kernel, with the interpreter released
//! while no Python object is accessed, and on several threads where they help.

use super::arrays;
use super::column::{CHUNK, Column, Found, INTERRUPTIBLE, Keys};
use super::error::catch_damage;
use super::handle::Handle;
use super::keys::{self, Family, NotAKey, Secret, hash_object, hasher};
use super::release::{briefly, released};
use crate::distinct;
use crate::error::{Error, Result as TamisResult, was_present};
use crate::hash::{Hash128, Hasher};
use crate::interrupt;
use crate::kernel::Kernel;
use crate::lock;
use crate::memory::{self, TryGrow};
use crate::ordered::Ordered;
use crate::stack;
use crate::threads as workers;
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList};
use std::borrow::Cow;
use std::ops::Range;

/// From this many keys on, a query uses all cores: below, callers can use their own threads, and
/// starting ours would be a visible part of the time.
const THREADED_QUERY: usize = 1 << 22;
/// From this many keys on, a build uses all cores: it takes longer per key, and only one caller
/// waits for it.
pub const THREADED_BUILD: usize = 1 << 18;

/// Many keys to be hashed.
pub enum Batch<'py> {
    Keys(Keys<'py>),
    /// The hashes of an iterable's objects, of which none is kept.
    Hashes(Vec<Hash128>),
}

impl<'py> Batch<'py> {
    pub fn new(keys: &Bound<'py, PyAny>, hasher: &Hasher) -> PyResult<Batch<'py>> {
        Ok(match Keys::find(keys)? {
            Found::Keys(keys) => Batch::Keys(keys),
            Found::Iterable { objects, .. } => {
                Batch::Hashes(Reader::new(objects).read_all(hasher)?)
            }
        })
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        match self {
            Batch::Keys(keys) => keys.len(),
            Batch::Hashes(hashes) => hashes.len(),
        }
    }
}

/// The objects of an iterable, hashed as they are read.
struct Reader<'py> {
    objects: Bound<'py, PyIterator>,
    series: Series,
}

impl<'py> Reader<'py> {
    fn new(objects: Bound<'py, PyIterator>) -> Reader<'py> {
        Reader { objects, series: Series::default() }
    }

    /// Appends the hashes of the next objects, up to [`INTERRUPTIBLE`]; returns whether there may be
    /// more.
    fn read(&mut self, hasher: &Hasher, into: &mut Vec<Hash128>) -> PyResult<bool> {
        for _ in 0..INTERRUPTIBLE {
            let Some(key) = self.objects.next() else { return Ok(false) };
            into.try_push(self.series.hash(hasher, &key?)?)?;
        }
        self.objects.py().check_signals()?;
        Ok(true)
    }

    fn read_all(mut self, hasher: &Hasher) -> PyResult<Vec<Hash128>> {
        let mut all = Vec::new();
        while self.read(hasher, &mut all)? {}
        Ok(all)
    }
}

/// Python objects in a row, which are keys of one kind.
#[derive(Default)]
struct Series {
    family: Option<Family>,
    count: usize,
}

impl Series {
    #[inline(always)]
    fn hash(&mut self, hasher: &Hasher, key: &Bound<'_, PyAny>) -> PyResult<Hash128> {
        let (hash, found) = hash_object(hasher, key)
            .map_err(|reason| reason.named(&format!("keys[{}]", self.count)))?;
        let before = *self.family.get_or_insert(found);
        if before != found {
            return Err(mixed(self.count, key, found, before));
        }
        self.count += 1;
        Ok(hash)
    }
}

/// Distinct keys as hashes: `build` counts them, plans, and builds from them.
#[pyclass(frozen, module = "tamis._native")]
pub struct Distinct {
    pub hashes: distinct::Distinct,
    pub hasher: Hasher,
    pub threads: usize,
}

#[pymethods]
impl Distinct {
    #[new]
    #[pyo3(signature = (keys, seed=0, key=None))]
    fn new(
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = keys::seed)] seed: u64,
        #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
    ) -> PyResult<Distinct> {
        let hasher = hasher(seed, key)?;
        Distinct::of(py, &Batch::new(keys, &hasher)?, hasher)
    }

    fn __len__(&self) -> usize {
        self.hashes.len()
    }

    /// The hashes that are not among the others.
    fn without(&self, py: Python<'_>, others: &Distinct) -> PyResult<Distinct> {
        released(py, || Ok(self.with(self.hashes.without(&others.hashes, self.threads)?)))?
    }

    /// The hashes that layer `index` of a stack accepts.
    fn accepted_by(&self, py: Python<'_>, layer: &Handle, index: usize) -> PyResult<Distinct> {
        let kernel = &*layer.kernel;
        let accepted = |part: &[Hash128]| stack::accepted(kernel, index, part);
        released(py, || Ok(self.with(self.hashes.filtered(self.threads, accepted)?)))?
    }

    /// These keys as layer `index` of a stack sees them.
    fn at_layer(&self, py: Python<'_>, index: usize) -> PyResult<Distinct> {
        let seen = |hash| stack::at_layer(hash, index);
        released(py, || Ok(self.with(self.hashes.mapped(self.threads, seen)?)))?
    }
}

impl Distinct {
    /// The distinct hashes of these keys.
    pub fn of(py: Python<'_>, keys: &Batch<'_>, hasher: Hasher) -> PyResult<Distinct> {
        let threads = threads(keys.len(), THREADED_BUILD);
        let collected = collected(py, keys, &hasher, threads, |hash| hash)?;
        let hashes = released(py, || distinct::Distinct::new(collected, threads))??;
        Ok(Distinct { hashes, hasher, threads })
    }

    /// Other hashes by the same hash function.
    pub fn with(&self, hashes: distinct::Distinct) -> Distinct {
        let threads = threads(hashes.len(), THREADED_BUILD);
        Distinct { hashes, hasher: self.hasher.clone(), threads }
    }
}

/// Collects the part of each key's hash that `needed` returns, by partition; every thread collects
/// a range of the keys.
pub fn collected<T: distinct::Item + Send>(
    py: Python<'_>,
    keys: &Batch<'_>,
    hasher: &Hasher,
    threads: usize,
    needed: impl Fn(Hash128) -> T + Sync,
) -> PyResult<Vec<distinct::Partitions<T>>> {
    let count = keys.len();
    match keys {
        Batch::Keys(Keys::Column(column)) => {
            let collect = |range: Range<usize>| {
                let mut partitions = distinct::Partitions::new(count, range.len())?;
                let take = |_, hashes: &[Hash128]| {
                    partitions.extend_from(hashes.iter().map(|&hash| needed(hash)));
                };
                column.for_each_chunk(hasher, range, take).map_err(at_index)?;
                PyResult::Ok(partitions)
            };
            released(py, || in_ranges(count, threads, collect))?
        }
        Batch::Keys(Keys::Objects(list)) => {
            let mut partitions = distinct::Partitions::new(count, count)?;
            for_each_chunk(hasher, list, |_, hashes| {
                partitions.extend_from(hashes.iter().map(|&hash| needed(hash)));
            })?;
            Ok(vec![partitions])
        }
        Batch::Hashes(hashes) => {
            let collect = |range: Range<usize>| {
                let mut partitions = distinct::Partitions::new(count, range.len())?;
                for chunk in hashes[range].chunks(CHUNK) {
                    interrupt::check();
                    partitions.extend_from(chunk.iter().map(|&hash| needed(hash)));
                }
                PyResult::Ok(partitions)
            };
            released(py, || in_ranges(count, threads, collect))?
        }
    }
}

/// Whether each key may be in the set.
pub fn contains<'py>(
    py: Python<'py>,
    kernel: &dyn Kernel,
    hasher: &Hasher,
    keys: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    let keys = Batch::new(keys, hasher)?;
    let answers = arrays::zeros::<bool>(py, keys.len())?;
    // SAFETY: the array is new, so nobody else has it yet.
    let out = unsafe { answers.as_slice_mut()? };
    match keys {
        Batch::Keys(Keys::Column(column)) => {
            released(py, || catch_damage(|| contains_column(kernel, hasher, &column, out)))??
                .map_err(at_index)?
        }
        Batch::Keys(Keys::Objects(list)) => catch_damage(|| {
            for_each_chunk(hasher, &list, |first, hashes| {
                let out = &mut out[first..first + hashes.len()];
                if lock::at_once(|| kernel.contains(hashes, out)).is_none() {
                    briefly(py, || kernel.contains(hashes, out));
                }
            })
        })??,
        Batch::Hashes(hashes) => released(py, || {
            catch_damage(|| {
                for (hashes, out) in hashes.chunks(CHUNK).zip(out.chunks_mut(CHUNK)) {
                    interrupt::check();
                    kernel.contains(hashes, out);
                }
            })
        })??,
    }
    Ok(answers)
}

fn contains_column(
    kernel: &dyn Kernel,
    hasher: &Hasher,
    column: &Column,
    out: &mut [bool],
) -> Result<(), (usize, NotAKey)> {
    in_threads(out, THREADED_QUERY, |range: Range<usize>, out: &mut [bool]| {
        let start = range.start;
        if let Some(mut ordered) = Ordered::new(kernel, range.len()) {
            column.for_each_chunk(hasher, range, |first, hashes| {
                ordered.ask(first - start, hashes, out);
            })?;
            ordered.answer_all(out);
            return Ok(());
        }
        let batch = kernel.batch().min(range.len());
        if batch > CHUNK
            && let Ok(waiting) = memory::with_capacity(batch + CHUNK)
        {
            return contains_in_batches(kernel, hasher, column, range, waiting, out);
        }
        column.for_each_chunk(hasher, range, |first, hashes| {
            kernel.contains(hashes, &mut out[first - start..first - start + hashes.len()]);
        })
    })
}

/// Collects chunks in `waiting` until they reach the preferred batch size of the kernel.
fn contains_in_batches(
    kernel: &dyn Kernel,
    hasher: &Hasher,
    column: &Column,
    range: Range<usize>,
    mut waiting: Vec<Hash128>,
    mut out: &mut [bool],
) -> Result<(), (usize, NotAKey)> {
    let batch = kernel.batch().min(range.len());
    let mut answer = |waiting: &mut Vec<Hash128>| {
        let (answers, rest) = std::mem::take(&mut out).split_at_mut(waiting.len());
        kernel.contains(waiting, answers);
        out = rest;
        waiting.clear();
    };
    column.for_each_chunk(hasher, range, |_, hashes| {
        waiting.extend_from_slice(hashes);
        if waiting.len() >= batch {
            answer(&mut waiting);
        }
    })?;
    answer(&mut waiting);
    Ok(())
}

/// Fills `out` by `work(range, its part)`: at once, or from `from` items on over all cores.
pub fn in_threads<T: Send, E: Send>(
    out: &mut [T],
    from: usize,
    work: impl Fn(Range<usize>, &mut [T]) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let threads = threads(out.len(), from);
    if threads == 1 {
        return work(0..out.len(), out);
    }
    let share = out.len().div_ceil(threads);
    let parts = out.chunks_mut(share).enumerate();
    let work = |(i, out): (usize, &mut [T])| work(i * share..i * share + out.len(), out);
    workers::try_map(parts, work).map(drop)
}

/// The hashes of all keys, in order.
pub fn hashes(py: Python<'_>, hasher: &Hasher, keys: &Bound<'_, PyAny>) -> PyResult<Vec<Hash128>> {
    match Batch::new(keys, hasher)? {
        Batch::Hashes(hashes) => Ok(hashes),
        keys => collect(py, hasher, &keys).map(Cow::into_owned),
    }
}

pub fn collect<'a>(
    py: Python<'_>,
    hasher: &Hasher,
    keys: &'a Batch<'_>,
) -> PyResult<Cow<'a, [Hash128]>> {
    if let Batch::Hashes(hashes) = keys {
        return Ok(Cow::Borrowed(hashes));
    }
    let count = keys.len();
    let no_memory = |_| Error::Memory(format!("cannot allocate the hashes of {count} keys"));
    let mut all = memory::with_capacity(count).map_err(no_memory)?;
    for_each(py, hasher, keys, |_, hashes| all.extend_from_slice(hashes))?;
    Ok(Cow::Owned(all))
}

/// Hashes keys and hands them to `take`: all at once, or an iterable without a length piece by piece,
/// so that one of any length needs memory for one piece.
pub fn in_pieces(
    py: Python<'_>,
    hasher: &Hasher,
    keys: Found<'_>,
    mut take: impl FnMut(&[Hash128]) -> PyResult<()>,
) -> PyResult<()> {
    match keys {
        Found::Iterable { objects, sized: false } => {
            let (mut reader, mut piece) = (Reader::new(objects), Vec::new());
            loop {
                let more = reader.read(hasher, &mut piece)?;
                take(&piece)?;
                piece.clear();
                if !more {
                    return Ok(());
                }
            }
        }
        Found::Iterable { objects, .. } => take(&Reader::new(objects).read_all(hasher)?),
        Found::Keys(keys) => take(&collect(py, hasher, &Batch::Keys(keys))?),
    }
}

/// The hashes of the keys that a kernel accepts, each with its index, and the total number of keys.
pub fn accepted(
    py: Python<'_>,
    kernel: &dyn Kernel,
    hasher: &Hasher,
    keys: &Bound<'_, PyAny>,
) -> PyResult<(Vec<(Hash128, usize)>, usize)> {
    let keep = |kept: &mut Vec<(Hash128, usize)>, first: usize, hashes: &[Hash128]| {
        kept.reserve_more(hashes.len())?;
        let mut answers = [false; CHUNK];
        kernel.contains(hashes, &mut answers[..hashes.len()]);
        let each = hashes.iter().copied().zip(first..).zip(answers);
        kept.extend(each.filter(|(_, yes)| *yes).map(|(hash_and_index, _)| hash_and_index));
        TamisResult::Ok(())
    };
    let keys = Batch::new(keys, hasher)?;
    let count = keys.len();
    let kept = match keys {
        Batch::Keys(Keys::Column(column)) => {
            let collect = |range: Range<usize>| {
                let (mut kept, mut failed) = (Vec::new(), Ok(()));
                let take = |first, hashes: &[Hash128]| {
                    if failed.is_ok() {
                        failed = keep(&mut kept, first, hashes);
                    }
                };
                column.for_each_chunk(hasher, range, take).map_err(at_index)?;
                failed?;
                PyResult::Ok(kept)
            };
            let threads = threads(column.len(), THREADED_BUILD);
            let parts = released(py, || in_ranges(column.len(), threads, collect))??;
            memory::joined(&memory::collected(parts.iter().map(|part| &part[..]))?)?
        }
        objects => {
            let (mut kept, mut failed) = (Vec::new(), Ok(()));
            for_each(py, hasher, &objects, |first, hashes| {
                if failed.is_ok() {
                    failed = keep(&mut kept, first, hashes);
                }
            })?;
            failed?;
            kept
        }
    };
    Ok((kept, count))
}

/// Hashes any keys chunk by chunk: `chunk(first, hashes)`.
pub fn for_each(
    py: Python<'_>,
    hasher: &Hasher,
    keys: &Batch<'_>,
    mut chunk: impl FnMut(usize, &[Hash128]) + Send,
) -> PyResult<()> {
    match keys {
        Batch::Keys(Keys::Column(column)) => {
            let all = 0..column.len();
            released(py, || column.for_each_chunk(hasher, all, chunk))?.map_err(at_index)
        }
        Batch::Keys(Keys::Objects(list)) => for_each_chunk(hasher, list, chunk),
        Batch::Hashes(hashes) => released(py, || {
            for (index, hashes) in hashes.chunks(CHUNK).enumerate() {
                interrupt::check();
                chunk(index * CHUNK, hashes);
            }
        }),
    }
}

/// Inserts every key, or none if one of them is not a key or does not fit. Of an iterable without a
/// length, this holds for each piece.
pub fn insert(
    py: Python<'_>,
    kernel: &dyn Kernel,
    hasher: &Hasher,
    keys: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let keys = Keys::find(keys)?;
    // None of a column's keys is invalid, so they need not all be hashed before the first insertion.
    if let Found::Keys(Keys::Column(column)) = &keys
        && !column.may_fail()
        && !kernel.inserts_at_once()
    {
        let chunks = |range: Range<usize>, chunk: &mut Chunk<'_>| {
            column.for_each_chunk(hasher, range, |_, hashes| chunk(hashes))
        };
        return released(py, || {
            column.check().map_err(at_index)?;
            catch_damage(|| insert_chunks(kernel, column.len(), chunks))?
        })?;
    }
    in_pieces(py, hasher, keys, |all| {
        // In chunks if removals can undo them, so that readers wait for one chunk, not for all.
        let step = if kernel.inserts_at_once() { all.len().max(1) } else { CHUNK };
        let chunks = |range: Range<usize>, chunk: &mut Chunk<'_>| {
            all[range].chunks(step).for_each(|hashes| {
                interrupt::check();
                chunk(hashes);
            });
            Ok(())
        };
        released(py, || catch_damage(|| insert_chunks(kernel, all.len(), chunks))?)?
    })
}

/// A function called with each chunk of hashes.
type Chunk<'a> = dyn FnMut(&[Hash128]) + Send + 'a;

/// Inserts `count` hashes, of which `chunks` yields any range in chunks. If the kernel refuses a
/// chunk, or one can no longer be read, the previous ones are removed again; if the caller ends it
/// (Ctrl-C), they stay.
fn insert_chunks(
    kernel: &dyn Kernel,
    count: usize,
    chunks: impl Fn(Range<usize>, &mut Chunk<'_>) -> Result<(), (usize, NotAKey)>,
) -> PyResult<()> {
    let (mut inserted, mut result) = (0, Ok(()));
    let read = chunks(0..count, &mut |hashes| {
        if result.is_ok() {
            result = kernel.insert(hashes);
            inserted += if result.is_ok() { hashes.len() } else { 0 };
        }
    });
    if result.is_err() || read.is_err() {
        let undo = |hashes: &[Hash128]| hashes.iter().for_each(|&hash| drop(kernel.undo(hash)));
        let _ = interrupt::within(None, || chunks(0..inserted, &mut { undo }));
    }
    read.map_err(at_index)?;
    Ok(result?)
}

/// Undoes one insertion of each hash; returns for each whether it was present.
pub fn remove<'py>(
    py: Python<'py>,
    kernel: &dyn Kernel,
    hashes: &[Hash128],
) -> PyResult<Bound<'py, PyArray1<bool>>> {
    // Before anything is removed.
    let answers = arrays::zeros::<bool>(py, hashes.len())?;
    // SAFETY: the array is new, so nobody else has it yet.
    let out = unsafe { answers.as_slice_mut()? };
    let removals = || {
        for (index, (hash, out)) in hashes.iter().zip(out).enumerate() {
            if index.is_multiple_of(CHUNK) {
                interrupt::check();
            }
            *out = was_present(kernel.remove(*hash))?;
        }
        Ok(())
    };
    let removed: TamisResult<()> = released(py, || catch_damage(removals))??;
    removed?;
    Ok(answers)
}

/// The 128-bit hashes of keys as rows (high half, low half).
#[pyfunction]
#[pyo3(signature = (keys, *, seed=0, key=None))]
pub fn hash_keys<'py>(
    py: Python<'py>,
    keys: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = keys::seed)] seed: u64,
    #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
) -> PyResult<Bound<'py, PyArray2<u64>>> {
    let hasher = hasher(seed, key)?;
    let keys = Batch::new(keys, &hasher)?;
    let rows = arrays::pairs::<u64>(py, keys.len())?;
    // SAFETY: the array is new, so nobody else has it yet.
    let out = unsafe { rows.as_slice_mut()? };
    let write = |first: usize, hashes: &[Hash128]| {
        for (row, hash) in out[2 * first..].chunks_exact_mut(2).zip(hashes) {
            row.copy_from_slice(&[hash.hi, hash.lo]);
        }
    };
    for_each(py, &hasher, &keys, write)?;
    Ok(rows)
}

/// Hashes Python objects chunk by chunk: `chunk(first, hashes)`.
fn for_each_chunk(
    hasher: &Hasher,
    keys: &Bound<'_, PyList>,
    mut chunk: impl FnMut(usize, &[Hash128]),
) -> PyResult<()> {
    let mut hashes = [Hash128::default(); CHUNK];
    let length = keys.len();
    let mut series = Series::default();
    let (mut first, mut fill) = (0, 0);
    for key in keys.iter() {
        hashes[fill] = series.hash(hasher, &key)?;
        fill += 1;
        if fill == CHUNK {
            chunk(first, &hashes);
            (first, fill) = (first + CHUNK, 0);
            if first.is_multiple_of(INTERRUPTIBLE) {
                keys.py().check_signals()?;
            }
        }
    }
    chunk(first, &hashes[..fill]);
    if first + fill != length || keys.len() != length {
        return Err(PyRuntimeError::new_err("keys changed its length while it was read"));
    }
    Ok(())
}

#[cold]
fn mixed(index: usize, key: &Bound<'_, PyAny>, found: Family, before: Family) -> PyErr {
    let ((this, _), (_, those)) = (found.names(), before.names());
    PyTypeError::new_err(format!(
        "keys[{index}] is {}, {this}, after {those}: a list holds keys of one kind",
        keys::shown(key)
    ))
}

pub fn at_index((index, reason): (usize, NotAKey)) -> PyErr {
    reason.named(&format!("keys[{index}]"))
}

/// The number of threads for `count` keys.
pub fn threads(count: usize, from: usize) -> usize {
    if count < from { 1 } else { workers::available() }
}

/// Runs `work` on equal ranges of `0..count`, one per thread.
pub fn in_ranges<T: Send, E: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(Range<usize>) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let border = |i: usize| count * i / threads;
    workers::try_map(0..threads, |i| work(border(i)..border(i + 1)))
}
