//! The directory of a collection: the sizes, place and name of each filter.
//!
//! It stays on disk. The directory of an opened file is read from that file: memory has the place of
//! the bits and levels of every 64th filter, and the other places follow from the records between.
//! An added filter is in the temporary file, after a header:
//!
//! ```text
//! record    32 bytes, as in a file; then the bytes of its name and of its document, 4 each
//! levels    8 bytes each
//! name, bits, document
//! ```
//!
//! Filters are found by name in tables of hashes: of an opened file in the temporary file, of added
//! filters in memory.

use super::super::files::Files;
use super::names::{NameTable, hash_name};
use crate::collection::{Filter, RECORD};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::memory::{self, TryGrow};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

/// Filters per stored place.
const GROUP: usize = 64;
/// Records that are read at a time.
const CHUNK: usize = 64 * GROUP;
/// Bytes of the header of an added filter before its levels.
const HEADER: usize = RECORD + 8;

/// A filter and where it is.
pub struct Row {
    pub filter: Filter,
    /// Where its bits are; its document follows them.
    pub place: u64,
    /// Bytes of its document.
    pub text: u32,
}

impl Row {
    /// Bytes of the filter and its document.
    pub fn bytes(&self) -> Result<u64> {
        Ok(self.filter.bytes()? + u64::from(self.text))
    }
}

/// Where the sections of an opened file begin.
#[derive(Clone, Copy, Default)]
pub struct Sections {
    pub records: u64,
    pub levels: u64,
    pub ends: u64,
    pub names: u64,
    /// The lengths of documents, if there are any.
    pub lengths: Option<u64>,
}

/// The directory of an opened file.
pub struct Base {
    pub file: File,
    pub sections: Sections,
    pub count: usize,
    /// Where the bits of every 64th filter begin, and how many levels come before its own.
    pub samples: Vec<(u64, u32)>,
    /// Levels of all filters.
    pub levels: u32,
    /// The table of names: its place in the temporary file, and its slots.
    pub table: (u64, u64),
}

impl Base {
    /// Stores where the bits of a filter begin, and how many levels come before its own.
    pub fn sample(&mut self, place: u64, levels: u32) -> Result<()> {
        if self.count.is_multiple_of(GROUP) {
            self.samples.try_push((place, levels))?;
        }
        self.count += 1;
        Ok(())
    }

    /// Filters from the first of a group on.
    fn rows(&self, files: &Files, first: usize, count: usize) -> Result<Vec<Row>> {
        let group = first / GROUP;
        let last = (first + count).div_ceil(GROUP);
        let (mut place, levels) = self.samples[group];
        let end = self.samples.get(last).map_or(self.levels, |&(_, levels)| levels);
        let read = |section: u64, start: usize, count: usize, size: usize| {
            let offset = section + (start * size) as u64;
            files.exact(&self.file, offset, (count * size) as u64)
        };
        let records = read(self.sections.records, first, count, RECORD)?;
        let all = end.saturating_sub(levels) as usize;
        let levels = read(self.sections.levels, levels as usize, all, 8)?;
        let lengths = match self.sections.lengths {
            Some(section) => read(section, first, count, 4)?,
            None => Vec::new(),
        };
        let (mut levels, _) = levels.as_chunks::<8>();
        let (records, _) = records.as_chunks::<RECORD>();
        let (lengths, _) = lengths.as_chunks::<4>();
        let row = |(i, record)| {
            let (filter, _) = Filter::from_record(record, &mut levels)?;
            let text = lengths.get(i).map_or(0, |&length| u32::from_le_bytes(length));
            let row = Row { filter, place, text };
            place += row.bytes()?;
            Ok(row)
        };
        memory::collected_ok(records.iter().enumerate().map(row))
    }

    fn row(&self, files: &Files, index: usize) -> Result<Row> {
        let first = index / GROUP * GROUP;
        let mut rows = self.rows(files, first, index + 1 - first)?;
        rows.pop().ok_or_else(missing)
    }

