//! The growth of an adaptive stack: negatives are collected, a layer is built and joins, or all
//! layers behind the first are dropped.

use super::{AdaptiveStack, Building, Counted, Filling, Inner, check};
use crate::error::Result;
use crate::hash::Hash128;
use crate::kernel::Kernel;
use crate::memory;
use crate::stack::Stack;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

impl AdaptiveStack {
    /// Reports that these hashes are absent. The ones that the stack accepts are counted, and
    /// collected if the layer is not full; `changed` is whether each was collected.
    pub fn observe(&self, hashes: &[Hash128], changed: &mut [bool]) -> Result<()> {
        let inner = self.read();
        let mut answers = memory::filled(hashes.len(), false)?;
        inner.stack.contains(hashes, &mut answers);
        let wrong: u64 = answers.iter().map(|&yes| u64::from(yes)).sum();
        let mut counted = self.counted();
        counted.saw(self.denied.swap(0, Relaxed).saturating_add(wrong), wrong);
        let alone = inner.stack.layers().len() == 1;
        let index = inner.stack.layers().len();
        let fooled = hashes.iter().zip(changed).zip(answers).filter(|(_, yes)| *yes);
        for ((&hash, changed), _) in fooled {
            if alone {
                counted.sampled(hash.lo);
            }
            let Some(Filling { layer, capacity }) = &inner.filling else { continue };
            if inner.building.is_some() || layer.count() >= *capacity {
                continue;
            }
            let seen = inner.stack.at_layer(hash, index);
            if !inner.stack.others_behind(&[hash])?.is_empty() && !layer.contains_one(seen) {
                layer.insert(&[seen])?;
                *changed = true;
            }
        }
        Ok(())
    }

    /// Begins to build a layer of keys: behind the layer of negatives, which no longer changes, or
    /// in place of the first. Returns a ticket for [`AdaptiveStack::fill`] and
    /// [`AdaptiveStack::finish`], or `None` if the layers are no longer of this version.
    pub fn begin(&self, version: u64, layer: Arc<dyn Kernel>, first: bool) -> Result<Option<u64>> {
        check(&layer)?;
        let mut inner = self.write();
        let possible = first || inner.filling.is_some();
        if inner.version != version || inner.building.is_some() || !possible {
            return Ok(None);
        }
        inner.version += 1;
        let ticket = inner.version;
        inner.building = Some(Building { ticket, layer, first, failed: AtomicBool::new(false) });
        Ok(Some(ticket))
    }

    /// Adds stored hashes to the layer that is being built.
    pub fn fill(&self, ticket: u64, hashes: &[Hash128]) -> Result<()> {
        let inner = self.read();
        match &inner.building {
            Some(building) if building.ticket == ticket => inner.insert_reaching(building, hashes),
            _ => Ok(()),
        }
    }

    /// Activates the layer that was built, after all stored hashes were added to it. `psi` is the
    /// expected fraction of queries for the layer of negatives before it, `filling` the layer to
    /// fill next, and `plan` replaces the plan. Returns whether it was activated.
    pub fn finish(
        &self,
        ticket: u64,
        psi: f64,
        filling: Option<Filling>,
        plan: Option<Vec<u8>>,
    ) -> Result<bool> {
        filling.iter().try_for_each(|filling| check(&filling.layer))?;
        let mut inner = self.write();
        let Some(building) = inner.building.take_if(|building| building.ticket == ticket) else {
            return Ok(false);
        };
        inner.version += 1;
        if building.failed.into_inner() {
            // The next attempt would likely fail too: the layer of negatives accepts too many keys.
            self.drop_layers(&mut inner, None)?;
            return Ok(false);
        }
        if building.first {
            inner.restart(building.layer, filling)?;
            let mut counted = self.counted();
            *counted = Counted { total: counted.total, ..Counted::default() };
        } else if let Some(filled) = inner.filling.take() {
            inner.stack = inner.stack.extended(filled.layer, building.layer, psi)?;
            inner.filling = filling;
            let mut counted = self.counted();
            counted.collecting = 0;
            counted.window();
        }
        if let Some(plan) = plan {
            inner.plan = plan;
        }
        Ok(true)
    }

    /// Discards the layer that is being built; the stack is unchanged.
    pub fn abandon(&self, ticket: u64) {
        let mut inner = self.write();
        if inner.building.take_if(|building| building.ticket == ticket).is_some() {
            inner.version += 1;
        }
    }

    /// Drops all layers behind the first, and fills this one next. Returns whether it did.
    pub fn drop_behind_first(&self, version: u64, filling: Option<Filling>) -> Result<bool> {
        filling.iter().try_for_each(|filling| check(&filling.layer))?;
        let mut inner = self.write();
        if inner.version != version || inner.building.is_some() {
            return Ok(false);
        }
        self.drop_layers(&mut inner, filling)?;
        Ok(true)
    }

    pub(super) fn drop_layers(&self, inner: &mut Inner, filling: Option<Filling>) -> Result<()> {
        inner.version += 1;
        let first = inner.stack.layers()[0].clone();
        inner.restart(first, filling)?;
        let mut counted = self.counted();
        let (strikes, total) = (counted.strikes.saturating_add(1), counted.total);
        *counted = Counted { strikes, total, ..Counted::default() };
        Ok(())
    }

    /// Begins a new window, because the last was as expected, or because the expected fraction of
    /// queries for known negatives has changed.
    pub fn begin_window(&self, version: u64, psi: Option<f64>) {
        let mut inner = self.write();
        if inner.version != version {
            return;
        }
        if let Some(psi) = psi {
            inner.version += 1;
            inner.stack.set_psi(psi);
        }
        let mut counted = self.counted();
        counted.window();
        counted.strikes = 0;
    }
}

impl Inner {
    /// Inserts the stored hashes that reach the layer that is being built.
    pub(super) fn insert_reaching(&self, building: &Building, hashes: &[Hash128]) -> Result<()> {
        let inserted = match &self.filling {
            _ if building.first => building.layer.insert(hashes),
            Some(Filling { layer, .. }) => {
                let index = self.stack.layers().len();
                let at = |hash| self.stack.at_layer(hash, index + 1);
                let behind = self.stack.keys_behind(hashes);
                let reach = behind.and_then(|behind| self.stack.accepted_by(layer, index, &behind));
                let seen = reach.and_then(|reach| memory::collected(reach.into_iter().map(at)));
                seen.and_then(|seen| building.layer.insert(&seen))
            }
            None => Ok(()),
        };
        if inserted.is_err() {
            building.failed.store(true, Relaxed);
        }
        inserted
    }

    /// Keeps one layer, and starts a generation.
    fn restart(&mut self, first: Arc<dyn Kernel>, filling: Option<Filling>) -> Result<()> {
        self.generation = self.generation.saturating_add(1);
        let stack = Stack::new(vec![first], 0.0, 0, false)?;
        self.stack = stack.of_generation(self.generation as u16);
        self.filling = filling;
        Ok(())
    }
}
