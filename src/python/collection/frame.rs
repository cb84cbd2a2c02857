//! The file of a collection or of a text index, which is a collection with texts. Opening reads
//! everything except the filters' bits; writing streams them.

use super::super::files::{Files, Object};
use super::directory::{Base, Directory, Row, Sections};
use super::names::{NameTable, hash_name};
use crate::bits::LINE;
use crate::collection::{self, Filter, Kind, PIECE, RECORD};
use crate::error::{Error, Result};
use crate::format::{self, Head, Part, SECTION_BITS, SECTION_PIECES};
use crate::memory::{self, TryGrow};
use crate::text;
use pyo3::prelude::*;
use std::fs::File;
use std::io::Write;
use xxhash_rust::xxh3::xxh3_64;

/// How a text index was built.
#[pyclass(frozen, get_all, module = "tamis._native")]
#[derive(Clone, PartialEq)]
pub struct TextOptions {
    /// Whether terms come from the caller's tokenizer instead of [`text::words`].
    pub own_tokenizer: bool,
    /// Stop words, one per line.
    pub stop_words: String,
    /// Whether the file holds the documents.
    pub keep_texts: bool,
}

#[pymethods]
impl TextOptions {
    #[new]
    fn new(own_tokenizer: bool, stop_words: String, keep_texts: bool) -> TextOptions {
        TextOptions { own_tokenizer, stop_words, keep_texts }
    }
}

/// An opened file.
pub struct Opened {
    pub head: Head,
    pub files: Files,
    pub directory: Directory,
    pub utilities: Vec<f64>,
    pub texts: Option<TextOptions>,
}

/// Bytes that the header of a frame has at most.
pub const MAX_HEADER: u64 = 1 << 12;

fn damaged(what: &str) -> Error {
    Error::Format(format!("the collection is damaged: {what}"))
}

/// The section types of a frame, in order.
fn sections(texts: bool) -> Vec<u32> {
    use collection::{SECTION_DIRECTORY, SECTION_ENDS, SECTION_LEVELS, SECTION_NAMES};
    let mut sections = vec![SECTION_DIRECTORY, SECTION_LEVELS, SECTION_ENDS, SECTION_NAMES];
    if texts {
        sections.extend([text::SECTION_LENGTHS, text::SECTION_STOPS]);
    }
    sections.extend([SECTION_PIECES, SECTION_BITS]);
    sections
}

fn piece(section: u32) -> u32 {
    if section == SECTION_BITS { PIECE } else { 0 }
}

/// Where the bits of a frame begin, by its first bytes.
pub fn bits_offset(start: &[u8], length: u64) -> Result<u64> {
    let (_, parts, _) = format::read_header(start, length)?;
    parts
        .last()
        .filter(|part| part.kind == SECTION_BITS)
        .map(|part| part.offset)
        .ok_or_else(|| damaged("it has the wrong sections"))
}

