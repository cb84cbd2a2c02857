//! A stack of filters that knows the queries: each layer corrects errors of the previous one.
//!
//! Layers alternate between keys and known negatives. The first holds all keys; the second the
//! known negatives that the first accepts; the third the keys that the second accepts; and so on
//! (Deeds, Hentschel, Idreos 2021). A query goes down the layers until one rejects it:
//!
//! ```text
//! a layer of keys rejects        it is no key                 no
//! a layer of negatives rejects   it is no known negative      yes
//! all accept                                                  yes
//! ```
//!
//! Invariant: a key is in every layer of keys that it reaches. Layers of negatives never change, so
//! the path of a key is fixed: an insertion follows it until a layer of negatives rejects, and a
//! removal takes the same path. No key is rejected, whatever else was inserted or removed.
//!
//! A stack may end instead in a [static function](crate::ribbon::Function) of one bit over all
//! hashes that reach it, 1 for keys and 0 for known negatives: then no known negative is accepted
//! (as in Clubcard, Schanck 2025). It takes no insertions.
//!
//! With rates αᵢ of the layers, an unknown absent key is accepted with probability
//!
//! ```text
//! U₀ = α₀·((1 − α₁) + α₁·U₂),   U₂ = α₂·((1 − α₃) + α₃·U₄),  …    (α/2 before a function)
//! ```
//!
//! and a known negative with K₀ = α₀·α₂·α₄⋯ (0 with a function) as long as nothing is inserted.
//! After insertions, a layer may accept known negatives that it rejected when the stack was built,
//! and later layers do not know them: see [`Stack::known_rate`]. If known negatives are a fraction
//! ψ of the queries, the rate is ψ·K₀ + (1 − ψ)·U₀.
//!
//! The first layer sees the hashes themselves, layer i a remix under its own domain.
//!
//! `build.rs` makes stacks from layers and from frames; `rates.rs` computes their rates.

mod build;
mod rates;

use crate::error::{Error, Result};
use crate::hash::Hash128;
use crate::kernel::{self, Content, Kernel, Kind};
use crate::lock::{RwLock, WriteGuard};
use crate::memory;
use crate::ribbon::Function;
use std::any::Any;
use std::sync::Arc;

/// Stacked filters; see [`Stack::inserts`] and [`Stack::deletes`].
pub static KIND: Kind = Kind::new(8, "stacked", |head, sections, opening| {
    Ok(Arc::new(Stack::from_frame(head, sections, opening)?))
});
/// Maximum number of layers: each at least halves the hashes that reach the next, or it would not
/// pay.
pub const MAX_LAYERS: usize = 64;
/// The domain of layer i is this, "stack" in ASCII and a zero, plus i.
const DOMAIN: u64 = 0x7374_6163_6B00;
/// Queries that descend together: as many as `python/column.rs` hashes at a time.
const BLOCK: usize = 1024;

/// The hash of a key as layer `index` sees it.
#[inline(always)]
pub fn at_layer(hash: Hash128, index: usize) -> Hash128 {
    if index == 0 { hash } else { hash.remix(DOMAIN + index as u64) }
}

/// Whether the layer of this index holds keys; every other one holds known negatives.
fn holds_keys(index: usize) -> bool {
    index.is_multiple_of(2)
}

/// Filters that alternate between keys and known negatives.
pub struct Stack {
    layers: Vec<Arc<dyn Kernel>>,
    knowledge: Knowledge,
    /// The first domain of the layers: a multiple of [`MAX_LAYERS`].
    salt: usize,
    /// Whether it is part of an adaptive stack, which removes keys from the first layer only.
    adaptive: bool,
    /// The state that the one writer changes besides the layers.
    writer: RwLock<Written>,
}

/// Facts about the negatives at the time of the build.
#[derive(Clone, Debug, PartialEq)]
pub struct Knowledge {
    /// The fraction of queries for absent keys that are for known negatives (ψ).
    pub psi: f64,
    /// The number of keys among the negatives, which were removed from them.
    pub overlap: u64,
    /// Whether no negative passed the last layer, so that nothing was left to correct.
    pub exhausted: bool,
    /// The rate of each layer of keys when the negatives went through it.
    pub built: Vec<f64>,
}

