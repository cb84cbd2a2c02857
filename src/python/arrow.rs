//! Arrow columns through the PyCapsule interface, without copying them.
//!
//! Dates hash as their day since 1970-01-01; timestamps as their nanoseconds since then, whatever
//! the unit; decimals as the integer they equal, or else as 16 little-endian bytes of the unscaled
//! value (without trailing zeros) and one byte of scale.

use super::keys::{ACCEPTED, NotAKey};
use crate::hash::{Hash128, Hasher};
use arrow_array::cast::AsArray;
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi_and_data_type};
use arrow_array::ffi_stream::{ArrayStreamReader, FFI_ArrowArrayStream};
use arrow_array::types::*;
use arrow_array::{Array, ArrayReader, ArrayRef, StructArray, make_array};
use arrow_schema::{DataType, TimeUnit};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use std::ffi::CStr;
use std::ops::Range;
use std::sync::OnceLock;

/// One contiguous array of a column.
pub struct ArrowPart {
    array: ArrayRef,
    /// The hashes of a dictionary's values, where they are few beside the keys.
    dictionary: OnceLock<Option<Vec<Hash128>>>,
}

/// The arrays of an object that speaks Arrow, and their type, or `None` if it does not.
pub fn arrays(keys: &Bound<'_, PyAny>) -> PyResult<Option<(Vec<ArrayRef>, DataType)>> {
    // SAFETY (of all three): a capsule of this name holds this struct, by the Arrow PyCapsule
    // interface, and the producer vouches for the layout that its schema names. `from_raw` moves
    // the struct out and leaves a released one behind.
    if keys.hasattr("__arrow_c_array__")? {
        let pair = keys.call_method0("__arrow_c_array__")?.cast_into::<PyTuple>()?;
        let schema = within(&pair.get_item(0)?, c"arrow_schema")?;
        let array = within(&pair.get_item(1)?, c"arrow_array")?;
        // SAFETY: see above.
        let schema = unsafe { FFI_ArrowSchema::from_raw(schema) };
        let data_type = DataType::try_from(&schema).map_err(foreign)?;
        // SAFETY: see above.
        let data =
            unsafe { from_ffi_and_data_type(FFI_ArrowArray::from_raw(array), data_type.clone()) };
        Ok(Some((vec![make_array(data.map_err(foreign)?)], data_type)))
    } else if keys.hasattr("__arrow_c_stream__")? {
        let stream = keys.call_method0("__arrow_c_stream__")?;
        let stream = within(&stream, c"arrow_array_stream")?;
        // SAFETY: see above.
        read_stream(keys.py(), unsafe { FFI_ArrowArrayStream::from_raw(stream) }).map(Some)
    } else {
        Ok(None)
    }
}

/// The keys of an object that speaks Arrow, or `None` if it does not.
pub fn import(keys: &Bound<'_, PyAny>) -> PyResult<Option<Vec<ArrowPart>>> {
    let Some((arrays, data_type)) = arrays(keys)? else { return Ok(None) };
    let arrays = only_column(arrays, &data_type)?;
    let mut start = 0;
    let mut parts = Vec::with_capacity(arrays.len());
    for array in arrays {
        if array.is_empty() {
            continue;
        }
        check_type(array.data_type())?;
        if let Some(null) = first_null(&array) {
            let message = format!("keys[{}] is null; {ACCEPTED}", start + null);
            return Err(PyTypeError::new_err(message));
        }
        start += array.len();
        parts.push(ArrowPart { array, dictionary: Default::default() });
    }
    Ok(Some(parts))
}

/// Where the struct of a capsule is.
fn within<T>(capsule: &Bound<'_, PyAny>, name: &CStr) -> PyResult<*mut T> {
    Ok(capsule.cast::<PyCapsule>()?.pointer_checked(Some(name))?.as_ptr().cast())
}

/// All arrays of a stream.
fn read_stream(
    py: Python<'_>,
    stream: FFI_ArrowArrayStream,
) -> PyResult<(Vec<ArrayRef>, DataType)> {
    if stream.get_next().is_none() {
        return Err(PyTypeError::new_err("keys is an Arrow stream without a way to read it"));
    }
    // A producer may need the interpreter in a thread of its own to go on.
    py.detach(|| {
        let mut reader = ArrayStreamReader::try_new(stream)?;
        let data_type = reader.field().data_type().clone();
        Ok((reader.by_ref().collect::<Result<_, _>>()?, data_type))
    })
    .map_err(foreign)
}

