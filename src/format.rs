//! The persisted frame: one little-endian container for filters, collections, indexes and snapshots.
//!
//! ```text
//! 0   magic            8 bytes, 0x89 "tamis" CR LF: not text, and damaged by text transfers
//! 8   version          u16      1
//! 10  kind             u16      which structure
//! 12  hash             u16      1 seeded, 2 keyed
//! 14  sections         u16
//! 16  tag              u64      the seed, or the secret key's identifier
//! 24  count            u64      len(filter)
//! 32  capacity         u64
//! 40  length           u64      of the whole frame
//! 48  parameters       u64      how many follow
//! 56  parameters       u64 each, meaning by kind
//!     section table    32 bytes each: type u32, piece u32, offset u64, length u64, checksum u64
//!     header checksum  u64
//!     sections         each at the next multiple of 64, zeros between
//! ```
//!
//! Checksums are XXH3-64. A section that may be cut to a prefix has `piece` = log2 of a piece's
//! bytes (else 0); the section before it then holds one checksum per piece, so that a reader of a
//! prefix can trust it without the rest. Offsets follow from the lengths, so there is one valid
//! frame for given content and no byte of it is unchecked.
//!
//! A *container* holds frames without reading them: the checksum of a section of type
//! [`SECTION_CONTAINED`] covers only the header of the frame inside, which has checksums of its own.
//! So a container of many gigabytes opens by its header, and each frame in it when it is needed.
//!
//! A section type with the bit [`OPTIONAL`] set may be skipped by a reader that does not know it. All
//! other unknown types are refused.

use crate::error::{Error, Result};
use crate::interrupt;
use crate::lock::Held;
use crate::memory::{self, TryGrow};
use std::io::{self, Write};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const MAGIC: [u8; 8] = *b"\x89tamis\r\n";
/// The version this code writes, and the only one so far.
pub const VERSION: u16 = 1;
const FIXED: usize = 56;
const ENTRY: usize = 32;
const ALIGN: usize = crate::bits::LINE;

/// Section type: the bits of the structure.
pub const SECTION_BITS: u32 = 1;
/// Section type: the piece checksums of the section that follows.
pub const SECTION_PIECES: u32 = 2;

/// Section type: a frame within the frame, of a part that is a filter itself.
pub const SECTION_FRAME: u32 = 3;

/// Section type: the selectors of an adaptive filter, which choose the hash function of each slot.
pub const SECTION_SELECTORS: u32 = 4;

/// Section type: the hashes of stored keys, 16 bytes each.
pub const SECTION_HASHES: u32 = 5;

/// Section type: a plan as JSON, which kernels keep and do not read.
pub const SECTION_PLAN: u32 = 6;

/// Section type: a frame in a container. Its checksum is the checksum of the inner header.
pub const SECTION_CONTAINED: u32 = 7;

/// Section type: a JSON document of a container.
pub const SECTION_JSON: u32 = 8;

/// Section type: a sample of queries, 16 bytes each.
pub const SECTION_SAMPLE: u32 = 9;

/// The bit of section types that a reader may skip.
pub const OPTIONAL: u32 = 1 << 31;

/// Section type, reserved: the version and date of the content.
pub const SECTION_VERSION: u32 = OPTIONAL | 1;

/// Section type, reserved: a signature of the content.
pub const SECTION_SIGNATURE: u32 = OPTIONAL | 2;

/// Section type, reserved: the difference to another version of the content.
pub const SECTION_DELTA: u32 = OPTIONAL | 3;

/// The fields that every frame has, regardless of the kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The kind of structure; see [`crate::kinds`].
    pub kind: u16,
    /// The hash family, [`crate::hash::HASH_SEEDED`] or [`crate::hash::HASH_KEYED`].
    pub hash: u16,
    /// The seed, or the identifier of the secret key.
    pub tag: u64,
    /// The number of keys in the filter.
    pub count: u64,
    /// The number of keys that it was planned for.
    pub capacity: u64,
    /// Sizes and shape, by kind.
    pub parameters: Vec<u64>,
}

/// A section: a range of bytes in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section<'a> {
    /// Its content type: [`SECTION_BITS`] and so on.
    pub kind: u32,
    /// log2 of the bytes per separately checked piece, or 0.
    pub piece: u32,
    /// The content.
    pub bytes: &'a [u8],
}