/// Where a frame is in a file.
#[derive(Clone, Copy)]
pub struct Place {
    /// Where it begins.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// Checks a frame except its bits, which are read later, piece by piece. Of an `object`, the file has
/// everything before the bits.
pub fn read(
    file: File,
    object: Option<Object>,
    place: Place,
    spill: File,
    texts: bool,
) -> Result<Opened> {
    let mut files = Files::new(spill);
    let start = files.exact(&file, place.offset, place.length.min(MAX_HEADER))?;
    let (head, mut parts, header_end) = format::read_header(&start, place.length)?;
    let mut end = place.offset + header_end as u64;
    parts.iter_mut().for_each(|part| part.offset += place.offset);
    expect_kind(head.kind, texts)?;
    let required = parts.iter().filter(|part| !part.is_optional());
    let kinds = required.map(|part| (part.kind, part.piece));
    if !kinds.eq(sections(texts).into_iter().map(|section| (section, piece(section)))) {
        return Err(damaged("it has the wrong sections"));
    }
    if parts.last().is_some_and(Part::is_optional) {
        return Err(damaged("a section follows its bits"));
    }
    let mut contents = Vec::new();
    for part in &parts {
        let gap = files.exact(&file, end, part.offset - end)?;
        if gap.iter().any(|&byte| byte != 0) {
            return Err(damaged("its sections are not padded with zeros"));
        }
        end = part.offset + part.length;
        if part.kind == SECTION_BITS {
            break;
        }
        let content = files.exact(&file, part.offset, part.length)?;
        if xxh3_64(&content) != part.checksum {
            return Err(damaged("the checksum of a section does not match"));
        }
        if !part.is_optional() {
            contents.push(content);
        }
    }
    parts.retain(|part| !part.is_optional());
    let (list, bits) = (parts[parts.len() - 2], parts[parts.len() - 1]);
    if list.checksum != bits.checksum || list.length != 8 * bits.length.div_ceil(1 << PIECE) {
        return Err(damaged("the checksums of its pieces are missing"));
    }
    let options = if texts { Some(read_texts(&head.parameters, &contents)?) } else { None };
    let expected = if texts { 3 } else { 1 };
    let filters = match head.parameters[..] {
        [filters, ..] if head.parameters.len() == expected => filters,
        _ => return Err(damaged("it has the wrong number of parameters")),
    };
    let [records, levels, ends, names] = [0, 1, 2, 3].map(|i| parts[i].offset);
    let kept = options.as_ref().is_some_and(|texts| texts.keep_texts);
    let lengths = kept.then(|| parts[4].offset);
    let sections = Sections { records, levels, ends, names, lengths };
    let own = file.try_clone().map_err(|error| damaged(&error.to_string()))?;
    let table = (0, 0);
    let base = Base { file: own, sections, count: 0, samples: Vec::new(), levels: 0, table };
    let checked = check_directory(&contents, filters, bits.length, options.as_ref(), base)?;
    let Checked { mut base, utilities, keys, names } = checked;
    if head.count != keys || head.capacity != filters {
        return Err(damaged("the number of keys or filters does not match"));
    }
    base.table = (files.append(&names.to_bytes()?)?, names.slots());
    files.set_base(file, object, bits.offset, bits.length, list.offset);
    let directory = Directory::of(base);
    Ok(Opened { head, files, directory, utilities, texts: options })
}

fn expect_kind(kind: u16, texts: bool) -> Result<()> {
    let message = match (kind, texts) {
        (collection::KIND, false) | (text::KIND, true) => return Ok(()),
        (collection::KIND, true) => {
            "this is a collection: open it with tamis.Collection.open".into()
        }
        (text::KIND, false) => text::OPENS_IT.into(),
        _ => format!("kind {kind} is not a collection: open it with tamis.load"),
    };
    Err(Error::Format(message))
}

fn read_texts(parameters: &[u64], contents: &[Vec<u8>]) -> Result<TextOptions> {
    let (&[_, words @ 0..=1, kept @ 0..=1], [_, _, _, _, _, stops, _]) = (parameters, contents)
    else {
        return Err(damaged("its text options are invalid"));
    };
    let stops = str::from_utf8(stops).map_err(|_| damaged("a stop word is not UTF-8"))?;
    Ok(TextOptions { own_tokenizer: words == 0, stop_words: stops.into(), keep_texts: kept == 1 })
}

/// Totals over all filters of a valid directory.
struct Checked {
    base: Base,
    utilities: Vec<f64>,
    keys: u64,
    names: NameTable,
}

/// Checks the directory, levels, names and lengths of documents.
fn check_directory(
    contents: &[Vec<u8>],
    filters: u64,
    length: u64,
    texts: Option<&TextOptions>,
    mut base: Base,
) -> Result<Checked> {
    let [records, levels, ends, names, others @ ..] = contents else {
        return Err(damaged("sections are missing"));
    };
    let (records, rest) = records.as_chunks::<RECORD>();
    let (mut levels, loose) = levels.as_chunks::<8>();
    let (ends, odd) = ends.as_chunks::<4>();
    let agree = records.len() as u64 == filters && ends.len() == records.len();
    if !agree || !rest.is_empty() || !loose.is_empty() || !odd.is_empty() {
        return Err(damaged("its directory has the wrong length"));
    }
    base.levels = u32::try_from(levels.len()).map_err(|_| damaged("it has too many levels"))?;
    let names = str::from_utf8(names).map_err(|_| damaged("a name is not UTF-8"))?;
    let mut lengths = &[][..];
    if let (Some(texts), [section, ..]) = (texts, others) {
        let (all, odd) = section.as_chunks::<4>();
        let expected = if texts.keep_texts { records.len() } else { 0 };
        if all.len() != expected || !odd.is_empty() {
            return Err(damaged("the number of documents does not match"));
        }
        lengths = all;
    }
    let mut utilities = memory::with_capacity(records.len())?;
    let mut table = NameTable::with_capacity(records.len())?;
    let (mut keys, mut place, mut start) = (0u64, 0u64, 0);
    for (index, (record, end)) in records.iter().zip(ends).enumerate() {
        base.sample(place, base.levels - levels.len() as u32)?;
        let (filter, utility) = Filter::from_record(record, &mut levels)?;
        // By rows, or ribbons.
        if texts.is_some()
            && !matches!(filter.kind, Kind::Empty | Kind::Ribbon)
            && collection::sliced::segment_length(&filter).is_none()
        {
            return Err(damaged("a document has no signature"));
        }
        let end = u32::from_le_bytes(*end) as usize;
        let name = names.get(start..end).ok_or_else(|| damaged("a name is out of bounds"))?;
        table.insert(hash_name(name), index as u32)?;
        let text = lengths.get(index).map_or(0, |&length| u32::from_le_bytes(length));
        place = place
            .checked_add(filter.bytes()?)
            .and_then(|place| place.checked_add(text.into()))
            .filter(|&place| place <= length)
            .ok_or_else(|| damaged("a filter extends past the end"))?;
        start = end;
        keys = keys.saturating_add(filter.count);
        utilities.push(utility);
    }
    if place != length || start != names.len() || !levels.is_empty() {
        return Err(damaged("it has bytes that belong to no filter"));
    }
    Ok(Checked { base, utilities, keys, names: table })
}

/// Writes a frame. The bits are read twice: the checksums come first.
pub fn write(
    directory: &Directory,
    files: &Files,
    (hash, tag): (u16, u64),
    utilities: &[f64],
    texts: Option<&TextOptions>,
    out: &mut impl Write,
) -> Result<()> {
    let rows = directory.all_rows(files)?;
    let filters = rows.iter().zip(utilities);
    let records =
        memory::collected(filters.flat_map(|(row, &utility)| row.filter.record(utility)))?;
    let levels = rows.iter().flat_map(|row| row.filter.levels.iter());
    let levels = memory::collected(levels.flat_map(|slots| slots.to_le_bytes()))?;
    let (mut ends, mut names) = (memory::with_capacity(4 * rows.len())?, Vec::new());
    directory.each_name(files, |name| {
        names.try_extend(name.as_bytes())?;
        let end = u32::try_from(names.len()).map_err(|_| {
            Error::Capacity("the names of a collection take at most 2**32-1 bytes".into())
        })?;
        ends.try_extend(&end.to_le_bytes())?;
        Ok(())
    })?;
    let mut lengths = Vec::new();
    if texts.is_some_and(|texts| texts.keep_texts) {
        lengths = memory::collected(rows.iter().flat_map(|row| row.text.to_le_bytes()))?;
    }
    let keys = rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.filter.count));
    let places = rows.iter().map(|row| Ok((row.place, row.bytes()?)));
    let places: Vec<_> = memory::collected_ok::<_, Error>(places)?;
    files.staged(places.into_iter(), || {
        let (pieces, length) = checksums(&rows, files)?;
        let mut contents = vec![&records[..], &levels, &ends, &names];
        let count = rows.len() as u64;
        let (mut kind, mut parameters) = (collection::KIND, vec![count]);
        if let Some(texts) = texts {
            contents.extend([&lengths[..], texts.stop_words.as_bytes()]);
            kind = text::KIND;
            parameters.extend([u64::from(!texts.own_tokenizer), u64::from(texts.keep_texts)]);
        }
        contents.push(&pieces);
        let lengths = contents.iter().map(|content| content.len() as u64).chain([length]);
        let checksums = contents.iter().map(|content| xxh3_64(content)).chain([xxh3_64(&pieces)]);
        let parts = sections(texts.is_some()).into_iter().zip(lengths).zip(checksums);
        let part = |((kind, length), checksum)| Part {
            kind,
            piece: piece(kind),
            offset: 0,
            length,
            checksum,
        };
        let parts: Vec<Part> = parts.map(part).collect();
        let head = Head { kind, hash, tag, count: keys, capacity: count, parameters };
        let header = format::header(&head, &parts)?;
        out.write_all(&header)?;
        let mut end = header.len();
        let mut pad = |out: &mut dyn Write, length: usize| {
            let zeros = end.next_multiple_of(LINE) - end;
            end += zeros + length;
            out.write_all(&[0; LINE][..zeros])
        };
        for content in contents {
            pad(out, content.len())?;
            out.write_all(content)?;
        }
        pad(out, 0)?;
        each_chunk(&rows, files, |bytes| Ok(out.write_all(bytes)?))
    })
}

