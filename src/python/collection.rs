//! Collections: the full filters in files, their prefixes in memory.

use super::batch::{self, Distinct};
use super::files::{Files, Tail};
use super::handle::{hasher_of, named};
use super::keys::{self, hash_object, hasher};
use crate::collection::{self, Filter, Kind, PIECE, RECORD, may_hold};
use crate::error::{Error, Result};
use crate::format::{self, Head, Part, SECTION_BITS, SECTION_PIECES};
use crate::hash::{Hash128, Hasher};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::{BorrowedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use xxhash_rust::xxh3::xxh3_64;

/// Probes, keys times filters, from which the keys are spread over the cores.
const THREADED: usize = 1 << 24;
/// Keys that are asked together of as many filters as a cache holds.
const TOGETHER: usize = 256;

/// What is known of each filter: its sizes, where it is, its name.
#[derive(Clone, Default)]
struct Table {
    filters: Vec<Filter>,
    places: Vec<u64>,
    ends: Vec<u32>,
    names: String,
}

impl Table {
    fn name(&self, id: usize) -> Option<&str> {
        let end = *self.ends.get(id)? as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        self.names.get(start..end)
    }

    fn push(&mut self, filter: Filter, place: u64, name: &str) -> Result<()> {
        let end = u32::try_from(self.names.len() + name.len());
        let end = end.map_err(|_| Error::Capacity("the names exceed 2**32 bytes".into()))?;
        if u32::try_from(self.filters.len() + 1).is_err() {
            return Err(Error::Capacity("a collection has at most 2**32-1 filters".into()));
        }
        self.names.push_str(name);
        self.ends.push(end);
        self.filters.push(filter);
        self.places.push(place);
        Ok(())
    }
}

/// The full filters of a collection: those of a file that was opened, and those added since.
#[pyclass(frozen, module = "tamis._native")]
pub struct Filters {
    files: Arc<Files>,
    hasher: Hasher,
    table: RwLock<Arc<Table>>,
}

impl Filters {
    fn table(&self) -> Arc<Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn over(files: Arc<Files>, hasher: Hasher, table: Table) -> Filters {
        Filters { files, hasher, table: RwLock::new(Arc::new(table)) }
    }
}

fn duplicate(descriptor: RawFd) -> std::io::Result<File> {
    // SAFETY: the caller keeps the descriptor open during this call.
    unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned().map(File::from)
}

#[pymethods]
impl Filters {
    /// None yet; what is added goes to the open file `spill`.
    #[new]
    #[pyo3(signature = (spill, seed=0, key=None))]
    fn new(
        spill: RawFd,
        #[pyo3(from_py_with = keys::seed)] seed: u64,
        key: Option<&[u8]>,
    ) -> PyResult<Filters> {
        let files = Arc::new(Files::new(duplicate(spill)?));
        Ok(Filters::over(files, hasher(seed, key)?, Table::default()))
    }

    /// Those of a file, and their utilities.
    #[staticmethod]
    #[pyo3(signature = (path, spill, key=None))]
    fn open<'py>(
        py: Python<'py>,
        path: PathBuf,
        spill: RawFd,
        key: Option<&[u8]>,
    ) -> PyResult<(Filters, Bound<'py, PyArray1<f64>>)> {
        let keyed = key.map(|key| hasher(0, Some(key))).transpose()?;
        let spill = duplicate(spill)?;
        let file = File::open(&path).map_err(|error| named(error, &path))?;
        let length = file.metadata().map_err(|error| named(error, &path))?.len();
        let (head, files, table, utilities) = py.detach(|| read(file, length, spill))?;
        let hasher = hasher_of(&head, keyed)?;
        let utilities = PyArray1::from_vec(py, utilities);
        Ok((Filters::over(Arc::new(files), hasher, table), utilities))
    }

    fn __len__(&self) -> usize {
        self.table().filters.len()
    }

    #[getter]
    fn seed(&self) -> Option<u64> {
        (self.hasher.id() == crate::hash::HASH_SEEDED).then(|| self.hasher.tag())
    }

    /// Builds the full filter of a set and adds it to the spill.
    fn add(
        &self,
        py: Python<'_>,
        name: &str,
        size: (String, u8, u64, Vec<u64>),
        keys: &Distinct,
    ) -> PyResult<()> {
        let (kind, hashes, bits, levels) = size;
        let kind = Kind::named(&kind)
            .ok_or_else(|| PyValueError::new_err(format!("kind is '{kind}'; it is not known")))?;
        if !self.hasher.same_as(&keys.hasher) {
            let message = "the keys are hashed otherwise than the collection's".into();
            return Err(Error::Incompatible(message).into());
        }
        Ok(py.detach(|| {
            let (filter, bytes) = Filter::build(kind, hashes, bits, &levels, &keys.hashes)?;
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            let place = self.files.append(&bytes)?;
            Arc::make_mut(&mut table).push(filter, place, name)
        })?)
    }

    /// The same filters without one of them.
    fn without(&self, id: usize) -> PyResult<Filters> {
        let table = self.table();
        let mut rest = Table::default();
        for (i, filter) in table.filters.iter().enumerate().filter(|(i, _)| *i != id) {
            rest.push(filter.clone(), table.places[i], table.name(i).unwrap_or_default())?;
        }
        Ok(Filters::over(self.files.clone(), self.hasher.clone(), rest))
    }

    fn name(&self, id: usize) -> PyResult<String> {
        let table = self.table();
        let missing = || PyIndexError::new_err(format!("there is no filter {id}"));
        table.name(id).map(str::to_owned).ok_or_else(missing)
    }

    fn find(&self, name: &str) -> Option<usize> {
        let table = self.table();
        (0..table.filters.len()).find(|&id| table.name(id) == Some(name))
    }

    /// Per filter: kind, hashes or columns, bits of all, bits before the columns, bits of a column,
    /// coefficients of a row, keys.
    #[expect(clippy::type_complexity)] // seven columns of one table
    fn tables<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(
        Bound<'py, PyArray1<u8>>,
        Bound<'py, PyArray1<u8>>,
        Bound<'py, PyArray1<i64>>,
        Bound<'py, PyArray1<i64>>,
        Bound<'py, PyArray1<i64>>,
        Bound<'py, PyArray1<i64>>,
        Bound<'py, PyArray1<i64>>,
    )> {
        let table = self.table();
        let kinds = table.filters.iter().map(|filter| filter.kind as u8);
        let hashes = table.filters.iter().map(|filter| filter.hashes);
        let counts = table.filters.iter().map(|filter| filter.count as i64);
        let (mut bits, mut codes, mut slots, mut widths) = (vec![], vec![], vec![], vec![]);
        for filter in &table.filters {
            let (before, column, width) = filter.columns()?;
            bits.push(filter.bits()? as i64);
            codes.push(before as i64);
            slots.push(column as i64);
            widths.push(width as i64);
        }
        Ok((
            PyArray1::from_iter(py, kinds),
            PyArray1::from_iter(py, hashes),
            PyArray1::from_vec(py, bits),
            PyArray1::from_vec(py, codes),
            PyArray1::from_vec(py, slots),
            PyArray1::from_vec(py, widths),
            PyArray1::from_iter(py, counts),
        ))
    }

    /// Reads the first `kept[i]` bits of filter `order[i]`, for all of them.
    fn resident(
        &self,
        py: Python<'_>,
        order: PyReadonlyArray1<'_, u32>,
        kept: PyReadonlyArray1<'_, u64>,
    ) -> PyResult<Resident> {
        let (order, kept) = (order.as_slice()?, kept.as_slice()?);
        let table = self.table();
        if order.len() != kept.len() || order.iter().any(|&id| id as usize >= table.filters.len()) {
            return Err(PyValueError::new_err("order names other filters than there are"));
        }
        let resident = py.detach(|| {
            let wanted = order.iter().zip(kept);
            let wanted = wanted.map(|(&id, &kept)| (id, &table.filters[id as usize], kept));
            let list = self.files.list()?;
            collection::Resident::load(wanted, |id, out| {
                self.files.read(table.places[id as usize], out, &list)
            })
        })?;
        let (files, hasher) = (self.files.clone(), self.hasher.clone());
        Ok(Resident { resident, files, table, hasher, reads: AtomicU64::new(0) })
    }

    /// Memory of what is known of each filter, and of what finds its prefix, without any bit of it.
    #[getter]
    fn size_in_bytes(&self) -> usize {
        let table = self.table();
        let levels: usize = table.filters.iter().map(|f| size_of_val(&f.levels[..])).sum();
        let each = size_of::<Filter>() + size_of::<u64>() + size_of::<u32>();
        let own = table.filters.len() * each + table.names.len() + levels;
        own + collection::Resident::least_bytes(&table.filters)
    }

    /// Writes the frame of all filters to an open file.
    fn write(
        &self,
        py: Python<'_>,
        descriptor: RawFd,
        utilities: PyReadonlyArray1<'_, f64>,
    ) -> PyResult<()> {
        let (table, utilities) = (self.table(), utilities.as_slice()?);
        if utilities.len() != table.filters.len() {
            return Err(PyValueError::new_err("utilities are not one per filter"));
        }
        py.detach(|| {
            let mut out = BufWriter::with_capacity(1 << 16, duplicate(descriptor)?);
            let hash = (self.hasher.id(), self.hasher.tag());
            write(&table, &self.files, hash, utilities, &mut out)?;
            out.flush()?;
            PyResult::Ok(())
        })
    }
}

