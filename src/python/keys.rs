//! One Python object to one hash, as the canonical table of `hash.rs` says.

use crate::hash::{Hash128, Hasher};
use pyo3::exceptions::{
    PyAttributeError, PyOverflowError, PyTypeError, PyUnicodeEncodeError, PyValueError,
};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyInt, PyList, PyString};

/// What a key may be: the end of every message about one that is not.
pub const ACCEPTED: &str = "a key is a str, bytes, or an int from -2**63 to 2**64-1";

/// Why an object is not a key; the caller knows whether it stood alone or at an index.
pub enum NotAKey {
    /// Of a type that is not accepted, described.
    Type(String),
    /// An integer that is too large.
    Range(String),
    /// In a column that is damaged there, described.
    Damaged(String),
    /// What the object itself raised when it was asked.
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
}

/// The two kinds of key, which one column does not mix.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Text and bytes.
    Bytes,
    /// Integers.
    Ints,
}

/// The hash of a Python object and the family it belongs to.
#[inline(always)]
pub fn hash_object(hasher: &Hasher, key: &Bound<'_, PyAny>) -> Result<(Hash128, Family), NotAKey> {
    let object = key.as_ptr();
    // SAFETY: `object` is a live Python object and the interpreter is held. Most keys are exactly
    // of one of these types, and comparing pointers is cheaper than asking for flags.
    unsafe {
        let kind = ffi::Py_TYPE(object);
        if kind == &raw mut ffi::PyUnicode_Type {
            return hash_text(hasher, object);
        }
        if kind == &raw mut ffi::PyLong_Type {
            return hash_int(hasher, key);
        }
        if kind == &raw mut ffi::PyBytes_Type {
            return Ok(hash_bytes(hasher, object));
        }
    }
    hash_other(hasher, key)
}

/// Looks at the text of a Python object: text and bytes as they are, integers as decimal digits.
pub fn with_text(key: &Bound<'_, PyAny>, look: impl FnOnce(&[u8])) -> Result<(), NotAKey> {
    if let Ok(text) = key.cast::<PyString>() {
        look(utf8(text)?);
    } else if let Ok(bytes) = key.cast::<PyBytes>() {
        look(bytes.as_bytes());
    } else {
        hash_object(&Hasher::seeded(0), key)?; // refuses what is not a key
        let value = key.call_method0("__index__").map_err(NotAKey::Raised)?;
        look(value.to_string().as_bytes());
    }
    Ok(())
}

fn utf8<'a>(text: &'a Bound<'_, PyString>) -> Result<&'a [u8], NotAKey> {
    text.to_str().map(str::as_bytes).map_err(|error| {
        match error.is_instance_of::<PyUnicodeEncodeError>(text.py()) {
            true => NotAKey::Type("a str with lone surrogates, which has no UTF-8".into()),
            false => NotAKey::Raised(error),
        }
    })
}

/// A key in the form in which stores take it: text as UTF-8, any integer as an int.
pub fn plain<'py>(key: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>, NotAKey> {
    if key.is_exact_instance_of::<PyBytes>() {
        return Ok(key.clone());
    }
    if let Ok(text) = key.cast::<PyString>() {
        return Ok(PyBytes::new(key.py(), utf8(text)?).into_any());
    }
    if let Ok(bytes) = key.cast::<PyBytes>() {
        return Ok(PyBytes::new(key.py(), bytes.as_bytes()).into_any());
    }
    hash_object(&Hasher::seeded(0), key)?; // refuses what is not a key
    if key.is_exact_instance_of::<PyInt>() {
        return Ok(key.clone());
    }
    key.call_method0("__index__").map_err(NotAKey::Raised)
}

/// Return a key in the form in which stores take it.
#[pyfunction]
pub fn plain_key<'py>(key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    plain(key).map_err(|reason| reason.named("key"))
}

/// Return each key of a list in the form in which stores take it.
#[pyfunction]
pub fn plain_keys<'py>(keys: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
    let plain = keys
        .iter()
        .enumerate()
        .map(|(index, key)| plain(&key).map_err(|reason| reason.named(&format!("keys[{index}]"))));
    PyList::new(keys.py(), plain.collect::<PyResult<Vec<_>>>()?)
}

/// # Safety
/// `object` must be a live str, and the interpreter be held.
#[inline(always)]
unsafe fn hash_text(
    hasher: &Hasher,
    object: *mut ffi::PyObject,
) -> Result<(Hash128, Family), NotAKey> {
    // SAFETY: the UTF-8 that Python returns is valid while the str lives, which is past this call.
    unsafe {
        let mut length = 0;
        let text = ffi::PyUnicode_AsUTF8AndSize(object, &mut length);
        if text.is_null() {
            return Err(not_utf8());
        }
        let bytes = std::slice::from_raw_parts(text.cast(), length as usize);
        Ok((hasher.bytes(bytes), Family::Bytes))
    }
}

