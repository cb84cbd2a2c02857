//! Keys by shard, in memory or spilled to disk, for builds larger than one structure or than
//! memory. Python decides the number of shards and the location of files.

use super::batch::{Batch, Distinct, for_each};
use super::filter::{Filter, structure};
use super::handle::{Handle, named};
use super::keys::{self, Secret, hasher};
use super::kinds::kind_class;
use super::release::released;
use crate::distinct;
use crate::error::Result;
use crate::hash::{Hash128, Hasher};
use crate::interrupt;
use crate::lock::{RwLock, WriteGuard};
use crate::memory::{self, TryGrow};
use crate::sharded::{Sharded as Kernel, shard_of};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::PathBuf;

/// Hashes of a partition buffered in memory before they are written to its file: 64 KiB, for few
/// large writes.
const WAITING: usize = 1 << 12;

/// Hashes of keys by shard: in memory, or in a file each.
#[pyclass(frozen, module = "tamis._native")]
pub struct Spill {
    hasher: Hasher,
    partitions: RwLock<Vec<Partition>>,
}

#[derive(Default)]
struct Partition {
    waiting: Vec<Hash128>,
    file: Option<File>,
    written: usize,
}

impl Partition {
    fn len(&self) -> usize {
        self.written + self.waiting.len()
    }

    fn flush(&mut self) -> Result<()> {
        if let Some(file) = &mut self.file {
            file.write_all(as_bytes(&self.waiting))?;
            self.written += self.waiting.len();
            self.waiting.clear();
        }
        Ok(())
    }

    /// A second handle on the same hashes, to read them again later.
    fn again(&self) -> Result<Partition> {
        let file = self.file.as_ref().map(File::try_clone).transpose()?;
        Ok(Partition { waiting: memory::copied(&self.waiting)?, file, written: self.written })
    }

    /// All added hashes, in order.
    fn read(&mut self) -> Result<Vec<Hash128>> {
        let Some(file) = &mut self.file else { return Ok(std::mem::take(&mut self.waiting)) };
        let mut bytes = memory::filled(self.written * size_of::<Hash128>(), 0)?;
        file.rewind()?;
        file.read_exact(&mut bytes)?;
        let half = |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes);
        let (pairs, _) = bytes.as_chunks::<16>();
        let mut hashes = memory::with_capacity(pairs.len() + self.waiting.len())?;
        hashes.extend(pairs.iter().filter_map(|pair| {
            let (hi, lo) = (pair.first_chunk()?, pair.last_chunk()?);
            Some(Hash128 { hi: half(hi), lo: half(lo) })
        }));
        hashes.append(&mut self.waiting);
        Ok(hashes)
    }
}

fn as_bytes(hashes: &[Hash128]) -> &[u8] {
    // SAFETY: a Hash128 is two u64 without padding (repr(C)), and any byte may be read.
    unsafe { std::slice::from_raw_parts(hashes.as_ptr().cast(), size_of_val(hashes)) }
}

impl Spill {
    fn lock(&self) -> WriteGuard<'_, Vec<Partition>> {
        self.partitions.write()
    }
}

#[pymethods]
impl Spill {
    #[new]
    #[pyo3(signature = (partitions, files, seed=0, key=None))]
    fn new(
        partitions: usize,
        files: Option<Vec<PathBuf>>,
        #[pyo3(from_py_with = keys::seed)] seed: u64,
        #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
    ) -> PyResult<Spill> {
        let open = |i: usize| {
            let file = match &files {
                Some(files) => {
                    let path = files.get(i).ok_or_else(|| {
                        PyValueError::new_err(format!("files has no path for partition {i}"))
                    })?;
                    let mut new = File::options();
                    let new = new.read(true).write(true).create_new(true).open(path);
                    Some(new.map_err(|error| named(error.into(), path))?)
                }
                None => None,
            };
            PyResult::Ok(Partition { file, ..Partition::default() })
        };
        let partitions = memory::collected_ok((0..partitions).map(open))?;
        Ok(Spill { hasher: hasher(seed, key)?, partitions: RwLock::new(partitions) })
    }