/// State that depends on insertions and removals.
#[derive(Clone, Copy, Debug)]
struct Written {
    /// The fraction of the keys of the build that are still present, assuming that removals hit all
    /// keys alike; 1 if there were none.
    kept: f64,
}

impl Stack {
    /// Sets the expected fraction of queries for known negatives.
    pub fn set_psi(&mut self, psi: f64) {
        self.knowledge.psi = psi.clamp(0.0, 1.0);
    }

    /// The layers, from the first.
    pub fn layers(&self) -> &[Arc<dyn Kernel>] {
        &self.layers
    }

    /// Facts about the negatives at the time of the build.
    pub fn knowledge(&self) -> &Knowledge {
        &self.knowledge
    }

    /// Whether every layer of keys takes insertions.
    pub fn inserts(&self) -> bool {
        !self.is_exact() && self.layers.iter().step_by(2).all(|layer| layer.kind().inserts)
    }

    /// Whether every layer of keys takes removals.
    pub fn deletes(&self) -> bool {
        !self.is_exact() && self.layers.iter().step_by(2).all(|layer| layer.kind().deletes)
    }

    /// Whether keys beyond the capacity are refused: by a layer of keys that is full.
    pub fn bounded(&self) -> bool {
        self.inserts() && self.layers.iter().step_by(2).any(|layer| layer.kind().bounded)
    }

    /// Whether it ends in a function.
    pub fn is_exact(&self) -> bool {
        self.layers.len().is_multiple_of(2)
    }

    fn written(&self) -> WriteGuard<'_, Written> {
        self.writer.write()
    }

    /// The hashes that each layer of keys receives when these are inserted, as it sees them.
    fn routes(&self, hashes: &[Hash128]) -> Result<Vec<Vec<Hash128>>> {
        let mut raw = memory::copied(hashes)?;
        let mut routes = vec![memory::copied(hashes)?];
        for (index, negatives) in self.layers.iter().enumerate().skip(1).step_by(2) {
            raw = self.accepted_by(negatives, index, &raw)?;
            let seen = raw.iter().map(|&hash| self.at_layer(hash, index + 1));
            routes.push(memory::collected(seen)?);
        }
        Ok(routes)
    }

    /// The keys that reach a layer behind the last: every layer of negatives accepts them.
    pub fn keys_behind(&self, keys: &[Hash128]) -> Result<Vec<Hash128>> {
        let mut negatives = self.layers.iter().enumerate().skip(1).step_by(2);
        negatives.try_fold(memory::copied(keys)?, |keys, (index, layer)| {
            self.accepted_by(layer, index, &keys)
        })
    }

    /// The absent keys that reach a layer behind the last: every layer accepts them.
    pub fn others_behind(&self, hashes: &[Hash128]) -> Result<Vec<Hash128>> {
        let mut layers = self.layers.iter().enumerate();
        layers.try_fold(memory::copied(hashes)?, |left, (index, layer)| {
            self.accepted_by(layer, index, &left)
        })
    }

    /// The hashes that a layer at this index, present or future, accepts.
    pub fn accepted_by(
        &self,
        layer: &Arc<dyn Kernel>,
        index: usize,
        hashes: &[Hash128],
    ) -> Result<Vec<Hash128>> {
        accepted(&**layer, self.domain(index), hashes)
    }

    /// A hash as the layer at this index sees it.
    #[inline(always)]
    pub fn at_layer(&self, hash: Hash128, index: usize) -> Hash128 {
        at_layer(hash, self.domain(index))
    }

    /// The domain of a layer. The first layer sees the hashes themselves in every generation.
    #[inline(always)]
    fn domain(&self, index: usize) -> usize {
        if index == 0 { 0 } else { self.salt + index }
    }

    /// Removes a key from the first layer alone. It stays in the layers below, where it does no
    /// harm: a layer built while the key was removed may not contain it, and would lose another key
    /// instead.
    pub fn remove_from_first(&self, hash: Hash128) -> Result<()> {
        let mut written = self.written();
        let count = self.count();
        self.layers[0].remove(hash)?;
        self.lost_one(&mut written, count);
        Ok(())
    }

    /// Removes a hash from every layer of keys that it reaches.
    fn take_out(&self, hash: Hash128) -> Result<()> {
        if !self.deletes() {
            return Err(Error::Parameter(
                "keys cannot be removed from this stack, because a layer of keys does not support it".into(),
            ));
        }
        let routes = self.routes(&[hash])?;
        let layers = self.layers.iter().step_by(2).zip(routes.iter().flatten());
        if layers.clone().any(|(layer, &seen)| !layer.contains_one(seen)) {
            return Err(Error::Absent("the key is not in the filter".into()));
        }
        for (layer, &seen) in layers {
            layer.remove(seen)?;
        }
        Ok(())
    }

    /// Records that one of `count` keys was removed.
    fn lost_one(&self, written: &mut Written, count: u64) {
        if self.knowledge.built[0] > 0.0 {
            written.kept *= 1.0 - 1.0 / count.max(1) as f64;
        }
    }
}

