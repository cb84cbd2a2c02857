//! Columns of keys: where they are in memory, and how to hash a range of them in place.

use super::arrow::{self, ArrowPart};
use super::exit;
use super::keys::{self, ACCEPTED, NO_TEXT, NotAKey, digits};
use super::object_frame::objects_of_frame;
use super::values::Unit;
use crate::hash::{Hash128, Hasher};
use crate::interrupt;
use crate::key::Plain;
use crate::memory;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyIterator, PyList, PyString, PyType};
use std::ops::Range;

/// Objects read from an iterable at a time, and between two checks for signals: Ctrl-C ends one that
/// never ends.
pub const INTERRUPTIBLE: usize = 1 << 16;

/// Many keys.
pub enum Keys<'py> {
    /// Memory that is read without the interpreter.
    Column(Column),
    /// Python objects.
    Objects(Bound<'py, PyList>),
}

/// A column in one or more parts.
pub struct Column {
    parts: Vec<Part>,
    len: usize,
}

enum Part {
    Strided(Strided),
    Arrow(ArrowPart),
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Part::Strided(part) => part.len,
            Part::Arrow(part) => part.len(),
        }
    }
}

/// What many keys turned out to be.
pub enum Found<'py> {
    Keys(Keys<'py>),
    /// An iterable, not read yet: a set, a range, a generator, of which only the last has no length.
    Iterable {
        objects: Bound<'py, PyIterator>,
        sized: bool,
    },
}