    fn name(&self, files: &Files, index: usize) -> Result<String> {
        let before = usize::from(index > 0);
        let offset = self.sections.ends + 4 * (index - before) as u64;
        let ends = files.exact(&self.file, offset, 4 + 4 * before as u64)?;
        let (ends, _) = ends.as_chunks::<4>();
        let end = |ends: Option<&[u8; 4]>| ends.map_or(0, |&end| u32::from_le_bytes(end));
        let (start, end) = (end(ends.first().filter(|_| index > 0)), end(ends.last()));
        let length = end.checked_sub(start).ok_or_else(missing)?;
        let offset = self.sections.names + u64::from(start);
        utf8(files.exact(&self.file, offset, length.into())?)
    }
}

fn missing() -> Error {
    Error::Format("the collection is damaged: its directory changed since it was opened".into())
}

fn utf8(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| missing())
}

/// Which filters of an opened file are left, as bits.
struct Live {
    words: Vec<u64>,
    /// How many are left before each word.
    before: Vec<u32>,
    count: usize,
}

impl Live {
    fn new(total: usize, live: impl Fn(usize) -> bool) -> Result<Live> {
        let (mut words, mut before, mut count) = (Vec::new(), Vec::new(), 0u32);
        for first in (0..total).step_by(64) {
            let set = (first..total.min(first + 64)).filter(|&index| live(index));
            let word = set.fold(0, |word, index| word | 1 << (index - first));
            before.try_push(count)?;
            words.try_push(word)?;
            count += u64::count_ones(word);
        }
        Ok(Live { words, before, count: count as usize })
    }

    fn contains(&self, index: usize) -> bool {
        self.words[index / 64] >> (index % 64) & 1 == 1
    }

    fn rank(&self, index: usize) -> usize {
        let below = self.words[index / 64] & ((1 << (index % 64)) - 1);
        self.before[index / 64] as usize + below.count_ones() as usize
    }

    fn select(&self, id: usize) -> usize {
        let word = self.before.partition_point(|&before| before as usize <= id) - 1;
        let rank = id - self.before[word] as usize;
        64 * word + crate::bits::select_plain(self.words[word], rank as u32) as usize
    }
}

/// The directory of a collection.
#[derive(Default)]
pub struct Directory {
    base: Option<Arc<Base>>,
    /// None: all filters of the base.
    live: Option<Arc<Live>>,
    /// The headers of added filters.
    added: Vec<u64>,
    names: NameTable,
}

impl Directory {
    /// The directory of an opened file.
    pub fn of(base: Base) -> Directory {
        Directory { base: Some(Arc::new(base)), ..Directory::default() }
    }

    /// A copy, which shares the filters of the opened file.
    pub fn copied(&self) -> Result<Directory> {
        Ok(Directory {
            base: self.base.clone(),
            live: self.live.clone(),
            added: memory::copied(&self.added)?,
            names: self.names.copied()?,
        })
    }

    /// Filters that are left of the opened file.
    fn based(&self) -> usize {
        match (&self.live, &self.base) {
            (Some(live), _) => live.count,
            (None, Some(base)) => base.count,
            (None, None) => 0,
        }
    }

    pub fn len(&self) -> usize {
        self.based() + self.added.len()
    }

    fn index(&self, id: usize) -> usize {
        self.live.as_ref().map_or(id, |live| live.select(id))
    }

    /// A filter by its number, or an error if there is none.
    pub fn row(&self, files: &Files, id: usize) -> Result<Row> {
        match id.checked_sub(self.based()) {
            Some(added) => self.added_row(files, *self.added.get(added).ok_or_else(missing)?),
            None => self.base.as_ref().ok_or_else(missing)?.row(files, self.index(id)),
        }
    }

    /// The name of a filter.
    pub fn name(&self, files: &Files, id: usize) -> Result<String> {
        match id.checked_sub(self.based()) {
            Some(added) => self.added_name(files, added),
            None => self.base.as_ref().ok_or_else(missing)?.name(files, self.index(id)),
        }
    }

