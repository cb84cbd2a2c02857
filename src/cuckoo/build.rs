//! A table of distinct hashes, chunk by chunk.
//!
//! No key leaves its chunk, and a chunk fits a core's cache: so chunks are filled one after the
//! other, each in its own memory, by all threads. The keys of a chunk are sorted by fingerprint,
//! then bucket, so the bytes depend on the set alone.

use super::insert::{Chunk, Search};
use super::{Slots, Table, Word, on_width};
use crate::cuckoo::Shape;
use crate::distinct::Distinct;
use crate::error::Result;
use crate::memory::{self, TryGrow};
use crate::threads;
use std::ops::Range;

impl Table {
    /// Builds a table of distinct hashes, or fails with [`crate::error::Error::Capacity`] if they
    /// do not fit.
    pub fn build(shape: Shape, hashes: &Distinct, threads: usize) -> Result<Table> {
        let mut table = Table::new(shape)?;
        let share = shape.chunks.div_ceil(threads.max(1) as u64);
        let (chunks, _) =
            table.slots.as_mut_slice().split_at_mut(shape.chunk_bytes() * shape.chunks as usize);
        let shares = chunks.chunks_mut(shape.chunk_bytes() * share as usize).enumerate();
        let fits = threads::try_map(shares, |(i, bytes)| {
            let first = i as u64 * share;
            let range = first..(first + share).min(shape.chunks);
            on_width!(shape, W => fill::<W>(&shape, hashes, range, bytes))
        })?;
        if fits.contains(&false) {
            return Err(table.full(hashes.len() as u64));
        }
        table.count = hashes.len() as u64;
        Ok(table)
    }
}

/// Fills the bytes of a range of chunks; returns whether everything fits.
fn fill<W: Word>(
    shape: &Shape,
    hashes: &Distinct,
    chunks: Range<u64>,
    bytes: &mut [u8],
) -> Result<bool> {
    let slots = Slots::<W>::new(shape.kept);
    // The last word of a chunk overlaps the next, which may belong to another thread.
    let mut own = memory::filled(shape.chunk_bytes() + shape.tail(), 0)?;
    let mut search = Search::default();
    let mut codes: Vec<u64> = Vec::new();
    for (chunk, bytes) in chunks.zip(bytes.chunks_mut(shape.chunk_bytes())) {
        // The lowest `hi` of a chunk, or one past every `hi`.
        let start = |chunk: u64| ((chunk as u128) << 64).div_ceil(shape.chunks as u128);
        codes.clear();
        for partition in hashes.overlapping(start(chunk) as u64, (start(chunk + 1) - 1) as u64) {
            let addresses = partition.iter().map(|&hash| shape.address(hash));
            let inside = addresses.filter(|address| address.chunk == chunk);
            codes.try_append(inside.map(|a| u64::from(a.fingerprint) << 32 | a.bucket))?;
        }
        codes.sort_unstable();
        own.fill(0);
        let mut target = Chunk { slots, shape, bytes: &mut own };
        for &code in &codes {
            let (bucket, fingerprint) = (u64::from(code as u32), (code >> 32) as u32);
            let pair = [bucket, shape.other(bucket, fingerprint)];
            if !target.insert(pair, fingerprint, &mut search, &mut ())? {
                return Ok(false);
            }
        }
        bytes.copy_from_slice(&own[..shape.chunk_bytes()]);
    }
    Ok(true)
}