/// The checksums of all pieces, and the total bytes of filters and documents.
fn checksums(rows: &[Row], files: &Files) -> Result<(Vec<u8>, u64)> {
    let (mut pieces, mut length) = (Vec::new(), 0);
    let mut waiting = memory::with_capacity(1 << PIECE)?;
    each_chunk(rows, files, |mut bytes| {
        length += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min((1 << PIECE) - waiting.len()));
            waiting.extend_from_slice(now);
            bytes = later;
            if waiting.len() == 1 << PIECE {
                pieces.try_extend(&xxh3_64(&waiting).to_le_bytes())?;
                waiting.clear();
            }
        }
        Ok(())
    })?;
    if !waiting.is_empty() {
        pieces.try_extend(&xxh3_64(&waiting).to_le_bytes())?;
    }
    Ok((pieces, length))
}

/// Passes the bytes of all filters and documents to `visit`, in order and in chunks.
fn each_chunk(
    rows: &[Row],
    files: &Files,
    mut visit: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let list = files.list()?;
    let mut buffer = Vec::new();
    for row in rows {
        let (mut done, bytes) = (0, row.bytes()?);
        while done < bytes {
            buffer.try_resize((bytes - done).min(1 << 20) as usize, 0)?;
            files.read(row.place + done, &mut buffer, &list)?;
            visit(&buffer)?;
            done += buffer.len() as u64;
        }
    }
    Ok(())
}