/// A table with one column stands for the column.
fn only_column(arrays: Vec<ArrayRef>, data_type: &DataType) -> PyResult<Vec<ArrayRef>> {
    let DataType::Struct(fields) = data_type else { return Ok(arrays) };
    if fields.len() != 1 {
        return Err(PyTypeError::new_err(format!(
            "keys is a table of {} columns; one column is wanted",
            fields.len()
        )));
    }
    let mut start = 0;
    let column = |array: ArrayRef| {
        if let Some(null) = first_null(&array) {
            let message = format!("keys[{}] is null; {ACCEPTED}", start + null);
            return Err(PyTypeError::new_err(message));
        }
        start += array.len();
        let table: &StructArray = array.as_struct();
        Ok(table.column(0).clone())
    };
    arrays.into_iter().map(column).collect()
}

fn check_type(data_type: &DataType) -> PyResult<()> {
    use DataType::*;
    match data_type {
        Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 => Ok(()),
        Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView | FixedSizeBinary(_) => {
            Ok(())
        }
        Date32 | Date64 | Timestamp(_, _) => Ok(()),
        Decimal32(_, _) | Decimal64(_, _) | Decimal128(_, _) => Ok(()),
        Dictionary(_, values) if !matches!(**values, Dictionary(_, _)) => check_type(values),
        other => Err(PyTypeError::new_err(format!(
            "keys is an Arrow column of type {other}; text, binary, integers, dates, timestamps, \
             decimals of up to 38 digits and dictionaries of these are accepted, without nulls"
        ))),
    }
}

fn first_null(array: &ArrayRef) -> Option<usize> {
    let nulls = array.logical_nulls()?;
    if nulls.null_count() == 0 {
        return None;
    }
    (0..array.len()).find(|&i| nulls.is_null(i))
}

fn foreign(error: arrow_schema::ArrowError) -> PyErr {
    PyTypeError::new_err(format!("keys is not an Arrow column that can be read: {error}"))
}

/// What a column's integers stand for.
#[derive(Clone, Copy)]
enum Scale {
    Days,
    Nanoseconds(i128),
    Decimal(i8),
}

impl ArrowPart {
    /// A column of categories, which are what keys are.
    pub fn of_categories(array: ArrayRef) -> PyResult<ArrowPart> {
        check_type(array.data_type())?;
        if let Some(null) = first_null(&array) {
            return Err(PyTypeError::new_err(format!(
                "features: a column of categories is null at row {null}; give what is missing a name"
            )));
        }
        Ok(ArrowPart { array, dictionary: Default::default() })
    }

    /// Hands out the bytes of the keys from `first` on: text and binary as they are, integers as
    /// decimal digits.
    pub fn each_text(
        &self,
        range: Range<usize>,
        mut text: impl FnMut(usize, &[u8]),
    ) -> Result<(), (usize, NotAKey)> {
        let DataType::Dictionary(_, _) = self.array.data_type() else {
            return range.clone().try_for_each(|i| {
                with_text(&self.array, i, |bytes| text(i, bytes)).ok_or_else(|| no_text(i))
            });
        };
        let dictionary = self.array.as_any_dictionary();
        for i in range {
            let at = index(dictionary.keys(), i);
            let known = at < dictionary.values().len()
                && with_text(dictionary.values(), at, |bytes| text(i, bytes)).is_some();
            if !known {
                return Err(no_text(i));
            }
        }
        Ok(())
    }

    /// How many keys.
    pub fn len(&self) -> usize {
        self.array.len()
    }

    /// Whether some value of this type is not a key: a decimal of too many digits, a wrong index.
    pub fn may_fail(&self) -> bool {
        use DataType::*;
        let kind = self.array.data_type();
        matches!(kind, Decimal32(..) | Decimal64(..) | Decimal128(..) | Dictionary(..))
    }

