//! Arrow arrays from PyCapsules, checked before anything is read through them.
//!
//! The C data interface passes lengths, offsets and pointers, and arrow-rs trusts all of them. Here
//! a producer is trusted only where it must be: that pointers are valid, and that a buffer is as
//! long as the array says (the interface has no sizes; pyarrow, which knows them, is asked to
//! compare). The rest is checked: the fields of each struct here, before arrow-rs sees it, and the
//! offsets and views in the buffers by [`super::items`], when a value is read.

use super::release;
use crate::interrupt;
use crate::memory::TryGrow;
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi_and_data_type};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{ArrayRef, make_array};
use arrow_schema::DataType;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use std::ffi::{CStr, c_void};

/// The arrays of an object with the Arrow PyCapsule interface, without empty ones, and their type,
/// or `None` if it has no such interface. `name` is the name of the argument; `check_type` refuses
/// types before any data is read, and must refuse every type that [`check_fields`] does not know.
pub fn arrays(
    name: &str,
    object: &Bound<'_, PyAny>,
    check_type: fn(&DataType) -> PyResult<()>,
) -> PyResult<Option<(Vec<ArrayRef>, DataType)>> {
    // SAFETY (of the three below): a capsule of this name holds this struct, by the Arrow PyCapsule
    // interface. `from_raw` moves the struct out and leaves a released one behind.
    if object.hasattr("__arrow_c_array__")? {
        check_buffers(name, object)?;
        let pair = object.call_method0("__arrow_c_array__")?.cast_into::<PyTuple>()?;
        let schema = within(&pair.get_item(0)?, c"arrow_schema")?;
        let array = within(&pair.get_item(1)?, c"arrow_array")?;
        // SAFETY: see above.
        let schema = unsafe { FFI_ArrowSchema::from_raw(schema) };
        let data_type = type_of(name, &schema)?;
        // SAFETY: see above.
        let array = unsafe { FFI_ArrowArray::from_raw(array) };
        let arrays = imported(name, array, &data_type, check_type)?;
        Ok(Some((arrays.into_iter().collect(), data_type)))
    } else if object.hasattr("__arrow_c_stream__")? {
        check_buffers(name, object)?;
        let stream = object.call_method0("__arrow_c_stream__")?;
        // SAFETY: see above.
        let stream =
            unsafe { FFI_ArrowArrayStream::from_raw(within(&stream, c"arrow_array_stream")?) };
        Stream(stream).read(name, object.py(), check_type).map(Some)
    } else {
        Ok(None)
    }
}

/// The address of the struct in a capsule.
fn within<T>(capsule: &Bound<'_, PyAny>, name: &CStr) -> PyResult<*mut T> {
    Ok(capsule.cast::<PyCapsule>()?.pointer_checked(Some(name))?.as_ptr().cast())
}

/// Asks pyarrow to compare lengths with the sizes of its buffers, which do not cross the interface.
/// This reads a few numbers per array, not the values.
fn check_buffers(name: &str, object: &Bound<'_, PyAny>) -> PyResult<()> {
    let module = object.get_type().module()?;
    if !module.to_string().starts_with("pyarrow") || !object.hasattr("validate")? {
        return Ok(());
    }
    object
        .call_method0("validate")
        .map(drop)
        .map_err(|error| damaged(name, error.value(object.py()).to_string()))
}

fn damaged(name: &str, what: String) -> PyErr {
    PyValueError::new_err(format!("{name} is a damaged Arrow column: {what}"))
}

fn released(name: &str) -> PyErr {
    PyTypeError::new_err(format!("{name} is an Arrow column that was read or released before"))
}

fn type_of(name: &str, schema: &FFI_ArrowSchema) -> PyResult<DataType> {
    // SAFETY: the first field of the struct, which is null once it is released.
    if unsafe { (&raw const *schema).cast::<*const c_void>().read() }.is_null() {
        return Err(released(name));
    }
    DataType::try_from(schema).map_err(|error| {
        PyTypeError::new_err(format!("{name} is not an Arrow column that can be read: {error}"))
    })
}

/// A stream of arrays of one type.
struct Stream(FFI_ArrowArrayStream);

impl Stream {
    /// All of its arrays.
    fn read(
        mut self,
        name: &str,
        py: Python<'_>,
        check_type: fn(&DataType) -> PyResult<()>,
    ) -> PyResult<(Vec<ArrayRef>, DataType)> {
        let (Some(get_schema), Some(get_next), Some(_)) =
            (self.0.get_schema(), self.0.get_next(), self.0.release())
        else {
            return Err(released(name));
        };
        // A producer may need the interpreter in another thread.
        release::released(py, || {
            let mut schema = FFI_ArrowSchema::empty();
            // SAFETY: a callback of this stream, which is not released, and a place for its answer.
            let status = unsafe { get_schema(&raw mut self.0, &raw mut schema) };
            self.check(name, status)?;
            let data_type = type_of(name, &schema)?;
            let mut arrays = Vec::new();
            loop {
                interrupt::check();
                let mut array = FFI_ArrowArray::empty();
                // SAFETY: as above.
                let status = unsafe { get_next(&raw mut self.0, &raw mut array) };
                self.check(name, status)?;
                if array.is_released() {
                    return Ok((arrays, data_type));
                }
                arrays.try_append(imported(name, array, &data_type, check_type)?)?;
            }
        })?
    }