impl<'a> Section<'a> {
    /// The same content, to be written.
    pub fn stored(self) -> Stored<'a> {
        Stored { kind: self.kind, piece: self.piece, content: Source::Bytes(self.bytes) }
    }

    /// The checksum in the section table, for a section without pieces.
    fn checksum(&self) -> u64 {
        match (self.kind, header_size(self.bytes)) {
            (SECTION_CONTAINED, Ok(size)) if size <= self.bytes.len() as u64 => {
                xxh3_64(&self.bytes[..size as usize])
            }
            _ => checksum(self.bytes),
        }
    }
}

/// A section to be written.
pub struct Stored<'a> {
    /// As in [`Section`].
    pub kind: u32,
    /// As in [`Section`].
    pub piece: u32,
    /// The content.
    pub content: Source<'a>,
}

/// The content of a section to be written.
pub enum Source<'a> {
    /// Bytes of a structure.
    Bytes(&'a [u8]),
    /// Bytes made for the frame.
    Made(Vec<u8>),
    /// Another frame, which is written directly: a copy could take as much memory as the filter.
    Frame(Frame<'a>),
}

impl Source<'_> {
    fn len(&self) -> u64 {
        match self {
            Source::Bytes(bytes) => bytes.len() as u64,
            Source::Made(bytes) => bytes.len() as u64,
            Source::Frame(frame) => frame.len,
        }
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Source::Bytes(bytes) => write_all(out, bytes),
            Source::Made(bytes) => write_all(out, bytes),
            Source::Frame(frame) => frame.write(out),
        }
    }
}

/// A frame that is ready to be written: its header, with all checksums, and its sections.
pub struct Frame<'a> {
    header: Vec<u8>,
    sections: Vec<Source<'a>>,
    len: u64,
    /// Keeps the bytes that the sections borrow as they are.
    _lock: Option<Held<'a>>,
}

impl<'a> Frame<'a> {
    /// Computes the checksums of a frame; `lock` is held until it is dropped.
    pub fn new(head: &Head, stored: Vec<Stored<'a>>, lock: Option<Held<'a>>) -> Result<Frame<'a>> {
        let (mut parts, mut sections) = (Vec::new(), Vec::new());
        let mut add = |kind, piece, content: Source<'a>, checksum| {
            parts.try_push(Part { kind, piece, offset: 0, length: content.len(), checksum })?;
            sections.try_push(content)
        };
        for Stored { kind, piece, content } in stored {
            let checksum = match &content {
                Source::Bytes(bytes) => Some(Section { kind, piece, bytes }),
                Source::Made(bytes) => Some(Section { kind, piece, bytes }),
                Source::Frame(_) => None,
            };
            let checksum = match checksum {
                Some(section) if piece > 0 => {
                    let list = piece_list(&section)?;
                    let checksum = xxh3_64(&list);
                    add(SECTION_PIECES, 0, Source::Made(list), checksum)?;
                    checksum
                }
                Some(section) => section.checksum(),
                None => {
                    let mut hash = Checksum(Xxh3::new());
                    content.write(&mut hash)?;
                    hash.0.digest()
                }
            };
            add(kind, piece, content, checksum)?;
        }
        let header = header(head, &parts)?;
        let mut len = header.len() as u64;
        for section in &sections {
            len = len.next_multiple_of(ALIGN as u64) + section.len();
        }
        Ok(Frame { header, sections, len, _lock: lock })
    }

    /// The frame as bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = memory::with_capacity(self.len as usize)?;
        self.write(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes the frame.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.header)?;
        let mut end = self.header.len() as u64;
        for section in &self.sections {
            let offset = end.next_multiple_of(ALIGN as u64);
            out.write_all(&[0; ALIGN][..(offset - end) as usize])?;
            section.write(out)?;
            end = offset + section.len();
        }
        Ok(())
    }
}

/// The checksum of the bytes written to it.
struct Checksum(Xxh3);

impl Write for Checksum {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes between two checks for interrupts.
const STEP: usize = 1 << 20;

fn write_all(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    bytes.chunks(STEP).try_for_each(|step| {
        interrupt::check();
        out.write_all(step)
    })
}

fn checksum(bytes: &[u8]) -> u64 {
    if bytes.len() <= STEP {
        return xxh3_64(bytes);
    }
    let mut sum = Xxh3::new();
    for step in bytes.chunks(STEP) {
        interrupt::check();
        sum.update(step);
    }
    sum.digest()
}

/// An entry of the section table: the position of a section, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its content type, as in [`Section`].
    pub kind: u32,
    /// As in [`Section`].
    pub piece: u32,
    /// Its offset; [`header`] computes it.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// XXH3-64 of the section, of the list of its pieces, or of the header of the frame that it
    /// contains.
    pub checksum: u64,
}

