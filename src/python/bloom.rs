//! Bloom filters: created, built, merged, truncated.

use super::batch::{self, Batch, Distinct, at_index, in_ranges};
use super::column::{Column, Keys};
use super::filter::{Inserting, structure};
use super::handle::Handle;
use super::keys::{self, NotAKey, Secret, hasher};
use super::kinds::kind_class;
use super::release::{briefly, released};
use crate::bloom::{Bloom as Kernel, Filling, Layout, Shape};
use crate::error;
use crate::hash::{Hash128, Hasher};
use crate::hyperloglog::{HyperLogLog, MARGIN};
use crate::kernel::Kernel as _;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::borrow::Cow;
use std::ops::Range;

/// Up to this many keys, distinct ones are counted; above, their number is estimated.
const COUNTED: usize = 1 << 20;
/// How far the number of keys, estimated from the bits of a filter, may exceed its capacity before
/// it is built again from counted keys. For more than `COUNTED` keys, the error of that estimate is
/// a tenth of this.
const SLACK: f64 = 0.005;

/// A `planning.bloom.BloomSize`.
#[derive(FromPyObject)]
pub struct Size {
    layout: String,
    bits: u64,
    hashes: u32,
}

impl Size {
    fn shape(&self) -> PyResult<Shape> {
        let layout = Layout::named(&self.layout).ok_or_else(|| {
            PyValueError::new_err(format!(
                "layout must be 'blocked', 'standard' or 'segmented', not '{}'",
                self.layout
            ))
        })?;
        Ok(Shape::new(layout, self.bits, self.hashes, self.bits)?)
    }

    fn empty(&self, _capacity: u64) -> PyResult<Kernel> {
        Ok(Kernel::new(self.shape()?)?)
    }

    fn build(&self, keys: &Distinct, _capacity: u64) -> PyResult<Kernel> {
        Ok(Kernel::build(self.shape()?, &keys.hashes, keys.threads)?)
    }
}

kind_class! {
    /// A Bloom filter.
    Bloom(Kernel) extends Inserting, empty, build from Size
}

#[pymethods]
impl Bloom {
    /// Build a filter of keys of any type. `size` is called with the number of distinct keys, or
    /// for many keys with an estimate that is seldom too low, and returns the size to build.
    #[staticmethod]
    #[pyo3(signature = (keys, size, seed=0, key=None))]
    fn _build_any(
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = keys::seed)] seed: u64,
        #[pyo3(from_py_with = keys::secret)] key: Option<Secret>,
    ) -> PyResult<Handle> {
        let hasher = hasher(seed, key)?;
        let keys = Batch::new(keys, &hasher)?;
        let size = |count: usize| size.call1((count,))?.extract::<Size>();
        if keys.len() > COUNTED {
            let many = Many::new(py, &keys, &hasher)?;
            let capacity = released(py, || many.upper_bound())??;
            if capacity > COUNTED {
                let shape = size(capacity)?.shape()?;
                let kernel = released(py, || many.fill(shape))??;
                if kernel.count() as f64 <= capacity as f64 * (1.0 + SLACK) {
                    return Ok(Handle::new(kernel, capacity as u64, hasher));
                }
            }
        }
        let distinct = Distinct::of(py, &keys, hasher)?;
        Self::_build(py, size(distinct.hashes.len())?, &distinct, 0)
    }

    /// Where the bits of a key are.
    #[getter]
    fn layout(self_: &Bound<'_, Self>) -> PyResult<&'static str> {
        Ok(structure::<Kernel>(self_)?.1.shape().layout.name())
    }

    /// The number of bits per key (k).
    #[getter]
    fn hashes(self_: &Bound<'_, Self>) -> PyResult<u32> {
        Ok(structure::<Kernel>(self_)?.1.shape().hashes)
    }

    /// Estimate the number of distinct keys from the set bits; infinite if all are set.
    fn cardinality(self_: &Bound<'_, Self>) -> PyResult<f64> {
        let (_, bloom) = structure::<Kernel>(self_)?;
        Ok(briefly(self_.py(), || bloom.cardinality()))
    }

    /// The union of the bits.
    fn _union(self_: &Bound<'_, Self>, other: &Bound<'_, Self>) -> PyResult<Handle> {
        merge(self_, other, Kernel::union)
    }

    /// The intersection of the bits.
    fn _intersection(self_: &Bound<'_, Self>, other: &Bound<'_, Self>) -> PyResult<Handle> {
        merge(self_, other, Kernel::intersection)
    }

    /// The first bits of a filter that is not blocked.
    fn _truncated(self_: &Bound<'_, Self>, bits: u64) -> PyResult<Handle> {
        let (stored, bloom) = structure::<Kernel>(self_)?;
        Ok(stored.handle.with(released(self_.py(), || bloom.truncated(bits))??))
    }
}

