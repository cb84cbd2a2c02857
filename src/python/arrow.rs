//! Arrow columns and tables through the PyCapsule interface, without copying them. A row of several
//! columns is a tuple.

use super::capsule;
use super::items::{self, Items};
use super::keys::{ACCEPTED, NO_TEXT, NotAKey, digits};
use crate::hash::{Hash128, Hasher};
use crate::key::{DAY_MILLISECONDS, Plain, SECOND, push_part, with_decimal, with_wide};
use crate::memory;
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, TimeUnit};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::IntoPyDict;
use std::ops::Range;
use std::sync::OnceLock;

/// One contiguous array of a column.
pub struct ArrowPart {
    array: ArrayRef,
    /// The hashes of a dictionary's values, if it has few values compared with the keys.
    dictionary: OnceLock<Option<Vec<Hash128>>>,
}

/// The keys of an object with the Arrow PyCapsule interface, or `None` if it has none.
pub fn import(keys: &Bound<'_, PyAny>) -> PyResult<Option<Vec<ArrowPart>>> {
    let frame = without_index(keys)?;
    let Some((arrays, _)) = capsule::arrays("keys", &frame, check_types)? else {
        return Ok(None);
    };
    let mut start = 0;
    let mut parts = memory::with_capacity(arrays.len())?;
    for array in arrays {
        if let Some((null, place)) = first_null(&array) {
            let message = format!("keys[{}] is null{place}; {ACCEPTED}", start + null);
            return Err(PyTypeError::new_err(message));
        }
        start += array.len();
        parts.push(ArrowPart::new(match array.as_struct_opt() {
            Some(table) if table.num_columns() == 1 => table.column(0).clone(),
            _ => array,
        }));
    }
    Ok(Some(parts))
}

/// A data frame of pandas would export its index as one more column.
fn without_index<'py>(keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let kind = keys.get_type();
    if kind.name()? != "DataFrame" || !kind.module()?.to_str()?.starts_with("pandas") {
        return Ok(keys.clone());
    }
    let drop = [("drop", true)].into_py_dict(keys.py())?;
    keys.call_method("reset_index", (), Some(&drop))
}

