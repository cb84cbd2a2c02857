//! One Python object to its plain form (`key.rs`) and its hash.

use super::arrays;
use super::exit;
use super::values;
use crate::error::Error;
use crate::hash::{Hash128, Hasher};
use crate::key::{self, Plain};
use crate::memory;
use pyo3::exceptions::{
    PyAttributeError, PyOverflowError, PyTypeError, PyUnicodeEncodeError, PyValueError,
};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyInt, PyList, PyString, PyTuple, PyType};

/// The types of keys: the end of every message about an object that is not a key.
pub const ACCEPTED: &str = "a key is a str, bytes, or an int from -2**63 to 2**64-1 \
     (or a date, a timestamp, a Decimal, or a tuple of these)";

/// Why a key has no text for a classifier.
pub const NO_TEXT: &str = "neither text, binary nor an integer, which a model of text reads";

/// Why an object is not a key; the caller knows whether it is alone or at an index.
pub enum NotAKey {
    /// Its type is not accepted; described.
    Type(String),
    /// It is a number that is too large.
    Range(String),
    /// The column is damaged there; described.
    Damaged(String),
    /// The exception that the object itself raised.
    Raised(PyErr),
}

impl NotAKey {
    /// The exception for the key called `name` (`key`, `keys[3]`).
    pub fn named(self, name: &str) -> PyErr {
        match self {
            NotAKey::Type(what) => PyTypeError::new_err(format!("{name} is {what}; {ACCEPTED}")),
            NotAKey::Range(what) => {
                PyOverflowError::new_err(format!("{name} is {what}; {ACCEPTED}"))
            }
            NotAKey::Damaged(what) => {
                PyValueError::new_err(format!("{name} is {what}: the column is damaged"))
            }
            NotAKey::Raised(error) => error,
        }
    }

    /// The reason for a key that has such a part: `outer` is "a tuple whose item 3".
    #[cold]
    pub fn within(self, outer: &str) -> NotAKey {
        match self {
            NotAKey::Type(what) => NotAKey::Type(format!("{outer} is {what}")),
            NotAKey::Range(what) => NotAKey::Range(format!("{outer} is {what}")),
            NotAKey::Damaged(what) => NotAKey::Damaged(format!("{outer} is {what}")),
            raised => raised,
        }
    }
}

/// The kinds of keys, which one list does not mix.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Bytes,
    Numbers,
    Dates,
    Timestamps,
    Tuples,
}

impl Family {
    /// The name of one key, and of several.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Family::Bytes => ("text or bytes", "text or bytes"),
            Family::Numbers => ("a number", "numbers"),
            Family::Dates => ("a date", "dates"),
            Family::Timestamps => ("a timestamp", "timestamps"),
            Family::Tuples => ("a tuple", "tuples"),
        }
    }
}

/// The hash of a Python object and the family it belongs to.
#[inline(always)]
pub fn hash_object(hasher: &Hasher, key: &Bound<'_, PyAny>) -> Result<(Hash128, Family), NotAKey> {
    let object = key.as_ptr();
    // SAFETY: `object` is a live Python object and the interpreter is held. Most keys are exactly
    // of one of these types, and comparing pointers is cheaper than reading flags.
    unsafe {
        let kind = ffi::Py_TYPE(object);
        if kind == &raw mut ffi::PyUnicode_Type {
            return Ok((hasher.bytes(utf8(key)?), Family::Bytes));
        }
        if kind == &raw mut ffi::PyLong_Type {
            return Ok((int(key)?.hash(hasher), Family::Numbers));
        }
        if kind == &raw mut ffi::PyBytes_Type {
            return Ok((hasher.bytes(bytes(key)), Family::Bytes));
        }
    }
    hash_other(hasher, key)
}

#[cold]
fn hash_other(hasher: &Hasher, key: &Bound<'_, PyAny>) -> Result<(Hash128, Family), NotAKey> {
    exit::outlast();
    with_plain(key, |plain, family| (plain.hash(hasher), family))
}

