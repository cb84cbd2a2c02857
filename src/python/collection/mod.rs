//! Collections: full filters in files, prefixes in memory.
//!
//! `frame.rs` reads and writes the file, `resident.rs` holds the prefixes of a collection. The
//! prefixes of a text index are in `src/python/text.rs`.

mod frame;
mod resident;

pub use frame::TextOptions;
pub use resident::Resident;

use super::batch::Distinct;
use super::files::Files;
use super::handle::{hasher_of, named, open_regular};
use super::keys::{self, Secret, hasher};
use super::text::Sliced;
use crate::collection::{self, Filter, Kind};
use crate::error::{Error, Result};
use crate::hash::Hasher;
use crate::lock::RwLock;
use crate::text;
use frame::{Opened, Table};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::{BorrowedFd, RawFd};
use std::path::PathBuf;
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
        let (filter, bytes) = py.detach(build)?;
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
}

/// The full filters of a collection: those of an opened file, and those added since. The filters of
/// a text index are signatures of documents.
#[pyclass(frozen, module = "tamis._native")]
pub struct Filters {
    files: Arc<Files>,
    hasher: Hasher,
    table: RwLock<Arc<Table>>,
    texts: Option<TextOptions>,
}

impl Filters {
    fn table(&self) -> Arc<Table> {
        self.table.read().clone()
    }
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
        Ok(Filters { files, hasher, table: RwLock::default(), texts: texts.cloned() })
    }

    /// Opens a file, or its first `length` bytes; returns its filters and their utilities.
    #[staticmethod]
    #[pyo3(signature = (path, spill, key=None, texts=false, length=None))]
    fn open<'py>(
        py: Python<'py>,
        path: PathBuf,
        spill: RawFd,
        #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
        texts: bool,
        length: Option<u64>,
    ) -> PyResult<(Filters, Bound<'py, PyArray1<f64>>)> {
        let keyed = key.map(|key| hasher(0, Some(key))).transpose()?;
        let spill = duplicate(spill)?;
        let (file, whole) = open_regular(&path).map_err(|error| named(error, &path))?;
        let length = whole.min(length.unwrap_or(whole));
        let opened = py.detach(|| frame::read(file, length, spill, texts))?;
        let Opened { head, files, table, utilities, texts } = opened;
        let (hasher, table) = (hasher_of(&head, keyed)?, RwLock::new(Arc::new(table)));
        let filters = Filters { files: Arc::new(files), hasher, table, texts };
        Ok((filters, PyArray1::from_vec(py, utilities)))
    }

    fn __len__(&self) -> usize {
        self.table().filters.len()
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
        let kept = text.filter(|_| self.texts.as_ref().is_some_and(|texts| texts.keep_texts));
        let long = |_| {
            PyValueError::new_err(format!("the text of '{name}' takes more than 2**32-1 bytes"))
        };
        let length = kept.map(|text| u32::try_from(text.len())).transpose().map_err(long)?;
        Ok(py.detach(|| {
            let bytes = match kept {
                Some(text) => Cow::Owned([&full.bytes, text.as_bytes()].concat()),
                None => Cow::Borrowed(&full.bytes[..]),
            };
            let mut table = self.table.write();
            let place = self.files.append(&bytes)?;
            let table = Arc::make_mut(&mut table);
            table.push(full.filter.clone(), place, name)?;
            table.lengths.extend(length);
            Result::Ok(())
        })?)
    }

    /// The document of a filter, if documents are stored.
    fn text(&self, py: Python<'_>, id: usize) -> PyResult<Option<String>> {
        let table = self.table();
        let Some(&length) = table.lengths.get(id) else { return Ok(None) };
        let bytes = py.detach(|| {
            let mut bytes = vec![0; length as usize];
            let place = table.places[id] + table.filters[id].bytes()?;
            self.files.read_alone(place, &mut bytes)?;
            Result::Ok(bytes)
        })?;
        let damaged =
            |_| Error::Format("the text index is damaged: a text is not valid UTF-8".into());
        Ok(Some(String::from_utf8(bytes).map_err(damaged)?))
    }

    /// The filters except these.
    fn without(&self, ids: Vec<usize>) -> PyResult<Filters> {
        let table = self.table();
        let mut rest = Table::default();
        let gone: HashSet<usize> = ids.into_iter().collect();
        for (i, filter) in table.filters.iter().enumerate().filter(|(i, _)| !gone.contains(i)) {
            rest.push(filter.clone(), table.places[i], table.name(i).unwrap_or_default())?;
            rest.lengths.extend(table.lengths.get(i));
        }
        let (files, hasher, texts) = (self.files.clone(), self.hasher.clone(), self.texts.clone());
        Ok(Filters { files, hasher, table: RwLock::new(Arc::new(rest)), texts })
    }

    fn name(&self, id: usize) -> PyResult<String> {
        let table = self.table();
        let missing = || PyIndexError::new_err(format!("there is no filter with number {id}"));
        table.name(id).map(str::to_owned).ok_or_else(missing)
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.table().find(name)
    }

    fn sizes(&self, py: Python<'_>) -> PyResult<FilterSizes> {
        let table = self.table();
        let kinds = table.filters.iter().map(|filter| filter.kind as u8);
        let hashes = table.filters.iter().map(|filter| filter.hashes.into());
        let counts = table.filters.iter().map(|filter| filter.count as i64);
        let (mut bits, mut codes, mut slots, mut widths) = (vec![], vec![], vec![], vec![]);
        for filter in &table.filters {
            let (before, column, width) = filter.columns()?;
            bits.push(filter.bits()? as i64);
            codes.push(before as i64);
            slots.push(column as i64);
            widths.push(width as i64);
        }
        Ok(FilterSizes {
            kinds: PyArray1::from_iter(py, kinds).unbind(),
            hashes: PyArray1::from_iter(py, hashes).unbind(),
            bits: PyArray1::from_vec(py, bits).unbind(),
            codes: PyArray1::from_vec(py, codes).unbind(),
            slots: PyArray1::from_vec(py, slots).unbind(),
            widths: PyArray1::from_vec(py, widths).unbind(),
            counts: PyArray1::from_iter(py, counts).unbind(),
        })
    }

    /// Loads the first `kept[i]` bits of each filter `order[i]`.
    fn resident(
        &self,
        py: Python<'_>,
        order: PyReadonlyArray1<'_, u32>,
        kept: PyReadonlyArray1<'_, u64>,
    ) -> PyResult<Resident> {
        let (order, kept) = (order.as_slice()?, kept.as_slice()?);
        let table = self.table();
        if order.len() != kept.len() || order.iter().any(|&id| id as usize >= table.filters.len()) {
            return Err(PyValueError::new_err(
                "order must have one number of a filter per element of kept",
            ));
        }
        let resident = py.detach(|| {
            let wanted = order.iter().zip(kept);
            let wanted = wanted.map(|(&id, &kept)| (id, &table.filters[id as usize], kept));
            let list = self.files.list()?;
            collection::Resident::load(wanted, |id, out| {
                self.files.read(table.places[id as usize], out, &list)
            })
        })?;
        Ok(Resident::new(resident, self.files.clone(), table, self.hasher.clone()))
    }

    /// Loads signatures in blocks: documents and rows per block, ids and ranks of the documents.
    fn sliced(
        &self,
        py: Python<'_>,
        documents: PyReadonlyArray1<'_, u8>,
        rows: PyReadonlyArray1<'_, u32>,
        ids: PyReadonlyArray1<'_, u32>,
        ranks: PyReadonlyArray1<'_, u32>,
    ) -> PyResult<Sliced> {
        let (documents, rows) = (documents.as_slice()?, rows.as_slice()?);
        let (ids, ranks) = (ids.as_slice()?, ranks.as_slice()?);
        let (table, blocks) = (self.table(), text::Blocks { documents, rows, ids, ranks });
        let sliced = py.detach(|| {
            let list = self.files.list()?;
            text::Sliced::load(&blocks, &table.filters, |id, out| {
                self.files.read(table.places[id as usize], out, &list)
            })
        })?;
        Ok(Sliced { sliced, hasher: self.hasher.clone() })
    }

    /// Memory of names, sizes and positions, without any bits of the filters; `blocks` is the number
    /// of blocks of a text index.
    #[pyo3(signature = (blocks=None))]
    fn size_in_bytes(&self, blocks: Option<usize>) -> usize {
        let table = self.table();
        let levels: usize = table.filters.iter().map(|f| size_of_val(&f.levels[..])).sum();
        let each = size_of::<Filter>() + size_of::<u64>() + size_of::<u32>();
        let own = table.filters.len() * each + table.names.len() + levels;
        let texts = size_of_val(&table.lengths[..]);
        let found = match blocks {
            Some(blocks) => text::Sliced::least_bytes(blocks, table.filters.len()),
            None => collection::Resident::least_bytes(&table.filters),
        };
        own + texts + found
    }

    /// Writes all filters to an open file.
    fn write(
        &self,
        py: Python<'_>,
        descriptor: RawFd,
        utilities: PyReadonlyArray1<'_, f64>,
    ) -> PyResult<()> {
        let (table, utilities) = (self.table(), utilities.as_slice()?);
        if utilities.len() != table.filters.len() {
            return Err(PyValueError::new_err("utilities must have one number per filter"));
        }
        Ok(py.detach(|| {
            let mut out = BufWriter::with_capacity(1 << 16, duplicate(descriptor)?);
            let hash = (self.hasher.id(), self.hasher.tag());
            frame::write(&table, &self.files, hash, utilities, self.texts.as_ref(), &mut out)?;
            Result::Ok(out.flush()?)
        })?)
    }
}