/// Refuses objects that are neither a column of keys nor a table of such columns.
fn check_types(data_type: &DataType) -> PyResult<()> {
    match data_type {
        DataType::Struct(fields) if fields.is_empty() => Err(PyTypeError::new_err(
            "keys must be a column, or a table of at least one column, not of 0",
        )),
        DataType::Struct(fields) => {
            fields.iter().try_for_each(|field| check_type(field.data_type()))
        }
        other => check_type(other),
    }
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

/// The index of the first null, and in which column of a table it is.
fn first_null(array: &ArrayRef) -> Option<(usize, String)> {
    let own = first_null_of(array).map(|at| (at, String::new()));
    let Some(table) = array.as_struct_opt() else { return own };
    let columns = table.columns().iter().zip(table.column_names()).filter_map(|(column, name)| {
        let place =
            if table.num_columns() > 1 { format!(" in column '{name}'") } else { String::new() };
        first_null_of(column).map(|at| (at, place))
    });
    own.into_iter().chain(columns).min_by_key(|(at, _)| *at)
}

fn first_null_of(array: &dyn Array) -> Option<usize> {
    let nulls = array.logical_nulls().filter(|nulls| nulls.null_count() > 0)?;
    (0..array.len()).find(|&i| nulls.is_null(i))
}

impl ArrowPart {
    fn new(array: ArrayRef) -> ArrowPart {
        ArrowPart { array, dictionary: Default::default() }
    }

    /// A column of categories, which are hashed like keys.
    pub fn of_categories(array: ArrayRef) -> PyResult<ArrowPart> {
        if let Some((null, _)) = first_null(&array) {
            return Err(PyTypeError::new_err(format!(
                "features: a column of categories is null at row {null}; name a category for missing values"
            )));
        }
        Ok(ArrowPart::new(array))
    }

    /// Passes on the text of the keys of `range`: text and binary as they are, integers as decimal
    /// digits.
    pub fn each_text(
        &self,
        range: Range<usize>,
        mut text: impl FnMut(usize, &[u8]),
    ) -> Result<(), (usize, NotAKey)> {
        let kind = match self.array.data_type() {
            DataType::Dictionary(_, values) => values,
            other => other,
        };
        if !has_text(kind) {
            return Err((range.start, NotAKey::Type(NO_TEXT.into())));
        }
        visit(&self.array, range, |at: usize, plain: Plain<'_>| match plain {
            Plain::Bytes(bytes) => text(at, bytes),
            number => text(at, digits(number).as_bytes()),
        })
    }

    /// How many keys.
    pub fn len(&self) -> usize {
        self.array.len()
    }

    /// Whether some value of this type is not a key: a decimal of too many digits, a wrong index.
    /// Text and binary can only be damaged, which [`ArrowPart::check`] finds.
    pub fn may_fail(&self) -> bool {
        use DataType::*;
        let fails = |kind: &DataType| {
            matches!(kind, Decimal32(..) | Decimal64(..) | Decimal128(..) | Dictionary(..))
        };
        match self.array.data_type() {
            Struct(fields) => fields.iter().any(|field| fails(field.data_type())),
            other => fails(other),
        }
    }

    /// Whether the bytes of all text and binary are within the buffers of the array.
    pub fn check(&self) -> Result<(), (usize, NotAKey)> {
        match self.array.as_struct_opt() {
            Some(table) => table.columns().iter().try_for_each(|column| items::check(column)),
            None => items::check(&self.array),
        }
    }

    /// Hashes the keys from `first` on.
    pub fn hash(
        &self,
        hasher: &Hasher,
        first: usize,
        out: &mut [Hash128],
    ) -> Result<(), (usize, NotAKey)> {
        match self.array.data_type() {
            DataType::Struct(_) => self.hash_rows(hasher, first, out),
            DataType::Dictionary(_, _) => self.hash_dictionary(hasher, first, out),
            _ => hash_array(&self.array, hasher, first, out),
        }
    }

    fn hash_rows(
        &self,
        hasher: &Hasher,
        first: usize,
        out: &mut [Hash128],
    ) -> Result<(), (usize, NotAKey)> {
        let table = self.array.as_struct();
        let mut form = Vec::new();
        for (at, out) in (first..).zip(out) {
            form.clear();
            for (i, column) in table.columns().iter().enumerate() {
                let mut pushed = Ok(());
                let push = |_: usize, plain: Plain<'_>| pushed = push_part(&mut form, plain);
                visit(column, at..at + 1, push).map_err(|(_, reason)| {
                    let name = table.column_names()[i];
                    (at, reason.within(&format!("a row whose column '{name}'")))
                })?;
                pushed.map_err(|error| (at, NotAKey::Raised(error.into())))?;
            }
            *out = hasher.bytes(&form);
        }
        Ok(())
    }

    fn hash_dictionary(
        &self,
        hasher: &Hasher,
        first: usize,
        out: &mut [Hash128],
    ) -> Result<(), (usize, NotAKey)> {
        let dictionary = self.array.as_any_dictionary();
        let values = dictionary.values();
        // 16 bytes per value stay below one byte per key, so that columns need little memory; in a
        // large dictionary, values are looked up one by one instead.
        let known = self.dictionary.get_or_init(|| {
            if values.len() > self.array.len() / 16 {
                return None;
            }
            let mut hashes = memory::filled(values.len(), Hash128::default()).ok()?;
            // If one value is not a key, all are looked up: no key may refer to it.
            hash_array(values, hasher, 0, &mut hashes).ok().map(|()| hashes)
        });
        let Some(known) = known else { return hash_array(&self.array, hasher, first, out) };
        for (i, out) in out.iter_mut().enumerate() {
            let at = index(dictionary.keys(), first + i);
            *out = *known.get(at).ok_or_else(|| (first + i, outside(at, values)))?;
        }
        Ok(())
    }
}

/// Whether values of this type are text, binary or integers, which models of text read.
fn has_text(kind: &DataType) -> bool {
    use DataType::*;
    kind.is_integer()
        || matches!(
            kind,
            Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView | FixedSizeBinary(_)
        )
}

#[cold]
fn outside(at: usize, values: &dyn Array) -> NotAKey {
    NotAKey::Damaged(format!("item {} of a dictionary of {} values", at as isize, values.len()))
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

/// Takes the values of an array one after the other, in their plain form.
trait Visitor {
    fn each(&mut self, at: usize, plain: Plain<'_>);
}

impl<F: FnMut(usize, Plain<'_>)> Visitor for F {
    #[inline(always)]
    fn each(&mut self, at: usize, plain: Plain<'_>) {
        self(at, plain);
    }
}

/// Writes hashes to `out`. A type of its own, because a closure that is called for every type of
/// column is not inlined, which costs a quarter of the time of a column of integers.
struct HashInto<'a> {
    hasher: &'a Hasher,
    first: usize,
    out: &'a mut [Hash128],
}

impl Visitor for HashInto<'_> {
    #[inline(always)]
    fn each(&mut self, at: usize, plain: Plain<'_>) {
        self.out[at - self.first] = plain.hash(self.hasher);
    }
}

/// Hashes the values of an array from `first` on.
fn hash_array(
    array: &dyn Array,
    hasher: &Hasher,
    first: usize,
    out: &mut [Hash128],
) -> Result<(), (usize, NotAKey)> {
    visit(array, first..first + out.len(), HashInto { hasher, first, out })
}

