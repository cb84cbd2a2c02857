//! Tables of features: columns of numbers and categories, read in place from NumPy or Arrow.

use super::arrow::{self, ArrowPart};
use super::capsule;
use super::keys::NotAKey;
use crate::error::Error;
use crate::hash::{Hash128, Hasher};
use crate::key::with_wide;
use crate::memory;
use crate::model::{BLOCK, Rows};
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use numpy::PyArray1;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::ops::Range;

/// Rows with columns of numbers (floats, integers, bools) and of categories (text, dictionaries,
/// and integers if a model says so).
#[pyclass(frozen, module = "tamis._native")]
pub struct Table {
    parts: Vec<Part>,
    /// By column: its name, if any, and whether it holds text.
    columns: Vec<(Option<String>, bool)>,
    len: usize,
}

/// Rows whose columns are each contiguous.
struct Part {
    columns: Vec<Column>,
    len: usize,
    /// Keeps the memory of strided columns alive.
    _buffer: Option<PyUntypedBuffer>,
}

enum Column {
    Strided {
        start: *const u8,
        stride: isize,
        number: Number,
    },
    Arrow(ArrowPart),
    /// Arrow numbers, which may be null.
    Numbers(ArrayRef),
}

// SAFETY: without the interpreter, only memory kept in place by a buffer is accessed, and only
// read; the buffer is released when the table is dropped, with the interpreter held.
unsafe impl Send for Part {}
// SAFETY: as above.
unsafe impl Sync for Part {}

/// The numbers of a buffer.
#[derive(Clone, Copy)]
enum Number {
    Float { size: usize },
    Int { size: usize, signed: bool },
}

/// A value that cannot be read, and its row.
pub struct NoValue {
    column: usize,
    row: usize,
    what: NotAKey,
}

/// For lack of memory.
impl From<Error> for NoValue {
    fn from(error: Error) -> NoValue {
        NoValue { column: 0, row: 0, what: NotAKey::Raised(error.into()) }
    }
}

impl Table {
    /// Reads a table of any supported type.
    pub fn of(table: &Bound<'_, PyAny>) -> PyResult<Table> {
        if let Some((arrays, kind)) =
            capsule::arrays("features", table, |kind| columns_of(kind).map(drop))?
        {
            return Table::of_arrow(arrays, &kind);
        }
        let array = match PyUntypedBuffer::get(table) {
            Ok(_) => table.clone(),
            Err(_) => table.py().import("numpy")?.call_method1("asarray", (table,))?,
        };
        Table::of_buffer(PyUntypedBuffer::get(&array)?)
    }

    fn of_arrow(arrays: Vec<ArrayRef>, kind: &DataType) -> PyResult<Table> {
        let columns = columns_of(kind)?;
        let split = |array: ArrayRef| {
            let own = match kind {
                DataType::Struct(_) => array.as_struct().columns().to_vec(),
                _ => vec![array.clone()],
            };
            let column = |(array, (_, text)): (ArrayRef, &(Option<String>, bool))| match text {
                true => ArrowPart::of_categories(array).map(Column::Arrow),
                false => Ok(Column::Numbers(array)),
            };
            let own = own.into_iter().zip(&columns).map(column).collect::<PyResult<_>>()?;
            PyResult::Ok(Part { columns: own, len: array.len(), _buffer: None })
        };
        let parts = arrays.into_iter().map(split).collect::<PyResult<Vec<_>>>()?;
        let len = parts.iter().map(|part| part.len).sum();
        Ok(Table { parts, columns, len })
    }