    /// Hashes the keys from `first` on.
    pub fn hash(
        &self,
        hasher: &Hasher,
        first: usize,
        out: &mut [Hash128],
    ) -> Result<(), (usize, NotAKey)> {
        if !matches!(self.array.data_type(), DataType::Dictionary(_, _)) {
            return hash_array(&self.array, hasher, first, out);
        }
        let dictionary = self.array.as_any_dictionary();
        let values = dictionary.values();
        // 16 bytes per value stay below one byte per key, so that columns need no memory to speak
        // of; a large dictionary is looked up value by value instead.
        let known = self.dictionary.get_or_init(|| {
            if values.len() > self.array.len() / 16 {
                return None;
            }
            let mut hashes = vec![Hash128::default(); values.len()];
            // One value that is not a key, and all are looked up: it may not be referred to.
            hash_array(values, hasher, 0, &mut hashes).ok().map(|()| hashes)
        });
        for (i, out) in out.iter_mut().enumerate() {
            let at = index(dictionary.keys(), first + i);
            if at >= values.len() {
                let what = "beyond the values of its dictionary";
                return Err((first + i, NotAKey::Type(what.into())));
            }
            if let Some(known) = known {
                *out = known[at];
                continue;
            }
            hash_array(values, hasher, at, std::slice::from_mut(out))
                .map_err(|(_, reason)| (first + i, reason))?;
        }
        Ok(())
    }
}

fn no_text(index: usize) -> (usize, NotAKey) {
    (
        index,
        NotAKey::Type("neither text, binary nor an integer, which a model of text reads".into()),
    )
}

/// Looks at one value as text, if it has one.
fn with_text(array: &dyn Array, at: usize, look: impl FnOnce(&[u8])) -> Option<()> {
    macro_rules! ints {
        ($native:ty) => {
            look(array.as_primitive::<$native>().value(at).to_string().as_bytes())
        };
    }
    use DataType::*;
    match array.data_type() {
        Int8 => ints!(Int8Type),
        Int16 => ints!(Int16Type),
        Int32 => ints!(Int32Type),
        Int64 => ints!(Int64Type),
        UInt8 => ints!(UInt8Type),
        UInt16 => ints!(UInt16Type),
        UInt32 => ints!(UInt32Type),
        UInt64 => ints!(UInt64Type),
        Utf8 => look(array.as_string::<i32>().value(at).as_bytes()),
        LargeUtf8 => look(array.as_string::<i64>().value(at).as_bytes()),
        Utf8View => look(array.as_string_view().value(at).as_bytes()),
        Binary => look(array.as_binary::<i32>().value(at)),
        LargeBinary => look(array.as_binary::<i64>().value(at)),
        BinaryView => look(array.as_binary_view().value(at)),
        FixedSizeBinary(_) => look(array.as_fixed_size_binary().value(at)),
        _ => return None,
    }
    Some(())
}

/// An index of a dictionary array, which its producer vouches to be in range.
fn index(keys: &dyn Array, at: usize) -> usize {
    macro_rules! each {
        ($($name:ident => $native:ty),*) => {
            match keys.data_type() {
                $(DataType::$name => keys.as_primitive::<$native>().value(at) as usize,)*
                _ => unreachable!("Arrow dictionaries have integer indices"),
            }
        };
    }
    each!(Int8 => Int8Type, Int16 => Int16Type, Int32 => Int32Type, Int64 => Int64Type,
          UInt8 => UInt8Type, UInt16 => UInt16Type, UInt32 => UInt32Type, UInt64 => UInt64Type)
}