/// Opens a frame up to its bits, which are read when they are wanted, piece by piece.
fn read(file: File, length: u64, spill: File) -> Result<(Head, Files, Table, Vec<f64>)> {
    let damaged = |what: &str| Error::Format(format!("the collection is damaged: {what}"));
    let mut files = Files::new(spill);
    let start = files.exact(&file, 0, length.min(1 << 12))?;
    let (head, parts, mut end) = format::read_header(&start, length)?;
    if head.kind != collection::KIND {
        return Err(Error::Format(format!("kind {} is no collection: use tamis.load", head.kind)));
    }
    let kinds: Vec<(u32, u32)> = parts.iter().map(|part| (part.kind, part.piece)).collect();
    let (&[filters], true) = (&head.parameters[..], kinds == sections().map(|s| (s, piece(s))))
    else {
        return Err(damaged("its sections are not those of one"));
    };
    let mut contents = Vec::new();
    for part in &parts {
        let gap = files.exact(&file, end as u64, part.offset - end as u64)?;
        if gap.iter().any(|&byte| byte != 0) {
            return Err(damaged("there are bytes between its sections"));
        }
        end = (part.offset + part.length) as usize;
        if part.kind == SECTION_BITS {
            break;
        }
        let content = files.exact(&file, part.offset, part.length)?;
        if xxh3_64(&content) != part.checksum {
            return Err(damaged("a section's checksum differs"));
        }
        contents.push(content);
    }
    let (list, bits) = (parts[4], parts[5]);
    if list.checksum != bits.checksum || list.length != 8 * bits.length.div_ceil(1 << PIECE) {
        return Err(damaged("its pieces are not listed"));
    }
    let (table, utilities) = directory(&contents, filters, bits.length)?;
    if head.count != total(&table) || head.capacity != filters {
        return Err(damaged("it has another number of keys"));
    }
    files.set_base(file, bits.offset, bits.length, list.offset);
    Ok((head, files, table, utilities))
}

