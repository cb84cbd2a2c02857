//! Kinds at the boundary: their table, which Python reads, and the macro that makes a kind's class.

use crate::kernel::Kind;
use crate::kinds::KINDS;
use pyo3::prelude::*;

/// Makes the native class of a kind over its kernel, with one of the classes of the contract as base:
/// `kind_class!(/// A cuckoo filter. Cuckoo(Kernel) extends Deleting, empty, build from Size)`.
///
/// `Size` is the size that Python's planning module of the kind returns. `empty` makes `_empty` of
/// its `fn empty(&self, capacity)`, and `build` makes `_build` of its `fn build(&self, keys,
/// capacity)`. Arguments in addition to the size, `from Size, extending: bool`, come first in both.
macro_rules! kind_class {
    ($(#[$doc:meta])* $class:ident($kernel:ty) extends $base:ident $(, $method:ident)*
     $(from $size:ident $(, $name:ident: $type:ty)*)?) => {
        $(#[$doc])*
        #[pyclass(extends = $base, subclass, frozen, module = "tamis._native")]
        pub struct $class;

        #[pymethods]
        impl $class {
            #[new]
            fn new(handle: &$crate::python::handle::Handle) -> PyResult<PyClassInitializer<$class>> {
                handle.of::<$kernel>()?;
                Ok(PyClassInitializer::<$base>::from($base::new(handle)).add_subclass($class))
            }
        }

        kind_class!(@methods $class [$($method)*] $($size [$($name: $type)*])?);
    };
    (@methods $class:ident []) => {};
    (@methods $class:ident [] $size:ident $arguments:tt) => {};
    (@methods $class:ident [$method:ident $($rest:ident)*] $size:ident $arguments:tt) => {
        kind_class!(@$method $class $size $arguments);
        kind_class!(@methods $class [$($rest)*] $size $arguments);
    };
    (@empty $class:ident $size:ident [$($name:ident: $type:ty)*]) => {
        #[pymethods]
        impl $class {
            /// An empty filter of this size.
            #[staticmethod]
            #[pyo3(signature = (size, $($name,)* capacity, seed=0, key=None))]
            fn _empty(
                size: $size,
                $($name: $type,)*
                capacity: u64,
                #[pyo3(from_py_with = $crate::python::keys::seed)] seed: u64,
                #[pyo3(from_py_with = $crate::python::keys::secret)]
                key: Option<$crate::python::keys::Secret>,
            ) -> PyResult<$crate::python::handle::Handle> {
                let hasher = $crate::python::keys::hasher(seed, key)?;
                let kernel = size.empty($($name,)* capacity)?;
                Ok($crate::python::handle::Handle::new(kernel, capacity, hasher))
            }
        }
    };
    (@build $class:ident $size:ident [$($name:ident: $type:ty)*]) => {
        #[pymethods]
        impl $class {
            /// The filter of distinct keys, of this size, with capacity for more if that is larger.
            #[staticmethod]
            #[pyo3(signature = (size, $($name,)* keys, capacity=0))]
            fn _build(
                py: Python<'_>,
                size: $size,
                $($name: $type,)*
                keys: &$crate::python::batch::Distinct,
                capacity: u64,
            ) -> PyResult<$crate::python::handle::Handle> {
                let capacity = capacity.max(keys.hashes.len() as u64);
                let kernel = $crate::python::release::released(py, || size.build($($name,)* keys, capacity))??;
                Ok($crate::python::handle::Handle::new(kernel, capacity, keys.hasher.clone()))
            }
        }
    };
}
pub(super) use kind_class;

/// A row of the table of kinds.
#[pyclass(frozen, module = "tamis._native")]
pub struct KindRow(&'static Kind);

#[pymethods]
impl KindRow {
    /// Its number in a frame.
    #[getter]
    fn number(&self) -> u16 {
        self.0.number
    }

    /// Its name.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name
    }

    /// Whether it may be a layer of a stack.
    #[getter]
    fn layer(&self) -> bool {
        self.0.layer
    }

    /// Whether every filter of the kind takes keys after it was built.
    #[getter]
    fn inserts(&self) -> bool {
        self.0.inserts
    }

    /// Whether every filter of the kind deletes keys.
    #[getter]
    fn deletes(&self) -> bool {
        self.0.deletes
    }

    /// Whether it counts how often a key was inserted.
    #[getter]
    fn counts(&self) -> bool {
        self.0.counts
    }

    /// Whether it refuses keys beyond its capacity.
    #[getter]
    fn bounded(&self) -> bool {
        self.0.bounded
    }

    /// Whether two filters of the kind can be merged.
    #[getter]
    fn merges(&self) -> bool {
        self.0.merges
    }

    /// Whether it changes its answers when a false positive is reported to it.
    #[getter]
    fn adapts(&self) -> bool {
        self.0.adapts
    }

    /// Whether it forgets keys, so that it may reject one that was inserted.
    #[getter]
    fn forgets(&self) -> bool {
        self.0.forgets
    }

    fn __repr__(&self) -> String {
        format!("KindRow({}, {:?})", self.0.number, self.0.name)
    }
}

/// Every kind, in ascending order of number.
#[pyfunction]
pub fn kinds() -> Vec<KindRow> {
    KINDS.into_iter().map(KindRow).collect()
}