    /// The filters with numbers in a range.
    pub fn rows(&self, files: &Files, ids: Range<usize>) -> Result<Vec<Row>> {
        let (based, mut rows) = (self.based(), memory::with_capacity(ids.len())?);
        if let Some(base) = self.base.as_ref().filter(|_| ids.start < ids.end.min(based)) {
            let (start, last) = (self.index(ids.start), self.index(ids.end.min(based) - 1));
            for first in (start / GROUP * GROUP..=last).step_by(CHUNK) {
                interrupt::check();
                let read = base.rows(files, first, CHUNK.min(last + 1 - first))?;
                let live = |index| self.live.as_ref().is_none_or(|live| live.contains(index));
                let read = (first..).zip(read).filter(|(index, _)| *index >= start && live(*index));
                rows.try_append(read.map(|(_, row)| row))?;
            }
        }
        let added = ids.start.max(based) - based..ids.end.max(based) - based;
        for &header in &self.added[added] {
            rows.try_push(self.added_row(files, header)?)?;
        }
        Ok(rows)
    }

    /// Calls `visit` with each name, in order.
    pub fn each_name(
        &self,
        files: &Files,
        mut visit: impl FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        if let Some(base) = &self.base {
            let ends = files.exact(&base.file, base.sections.ends, 4 * base.count as u64)?;
            let (ends, _) = ends.as_chunks::<4>();
            let ends = memory::collected(ends.iter().map(|&end| u32::from_le_bytes(end)))?;
            let length = ends.last().copied().unwrap_or(0);
            let names = utf8(files.exact(&base.file, base.sections.names, length.into())?)?;
            let mut start = 0;
            for (index, end) in ends.into_iter().map(|end| end as usize).enumerate() {
                if self.live.as_ref().is_none_or(|live| live.contains(index)) {
                    visit(names.get(start..end).ok_or_else(missing)?)?;
                }
                start = end;
            }
        }
        (0..self.added.len()).try_for_each(|added| visit(&self.added_name(files, added)?))
    }

    /// All filters, in order.
    pub fn all_rows(&self, files: &Files) -> Result<Vec<Row>> {
        self.rows(files, 0..self.len())
    }

    fn added_row(&self, files: &Files, header: u64) -> Result<Row> {
        let bytes = files.added(header, HEADER)?;
        let (record, rest) = bytes.split_first_chunk::<RECORD>().ok_or_else(missing)?;
        let (lengths, _) = rest.as_chunks::<4>();
        let [name, text] = [0, 1].map(|i| u32::from_le_bytes(lengths[i]));
        let levels = Filter::levels_in(record);
        let levels = files.added(header + HEADER as u64, 8 * levels)?;
        let (mut slots, _) = levels.as_chunks::<8>();
        let (filter, _) = Filter::from_record(record, &mut slots)?;
        let place = header + HEADER as u64 + levels.len() as u64 + u64::from(name);
        Ok(Row { filter, place, text })
    }

    fn added_name(&self, files: &Files, added: usize) -> Result<String> {
        let header = *self.added.get(added).ok_or_else(missing)?;
        let bytes = files.added(header, HEADER)?;
        let (record, rest) = bytes.split_first_chunk::<RECORD>().ok_or_else(missing)?;
        let length = rest.first_chunk::<4>().map_or(0, |&length| u32::from_le_bytes(length));
        let levels = 8 * Filter::levels_in(record) as u64;
        utf8(files.added(header + HEADER as u64 + levels, length as usize)?)
    }

    /// The first filter with this name.
    pub fn find(&self, files: &Files, name: &str) -> Result<Option<usize>> {
        let hash = hash_name(name);
        if let Some(base) = &self.base {
            let (place, slots) = base.table;
            let slot = |slot: u64| {
                let bytes = files.added(place + 8 * slot, 8)?;
                let (halves, _) = bytes.as_chunks::<4>();
                Ok([0, 1].map(|i| u32::from_le_bytes(halves[i])))
            };
            let found = NameTable::probe(slots, hash, slot, |index| {
                let index = index as usize;
                let live = self.live.as_ref().is_none_or(|live| live.contains(index));
                Ok(live && base.name(files, index)? == name)
            })?;
            if let Some(index) = found.map(|index| index as usize) {
                return Ok(Some(self.live.as_ref().map_or(index, |live| live.rank(index))));
            }
        }
        let found =
            self.names.find(hash, |added| Ok(self.added_name(files, added as usize)? == name))?;
        Ok(found.map(|added| self.based() + added as usize))
    }

