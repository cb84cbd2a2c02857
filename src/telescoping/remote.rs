//! Changes that need the stored hashes, from a remote.
//!
//! The remote is foreign code, so no lock is held while it runs, and its results may be outdated
//! when they are used. The filter's version shows that, and the remote is read again.

use super::adapt::of_quotient;
use super::shared::{Shared, full, without_remote};
use super::{Stop, Telescoping};
use crate::error::{Error, Result, was_present};
use crate::hash::Hash128;
use crate::interrupt;
use crate::kernel::Kernel;
use crate::kernel::PIECE;
use crate::memory::{self, TryGrow};
use crate::quotient::capacity;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// How often the remote is read again if other threads insert or remove meanwhile. After that the
/// adaptation is abandoned, which is safe.
const TRIES: usize = 16;

/// How many ranges are read in one request.
const AT_ONCE: usize = 256;

/// The stored hashes, including insertions in progress.
pub trait Remote {
    /// The hashes whose first word is in a range, both ends included, with repetitions.
    fn run(&mut self, low: u64, high: u64) -> Result<Vec<Hash128>>;
    /// [`Remote::run`] of each range, in one request if possible.
    fn runs(&mut self, ranges: &[(u64, u64)]) -> Result<Vec<Vec<Hash128>>> {
        ranges.iter().map(|&(low, high)| self.run(low, high)).collect()
    }
    /// All stored hashes.
    fn scan(&mut self) -> Result<Vec<Hash128>>;
}

impl Shared {
    /// Reads the hashes of some quotients from the remote; also returns the filter's version before
    /// the read.
    fn read_run(
        &self,
        remote: &mut dyn Remote,
        quotients: impl FnOnce(&Telescoping) -> Range<u64>,
    ) -> Result<(u64, Vec<Hash128>)> {
        let (version, (low, high)) =
            self.with(|filter| (filter.version(), filter.words(quotients(filter))));
        Ok((version, remote.run(low, high)?))
    }

    /// Moves the slots that absent keys fit; returns for each key whether any slot moved. Runs that
    /// are too long are left alone, and the remote is not read for them.
    pub fn adapt(
        &self,
        hashes: &[Hash128],
        moved: &mut [bool],
        remote: &mut dyn Remote,
    ) -> Result<()> {
        moved.fill(false);
        let mut fitting = memory::filled(hashes.len(), false)?;
        self.contains(hashes, &mut fitting);
        let mut indices = memory::collected((0..hashes.len()).filter(|&index| fitting[index]))?;
        let quotient = |filter: &Telescoping, index: usize| filter.table().split(hashes[index]).0;
        self.with(|filter| indices.sort_unstable_by_key(|&index| (quotient(filter, index), index)));
        let mut groups: Vec<&[usize]> = self.with(|filter| {
            memory::collected(indices.chunk_by(|&a, &b| quotient(filter, a) == quotient(filter, b)))
        })?;
        groups.retain(|own| {
            let skipped = self.with(|filter| filter.too_long(quotient(filter, own[0])));
            self.skipped.fetch_add(if skipped { own.len() as u64 } else { 0 }, Relaxed);
            !skipped
        });
        for groups in groups.chunks(AT_ONCE) {
            interrupt::check();
            let first: Vec<Hash128> = groups.iter().map(|own| hashes[own[0]]).collect();
            let (version, runs) = self.read_runs(remote, &first)?;
            for (own, stored) in groups.iter().zip(runs) {
                self.adapt_run(hashes, own, moved, remote, (version, stored))?;
            }
        }
        Ok(())
    }

