//! The classes of the contract: saving, querying, inserting, deleting, each based on the previous
//! one. `tamis.filters` derives the public classes from them.

use super::arrays;
use super::batch;
use super::error::{catch_damage, class};
use super::files::Buffered;
use super::handle::Handle;
use super::keys::{self, hash_object};
use super::release::{briefly, read, released};
use crate::error::{Error, Result};
use crate::format::Frame;
use crate::hash::{HASH_KEYED, Hash128, Hasher};
use crate::kernel;
use crate::lock::holding_interpreter;
use numpy::PyArray1;
use pyo3::PyClass;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::fs::File;
use std::io::Write;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Has a size and can be saved; the base of every class that holds a structure.
#[pyclass(subclass, frozen, module = "tamis._native")]
pub struct Stored {
    pub(super) handle: Handle,
    /// Whether the caller was already warned that the filter is overfull.
    warned: AtomicBool,
}

/// The structure of an instance of a kind's class.
pub(super) fn structure<'a, T: kernel::Kernel>(
    instance: &'a Bound<'_, impl PyClass>,
) -> PyResult<(&'a Stored, &'a T)> {
    let stored = instance.as_any().cast::<Stored>()?.get();
    Ok((stored, stored.handle.of::<T>()?))
}

impl Stored {
    #[inline(always)]
    pub(super) fn hash(&self, key: &Bound<'_, PyAny>) -> PyResult<Hash128> {
        hash_object(&self.handle.hasher, key)
            .map(|(hash, _)| hash)
            .map_err(|reason| reason.named("key"))
    }

    fn capacity_in_keys(&self) -> u64 {
        self.handle.kernel.capacity().unwrap_or(self.handle.capacity)
    }

    /// Changes the kernel: directly, or with the interpreter released if that would wait.
    pub(super) fn change<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&dyn kernel::Kernel) -> Result<R> + Send,
    ) -> Result<R> {
        let work = || catch_damage(|| work(&*self.handle.kernel))?;
        if self.handle.kernel.busy() { briefly(py, work) } else { holding_interpreter(work) }
    }

    /// Warns once that the filter holds more keys than planned.
    #[inline]
    pub(super) fn warn_if_overfull(&self, py: Python<'_>) -> PyResult<()> {
        let overfull = || self.handle.kernel.overfull(self.handle.capacity);
        if !self.warned.load(Relaxed) && read(py, overfull) {
            return self.warn(py);
        }
        Ok(())
    }

    #[cold]
    fn warn(&self, py: Python<'_>) -> PyResult<()> {
        if self.warned.swap(true, Relaxed) {
            return Ok(());
        }
        let message = format!(
            "the filter has more keys than its capacity of {}, including repetitions if it stores \
             them; its false-positive rate rises, see expected_fpr",
            self.handle.capacity
        );
        let message = std::ffi::CString::new(message).unwrap_or_default();
        PyErr::warn(py, class(py, "CapacityWarning")?.as_any(), &message, 1)
    }

    /// Calls `write` with the frame, while no writer changes the filter.
    fn with_frame<T>(&self, write: impl FnOnce(&Frame<'_>) -> Result<T>) -> Result<T> {
        let hash = (self.handle.hasher.id(), self.handle.hasher.tag());
        let capacity = self.capacity_in_keys();
        catch_damage(|| write(&kernel::frame(&*self.handle.kernel, hash, capacity)?))?
    }
}

#[pymethods]
impl Stored {
    #[new]
    pub(super) fn new(handle: &Handle) -> Stored {
        Stored { handle: handle.clone(), warned: AtomicBool::new(false) }
    }

    /// Return the number of keys; an estimate in some kinds if there are many, or after a merge.
    fn __len__(&self, py: Python<'_>) -> usize {
        read(py, || self.handle.kernel.count()).min(isize::MAX as u64) as usize
    }

    /// The number of keys that the filter is sized for.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> u64 {
        read(py, || self.capacity_in_keys())
    }

    /// The size in bits.
    #[getter]
    fn size_in_bits(&self, py: Python<'_>) -> u64 {
        read(py, || self.handle.kernel.size_in_bits())
    }

    /// The seed of the hash, or None if a secret key is used instead.
    #[getter]
    fn seed(&self) -> Option<u64> {
        (self.handle.hasher.id() != HASH_KEYED).then(|| self.handle.hasher.tag())
    }

    /// The structure, shared, to be joined into a larger one.
    #[getter]
    fn _handle(&self, py: Python<'_>) -> Handle {
        Handle { capacity: self.capacity(py), ..self.handle.clone() }
    }

    /// The structure, copied.
    fn _copied(&self, py: Python<'_>) -> PyResult<Handle> {
        let kernel = released(py, || catch_damage(|| self.handle.kernel.copy()))???;
        Ok(Handle { kernel, ..self._handle(py) })
    }

    /// A copy of an empty structure that hashes with another seed.
    fn _reseeded(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = keys::seed)] seed: u64,
    ) -> PyResult<Handle> {
        let copy = self._copied(py)?;
        if copy.kernel.count() > 0 || copy.hasher.id() == HASH_KEYED {
            return Err(PyValueError::new_err(
                "only an empty filter with a seed takes another one",
            ));
        }
        Ok(Handle { hasher: Hasher::seeded(seed), ..copy })
    }

    /// Return the filter as bytes, as `save` writes them.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let frame = released(py, || self.with_frame(|frame| frame.to_bytes()))??;
        arrays::bytes(py, &frame)
    }

    /// Write the frame to an open file.
    fn _write(&self, py: Python<'_>, descriptor: RawFd) -> PyResult<()> {
        Ok(released(py, || {
            // SAFETY: the caller keeps the descriptor open during this call.
            let file = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned()?;
            let mut out = Buffered::new(File::from(file))?;
            self.with_frame(|frame| Ok(frame.write(&mut out)?))?;
            Result::Ok(out.flush()?)
        })??)
    }
}