impl<'py> Keys<'py> {
    /// The keys, for a caller that reads the objects more than once or not to hash them: an iterable
    /// is read to its end, and its objects are kept.
    pub fn new(keys: &Bound<'py, PyAny>) -> PyResult<Keys<'py>> {
        match Keys::find(keys)? {
            Found::Keys(keys) => Ok(keys),
            Found::Iterable { objects, .. } => listed(objects).map(Keys::Objects),
        }
    }

    /// Finds the cheapest way to read `keys`.
    pub fn find(keys: &Bound<'py, PyAny>) -> PyResult<Found<'py>> {
        exit::outlast();
        if keys.is_instance_of::<PyList>() {
            return Keys::objects(keys);
        }
        if keys.is_exact_instance_of::<PyUntypedArray>() {
            // No mask and no Arrow interface: asking for them takes longer than a few keys.
            return Keys::viewed(keys, false)?.map_or_else(|| Keys::objects(keys), Ok);
        }
        refuse_single(keys)?;
        if let Some(keys) = objects_of_frame(keys)? {
            return Keys::objects(&keys);
        }
        if let Some(parts) = arrow::import(keys)? {
            let parts = memory::collected(parts.into_iter().map(Part::Arrow))?;
            let len = parts.iter().map(Part::len).sum();
            return Ok(Found::Keys(Keys::Column(Column { parts, len })));
        }
        if let Some(keys) = Keys::buffer(keys)? {
            return Ok(keys);
        }
        if keys.hasattr("__array__")? {
            let array = keys.py().import("numpy")?.call_method1("asarray", (keys,))?;
            if let Some(keys) = Keys::buffer(&array)? {
                return Ok(keys);
            }
        }
        Keys::objects(keys)
    }

    /// The keys of a NumPy array or another buffer; `None` if `keys` is neither.
    fn buffer(keys: &Bound<'py, PyAny>) -> PyResult<Option<Found<'py>>> {
        // The buffer of a masked array would show the values that the mask hides.
        let masked = keys.hasattr("mask")? && keys.hasattr("filled")?;
        Keys::viewed(keys, masked)
    }

    fn viewed(keys: &Bound<'py, PyAny>, masked: bool) -> PyResult<Option<Found<'py>>> {
        if let Ok(array) = keys.cast::<PyUntypedArray>()
            && array.dtype().kind() == b'M'
            && array.ndim() == 1
        {
            return datetimes(keys, masked).map(|column| Some(Found::Keys(Keys::Column(column))));
        }
        if masked {
            return Keys::objects(&keys.call_method0("tolist")?).map(Some);
        }
        let Ok(buffer) = PyUntypedBuffer::get(keys) else { return Ok(None) };
        Ok(Some(match Strided::new(buffer, None)? {
            Some(part) => Found::Keys(Keys::Column(part.into())),
            None => Keys::objects(&keys.call_method0("tolist")?)?,
        }))
    }

    /// The objects of a list or another iterable.
    fn objects(keys: &Bound<'py, PyAny>) -> PyResult<Found<'py>> {
        if let Ok(list) = keys.cast::<PyList>() {
            return Ok(Found::Keys(Keys::Objects(list.clone())));
        }
        let sized = keys.len().is_ok();
        let objects = keys.try_iter().map_err(|_| {
            let kind = keys.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
            PyTypeError::new_err(format!(
                "keys must be a list, a NumPy array, an Arrow column or another iterable of keys, \
                 not {kind}"
            ))
        })?;
        Ok(Found::Iterable { objects, sized })
    }

    /// The keys as a list of Python objects.
    pub fn list(keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        exit::outlast();
        if let Ok(list) = keys.cast::<PyList>() {
            return Ok(list.clone());
        }
        refuse_single(keys)?;
        let objects = match objects_of_frame(keys)? {
            Some(objects) => objects,
            None => {
                let given = ["tolist", "to_pylist", "to_list"].into_iter().find_map(|name| {
                    let list = keys.getattr_opt(name).transpose()?.and_then(|list| list.call0());
                    Some(list.map(|list| list.cast_into::<PyList>().ok()))
                });
                match given.transpose()?.flatten() {
                    Some(list) => return Ok(list),
                    None => keys.clone(),
                }
            }
        };
        match Keys::objects(&objects)? {
            Found::Iterable { objects, .. } => listed(objects),
            Found::Keys(Keys::Objects(list)) => Ok(list),
            Found::Keys(Keys::Column(_)) => unreachable!("objects are not a column"),
        }
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        match self {
            Keys::Column(column) => column.len,
            Keys::Objects(objects) => objects.len(),
        }
    }
}

/// All objects of an iterable. It may be endless, so the first item that is no key ends it.
fn listed<'py>(objects: Bound<'py, PyIterator>) -> PyResult<Bound<'py, PyList>> {
    let py = objects.py();
    let list = PyList::empty(py);
    let mut last: Option<Bound<'py, PyType>> = None;
    for (index, object) in objects.enumerate() {
        let object = object?;
        let kind = object.get_type();
        if !last.as_ref().is_some_and(|last| last.is(&kind)) {
            keys::plain(&object).map_err(|reason| reason.named(&format!("keys[{index}]")))?;
            last = Some(kind);
        }
        list.append(object)?;
        if index % INTERRUPTIBLE == INTERRUPTIBLE - 1 {
            py.check_signals()?;
        }
    }
    Ok(list)
}

fn refuse_single(keys: &Bound<'_, PyAny>) -> PyResult<()> {
    let single = keys.is_instance_of::<PyString>()
        || keys.is_instance_of::<PyBytes>()
        || keys.is_instance_of::<PyByteArray>();
    if single {
        let kind = keys.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "keys must be a list, an array or a column of keys, not one {kind}; pass [key] for one key"
        )));
    }
    Ok(())
}

/// Return keys as a list of Python objects.
#[pyfunction]
pub fn key_list<'py>(keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    Keys::list(keys)
}

/// The column of an array of datetime64, which has no buffer of its own: the integers in it.
fn datetimes(array: &Bound<'_, PyAny>, masked: bool) -> PyResult<Column> {
    let dtype = array.getattr("dtype")?;
    let unit = Unit::of(&dtype)?;
    let order = dtype.getattr("str")?.extract::<String>()?;
    let filled = match masked {
        true => {
            let null = array.py().import("numpy")?.call_method1("array", ("NaT", &dtype))?;
            array.call_method1("filled", (null,))?
        }
        false => array.clone(),
    };
    let integers = filled.call_method1("view", (format!("{}i8", &order[..1]),))?;
    let part = Strided::new(PyUntypedBuffer::get(&integers)?, Some(unit))?;
    part.map(Column::from)
        .ok_or_else(|| PyTypeError::new_err("keys must be an array of datetime64"))
}

impl From<Strided> for Column {
    fn from(part: Strided) -> Column {
        let len = part.len;
        Column { parts: vec![Part::Strided(part)], len }
    }
}

