//! A stack that grows from the questions it answers (Deeds, Hentschel, Idreos 2021, section 6).
//!
//! It begins as one layer of all keys. Absent keys that it lets through, once the store has said so,
//! are collected in a layer of negatives, which answers nothing yet. When that is full, a scan of all
//! stored hashes builds the layer of those keys that it takes for negatives; then the two join the
//! [stack](crate::stack) in one step, and the next layer of negatives is begun.
//!
//! ```text
//! answering   layer 0 (keys) [layer 1 (negatives) layer 2 (keys) …]     an ordinary stack
//! filling     the layer of negatives that comes next
//! building    the layer of keys that comes with it, while the scan goes on
//! ```
//!
//! Invariant: a key is in every layer of keys that it reaches. The layer of negatives does not change
//! once the scan has begun, so it is settled which keys the new layer needs. Those that are stored when
//! the scan passes, the scan brings; those that come later, insertion brings: from the moment the scan
//! begins it puts them into the layer that is being built as well. Whoever is listed by the store only
//! after its insertion is listed as under way meanwhile (`Remote` in `_types.py`), so nobody is missed.
//! A scan that fails leaves the stack as it was. Replacing the first layer goes the same way.
//!
//! A removal takes the key out of the first layer alone; see [`Stack::remove_from_first`].
//!
//! When to freeze, drop or replace is decided in Python (`filters/adaptive_stacked.py`) from what is
//! counted here: the questions for absent keys (each "no", and each false positive that is told),
//! and how often each of a sample of false positives of the first layer came. The sample is by key: a
//! key that fools the first layer does so whatever its frequency, so its counts have the shape of all.

use crate::error::{Error, Result};
use crate::format::{self, Head, SECTION_FRAME, SECTION_MARKS, SECTION_PLAN, Section};
use crate::hash::Hash128;
use crate::kernel::{self, Content, Kernel, Kind, Opening};
use crate::stack::{self, MOST_LAYERS, Stack};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Adaptive stacks; those of quotient filters also delete.
pub static KIND: Kind = Kind {
    number: 11,
    name: "adaptive_stacked",
    layer: false,
    inserts: true,
    deletes: false,
    bounded: false,
    open: |head, sections, opening| {
        Ok(Arc::new(AdaptiveStack::from_frame(head, sections, opening)?))
    },
};
/// The most keys of which the questions are counted: enough for a shape, and 16 KiB.
pub const MOST_SAMPLED: usize = 1024;

/// A layer of negatives that is being filled, and how many it is for.
pub struct Filling {
    /// The layer.
    pub layer: Arc<dyn Kernel>,
    /// With this many it is full.
    pub room: u64,
}

/// A layer of keys while the stored hashes are scanned.
struct Building {
    ticket: u64,
    layer: Arc<dyn Kernel>,
    /// Whether it takes the place of the first layer, rather than a place behind the last.
    first: bool,
    /// Whether a key could not be put into it.
    failed: AtomicBool,
}

struct Inner {
    stack: Stack,
    filling: Option<Filling>,
    building: Option<Building>,
    /// How often the layers behind the first were begun anew.
    generation: u64,
    /// How often anything of this changed: whoever decides by what it was, is late.
    version: u64,
    /// The plan, as Python has written it.
    plan: Vec<u8>,
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// Questions for absent keys since the layer that is being filled was begun.
    pub collecting: u64,
    /// Questions for absent keys in the present window.
    pub asked: u64,
    /// False positives in the present window.
    pub wrong: u64,
    /// How often in a row the layers behind the first were given up.
    pub strikes: u64,
    /// Questions for absent keys, and false positives, over all.
    pub total: [u64; 2],
    /// Of the false positives of the first layer one in 2^shift, by a word of its hash, is in the
    /// sample, with how often it came.
    pub shift: u64,
    sample: BTreeMap<u64, u64>,
}

impl Counted {
    fn saw(&mut self, asked: u64, wrong: u64) {
        self.collecting = self.collecting.saturating_add(asked);
        self.asked = self.asked.saturating_add(asked);
        self.wrong = self.wrong.saturating_add(wrong);
        self.total[0] = self.total[0].saturating_add(asked);
        self.total[1] = self.total[1].saturating_add(wrong);
    }

    fn sampled(&mut self, word: u64) {
        if !self.takes(word) {
            return;
        }
        let count = self.sample.entry(word).or_default();
        *count = count.saturating_add(1);
        while self.sample.len() > MOST_SAMPLED && self.shift < 63 {
            self.shift += 1;
            let shift = self.shift;
            self.sample.retain(|&word, _| word.trailing_zeros() as u64 >= shift);
        }
    }

    fn takes(&self, word: u64) -> bool {
        u64::from(word.trailing_zeros()) >= self.shift
    }