/// Keys that are hashed twice: to count them, and to set their bits.
struct Many<'a> {
    keys: Hashed<'a>,
    hasher: &'a Hasher,
    count: usize,
    threads: usize,
}

/// A column is hashed again, which is faster than storing and reading its hashes; objects are
/// hashed once.
enum Hashed<'a> {
    Column(&'a Column),
    Objects(Cow<'a, [Hash128]>),
}

impl<'a> Many<'a> {
    fn new(py: Python<'_>, keys: &'a Batch<'_>, hasher: &'a Hasher) -> PyResult<Many<'a>> {
        let count = keys.len();
        let threads = batch::threads(count, batch::THREADED_BUILD);
        let keys = match keys {
            Batch::Keys(Keys::Column(column)) => Hashed::Column(column),
            objects => Hashed::Objects(batch::collect(py, hasher, objects)?),
        };
        Ok(Many { keys, hasher, count, threads })
    }

    fn for_each_chunk(
        &self,
        range: Range<usize>,
        mut chunk: impl FnMut(&[Hash128]),
    ) -> Result<(), (usize, NotAKey)> {
        match &self.keys {
            Hashed::Column(column) => {
                column.for_each_chunk(self.hasher, range, |_, hashes| chunk(hashes))
            }
            Hashed::Objects(hashes) => {
                chunk(&hashes[range]);
                Ok(())
            }
        }
    }

    /// An upper bound of the number of distinct keys: the estimate plus its margin.
    fn upper_bound(&self) -> PyResult<usize> {
        let sketches = in_ranges(self.count, self.threads, |range| {
            let mut sketch = HyperLogLog::new()?;
            self.for_each_chunk(range, |hashes| sketch.extend(hashes)).map_err(at_index)?;
            PyResult::Ok(sketch)
        })?;
        let mut merged = HyperLogLog::new()?;
        sketches.iter().for_each(|sketch| merged.merge(sketch));
        Ok(((merged.estimate() * (1.0 + MARGIN)).ceil() as usize).min(self.count))
    }

    fn fill(&self, shape: Shape) -> PyResult<Kernel> {
        let filling = Filling::new(shape)?;
        in_ranges(self.count, self.threads, |range| {
            let mut worker = filling.worker()?;
            self.for_each_chunk(range, |hashes| worker.insert(hashes)).map_err(at_index)
        })?;
        Ok(filling.finish(self.count as u64))
    }
}

fn merge(
    one: &Bound<'_, Bloom>,
    other: &Bound<'_, Bloom>,
    merge: fn(&Kernel, &Kernel) -> error::Result<Kernel>,
) -> PyResult<Handle> {
    let ((a, x), (b, y)) = (structure::<Kernel>(one)?, structure::<Kernel>(other)?);
    a.handle.check_hash(&b.handle)?;
    let merged = released(one.py(), || merge(x, y))??;
    let capacity = a.handle.capacity.max(b.handle.capacity);
    Ok(Handle { capacity, ..a.handle.with(merged) })
}