    fn of_buffer(buffer: PyUntypedBuffer) -> PyResult<Table> {
        let format = buffer.format().to_str().unwrap_or("?").to_owned();
        let number = Number::parse(&format, buffer.item_size()).ok_or_else(|| {
            PyTypeError::new_err(format!(
                "features must be an array of 32- or 64-bit floats, integers or bools, or a table \
                 (Arrow, Polars, pandas), not an array of buffer format '{format}'"
            ))
        })?;
        let (shape, strides) = (buffer.shape(), buffer.strides());
        let (len, width, step) = match (shape, strides) {
            (&[len], _) => (len, 1, 0),
            (&[len, width], &[_, step]) => (len, width, step),
            _ => {
                let message = format!("features must have two dimensions, not {}", shape.len());
                return Err(PyTypeError::new_err(message));
            }
        };
        if buffer.suboffsets().is_some() {
            return Err(PyTypeError::new_err(
                "features must be a buffer of numbers, not of pointers to them",
            ));
        }
        let column = |j: usize| Column::Strided {
            start: (buffer.buf_ptr() as *const u8).wrapping_offset(j as isize * step),
            stride: strides[0],
            number,
        };
        let own = (0..width).map(column).collect();
        let part = Part { columns: own, len, _buffer: Some(buffer) };
        Ok(Table { parts: vec![part], columns: vec![(None, false); width], len })
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The number of columns.
    pub fn width(&self) -> usize {
        self.columns.len()
    }

    /// The names of the columns, if any.
    pub fn names(&self) -> impl Iterator<Item = Option<&str>> {
        self.columns.iter().map(|(name, _)| name.as_deref())
    }

    /// Calls `work(rows, first of them, global range)` for the parts that overlap `range`. `order`
    /// is the column of each feature.
    pub fn for_each_part(
        &self,
        order: &[usize],
        range: Range<usize>,
        mut work: impl FnMut(Stretch<'_>, usize, Range<usize>) -> Result<(), NoValue>,
    ) -> Result<(), NoValue> {
        let mut start = 0;
        for part in &self.parts {
            let end = start + part.len;
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                work(Stretch { part, order }, from - start, from..to).map_err(|mut lack| {
                    lack.row += start;
                    lack
                })?;
            }
            start = end;
        }
        Ok(())
    }

    /// The exception for a value that cannot be read.
    pub fn refused(&self, lack: NoValue) -> PyErr {
        let name = match self.columns.get(lack.column) {
            Some((Some(name), _)) => format!("'{name}'"),
            _ => lack.column.to_string(),
        };
        let message = |what| format!("features: column {name} is {what} at row {}", lack.row);
        match lack.what {
            NotAKey::Type(what) | NotAKey::Range(what) => PyTypeError::new_err(message(what)),
            NotAKey::Damaged(what) => PyValueError::new_err(message(what)),
            NotAKey::Raised(error) => error,
        }
    }

    /// One column, read by `read(rows, first, out)` block by block.
    fn column<T: Copy + Default>(
        &self,
        column: usize,
        read: impl Fn(&Stretch<'_>, usize, &mut [T]) -> Result<(), NoValue>,
    ) -> PyResult<Vec<T>> {
        if column >= self.width() {
            return Err(PyIndexError::new_err(format!("there is no column {column}")));
        }
        let mut all = memory::filled(self.len, T::default())?;
        self.for_each_part(&[column], 0..self.len, |rows, first, range| {
            for (i, out) in all[range].chunks_mut(BLOCK).enumerate() {
                read(&rows, first + i * BLOCK, out)?;
            }
            Ok(())
        })
        .map_err(|lack| self.refused(lack))?;
        Ok(all)
    }
}

#[pymethods]
impl Table {
    #[new]
    fn new(table: &Bound<'_, PyAny>) -> PyResult<Table> {
        Table::of(table)
    }

    fn __len__(&self) -> usize {
        self.len
    }

    /// By column: its name, if any, and whether it holds text.
    #[getter]
    fn columns(&self) -> Vec<(Option<String>, bool)> {
        self.columns.clone()
    }

    /// The numbers of a column as 32-bit floats; NaN if missing.
    fn numbers<'py>(&self, py: Python<'py>, column: usize) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let numbers = self.column(column, |rows, first, out| rows.numbers(0, first, out))?;
        Ok(PyArray1::from_vec(py, numbers))
    }

    /// The hashes of a column's values.
    fn categories<'py>(
        &self,
        py: Python<'py>,
        column: usize,
    ) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let hashes = self.column(column, |rows, first, out| rows.categories(0, first, out))?;
        Ok(PyArray1::from_vec(py, hashes))
    }
}