impl Part {
    /// Whether a reader may skip it.
    pub fn is_optional(&self) -> bool {
        self.kind & OPTIONAL != 0
    }
}

/// The bytes of a frame.
pub fn to_bytes(head: &Head, sections: &[Section<'_>]) -> Result<Vec<u8>> {
    let stored = memory::collected(sections.iter().map(|section| section.stored()))?;
    Frame::new(head, stored, None)?.to_bytes()
}

/// The header of a frame with these parts, up to the first of them.
pub fn header(head: &Head, parts: &[Part]) -> Result<Vec<u8>> {
    let mut end = header_length(head.parameters.len(), parts.len()) as u64;
    let mut table = memory::with_capacity(parts.len() * ENTRY)?;
    for part in parts {
        let offset = end.next_multiple_of(ALIGN as u64);
        end = offset + part.length;
        table.extend_from_slice(&part.kind.to_le_bytes());
        table.extend_from_slice(&part.piece.to_le_bytes());
        for long in [offset, part.length, part.checksum] {
            table.extend_from_slice(&long.to_le_bytes());
        }
    }
    let mut header = memory::with_capacity(header_length(head.parameters.len(), parts.len()))?;
    header.extend_from_slice(&MAGIC);
    for short in [VERSION, head.kind, head.hash, parts.len() as u16] {
        header.extend_from_slice(&short.to_le_bytes());
    }
    let parameters = head.parameters.len() as u64;
    for long in [head.tag, head.count, head.capacity, end, parameters] {
        header.extend_from_slice(&long.to_le_bytes());
    }
    for parameter in &head.parameters {
        header.extend_from_slice(&parameter.to_le_bytes());
    }
    header.extend_from_slice(&table);
    header.extend_from_slice(&xxh3_64(&header).to_le_bytes());
    Ok(header)
}

/// Reads a frame that must be all of `bytes`. Only the parameters of the header are allocated, and
/// their number is checked against the available bytes. Optional sections are checked and left out.
pub fn read(bytes: &[u8]) -> Result<(Head, Vec<Section<'_>>)> {
    read_frame(bytes, true)
}

/// Containers hold frames, but no containers, so that bytes cannot choose the depth of recursion.
fn read_frame(bytes: &[u8], may_contain: bool) -> Result<(Head, Vec<Section<'_>>)> {
    let (head, parts, header_end) = read_header(bytes, bytes.len() as u64)?;
    Ok((head, read_sections(bytes, &parts, header_end, may_contain)?))
}

/// The size of the header that begins with these bytes, at least 56.
pub fn header_size(bytes: &[u8]) -> Result<u64> {
    let header = Reader::after_magic(bytes)?;
    let (sections, parameters) =
        (Reader { at: 14, ..header }.short()?, Reader { at: 48, ..header }.long()?);
    let parameters = parameters.checked_mul(8).filter(|&length| length < 1 << 40);
    let parameters = parameters.ok_or_else(too_many_parameters)?;
    Ok((FIXED + ENTRY * usize::from(sections) + 8) as u64 + parameters)
}

/// The length of the frame as stated by the header that begins with these bytes.
pub fn stated_length(bytes: &[u8]) -> Result<u64> {
    Reader { at: 40, ..Reader::after_magic(bytes)? }.long()
}

/// Reads the header of a frame of `length` bytes from its first bytes; returns its fields, its
/// parts, which lie within the frame in order, and the end of the header.
pub fn read_header(bytes: &[u8], length: u64) -> Result<(Head, Vec<Part>, usize)> {
    let mut header = Reader::after_magic(bytes)?;
    let (kind, hash, sections) = (header.short()?, header.short()?, usize::from(header.short()?));
    let (tag, count, capacity) = (header.long()?, header.long()?, header.long()?);
    let (stated, parameters) = (header.long()?, header.long()?);
    if stated != length {
        let message = format!("the frame should have {stated} bytes, but has {length}");
        return Err(Error::Format(message));
    }
    let parameters = usize::try_from(parameters)
        .ok()
        .filter(|&n| n <= bytes.len() / 8)
        .ok_or_else(too_many_parameters)?;
    let checksum_at = header_length(parameters, sections) - 8;
    let checked =
        bytes.get(..checksum_at).ok_or_else(|| truncated(bytes.len(), checksum_at + 8))?;
    let parameters = memory::collected_ok((0..parameters).map(|_| header.long()))?;
    let mut table = Reader { bytes, at: header.at };
    header.at = checksum_at;
    if header.long()? != xxh3_64(checked) {
        return Err(Error::Format("the header is damaged: its checksum differs".into()));
    }
    let mut parts = memory::with_capacity(sections)?;
    let mut end = header.at as u64;
    for index in 0..sections {
        let damaged = |what: &str| Error::Format(format!("section {index} is damaged: {what}"));
        let (kind, piece) = (table.int()?, table.int()?);
        let (offset, long, checksum) = (table.long()?, table.long()?, table.long()?);
        let expected = end.next_multiple_of(ALIGN as u64);
        let stop = expected.checked_add(long).filter(|&stop| stop <= length);
        end = stop.ok_or_else(|| damaged("it reaches past the end"))?;
        if offset != expected {
            return Err(damaged("it is not where it should be"));
        }
        parts.push(Part { kind, piece, offset, length: long, checksum });
    }
    if end != length {
        return Err(Error::Format("the frame is damaged: bytes after its end".into()));
    }
    let head = Head { kind, hash, tag, count, capacity, parameters };
    if parts.iter().any(|part| matches!(part.kind, SECTION_JSON | SECTION_CONTAINED)) {
        check_container(&head, &parts)?;
    }
    Ok((head, parts, header.at))
}

/// Containers leave the fields of filters at zero and have no pieces.
fn check_container(head: &Head, parts: &[Part]) -> Result<()> {
    let Head { hash, tag, count, capacity, ref parameters, .. } = *head;
    if hash != 0 || [tag, count, capacity] != [0; 3] || !parameters.is_empty() {
        let message = "the header is damaged: a container has no hash, counts or parameters";
        return Err(Error::Format(message.into()));
    }
    if parts.iter().any(|part| part.piece != 0) {
        return Err(Error::Format("the header is damaged: a container has no pieces".into()));
    }
    Ok(())
}

fn read_sections<'a>(
    bytes: &'a [u8],
    parts: &[Part],
    header_end: usize,
    may_contain: bool,
) -> Result<Vec<Section<'a>>> {
    let mut sections: Vec<Section<'a>> = memory::with_capacity(parts.len())?;
    let mut end = header_end;
    for (index, part) in parts.iter().enumerate() {
        let damaged = |what: &str| Error::Format(format!("section {index} is damaged: {what}"));
        let (start, stop) = (part.offset as usize, (part.offset + part.length) as usize);
        let content = bytes.get(start..stop).ok_or_else(|| damaged("it reaches past the end"))?;
        if bytes[end..start].iter().any(|&byte| byte != 0) {
            return Err(damaged("it is not where it should be"));
        }
        let has_list = sections.last().is_some_and(|last| last.kind == SECTION_PIECES);
        if has_list != (part.piece > 0) {
            return Err(damaged("a list of pieces does not precede its section"));
        }
        let section = Section { kind: part.kind, piece: part.piece, bytes: content };
        let actual = match part.piece {
            0 if part.kind == SECTION_CONTAINED => {
                if !may_contain {
                    return Err(damaged("it is a container in a container"));
                }
                read_frame(content, false)?;
                section.checksum()
            }
            0 => checksum(content),
            1..=32 => {
                let list = piece_list(&section)?;
                if sections.last().map(|list| list.bytes) != Some(&list) {
                    return Err(damaged("a piece's checksum differs"));
                }
                xxh3_64(&list)
            }
            _ => return Err(damaged("its piece size is out of range")),
        };
        if actual != part.checksum {
            return Err(damaged("its checksum differs"));
        }
        sections.push(section);
        end = stop;
    }
    if sections.last().is_some_and(|last| last.kind == SECTION_PIECES) {
        return Err(Error::Format("the frame is damaged: a list of pieces has no section".into()));
    }
    sections.retain(|section| section.kind != SECTION_PIECES && section.kind & OPTIONAL == 0);
    Ok(sections)
}