    /// Reads the stored hashes with the quotient of each hash; also returns the filter's version
    /// before the read.
    fn read_runs(
        &self,
        remote: &mut dyn Remote,
        hashes: &[Hash128],
    ) -> Result<(u64, Vec<Vec<Hash128>>)> {
        let (version, ranges): (u64, Vec<(u64, u64)>) = self.with(|filter| {
            let quotients = hashes.iter().map(|hash| filter.table().split(*hash).0);
            (filter.version(), quotients.map(|q| filter.words(q..q + 1)).collect())
        });
        let runs = match ranges[..] {
            [(low, high)] => vec![remote.run(low, high)?],
            _ => remote.runs(&ranges)?,
        };
        if runs.len() != ranges.len() {
            return Err(Error::Parameter(format!(
                "remote.runs() returned {} arrays for {} ranges",
                runs.len(),
                ranges.len()
            )));
        }
        Ok((version, runs))
    }

    /// [`Shared::adapt`] for keys of one quotient whose stored hashes were read at `version`.
    fn adapt_run(
        &self,
        hashes: &[Hash128],
        mut own: &[usize],
        moved: &mut [bool],
        remote: &mut dyn Remote,
        read: (u64, Vec<Hash128>),
    ) -> Result<()> {
        let mut read = Some(read);
        for _ in 0..TRIES {
            let Some(&first) = own.first() else { break };
            let (version, stored) = match read.take() {
                Some(read) => read,
                None => self.read_run(remote, |filter| {
                    let quotient = filter.table().split(hashes[first]).0;
                    quotient..quotient + 1
                })?,
            };
            let mut inner = self.write()?;
            if inner.filter.version() != version {
                continue;
            }
            let quotient = inner.filter.table().split(hashes[first]).0;
            let stored = of_quotient(&inner.filter, quotient, &stored)?;
            let mut stopped = None;
            while let Some((&index, later)) = own.split_first() {
                if inner.filter.table().split(hashes[index]).0 != quotient {
                    break; // it has grown since
                }
                match inner.filter.adapt(hashes[index], &stored) {
                    Ok(changed) => moved[index] |= changed,
                    Err(Stop::Failed(error)) => return Err(error),
                    Err(Stop::Full(block)) => {
                        stopped = Some(block);
                        break;
                    }
                }
                own = later;
            }
            drop(inner);
            match stopped {
                Some(block) if self.forget(block, remote)? => {}
                _ => break,
            }
        }
        Ok(())
    }

    /// Resets the selectors of a block whose code is full; returns whether the code now fits.
    fn forget(&self, block: u64, remote: &mut dyn Remote) -> Result<bool> {
        for _ in 0..TRIES {
            let (version, stored) = self.read_run(remote, |filter| filter.quotients_of(block))?;
            let mut inner = self.write()?;
            if inner.filter.version() == version {
                return Ok(without_remote(inner.filter.forget(block, &stored))? > 0);
            }
        }
        Ok(false)
    }

    /// Inserts hashes, all or none; grows if the filter is full. The remote may or may not list
    /// hashes that are being inserted.
    pub fn insert_with(&self, hashes: &[Hash128], remote: &mut dyn Remote) -> Result<()> {
        let mut done = 0;
        while !self.read().can_hold(hashes.len() - done) {
            self.grow(remote)?;
        }
        loop {
            interrupt::check();
            let mut inner = self.write()?;
            let piece = &hashes[done..][..PIECE.min(hashes.len() - done)];
            let (inserted, step) = inner.filter.insert_batch(piece);
            done += inserted;
            let failed = match step {
                Ok(()) if done == hashes.len() => return Ok(()),
                Ok(()) => None,
                Err(Stop::Failed(error)) => Some(error),
                Err(Stop::Full(block)) => {
                    drop(inner);
                    let forgotten = self.forget(block, remote);
                    inner = self.write()?;
                    match forgotten {
                        Ok(true) => None,
                        Ok(false) => Some(full(block)),
                        Err(error) => Some(error),
                    }
                }
            };
            if let Some(error) = failed {
                for hash in &hashes[..done] {
                    without_remote(inner.filter.undo_insert(*hash))?;
                }
                return Err(error);
            }
        }
    }

