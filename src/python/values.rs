//! Dates, timestamps and decimals: single objects of Python, NumPy and pandas.

use super::arrays;
use super::keys::{Family, NotAKey, described};
use crate::key::{self, DAY, Plain, SECOND, days_since_1970, with_wide};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

/// Digits of a decimal, as in a column of Arrow's 128-bit decimals.
const MAX_DIGITS: usize = 38;

/// Calls `then` with the plain form of a date, a timestamp or a decimal; `None` for another object.
pub fn with_value<T>(
    key: &Bound<'_, PyAny>,
    then: impl FnOnce(Plain<'_>, Family) -> T,
) -> Option<Result<T, NotAKey>> {
    static TYPES: PyOnceLock<[Py<PyType>; 4]> = PyOnceLock::new();
    let py = key.py();
    let types = TYPES.get_or_try_init(py, || {
        let import = |module: &str, name: &str| {
            let kind = py.import(module)?.getattr(name)?;
            PyResult::Ok(kind.cast_into::<PyType>()?.unbind())
        };
        PyResult::Ok([
            import("datetime", "datetime")?,
            import("datetime", "date")?,
            import("numpy", "datetime64")?,
            import("decimal", "Decimal")?,
        ])
    });
    let is = |kind: &Py<PyType>| key.is_instance(kind.bind(py)).unwrap_or(false);
    Some(match types {
        Err(error) => Err(NotAKey::Raised(error)),
        Ok([datetime, ..]) if is(datetime) => of_datetime(key)
            .map(|nanoseconds| with_wide(nanoseconds, |plain| then(plain, Family::Timestamps))),
        Ok([_, date, ..]) if is(date) => {
            of_date(key).map(|days| with_wide(days, |plain| then(plain, Family::Dates)))
        }
        Ok([_, _, datetime64, _]) if is(datetime64) => with_datetime64(key, then),
        Ok([_, _, _, decimal]) if is(decimal) => with_decimal(key, then),
        _ => return None,
    })
}

/// The days of a `datetime.date`, or of the date of a datetime, since 1970-01-01.
fn of_date(key: &Bound<'_, PyAny>) -> Result<i128, NotAKey> {
    let py = key.py();
    let field = |name| -> Result<i128, NotAKey> {
        let value = key.getattr(name).map_err(NotAKey::Raised)?;
        value.extract::<i64>().map(i128::from).map_err(|_| described(key)) // NaT: its year is NaN
    };
    Ok(days_since_1970(
        field(intern!(py, "year"))?,
        field(intern!(py, "month"))?,
        field(intern!(py, "day"))?,
    ))
}

/// The nanoseconds of a `datetime.datetime` since 1970-01-01 UTC; without a time zone, it is UTC.
fn of_datetime(key: &Bound<'_, PyAny>) -> Result<i128, NotAKey> {
    let midnight = of_date(key)? * DAY;
    within_day(key).map(|since| midnight + since).map_err(NotAKey::Raised)
}

/// The nanoseconds since midnight UTC of the date that a datetime has in its own zone.
fn within_day(key: &Bound<'_, PyAny>) -> PyResult<i128> {
    let py = key.py();
    let field = |of: &Bound<'_, PyAny>, name| of.getattr(name)?.extract::<i64>().map(i128::from);
    let mut seconds = 3600 * field(key, intern!(py, "hour"))?
        + 60 * field(key, intern!(py, "minute"))?
        + field(key, intern!(py, "second"))?;
    let mut microseconds = field(key, intern!(py, "microsecond"))?;
    // pandas' Timestamp, a subclass, has nanoseconds.
    let nanoseconds = match key.getattr_opt(intern!(py, "nanosecond"))? {
        Some(value) => value.extract::<i64>()?.into(),
        None => 0,
    };
    if !key.getattr(intern!(py, "tzinfo"))?.is_none() {
        let offset = key.call_method0(intern!(py, "utcoffset"))?;
        if !offset.is_none() {
            seconds -= 86_400 * field(&offset, intern!(py, "days"))?
                + field(&offset, intern!(py, "seconds"))?;
            microseconds -= field(&offset, intern!(py, "microseconds"))?;
        }
    }
    Ok(seconds * SECOND + microseconds * 1000 + nanoseconds)
}

fn with_datetime64<T>(
    key: &Bound<'_, PyAny>,
    then: impl FnOnce(Plain<'_>, Family) -> T,
) -> Result<T, NotAKey> {
    let read = || {
        let unit = Unit::of(&key.getattr("dtype")?)?;
        let value = key.call_method1("astype", ("i8",))?.extract::<i64>()?;
        PyResult::Ok((unit, value))
    };
    let (unit, value) = read().map_err(NotAKey::Raised)?;
    let family = if unit.is_date() { Family::Dates } else { Family::Timestamps };
    unit.with_plain(value, |plain| then(plain, family))
}

fn with_decimal<T>(
    key: &Bound<'_, PyAny>,
    then: impl FnOnce(Plain<'_>, Family) -> T,
) -> Result<T, NotAKey> {
    let parts = key.call_method0("as_tuple").and_then(|parts| parts.extract());
    let (sign, digits, exponent): (u8, Bound<'_, PyTuple>, Bound<'_, PyAny>) =
        parts.map_err(NotAKey::Raised)?;
    let Ok(exponent) = exponent.extract::<i64>() else { return Err(described(key)) }; // NaN, infinity
    let digits: Vec<u8> = arrays::items(&digits).map_err(NotAKey::Raised)?;
    let Some(last) = digits.iter().rposition(|&digit| digit != 0) else {
        return Ok(then(Plain::signed(0), Family::Numbers));
    };
    let first = digits.iter().position(|&digit| digit != 0).unwrap_or(0);
    let scale = -(exponent.saturating_add((digits.len() - 1 - last) as i64));
    let too_long = || NotAKey::Range(format!("a Decimal of over {MAX_DIGITS} digits"));
    if last - first >= MAX_DIGITS || scale < -(MAX_DIGITS as i64) {
        return Err(too_long());
    }
    let Ok(scale) = i8::try_from(scale) else {
        let max = i8::MAX;
        return Err(NotAKey::Range(format!("a Decimal of over {max} decimal places")));
    };
    let value = digits[first..=last].iter().fold(0, |sum, &digit| 10 * sum + i128::from(digit));
    let value = if sign == 0 { value } else { -value };
    key::with_decimal(value, scale, |plain| then(plain, Family::Numbers)).ok_or_else(too_long)
}

/// The unit of NumPy's datetime64: days and longer units are dates, shorter ones are timestamps, as
/// NumPy itself converts them to Python.
#[derive(Clone, Copy)]
pub struct Unit {
    kind: Kind,
    /// How many of them: 25 for `datetime64[25us]`.
    count: i128,
}

#[derive(Clone, Copy)]
enum Kind {
    Months(i128),
    Days(i128),
    Nanoseconds(i128),
    /// This many make a nanosecond.
    Fractions(i128),
    /// A datetime64 without a unit, which can only be NaT.
    Unknown,
}

impl Unit {
    /// The unit of a dtype.
    pub fn of(dtype: &Bound<'_, PyAny>) -> PyResult<Unit> {
        let data = dtype.py().import("numpy")?.call_method1("datetime_data", (dtype,))?;
        let (name, count): (String, i64) = data.extract()?;
        let kind = match name.as_str() {
            "Y" => Kind::Months(12),
            "M" => Kind::Months(1),
            "W" => Kind::Days(7),
            "D" => Kind::Days(1),
            "h" => Kind::Nanoseconds(3600 * SECOND),
            "m" => Kind::Nanoseconds(60 * SECOND),
            "s" => Kind::Nanoseconds(SECOND),
            "ms" => Kind::Nanoseconds(1_000_000),
            "us" | "μs" => Kind::Nanoseconds(1_000),
            "ns" => Kind::Nanoseconds(1),
            "ps" => Kind::Fractions(1_000),
            "fs" => Kind::Fractions(1_000_000),
            "as" => Kind::Fractions(1_000_000_000),
            _ => Kind::Unknown,
        };
        Ok(Unit { kind, count: count.into() })
    }

    fn is_date(self) -> bool {
        matches!(self.kind, Kind::Months(_) | Kind::Days(_))
    }

    /// Calls `then` with the plain form of a value in this unit.
    #[inline]
    pub fn with_plain<T>(
        self,
        value: i64,
        then: impl FnOnce(Plain<'_>) -> T,
    ) -> Result<T, NotAKey> {
        if value == i64::MIN {
            return Err(NotAKey::Type("NaT".into()));
        }
        let units = i128::from(value) * self.count;
        let plain = match self.kind {
            Kind::Months(months) => {
                let months = units * months;
                days_since_1970(1970 + months.div_euclid(12), months.rem_euclid(12) + 1, 1)
            }
            Kind::Days(days) => units * days,
            Kind::Nanoseconds(nanoseconds) => units.checked_mul(nanoseconds).ok_or_else(|| {
                NotAKey::Range("a timestamp beyond 128 bits of nanoseconds".into())
            })?,
            Kind::Fractions(fractions) if units % fractions == 0 => units / fractions,
            Kind::Fractions(_) => {
                let what = "a timestamp with a fraction of a nanosecond";
                return Err(NotAKey::Type(what.into()));
            }
            Kind::Unknown => return Err(NotAKey::Type("a datetime64 without a unit".into())),
        };
        Ok(with_wide(plain, then))
    }
}
