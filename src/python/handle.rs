//! Structures as Python objects: a handle, and the ways to open one from bytes.

use super::error::{catch_damage, tamis_error};
use super::keys::{self, Secret, hasher, shown};
use super::release::released;
use crate::bits::Buffer;
use crate::error::{Error, Result};
use crate::format;
use crate::hash::{HASH_KEYED, HASH_SEEDED, Hasher};
use crate::interrupt;
use crate::kernel::Kernel;
use crate::kinds;
use crate::memory;
use memmap2::{MmapOptions, MmapRaw};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::any::Any;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

/// A structure and the hash it was built with. It is held by an instance of the kind's class,
/// joined into larger structures, or opened from a file.
#[pyclass(frozen, module = "tamis._native")]
#[derive(Clone)]
pub struct Handle {
    pub kernel: Arc<dyn Kernel>,
    pub hasher: Hasher,
    pub capacity: u64,
}

#[pymethods]
impl Handle {
    /// The number of its kind in a file.
    #[getter]
    fn kind(&self) -> u16 {
        self.kernel.kind().number
    }

    /// The size in bits.
    #[getter]
    fn size_in_bits(&self) -> u64 {
        self.kernel.size_in_bits()
    }
}

impl Handle {
    /// A structure with capacity for this many keys.
    pub fn new(kernel: impl Kernel, capacity: u64, hasher: Hasher) -> Handle {
        Handle { kernel: Arc::new(kernel), hasher, capacity }
    }

    /// The structure, if it is a `T`.
    pub fn of<T: Kernel>(&self) -> PyResult<&T> {
        let any: &dyn Any = &*self.kernel;
        any.downcast_ref().ok_or_else(|| PyValueError::new_err("the structure is of another kind"))
    }

    /// Another structure with the same hash and capacity.
    pub fn with(&self, kernel: impl Kernel) -> Handle {
        Handle { kernel: Arc::new(kernel), hasher: self.hasher.clone(), capacity: self.capacity }
    }

    /// Refuses two structures with different hash functions.
    pub fn check_hash(&self, other: &Handle) -> Result<()> {
        if self.hasher.same_as(&other.hasher) {
            return Ok(());
        }
        let describe = |hasher: &Hasher| match hasher.id() {
            HASH_KEYED => format!("a secret key ({:016x})", hasher.tag()),
            _ => format!("seed {}", hasher.tag()),
        };
        Err(Error::Incompatible(format!(
            "filters can be merged only if they have the same seed or key: one has {}, the other {}",
            describe(&self.hasher),
            describe(&other.hasher)
        )))
    }
}

/// Opens a filter from bytes.
#[pyfunction]
#[pyo3(signature = (frame, key=None))]
pub fn open_bytes(
    py: Python<'_>,
    frame: &Bound<'_, PyAny>,
    #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
) -> PyResult<Handle> {
    let hasher = key.map(|key| hasher(0, Some(key))).transpose()?;
    if let Ok(bytes) = frame.cast::<PyBytes>() {
        let bytes = bytes.as_bytes();
        return released(py, || open(bytes, hasher, Buffer::copied))?;
    }
    // Only `bytes` never change. Any other buffer may be written to by another thread, even between
    // the check and the use: so it is copied first.
    let copy = PyBuffer::<u8>::get(frame).map_err(|_| {
        PyTypeError::new_err(format!(
            "data must be bytes or a buffer of them, not {}",
            shown(frame)
        ))
    })?;
    let copy = copied(py, &copy)?;
    released(py, || open(&copy, hasher, Buffer::copied))?
}

/// A copy of a buffer.
pub fn copied(py: Python<'_>, buffer: &PyBuffer<u8>) -> PyResult<Vec<u8>> {
    let mut copy = memory::filled(buffer.item_count(), 0)?;
    buffer.copy_to_slice(py, &mut copy)?;
    Ok(copy)
}

/// Opens a filter from a file: read into memory, or as a private mapping. `offset` is where the
/// frame begins, a multiple of 64.
#[pyfunction]
#[pyo3(signature = (path, mmap=false, key=None, offset=0))]
pub fn open_file(
    py: Python<'_>,
    path: PathBuf,
    mmap: bool,
    #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
    offset: usize,
) -> PyResult<Handle> {
    if !offset.is_multiple_of(64) {
        return Err(PyValueError::new_err(format!(
            "offset must be a multiple of 64, not {offset}"
        )));
    }
    let hasher = key.map(|key| hasher(0, Some(key))).transpose()?;
    released(py, || {
        let region = Region::of_file(&path, mmap).map_err(|error| named(error, &path))?;
        let frame = region.bytes().get(offset..).unwrap_or_default();
        catch_damage(|| open(frame, hasher, |section| Ok(region.part(section))))?
    })?
}