/// Why a str has no UTF-8, from the exception that is set.
#[cold]
fn not_utf8() -> NotAKey {
    Python::attach(|py| {
        let error = PyErr::fetch(py);
        if error.is_instance_of::<PyUnicodeEncodeError>(py) {
            return NotAKey::Type("a str with lone surrogates, which has no UTF-8".into());
        }
        NotAKey::Raised(error)
    })
}

/// # Safety
/// `object` must be live bytes, and the interpreter be held.
#[inline(always)]
unsafe fn hash_bytes(hasher: &Hasher, object: *mut ffi::PyObject) -> (Hash128, Family) {
    // SAFETY: bytes do not move or change while they live, which is past this call.
    unsafe {
        let start: *const u8 = ffi::PyBytes_AsString(object).cast();
        let bytes = std::slice::from_raw_parts(start, ffi::PyBytes_Size(object) as usize);
        (hasher.bytes(bytes), Family::Bytes)
    }
}

/// A Python int.
#[inline(always)]
fn hash_int(hasher: &Hasher, key: &Bound<'_, PyAny>) -> Result<(Hash128, Family), NotAKey> {
    let object = key.as_ptr();
    // SAFETY: `object` is a live int and the interpreter is held.
    unsafe {
        let mut overflow = 0;
        let value = ffi::PyLong_AsLongLongAndOverflow(object, &mut overflow);
        if overflow == 0 {
            return Ok((hasher.signed(value), Family::Ints));
        }
        let value = ffi::PyLong_AsUnsignedLongLong(object);
        if ffi::PyErr_Occurred().is_null() {
            return Ok((hasher.int(value, false), Family::Ints));
        }
        ffi::PyErr_Clear();
    }
    let digits = key.call_method0("bit_length").and_then(|bits| bits.extract::<u64>());
    Err(NotAKey::Range(match digits {
        Ok(bits) if bits > 128 => format!("an int of {bits} bits"),
        _ => key.to_string(),
    }))
}

/// A subclass of the types above, or anything else that says it is an integer (NumPy's scalars);
/// but no bool, which both Python and NumPy count among the integers.
#[cold]
fn hash_other(hasher: &Hasher, key: &Bound<'_, PyAny>) -> Result<(Hash128, Family), NotAKey> {
    // SAFETY: as checked, and the interpreter is held.
    unsafe {
        if key.is_instance_of::<PyString>() {
            return hash_text(hasher, key.as_ptr());
        }
        if key.is_instance_of::<PyBytes>() {
            return Ok(hash_bytes(hasher, key.as_ptr()));
        }
    }
    if key.is_instance_of::<PyBool>() || is_numpy_bool(key) {
        return Err(described(key));
    }
    match key.call_method0("__index__") {
        Ok(value) if value.is_instance_of::<PyInt>() => hash_int(hasher, &value),
        Err(error) if !is_missing(&error, key.py()) => Err(NotAKey::Raised(error)),
        _ => Err(described(key)),
    }
}

fn is_numpy_bool(key: &Bound<'_, PyAny>) -> bool {
    let kind = key.get_type();
    let named = |name: PyResult<Bound<'_, PyString>>, values: &[&str]| {
        name.is_ok_and(|name| values.iter().any(|value| name == *value))
    };
    named(kind.name(), &["bool", "bool_"]) && named(kind.module(), &["numpy"])
}

/// Whether an object only says that it is no integer.
fn is_missing(error: &PyErr, py: Python<'_>) -> bool {
    error.is_instance_of::<PyTypeError>(py) || error.is_instance_of::<PyAttributeError>(py)
}

/// An object that is not a key: its value where that is short, and its type.
#[cold]
fn described(key: &Bound<'_, PyAny>) -> NotAKey {
    let (value, kind) = (shown(key), type_name(key));
    let short = !key.is_none() && !value.starts_with("of type ");
    NotAKey::Type(if short { format!("{value} (of type {kind})") } else { value })
}

/// The value of an object where that is short, else its type.
#[cold]
pub fn shown(object: &Bound<'_, PyAny>) -> String {
    let value = object.repr().map_or_else(|_| String::new(), |repr| repr.to_string());
    match value.chars().count() {
        1..=40 => value,
        _ => format!("of type {}", type_name(object)),
    }
}

fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "object".into(), |name| name.to_string())
}

/// A secret key.
pub type Secret = [u8; 16];

/// The argument `key` of a filter. A message never shows what was given, which may be the secret.
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
