//! Storage of the full filters of a collection: the opened file or object, whose pieces are checked
//! as they are read, and a temporary file for filters added since.

use super::exit;
use crate::collection::{Bits, PIECE};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::lock::RwLock;
use crate::memory;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::xxh3_64;

/// Flags a place in the temporary file; other places are in the bits of the opened file.
const SPILL: u64 = 1 << 63;
const BYTES: usize = 1 << PIECE;

pub struct Files {
    base: Option<Base>,
    spill: File,
    written: RwLock<u64>,
    /// The process that writes to `spill`: a forked child shares the file, but not `written`.
    writer: u32,
}

/// An object of an object store, whose bytes are read by `tamis._objects.ObjectFile`.
pub struct Object(pub Py<PyAny>);

struct Base {
    /// The file, or a local copy of the beginning of an object, up to its bits.
    file: File,
    object: Option<Object>,
    /// The offset and the length of the bits.
    bits: u64,
    length: u64,
    /// The offset of the checksums of their pieces.
    list: u64,
}

impl Object {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let copied = exit::attached(|py| {
            let bytes = self.0.call_method1(py, "read_at", (offset, out.len()))?;
            let bytes = bytes.bind(py).cast::<PyBytes>()?.as_bytes();
            let complete = bytes.len() == out.len();
            if complete {
                out.copy_from_slice(bytes);
            }
            PyResult::Ok(complete)
        });
        if copied.map_err(unread)? { Ok(()) } else { Err(short()) }
    }
}

/// The error of a read in Python, with its number.
fn unread(error: PyErr) -> Error {
    const EIO: i32 = 5;
    exit::attached(|py| {
        let value = error.value(py);
        let attribute = |name| value.getattr(name).ok();
        match attribute("errno").and_then(|number| number.extract().ok()) {
            Some(number) if error.is_instance_of::<PyOSError>(py) => {
                let text = |name| attribute(name).and_then(|text| text.extract::<String>().ok());
                let why = text("strerror").unwrap_or_else(|| value.to_string());
                let name = text("filename").map(|name| format!(": '{name}'"));
                Error::Os(number, why + &name.unwrap_or_default())
            }
            _ => Error::Os(EIO, error.to_string()),
        }
    })
}

fn short() -> Error {
    Error::Format("the file is cut short".into())
}

fn failed(error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::UnexpectedEof => short(),
        _ => error.into(),
    }
}

impl Files {
    /// A store that has only filters to be appended to this file.
    pub fn new(spill: File) -> Files {
        Files { base: None, spill, written: RwLock::new(0), writer: std::process::id() }
    }

    /// Adds the bits of this file, or of the object that it is the beginning of.
    pub fn set_base(
        &mut self,
        file: File,
        object: Option<Object>,
        bits: u64,
        length: u64,
        list: u64,
    ) {
        self.base = Some(Base { file, object, bits, length, list });
    }

    /// Runs `work`, which reads `bytes` bytes at each `place`. Bytes of an object are fetched
    /// first, because a request for many filters takes as long as for a single one.
    pub fn staged<R>(
        &self,
        places: impl Iterator<Item = (u64, u64)>,
        work: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let Some((base, object)) = self.base.as_ref().and_then(|b| Some((b, b.object.as_ref()?)))
        else {
            return work();
        };
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        for (place, bytes) in places.filter(|&(place, bytes)| place & SPILL == 0 && bytes > 0) {
            let (start, end) = base.pieces(place, bytes);
            starts.push(base.bits + start);
            ends.push(base.bits + end);
        }
        let token = exit::attached(|py| object.0.call_method1(py, "stage", (starts, ends)));
        let token = token.map_err(unread)?;
        let done = work();
        exit::attached(|py| object.0.call_method1(py, "unstage", (token,))).map_err(unread)?;
        done
    }

    /// Bytes of a file that is known to be long enough.
    pub fn exact(&self, file: &File, offset: u64, length: u64) -> Result<Vec<u8>> {
        let mut bytes = zeros(length)?;
        file.read_exact_at(&mut bytes, offset).map_err(failed)?;
        Ok(bytes)
    }

    /// Whether this process may [`Files::append`].
    pub fn is_writer(&self) -> bool {
        std::process::id() == self.writer
    }

    /// Bytes at a place in the temporary file.
    pub fn added(&self, place: u64, length: usize) -> Result<Vec<u8>> {
        self.exact(&self.spill, place & !SPILL, length as u64)
    }