/// Reads directory, levels, ends and names.
fn directory(contents: &[Vec<u8>], filters: u64, length: u64) -> Result<(Table, Vec<f64>)> {
    let damaged = |what: &str| Error::Format(format!("the collection is damaged: {what}"));
    let [records, levels, ends, names, _] = contents else {
        return Err(damaged("it lacks sections"));
    };
    let (records, rest) = records.as_chunks::<RECORD>();
    let (mut levels, loose) = levels.as_chunks::<8>();
    let (ends, odd) = ends.as_chunks::<4>();
    let agree = records.len() as u64 == filters && ends.len() == records.len();
    if !agree || !rest.is_empty() || !loose.is_empty() || !odd.is_empty() {
        return Err(damaged("its directory is not as long as it says"));
    }
    let names = str::from_utf8(names).map_err(|_| damaged("a name is not UTF-8"))?;
    let (mut table, mut utilities) = (Table::default(), Vec::with_capacity(records.len()));
    let (mut place, mut start) = (0u64, 0);
    for (record, end) in records.iter().zip(ends) {
        let (filter, utility) = Filter::from_record(record, &mut levels)?;
        let end = u32::from_le_bytes(*end) as usize;
        let name = names.get(start..end).ok_or_else(|| damaged("a name is not where it is"))?;
        let bytes = filter.bytes()?;
        table.push(filter, place, name)?;
        place = place
            .checked_add(bytes)
            .filter(|&place| place <= length)
            .ok_or_else(|| damaged("a filter reaches past the end"))?;
        start = end;
        utilities.push(utility);
    }
    if place != length || start != names.len() || !levels.is_empty() {
        return Err(damaged("it holds more than its filters"));
    }
    Ok((table, utilities))
}

