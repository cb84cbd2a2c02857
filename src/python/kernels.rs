//! Making, combining and opening kernels. Sizes come from `tamis.planning`.

use super::batch::Distinct;
use super::error::of_tamis;
use super::keys::{hash_object, hasher};
use crate::bits::Buffer;
use crate::bloom::{Bloom, Layout, Shape};
use crate::error::{Error, Result};
use crate::format;
use crate::hash::{HASH_KEYED, HASH_SEEDED, Hasher};
use crate::kernel;
use crate::quotient::Growing;
use memmap2::MmapOptions;
use numpy::PyArray1;
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
    fn of<T: kernel::Kernel>(&self) -> PyResult<&T> {
        let any: &dyn Any = &*self.kernel;
        any.downcast_ref().ok_or_else(|| PyValueError::new_err("a kernel of another kind"))
    }

    fn with(&self, kernel: impl kernel::Kernel) -> Kernel {
        Kernel { kernel: Arc::new(kernel), hasher: self.hasher.clone(), capacity: self.capacity }
    }

    /// Two kernels that hash alike.
    fn check_hash(&self, other: &Kernel) -> Result<()> {
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

fn bloom_sizes(layout: &str, bits: u64, hashes: u32) -> PyResult<Shape> {
    let known = Layout::named(layout).ok_or_else(|| {
        let message = format!("layout is {layout:?}; blocked, standard or segmented are possible");
        PyValueError::new_err(message)
    })?;
    Ok(Shape::new(known, bits, hashes, bits)?)
}

/// An empty Bloom filter.
#[pyfunction]
#[pyo3(signature = (layout, bits, hashes, capacity, seed=0, key=None))]
pub fn bloom(
    layout: &str,
    bits: u64,
    hashes: u32,
    capacity: u64,
    seed: u64,
    key: Option<&[u8]>,
) -> PyResult<Kernel> {
    let kernel = Arc::new(Bloom::new(bloom_sizes(layout, bits, hashes)?)?);
    Ok(Kernel { kernel, hasher: hasher(seed, key)?, capacity })
}

/// A Bloom filter of distinct keys.
#[pyfunction]
pub fn bloom_build(
    py: Python<'_>,
    layout: &str,
    bits: u64,
    hashes: u32,
    keys: &Distinct,
) -> PyResult<Kernel> {
    let shape = bloom_sizes(layout, bits, hashes)?;
    let kernel = py.detach(|| Bloom::build(shape, &keys.hashes, keys.threads))?;
    let capacity = keys.hashes.len() as u64;
    Ok(Kernel { kernel: Arc::new(kernel), hasher: keys.hasher.clone(), capacity })
}

/// The bits of either.
#[pyfunction]
pub fn bloom_union(py: Python<'_>, a: &Kernel, b: &Kernel) -> PyResult<Kernel> {
    bloom_merge(py, a, b, Bloom::union)
}

/// The bits of both.
#[pyfunction]
pub fn bloom_intersection(py: Python<'_>, a: &Kernel, b: &Kernel) -> PyResult<Kernel> {
    bloom_merge(py, a, b, Bloom::intersection)
}

fn bloom_merge(
    py: Python<'_>,
    a: &Kernel,
    b: &Kernel,
    merge: fn(&Bloom, &Bloom) -> Result<Bloom>,
) -> PyResult<Kernel> {
    a.check_hash(b)?;
    let (one, other) = (a.of::<Bloom>()?, b.of::<Bloom>()?);
    let merged = py.detach(|| merge(one, other))?;
    Ok(Kernel { capacity: a.capacity.max(b.capacity), ..a.with(merged) })
}

/// How many keys the set bits tell of.
#[pyfunction]
pub fn bloom_cardinality(py: Python<'_>, kernel: &Kernel) -> PyResult<f64> {
    let bloom = kernel.of::<Bloom>()?;
    Ok(py.detach(|| bloom.cardinality()))
}

/// The first bits of a segmented filter.
#[pyfunction]
pub fn bloom_truncated(py: Python<'_>, kernel: &Kernel, bits: u64) -> PyResult<Kernel> {
    let bloom = kernel.of::<Bloom>()?;
    Ok(kernel.with(py.detach(|| bloom.truncated(bits))?))
}

/// Layout, bits of the whole, probes per key, bits kept.
#[pyfunction]
pub fn bloom_shape(kernel: &Kernel) -> PyResult<(&'static str, u64, u32, u64)> {
    let Shape { layout, bits, hashes, kept, .. } = kernel.of::<Bloom>()?.shape();
    Ok((layout.name(), bits, hashes, kept))
}

/// An empty quotient filter.
#[pyfunction]
#[pyo3(signature = (quotients, remainder_bits, capacity, seed=0, key=None))]
pub fn quotient(
    quotients: u64,
    remainder_bits: u32,
    capacity: u64,
    seed: u64,
    key: Option<&[u8]>,
) -> PyResult<Kernel> {
    let kernel = Arc::new(Growing::new(quotients, remainder_bits, capacity)?);
    Ok(Kernel { kernel, hasher: hasher(seed, key)?, capacity })
}

/// A quotient filter of distinct keys.
#[pyfunction]
pub fn quotient_build(
    py: Python<'_>,
    quotients: u64,
    remainder_bits: u32,
    keys: &Distinct,
) -> PyResult<Kernel> {
    let kernel = py.detach(|| Growing::build(quotients, remainder_bits, &keys.hashes))?;
    let capacity = keys.hashes.len() as u64;
    Ok(Kernel { kernel: Arc::new(kernel), hasher: keys.hasher.clone(), capacity })
}

/// The insertions of both.
#[pyfunction]
pub fn quotient_merge(py: Python<'_>, a: &Kernel, b: &Kernel) -> PyResult<Kernel> {
    a.check_hash(b)?;
    let (one, other) = (a.of::<Growing>()?, b.of::<Growing>()?);
    let merged = py.detach(|| one.merge(other))?;
    let capacity = kernel::Kernel::capacity(&merged).unwrap_or(a.capacity);
    Ok(Kernel { capacity, ..a.with(merged) })
}

/// Doubles the slots in place.
#[pyfunction]
pub fn quotient_grow(py: Python<'_>, kernel: &Kernel) -> PyResult<()> {
    let quotient = kernel.of::<Growing>()?;
    Ok(py.detach(|| quotient.double())?)
}

/// How often the key, or another with its fingerprint, was inserted and not removed.
#[pyfunction]
pub fn quotient_count(kernel: &Kernel, key: &Bound<'_, PyAny>) -> PyResult<u64> {
    let (hash, _) = hash_object(&kernel.hasher, key).map_err(|reason| reason.named("key"))?;
    Ok(kernel.of::<Growing>()?.look(|quotient| quotient.count(hash)))
}

/// Quotients, bits of a remainder, slots in use, slots.
#[pyfunction]
pub fn quotient_shape(kernel: &Kernel) -> PyResult<(u64, u32, u64, u64)> {
    Ok(kernel.of::<Growing>()?.look(|quotient| {
        (quotient.quotients(), quotient.remainder_bits(), quotient.used_slots(), quotient.slots())
    }))
}

/// A column of a table of numbers.
type Numbers<'py> = Bound<'py, PyArray1<u64>>;

/// The fingerprints of a range of quotients, in order: quotients, remainders, counts.
#[pyfunction]
pub fn quotient_fingerprints<'py>(
    py: Python<'py>,
    kernel: &Kernel,
    start: u64,
    stop: u64,
) -> PyResult<(Numbers<'py>, Numbers<'py>, Numbers<'py>)> {
    let growing = kernel.of::<Growing>()?;
    let (mut quotients, mut remainders, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    py.detach(|| {
        growing.look(|quotient| {
            for (quotient, remainder, count) in quotient.fingerprints(start..stop) {
                quotients.push(quotient);
                remainders.push(remainder);
                counts.push(count);
            }
        });
    });
    let numbers = |values| PyArray1::from_vec(py, values);
    Ok((numbers(quotients), numbers(remainders), numbers(counts)))
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
    let kernel = kernel::open(&head, &sections, own)?;
    Ok(Kernel { kernel, hasher, capacity: head.capacity })
}
