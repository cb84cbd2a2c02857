//! The only folder that knows Python: keys come in, kernels are handed out as handles, errors
//! become exceptions.
//!
//! * `keys.rs`: one Python object to one hash
//! * `column.rs`, `arrow.rs`: whole columns to hashes, without copying them
//! * `table.rs`: columns of features, likewise; `model.rs`: their scores
//! * `batch.rs`: columns through kernels, in chunks, with the interpreter released
//! * `filter.rs`: the classes of the contract
//! * `hashes.rs`: hashes in memory, as an adaptive filter asks for them
//! * `handle.rs`: kernels as Python holds them, and the ways to open one
//! * `kinds.rs`: the table of kinds
//! * `collection/`, `files.rs`: many filters, in files and in memory; `text.rs`: of documents
//! * `adapting.rs`, `adaptive_stacked.rs`, `bloom.rs`, `cuckoo.rs`, `fuse.rs`, `function.rs`,
//!   `quotient.rs`, `ribbon.rs`, `sharded.rs`, `stable_learned.rs`, `stacked.rs`, `streams.rs`: what
//!   each structure offers beside the contract

mod adapting;
mod adaptive_stacked;
mod arrow;
mod batch;
mod bloom;
mod collection;
mod column;
mod cuckoo;
mod error;
mod files;
mod filter;
mod function;
mod fuse;
mod handle;
mod hashes;
mod keys;
mod kinds;
mod learned;
mod model;
mod quotient;
mod ribbon;
mod sharded;
mod stable_learned;
mod stacked;
mod streams;
mod table;
mod text;

use pyo3::prelude::*;

/// Native kernels of tamis. What they offer is typed and described in `_native.pyi`.
#[pymodule(gil_used = true)]
mod _native {
    #[pymodule_export]
    use super::adapting::{
        Adapting, adaptive_cuckoo, adaptive_cuckoo_adapt, adaptive_cuckoo_build,
        adaptive_cuckoo_shape, telescoping, telescoping_build, telescoping_merge,
        telescoping_shape, telescoping_steps,
    };
    #[pymodule_export]
    use super::adaptive_stacked::{
        adaptive_stacked, adaptive_stacked_abandon, adaptive_stacked_begin,
        adaptive_stacked_content, adaptive_stacked_drop, adaptive_stacked_fill,
        adaptive_stacked_finish, adaptive_stacked_known_rate, adaptive_stacked_layers,
        adaptive_stacked_observe, adaptive_stacked_plan, adaptive_stacked_sample,
        adaptive_stacked_state,
    };
    #[pymodule_export]
    use super::batch::{Distinct, hash_keys};
    #[pymodule_export]
    use super::bloom::{
        bloom, bloom_build, bloom_cardinality, bloom_intersection, bloom_shape, bloom_truncated,
        bloom_union,
    };
    #[pymodule_export]
    use super::collection::{Filters, Full, Resident};
    #[pymodule_export]
    use super::cuckoo::{cuckoo, cuckoo_build, cuckoo_shape, cuckoo_truncated};
    #[pymodule_export]
    use super::filter::{Deleting, Filter, Inserting, Stored};
    #[pymodule_export]
    use super::function::{Assigned, Function, function_bits, function_build};
    #[pymodule_export]
    use super::fuse::{fuse_build, fuse_shape};
    #[pymodule_export]
    use super::handle::{Kernel, open_bytes, open_file};
    #[pymodule_export]
    use super::hashes::Hashes;
    #[pymodule_export]
    use super::kinds::{KindRow, kinds};
    #[pymodule_export]
    use super::learned::{
        learned, learned_contains, learned_contains_one, learned_model, learned_scores,
        learned_shape, learned_split,
    };
    #[pymodule_export]
    use super::model::{model, model_name, model_scores, model_shape, text_grams};
    #[pymodule_export]
    use super::quotient::{
        quotient, quotient_build, quotient_count, quotient_fingerprints, quotient_grow,
        quotient_merge, quotient_shape, quotient_truncated,
    };

    #[pymodule_export]
    use super::ribbon::{ribbon_build, ribbon_shape, ribbon_truncated};
    #[pymodule_export]
    use super::sharded::{Spill, sharded, sharded_shape};
    #[pymodule_export]
    use super::stable_learned::{
        stable_learned, stable_learned_model, stable_learned_pass, stable_learned_pass_one,
        stable_learned_shape, stable_learned_swapped,
    };
    #[pymodule_export]
    use super::stacked::{
        Negatives, stacked, stacked_assigned, stacked_facts, stacked_known_rate, stacked_layers,
        stacked_seen, stacked_survivors,
    };
    #[pymodule_export]
    use super::streams::{Aging, Remembering, stable, stable_shape, windowed, windowed_shape};
    #[pymodule_export]
    use super::table::Table;
    #[pymodule_export]
    use super::text::{Sliced, words};

    /// Whether this is a slow build without optimizations.
    #[pymodule_export]
    const DEBUG_BUILD: bool = cfg!(debug_assertions);

    /// The version of the package.
    #[allow(non_upper_case_globals)]
    #[pymodule_export]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
