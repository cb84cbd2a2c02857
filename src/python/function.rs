//! Static functions: keys with values in, values out.

use super::arrays;
use super::batch::{self, Batch, Distinct};
use super::error::tamis_error;
use super::filter::{Stored, structure};
use super::handle::Handle;
use super::keys::{self, Secret, hasher};
use super::release::released;
use crate::hash::Hasher;
use crate::interrupt;
use crate::memory;
use crate::ribbon::{self, Equation};
use crate::stack::at_layer;
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A `planning.ribbon.RibbonSize`: columns, and the slots of each level that bumps.
#[derive(FromPyObject)]
pub struct Size {
    columns: u32,
    levels: Vec<u64>,
}

/// Distinct keys as hashes, each with its value: `build` counts them before it plans.
#[pyclass(frozen, module = "tamis._native")]
pub struct Assigned {
    pub equations: Vec<Equation>,
    pub hasher: Hasher,
}

#[pymethods]
impl Assigned {
    #[new]
    #[pyo3(signature = (keys, values, seed=0, key=None))]
    fn new(
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: PyReadonlyArray1<'_, u32>,
        #[pyo3(from_py_with = keys::seed)] seed: u64,
        #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
    ) -> PyResult<Assigned> {
        let hasher = hasher(seed, key)?;
        let hashes = batch::hashes(py, &hasher, keys)?;
        let values = values.as_slice()?;
        if hashes.len() != values.len() {
            let (n, given) = (hashes.len(), values.len());
            let message = format!("values has {given} items for {n} keys; pass one per key");
            return Err(PyValueError::new_err(message));
        }
        let equations =
            hashes.into_iter().zip(values).map(|(hash, &value)| Equation { hash, value });
        let mut equations = memory::collected(equations)?;
        released(py, || {
            interrupt::sort(&mut equations);
            equations.dedup();
        })?;
        let conflict = equations.windows(2).find(|pair| pair[0].hash == pair[1].hash);
        if let Some([one, other]) = conflict {
            let (one, other) = (one.value, other.value);
            let message = format!("a key has the values {one} and {other}; a key has one value");
            return Err(tamis_error("BuildError", message));
        }
        Ok(Assigned { equations, hasher })
    }

    /// Value 1 for each key and 0 for each negative, as layer `index` of a stack sees them.
    #[staticmethod]
    fn at_layer(
        py: Python<'_>,
        index: usize,
        keys: &Distinct,
        negatives: &Distinct,
    ) -> PyResult<Assigned> {
        let equations = released(py, || {
            let mut equations = memory::with_capacity(keys.hashes.len() + negatives.hashes.len())?;
            for (set, value) in [(keys, 1), (negatives, 0)] {
                let hashes = set.hashes.partitions().flatten();
                equations
                    .extend(hashes.map(|&hash| Equation { hash: at_layer(hash, index), value }));
            }
            interrupt::sort(&mut equations);
            PyResult::Ok(equations)
        })??;
        Ok(Assigned { equations, hasher: keys.hasher.clone() })
    }

    fn __len__(&self) -> usize {
        self.equations.len()
    }
}

/// A map from keys to values; other keys have arbitrary values.
#[pyclass(extends = Stored, subclass, frozen, mapping, module = "tamis._native")]
pub struct Function;

#[pymethods]
impl Function {
    #[new]
    fn new(handle: &Handle) -> PyResult<PyClassInitializer<Function>> {
        handle.of::<ribbon::Function>()?;
        Ok(PyClassInitializer::from(Stored::new(handle)).add_subclass(Function))
    }

    /// The function of distinct keys with their values, of this size.
    #[staticmethod]
    fn _build(py: Python<'_>, size: Size, keys: &Assigned) -> PyResult<Handle> {
        let Size { columns, levels } = size;
        let kernel = released(py, || ribbon::Function::build(columns, &levels, &keys.equations))??;
        Ok(Handle::new(kernel, keys.equations.len() as u64, keys.hasher.clone()))
    }

    /// The number of bits of a value (r).
    #[getter]
    fn bits(self_: &Bound<'_, Self>) -> PyResult<u32> {
        Ok(structure::<ribbon::Function>(self_)?.1.bits())
    }

    /// Return the value of a key; arbitrary if the key was not in the build.
    fn __getitem__(self_: &Bound<'_, Self>, key: &Bound<'_, PyAny>) -> PyResult<u32> {
        let (stored, function) = structure::<ribbon::Function>(self_)?;
        let mut value = [0];
        function.values(&[stored.hash(key)?], &mut value);
        Ok(value[0])
    }

    /// Return the value of each key.
    fn get<'py>(
        self_: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let (py, (stored, function)) = (self_.py(), structure::<ribbon::Function>(self_)?);
        let keys = Batch::new(keys, &stored.handle.hasher)?;
        let values = arrays::zeros::<u32>(py, keys.len())?;
        // SAFETY: the array is new, so nobody else has it yet.
        let out = unsafe { values.as_slice_mut()? };
        batch::for_each(py, &stored.handle.hasher, &keys, |first, hashes| {
            function.values(hashes, &mut out[first..first + hashes.len()]);
        })?;
        Ok(values)
    }
}