/// Calls `then` with the plain form of any key.
fn with_plain<T>(
    key: &Bound<'_, PyAny>,
    then: impl FnOnce(Plain<'_>, Family) -> T,
) -> Result<T, NotAKey> {
    let Ok(tuple) = key.cast::<PyTuple>() else { return with_single(key, then) };
    match tuple.len() {
        0 => Err(NotAKey::Type("an empty tuple".into())),
        1 => {
            let part = tuple.get_item(0).map_err(NotAKey::Raised)?;
            with_single(&part, then).map_err(|reason| reason.within("a tuple whose item 0"))
        }
        _ => {
            let refused = |error: Error| NotAKey::Raised(error.into());
            let mut form = memory::with_capacity(16 * tuple.len()).map_err(refused)?;
            for (i, part) in tuple.iter().enumerate() {
                with_single(&part, |plain, _| key::push_part(&mut form, plain))
                    .map_err(|reason| reason.within(&format!("a tuple whose item {i}")))?
                    .map_err(refused)?;
            }
            Ok(then(Plain::Bytes(&form), Family::Tuples))
        }
    }
}

/// Calls `then` with the plain form of a key that is not a tuple.
#[inline]
fn with_single<T>(
    key: &Bound<'_, PyAny>,
    then: impl FnOnce(Plain<'_>, Family) -> T,
) -> Result<T, NotAKey> {
    if key.is_instance_of::<PyString>() {
        // SAFETY: the type is checked.
        return Ok(then(Plain::Bytes(unsafe { utf8(key) }?), Family::Bytes));
    }
    if key.is_instance_of::<PyBytes>() {
        // SAFETY: the type is checked.
        return Ok(then(Plain::Bytes(unsafe { bytes(key) }), Family::Bytes));
    }
    if let Some(number) = integer(key)? {
        return Ok(then(number, Family::Numbers));
    }
    if key.is_instance_of::<PyTuple>() {
        return Err(NotAKey::Type("a tuple, which cannot be nested".into()));
    }
    values::with_value(key, then).unwrap_or_else(|| Err(described(key)))
}

/// The integer of an object that is one, such as NumPy's scalars; but not of a bool, which both
/// Python and NumPy count among the integers.
fn integer(key: &Bound<'_, PyAny>) -> Result<Option<Plain<'static>>, NotAKey> {
    // SAFETY: a live object, and the interpreter is held.
    if unsafe { ffi::PyIndex_Check(key.as_ptr()) } == 0 {
        return Ok(None);
    }
    if key.is_exact_instance_of::<PyInt>() {
        // SAFETY: the type is checked.
        return unsafe { int(key) }.map(Some);
    }
    if key.is_instance_of::<PyBool>() || is_numpy_bool(key)? {
        return Err(described(key));
    }
    // SAFETY: as above; the function returns a new int, or null with an exception set.
    let value =
        unsafe { Bound::from_owned_ptr_or_err(key.py(), ffi::PyNumber_Index(key.as_ptr())) };
    match value {
        // SAFETY: the type is checked.
        Ok(value) if value.is_instance_of::<PyInt>() => unsafe { int(&value) }.map(Some),
        Err(error) if !is_missing(&error, key.py()) => Err(NotAKey::Raised(error)),
        _ => Ok(None),
    }
}

/// Calls `read` with the text of a key: text and bytes as they are, integers as decimal digits.
pub fn with_text(key: &Bound<'_, PyAny>, read: impl FnOnce(&[u8])) -> Result<(), NotAKey> {
    if let Some(number) = integer(key)? {
        read(digits(number).as_bytes());
        return Ok(());
    }
    with_plain(key, |plain, family| match (plain, family) {
        (Plain::Bytes(bytes), Family::Bytes) => {
            read(bytes);
            Ok(())
        }
        _ => Err(NotAKey::Type(NO_TEXT.into())),
    })?
}

/// The decimal digits of an integer; empty for bytes.
pub fn digits(plain: Plain<'_>) -> String {
    match plain {
        Plain::Int { bits, negative: true } => (bits as i64).to_string(),
        Plain::Int { bits, negative: false } => bits.to_string(),
        Plain::Bytes(_) => String::new(),
    }
}

/// The plain form of a key as a Python object: bytes or an int.
pub fn plain<'py>(key: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>, NotAKey> {
    if key.is_exact_instance_of::<PyBytes>() {
        return Ok(key.clone());
    }
    with_plain(key, |plain, _| object(key.py(), plain))?.map_err(NotAKey::Raised)
}

fn object<'py>(py: Python<'py>, plain: Plain<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match plain {
        Plain::Bytes(bytes) => arrays::bytes(py, bytes)?.into_any(),
        Plain::Int { bits, negative: true } => PyInt::new(py, bits as i64).into_any(),
        Plain::Int { bits, negative: false } => PyInt::new(py, bits).into_any(),
    })
}

/// Return the parts of a tuple's plain form, or None if the bytes are not a tuple's.
#[pyfunction]
pub fn tuple_parts<'py>(py: Python<'py>, form: &[u8]) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let Some(parts) = key::parts(form) else { return Ok(None) };
    let parts = memory::collected_ok(parts.into_iter().map(|each| object(py, each)))?;
    PyTuple::new(py, parts).map(Some)
}

/// Return the plain form of a key, bytes or an int: what filters hash, and stores take.
#[pyfunction]
pub fn plain_key<'py>(key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    plain(key).map_err(|reason| reason.named("key"))
}

/// Return the plain form of each key of a list.
#[pyfunction]
pub fn plain_keys<'py>(keys: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
    let plain = keys
        .iter()
        .enumerate()
        .map(|(index, key)| plain(&key).map_err(|reason| reason.named(&format!("keys[{index}]"))));
    arrays::list(keys.py(), plain)
}