/// The sections of a frame, in order.
fn sections() -> [u32; 6] {
    use collection::{SECTION_DIRECTORY, SECTION_ENDS, SECTION_LEVELS, SECTION_NAMES};
    let before = [SECTION_DIRECTORY, SECTION_LEVELS, SECTION_ENDS, SECTION_NAMES];
    let [directory, levels, ends, names] = before;
    [directory, levels, ends, names, SECTION_PIECES, SECTION_BITS]
}

fn piece(section: u32) -> u32 {
    if section == SECTION_BITS { PIECE } else { 0 }
}

fn total(table: &Table) -> u64 {
    table.filters.iter().fold(0, |sum, filter| sum.saturating_add(filter.count))
}

/// Writes a frame: the bits are read twice, once for their checksums.
fn write(
    table: &Table,
    files: &Files,
    (hash, tag): (u16, u64),
    utilities: &[f64],
    out: &mut impl Write,
) -> PyResult<()> {
    let filters = table.filters.iter().zip(utilities);
    let records: Vec<u8> = filters.flat_map(|(filter, &utility)| filter.record(utility)).collect();
    let levels = table.filters.iter().flat_map(|filter| filter.levels.iter());
    let levels: Vec<u8> = levels.flat_map(|slots| slots.to_le_bytes()).collect();
    let ends: Vec<u8> = table.ends.iter().flat_map(|end| end.to_le_bytes()).collect();
    let mut pieces = Vec::new();
    let (mut waiting, mut length) = (Vec::with_capacity(2 << PIECE), 0);
    each_filter(table, files, |mut bytes| {
        length += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min((1 << PIECE) - waiting.len()));
            waiting.extend_from_slice(now);
            bytes = later;
            if waiting.len() == 1 << PIECE {
                pieces.extend_from_slice(&xxh3_64(&waiting).to_le_bytes());
                waiting.clear();
            }
        }
        Ok(())
    })?;
    if !waiting.is_empty() {
        pieces.extend_from_slice(&xxh3_64(&waiting).to_le_bytes());
    }
    let contents = [&records[..], &levels, &ends, table.names.as_bytes(), &pieces];
    let lengths = contents.iter().map(|content| content.len() as u64).chain([length]);
    let checksums = contents.iter().map(|content| xxh3_64(content)).chain([xxh3_64(&pieces)]);
    let parts = sections().into_iter().zip(lengths).zip(checksums);
    let part =
        |((kind, length), checksum)| Part { kind, piece: piece(kind), offset: 0, length, checksum };
    let parts: Vec<Part> = parts.map(part).collect();
    let filters = table.filters.len() as u64;
    let parameters = vec![filters];
    let count = total(table);
    let kind = collection::KIND;
    let head = Head { kind, hash, tag, count, capacity: filters, parameters };
    let header = format::header(&head, &parts);
    out.write_all(&header)?;
    let mut end = header.len();
    let mut pad = |out: &mut dyn Write, length: usize| {
        let zeros = end.next_multiple_of(crate::bits::LINE) - end;
        end += zeros + length;
        out.write_all(&[0; crate::bits::LINE][..zeros])
    };
    for content in contents {
        pad(out, content.len())?;
        out.write_all(content)?;
    }
    pad(out, 0)?;
    each_filter(table, files, |bytes| Ok(out.write_all(bytes)?))
}

/// Every filter's bytes in order, in parts.
fn each_filter(
    table: &Table,
    files: &Files,
    mut look: impl FnMut(&[u8]) -> PyResult<()>,
) -> PyResult<()> {
    let list = files.list()?;
    let mut buffer = Vec::new();
    for (filter, &place) in table.filters.iter().zip(&table.places) {
        let (mut done, bytes) = (0, filter.bytes()?);
        while done < bytes {
            buffer.resize((bytes - done).min(1 << 20) as usize, 0);
            files.read(place + done, &mut buffer, &list)?;
            look(&buffer)?;
            done += buffer.len() as u64;
        }
    }
    Ok(())
}

/// The prefixes of a collection's filters in memory, the most asked first.
#[pyclass(frozen, module = "tamis._native")]
pub struct Resident {
    resident: collection::Resident,
    files: Arc<Files>,
    table: Arc<Table>,
    hasher: Hasher,
    /// Filters whose tails were read.
    reads: AtomicU64,
}