impl Column {
    /// The number of keys.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether some value of this type is not a key, so that hashing may fail part-way.
    pub fn may_fail(&self) -> bool {
        self.parts.iter().any(|part| match part {
            Part::Strided(part) => part.unit.is_some() || matches!(part.item, Item::Text { .. }),
            Part::Arrow(part) => part.may_fail(),
        })
    }

    /// Whether the memory of the column can be read to its end. Hashing checks that too, key by key.
    pub fn check(&self) -> Result<(), (usize, NotAKey)> {
        let mut start = 0;
        for part in &self.parts {
            if let Part::Arrow(part) = part {
                part.check().map_err(|(index, reason)| (start + index, reason))?;
            }
            start += part.len();
        }
        Ok(())
    }

    /// Hashes the keys of `range` chunk by chunk: `chunk(first, hashes)`.
    pub fn for_each_chunk(
        &self,
        hasher: &Hasher,
        range: Range<usize>,
        mut chunk: impl FnMut(usize, &[Hash128]),
    ) -> Result<(), (usize, NotAKey)> {
        let mut hashes = [Hash128::default(); CHUNK];
        let mut start = 0;
        for part in &self.parts {
            let end = start + part.len();
            let mut at = range.start.max(start);
            while at < range.end.min(end) {
                interrupt::check();
                let stop = (at + CHUNK).min(range.end).min(end);
                let hashes = &mut hashes[..stop - at];
                match part {
                    Part::Strided(part) => part.hash(hasher, at - start, hashes),
                    Part::Arrow(part) => part.hash(hasher, at - start, hashes),
                }
                .map_err(|(index, reason)| (start + index, reason))?;
                chunk(at, hashes);
                at = stop;
            }
            start = end;
        }
        Ok(())
    }
}

impl Column {
    /// Passes on the text of the keys of `range`: `text(index, bytes)`.
    pub fn each_text(
        &self,
        range: Range<usize>,
        mut text: impl FnMut(usize, &[u8]),
    ) -> Result<(), (usize, NotAKey)> {
        let mut text = |index: usize, bytes: &[u8]| {
            if index.is_multiple_of(CHUNK) {
                interrupt::check();
            }
            text(index, bytes);
        };
        let mut start = 0;
        for part in &self.parts {
            let end = start + part.len();
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                let inner = from - start..to - start;
                match part {
                    Part::Strided(part) => part.each_text(inner, |i, bytes| text(start + i, bytes)),
                    Part::Arrow(part) => part.each_text(inner, |i, bytes| text(start + i, bytes)),
                }
                .map_err(|(index, reason)| (start + index, reason))?;
            }
            start = end;
        }
        Ok(())
    }
}

/// Keys hashed at a time: 16 KiB of hashes stay in the first-level cache.
pub const CHUNK: usize = 1024;

/// One dimension of a buffer: NumPy arrays, `array.array`, typed memoryviews.
struct Strided {
    start: *const u8,
    stride: isize,
    len: usize,
    item: Item,
    /// The unit, if the integers are datetime64.
    unit: Option<Unit>,
    /// Keeps the memory alive.
    _buffer: PyUntypedBuffer,
}

// SAFETY: only `start`'s memory is touched without the interpreter; the buffer keeps it in place and
// at its length, and is released when the part is dropped, by the thread that holds the interpreter.
unsafe impl Send for Strided {}
// SAFETY: as above; shared access only reads. Another thread of Python may write to the memory, though
// it should not. Lengths come from the buffer, never from the items, so such a write changes hashes, but
// causes no access out of bounds.
unsafe impl Sync for Strided {}

/// The type of the items of a buffer.
#[derive(Clone, Copy)]
enum Item {
    /// Integers of 1, 2, 4 or 8 bytes.
    Int { size: usize, signed: bool, swapped: bool },
    /// Bytes of a fixed width; zeros at the end are padding, as in NumPy.
    Bytes { width: usize },
    /// UCS-4 text of a fixed width, likewise.
    Text { width: usize, swapped: bool },
}

