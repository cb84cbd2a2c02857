//! The native kernels of tamis. A kernel takes sizes and hashes, and returns bools. Sizes are chosen
//! in Python (`python/tamis/planning/`); files are opened in `python`.
//!
//! | module         | contents                                         | reference                         |
//! |----------------|--------------------------------------------------|-----------------------------------|
//! | [`key`]        | the plain form of every kind of key              | docs/keys.md                      |
//! | [`hash`]       | 128-bit hashes of keys                           | docs/keys.md                      |
//! | [`distinct`]   | distinct hashes, ordered by their high bits      |                                   |
//! | [`bloom`]      | Bloom filters in three layouts                   | Putze et al. 2009                 |
//! | [`block`]      | Bloom filter of one cache line, with SIMD        | Putze et al. 2009                 |
//! | [`quotient`]   | rank-and-select quotient filter, with counts     | Pandey et al. 2017                |
//! | [`cuckoo`]     | cuckoo filter, both buckets of a key close by    | Fan et al. 2014; Wang et al. 2019 |
//! | [`fuse`]       | binary fuse filters, 3- and 4-wise               | Graf and Lemire 2022              |
//! | [`ribbon`]     | bumped ribbon retrieval: a filter and a function | Dillinger et al. 2022             |
//! | [`sharded`]    | one filter per range of hashes                   |                                   |
//! | [`split`]      | hashes sent to a build elsewhere                 |                                   |
//! | [`stack`]      | alternating layers of keys and known negatives   | Deeds et al. 2021                 |
//! | [`adaptive_stack`] | a stack that learns from false positives     | Deeds et al. 2021, section 6      |
//! | [`model`]      | classifiers as flat data: scoring                | Lucchese et al. 2015              |
//! | [`adaptive_cuckoo`] | cyclic, swapping and cuckooing filters      | Mitzenmacher et al. 2018          |
//! | [`telescoping`] | quotient filters that adapt, by two methods     | Lee et al. 2021                   |
//! | [`collection`] | many filters, with a prefix of each in memory    | Mersy et al. 2024                 |
//! | [`text`]       | bit-sliced signatures of documents               | Goodwin et al. 2017               |
//! | [`stable`]     | stable Bloom filter: counters that fade          | Deng and Rafiei 2006              |
//! | [`stable_learned`] | stable filters of groups of scores           | Liu et al. 2020                   |
//! | [`windowed`]   | age-partitioned Bloom filter: the last keys      | Shtul et al. 2020                 |
//! | [`learned`]    | a classifier, and a filter per region of scores  | Vaidya et al. 2021                |
//! | [`hyperloglog`] | estimated number of distinct hashes              | Flajolet et al. 2007, Ertl 2017   |
//! | [`ordered`]    | large batches, in the order of a filter's memory |                                   |
//! | [`kernel`]     | the trait of all kernels; how parts are opened   |                                   |
//! | [`kinds`]      | the table of all kinds                           | docs/format.md                    |
//! | [`format`]     | the file format: frame, sections, checksums      | docs/format.md                    |
//! | [`error`]      | the error type of all kernels                    |                                   |
//! | [`clock`]      | the time of leases: monotonic, includes suspend  |                                   |
//! | [`lock`]       | one writer or many readers, also across fork     |                                   |
//! | [`interrupt`]  | ends long work at the request of its caller      |                                   |
//! | [`bits`]       | buffers, range reduction, select, prefetch       |                                   |
//! | [`memory`]     | vectors that grow with the input, or refuse to   |                                   |
//! | [`threads`]    | work on several threads, or on fewer             |                                   |
//! | `processor`    | POPCNT and PDEP, if available                    |                                   |
//! | `python`       | the only module that uses PyO3                   |                                   |

#[cfg(not(target_endian = "little"))]
compile_error!("tamis files and kernels are little-endian");

pub mod adaptive_cuckoo;
pub mod adaptive_stack;
pub mod bits;
pub mod block;
pub mod bloom;
pub mod clock;
pub mod collection;
pub mod cuckoo;
pub mod distinct;
pub mod error;
pub mod format;
pub mod fuse;
pub mod hash;
pub mod hyperloglog;
pub mod interrupt;
pub mod kernel;
pub mod key;
pub mod kinds;
pub mod learned;
pub mod lock;
pub mod memory;
pub mod model;
pub mod ordered;
mod processor;
pub mod quotient;
pub mod ribbon;
pub mod sharded;
pub mod split;
pub mod stable;
pub mod stable_learned;
pub mod stack;
pub mod telescoping;
pub mod text;
pub mod threads;
pub mod windowed;

#[cfg(feature = "python")]
mod python;
