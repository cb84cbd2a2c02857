//! Arrays, bytes and lists for Python whose size follows the input: made, or `MemoryError`. The
//! constructors of the crates `pyo3` and `numpy` panic if Python has no memory left.

use crate::memory;
use numpy::npyffi::npy_intp;
use numpy::{
    Element, Ix1, Ix2, PY_ARRAY_API, PyArray, PyArray1, PyArray2, PyArrayDescrMethods, dtype,
};
use pyo3::PyTypeInfo;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// An array of zeros.
pub fn zeros<T: Element>(py: Python<'_>, len: usize) -> PyResult<Bound<'_, PyArray1<T>>> {
    new::<T, Ix1, 1>(py, [len])
}

/// Rows of two zeros.
pub fn pairs<T: Element>(py: Python<'_>, rows: usize) -> PyResult<Bound<'_, PyArray2<T>>> {
    new::<T, Ix2, 2>(py, [rows, 2])
}

fn new<T: Element, D, const N: usize>(
    py: Python<'_>,
    shape: [usize; N],
) -> PyResult<Bound<'_, PyArray<T, D>>> {
    let mut shape = shape.map(|length| length as npy_intp);
    let kind = dtype::<T>(py).into_dtype_ptr();
    // SAFETY: NumPy takes the reference to the type, reads N lengths, and returns a new array of
    // this type and number of dimensions, or a null pointer and an exception.
    unsafe {
        let array = PY_ARRAY_API.PyArray_Zeros(py, N as i32, shape.as_mut_ptr(), kind, 0);
        Ok(Bound::from_owned_ptr_or_err(py, array)?.cast_into_unchecked())
    }
}

/// A copy of bytes.
pub fn bytes<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, bytes.len(), |place| {
        place.copy_from_slice(bytes);
        Ok(())
    })
}

/// The items as a list.
pub fn list<'py, T: PyTypeInfo>(
    py: Python<'py>,
    items: impl IntoIterator<Item = PyResult<Bound<'py, T>>>,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    items.into_iter().try_for_each(|item| list.append(item?))?;
    Ok(list)
}

/// The items of a list or another iterable. To be used instead of an argument of type `Vec`.
pub fn items<'py, T>(of: &Bound<'py, PyAny>) -> PyResult<Vec<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
{
    memory::collected_ok(of.try_iter()?.map(|item| item?.extract().map_err(Into::into)))
}