/// Answers queries; the base of every filter.
#[pyclass(extends = Stored, subclass, frozen, module = "tamis._native")]
pub struct Filter;

#[pymethods]
impl Filter {
    #[new]
    pub(super) fn new(handle: &Handle) -> PyClassInitializer<Filter> {
        PyClassInitializer::from(Stored::new(handle)).add_subclass(Filter)
    }

    /// Tell whether the key may be in the set; False is certain.
    fn __contains__(self_: &Bound<'_, Self>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let stored = self_.as_super().get();
        let hash = stored.hash(key)?;
        match catch_damage(|| stored.handle.kernel.try_contains_one(hash))? {
            Some(answer) => Ok(answer),
            None => {
                Ok(briefly(key.py(), || catch_damage(|| stored.handle.kernel.contains_one(hash)))?)
            }
        }
    }

    /// Return for each key whether it may be in the set.
    ///
    /// An array or Arrow column of millions of keys is answered with all cores. Most filters that
    /// are larger than the caches answer it in the order of their memory, which takes up to 23
    /// bytes per key meanwhile, at most 45 MiB per core.
    fn contains<'py>(
        self_: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let stored = self_.as_super().get();
        batch::contains(self_.py(), &*stored.handle.kernel, &stored.handle.hasher, keys)
    }

    /// The false-positive rate, given the stored keys: of random absent keys, or if the filter
    /// knows its workload, of its queries.
    #[getter]
    fn expected_fpr(self_: &Bound<'_, Self>) -> PyResult<f64> {
        let stored = self_.as_super().get();
        Ok(briefly(self_.py(), || catch_damage(|| stored.handle.kernel.rate()))?)
    }

    /// The false-positive rate of an absent key that is not in the workload.
    #[getter]
    fn fpr_bound(self_: &Bound<'_, Self>) -> PyResult<f64> {
        let stored = self_.as_super().get();
        Ok(briefly(self_.py(), || catch_damage(|| stored.handle.kernel.unseen_rate()))?)
    }
}

/// A filter that supports insertion.
#[pyclass(extends = Filter, subclass, frozen, module = "tamis._native")]
pub struct Inserting;

#[pymethods]
impl Inserting {
    #[new]
    pub(super) fn new(handle: &Handle) -> PyClassInitializer<Inserting> {
        Filter::new(handle).add_subclass(Inserting)
    }

    /// Insert a key.
    fn add(self_: &Bound<'_, Self>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let filter = self_.as_super().as_super().get();
        let hash = filter.hash(key)?;
        filter.change(self_.py(), |kernel| kernel.insert(&[hash]))?;
        filter.warn_if_overfull(self_.py())
    }

    /// Insert many keys; if one is not a valid key, none is inserted. An iterator is read and inserted
    /// in pieces, of which earlier ones stay.
    fn update(self_: &Bound<'_, Self>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let filter = self_.as_super().as_super().get();
        batch::insert(self_.py(), &*filter.handle.kernel, &filter.handle.hasher, keys)?;
        filter.warn_if_overfull(self_.py())
    }
}

/// A filter that supports insertion and deletion.
#[pyclass(extends = Inserting, subclass, frozen, module = "tamis._native")]
pub struct Deleting;

#[pymethods]
impl Deleting {
    #[new]
    pub(super) fn new(handle: &Handle) -> PyClassInitializer<Deleting> {
        Inserting::new(handle).add_subclass(Deleting)
    }

    /// Remove one insertion of the key; KeyError if it is certainly absent.
    fn remove(self_: &Bound<'_, Self>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let filter = self_.as_super().as_super().as_super().get();
        let hash = filter.hash(key)?;
        match filter.change(self_.py(), |kernel| kernel.remove(hash)) {
            Err(Error::Absent(_)) => Err(PyKeyError::new_err(key.clone().unbind())),
            other => Ok(other?),
        }
    }

    /// Remove one insertion of each key; return for each whether it may have been present.
    fn remove_many<'py>(
        self_: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let filter = self_.as_super().as_super().as_super().get();
        let hashes = batch::hashes(self_.py(), &filter.handle.hasher, keys)?;
        batch::remove(self_.py(), &*filter.handle.kernel, &hashes)
    }
}