    /// Appends the bytes of a filter; returns their place.
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        let mut written = self.written.write();
        self.spill.write_all_at(bytes, *written)?;
        let place = *written;
        *written += bytes.len() as u64;
        Ok(SPILL | place)
    }

    /// The checksums of all pieces, for [`Files::read`].
    pub fn list(&self) -> Result<Vec<u8>> {
        let Some(base) = &self.base else { return Ok(Vec::new()) };
        self.exact(&base.file, base.list, 8 * base.length.div_ceil(BYTES as u64))
    }

    /// [`Files::read`] without the list of all checksums: the needed ones are read from the file.
    pub fn read_alone(&self, place: u64, out: &mut [u8]) -> Result<()> {
        let first = (place & !SPILL) / BYTES as u64;
        let mut list = Vec::new();
        if let (0, Some(base)) = (place & SPILL, &self.base) {
            let end = (place + out.len() as u64).min(base.length).div_ceil(BYTES as u64);
            list = self.exact(&base.file, base.list + 8 * first, 8 * end.saturating_sub(first))?;
        }
        self.read_listed(place, out, &list, first)
    }

    /// Reads bytes at a place, and the complete pieces around them to check them.
    pub fn read(&self, place: u64, out: &mut [u8], list: &[u8]) -> Result<()> {
        self.read_listed(place, out, list, 0)
    }

    /// [`Files::read`] with the checksums of the pieces from `listed_from` on.
    fn read_listed(&self, place: u64, out: &mut [u8], list: &[u8], listed_from: u64) -> Result<()> {
        interrupt::check();
        if out.is_empty() {
            return Ok(());
        }
        if place & SPILL != 0 {
            return self.spill.read_exact_at(out, place & !SPILL).map_err(failed);
        }
        let base = self.base.as_ref().ok_or_else(missing)?;
        let (start, end) = base.pieces(place, out.len() as u64);
        let mut bytes = zeros(end.saturating_sub(start))?;
        base.read(start, &mut bytes)?;
        let (listed, _) = list.as_chunks::<8>();
        for (piece, content) in ((start / BYTES as u64) as usize..).zip(bytes.chunks(BYTES)) {
            let listed = listed.get(piece.wrapping_sub(listed_from as usize));
            check(piece as u64, content, listed)?;
        }
        let from = (place - start) as usize;
        out.copy_from_slice(bytes.get(from..from + out.len()).ok_or_else(missing)?);
        Ok(())
    }

    /// Reads one piece and checks it; returns its length.
    fn piece(&self, place: u64, piece: u64, out: &mut [u8; BYTES]) -> Result<usize> {
        let start = piece * BYTES as u64;
        if place & SPILL != 0 {
            let end = *self.written.read();
            let here = end.saturating_sub(start).min(BYTES as u64) as usize;
            self.spill.read_exact_at(&mut out[..here], start).map_err(failed)?;
            return Ok(here);
        }
        let base = self.base.as_ref().ok_or_else(missing)?;
        let here = base.length.saturating_sub(start).min(BYTES as u64) as usize;
        base.read(start, &mut out[..here])?;
        if here > 0 {
            let mut listed = [0; 8];
            base.file.read_exact_at(&mut listed, base.list + 8 * piece).map_err(failed)?;
            check(piece, &out[..here], Some(&listed))?;
        }
        Ok(here)
    }
}

impl Base {
    /// The start and the end of the pieces around some bytes of the bits.
    fn pieces(&self, place: u64, bytes: u64) -> (u64, u64) {
        let end = place.saturating_add(bytes).div_ceil(BYTES as u64) * BYTES as u64;
        (place / BYTES as u64 * BYTES as u64, end.min(self.length))
    }

    /// Reads bits at a place.
    fn read(&self, place: u64, out: &mut [u8]) -> Result<()> {
        match &self.object {
            Some(object) => object.read(self.bits + place, out),
            None => self.file.read_exact_at(out, self.bits + place).map_err(failed),
        }
    }
}

/// Writes to a file in blocks of 64 KiB, as a `BufWriter` does, which cannot refuse its memory.
pub struct Buffered {
    out: File,
    waiting: Vec<u8>,
}

impl Buffered {
    pub fn new(out: File) -> Result<Buffered> {
        Ok(Buffered { out, waiting: memory::with_capacity(1 << 16)? })
    }
}

impl Write for Buffered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.waiting.capacity() - self.waiting.len() {
            self.flush()?;
        }
        if bytes.len() > self.waiting.capacity() {
            return self.out.write(bytes);
        }
        self.waiting.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(&self.waiting)?;
        self.waiting.clear();
        Ok(())
    }
}

fn zeros(length: u64) -> Result<Vec<u8>> {
    let refused = || Error::Memory(format!("cannot allocate {length} bytes of a file"));
    let length = usize::try_from(length).map_err(|_| refused())?;
    memory::filled(length, 0).map_err(|_| refused())
}

fn missing() -> Error {
    Error::Format("the collection is damaged: a filter is not in the file".into())
}

fn check(piece: u64, content: &[u8], listed: Option<&[u8; 8]>) -> Result<()> {
    if listed.is_none_or(|listed| u64::from_le_bytes(*listed) != xxh3_64(content)) {
        let message = format!("the collection is damaged: the checksum of piece {piece} differs");
        return Err(Error::Format(message));
    }
    Ok(())
}

/// The bits of a filter in the file, read piece by piece.
pub struct Tail<'a> {
    files: &'a Files,
    place: u64,
    at: Option<u64>,
    have: usize,
    bytes: [u8; BYTES],
}

impl<'a> Tail<'a> {
    pub fn new(files: &'a Files, place: u64) -> Tail<'a> {
        Tail { files, place, at: None, have: 0, bytes: [0; BYTES] }
    }

    fn byte(&mut self, at: u64) -> Result<u8> {
        let piece = at / BYTES as u64;
        if self.at != Some(piece) {
            self.at = None;
            self.have = self.files.piece(self.place, piece, &mut self.bytes)?;
            self.at = Some(piece);
        }
        Ok(self.bytes[..self.have].get((at % BYTES as u64) as usize).copied().unwrap_or(0))
    }
}

impl Bits for Tail<'_> {
    fn window(&mut self, bit: u64) -> Result<u64> {
        let (first, rest) = ((self.place & !SPILL) + bit / 8, bit % 8);
        let mut wide = 0u128;
        for i in 0..9 {
            wide |= u128::from(self.byte(first + i)?) << (8 * i);
        }
        Ok((wide >> rest) as u64)
    }
}