    fn window(&mut self) {
        (self.asked, self.wrong) = (0, 0);
    }
}

/// What Python decides by.
pub struct State {
    /// How often the layers changed.
    pub version: u64,
    /// Whether a layer is being built.
    pub building: bool,
    /// How often the layers behind the first were begun anew.
    pub generation: u64,
    /// The share of the questions for known negatives that was expected of the layers (ψ).
    pub psi: f64,
    /// How many layers answer.
    pub layers: u64,
    /// How many negatives are in the layer that is being filled, and for how many it is.
    pub filled: [u64; 2],
    /// What was counted.
    pub counted: Counted,
}

/// A stack that grows.
pub struct AdaptiveStack {
    inner: RwLock<Inner>,
    counted: Mutex<Counted>,
    /// Questions answered "no" since the last adaptation.
    denied: AtomicU64,
}

impl AdaptiveStack {
    /// One layer of keys, what is to be filled behind it, and the plan.
    pub fn new(
        first: Arc<dyn Kernel>,
        filling: Option<Filling>,
        plan: Vec<u8>,
    ) -> Result<AdaptiveStack> {
        AdaptiveStack::with(Stack::new(vec![first], 0.0, 0, false)?, filling, plan)
    }

    fn with(stack: Stack, filling: Option<Filling>, plan: Vec<u8>) -> Result<AdaptiveStack> {
        stack.layers().iter().try_for_each(check)?;
        filling.iter().try_for_each(|filling| check(&filling.layer))?;
        let inner = Inner { stack, filling, building: None, generation: 0, version: 0, plan };
        Ok(AdaptiveStack {
            inner: RwLock::new(inner),
            counted: Mutex::default(),
            denied: AtomicU64::new(0),
        })
    }

    /// Opens what a frame holds: the stack, the layer that was being filled, sample and plan.
    pub fn from_frame(
        head: &Head,
        sections: &[Section<'_>],
        opening: &Opening<'_>,
    ) -> Result<AdaptiveStack> {
        let damaged = |what: &str| Error::Format(format!("the adaptive stack is damaged: {what}"));
        let &[generation, room, collecting, asked, wrong, strikes, total, mistakes, shift] =
            &head.parameters[..]
        else {
            return Err(damaged("it has not the parameters of one"));
        };
        let (stack, filling, sample, plan) = match sections {
            [stack, sample, plan] => (stack, None, sample, plan),
            [stack, filling, sample, plan] => (stack, Some(filling), sample, plan),
            _ => return Err(damaged("it has not the sections of one")),
        };
        let open = |section: &Section<'_>, may_be: fn(&Kind) -> bool| {
            opening.nested(section, may_be)?.ok_or_else(|| damaged("a layer is not one"))
        };
        let opened: Arc<dyn Any + Send + Sync> =
            open(stack, |kind| kind.number == stack::KIND.number)?;
        let stack = opened.downcast::<Stack>().map_err(|_| damaged("it has no stack"))?;
        let stack = Arc::into_inner(stack).ok_or_else(|| damaged("it has no stack"))?;
        let filling = match filling {
            Some(section) => Some(Filling { layer: open(section, may_be_layer)?, room }),
            None => None,
        };
        if (sample.kind, sample.piece, plan.kind, plan.piece) != (SECTION_MARKS, 0, SECTION_PLAN, 0)
        {
            return Err(damaged("its sections are in another order"));
        }
        if filling.is_none() && room != 0 || stack.layers().len() + 2 > MOST_LAYERS {
            return Err(damaged("its layers are not as many as they may be"));
        }
        let total = [total, mistakes];
        let counts =
            Counted { collecting, asked, wrong, strikes, total, shift, ..Counted::default() };
        let counted =
            with_sample(counts, sample.bytes).ok_or_else(|| damaged("its sample is wrong"))?;
        let stack = stack.of_generation(generation as u16);
        let opened = AdaptiveStack::with(stack, filling, plan.bytes.to_vec())
            .map_err(|error| damaged(&error.to_string()))?;
        opened.write().generation = generation;
        *opened.counted() = counted;
        if opened.count() != head.count {
            return Err(damaged("its first layer holds another number of keys"));
        }
        Ok(opened)
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(|lock| lock.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(|lock| lock.into_inner())
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(|lock| lock.into_inner())
    }

    /// The plan.
    pub fn plan(&self) -> Vec<u8> {
        self.read().plan.clone()
    }

    /// Everything at one moment.
    pub fn state(&self) -> State {
        let inner = self.read();
        let filling = inner.filling.as_ref();
        State {
            version: inner.version,
            building: inner.building.is_some(),
            generation: inner.generation,
            psi: inner.stack.knowledge().psi,
            layers: inner.stack.layers().len() as u64,
            filled: filling.map_or([0, 0], |filling| [filling.layer.count(), filling.room]),
            counted: self.counted().clone(),
        }
    }

    /// The layers that answer, and behind them, if there is one, that which is being filled.
    pub fn layers(&self) -> Vec<Arc<dyn Kernel>> {
        let inner = self.read();
        let filling = inner.filling.iter().map(|filling| filling.layer.clone());
        inner.stack.layers().iter().cloned().chain(filling).collect()
    }

    /// The rate of known negatives.
    pub fn known_rate(&self) -> f64 {
        self.read().stack.known_rate()
    }

    /// How often each key of the sample came.
    pub fn sample(&self) -> Vec<u64> {
        self.counted().sample.values().copied().collect()
    }

    /// Learns that these hashes are of no stored keys. Those that it takes for stored are counted, and
    /// collected if there is room; `changed` says of each whether it was.
    pub fn observe(&self, hashes: &[Hash128], changed: &mut [bool]) -> Result<()> {
        let inner = self.read();
        let mut answers = vec![false; hashes.len()];
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
            let Some(Filling { layer, room }) = &inner.filling else { continue };
            if inner.building.is_some() || layer.count() >= *room {
                continue;
            }
            let seen = inner.stack.at_layer(hash, index);
            if !inner.stack.others_behind(&[hash]).is_empty() && !layer.contains_one(seen) {
                layer.insert(&[seen])?;
                *changed = true;
            }
        }
        Ok(())
    }

