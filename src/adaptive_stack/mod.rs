//! A stack that grows from the queries it answers (Deeds, Hentschel, Idreos 2021, section 6).
//!
//! It begins as one layer of all keys. Its false positives, once the store has confirmed them, are
//! collected in a layer of negatives, which answers nothing yet. When that is full, a scan of all
//! stored hashes builds the layer of the keys that it accepts; then the two join the
//! [stack](crate::stack) in one step, and the next layer of negatives is started.
//!
//! ```text
//! answering   layer 0 (keys) [layer 1 (negatives) layer 2 (keys) …]     an ordinary stack
//! filling     the layer of negatives that comes next
//! building    the layer of keys that comes with it, while the scan goes on
//! ```
//!
//! Invariant: a key is in every layer of keys that it reaches. The layer of negatives does not
//! change once the scan has begun, so the keys that the new layer needs are fixed. Keys that are
//! stored when the scan passes are added by the scan; later ones by insertion, which from the start
//! of the scan also inserts into the layer that is being built. If the store lists a key only after
//! its insertion, the key is among the insertions in progress until then (`Remote` in `_types.py`),
//! so none is missed. A scan that fails leaves the stack unchanged. Replacing the first layer works
//! the same way.
//!
//! A removal takes the key out of the first layer alone; see [`Stack::remove_from_first`].
//!
//! Python (`filters/adaptive_stacked.py`) decides when to freeze, drop or replace, from the counts
//! kept here: the queries for absent keys (each "no", and each reported false positive), and how
//! often each of a sample of false positives of the first layer occurred. The sample is by key:
//! whether a key is a false positive of the first layer does not depend on its frequency, so the
//! sample's counts are distributed like all.
//!
//! `growth.rs` has the steps of growth, `counted.rs` the counts; this file queries, inserts and
//! opens.

mod counted;
mod growth;

pub use counted::{Counted, MAX_SAMPLED};

use crate::error::{Error, Result};
use crate::format::{
    Frame, Head, SECTION_FRAME, SECTION_PLAN, SECTION_SAMPLE, Section, Source, Stored,
};
use crate::hash::Hash128;
use crate::kernel::{self, Content, Kernel, Kind, Opening};
use crate::lock::{ReadGuard, RwLock, WriteGuard};
use crate::memory;
use crate::stack::{self, MAX_LAYERS, Stack};
use counted::with_sample;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Adaptive stacks; stacks of quotient filters also delete.
pub static KIND: Kind = Kind {
    inserts: true,
    adapts: true,
    ..Kind::new(11, "adaptive_stacked", |head, sections, opening| {
        Ok(Arc::new(AdaptiveStack::from_frame(head, sections, opening)?))
    })
};
/// A layer of negatives that is being filled, and its capacity.
pub struct Filling {
    /// The layer.
    pub layer: Arc<dyn Kernel>,
    /// The number of negatives at which it is full.
    pub capacity: u64,
}

/// A layer of keys while the stored hashes are scanned.
struct Building {
    ticket: u64,
    layer: Arc<dyn Kernel>,
    /// Whether it will replace the first layer, rather than follow the last.
    first: bool,
    /// Whether a key could not be inserted into it.
    failed: AtomicBool,
}

struct Inner {
    stack: Stack,
    filling: Option<Filling>,
    building: Option<Building>,
    /// How often the layers behind the first were started again.
    generation: u64,
    /// How often any of this changed: a decision based on an older version is outdated.
    version: u64,
    /// The plan as JSON, written by Python.
    plan: Vec<u8>,
}

/// The state that Python's decisions are based on.
pub struct State {
    /// How often the layers changed.
    pub version: u64,
    /// Whether a layer is being built.
    pub building: bool,
    /// How often the layers behind the first were started again.
    pub generation: u64,
    /// The expected fraction of queries for known negatives (ψ).
    pub psi: f64,
    /// The number of layers that answer queries.
    pub layers: u64,
    /// The number of negatives in the layer that is being filled, and its capacity.
    pub filled: [u64; 2],
    /// The counts.
    pub counted: Counted,
}

/// A stack that grows.
pub struct AdaptiveStack {
    inner: RwLock<Inner>,
    counted: RwLock<Counted>,
    /// Queries answered "no" since the last adaptation.
    denied: AtomicU64,
}

impl AdaptiveStack {
    /// A stack of one layer of keys, the layer to be filled behind it, and the plan.
    pub fn new(
        first: Arc<dyn Kernel>,
        filling: Option<Filling>,
        plan: Vec<u8>,
    ) -> Result<AdaptiveStack> {
        let stack = Stack::new(vec![first], 0.0, 0, false)?.of_generation(0);
        AdaptiveStack::with(stack, filling, plan)
    }

