//! The only folder that knows Python: it takes keys, returns structures as handles, and turns
//! errors into exceptions.
//!
//! * `keys.rs`: one Python object to one hash; `values.rs`: dates, timestamps and decimals
//! * `column.rs`, `arrow.rs`: whole columns to hashes, without copying them; `capsule.rs`, `items.rs`:
//!   checks of Arrow data
//! * `object_frame.rs`: data frames with columns of Python objects
//! * `table.rs`: columns of features, likewise; `model.rs`: their scores
//! * `batch.rs`: columns through kernels, in chunks, with the interpreter released
//! * `release.rs`: long work without the interpreter, which Ctrl-C ends
//! * `handle.rs`: structures as Python holds them, and the ways to open one
//! * `filter.rs`: the classes of the contract; `adapting.rs`: filters that use a remote
//! * `exit.rs`: threads that are here while the interpreter ends
//! * `gate.rs`: the queries that a guard answers from memory
//! * `hashes.rs`: hashes in memory, as an adaptive filter asks for them
//! * one file and class per kind: its methods in addition to the contract
//! * `frame.rs`: headers and checksums of containers, whose content Python reads and writes
//! * `collection/`, `files.rs`: many filters, in files and in memory; `text.rs`: words

mod adapting;
mod adaptive_cuckoo;
mod adaptive_stacked;
mod arrays;
mod arrow;
mod batch;
mod bloom;
mod capsule;
mod collection;
mod column;
mod cuckoo;
mod error;
mod exit;
mod files;
mod filter;
mod frame;
mod function;
mod fuse;
mod gate;
mod handle;
mod hashes;
mod items;
mod keys;
mod kinds;
mod learned;
mod model;
mod object_frame;
mod quotient;
mod release;
mod ribbon;
mod sharded;
mod split;
mod stable;
mod stable_learned;
mod stacked;
mod table;
mod telescoping;
mod text;
mod values;
mod windowed;

use crate::threads;
use numpy::PyArrayMethods;
use pyo3::prelude::*;

/// Looks up the functions of NumPy. The crate would do that at their first use, by running Python code, and
/// panic if a signal ended it: signals are handled in the main thread, so another one looks them up now.
fn load_numpy(py: Python<'_>) -> PyResult<()> {
    py.import("numpy")?;
    let look_up = || {
        Python::attach(|py| drop(numpy::PyArray1::<bool>::zeros(py, 0, false).readonly()));
    };
    release::briefly(py, || threads::both(|| (), look_up));
    Ok(())
}

/// Native kernels of tamis, typed and documented in `_native.pyi`.
#[pymodule(gil_used = true)]
mod _native {
    #[pymodule_export]
    use super::adapting::Adapting;
    #[pymodule_export]
    use super::adaptive_cuckoo::AdaptiveCuckoo;
    #[pymodule_export]
    use super::adaptive_stacked::{AdaptiveStacked, AdaptiveState};
    #[pymodule_export]
    use super::batch::{Distinct, hash_keys};
    #[pymodule_export]
    use super::bloom::Bloom;
    #[pymodule_export]
    use super::collection::{FilterSizes, Filters, Full, Resident, Sliced, TextOptions};
    #[pymodule_export]
    use super::column::key_list;
    #[pymodule_export]
    use super::cuckoo::Cuckoo;
    #[pymodule_export]
    use super::filter::{Deleting, Filter, Inserting, Stored};
    #[pymodule_export]
    use super::frame::{FrameHeader, FrameSection, check_file, checksum};
    #[pymodule_export]
    use super::function::{Assigned, Function};
    #[pymodule_export]
    use super::fuse::Fuse;
    #[pymodule_export]
    use super::gate::{Batch, Gate, Lookup, now};
    #[pymodule_export]
    use super::handle::{Handle, open_bytes, open_file};
    #[pymodule_export]
    use super::hashes::{Hashes, encode_hashes};
    #[pymodule_export]
    use super::keys::{plain_key, plain_keys, tuple_parts};
    #[pymodule_export]
    use super::kinds::{KindRow, kinds};
    #[pymodule_export]
    use super::learned::{LearnedBloom, ScoreRegion, ScoredKeys};
    #[pymodule_export]
    use super::model::{Classifier, TextGrams, column_name, text_grams};
    #[pymodule_export]
    #[pymodule_export]
    use super::quotient::{Fingerprints, Quotient};
    #[pymodule_export]
    use super::ribbon::Ribbon;
    #[pymodule_export]
    use super::sharded::{Sharded, Spill};
    #[pymodule_export]
    use super::split::{Shard, split};
    #[pymodule_export]
    use super::stable::StableBloom;
    #[pymodule_export]
    use super::stable_learned::{ScoreGroup, StableLearned};
    #[pymodule_export]
    use super::stacked::{BuiltLayer, Negatives, Stacked};
    #[pymodule_export]
    use super::table::Table;
    #[pymodule_export]
    use super::telescoping::AdaptiveQuotient;
    #[pymodule_export]
    use super::text::words;
    #[pymodule_export]
    use super::windowed::Windowed;

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        crate::lock::install_fork_handlers();
        super::load_numpy(module.py())
    }

    /// Whether this is a slow build without optimizations.
    #[pymodule_export]
    const DEBUG_BUILD: bool = cfg!(debug_assertions);

    /// Parts of the hash space, each of which a guard locks for writing.
    #[pymodule_export]
    const REGIONS: u32 = super::gate::REGIONS;

    /// The version of the package.
    #[allow(non_upper_case_globals)]
    #[pymodule_export]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