fn header_length(parameters: usize, sections: usize) -> usize {
    FIXED + 8 * parameters + ENTRY * sections + 8
}

/// One XXH3-64 per piece.
fn piece_list(section: &Section<'_>) -> Result<Vec<u8>> {
    let pieces = section.bytes.chunks(1 << section.piece);
    let mut list = memory::with_capacity(8 * pieces.len())?;
    pieces.for_each(|piece| list.extend_from_slice(&xxh3_64(piece).to_le_bytes()));
    Ok(list)
}

fn too_many_parameters() -> Error {
    Error::Format("the header is damaged: too many parameters".into())
}

fn truncated(have: usize, need: usize) -> Error {
    Error::Format(format!("the frame is cut short: {have} bytes of at least {need}"))
}

/// Reads numbers from a header, never past its end.
#[derive(Clone, Copy)]
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Checks magic, version and the length of the fixed fields, and starts after them.
    fn after_magic(bytes: &'a [u8]) -> Result<Reader<'a>> {
        let start = &bytes[..bytes.len().min(MAGIC.len())];
        if start != &MAGIC[..start.len()] {
            return Err(Error::Format("this is not a tamis file: the first bytes differ".into()));
        }
        if bytes.len() < FIXED {
            return Err(truncated(bytes.len(), FIXED));
        }
        let mut header = Reader { bytes, at: MAGIC.len() };
        let version = header.short()?;
        if version != VERSION {
            let message =
                format!("format version {version} is not supported: this tamis reads {VERSION}");
            return Err(Error::Format(message));
        }
        Ok(header)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let field = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<N>());
        let field = *field.ok_or_else(|| truncated(self.bytes.len(), self.at + N))?;
        self.at += N;
        Ok(field)
    }

    fn short(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.take()?))
    }

    fn int(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn long(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Vec<u8> {
        let head =
            Head { kind: 7, hash: 1, tag: 3, count: 4, capacity: 5, parameters: vec![6, u64::MAX] };
        let (whole, pieced) = ([9u8; 100], [8u8; 70]);
        let sections = [
            Section { kind: SECTION_BITS, piece: 0, bytes: &whole },
            Section { kind: SECTION_BITS, piece: 5, bytes: &pieced },
            Section { kind: SECTION_BITS, piece: 0, bytes: &[] },
        ];
        let out = to_bytes(&head, &sections).unwrap();
        let (read_head, read_sections) = read(&out).unwrap();
        assert_eq!(read_head, head);
        assert_eq!(read_sections, sections);
        assert!(
            read_sections
                .iter()
                .all(|s| (s.bytes.as_ptr() as usize - out.as_ptr() as usize).is_multiple_of(ALIGN))
        );
        out
    }

    /// A container of a frame and an optional section.
    fn container() -> Vec<u8> {
        let head = Head { kind: 9, hash: 0, tag: 0, count: 0, capacity: 0, parameters: vec![] };
        let inner = example();
        let sections = [
            Section { kind: SECTION_JSON, piece: 0, bytes: b"{}" },
            Section { kind: SECTION_VERSION, piece: 0, bytes: b"2026-11-18" },
            Section { kind: SECTION_CONTAINED, piece: 0, bytes: &inner },
        ];
        let out = to_bytes(&head, &sections).unwrap();
        let (_, parts, _) = read_header(&out, out.len() as u64).unwrap();
        let size = header_size(&inner).unwrap() as usize;
        assert_eq!(parts[2].checksum, xxh3_64(&inner[..size]));
        assert_eq!(read(&out).unwrap().1, [sections[0], sections[2]]);
        out
    }

    #[test]
    fn a_container_in_a_container_is_refused() {
        let inner = container();
        let head = Head { kind: 9, hash: 0, tag: 0, count: 0, capacity: 0, parameters: vec![] };
        let section = Section { kind: SECTION_CONTAINED, piece: 0, bytes: &inner };
        assert!(read(&to_bytes(&head, &[section]).unwrap()).is_err());
    }

    #[test]
    fn a_container_with_fields_of_a_filter_is_refused() {
        let zero = Head { kind: 9, hash: 0, tag: 0, count: 0, capacity: 0, parameters: vec![] };
        let document = |piece| Section { kind: SECTION_JSON, piece, bytes: b"{}" };
        let refused =
            |head: &Head, piece| read(&to_bytes(head, &[document(piece)]).unwrap()).is_err();
        assert!(!refused(&zero, 0));
        assert!(refused(&zero, 9));
        for head in [
            Head { hash: 1, ..zero.clone() },
            Head { tag: 1, ..zero.clone() },
            Head { count: 1, ..zero.clone() },
            Head { capacity: 1, ..zero.clone() },
            Head { parameters: vec![0], ..zero.clone() },
        ] {
            assert!(refused(&head, 0));
        }
    }

    #[test]
    fn every_flip_and_every_truncation_is_refused() {
        refuses_damage(example());
        refuses_damage(container());
    }

    fn refuses_damage(good: Vec<u8>) {
        for at in 0..good.len() {
            assert!(read(&good[..at]).is_err(), "cut to {at}");
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(read(&bad).is_err(), "bit {bit} of byte {at}");
            }
        }
        let longer = [good, vec![0]].concat();
        assert!(read(&longer).is_err());
    }
}
