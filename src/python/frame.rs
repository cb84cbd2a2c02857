//! Frames as Python reads and writes them: headers and checksums here, files in `tamis._frames`.

use super::error::catch_damage;
use super::handle::{Region, named};
use super::release::released;
use crate::error::{Error, Result};
use crate::format::{self, Head, Part};
use crate::kernel::Kind;
use crate::kinds::{self, KINDS};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::path::PathBuf;
use xxhash_rust::xxh3::xxh3_64;

/// A section of a frame as its header lists it.
#[pyclass(frozen, get_all, module = "tamis._native")]
#[derive(Clone)]
pub struct FrameSection {
    /// The section type.
    kind: u32,
    /// Its offset in the frame.
    offset: u64,
    /// Its length in bytes.
    length: u64,
    /// XXH3-64 of the section, or of the header of the frame that it contains.
    checksum: u64,
    /// Zeros between the end of the section before and this one.
    padding: u64,
}

#[pymethods]
impl FrameSection {
    /// A section to be written; its offset is set by the header.
    #[new]
    fn new(kind: u32, length: u64, checksum: u64) -> FrameSection {
        FrameSection { kind, offset: 0, length, checksum, padding: 0 }
    }
}

/// The header of a container: its kind and sections.
#[pyclass(frozen, module = "tamis._native")]
pub struct FrameHeader {
    kind: &'static Kind,
    sections: Vec<FrameSection>,
    optional: Vec<FrameSection>,
}

#[pymethods]
impl FrameHeader {
    /// Reads the header of a frame of `length` bytes from the bytes at its beginning.
    #[staticmethod]
    fn read(start: &[u8], length: u64) -> Result<FrameHeader> {
        let (head, parts, header_end) = format::read_header(start, length)?;
        let unknown =
            || Error::Format(format!("kind {} is unknown to this version of tamis", head.kind));
        let kind = kinds::kind(head.kind).ok_or_else(unknown)?;
        let mut end = header_end as u64;
        let (mut sections, mut optional) = (Vec::new(), Vec::new());
        for part in parts {
            let Part { kind, offset, length, checksum, .. } = part;
            let list = if part.is_optional() { &mut optional } else { &mut sections };
            list.push(FrameSection { kind, offset, length, checksum, padding: offset - end });
            end = offset + length;
        }
        Ok(FrameHeader { kind, sections, optional })
    }

    /// The number of bytes of the header that begins with these bytes.
    #[staticmethod]
    fn size(start: &[u8]) -> Result<u64> {
        format::header_size(start)
    }

    /// The length of a frame as stated by the header that begins with these bytes.
    #[staticmethod]
    fn stated_length(start: &[u8]) -> Result<u64> {
        format::stated_length(start)
    }

    /// The bytes of a container's header.
    #[staticmethod]
    fn write(kind: &str, sections: Vec<PyRef<'_, FrameSection>>) -> PyResult<Vec<u8>> {
        let found = KINDS.into_iter().find(|row| row.name == kind);
        let number =
            found.ok_or_else(|| PyValueError::new_err("kind must be in the table"))?.number;
        if sections.len() > usize::from(u16::MAX) {
            let message = format!("a file has at most 65,535 sections, not {}", sections.len());
            return Err(Error::Capacity(message).into());
        }
        let part = |section: &PyRef<'_, FrameSection>| {
            let FrameSection { kind, length, checksum, .. } = **section;
            Part { kind, piece: 0, offset: 0, length, checksum }
        };
        let parts: Vec<Part> = sections.iter().map(part).collect();
        let parameters = Vec::new();
        let head = Head { kind: number, hash: 0, tag: 0, count: 0, capacity: 0, parameters };
        Ok(format::header(&head, &parts)?)
    }

    /// The name of its kind.
    #[getter]
    fn kind(&self) -> &'static str {
        self.kind.name
    }

    /// The sections that a reader must know.
    #[getter]
    fn sections(&self) -> Vec<FrameSection> {
        self.sections.clone()
    }

    /// The sections that a reader may skip.
    #[getter]
    fn optional(&self) -> Vec<FrameSection> {
        self.optional.clone()
    }
}

/// XXH3-64, the checksum of sections.
#[pyfunction]
pub fn checksum(content: &[u8]) -> u64 {
    xxh3_64(content)
}

/// Checks every checksum of a file, frames inside it included.
#[pyfunction]
pub fn check_file(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    released(py, || {
        let region = Region::of_file(&path, true).map_err(|error| named(error, &path))?;
        catch_damage(|| format::read(region.bytes()).map(drop))??;
        Ok(())
    })?
}