    fn with(stack: Stack, filling: Option<Filling>, plan: Vec<u8>) -> Result<AdaptiveStack> {
        stack.layers().iter().try_for_each(check)?;
        filling.iter().try_for_each(|filling| check(&filling.layer))?;
        let inner = Inner { stack, filling, building: None, generation: 0, version: 0, plan };
        Ok(AdaptiveStack {
            inner: RwLock::new(inner),
            counted: RwLock::default(),
            denied: AtomicU64::new(0),
        })
    }

    /// Opens the stack of a frame: the stack, the layer that was being filled, sample and plan.
    pub fn from_frame(
        head: &Head,
        sections: &[Section<'_>],
        opening: &Opening<'_>,
    ) -> Result<AdaptiveStack> {
        let damaged = |what: &str| Error::Format(format!("the adaptive stack is damaged: {what}"));
        let &[generation, capacity, collecting, asked, wrong, strikes, total, mistakes, shift] =
            &head.parameters[..]
        else {
            return Err(damaged("its parameters are invalid"));
        };
        let (stack, filling, sample, plan) = match sections {
            [stack, sample, plan] => (stack, None, sample, plan),
            [stack, filling, sample, plan] => (stack, Some(filling), sample, plan),
            _ => return Err(damaged("its sections are invalid")),
        };
        let open = |section: &Section<'_>, may_be: fn(&Kind) -> bool| {
            opening.nested(section, may_be)?.ok_or_else(|| damaged("a layer is not a filter"))
        };
        let opened: Arc<dyn Any + Send + Sync> =
            open(stack, |kind| kind.number == stack::KIND.number)?;
        let stack = opened.downcast::<Stack>().map_err(|_| damaged("it has no stack"))?;
        let stack = Arc::into_inner(stack).ok_or_else(|| damaged("it has no stack"))?;
        let filling = match filling {
            Some(section) => Some(Filling { layer: open(section, may_be_layer)?, capacity }),
            None => None,
        };
        if (sample.kind, sample.piece, plan.kind, plan.piece)
            != (SECTION_SAMPLE, 0, SECTION_PLAN, 0)
        {
            return Err(damaged("its sections are in another order"));
        }
        if filling.is_none() && capacity != 0 || stack.layers().len() + 2 > MAX_LAYERS {
            return Err(damaged("its number of layers is invalid"));
        }
        let total = [total, mistakes];
        let counts =
            Counted { collecting, asked, wrong, strikes, total, shift, ..Counted::default() };
        let counted =
            with_sample(counts, sample.bytes).ok_or_else(|| damaged("its sample is wrong"))?;
        let stack = stack.of_generation(generation as u16);
        let opened = AdaptiveStack::with(stack, filling, memory::copied(plan.bytes)?)
            .map_err(|error| error.in_frame(damaged))?;
        opened.write().generation = generation;
        *opened.counted() = counted;
        if opened.count() != head.count {
            return Err(damaged("its number of keys does not match its first layer"));
        }
        Ok(opened)
    }

    fn read(&self) -> ReadGuard<'_, Inner> {
        self.inner.read()
    }

    fn write(&self) -> WriteGuard<'_, Inner> {
        self.inner.write()
    }

    fn counted(&self) -> WriteGuard<'_, Counted> {
        self.counted.write()
    }

    /// The plan.
    pub fn plan(&self) -> Result<Vec<u8>> {
        memory::copied(&self.read().plan)
    }

    /// A consistent snapshot of the state.
    pub fn state(&self) -> State {
        let inner = self.read();
        let filling = inner.filling.as_ref();
        State {
            version: inner.version,
            building: inner.building.is_some(),
            generation: inner.generation,
            psi: inner.stack.knowledge().psi,
            layers: inner.stack.layers().len() as u64,
            filled: filling.map_or([0, 0], |filling| [filling.layer.count(), filling.capacity]),
            counted: self.counted.read().clone(),
        }
    }

    /// The layers that answer queries and, behind them, the one that is being filled, if any.
    pub fn layers(&self) -> Vec<Arc<dyn Kernel>> {
        let inner = self.read();
        let filling = inner.filling.iter().map(|filling| filling.layer.clone());
        inner.stack.layers().iter().cloned().chain(filling).collect()
    }

    /// The rate of known negatives.
    pub fn known_rate(&self) -> f64 {
        self.read().stack.known_rate()
    }

    /// How often each key of the sample occurred.
    pub fn sample(&self) -> Result<Vec<u64>> {
        memory::collected(self.counted.read().sample.values().copied())
    }
}

/// Whether a layer may be of this kind: it supports insertion, and never refuses a key because it
/// is full.
fn may_be_layer(kind: &Kind) -> bool {
    kind.layer && kind.inserts && !kind.bounded
}

/// Refuses a layer of another kind.
fn check(layer: &Arc<dyn Kernel>) -> Result<()> {
    if may_be_layer(layer.kind()) {
        return Ok(());
    }
    let kind = layer.kind().number;
    Err(Error::Parameter(format!("a layer is of kind {kind}; Bloom and quotient filters can grow")))
}

