//! Data frames of pandas and Polars with columns of Python objects, recognized by their modules.

use super::arrays;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The keys of a pandas or Polars column or table with a column of Python objects, as an iterable of
/// objects; `None` for anything else. Their conversion to Arrow would change values: it cuts
/// timestamps to microseconds, drops the time of day, or hands out addresses.
pub fn objects_of_frame<'py>(keys: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let kind = keys.get_type();
    let module = kind.module()?;
    let module = module.to_str()?;
    let pandas = module.starts_with("pandas");
    if !pandas && !module.starts_with("polars") {
        return Ok(None);
    }
    let is_object = |dtype: Bound<'py, PyAny>| -> PyResult<bool> {
        let name = dtype.str()?;
        let name = name.to_str()?.to_lowercase();
        Ok(["object", "period", "interval"].iter().any(|each| name.starts_with(each)))
    };
    if kind.name()? != "DataFrame" {
        let typed = keys.hasattr("dtype")? && is_object(keys.getattr("dtype")?)?;
        return if typed {
            keys.call_method0(if pandas { "tolist" } else { "to_list" }).map(Some)
        } else {
            Ok(None)
        };
    }
    let types: Vec<Bound<'py, PyAny>> =
        keys.getattr("dtypes")?.try_iter()?.collect::<PyResult<_>>()?;
    let mut objects = false;
    for dtype in types.iter().cloned() {
        objects |= is_object(dtype)?;
    }
    if !objects {
        return Ok(None);
    }
    let rows = if pandas {
        let plain = PyDict::new(keys.py());
        plain.set_item("index", false)?;
        plain.set_item("name", keys.py().None())?;
        keys.call_method("itertuples", (), Some(&plain))?
    } else {
        keys.call_method0("rows")?
    };
    Ok(Some(arrays::list(keys.py(), rows.try_iter()?)?.into_any()))
}