impl Strided {
    /// `None` where the items are Python objects; `unit` if they are datetime64.
    fn new(buffer: PyUntypedBuffer, unit: Option<Unit>) -> PyResult<Option<Strided>> {
        if buffer.dimensions() != 1 {
            return Err(PyTypeError::new_err(format!(
                "keys must have one dimension, not {}",
                buffer.dimensions()
            )));
        }
        let format = buffer.format().to_str().unwrap_or("?").to_owned();
        if buffer.suboffsets().is_some() {
            let message = "keys must be a buffer that contains its items, not pointers to them";
            return Err(PyTypeError::new_err(message));
        }
        let item = match buffer.shape()[0] {
            0 => Some(Item::Bytes { width: 0 }), // no items, so none that is not a key
            _ => Item::parse(&format, buffer.item_size()),
        };
        let Some(item) = item else {
            if format == "O" {
                return Ok(None);
            }
            return Err(PyTypeError::new_err(format!(
                "keys is an array of {}; {ACCEPTED}, and an array has items of one such kind",
                described(&format)
            )));
        };
        let (len, stride) = (buffer.shape()[0], buffer.strides()[0]);
        let start = buffer.buf_ptr() as *const u8;
        Ok(Some(Strided { start, stride, len, item, unit, _buffer: buffer }))
    }

    fn hash(
        &self,
        hasher: &Hasher,
        first: usize,
        out: &mut [Hash128],
    ) -> Result<(), (usize, NotAKey)> {
        debug_assert!(first + out.len() <= self.len);
        // SAFETY: an index below `len` times the stride stays inside the exporter's memory, and
        // each item has the size that its format says.
        let place = |i: usize| unsafe { self.start.offset((first + i) as isize * self.stride) };
        if let Some(unit) = self.unit {
            for (i, out) in out.iter_mut().enumerate() {
                let value = self.int(first + i) as i64;
                let hash = unit.with_plain(value, |plain| plain.hash(hasher));
                *out = hash.map_err(|reason| (first + i, reason))?;
            }
            return Ok(());
        }
        match self.item {
            Item::Int { size, signed, swapped } => {
                // SAFETY: as above; unaligned because strides may be anything.
                macro_rules! each {
                    ($unsigned:ty, $signed:ty) => {
                        for (i, out) in out.iter_mut().enumerate() {
                            // SAFETY: `place(i)` is an item of this size; strides may misalign it.
                            let raw = unsafe { place(i).cast::<$unsigned>().read_unaligned() };
                            let raw = if swapped { raw.swap_bytes() } else { raw };
                            *out = if signed {
                                hasher.signed((raw as $signed).into())
                            } else {
                                hasher.int(raw.into(), false)
                            };
                        }
                    };
                }
                match size {
                    1 => each!(u8, i8),
                    2 => each!(u16, i16),
                    4 => each!(u32, i32),
                    _ => each!(u64, i64),
                }
            }
            Item::Bytes { width } => {
                for (i, out) in out.iter_mut().enumerate() {
                    // SAFETY: `place(i)` is an item of `width` bytes.
                    let bytes = unsafe { std::slice::from_raw_parts(place(i), width) };
                    let length = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |i| i + 1);
                    *out = hasher.bytes(&bytes[..length]);
                }
            }
            Item::Text { width, swapped } => {
                let mut text = text_buffer(width).map_err(|reason| (first, reason))?;
                for (i, out) in out.iter_mut().enumerate() {
                    // SAFETY: `place(i)` is an item of `width` code points of 4 bytes.
                    let code = |j| unsafe { place(i).cast::<u32>().add(j).read_unaligned() };
                    let code = |j| if swapped { code(j).swap_bytes() } else { code(j) };
                    encode(width, code, &mut text).ok_or_else(|| {
                        let what = "a str with lone surrogates, which has no UTF-8";
                        (first + i, NotAKey::Type(what.into()))
                    })?;
                    *out = hasher.bytes(&text);
                }
            }
        }
        Ok(())
    }
}

impl Strided {
    /// An item of integers, extended to 64 bits.
    #[inline]
    fn int(&self, at: usize) -> u64 {
        let Item::Int { size, signed, swapped } = self.item else { return 0 };
        let mut raw = [0; 8];
        // SAFETY: as in `hash`: an item of `size` bytes, up to 8.
        let item = unsafe {
            std::slice::from_raw_parts(self.start.offset(at as isize * self.stride), size)
        };
        raw[..size].copy_from_slice(item);
        if swapped {
            raw[..size].reverse();
        }
        let spare = 64 - 8 * size as u32;
        let high = u64::from_le_bytes(raw) << spare;
        if signed { (high as i64 >> spare) as u64 } else { high >> spare }
    }