/// An `OSError` like Python's own functions raise, with the name of the file.
pub fn named(error: Error, path: &Path) -> PyErr {
    match error {
        Error::Os(code, text) => PyOSError::new_err((code, text, path.as_os_str().to_owned())),
        other => other.into(),
    }
}

/// Opens a file for reading; also returns its length. Anything but a regular file is refused before
/// it is opened, because a pipe would wait for its writer.
pub fn open_regular(path: &Path) -> Result<(File, u64)> {
    const EISDIR: i32 = 21;
    const EINVAL: i32 = 22;
    let kind = std::fs::metadata(path)?.file_type();
    if kind.is_dir() {
        return Err(io::Error::from_raw_os_error(EISDIR).into());
    }
    if !kind.is_file() {
        return Err(Error::Os(EINVAL, "not a regular file".into()));
    }
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}

/// Bytes read between two checks for interrupts.
const READ: usize = 1 << 24;

/// A file in memory that is shared by the buffers of its filter: nothing is copied out of it.
pub struct Region {
    start: *mut u8,
    len: usize,
    owner: Arc<dyn Any + Send + Sync>,
}

impl Region {
    pub fn of_file(path: &Path, mmap: bool) -> Result<Region> {
        let (mut file, len) = open_regular(path)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if mmap && len > 0 {
            // SAFETY: saved files are replaced, never changed in place, and callers must do the
            // same (docs/format.md), so the mapping keeps its content; copy-on-write keeps our
            // insertions out of the file. If the file is changed anyway, see `catch_damage`.
            let mapping = MmapRaw::from(unsafe { MmapOptions::new().map_copy(&file)? });
            let (start, len) = (mapping.as_mut_ptr(), mapping.len());
            return Ok(Region { start, len, owner: Arc::new(mapping) });
        }
        let mut buffer = Buffer::zeroed(len)?;
        for part in buffer.as_mut_slice().chunks_mut(READ) {
            interrupt::check();
            file.read_exact(part).map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => Error::Format("the file is cut short".into()),
                _ => error.into(),
            })?;
        }
        let start = buffer.as_mut_slice().as_mut_ptr();
        Ok(Region { start, len, owner: Arc::new(buffer) })
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the owner keeps `len` bytes at `start`. The buffers made by `part` are read while
        // this slice lives, and written to only after the frame is open: until then no other thread
        // has them, and no kernel changes a buffer while it opens it.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// The buffer of a section of [`Region::bytes`].
    fn part(&self, section: &[u8]) -> Buffer {
        let offset = section.as_ptr().addr() - self.start.addr();
        // SAFETY: sections lie inside the region, at multiples of 64 from its start, which is
        // aligned to a page or a cache line; each becomes one buffer; the region is kept alive.
        unsafe {
            let start = NonNull::new_unchecked(self.start.add(offset));
            Buffer::mapped(start, section.len(), Box::new(self.owner.clone()))
        }
    }
}

fn open(
    bytes: &[u8],
    keyed: Option<Hasher>,
    own: impl Fn(&[u8]) -> Result<Buffer>,
) -> PyResult<Handle> {
    let (head, sections) = format::read(bytes)?;
    let kernel = kinds::open(&head, &sections, &own)?;
    let hasher = hasher_of(&head, keyed)?;
    Ok(Handle { kernel, hasher, capacity: head.capacity })
}

/// The hash that a frame was written with: its own seed, or the given secret key.
pub fn hasher_of(head: &format::Head, keyed: Option<Hasher>) -> PyResult<Hasher> {
    hasher_for(head.hash, head.tag, keyed, "this filter was built")
}

/// The hash with this id and tag; `what` is used in errors.
pub fn hasher_for(hash: u16, tag: u64, keyed: Option<Hasher>, what: &str) -> PyResult<Hasher> {
    let incompatible = |text: String| Err(tamis_error("IncompatibleError", text));
    match (hash, keyed) {
        (HASH_SEEDED, None) => Ok(Hasher::seeded(tag)),
        (HASH_KEYED, Some(keyed)) if keyed.tag() == tag => Ok(keyed),
        (HASH_KEYED, Some(_)) => {
            incompatible(format!("key is not the one that {what} with ({tag:016x})"))
        }
        (HASH_KEYED, None) => {
            incompatible(format!("{what} with a secret key ({tag:016x}): pass key="))
        }
        (HASH_SEEDED, Some(_)) => incompatible(format!("key is given, but {what} with seed {tag}")),
        (other, _) => Err(tamis_error(
            "FormatError",
            format!("hash {other} is unknown to this version of tamis"),
        )),
    }
}
