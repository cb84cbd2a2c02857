//! Static functions: keys with values in, values out.

use super::batch;
use super::column::Keys;
use super::error::of_tamis;
use super::filter::Stored;
use super::handle::Kernel;
use super::keys::{self, hasher};
use crate::hash::Hasher;
use crate::ribbon::{self, Equation};
use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// Distinct keys as hashes, each with its value: what `build` counts before it plans.
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
        key: Option<&[u8]>,
    ) -> PyResult<Assigned> {
        let hasher = hasher(seed, key)?;
        let hashes = batch::hashes(py, &hasher, keys)?;
        let values = values.as_slice()?;
        if hashes.len() != values.len() {
            let (n, given) = (hashes.len(), values.len());
            let message = format!("values has {given} items for {n} keys; one per key is wanted");
            return Err(PyValueError::new_err(message));
        }
        let equations =
            hashes.into_iter().zip(values).map(|(hash, &value)| Equation { hash, value });
        let mut equations: Vec<Equation> = equations.collect();
        py.detach(|| {
            equations.sort_unstable();
            equations.dedup();
        });
        let conflict = equations.windows(2).find(|pair| pair[0].hash == pair[1].hash);
        if let Some([one, other]) = conflict {
            let (one, other) = (one.value, other.value);
            let message = format!("a key has the values {one} and {other}; a key has one value");
            return Err(of_tamis("BuildError", message));
        }
        Ok(Assigned { equations, hasher })
    }

    fn __len__(&self) -> usize {
        self.equations.len()
    }
}

/// A static function of distinct keys, with the slots of each level that bumps.
#[pyfunction]
pub fn function_build(
    py: Python<'_>,
    bits: u32,
    levels: Vec<u64>,
    keys: &Assigned,
) -> PyResult<Kernel> {
    let kernel = py.detach(|| ribbon::Function::build(bits, &levels, &keys.equations))?;
    let capacity = keys.equations.len() as u64;
    Ok(Kernel { kernel: Arc::new(kernel), hasher: keys.hasher.clone(), capacity })
}

/// Bits of a value.
#[pyfunction]
pub fn function_bits(kernel: &Kernel) -> PyResult<u32> {
    Ok(kernel.of::<ribbon::Function>()?.bits())
}

/// Tells the value of each of its keys, and anything for others.
#[pyclass(extends = Stored, subclass, frozen, mapping, module = "tamis._native")]
pub struct Function;

#[pymethods]
impl Function {
    #[new]
    fn new(kernel: &Kernel) -> PyClassInitializer<Function> {
        PyClassInitializer::from(Stored::over(kernel)).add_subclass(Function)
    }

    /// Return the value of a key; of one it was not built from, any.
    fn __getitem__(self_: &Bound<'_, Self>, key: &Bound<'_, PyAny>) -> PyResult<u32> {
        let stored = self_.as_super().get();
        let mut value = [0];
        stored.of::<ribbon::Function>()?.values(&[stored.hash(key)?], &mut value);
        Ok(value[0])
    }

    /// Return the value of each key.
    fn get<'py>(
        self_: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let (py, stored) = (self_.py(), self_.as_super().get());
        let (function, keys) = (stored.of::<ribbon::Function>()?, Keys::new(keys)?);
        let values = PyArray1::<u32>::zeros(py, keys.len(), false);
        // SAFETY: the array was just made, and nobody else has it yet.
        let out = unsafe { values.as_slice_mut()? };
        batch::for_each(py, &stored.hasher, keys, |first, hashes| {
            function.values(hashes, &mut out[first..first + hashes.len()]);
        })?;
        Ok(values)
    }
}