    /// Removes a slot of a key that was deleted from the remote: one that no stored hash needs.
    pub fn remove_with(&self, hash: Hash128, remote: &mut dyn Remote) -> Result<()> {
        for _ in 0..TRIES {
            let quotient = |filter: &Telescoping| filter.table().split(hash).0;
            let (version, stored) =
                self.read_run(remote, |filter| quotient(filter)..quotient(filter) + 1)?;
            let mut inner = self.write()?;
            if inner.filter.version() != version {
                continue;
            }
            let stored = of_quotient(&inner.filter, quotient(&inner.filter), &stored)?;
            let removed = inner.filter.remove_known(hash, &stored);
            drop(inner);
            match removed {
                Err(Stop::Full(block)) if self.forget(block, remote)? => {}
                other => return without_remote(other),
            }
        }
        // Other threads never stopped changing the filter: the slot stays as a ghost.
        Ok(())
    }

    /// [`Shared::remove_with`] for each hash; returns for each whether it was present.
    pub fn remove_many_with(
        &self,
        hashes: &[Hash128],
        removed: &mut [bool],
        remote: &mut dyn Remote,
    ) -> Result<()> {
        for (hashes, removed) in hashes.chunks(AT_ONCE).zip(removed.chunks_mut(AT_ONCE)) {
            interrupt::check();
            let (version, runs) = self.read_runs(remote, hashes)?;
            let mut inner = self.write()?;
            // The removals of this loop do not outdate the hashes read; changes by other threads
            // may.
            let known = if inner.filter.version() == version { hashes.len() } else { 0 };
            let mut left: Vec<usize> = (known..hashes.len()).collect();
            for (index, stored) in runs.iter().enumerate().take(known) {
                let table = inner.filter.table();
                let quotient = table.split(hashes[index]).0;
                let mut stored = of_quotient(&inner.filter, quotient, stored)?;
                // Hashes that are removed next keep their slots until then.
                let later = hashes[index + 1..].iter();
                stored.extend(later.filter(|hash| table.split(**hash).0 == quotient));
                match inner.filter.remove_known(hashes[index], &stored) {
                    Err(Stop::Full(_)) => left.push(index),
                    other => removed[index] = was_present(without_remote(other))?,
                }
            }
            drop(inner);
            for index in left {
                removed[index] = was_present(self.remove_with(hashes[index], remote))?;
            }
        }
        Ok(())
    }

    /// Removes hashes that own slots: the remote's hashes and these can all be given a slot each.
    /// This stays true for the rest after each removal. So if all slots that a hash fits have equal
    /// content, any of them may go; the remote is read only for the other hashes.
    pub fn remove_owned(&self, hashes: &[Hash128], remote: &mut dyn Remote) -> Result<()> {
        let mut unclear = Vec::new();
        let mut inner = self.write()?;
        for &hash in hashes {
            match inner.filter.remove(hash) {
                Ok(()) | Err(Stop::Failed(Error::Absent(_))) => {}
                Err(Stop::Full(_) | Stop::Failed(Error::Parameter(_))) => unclear.try_push(hash)?,
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
        drop(inner);
        if unclear.is_empty() {
            return Ok(());
        }
        let mut removed = memory::filled(unclear.len(), false)?;
        self.remove_many_with(&unclear, &mut removed, remote)
    }

    /// Doubles the capacity, from the stored hashes.
    pub fn grow(&self, remote: &mut dyn Remote) -> Result<()> {
        for _ in 0..TRIES {
            let version = self.with(Telescoping::version);
            let stored = remote.scan()?;
            // Readers go on meanwhile. After a change, the hashes are read again.
            let build =
                |filter: &Telescoping| (filter.version() == version).then(|| filter.grown(stored));
            let Some(grown) = self.with(build) else { continue };
            let grown = without_remote(grown)?;
            let mut inner = self.write()?;
            if inner.filter.version() == version {
                inner.filter = grown;
                inner.capacity = capacity::doubled(inner.capacity);
                return Ok(());
            }
        }
        Err(Error::Capacity(
            "the filter could not grow, because other threads kept changing its keys".into(),
        ))
    }
}
