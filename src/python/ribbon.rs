//! Ribbon filters: built, truncated.

use super::batch::Distinct;
use super::filter::{Filter, structure};
use super::handle::Handle;
use super::kinds::kind_class;
use super::release::released;
use crate::ribbon::{Layout, Ribbon as Kernel, Sizes};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A `planning.ribbon.RibbonSize`: columns, the share of keys with one more in units of 2⁻³², and the
/// slots of each level that bumps.
#[derive(FromPyObject)]
pub struct Size {
    layout: String,
    columns: u32,
    share: u32,
    levels: Vec<u64>,
}

impl Size {
    fn build(&self, keys: &Distinct, _capacity: u64) -> PyResult<Kernel> {
        let Size { layout, columns, share, levels } = self;
        let layout = Layout::named(layout).ok_or_else(|| {
            let message = format!("layout must be 'interleaved' or 'columns', not '{layout}'");
            PyValueError::new_err(message)
        })?;
        let sizes = Sizes { columns: *columns, share: *share, levels, ..Sizes::default() };
        Ok(Kernel::build(layout, sizes, &keys.hashes)?)
    }
}

kind_class! {
    /// A ribbon filter.
    Ribbon(Kernel) extends Filter, build from Size
}

#[pymethods]
impl Ribbon {
    /// The order of the columns.
    #[getter]
    fn layout(self_: &Bound<'_, Self>) -> PyResult<&'static str> {
        Ok(structure::<Kernel>(self_)?.1.layout().name())
    }

    /// The number of columns of every key.
    #[getter]
    fn _columns(self_: &Bound<'_, Self>) -> PyResult<u32> {
        Ok(structure::<Kernel>(self_)?.1.columns().0)
    }

    /// The share of keys with one column more, in units of 2⁻³².
    #[getter]
    fn _share(self_: &Bound<'_, Self>) -> PyResult<u32> {
        Ok(structure::<Kernel>(self_)?.1.columns().1)
    }

    /// Bits of a column.
    #[getter]
    fn _slots(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(structure::<Kernel>(self_)?.1.column_bits().0)
    }

    /// Bits kept of all columns.
    #[getter]
    fn _kept(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(structure::<Kernel>(self_)?.1.column_bits().1)
    }

    /// The first bits of a filter by columns.
    fn _truncated(self_: &Bound<'_, Self>, bits: u64) -> PyResult<Handle> {
        let (stored, ribbon) = structure::<Kernel>(self_)?;
        Ok(stored.handle.with(released(self_.py(), || ribbon.truncated(bits))??))
    }
}