    /// Begins to build a layer of keys: behind the one that was filled, which changes no more, or in
    /// place of the first. The ticket is for [`AdaptiveStack::fill`] and [`AdaptiveStack::finish`];
    /// none if the layers are no longer of this version.
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

    /// Brings stored hashes to the layer that is being built.
    pub fn fill(&self, ticket: u64, hashes: &[Hash128]) -> Result<()> {
        let inner = self.read();
        match &inner.building {
            Some(building) if building.ticket == ticket => inner.bring(building, hashes),
            _ => Ok(()),
        }
    }

    /// Lets the layer that was built answer, after all stored hashes were brought to it. `psi` is the
    /// share of the questions that the layer of negatives before it is expected to know, `filling`
    /// what is filled next, `plan` replaces the plan. Whether it did.
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
            // As likely the next time: the layer of negatives lets too many keys through.
            self.give_up(&mut inner, None)?;
            return Ok(false);
        }
        if building.first {
            inner.restart(building.layer, filling)?;
            let mut counted = self.counted();
            *counted = Counted { total: counted.total, ..Counted::default() };
        } else if let Some(filled) = inner.filling.take() {
            let mut layers = inner.stack.layers().to_vec();
            layers.extend([filled.layer, building.layer]);
            let stack = Stack::new(layers, psi, 0, false)?;
            inner.stack = stack.of_generation(inner.generation as u16);
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

    /// Gives up what is being built; the stack stays as it was.
    pub fn abandon(&self, ticket: u64) {
        let mut inner = self.write();
        if inner.building.take_if(|building| building.ticket == ticket).is_some() {
            inner.version += 1;
        }
    }

    /// Gives up all layers behind the first, to fill this one anew. Whether it did.
    pub fn drop_behind_first(&self, version: u64, filling: Option<Filling>) -> Result<bool> {
        filling.iter().try_for_each(|filling| check(&filling.layer))?;
        let mut inner = self.write();
        if inner.version != version || inner.building.is_some() {
            return Ok(false);
        }
        self.give_up(&mut inner, filling)?;
        Ok(true)
    }

    fn give_up(&self, inner: &mut Inner, filling: Option<Filling>) -> Result<()> {
        inner.version += 1;
        let first = inner.stack.layers()[0].clone();
        inner.restart(first, filling)?;
        let mut counted = self.counted();
        let (strikes, total) = (counted.strikes.saturating_add(1), counted.total);
        *counted = Counted { strikes, total, ..Counted::default() };
        Ok(())
    }

    /// Begins a new window, the last having been as expected; or from now on this share of the
    /// questions is expected to be for known negatives.
    pub fn content(&self, version: u64, psi: Option<f64>) {
        let mut inner = self.write();
        if inner.version != version {
            return;
        }
        if let Some(psi) = psi {
            inner.version += 1;
            inner.stack.expect(psi);
        }
        let mut counted = self.counted();
        counted.window();
        counted.strikes = 0;
    }
}

impl Inner {
    /// Puts stored hashes into the layer that is being built, as far as they come to it.
    fn bring(&self, building: &Building, hashes: &[Hash128]) -> Result<()> {
        let brought = match &self.filling {
            _ if building.first => building.layer.insert(hashes),
            Some(Filling { layer, .. }) => {
                let index = self.stack.layers().len();
                let reach = self.stack.accepted_by(layer, index, &self.stack.keys_behind(hashes));
                let at = |&hash| self.stack.at_layer(hash, index + 1);
                building.layer.insert(&reach.iter().map(at).collect::<Vec<_>>())
            }
            None => Ok(()),
        };
        if brought.is_err() {
            building.failed.store(true, Relaxed);
        }
        brought
    }