impl Kernel for AdaptiveStack {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn contains(&self, hashes: &[Hash128], out: &mut [bool]) {
        self.read().stack.contains(hashes, out);
        let denied = out.iter().map(|&yes| u64::from(!yes)).sum();
        self.denied.fetch_add(denied, Relaxed);
    }

    fn contains_one(&self, hash: Hash128) -> bool {
        let answer = self.read().stack.contains_one(hash);
        self.denied.fetch_add(u64::from(!answer), Relaxed);
        answer
    }

    fn try_contains_one(&self, hash: Hash128) -> Option<bool> {
        let answer = self.inner.try_read()?.stack.try_contains_one(hash)?;
        self.denied.fetch_add(u64::from(!answer), Relaxed);
        Some(answer)
    }

    fn count(&self) -> u64 {
        self.read().stack.count()
    }

    fn capacity(&self) -> Option<u64> {
        self.read().stack.capacity()
    }

    fn overfull(&self, capacity: u64) -> bool {
        self.read().stack.overfull(capacity)
    }

    fn busy(&self) -> bool {
        self.inner.try_read().is_none_or(|inner| inner.stack.busy())
    }

    fn size_in_bits(&self) -> u64 {
        let inner = self.read();
        let filling = inner.filling.as_ref().map_or(0, |filling| filling.layer.size_in_bits());
        inner.stack.size_in_bits() + filling
    }

    fn rate(&self) -> f64 {
        self.read().stack.rate()
    }

    fn unseen_rate(&self) -> f64 {
        self.read().stack.unseen_rate()
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        let inner = self.read();
        let filling = match &inner.filling {
            Some(Filling { layer, capacity }) => {
                Some(Filling { layer: layer.copy()?, capacity: *capacity })
            }
            None => None,
        };
        let copy =
            AdaptiveStack::with(inner.stack.duplicate()?, filling, memory::copied(&inner.plan)?)?;
        copy.write().generation = inner.generation;
        *copy.counted() = self.counted.read().clone();
        Ok(Arc::new(copy))
    }

    fn content(&self) -> Result<Content<'_>> {
        // SAFETY: the sections are dropped with the lock.
        let (inner, lock) = unsafe { self.read().split() };
        let counted = self.counted.read();
        let Content { parameters, count, capacity: own, sections, lock: written } =
            inner.stack.content()?;
        let head = Head {
            kind: stack::KIND.number,
            hash: 0,
            tag: 0,
            count,
            capacity: own.unwrap_or(count),
            parameters,
        };
        let stack = Frame::new(&head, sections, written)?;
        let stored = |kind, content| Stored { kind, piece: 0, content };
        let mut sections = vec![stored(SECTION_FRAME, Source::Frame(stack))];
        if let Some(filling) = &inner.filling {
            sections.push(kernel::nested(&*filling.layer)?);
        }
        let pair = |(word, count): (&u64, &u64)| {
            (u128::from(*count) << 64 | u128::from(*word)).to_le_bytes()
        };
        let sample = memory::collected(counted.sample.iter().flat_map(pair))?;
        sections.push(stored(SECTION_SAMPLE, Source::Made(sample)));
        sections.push(stored(SECTION_PLAN, Source::Bytes(&inner.plan)));
        let capacity = inner.filling.as_ref().map_or(0, |filling| filling.capacity);
        let Counted { collecting, asked, wrong, strikes, total, shift, .. } = *counted;
        let [total, mistakes] = total;
        let parameters = vec![
            inner.generation,
            capacity,
            collecting,
            asked,
            wrong,
            strikes,
            total,
            mistakes,
            shift,
        ];
        Ok(Content { parameters, count, capacity: own, sections, lock: Some(lock) })
    }

    /// Inserts into each layer of keys that it reaches, and into the one that is being built. If a
    /// layer behind the first is full, all layers behind the first are dropped.
    fn insert(&self, hashes: &[Hash128]) -> Result<()> {
        let inner = self.read();
        match inner.stack.insert(hashes) {
            Err(Error::Capacity(_)) if inner.stack.layers().len() > 1 => {}
            refused @ Err(_) => return refused,
            Ok(()) => {
                // A failure here fails the layer, not the insertion: the layer will not be
                // activated.
                let _ =
                    inner.building.as_ref().map(|building| inner.insert_reaching(building, hashes));
                return Ok(());
            }
        }
        drop(inner);
        let mut inner = self.write();
        inner.building = None;
        self.drop_layers(&mut inner, None)?;
        inner.stack.insert(hashes)
    }

    fn remove(&self, hash: Hash128) -> Result<()> {
        let inner = self.read();
        if !inner.stack.layers()[0].kind().deletes {
            return Err(Error::Parameter(
                "keys cannot be removed from this stack, because its layers are Bloom filters"
                    .into(),
            ));
        }
        inner.stack.remove_from_first(hash)
    }
}