    /// Passes on the bytes of items: text and bytes as they are, integers as decimal digits.
    fn each_text(
        &self,
        range: Range<usize>,
        mut text: impl FnMut(usize, &[u8]),
    ) -> Result<(), (usize, NotAKey)> {
        debug_assert!(range.end <= self.len);
        if self.unit.is_some() {
            return Err((range.start, NotAKey::Type(NO_TEXT.into())));
        }
        let width = if let Item::Text { width, .. } = self.item { width } else { 0 };
        let mut buffer = text_buffer(width).map_err(|reason| (range.start, reason))?;
        for i in range {
            // SAFETY: as in `hash`: an item of the size that its format says.
            let place = unsafe { self.start.offset(i as isize * self.stride) };
            match self.item {
                Item::Int { signed, .. } => {
                    let bits = self.int(i);
                    let negative = signed && (bits as i64) < 0;
                    text(i, digits(Plain::Int { bits, negative }).as_bytes());
                }
                Item::Bytes { width } => {
                    // SAFETY: the item has `width` bytes.
                    let bytes = unsafe { std::slice::from_raw_parts(place, width) };
                    let length = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |i| i + 1);
                    text(i, &bytes[..length]);
                }
                Item::Text { width, swapped } => {
                    // SAFETY: the item has `width` code points of 4 bytes.
                    let code = |j| unsafe { place.cast::<u32>().add(j).read_unaligned() };
                    let code = |j| if swapped { code(j).swap_bytes() } else { code(j) };
                    encode(width, code, &mut buffer).ok_or_else(|| {
                        let what = "a str with lone surrogates, which has no UTF-8";
                        (i, NotAKey::Type(what.into()))
                    })?;
                    text(i, &buffer);
                }
            }
        }
        Ok(())
    }
}

/// Memory for the UTF-8 of as many code points.
fn text_buffer(width: usize) -> Result<Vec<u8>, NotAKey> {
    memory::with_capacity(4 * width).map_err(|error| NotAKey::Raised(error.into()))
}

/// Replaces `text` by the UTF-8 of code points, without the zeros at the end; `None` if one is
/// not a character.
#[inline(always)]
fn encode(width: usize, code: impl Fn(usize) -> u32, text: &mut Vec<u8>) -> Option<()> {
    text.resize(width, 0);
    let mut any = 0;
    for (j, byte) in text.iter_mut().enumerate() {
        any |= code(j);
        *byte = code(j) as u8;
    }
    if any < 0x80 {
        let length = text.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        text.truncate(length);
        return Some(());
    }
    let length = (0..width).rev().find(|&j| code(j) != 0).map_or(0, |last| last + 1);
    text.clear();
    for j in 0..length {
        let character = char::from_u32(code(j))?;
        text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    }
    Some(())
}

impl Item {
    /// Reads a format string of the buffer protocol.
    fn parse(format: &str, size: usize) -> Option<Item> {
        let (order, kind) = match format.strip_prefix(['@', '=', '<', '>', '!']) {
            Some(kind) => (format.as_bytes()[0], kind),
            None => (b'@', format),
        };
        let swapped = matches!(order, b'>' | b'!') == cfg!(target_endian = "little");
        let int = |signed| Item::Int { size, signed, swapped };
        let integral = matches!(size, 1 | 2 | 4 | 8);
        match kind {
            "b" | "h" | "i" | "l" | "q" | "n" if integral => Some(int(true)),
            "B" | "H" | "I" | "L" | "Q" | "N" if integral => Some(int(false)),
            _ if kind.trim_start_matches(|c: char| c.is_ascii_digit()) == "s" => {
                Some(Item::Bytes { width: size })
            }
            _ if kind.trim_start_matches(|c: char| c.is_ascii_digit()) == "w" => {
                Some(Item::Text { width: size / 4, swapped })
            }
            _ => None,
        }
    }
}

/// A refused format, for an error message.
fn described(format: &str) -> String {
    match format.trim_start_matches(['@', '=', '<', '>', '!']) {
        "?" => "bool".into(),
        "e" | "f" | "d" | "g" => "floats".into(),
        other => format!("buffer format '{other}'"),
    }
}
