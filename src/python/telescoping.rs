//! Telescoping and extending filters: created, built, merged, inspected.

use super::adapting::Adapting;
use super::batch::Distinct;
use super::error::catch_damage;
use super::filter::structure;
use super::handle::Handle;
use super::kinds::kind_class;
use super::release::{read, released};
use crate::kernel::Kernel as _;
use crate::telescoping::{Layout, Mode, Shared as Kernel, Telescoping};
use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A `planning.telescoping.TelescopingSize`.
#[derive(FromPyObject)]
pub struct Size {
    selectors: String,
    quotients: u64,
    remainder_bits: u32,
}

const LAYOUTS: [(&str, Layout); 3] =
    [("growing", Layout::Growing), ("block", Layout::Block), ("plain", Layout::Plain)];

impl Size {
    fn layout(&self) -> PyResult<Layout> {
        let found = LAYOUTS.iter().find(|(name, _)| *name == self.selectors);
        found.map(|(_, layout)| *layout).ok_or_else(|| {
            PyValueError::new_err(format!(
                "selectors must be 'growing', 'block' or 'plain', not '{}'",
                self.selectors
            ))
        })
    }

    fn empty(&self, extending: bool, capacity: u64) -> PyResult<Kernel> {
        let (layout, mode) = (self.layout()?, mode(extending));
        Ok(Kernel::new(self.quotients, self.remainder_bits, layout, mode, capacity)?)
    }

    fn build(&self, extending: bool, keys: &Distinct, _capacity: u64) -> PyResult<Kernel> {
        let (layout, mode) = (self.layout()?, mode(extending));
        Ok(Kernel::build(self.quotients, self.remainder_bits, layout, mode, &keys.hashes)?)
    }
}

fn mode(extending: bool) -> Mode {
    if extending { Mode::Extending } else { Mode::Telescoping }
}

kind_class! {
    /// An adaptive quotient filter: telescoping or extending.
    AdaptiveQuotient(Kernel) extends Adapting, empty, build from Size, extending: bool
}

#[pymethods]
impl AdaptiveQuotient {
    /// How selectors are stored: "growing", "block" or "plain".
    #[getter]
    fn selectors(self_: &Bound<'_, Self>) -> PyResult<&'static str> {
        let layout = read_with(self_, |filter| filter.store().layout())?;
        let name = LAYOUTS.iter().find(|(_, each)| *each == layout);
        Ok(name.map_or("", |(name, _)| name))
    }

    /// The number of quotients (Q): the stored hashes of each are one range.
    #[getter]
    fn quotients(self_: &Bound<'_, Self>) -> PyResult<u64> {
        read_with(self_, |filter| filter.table().quotients())
    }

    /// The length of a remainder in bits (r).
    #[getter]
    fn remainder_bits(self_: &Bound<'_, Self>) -> PyResult<u32> {
        read_with(self_, |filter| filter.table().remainder_bits())
    }

    /// The number of slots.
    #[getter]
    fn _slots(self_: &Bound<'_, Self>) -> PyResult<u64> {
        read_with(self_, |filter| filter.table().slots())
    }

    /// The number of selectors lost because the code of their block was full.
    #[getter]
    fn forgotten(self_: &Bound<'_, Self>) -> PyResult<u64> {
        read_with(self_, |filter| filter.forgotten())
    }

    /// The number of adaptations skipped because more than 64 elements share the key's quotient,
    /// since the filter was created or opened.
    #[getter]
    fn skipped(self_: &Bound<'_, Self>) -> PyResult<u64> {
        Ok(structure::<Kernel>(self_)?.1.skipped())
    }

    /// The number of elements that have moved 0, 1, 2, … steps.
    #[getter]
    fn steps<'py>(self_: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let (py, (_, shared)) = (self_.py(), structure::<Kernel>(self_)?);
        let counts = released(py, || catch_damage(|| shared.with(|filter| filter.histogram())))??;
        Ok(PyArray1::from_vec(py, counts))
    }

    /// The insertions into both.
    fn _merged(self_: &Bound<'_, Self>, other: &Bound<'_, Self>) -> PyResult<Handle> {
        let ((a, x), (b, y)) = (structure::<Kernel>(self_)?, structure::<Kernel>(other)?);
        a.handle.check_hash(&b.handle)?;
        let merged = released(self_.py(), || catch_damage(|| x.merge(y)))???;
        let capacity = merged.capacity().unwrap_or(a.handle.capacity);
        Ok(Handle { capacity, ..a.handle.with(merged) })
    }
}

fn read_with<R: Send>(
    filter: &Bound<'_, AdaptiveQuotient>,
    visit: impl Fn(&Telescoping) -> R + Send + Sync,
) -> PyResult<R> {
    let (_, kernel) = structure::<Kernel>(filter)?;
    Ok(read(filter.py(), || kernel.with(&visit)))
}