impl Resident {
    /// Whether what was cut off a filter allows the key too.
    fn tail_allows(&self, asked: &collection::Asked, found: collection::Found) -> Result<bool> {
        let filter = &self.table.filters[found.id as usize];
        let bits = filter.bits()?;
        if found.kept >= bits {
            return Ok(true);
        }
        self.reads.fetch_add(1, Relaxed);
        let mut tail = Tail::new(&self.files, self.table.places[found.id as usize]);
        may_hold(filter, asked, found.kept..bits, &mut tail)
    }

    fn ask(&self, hashes: &[Hash128], limit: usize, hybrid: bool) -> Result<(Vec<u32>, Vec<u32>)> {
        let (mut counts, mut pairs) = (vec![0u32; hashes.len()], Vec::new());
        let mut failed = Ok(());
        for (chunk, hashes) in hashes.chunks(TOGETHER).enumerate() {
            let first = (chunk * TOGETHER) as u32;
            let before = pairs.len();
            self.resident.candidates_many(hashes, |found| {
                if hybrid {
                    let asked = self.resident.asked(hashes[found.key as usize]);
                    match self.tail_allows(&asked, found) {
                        Ok(true) => {}
                        Ok(false) => return true,
                        Err(error) => {
                            failed = Err(error);
                            return false;
                        }
                    }
                }
                let count = &mut counts[(first + found.key) as usize];
                *count += 1;
                pairs.push((found.key, found.id));
                (*count as usize) < limit
            });
            // By key; within one they came in order of utility.
            pairs[before..].sort_by_key(|&(key, _)| key);
        }
        failed?;
        Ok((counts, pairs.into_iter().map(|(_, id)| id).collect()))
    }
}

#[pymethods]
impl Resident {
    /// The filters that may hold a key, the most asked first.
    fn candidates<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        limit: usize,
        hybrid: bool,
    ) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let (hash, _) = hash_object(&self.hasher, key).map_err(|reason| reason.named("key"))?;
        let mut ids = Vec::new();
        if limit > 0 {
            py.detach(|| {
                let asked = self.resident.asked(hash);
                let mut failed = Ok(());
                self.resident.candidates(&asked, |found| {
                    let allowed = if hybrid { self.tail_allows(&asked, found) } else { Ok(true) };
                    match allowed {
                        Ok(true) => ids.push(found.id),
                        Ok(false) => {}
                        Err(error) => failed = Err(error),
                    }
                    ids.len() < limit && failed.is_ok()
                });
                failed
            })?;
        }
        Ok(PyArray1::from_vec(py, ids))
    }

    /// The same for many keys: where the filters of each key end, and all of them.
    #[expect(clippy::type_complexity)] // two arrays
    fn candidates_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        limit: usize,
        hybrid: bool,
    ) -> PyResult<(Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<u32>>)> {
        let hashes = batch::hashes(py, &self.hasher, keys)?;
        let answers = py.detach(|| {
            if limit == 0 {
                return Ok(vec![(vec![0; hashes.len()], Vec::new())]);
            }
            let work = hashes.len().saturating_mul(self.resident.len());
            let most = hashes.len().div_ceil(TOGETHER).max(1);
            let threads = match work {
                ..THREADED => 1,
                _ => std::thread::available_parallelism().map_or(1, usize::from).min(most),
            };
            let share = hashes.len().div_ceil(threads).max(1);
            std::thread::scope(|scope| {
                let ask = |part| self.ask(part, limit, hybrid);
                let mut parts = hashes.chunks(share);
                let own = parts.next().unwrap_or_default();
                let others: Vec<_> = parts.map(|part| scope.spawn(move || ask(part))).collect();
                let others = others.into_iter().map(|thread| match thread.join() {
                    Ok(answer) => answer,
                    Err(panic) => std::panic::resume_unwind(panic),
                });
                std::iter::once(ask(own)).chain(others).collect::<Result<Vec<_>>>()
            })
        })?;
        let mut ends = vec![0];
        let mut ids = Vec::new();
        for (counts, found) in answers {
            for count in counts {
                ends.push(ends[ends.len() - 1] + i64::from(count));
            }
            ids.extend(found);
        }
        Ok((PyArray1::from_vec(py, ends), PyArray1::from_vec(py, ids)))
    }

    /// Bits of all prefixes.
    #[getter]
    fn bits(&self) -> u64 {
        self.resident.bits()
    }

    /// How many times the rest of a filter was read from the file.
    #[getter]
    fn tail_reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }
}