/// The columns of a type: the name of each, if any, and whether it holds text.
fn columns_of(kind: &DataType) -> PyResult<Vec<(Option<String>, bool)>> {
    let text = |name: &str, kind: &DataType| {
        is_text(kind).ok_or_else(|| {
            PyTypeError::new_err(format!(
                "features has a column {name} of type {kind}; numbers, bools, text and dictionaries \
                 are accepted"
            ))
        })
    };
    let DataType::Struct(fields) = kind else { return Ok(vec![(None, text("", kind)?)]) };
    let named = fields.iter().map(|field| (field.name(), field.data_type()));
    named.map(|(name, kind)| Ok((Some(name.clone()), text(name, kind)?))).collect()
}

/// Whether a column of this type holds text; `None` if it cannot be read.
fn is_text(kind: &DataType) -> Option<bool> {
    use DataType::*;
    match kind {
        Float32 | Float64 | Boolean => Some(false),
        Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 => Some(false),
        Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView => Some(true),
        Dictionary(_, _) => arrow::check_type(kind).ok().map(|()| true),
        _ => None,
    }
}

impl Number {
    fn parse(format: &str, size: usize) -> Option<Number> {
        let kind = format.trim_start_matches(['@', '=', '<']);
        match (kind, size) {
            ("f", 4) | ("d", 8) => Some(Number::Float { size }),
            ("b" | "h" | "i" | "l" | "q" | "n", 1 | 2 | 4 | 8) => {
                Some(Number::Int { size, signed: true })
            }
            ("B" | "H" | "I" | "L" | "Q" | "N" | "?", 1 | 2 | 4 | 8) => {
                Some(Number::Int { size, signed: false })
            }
            _ => None,
        }
    }
}

/// Some rows of a table, with the column of each feature.
pub struct Stretch<'a> {
    part: &'a Part,
    order: &'a [usize],
}

/// Integers become 64-bit floats, which become 32-bit floats: a value has the same number whatever
/// its type.
impl Rows for Stretch<'_> {
    type Error = NoValue;

    #[inline(always)]
    fn numbers(&self, feature: usize, first: usize, out: &mut [f32]) -> Result<(), NoValue> {
        let column = self.order[feature];
        match &self.part.columns[column] {
            &Column::Strided { start, stride, number } => {
                macro_rules! each {
                    ($native:ty) => {
                        for (i, out) in out.iter_mut().enumerate() {
                            let offset = (first + i) as isize * stride;
                            let place = start.wrapping_offset(offset).cast::<$native>();
                            // SAFETY: a row of the buffer, of this type; strides may misalign it.
                            let value = unsafe { place.read_unaligned() };
                            *out = value as f64 as f32;
                        }
                    };
                }
                match number {
                    Number::Float { size: 4 } => each!(f32),
                    Number::Float { .. } => each!(f64),
                    Number::Int { size: 1, signed: true } => each!(i8),
                    Number::Int { size: 2, signed: true } => each!(i16),
                    Number::Int { size: 4, signed: true } => each!(i32),
                    Number::Int { signed: true, .. } => each!(i64),
                    Number::Int { size: 1, .. } => each!(u8),
                    Number::Int { size: 2, .. } => each!(u16),
                    Number::Int { size: 4, .. } => each!(u32),
                    Number::Int { .. } => each!(u64),
                }
                Ok(())
            }
            Column::Numbers(array) => {
                arrow_numbers(array, first, out);
                Ok(())
            }
            Column::Arrow(_) => {
                let what = NotAKey::Type("text where the model has numbers".into());
                Err(NoValue { column, row: first, what })
            }
        }
    }

    #[inline(always)]
    fn categories(&self, feature: usize, first: usize, out: &mut [u64]) -> Result<(), NoValue> {
        let column = self.order[feature];
        let lack =
            |row: usize, what: &str| NoValue { column, row, what: NotAKey::Type(what.into()) };
        let hasher = Hasher::seeded(0);
        let mut hashes = [Hash128::default(); BLOCK];
        let hashes = &mut hashes[..out.len()];
        match &self.part.columns[column] {
            Column::Strided { number: Number::Float { .. }, .. } => {
                return Err(lack(first, "a float where the model has categories"));
            }
            &Column::Strided { start, stride, number } => {
                for (i, hash) in hashes.iter_mut().enumerate() {
                    let offset = (first + i) as isize * stride;
                    // SAFETY: a row of the buffer.
                    *hash = unsafe { hash_int(&hasher, start.offset(offset), number) };
                }
            }
            Column::Arrow(part) => {
                let lack = |(row, what)| NoValue { column, row, what };
                part.hash(&hasher, first, hashes).map_err(lack)?;
            }
            Column::Numbers(array) => hash_numbers(array, &hasher, first, hashes)
                .ok_or_else(|| lack(first, "a float or null where the model has categories"))?,
        }
        for (out, hash) in out.iter_mut().zip(hashes) {
            *out = hash.hi;
        }
        Ok(())
    }
}