    /// Raises the producer's error message if a call failed.
    fn check(&mut self, name: &str, status: i32) -> PyResult<()> {
        if status == 0 {
            return Ok(());
        }
        let text = self.0.get_last_error().and_then(|get| {
            // SAFETY: a callback of this stream, whose last call failed; the text is the producer's
            // and lives until the next call.
            unsafe {
                let text = get(&raw mut self.0);
                (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        });
        let text = text.unwrap_or_else(|| format!("its producer failed with error {status}"));
        Err(PyTypeError::new_err(format!("{name} is an Arrow stream that cannot be read: {text}")))
    }
}

/// The struct `ArrowArray` of the C data interface, some of whose fields arrow-rs does not expose.
#[repr(C)]
struct RawArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *const *const c_void,
    children: *const *mut RawArray,
    dictionary: *mut RawArray,
    _release: *const c_void,
    _private_data: *mut c_void,
}

/// An array of arrow-rs, or `None` if it is empty, since then it may be of any type.
fn imported(
    name: &str,
    mut array: FFI_ArrowArray,
    data_type: &DataType,
    check_type: fn(&DataType) -> PyResult<()>,
) -> PyResult<Option<ArrayRef>> {
    if array.is_released() {
        return Err(released(name));
    }
    if array.is_empty() {
        return Ok(None);
    }
    check_type(data_type)?;
    // SAFETY: the struct of the interface under another name, in memory that is ours; its pointers
    // are valid by the contract of the interface, which cannot be checked.
    let fields = unsafe { check_fields((&raw mut array).cast(), data_type) };
    fields.map_err(|what| damaged(name, what))?;
    // SAFETY: the fields are valid for an array of this type. Offsets and views are not checked
    // yet; before `super::items` does, arrow-rs reads only the last offset.
    let data = unsafe { from_ffi_and_data_type(array, data_type.clone()) };
    Ok(Some(make_array(data.map_err(|error| damaged(name, error.to_string()))?)))
}

/// Checks that the fields of an array, its children and its dictionary are valid for its type.
/// Resets the null count, so that it is counted rather than trusted.
///
/// # Safety
/// `array` must point to a struct of the C data interface that may be written to.
unsafe fn check_fields(array: *mut RawArray, data_type: &DataType) -> Result<(), String> {
    use DataType::*;
    // SAFETY: by the contract of this function, here and below.
    let raw = unsafe { &mut *array };
    raw.null_count = -1;
    let refuse = |what: &str, value: i64| Err(format!("its {data_type} array has {what} {value}"));
    if raw.length < 0 {
        return refuse("length", raw.length);
    }
    if raw.offset < 0 {
        return refuse("offset", raw.offset);
    }
    let width = match data_type {
        FixedSizeBinary(width) if *width < 0 => return refuse("width", (*width).into()),
        FixedSizeBinary(width) => i64::from(*width).max(16),
        _ => 16,
    };
    let end = raw.length.checked_add(raw.offset).filter(|&end| end < i64::MAX / 8 / width - 1);
    let Some(end) = end else { return refuse("length", raw.length) };
    let (buffers, variadic) = match data_type {
        Struct(_) => (1, false),
        Utf8 | Binary | LargeUtf8 | LargeBinary => (3, false),
        Utf8View | BinaryView => (3, true), // values follow the views, and the last has their sizes
        _ => (2, false),
    };
    let fits = raw.n_buffers == buffers || variadic && raw.n_buffers > buffers;
    if !fits || raw.buffers.is_null() {
        return refuse("a buffer count of", raw.n_buffers);
    }
    // SAFETY: `buffers` points to as many pointers.
    let pointers = unsafe { std::slice::from_raw_parts(raw.buffers, raw.n_buffers as usize) };
    if end > 0 && buffers > 1 && pointers[1].is_null() {
        return Err(format!("its {data_type} array of {end} items has no buffer of them"));
    }
    match data_type {
        Utf8 | Binary if end > 0 => {
            // SAFETY: an array of this many items has one offset more.
            let last = unsafe { pointers[1].cast::<i32>().add(end as usize).read_unaligned() };
            if last < 0 {
                return refuse("the last offset", last.into());
            }
        }
        LargeUtf8 | LargeBinary if end > 0 => {
            // SAFETY: as above.
            let last = unsafe { pointers[1].cast::<i64>().add(end as usize).read_unaligned() };
            if last < 0 {
                return refuse("the last offset", last);
            }
        }
        Utf8View | BinaryView if raw.n_buffers > buffers => {
            let sizes = pointers[pointers.len() - 1].cast::<i64>();
            if sizes.is_null() {
                return Err(format!("its {data_type} array lacks the sizes of its buffers"));
            }
            for i in 0..(raw.n_buffers - buffers) as usize {
                // SAFETY: the last buffer has a size for each buffer of values.
                let size = unsafe { sizes.add(i).read_unaligned() };
                if size < 0 {
                    return refuse("a buffer of size", size);
                }
            }
        }
        Dictionary(_, values) => {
            if raw.dictionary.is_null() {
                return Err("its dictionary is missing".into());
            }
            // SAFETY: the struct of the values, by the interface.
            unsafe { check_fields(raw.dictionary, values)? };
        }
        Struct(fields) => {
            if raw.n_children != fields.len() as i64 || raw.children.is_null() && !fields.is_empty()
            {
                return refuse("a column count of", raw.n_children);
            }
            for (i, field) in fields.iter().enumerate() {
                // SAFETY: as many pointers to structs of the interface.
                let child = unsafe { *raw.children.add(i) };
                let what = if child.is_null() {
                    Err("it is missing".into())
                } else {
                    // SAFETY: as above.
                    unsafe { check_fields(child, field.data_type()) }
                };
                what.map_err(|what| format!("column '{}': {what}", field.name()))?;
                // SAFETY: as above.
                let length = unsafe { (*child).length };
                if length < end {
                    let name = field.name();
                    return Err(format!("column '{name}' has {length} items of {end}"));
                }
            }
        }
        _ => {}
    }
    Ok(())
}