fn hash_array(
    array: &dyn Array,
    hasher: &Hasher,
    first: usize,
    out: &mut [Hash128],
) -> Result<(), (usize, NotAKey)> {
    macro_rules! ints {
        ($native:ty, $value:ident => $hash:expr) => {{
            let values = &array.as_primitive::<$native>().values()[first..first + out.len()];
            for (out, &$value) in out.iter_mut().zip(values) {
                *out = $hash;
            }
            Ok(())
        }};
    }
    macro_rules! scaled {
        ($native:ty, $scale:expr) => {{
            let values = &array.as_primitive::<$native>().values()[first..first + out.len()];
            for (i, (out, &value)) in out.iter_mut().zip(values).enumerate() {
                *out = hash_scaled(hasher, value.into(), $scale).ok_or_else(|| {
                    let what = format!("{value}e{}, a decimal of over 38 digits", -scale_of(array));
                    (first + i, NotAKey::Range(what))
                })?;
            }
            Ok(())
        }};
    }
    macro_rules! bytes {
        ($array:expr) => {{
            let array = $array;
            for (i, out) in out.iter_mut().enumerate() {
                *out = hasher.bytes(array.value(first + i).as_ref());
            }
            Ok(())
        }};
    }
    use DataType::*;
    match array.data_type() {
        Int8 => ints!(Int8Type, value => hasher.signed(value.into())),
        Int16 => ints!(Int16Type, value => hasher.signed(value.into())),
        Int32 => ints!(Int32Type, value => hasher.signed(value.into())),
        Int64 => ints!(Int64Type, value => hasher.signed(value)),
        UInt8 => ints!(UInt8Type, value => hasher.int(value.into(), false)),
        UInt16 => ints!(UInt16Type, value => hasher.int(value.into(), false)),
        UInt32 => ints!(UInt32Type, value => hasher.int(value.into(), false)),
        UInt64 => ints!(UInt64Type, value => hasher.int(value, false)),
        Date32 => ints!(Date32Type, value => hasher.signed(value.into())),
        Date64 => scaled!(Date64Type, Scale::Days),
        Timestamp(TimeUnit::Second, _) => {
            scaled!(TimestampSecondType, Scale::Nanoseconds(1_000_000_000))
        }
        Timestamp(TimeUnit::Millisecond, _) => {
            scaled!(TimestampMillisecondType, Scale::Nanoseconds(1_000_000))
        }
        Timestamp(TimeUnit::Microsecond, _) => {
            scaled!(TimestampMicrosecondType, Scale::Nanoseconds(1_000))
        }
        Timestamp(TimeUnit::Nanosecond, _) => {
            scaled!(TimestampNanosecondType, Scale::Nanoseconds(1))
        }
        Decimal32(_, scale) => scaled!(Decimal32Type, Scale::Decimal(*scale)),
        Decimal64(_, scale) => scaled!(Decimal64Type, Scale::Decimal(*scale)),
        Decimal128(_, scale) => scaled!(Decimal128Type, Scale::Decimal(*scale)),
        Utf8 => bytes!(array.as_string::<i32>()),
        LargeUtf8 => bytes!(array.as_string::<i64>()),
        Utf8View => bytes!(array.as_string_view()),
        Binary => bytes!(array.as_binary::<i32>()),
        LargeBinary => bytes!(array.as_binary::<i64>()),
        BinaryView => bytes!(array.as_binary_view()),
        FixedSizeBinary(_) => bytes!(array.as_fixed_size_binary()),
        _ => unreachable!("types are checked on import"),
    }
}

fn scale_of(array: &dyn Array) -> i8 {
    match array.data_type() {
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale) => *scale,
        _ => 0,
    }
}

/// Hashes a number that a column stores in a unit; `None` if it is too large to be brought to
/// its canonical form.
#[inline]
fn hash_scaled(hasher: &Hasher, value: i128, scale: Scale) -> Option<Hash128> {
    match scale {
        Scale::Days => Some(hasher.wide(value.div_euclid(86_400_000))),
        Scale::Nanoseconds(unit) => Some(hasher.wide(value * unit)),
        Scale::Decimal(scale) => hash_decimal(hasher, value, scale),
    }
}

fn hash_decimal(hasher: &Hasher, mut value: i128, mut scale: i8) -> Option<Hash128> {
    while scale > 0 && value % 10 == 0 {
        (value, scale) = (value / 10, if value == 0 { 0 } else { scale - 1 });
    }
    while scale < 0 {
        (value, scale) = (value.checked_mul(10)?, scale + 1);
    }
    if scale == 0 {
        return Some(hasher.wide(value));
    }
    let mut form = [scale as u8; 17];
    form[..16].copy_from_slice(&value.to_le_bytes());
    Some(hasher.bytes(&form))
}
