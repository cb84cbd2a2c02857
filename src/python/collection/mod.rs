//! Collections: full filters in files, prefixes in memory.
//!
//! `frame.rs` checks and writes the file, `directory.rs` and `names.rs` find a filter in it by number
//! and by name, `resident.rs` has separate prefixes in memory, `sliced.rs` bit-sliced ones;
//! `lookup.rs` looks up many keys on threads.

mod directory;
mod frame;
mod lookup;
mod names;
mod resident;
mod sliced;

pub use frame::TextOptions;
pub use resident::Resident;
pub use sliced::Sliced;

use super::arrays;
use super::batch::Distinct;
use super::exit;
use super::files::{Buffered, Files, Object};
use super::handle::hasher_of;
use super::keys::{self, Secret, hasher};
use super::release::{briefly, released};
use crate::collection::{self, Filter, Kind};
use crate::error::{Error, Result};
use crate::hash::Hasher;
use crate::lock::RwLock;
use crate::memory::{self, TryGrow};
use directory::Directory;
use frame::{Opened, Place};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

/// The full filter of one set, not yet in a collection, so that sets can be built on threads.
#[pyclass(frozen, module = "tamis._native")]
pub struct Full {
    filter: Filter,
    bytes: Vec<u8>,
    hasher: Hasher,
}

#[pymethods]
impl Full {
    #[new]
    #[pyo3(signature = (keys, kind, hashes, bits=0, levels=vec![]))]
    fn new(
        py: Python<'_>,
        keys: &Distinct,
        kind: &str,
        hashes: u8,
        bits: u64,
        levels: Vec<u64>,
    ) -> PyResult<Full> {
        let unknown = || PyValueError::new_err(format!("kind '{kind}' is unknown"));
        let kind = Kind::named(kind).ok_or_else(unknown)?;
        let build = || Filter::build(kind, hashes, bits, &levels, &keys.hashes);
        let (filter, bytes) = released(py, build)??;
        Ok(Full { filter, bytes, hasher: keys.hasher.clone() })
    }
}

/// The sizes of filters: one array per field, one element per filter.
#[pyclass(frozen, get_all, module = "tamis._native")]
pub struct FilterSizes {
    /// The number of the kind.
    kinds: Py<PyArray1<u8>>,
    /// Probes of a Bloom filter, columns of a ribbon.
    hashes: Py<PyArray1<i64>>,
    /// Bits of the full filter.
    bits: Py<PyArray1<i64>>,
    /// Bits before the columns of a ribbon.
    codes: Py<PyArray1<i64>>,
    /// Bits of a column.
    slots: Py<PyArray1<i64>>,
    /// Bits of a row.
    widths: Py<PyArray1<i64>>,
    /// Keys of the set.
    counts: Py<PyArray1<i64>>,
    /// Memory in bytes apart from the bits of prefixes.
    overhead: usize,
}

/// The full filters of a collection, in an opened file or added since. In a text index, each filter
/// is the signature of a document.
#[pyclass(frozen, module = "tamis._native")]
pub struct Filters {
    files: Arc<Files>,
    hasher: Hasher,
    directory: RwLock<Arc<Directory>>,
    texts: Option<TextOptions>,
}

impl Filters {
    /// The filters as they are now; a set that is being added is awaited without the interpreter.
    fn directory(&self) -> Arc<Directory> {
        match self.directory.try_read() {
            Some(directory) => directory.clone(),
            None => exit::attached(|py| briefly(py, || self.directory.read().clone())),
        }
    }
}

fn not_text() -> Error {
    Error::Format("the text index is damaged: a text is not valid UTF-8".into())
}

fn duplicate(descriptor: RawFd) -> Result<File> {
    // SAFETY: the caller keeps the descriptor open during this call.
    Ok(unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned().map(File::from)?)
}

#[pymethods]
impl Filters {
    /// Creates an empty collection; filters are added to the open file `spill`.
    #[new]
    #[pyo3(signature = (spill, seed=0, key=None, texts=None))]
    fn new(
        spill: RawFd,
        #[pyo3(from_py_with = keys::seed)] seed: u64,
        #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
        texts: Option<&TextOptions>,
    ) -> PyResult<Filters> {
        let (files, hasher) = (Arc::new(Files::new(duplicate(spill)?)), hasher(seed, key)?);
        Ok(Filters { files, hasher, directory: RwLock::default(), texts: texts.cloned() })
    }

