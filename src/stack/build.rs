//! Stacks from their layers, and from frames.

use super::{Knowledge, MAX_LAYERS, Stack, Written, function};
use crate::error::{Error, Result};
use crate::format::{Head, Section};
use crate::kernel::{Kernel, Opening};
use crate::lock::RwLock;
use std::sync::Arc;

impl Stack {
    /// A stack of built layers; the other arguments are the fields of [`Knowledge`].
    pub fn new(
        layers: Vec<Arc<dyn Kernel>>,
        psi: f64,
        overlap: u64,
        exhausted: bool,
    ) -> Result<Stack> {
        let keys = layers.iter().step_by(2);
        let built = keys.map(|layer| layer.rate()).collect();
        Stack::with(layers, Knowledge { psi, overlap, exhausted, built }, 1.0)
    }

    fn with(layers: Vec<Arc<dyn Kernel>>, knowledge: Knowledge, kept: f64) -> Result<Stack> {
        let refuse = |message: String| Err(Error::Parameter(message));
        let mut shares = [knowledge.psi, kept].into_iter().chain(knowledge.built.iter().copied());
        if let Some(wrong) = shares.find(|share| !(0.0..=1.0).contains(share)) {
            return refuse(format!("a share must be from 0 to 1, not {wrong}"));
        }
        if layers.is_empty() || layers.len() > MAX_LAYERS {
            let given = layers.len();
            return refuse(format!("a stack must have from 1 to {MAX_LAYERS} layers, not {given}"));
        }
        if let Some(other) = layers.iter().find(|layer| !layer.kind().layer) {
            return refuse(format!(
                "a layer must be a plain filter, not of kind {}",
                other.kind().number
            ));
        }
        let functions = layers.iter().filter(|layer| function(&***layer).is_some()).count();
        let last = function(&**layers.last().unwrap_or(&layers[0]));
        if functions != usize::from(last.is_some()) || last.is_some_and(|f| f.bits() != 1) {
            return refuse("only the last layer may be a function, of one bit".into());
        }
        // After a layer of negatives must come one of keys, or its "yes" would mean nothing.
        if layers.len().is_multiple_of(2) != last.is_some() {
            return refuse(
                "the last layer must store keys, or be a function after such a layer".into(),
            );
        }
        if knowledge.built.len() != layers.len().div_ceil(2) {
            return refuse("there must be one rate for each layer of keys".into());
        }
        let writer = RwLock::new(Written { kept });
        Ok(Stack { layers, knowledge, salt: 0, adaptive: false, writer })
    }

    /// The stack of an adaptive one, with other domains for the layers behind the first, so that
    /// keys that collided in the layers of one `generation` are independent in the next.
    pub fn of_generation(self, generation: u16) -> Stack {
        Stack { salt: usize::from(generation) * MAX_LAYERS, adaptive: true, ..self }
    }

    /// The stack with a layer of negatives and one of keys after the last.
    ///
    /// Hashes that passed all layers so far were collected, so the last layer counts as built now.
    /// Earlier layers keep the rates of their build: a negative that passes one because of a later
    /// insertion is in no layer of negatives, and will not be, because it leaves the stack with a
    /// "yes" before it reaches the new ones.
    pub fn extended(
        &self,
        negatives: Arc<dyn Kernel>,
        keys: Arc<dyn Kernel>,
        psi: f64,
    ) -> Result<Stack> {
        let mut layers = self.layers.clone();
        let mut built = self.knowledge.built.clone();
        if let (Some(last), Some(layer)) = (built.last_mut(), layers.last()) {
            *last = layer.rate();
        }
        built.push(keys.rate());
        let kept = if layers.len() == 1 { 1.0 } else { self.writer.read().kept };
        layers.extend([negatives, keys]);
        let knowledge = Knowledge { psi, overlap: 0, exhausted: false, built };
        let stack = Stack::with(layers, knowledge, kept)?;
        Ok(Stack { salt: self.salt, adaptive: self.adaptive, ..stack })
    }

    /// Opens the stack of a frame: each section is the frame of a layer.
    pub fn from_frame(
        head: &Head,
        sections: &[Section<'_>],
        opening: &Opening<'_>,
    ) -> Result<Stack> {
        let damaged = |what: &str| Error::Format(format!("the stack is damaged: {what}"));
        let [layers, psi, overlap, exhausted @ (0 | 1), kept, built @ ..] = &head.parameters[..]
        else {
            return Err(damaged("its parameters are invalid"));
        };
        if *layers != sections.len() as u64 || sections.len() > MAX_LAYERS {
            return Err(damaged("its number of layers does not match its parameters"));
        }
        let open = |section: &Section<'_>| {
            let opened = opening.nested(section, |kind| kind.layer)?;
            opened.ok_or_else(|| damaged("a layer is not a filter"))
        };
        let layers = sections.iter().map(open).collect::<Result<_>>()?;
        let built = built.iter().map(|&rate| f64::from_bits(rate)).collect();
        let (psi, exhausted) = (f64::from_bits(*psi), *exhausted == 1);
        let knowledge = Knowledge { psi, overlap: *overlap, exhausted, built };
        let stack = Stack::with(layers, knowledge, f64::from_bits(*kept))
            .map_err(|error| error.in_frame(damaged))?;
        if stack.count() != head.count {
            return Err(damaged("its number of keys does not match its first layer"));
        }
        Ok(stack)
    }

    /// An independent copy.
    pub fn duplicate(&self) -> Result<Stack> {
        let written = self.writer.read();
        let layers = self.layers.iter().map(|layer| layer.copy()).collect::<Result<_>>()?;
        let copy = Stack::with(layers, self.knowledge.clone(), written.kept)?;
        Ok(Stack { salt: self.salt, adaptive: self.adaptive, ..copy })
    }
}
