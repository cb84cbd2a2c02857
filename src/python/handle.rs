//! Kernels as Python holds them: a handle, and the ways to open one from bytes.

use super::error::of_tamis;
use super::keys::hasher;
use crate::bits::Buffer;
use crate::error::{Error, Result};
use crate::format;
use crate::hash::{HASH_KEYED, HASH_SEEDED, Hasher};
use crate::kernel;
use memmap2::MmapOptions;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::any::Any;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

/// A handle: a structure and the hash it was built with, for a class of the contract to carry.
#[pyclass(frozen, module = "tamis._native")]
#[derive(Clone)]
pub struct Kernel {
    pub kernel: Arc<dyn kernel::Kernel>,
    pub hasher: Hasher,
    pub capacity: u64,
}

#[pymethods]
impl Kernel {
    /// Which structure, as a file says it.
    #[getter]
    fn kind(&self) -> u16 {
        self.kernel.kind()
    }
}

impl Kernel {
    /// The structure, if it is a `T`.
    pub fn of<T: kernel::Kernel>(&self) -> PyResult<&T> {
        let any: &dyn Any = &*self.kernel;
        any.downcast_ref().ok_or_else(|| PyValueError::new_err("a kernel of another kind"))
    }

    /// Another structure with the same hash and capacity.
    pub fn with(&self, kernel: impl kernel::Kernel) -> Kernel {
        Kernel { kernel: Arc::new(kernel), hasher: self.hasher.clone(), capacity: self.capacity }
    }

    /// Refuses two kernels that do not hash alike.
    pub fn check_hash(&self, other: &Kernel) -> Result<()> {
        if self.hasher.same_as(&other.hasher) {
            return Ok(());
        }
        let told = |hasher: &Hasher| match hasher.id() {
            HASH_KEYED => format!("a secret key ({:016x})", hasher.tag()),
            _ => format!("seed {}", hasher.tag()),
        };
        Err(Error::Incompatible(format!(
            "filters merge only if they hash alike: one has {}, the other {}",
            told(&self.hasher),
            told(&other.hasher)
        )))
    }
}

/// The filter in a frame of bytes.
#[pyfunction]
#[pyo3(signature = (frame, key=None))]
pub fn open_bytes(py: Python<'_>, frame: PyBuffer<u8>, key: Option<&[u8]>) -> PyResult<Kernel> {
    let hasher = key.map(|key| hasher(0, Some(key))).transpose()?;
    if !frame.is_c_contiguous() {
        return Err(PyValueError::new_err("data is not contiguous; bytes are wanted"));
    }
    // SAFETY: a contiguous buffer of this length, which is kept until the end of the call. A
    // caller who writes to it meanwhile gets a FormatError or the filter he wrote.
    let bytes =
        unsafe { std::slice::from_raw_parts(frame.buf_ptr().cast::<u8>(), frame.len_bytes()) };
    py.detach(|| open(bytes, hasher, Buffer::copied))
}

/// The filter in a file: read into memory, or answering from a private mapping.
#[pyfunction]
#[pyo3(signature = (path, mmap=false, key=None))]
pub fn open_file(
    py: Python<'_>,
    path: PathBuf,
    mmap: bool,
    key: Option<&[u8]>,
) -> PyResult<Kernel> {
    let hasher = key.map(|key| hasher(0, Some(key))).transpose()?;
    py.detach(|| {
        let mut file = File::open(&path)?;
        let length = file.metadata()?.len();
        if !mmap || length == 0 {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            return open(&bytes, hasher, Buffer::copied);
        }
        // SAFETY: saved files are replaced, never changed in place, so the mapping keeps its
        // content; copy-on-write keeps our insertions out of the file.
        let mapping = unsafe { MmapOptions::new().map_copy(&file)? };
        let mapping = Arc::new(mapping);
        let own = |section: &[u8]| {
            let start = NonNull::from(section).cast::<u8>();
            // SAFETY: sections start at multiples of 64 in a mapping that starts at a page, no
            // two buffers are made of one section, and the mapping is kept.
            Ok(unsafe { Buffer::mapped(start, section.len(), Box::new(mapping.clone())) })
        };
        open(&mapping, hasher, own)
    })
}

fn open(
    bytes: &[u8],
    keyed: Option<Hasher>,
    own: impl Fn(&[u8]) -> Result<Buffer>,
) -> PyResult<Kernel> {
    let (head, sections) = format::read(bytes)?;
    let hasher = match (head.hash, keyed) {
        (HASH_SEEDED, None) => Hasher::seeded(head.tag),
        (HASH_KEYED, Some(keyed)) if keyed.tag() == head.tag => keyed,
        (HASH_KEYED, Some(_)) => {
            return Err(of_tamis(
                "IncompatibleError",
                format!("key is not the one this filter was built with ({:016x})", head.tag),
            ));
        }
        (HASH_KEYED, None) => {
            return Err(of_tamis(
                "IncompatibleError",
                format!("this filter was built with a secret key ({:016x}): give key=", head.tag),
            ));
        }
        (HASH_SEEDED, Some(_)) => {
            return Err(of_tamis(
                "IncompatibleError",
                format!("key is given, but this filter was built with seed {}", head.tag),
            ));
        }
        (other, _) => {
            return Err(of_tamis("FormatError", format!("hash {other} is unknown to this tamis")));
        }
    };
    let kernel = kernel::open(&head, &sections, &own)?;
    Ok(Kernel { kernel, hasher, capacity: head.capacity })
}