/// # Safety
/// `key` must be a str.
#[inline(always)]
unsafe fn utf8<'a>(key: &'a Bound<'_, PyAny>) -> Result<&'a [u8], NotAKey> {
    // SAFETY: the UTF-8 that Python returns is valid while the str lives, which `key` keeps alive.
    unsafe {
        let mut length = 0;
        let text = ffi::PyUnicode_AsUTF8AndSize(key.as_ptr(), &mut length);
        if text.is_null() {
            return Err(not_utf8(key.py()));
        }
        Ok(std::slice::from_raw_parts(text.cast(), length as usize))
    }
}

/// Why a str has no UTF-8, from the exception that is set.
#[cold]
fn not_utf8(py: Python<'_>) -> NotAKey {
    let error = PyErr::fetch(py);
    if error.is_instance_of::<PyUnicodeEncodeError>(py) {
        return NotAKey::Type("a str with lone surrogates, which has no UTF-8".into());
    }
    NotAKey::Raised(error)
}

/// # Safety
/// `key` must be bytes.
#[inline(always)]
unsafe fn bytes<'a>(key: &'a Bound<'_, PyAny>) -> &'a [u8] {
    // SAFETY: bytes do not move or change while they live, and `key` keeps them alive.
    unsafe {
        let start: *const u8 = ffi::PyBytes_AsString(key.as_ptr()).cast();
        std::slice::from_raw_parts(start, ffi::PyBytes_Size(key.as_ptr()) as usize)
    }
}

/// # Safety
/// `key` must be an int.
#[inline(always)]
unsafe fn int(key: &Bound<'_, PyAny>) -> Result<Plain<'static>, NotAKey> {
    let object = key.as_ptr();
    // SAFETY: `object` is a live int and the interpreter is held.
    unsafe {
        let mut overflow = 0;
        let value = ffi::PyLong_AsLongLongAndOverflow(object, &mut overflow);
        if overflow == 0 {
            return Ok(Plain::signed(value));
        }
        let value = ffi::PyLong_AsUnsignedLongLong(object);
        if ffi::PyErr_Occurred().is_null() {
            return Ok(Plain::unsigned(value));
        }
        ffi::PyErr_Clear();
    }
    let bits = key.call_method0("bit_length").and_then(|bits| bits.extract::<u64>());
    Err(NotAKey::Range(match bits {
        Ok(bits) if bits > 128 => format!("an int of {bits} bits"),
        _ => key.to_string(),
    }))
}

fn is_numpy_bool(key: &Bound<'_, PyAny>) -> Result<bool, NotAKey> {
    static BOOL: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let kind = BOOL.import(key.py(), "numpy", "bool_").map_err(NotAKey::Raised)?;
    Ok(key.is_exact_instance(kind))
}

/// Whether an object only says that it is no integer.
fn is_missing(error: &PyErr, py: Python<'_>) -> bool {
    error.is_instance_of::<PyTypeError>(py) || error.is_instance_of::<PyAttributeError>(py)
}

/// An object that is not a key: its value where that is short, and its type.
#[cold]
pub fn described(key: &Bound<'_, PyAny>) -> NotAKey {
    let (value, kind) = (shown(key), type_name(key));
    let short = !key.is_none() && !value.starts_with("of type ");
    NotAKey::Type(if short { format!("{value} (of type {kind})") } else { value })
}

/// The value of an object where that is short, else its type.
#[cold]
pub fn shown(object: &Bound<'_, PyAny>) -> String {
    match object.repr() {
        Ok(repr) if (1..=40).contains(&repr.len().unwrap_or(0)) => repr.to_string(),
        _ => format!("of type {}", type_name(object)),
    }
}

fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "object".into(), |name| name.to_string())
}

/// A secret key.
pub type Secret = [u8; 16];

/// The argument `key` of a filter. A message never shows the value, which may be the secret.
pub fn secret(value: &Bound<'_, PyAny>) -> PyResult<Option<Secret>> {
    if value.is_none() {
        return Ok(None);
    }
    let Ok(bytes) = value.cast::<PyBytes>() else {
        let message = format!("key must be 16 bytes, not of type {}", type_name(value));
        return Err(PyTypeError::new_err(message));
    };
    let length = bytes.as_bytes().len();
    let secret = bytes.as_bytes().try_into().map(Some);
    secret.map_err(|_| PyValueError::new_err(format!("key must be 16 bytes, not {length}")))
}

/// The hasher for the arguments `seed` and `key` of a filter.
pub fn hasher(seed: u64, secret: Option<Secret>) -> PyResult<Hasher> {
    let Some(secret) = secret else { return Ok(Hasher::seeded(seed)) };
    if seed != 0 {
        let message = format!("pass either seed or key, not seed={seed} with a key");
        return Err(PyValueError::new_err(message));
    }
    Ok(Hasher::keyed(&secret))
}

/// The argument `seed` of a filter.
pub fn seed(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    value.extract().map_err(|error: PyErr| {
        let shown = shown(value);
        let message = format!("seed must be an int from 0 to 2**64-1, not {shown}");
        match error.is_instance_of::<PyOverflowError>(value.py()) {
            true => PyValueError::new_err(message),
            false => PyTypeError::new_err(message),
        }
    })
}
