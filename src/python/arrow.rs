//! Arrow columns through the PyCapsule interface, without copying them.
//!
//! Dates hash as their day since 1970-01-01; timestamps as their nanoseconds since then, whatever
//! the unit; decimals as the integer they equal, or else as 16 little-endian bytes of the unscaled
//! value (without trailing zeros) and one byte of scale.

use super::capsule;
use super::items::{self, Items};
use super::keys::{ACCEPTED, NotAKey};
use crate::hash::{Hash128, Hasher};
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Fields, TimeUnit};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::ops::Range;
use std::sync::OnceLock;

/// One contiguous array of a column.
pub struct ArrowPart {
    array: ArrayRef,
    /// The hashes of a dictionary's values, where they are few beside the keys.
    dictionary: OnceLock<Option<Vec<Hash128>>>,
}

/// The keys of an object with the Arrow PyCapsule interface, or `None` if it has none.
pub fn import(keys: &Bound<'_, PyAny>) -> PyResult<Option<Vec<ArrowPart>>> {
    let Some((arrays, data_type)) = capsule::arrays("keys", keys, check_types)? else {
        return Ok(None);
    };
    let arrays = only_column(arrays, &data_type)?;
    let mut start = 0;
    let mut parts = Vec::with_capacity(arrays.len());
    for array in arrays {
        if let Some(null) = first_null(&array) {
            let message = format!("keys[{}] is null; {ACCEPTED}", start + null);
            return Err(PyTypeError::new_err(message));
        }
        start += array.len();
        parts.push(ArrowPart { array, dictionary: Default::default() });
    }
    Ok(Some(parts))
}

/// Refuses what is neither a column of keys nor a table of one.
fn check_types(data_type: &DataType) -> PyResult<()> {
    match data_type {
        DataType::Struct(fields) => check_type(only_field(fields)?),
        other => check_type(other),
    }
}

fn only_field(fields: &Fields) -> PyResult<&DataType> {
    match &**fields {
        [only] => Ok(only.data_type()),
        _ => Err(PyTypeError::new_err(format!(
            "keys must be one column, not a table of {} columns",
            fields.len()
        ))),
    }
}

/// A table with one column stands for the column.
fn only_column(arrays: Vec<ArrayRef>, data_type: &DataType) -> PyResult<Vec<ArrayRef>> {
    let DataType::Struct(fields) = data_type else { return Ok(arrays) };
    only_field(fields)?;
    let mut start = 0;
    let column = |array: ArrayRef| {
        if let Some(null) = first_null(&array) {
            let message = format!("keys[{}] is null; {ACCEPTED}", start + null);
            return Err(PyTypeError::new_err(message));
        }
        start += array.len();
        Ok(array.as_struct().column(0).clone())
    };
    arrays.into_iter().map(column).collect()
}

pub fn check_type(data_type: &DataType) -> PyResult<()> {
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
        if let Some(null) = first_null(&array) {
            return Err(PyTypeError::new_err(format!(
                "features: a column of categories is null at row {null}; name a category for missing values"
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
                with_text(&self.array, i, |bytes| text(i, bytes)).map_err(|reason| (i, reason))
            });
        };
        let dictionary = self.array.as_any_dictionary();
        for i in range {
            let at = index(dictionary.keys(), i);
            let values = dictionary.values();
            if at >= values.len() {
                return Err((i, outside(at, values)));
            }
            with_text(values, at, |bytes| text(i, bytes)).map_err(|reason| (i, reason))?;
        }
        Ok(())
    }

    /// How many keys.
    pub fn len(&self) -> usize {
        self.array.len()
    }

    /// Whether some value of this type is not a key: a decimal of too many digits, a wrong index.
    /// Text and binary may only be damaged, which [`ArrowPart::check`] sees.
    pub fn may_fail(&self) -> bool {
        use DataType::*;
        let kind = self.array.data_type();
        matches!(kind, Decimal32(..) | Decimal64(..) | Decimal128(..) | Dictionary(..))
    }

    /// Whether the bytes of all text and binary lie where they are said to.
    pub fn check(&self) -> Result<(), (usize, NotAKey)> {
        items::check(&self.array)
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
                return Err((first + i, outside(at, values)));
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

#[cold]
fn outside(at: usize, values: &dyn Array) -> NotAKey {
    NotAKey::Damaged(format!("item {} of a dictionary of {} values", at as isize, values.len()))
}

/// Looks at one value as text.
fn with_text(array: &dyn Array, at: usize, look: impl FnOnce(&[u8])) -> Result<(), NotAKey> {
    macro_rules! bytes {
        ($array:expr) => {{
            let array = $array;
            look(array.item(at).ok_or_else(|| array.damaged(at))?)
        }};
    }
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
        Utf8 => bytes!(array.as_string::<i32>()),
        LargeUtf8 => bytes!(array.as_string::<i64>()),
        Utf8View => bytes!(array.as_string_view()),
        Binary => bytes!(array.as_binary::<i32>()),
        LargeBinary => bytes!(array.as_binary::<i64>()),
        BinaryView => bytes!(array.as_binary_view()),
        FixedSizeBinary(_) => look(array.as_fixed_size_binary().value(at)),
        _ => {
            let what = "neither text, binary nor an integer, which a model of text reads";
            return Err(NotAKey::Type(what.into()));
        }
    }
    Ok(())
}

/// An index of a dictionary array; one below zero is past every dictionary's end.
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
                let bytes = array.item(first + i);
                *out = hasher.bytes(bytes.ok_or_else(|| (first + i, array.damaged(first + i)))?);
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
        FixedSizeBinary(_) => {
            let array = array.as_fixed_size_binary();
            for (i, out) in out.iter_mut().enumerate() {
                *out = hasher.bytes(array.value(first + i));
            }
            Ok(())
        }
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