/// # Safety
/// `place` must be readable for the size of the number.
unsafe fn hash_int(hasher: &Hasher, place: *const u8, number: Number) -> Hash128 {
    macro_rules! read {
        ($native:ty) => {
            // SAFETY: by the contract of this function.
            unsafe { place.cast::<$native>().read_unaligned() }
        };
    }
    match number {
        Number::Int { size: 1, signed: true } => hasher.signed(read!(i8).into()),
        Number::Int { size: 2, signed: true } => hasher.signed(read!(i16).into()),
        Number::Int { size: 4, signed: true } => hasher.signed(read!(i32).into()),
        Number::Int { signed: true, .. } => hasher.signed(read!(i64)),
        Number::Int { size: 1, .. } => hasher.int(read!(u8).into(), false),
        Number::Int { size: 2, .. } => hasher.int(read!(u16).into(), false),
        Number::Int { size: 4, .. } => hasher.int(read!(u32).into(), false),
        _ => hasher.int(read!(u64), false),
    }
}

macro_rules! each_number_type {
    ($array:expr, $each:ident, $other:expr) => {
        match $array.data_type() {
            DataType::Int8 => $each!(Int8Type),
            DataType::Int16 => $each!(Int16Type),
            DataType::Int32 => $each!(Int32Type),
            DataType::Int64 => $each!(Int64Type),
            DataType::UInt8 => $each!(UInt8Type),
            DataType::UInt16 => $each!(UInt16Type),
            DataType::UInt32 => $each!(UInt32Type),
            DataType::UInt64 => $each!(UInt64Type),
            _ => $other,
        }
    };
}

#[inline(always)]
fn arrow_numbers(array: &ArrayRef, first: usize, out: &mut [f32]) {
    macro_rules! each {
        ($native:ty) => {{
            let values = &array.as_primitive::<$native>().values()[first..first + out.len()];
            for (out, &value) in out.iter_mut().zip(values) {
                *out = value as f64 as f32;
            }
        }};
    }
    each_number_type!(
        array,
        each,
        match array.data_type() {
            DataType::Float32 => each!(Float32Type),
            DataType::Float64 => each!(Float64Type),
            _ => {
                let bools = array.as_boolean();
                for (i, out) in out.iter_mut().enumerate() {
                    *out = f32::from(u8::from(bools.value(first + i)));
                }
            }
        }
    );
    if let Some(nulls) = array.nulls() {
        for (i, out) in out.iter_mut().enumerate() {
            *out = if nulls.is_null(first + i) { f32::NAN } else { *out };
        }
    }
}

fn hash_numbers(
    array: &ArrayRef,
    hasher: &Hasher,
    first: usize,
    out: &mut [Hash128],
) -> Option<()> {
    if array.nulls().is_some_and(|nulls| (first..first + out.len()).any(|i| nulls.is_null(i))) {
        return None;
    }
    macro_rules! each {
        ($native:ty) => {{
            let values = &array.as_primitive::<$native>().values()[first..first + out.len()];
            for (out, &value) in out.iter_mut().zip(values) {
                *out = with_wide(value.into(), |plain| plain.hash(hasher));
            }
            Some(())
        }};
    }
    each_number_type!(array, each, None)
}