/// Calls `each(index, plain form)` for the values of `range`. The type is matched once, so that the
/// loop of each type is compiled for it.
#[inline(always)]
fn visit(
    array: &dyn Array,
    range: Range<usize>,
    mut visitor: impl Visitor,
) -> Result<(), (usize, NotAKey)> {
    if let DataType::Dictionary(_, _) = array.data_type() {
        let dictionary = array.as_any_dictionary();
        let (indices, values) = (dictionary.keys(), dictionary.values());
        return range.into_iter().try_for_each(|i| {
            let at = index(indices, i);
            if at >= values.len() {
                return Err((i, outside(at, values)));
            }
            let each = |_, plain: Plain<'_>| visitor.each(i, plain);
            visit_values(values, at..at + 1, each).map_err(|(_, reason)| (i, reason))
        });
    }
    visit_values(array, range, visitor)
}

/// [`visit`] for an array that is not a dictionary.
#[inline(always)]
fn visit_values(
    array: &dyn Array,
    range: Range<usize>,
    mut visitor: impl Visitor,
) -> Result<(), (usize, NotAKey)> {
    macro_rules! primitive {
        ($native:ty, $value:ident, $at:ident => $visit:expr) => {{
            let values = &array.as_primitive::<$native>().values()[range.clone()];
            for ($at, &$value) in range.zip(values) {
                $visit
            }
        }};
    }
    macro_rules! signed {
        ($native:ty) => {
            primitive!($native, value, at => visitor.each(at, Plain::signed(value.into())))
        };
    }
    macro_rules! unsigned {
        ($native:ty) => {
            primitive!($native, value, at => visitor.each(at, Plain::unsigned(value.into())))
        };
    }
    macro_rules! timestamps {
        ($native:ty, $unit:expr) => {
            primitive!($native, value, at => {
                with_wide(i128::from(value) * $unit, |plain| visitor.each(at, plain))
            })
        };
    }
    macro_rules! decimals {
        ($native:ty, $scale:expr) => {
            primitive!($native, value, at => {
                with_decimal(value.into(), $scale, |plain| visitor.each(at, plain)).ok_or_else(|| {
                    let exponent = -i16::from($scale);
                    let what = format!("{value}e{exponent}, a decimal of over 38 digits");
                    (at, NotAKey::Range(what))
                })?
            })
        };
    }
    macro_rules! bytes {
        ($array:expr) => {{
            let array = $array;
            for at in range {
                let bytes = array.item(at).ok_or_else(|| (at, array.damaged(at)))?;
                visitor.each(at, Plain::Bytes(bytes));
            }
        }};
    }
    use DataType::*;
    match array.data_type() {
        Int8 => signed!(Int8Type),
        Int16 => signed!(Int16Type),
        Int32 => signed!(Int32Type),
        Int64 => signed!(Int64Type),
        UInt8 => unsigned!(UInt8Type),
        UInt16 => unsigned!(UInt16Type),
        UInt32 => unsigned!(UInt32Type),
        UInt64 => unsigned!(UInt64Type),
        Date32 => signed!(Date32Type),
        Date64 => primitive!(Date64Type, value, at => {
            let days = i128::from(value).div_euclid(DAY_MILLISECONDS);
            with_wide(days, |plain| visitor.each(at, plain));
        }),
        Timestamp(TimeUnit::Second, _) => timestamps!(TimestampSecondType, SECOND),
        Timestamp(TimeUnit::Millisecond, _) => timestamps!(TimestampMillisecondType, 1_000_000),
        Timestamp(TimeUnit::Microsecond, _) => timestamps!(TimestampMicrosecondType, 1_000),
        Timestamp(TimeUnit::Nanosecond, _) => timestamps!(TimestampNanosecondType, 1),
        Decimal32(_, scale) => decimals!(Decimal32Type, *scale),
        Decimal64(_, scale) => decimals!(Decimal64Type, *scale),
        Decimal128(_, scale) => decimals!(Decimal128Type, *scale),
        Utf8 => bytes!(array.as_string::<i32>()),
        LargeUtf8 => bytes!(array.as_string::<i64>()),
        Utf8View => bytes!(array.as_string_view()),
        Binary => bytes!(array.as_binary::<i32>()),
        LargeBinary => bytes!(array.as_binary::<i64>()),
        BinaryView => bytes!(array.as_binary_view()),
        FixedSizeBinary(_) => {
            let array = array.as_fixed_size_binary();
            range.for_each(|at| visitor.each(at, Plain::Bytes(array.value(at))));
        }
        _ => unreachable!("types are checked on import"),
    }
    Ok(())
}