    /// Adds a filter, its bits and its document.
    pub fn add(
        &mut self,
        files: &Files,
        name: &str,
        filter: &Filter,
        bits: &[u8],
        text: Option<&str>,
    ) -> Result<()> {
        let length = |what: &str, length: usize| {
            let message =
                format!("the {what} of a filter must have at most 2**32-1 bytes, not {length}");
            u32::try_from(length).map_err(|_| Error::Parameter(message))
        };
        if u32::try_from(self.len() + 1).is_err() {
            return Err(Error::Capacity("a collection has at most 2**32-1 filters".into()));
        }
        let text = text.unwrap_or_default();
        let levels = 8 * filter.levels.len();
        let mut bytes =
            memory::with_capacity(HEADER + levels + name.len() + bits.len() + text.len())?;
        self.added.reserve_more(1)?;
        bytes.extend_from_slice(&filter.record(0.0));
        bytes.extend_from_slice(&length("name", name.len())?.to_le_bytes());
        bytes.extend_from_slice(&length("text", text.len())?.to_le_bytes());
        filter.levels.iter().for_each(|slots| bytes.extend_from_slice(&slots.to_le_bytes()));
        for part in [name.as_bytes(), bits, text.as_bytes()] {
            bytes.extend_from_slice(part);
        }
        let header = files.append(&bytes)?;
        self.names.insert(hash_name(name), self.added.len() as u32)?;
        self.added.push(header);
        Ok(())
    }

    /// The filters in another order: `order[i]` is the number of filter i. None unless all were added
    /// and each has one place.
    pub fn reordered(&self, order: &[usize]) -> Result<Option<Directory>> {
        let mut places = memory::filled(self.added.len(), None)?;
        for (place, &added) in order.iter().enumerate() {
            let Some(known) = places.get_mut(added) else { return Ok(None) };
            *known = Some(place as u32);
        }
        if self.base.is_some() || order.len() != places.len() || places.contains(&None) {
            return Ok(None);
        }
        let added = memory::collected(order.iter().map(|&added| self.added[added]))?;
        let names = self.names.renumbered(|added| places.get(added as usize).copied().flatten())?;
        Ok(Some(Directory { added, names, ..Directory::default() }))
    }

    /// The filters except these, in ascending order.
    pub fn without(&self, gone: &[usize]) -> Result<Directory> {
        if gone.is_empty() {
            return self.copied();
        }
        let is_gone = |id: usize| gone.binary_search(&id).is_ok();
        let (based, mut rest) =
            (self.based(), Directory { base: self.base.clone(), ..Directory::default() });
        if let Some(base) = &self.base {
            let live = |index| match &self.live {
                Some(live) => live.contains(index) && !is_gone(live.rank(index)),
                None => !is_gone(index),
            };
            rest.live = Some(Arc::new(Live::new(base.count, live)?));
        }
        let mut places = memory::filled(self.added.len(), None)?;
        for (added, &header) in self.added.iter().enumerate() {
            if !is_gone(based + added) {
                places[added] = Some(rest.added.len() as u32);
                rest.added.try_push(header)?;
            }
        }
        rest.names =
            self.names.renumbered(|added| places.get(added as usize).copied().flatten())?;
        Ok(rest)
    }

    /// Memory: now, or after these filters are saved to a file and opened from it.
    pub fn size_in_bytes(&self, saved: bool) -> usize {
        if saved {
            return self.len().div_ceil(GROUP) * size_of::<(u64, u32)>();
        }
        let samples = self.base.as_ref().map_or(0, |base| size_of_val(&base.samples[..]));
        let live = self.live.as_ref().map_or(0, |live| 12 * live.words.len());
        samples + live + size_of_val(&self.added[..]) + self.names.size_in_bytes()
    }
}