/// The hashes that a layer of this index accepts.
pub fn accepted(layer: &dyn Kernel, index: usize, hashes: &[Hash128]) -> Result<Vec<Hash128>> {
    let seen = memory::collected(hashes.iter().map(|&hash| at_layer(hash, index)))?;
    let mut answers = memory::filled(hashes.len(), false)?;
    layer.contains(&seen, &mut answers);
    let each = hashes.iter().zip(answers).filter(|(_, answer)| *answer);
    memory::collected(each.map(|(&hash, _)| hash))
}

/// The kernel as a function, if it is one.
fn function(kernel: &dyn Kernel) -> Option<&Function> {
    let any: &dyn Any = kernel;
    any.downcast_ref()
}

/// The answer of a layer: whether a filter accepts, or the value of a function.
fn query_layer(layer: &dyn Kernel, hashes: &[Hash128], out: &mut [bool]) {
    match function(layer) {
        Some(function) => function.ones(hashes, out),
        None => layer.contains(hashes, out),
    }
}

impl Kernel for Stack {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    /// The first layer answers in bulk. Accepted hashes continue together, layer by layer, so that
    /// each layer can prefetch.
    fn contains(&self, hashes: &[Hash128], out: &mut [bool]) {
        let Some((first, others)) = self.layers.split_first() else { return };
        if others.is_empty() {
            return first.contains(hashes, out);
        }
        let mut survivors = [0u16; BLOCK];
        let (mut seen, mut answers) = ([Hash128::default(); BLOCK], [false; BLOCK]);
        for (hashes, out) in hashes.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
            first.contains(hashes, out);
            let mut left = 0;
            for (i, &accepted) in out.iter().enumerate() {
                survivors[left] = i as u16;
                left += usize::from(accepted);
            }
            for (layer, index) in others.iter().zip(1..) {
                if left == 0 {
                    break;
                }
                for (seen, &i) in seen.iter_mut().zip(&survivors[..left]) {
                    *seen = self.at_layer(hashes[usize::from(i)], index);
                }
                query_layer(&**layer, &seen[..left], &mut answers[..left]);
                let decides = holds_keys(index) || index + 1 == self.layers.len();
                let mut accepted = 0;
                for at in 0..left {
                    let (i, answer) = (survivors[at], answers[at]);
                    // If a layer of negatives rejects, the "yes" so far stays.
                    out[usize::from(i)] = answer || !decides;
                    survivors[accepted] = i;
                    accepted += usize::from(answer);
                }
                left = accepted;
            }
        }
    }

    /// The places in the first layer, which sees the hashes themselves and answers most queries.
    fn places(&self, hashes: &[Hash128], out: &mut [u64]) -> bool {
        self.layers.first().is_some_and(|first| first.places(hashes, out))
    }

    fn preload(&self, part: usize, parts: usize) {
        self.layers.iter().take(1).for_each(|first| first.preload(part, parts));
    }

    fn contains_one(&self, hash: Hash128) -> bool {
        for (index, layer) in self.layers.iter().enumerate() {
            let seen = self.at_layer(hash, index);
            let answer = match function(&**layer) {
                Some(function) => return function.one(seen),
                None => layer.contains_one(seen),
            };
            if !answer {
                return !holds_keys(index);
            }
        }
        true
    }

    fn try_contains_one(&self, hash: Hash128) -> Option<bool> {
        for (index, layer) in self.layers.iter().enumerate() {
            let seen = self.at_layer(hash, index);
            let answer = match function(&**layer) {
                Some(function) => return Some(function.one(seen)),
                None => layer.try_contains_one(seen)?,
            };
            if !answer {
                return Some(!holds_keys(index));
            }
        }
        Some(true)
    }

    fn count(&self) -> u64 {
        self.layers[0].count()
    }

    fn capacity(&self) -> Option<u64> {
        self.layers[0].capacity()
    }

    fn overfull(&self, capacity: u64) -> bool {
        self.layers[0].overfull(capacity)
    }

    fn busy(&self) -> bool {
        self.writer.is_locked() || self.layers.iter().any(|layer| layer.busy())
    }

    fn size_in_bits(&self) -> u64 {
        self.layers.iter().map(|layer| layer.size_in_bits()).sum()
    }

    fn rate(&self) -> f64 {
        let psi = self.knowledge.psi;
        psi * self.known_rate() + (1.0 - psi) * self.unseen_rate()
    }

    fn unseen_rate(&self) -> f64 {
        self.unseen_from(0)
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        Ok(Arc::new(self.duplicate()?))
    }

    fn content(&self) -> Result<Content<'_>> {
        // SAFETY: the sections are dropped with the lock.
        let (written, lock) = unsafe { self.writer.read().split() };
        // Before the layers are locked.
        let (count, capacity) = (self.count(), self.capacity());
        let layers = self.layers.iter().map(|layer| kernel::nested(&**layer));
        let sections = memory::collected_ok(layers)?;
        let Knowledge { psi, overlap, exhausted, built } = &self.knowledge;
        let layers = self.layers.len() as u64;
        let kept = written.kept.to_bits();
        let own = [layers, psi.to_bits(), *overlap, u64::from(*exhausted), kept];
        let parameters = own.into_iter().chain(built.iter().map(|rate| rate.to_bits())).collect();
        Ok(Content { parameters, count, capacity, sections, lock: Some(lock) })
    }

    /// Inserts into each layer of keys down to the first layer of negatives that rejects.
    fn insert(&self, hashes: &[Hash128]) -> Result<()> {
        if !self.inserts() {
            return Err(Error::Parameter(
                "keys cannot be added to this stack, because its layers are static; build it with \
                 updates=True"
                    .into(),
            ));
        }
        let _alone = self.written();
        let routes = self.routes(hashes)?;
        let layers: Vec<_> = self.layers.iter().step_by(2).zip(&routes).collect();
        // A layer that cannot undo exactly is tried on a copy. Only some keys reach the second
        // layer of keys, which is accordingly small.
        for (layer, route) in layers.iter().skip(1).filter(|(_, route)| !route.is_empty()) {
            if layer.inserts_at_once() {
                layer.copy()?.insert(route)?;
            }
        }
        for (done, (layer, route)) in layers.iter().enumerate() {
            if let Err(error) = layer.insert(route) {
                for (layer, route) in &layers[..done] {
                    route.iter().for_each(|&hash| drop(layer.remove(hash)));
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn inserts_at_once(&self) -> bool {
        self.layers.iter().step_by(2).any(|layer| layer.inserts_at_once())
    }

    /// Removes from each layer of keys down to the first layer of negatives that rejects.
    fn remove(&self, hash: Hash128) -> Result<()> {
        let mut written = self.written();
        let count = self.count();
        self.take_out(hash)?;
        self.lost_one(&mut written, count);
        Ok(())
    }

    /// Like a removal, but the keys of the build stay complete.
    fn undo(&self, hash: Hash128) -> Result<()> {
        let _alone = self.written();
        self.take_out(hash)
    }
}