    /// Keeps one layer, and begins a generation.
    fn restart(&mut self, first: Arc<dyn Kernel>, filling: Option<Filling>) -> Result<()> {
        self.generation = self.generation.saturating_add(1);
        let stack = Stack::new(vec![first], 0.0, 0, false)?;
        self.stack = stack.of_generation(self.generation as u16);
        self.filling = filling;
        Ok(())
    }
}

/// Whether a layer may be of this kind: it takes insertions, and refuses none for want of capacity.
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

/// The sample of a frame: a word and a count of 8 bytes each, by rising words.
fn with_sample(mut counted: Counted, bytes: &[u8]) -> Option<Counted> {
    let (pairs, rest) = bytes.as_chunks::<16>();
    if !rest.is_empty() || pairs.len() > MOST_SAMPLED || counted.shift > 63 {
        return None;
    }
    let mut last = None;
    for pair in pairs {
        let pair = u128::from_le_bytes(*pair);
        let (word, count) = (pair as u64, (pair >> 64) as u64);
        if last >= Some(word) || count == 0 || !counted.takes(word) {
            return None;
        }
        last = Some(word);
        counted.sample.insert(word, count);
    }
    Some(counted)
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
        let answer = self.inner.try_read().ok()?.stack.try_contains_one(hash)?;
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
        self.inner.try_read().map_or(true, |inner| inner.stack.busy())
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
            Some(Filling { layer, room }) => Some(Filling { layer: layer.copy()?, room: *room }),
            None => None,
        };
        let copy = AdaptiveStack::with(inner.stack.duplicate()?, filling, inner.plan.clone())?;
        copy.write().generation = inner.generation;
        *copy.counted() = self.counted().clone();
        Ok(Arc::new(copy))
    }

    fn frozen(&self, look: &mut dyn FnMut(Content<'_>)) {
        let inner = self.read();
        let counted = self.counted();
        let stack = kernel::nested(&inner.stack);
        let filling = inner.filling.as_ref().map(|filling| kernel::nested(&*filling.layer));
        let pair = |(word, count): (&u64, &u64)| {
            (u128::from(*count) << 64 | u128::from(*word)).to_le_bytes()
        };
        let sample: Vec<u8> = counted.sample.iter().flat_map(pair).collect();
        let section = |kind, bytes| Section { kind, piece: 0, bytes };
        let mut sections = vec![section(SECTION_FRAME, &stack[..])];
        sections.extend(filling.iter().map(|frame| section(SECTION_FRAME, &frame[..])));
        sections.push(section(SECTION_MARKS, &sample));
        sections.push(section(SECTION_PLAN, &inner.plan));
        let room = inner.filling.as_ref().map_or(0, |filling| filling.room);
        let Counted { collecting, asked, wrong, strikes, total, shift, .. } = *counted;
        let [total, mistakes] = total;
        let parameters =
            vec![inner.generation, room, collecting, asked, wrong, strikes, total, mistakes, shift];
        // As many keys as the frame has: others may have come since.
        let (count, capacity) = match format::read_header(&stack, stack.len() as u64) {
            Ok((head, ..)) => (head.count, inner.stack.capacity().map(|_| head.capacity)),
            Err(_) => (inner.stack.count(), inner.stack.capacity()),
        };
        look(Content { parameters, count, capacity, sections });
    }

    /// Into each layer of keys that it reaches, and into the one that is being built. A layer behind
    /// the first that has no room is given up with all others there.
    fn insert(&self, hashes: &[Hash128]) -> Result<()> {
        let inner = self.read();
        match inner.stack.insert(hashes) {
            Err(Error::Capacity(_)) if inner.stack.layers().len() > 1 => {}
            refused @ Err(_) => return refused,
            Ok(()) => {
                // What fails here fails the layer, not the insertion: it will not be let in.
                let _ = inner.building.as_ref().map(|building| inner.bring(building, hashes));
                return Ok(());
            }
        }
        drop(inner);
        let mut inner = self.write();
        inner.building = None;
        self.give_up(&mut inner, None)?;
        inner.stack.insert(hashes)
    }

    fn remove(&self, hash: Hash128) -> Result<()> {
        let inner = self.read();
        if !inner.stack.layers()[0].kind().deletes {
            return Err(Error::Parameter(
                "this adaptive stack takes no deletions: its layers are Bloom filters".into(),
            ));
        }
        inner.stack.remove_from_first(hash)
    }
}