    /// Where the bits of a collection of `length` bytes begin; `start` is the first 4096 of them.
    #[staticmethod]
    fn bits_offset(start: &[u8], length: u64) -> PyResult<u64> {
        Ok(frame::bits_offset(start, length)?)
    }

    /// Opens the frame at `offset` of an open file; returns its filters and their utilities. With
    /// `object`, the file is a copy of everything that an object has before the bits of the frame.
    #[staticmethod]
    #[pyo3(signature = (descriptor, spill, key=None, texts=false, offset=0, length=None, object=None))]
    #[allow(clippy::too_many_arguments)]
    fn open<'py>(
        py: Python<'py>,
        descriptor: RawFd,
        spill: RawFd,
        #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
        texts: bool,
        offset: u64,
        length: Option<u64>,
        object: Option<Py<PyAny>>,
    ) -> PyResult<(Filters, Bound<'py, PyArray1<f64>>)> {
        let keyed = key.map(|key| hasher(0, Some(key))).transpose()?;
        let spill = duplicate(spill)?;
        let file = duplicate(descriptor)?;
        let file_length = match object {
            Some(_) => u64::MAX,
            None => file.metadata()?.len(),
        };
        let rest = file_length.saturating_sub(offset);
        let place = Place { offset, length: rest.min(length.unwrap_or(rest)) };
        let object = object.map(Object);
        let opened = released(py, || frame::read(file, object, place, spill, texts))??;
        let Opened { head, files, directory, utilities, texts } = opened;
        let (hasher, directory) = (hasher_of(&head, keyed)?, RwLock::new(Arc::new(directory)));
        let filters = Filters { files: Arc::new(files), hasher, directory, texts };
        Ok((filters, PyArray1::from_vec(py, utilities)))
    }

    fn __len__(&self) -> usize {
        self.directory().len()
    }

    #[getter]
    fn seed(&self) -> Option<u64> {
        (self.hasher.id() == crate::hash::HASH_SEEDED).then(|| self.hasher.tag())
    }

    /// How a text index was built; None for a collection.
    #[getter]
    fn texts(&self) -> Option<TextOptions> {
        self.texts.clone()
    }

    /// Adds the full filter of a set, and the document of a text index.
    #[pyo3(signature = (name, full, text=None))]
    fn add(&self, py: Python<'_>, name: &str, full: &Full, text: Option<&str>) -> PyResult<()> {
        if !self.hasher.same_as(&full.hasher) {
            let message =
                "the keys are hashed with another seed or secret key than the collection".into();
            return Err(Error::Incompatible(message).into());
        }
        if !self.files.is_writer() {
            let message = "a forked process cannot add to the collections and indexes of its \
                           parent: open the file again in the child";
            return Err(PyRuntimeError::new_err(message));
        }
        let text = text.filter(|_| self.texts.as_ref().is_some_and(|texts| texts.keep_texts));
        Ok(briefly(py, || {
            let mut directory = self.directory.write();
            // Readers of an earlier state keep it.
            if Arc::get_mut(&mut directory).is_none() {
                *directory = Arc::new(directory.copied()?);
            }
            let Some(own) = Arc::get_mut(&mut directory) else { return Ok(()) };
            own.add(&self.files, name, &full.filter, &full.bytes, text)
        })?)
    }

    /// The document of a filter, if documents are stored.
    fn text(&self, py: Python<'_>, id: usize) -> PyResult<Option<String>> {
        if !self.texts.as_ref().is_some_and(|texts| texts.keep_texts) {
            return Ok(None);
        }
        let bytes = briefly(py, || {
            let row = self.directory().row(&self.files, id)?;
            let mut bytes = memory::filled(row.text as usize, 0)?;
            self.files.read_alone(row.place + row.filter.bytes()?, &mut bytes)?;
            Result::Ok(bytes)
        })?;
        Ok(Some(String::from_utf8(bytes).map_err(|_| not_text())?))
    }

    /// Adds filters of another collection with the same hash, and their documents, under new names.
    fn copy_from(
        &self,
        py: Python<'_>,
        other: &Filters,
        #[pyo3(from_py_with = arrays::items)] ids: Vec<usize>,
        #[pyo3(from_py_with = arrays::items)] names: Vec<String>,
    ) -> PyResult<()> {
        if !self.hasher.same_as(&other.hasher) || self.texts != other.texts {
            let message = "collections must have the same seed or secret key to be merged".into();
            return Err(Error::Incompatible(message).into());
        }
        let from = other.directory();
        if ids.len() != names.len() || ids.iter().any(|&id| id >= from.len()) {
            return Err(PyValueError::new_err("ids must be numbers of filters, one per name"));
        }
        Ok(released(py, || {
            let (rows, list) = (from.all_rows(&other.files)?, other.files.list()?);
            let places = ids.iter().map(|&id| Ok((rows[id].place, rows[id].bytes()?)));
            let places: Vec<(u64, u64)> = memory::collected_ok::<_, Error>(places)?;
            other.files.staged(places.iter().copied(), || {
                let mut directory = self.directory().copied()?;
                for ((&id, name), (place, bytes)) in ids.iter().zip(&names).zip(&places) {
                    let mut bits = memory::filled(*bytes as usize, 0)?;
                    other.files.read(*place, &mut bits, &list)?;
                    let (bits, text) = bits.split_at(rows[id].filter.bytes()? as usize);
                    let text = str::from_utf8(text).map_err(|_| not_text())?;
                    directory.add(&self.files, name, &rows[id].filter, bits, Some(text))?;
                }
                *self.directory.write() = Arc::new(directory);
                Ok(())
            })
        })??)
    }

    /// Puts the filters, all of which were added, into another order: `order[i]` becomes filter i.
    fn reorder(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arrays::items)] order: Vec<usize>,
    ) -> PyResult<()> {
        let refused = || PyValueError::new_err("order must have each number of a filter once");
        briefly(py, || {
            let mut directory = self.directory.write();
            *directory = Arc::new(directory.reordered(&order)?.ok_or_else(refused)?);
            Ok(())
        })
    }

    /// The filters except these.
    fn without(
        &self,
        #[pyo3(from_py_with = arrays::items)] mut ids: Vec<usize>,
    ) -> PyResult<Filters> {
        ids.sort_unstable();
        let rest = self.directory().without(&ids)?;
        let (files, hasher, texts) = (self.files.clone(), self.hasher.clone(), self.texts.clone());
        Ok(Filters { files, hasher, directory: RwLock::new(Arc::new(rest)), texts })
    }

    fn name(&self, id: usize) -> PyResult<String> {
        let directory = self.directory();
        if id >= directory.len() {
            return Err(PyIndexError::new_err(format!("there is no filter with number {id}")));
        }
        Ok(directory.name(&self.files, id)?)
    }

    /// The names of all filters.
    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let names = released(py, || {
            let mut names = Vec::new();
            self.directory().each_name(&self.files, |name| names.try_push(name.to_owned()))?;
            crate::error::Result::Ok(names)
        })??;
        arrays::list(py, names.iter().map(|name| Ok(PyString::new(py, name))))
    }

    fn find(&self, name: &str) -> PyResult<Option<usize>> {
        Ok(self.directory().find(&self.files, name)?)
    }

    /// The sizes of filters `start` to `stop`, and the memory overhead of loading them in `parts`
    /// parts.
    #[pyo3(signature = (parts=1, start=0, stop=None))]
    fn sizes(
        &self,
        py: Python<'_>,
        parts: usize,
        start: usize,
        stop: Option<usize>,
    ) -> PyResult<FilterSizes> {
        let directory = self.directory();
        let stop = stop.unwrap_or(directory.len()).min(directory.len());
        let rows = released(py, || directory.rows(&self.files, start.min(stop)..stop))??;
        let filters = || rows.iter().map(|row| &row.filter);
        let [mut bits, mut codes, mut slots, mut widths] = [const { Vec::new() }; 4];
        for filter in filters() {
            let (before, column, width) = filter.columns()?;
            bits.try_push(filter.bits()? as i64)?;
            codes.try_push(before as i64)?;
            slots.try_push(column as i64)?;
            widths.try_push(width as i64)?;
        }
        let mut overhead = 0;
        for part in 0..parts {
            let own = filters().skip(part).step_by(parts);
            overhead += collection::Resident::overhead_of(own, directory.len())?;
        }
        let kinds = memory::collected(filters().map(|filter| filter.kind as u8))?;
        let hashes = memory::collected(filters().map(|filter| i64::from(filter.hashes)))?;
        let counts = memory::collected(filters().map(|filter| filter.count as i64))?;
        Ok(FilterSizes {
            kinds: PyArray1::from_vec(py, kinds).unbind(),
            hashes: PyArray1::from_vec(py, hashes).unbind(),
            bits: PyArray1::from_vec(py, bits).unbind(),
            codes: PyArray1::from_vec(py, codes).unbind(),
            slots: PyArray1::from_vec(py, slots).unbind(),
            widths: PyArray1::from_vec(py, widths).unbind(),
            counts: PyArray1::from_vec(py, counts).unbind(),
            overhead,
        })
    }

    /// Loads the first `kept[i]` bits of each filter `order[i]`, or copies them if they are `loaded`.
    /// Filter i was number `before[i]` in `loaded`, by default i.
    #[pyo3(signature = (order, kept, loaded=None, before=None))]
    fn resident(
        &self,
        py: Python<'_>,
        order: PyReadonlyArray1<'_, u32>,
        kept: PyReadonlyArray1<'_, u64>,
        loaded: Option<&Resident>,
        before: Option<PyReadonlyArray1<'_, u32>>,
    ) -> PyResult<Resident> {
        let (order, kept) = (order.as_slice()?, kept.as_slice()?);
        let before = before.as_ref().map(|before| before.as_slice()).transpose()?;
        let directory = self.directory();
        if order.len() != kept.len() || order.iter().any(|&id| id as usize >= directory.len()) {
            return Err(PyValueError::new_err(
                "order must have one number of a filter per element of kept",
            ));
        }
        let resident = released(py, || {
            let rows = directory.all_rows(&self.files)?;
            let chosen = order.iter().zip(kept);
            let chosen = chosen.map(|(&id, &kept)| (id, &rows[id as usize].filter, kept));
            let positions =
                loaded.map(|loaded| loaded.positions(rows.len(), before)).transpose()?;
            let loaded = loaded.zip(positions.as_ref());
            let had: Vec<u64> = match loaded {
                Some((loaded, _)) => {
                    memory::collected(loaded.resident.kept()?.map(|(_, kept)| kept))?
                }
                None => Vec::new(),
            };
            let had = |id: u32| {
                let at = loaded.and_then(|(_, positions)| positions.get(id as usize));
                at.and_then(|&at| had.get(at as usize).copied()).unwrap_or(0)
            };
            let unloaded = chosen.clone().filter(|&(id, _, kept)| kept > had(id));
            let unloaded =
                unloaded.map(|(id, _, kept)| (rows[id as usize].place, kept.div_ceil(8)));
            let unloaded = memory::collected(unloaded)?;
            let loaded = loaded.map(|(loaded, positions)| loaded.at(positions));
            let list = self.files.list()?;
            let load = || {
                collection::Resident::load(chosen, rows.len(), loaded, |id, out| {
                    self.files.read(rows[id as usize].place, out, &list)
                })
            };
            self.files.staged(unloaded.into_iter(), load)
        })??;
        Ok(Resident::new(resident, self.files.clone(), directory, self.hasher.clone()))
    }

    /// The prefixes that are `loaded`, with the first `kept[i]` bits of each filter `ids[i]`. New
    /// filters are inserted before position `at[i]`, in order.
    fn changed(
        &self,
        py: Python<'_>,
        loaded: &Resident,
        ids: PyReadonlyArray1<'_, u32>,
        kept: PyReadonlyArray1<'_, u64>,
        at: PyReadonlyArray1<'_, u32>,
    ) -> PyResult<Resident> {
        let (ids, kept, at) = (ids.as_slice()?, kept.as_slice()?, at.as_slice()?);
        let directory = self.directory();
        let valid = |&id: &u32| (id as usize) < directory.len();
        if ids.len() != kept.len() || ids.len() != at.len() || !ids.iter().all(valid) {
            return Err(PyValueError::new_err("ids, kept and at must have the same length"));
        }
        let resident = released(py, || {
            let positions = loaded.positions(directory.len(), None)?;
            let (mut lengths, mut rows, mut places) = (Vec::new(), Vec::new(), HashMap::new());
            places.try_reserve(ids.len()).map_err(|_| memory::refused(16 * ids.len()))?;
            for (given, ((&id, &kept), &at)) in ids.iter().zip(kept).zip(at).enumerate() {
                let row = directory.row(&self.files, id as usize)?;
                let (bits, position) = (row.filter.bits()?, positions[id as usize]);
                places.insert(id, row.place);
                match position {
                    u32::MAX => {
                        rows.try_push((at as usize, given, id, row.filter, kept.min(bits)))?
                    }
                    _ => lengths.try_push((position as usize, kept.min(bits)))?,
                }
            }
            // In the order in which they were given, where they come before the same one.
            rows.sort_unstable_by_key(|row| (row.0, row.1));
            lengths.sort_unstable();
            lengths.dedup_by_key(|length| length.0);
            let added = rows.iter().map(|row| (row.0, row.2, &row.3, row.4));
            let added: Vec<_> = memory::collected(added)?;
            loaded.resident.changed(directory.len(), &lengths, &added, |id, out| {
                self.files.read_alone(places[&id], out)
            })
        })??;
        Ok(Resident::new(resident, self.files.clone(), directory, self.hasher.clone()))
    }

    /// Loads the first `segments[i]` segments of each filter `ids[i]`, bit-sliced; `classes` has the
    /// number of filters of each class, `order` all filters by utility.
    fn sliced(
        &self,
        py: Python<'_>,
        classes: PyReadonlyArray1<'_, u32>,
        ids: PyReadonlyArray1<'_, u32>,
        segments: PyReadonlyArray1<'_, u8>,
        order: PyReadonlyArray1<'_, u32>,
    ) -> PyResult<Sliced> {
        let (classes, ids) = (classes.as_slice()?, ids.as_slice()?);
        let (segments, order) = (segments.as_slice()?, order.as_slice()?);
        let layout = collection::sliced::Layout { classes, ids, segments, order };
        let directory = self.directory();
        let sliced = released(py, || {
            let (all, list) = (directory.all_rows(&self.files)?, self.files.list()?);
            let filters: Vec<&Filter> = memory::collected(all.iter().map(|row| &row.filter))?;
            let places = collection::sliced::prefixes(&layout, &filters);
            let places = places.map(|(id, bytes)| (all[id as usize].place, bytes));
            self.files.staged(memory::collected(places)?.into_iter(), || {
                collection::sliced::Sliced::load(&layout, &filters, |id, out| {
                    self.files.read(all[id as usize].place, out, &list)
                })
            })
        })??;
        Ok(Sliced::new(sliced, self.files.clone(), directory, self.hasher.clone()))
    }

    /// Memory of the directory: now, or after all filters are saved to a file and opened from it.
    #[pyo3(signature = (*, saved=false))]
    fn size_in_bytes(&self, saved: bool) -> usize {
        self.directory().size_in_bytes(saved)
    }

    /// Writes all filters to an open file.
    fn write(
        &self,
        py: Python<'_>,
        descriptor: RawFd,
        utilities: PyReadonlyArray1<'_, f64>,
    ) -> PyResult<()> {
        let (directory, utilities) = (self.directory(), utilities.as_slice()?);
        if utilities.len() != directory.len() {
            let (count, given) = (directory.len(), utilities.len());
            return Err(PyValueError::new_err(format!(
                "utilities must have one number per filter: {count}, not {given}"
            )));
        }
        Ok(released(py, || {
            let mut out = Buffered::new(duplicate(descriptor)?)?;
            let hash = (self.hasher.id(), self.hasher.tag());
            frame::write(&directory, &self.files, hash, utilities, self.texts.as_ref(), &mut out)?;
            Result::Ok(out.flush()?)
        })??)
    }
}
