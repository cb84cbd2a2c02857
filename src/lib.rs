//! The native kernels of tamis: hashes in, bools out; no policy, no I/O.
//!
//! | module         | what                                             | from                              |
//! |----------------|--------------------------------------------------|-----------------------------------|
//! | [`hash`]       | keys to 128-bit hashes                           | docs/keys.md                      |
//! | [`distinct`]   | hashes without repetitions, near ones together   |                                   |
//! | [`bloom`]      | Bloom filters in three layouts                   | Putze et al. 2009                 |
//! | [`block`]      | a cache line as a Bloom filter, with SIMD        | Putze et al. 2009                 |
//! | [`quotient`]   | rank-and-select quotient filter, counting        | Pandey et al. 2017                |
//! | [`cuckoo`]     | cuckoo filter with close pairs of buckets        | Fan et al. 2014; Wang et al. 2019 |
//! | [`fuse`]       | binary fuse filters, 3- and 4-wise               | Graf and Lemire 2022              |
//! | [`ribbon`]     | bumped ribbon retrieval: a filter and a function | Dillinger et al. 2022             |
//! | [`sharded`]    | one filter per range of hashes                   |                                   |
//! | [`stack`]      | layers of keys and known negatives in turns      | Deeds et al. 2021                 |
//! | [`adaptive_stack`] | a stack that grows from its mistakes         | Deeds et al. 2021, section 6      |
//! | [`model`]      | classifiers as flat data, and their scores       | Lucchese et al. 2015              |
//! | [`adaptive_cuckoo`] | cyclic, swapping and cuckooing filters      | Mitzenmacher et al. 2018          |
//! | [`telescoping`] | adaptive quotient filters: sliding, extending   | Lee et al. 2021                   |
//! | [`collection`] | many filters, of each a prefix in memory         | Mersy et al. 2024                 |
//! | [`text`]       | documents as signatures, bit-sliced              | Goodwin et al. 2017               |
//! | [`stable`]     | counters that fade: a rate that stays            | Deng and Rafiei 2006              |
//! | [`stable_learned`] | stable filters of groups of scores           | Liu et al. 2020                   |
//! | [`windowed`]   | age-partitioned Bloom filter: the last keys      | Shtul et al. 2020                 |
//! | [`learned`]    | a classifier, and filters by region of scores    | Vaidya et al. 2021                |
//! | [`kernel`]     | the trait of all structures; how parts open      |                                   |
//! | [`kinds`]      | the table of all kinds                           | docs/format.md                    |
//! | [`format`]     | the persisted frame                              | docs/format.md                    |
//! | [`lock`]       | one writer or many readers, also across fork     |                                   |
//! | [`bits`]       | buffers, range reduction, select, prefetch       |                                   |
//! | `processor`    | POPCNT and PDEP where there are                  |                                   |
//! | `python`       | the only module that knows Python                |                                   |

#[cfg(not(target_endian = "little"))]
compile_error!("tamis files and kernels are little-endian");

pub mod adaptive_cuckoo;
pub mod adaptive_stack;
pub mod bits;
pub mod block;
pub mod bloom;
pub mod collection;
pub mod cuckoo;
pub mod distinct;
pub mod error;
pub mod format;
pub mod fuse;
pub mod hash;
pub mod kernel;
pub mod kinds;
pub mod learned;
pub mod lock;
pub mod model;
mod processor;
pub mod quotient;
pub mod ribbon;
pub mod sharded;
pub mod stable;
pub mod stable_learned;
pub mod stack;
pub mod telescoping;
pub mod text;
pub mod windowed;

#[cfg(feature = "python")]
mod python;