    /// Hashes a column of keys and adds each hash to its partition.
    fn add(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut failed = Ok(());
        for_each(py, &self.hasher, &Batch::new(keys, &self.hasher)?, |_, hashes| {
            let mut partitions = self.lock();
            let count = partitions.len() as u64;
            for &hash in hashes {
                let partition = &mut partitions[shard_of(hash, count)];
                if failed.is_ok() {
                    failed = partition.waiting.try_push(hash);
                }
                if partition.waiting.len() >= WAITING && failed.is_ok() {
                    failed = partition.flush();
                }
            }
        })?;
        Ok(failed?)
    }

    /// The number of hashes of each partition, repetitions included.
    fn lengths(&self) -> Vec<usize> {
        self.partitions.read().iter().map(Partition::len).collect()
    }

    /// Drops repetitions among the hashes in memory.
    fn compact(&self, py: Python<'_>) -> PyResult<()> {
        released(py, || {
            let count = self.lock().len();
            for i in 0..count {
                interrupt::check();
                let partition = &mut self.lock()[i];
                partition.waiting.sort_unstable();
                partition.waiting.dedup();
                partition.waiting.shrink_to_fit();
            }
        })
    }

    /// The distinct keys of partitions `start` to `stop`, which are removed unless kept.
    #[pyo3(signature = (start, stop, keep=false))]
    fn distinct(
        &self,
        py: Python<'_>,
        start: usize,
        stop: usize,
        keep: bool,
    ) -> PyResult<Distinct> {
        let hashes = released(py, || {
            // Removed under the lock, read without it: threads build shards side by side.
            let taken: Vec<Partition> = match self.lock().get_mut(start..stop) {
                Some(range) if keep => memory::collected_ok(range.iter().map(Partition::again))?,
                Some(range) => memory::collected(range.iter_mut().map(std::mem::take))?,
                None => Vec::new(),
            };
            let count = taken.iter().map(Partition::len).sum();
            let mut partitions = distinct::Partitions::new(count, count)?;
            for mut partition in taken {
                partitions.extend(&partition.read()?);
            }
            PyResult::Ok(distinct::Distinct::new(vec![partitions], 1)?)
        })??;
        Ok(Distinct { hashes, hasher: self.hasher.clone(), threads: 1 })
    }
}

kind_class! {
    /// A filter in shards.
    Sharded(Kernel) extends Filter
}

#[pymethods]
impl Sharded {
    /// One filter of shards, each with its index among `total`. Its capacity is the sum of theirs
    /// unless given.
    #[staticmethod]
    #[pyo3(signature = (shards, total, capacity=None))]
    fn _join(
        shards: Vec<(usize, PyRef<'_, Handle>)>,
        total: u64,
        capacity: Option<u64>,
    ) -> PyResult<Handle> {
        let Some((_, first)) = shards.first() else {
            return Err(PyValueError::new_err("shards is empty; pass at least one"));
        };
        shards.iter().try_for_each(|(_, shard)| first.check_hash(shard))?;
        let sum = || shards.iter().map(|(_, shard)| shard.capacity).sum();
        let capacity = capacity.unwrap_or_else(sum);
        let kernels = shards.iter().map(|(index, shard)| (*index, shard.kernel.clone()));
        let kernels = memory::collected(kernels)?;
        Ok(Handle::new(Kernel::new(total, kernels)?, capacity, first.hasher.clone()))
    }

    /// The shards that are present, each with its index.
    fn _present(self_: &Bound<'_, Self>) -> PyResult<Vec<(usize, Handle)>> {
        let (stored, sharded) = structure::<Kernel>(self_)?;
        let handle = |(index, kernel): (usize, &std::sync::Arc<dyn crate::kernel::Kernel>)| {
            let (kernel, capacity) = (kernel.clone(), kernel.count());
            (index, Handle { kernel, capacity, hasher: stored.handle.hasher.clone() })
        };
        Ok(sharded.present().map(handle).collect())
    }

    /// The number of shards.
    #[getter]
    fn shards(self_: &Bound<'_, Self>) -> PyResult<usize> {
        Ok(structure::<Kernel>(self_)?.1.total())
    }
}
