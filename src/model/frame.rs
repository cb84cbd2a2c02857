//! Bytes to a model. Every number is checked here, because scoring does not check again.

use super::grams::{Grams, MAX_GRAM, Used};
use super::oblivious::{MAX_DEPTH, Oblivious, Split};
use super::table::{Feature, Levels, Thresholds};
use super::trees::{MAX_NODES, Node, Trees};
use super::{Forest, Head, Input, MAX_LEVELS, Model};
use crate::error::{Error, Result};
use crate::format::{self, SECTION_BITS, Section};
use crate::memory::{self, TryGrow};

/// Maximum number of features: a node names one by 16 bits.
const MAX_FEATURES: u64 = 1 << 16;
/// Maximum number of trees: their leaves add up within 32 bits.
const MAX_TREES: u32 = 1 << 15;
/// Maximum number of buckets of text, or of a column of categories.
const MAX_BUCKETS: u32 = 1 << 24;

const TABLE: u64 = 0;
const TEXT: u64 = 1;
const LINEAR: u64 = 0;
const TREES: u64 = 1;
const OBLIVIOUS: u64 = 2;

impl Model {
    /// Opens the model in a frame.
    pub fn from_frame(head: &format::Head, sections: &[Section<'_>]) -> Result<Model> {
        let &[input, kind, features, scale, bias] = &head.parameters[..] else {
            return Err(damaged("it does not have five parameters"));
        };
        let [Section { kind: SECTION_BITS, piece: 0, bytes }] = sections else {
            return Err(damaged("it does not have one section of bits"));
        };
        if head.capacity != head.count {
            return Err(damaged("its number of training rows is inconsistent"));
        }
        let parts = (f64::from_bits(scale), f64::from_bits(bias), head.count);
        Model::from_flat([input, kind, features], parts, memory::copied(bytes)?)
    }

    /// Reads a model from its flat form: (input, head, features), (scale, bias, training rows),
    /// bytes.
    pub fn from_flat(
        [input, head, features]: [u64; 3],
        (scale, bias, count): (f64, f64, u64),
        flat: Vec<u8>,
    ) -> Result<Model> {
        if !scale.is_finite() || !bias.is_finite() {
            return Err(damaged("its scale or its bias is not a number"));
        }
        if features > MAX_FEATURES {
            return Err(damaged("it has too many features"));
        }
        let mut rest = Reader { rest: &flat, refused: None };
        let Some((input, used)) = rest.input([input, head, features]) else {
            return Err(rest.why("its features do not match its parameters"));
        };
        let head = match head {
            LINEAR => rest.linear(&input),
            TREES => rest
                .trees(features as usize)
                .map(|trees| Head::Trees { trees: Forest::Branching(trees), used }),
            OBLIVIOUS => rest
                .oblivious(features as usize)
                .map(|trees| Head::Trees { trees: Forest::Oblivious(trees), used }),
            _ => None,
        };
        let Some(head) = head.filter(|_| rest.rest.is_empty()) else {
            return Err(rest.why("its weights or trees do not match its features"));
        };
        Ok(Model { input, head, scale, bias, count, flat })
    }

    /// The first argument of [`Model::from_flat`].
    pub(super) fn form(&self) -> [u64; 3] {
        let input = if self.reads_text() { TEXT } else { TABLE };
        let head = match self.head {
            Head::Linear(_) => LINEAR,
            Head::Trees { trees: Forest::Branching(_), .. } => TREES,
            Head::Trees { trees: Forest::Oblivious(_), .. } => OBLIVIOUS,
        };
        [input, head, self.width() as u64]
    }
}

fn damaged(what: &str) -> Error {
    Error::Format(format!("the model is damaged: {what}"))
}

/// The rest of the flat form.
struct Reader<'a> {
    rest: &'a [u8],
    /// Why nothing was read, if it was for lack of memory.
    refused: Option<Error>,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    /// The error for a form that was not read.
    fn why(self, damage: &str) -> Error {
        self.refused.unwrap_or_else(|| damaged(damage))
    }

    /// The value, unless memory is missing.
    fn had<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.refused = Some(error)).ok()
    }

    fn numbers<const N: usize, T>(
        &mut self,
        count: usize,
        from: impl Fn([u8; N]) -> T,
    ) -> Option<Vec<T>> {
        let (all, _) = self.take(count.checked_mul(N)?)?.as_chunks::<N>();
        self.had(memory::collected(all.iter().map(|&bytes| from(bytes))))
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn word(&mut self) -> Option<u32> {
        self.take(4)?.first_chunk().map(|&bytes| u32::from_le_bytes(bytes))
    }

    fn input(&mut self, [input, head, features]: [u64; 3]) -> Option<(Input, Used)> {
        if input == TABLE {
            let mut all = Vec::new();
            for _ in 0..features {
                let feature = self.feature()?;
                self.had(all.try_push(feature))?;
            }
            let features = all;
            return Some((Input::Table(features), Used::default()));
        }
        let (shortest, longest) = (self.byte()?, self.byte()?);
        let grams = Grams { shortest, longest, buckets: self.buckets()? };
        if input != TEXT || shortest < 1 || longest < shortest || longest > MAX_GRAM {
            return None;
        }
        let used = match head {
            TREES | OBLIVIOUS if u64::from(grams.buckets) >= MAX_FEATURES => return None,
            LINEAR if features == 0 => Used::default(),
            TREES | OBLIVIOUS => {
                let used = self.numbers(usize::try_from(features).ok()?, u32::from_le_bytes)?;
                let places = memory::filled(grams.buckets as usize + 1, 0);
                Used::new(self.had(places)?, &used)?
            }
            _ => return None,
        };
        Some((Input::Text(grams), used))
    }

    fn buckets(&mut self) -> Option<u32> {
        self.word().filter(|buckets| (1..=MAX_BUCKETS).contains(buckets))
    }

    fn feature(&mut self) -> Option<Feature> {
        let (name, kind) = (self.word()?, self.byte()?);
        let levels = match kind {
            0 => {
                let count = usize::from(self.byte().filter(|&count| count < MAX_LEVELS)?);
                let thresholds = self.numbers(count, f32::from_le_bytes)?;
                let rising = thresholds.windows(2).all(|pair| pair[0] < pair[1]);
                let known = thresholds.iter().all(|threshold| !threshold.is_nan());
                (rising && known).then(|| Levels::Number(Thresholds::new(&thresholds)))?
            }
            1 => {
                let (buckets, count) = (self.buckets()?, self.byte()?);
                let buckets = self.numbers(buckets as usize, i8::from_le_bytes)?;
                let below = buckets.iter().all(|&level| level >= 0 && (level as u8) < count);
                (below && count <= MAX_LEVELS).then_some(Levels::Category { count, buckets })?
            }
            _ => return None,
        };
        Some(Feature { name, levels })
    }

    fn linear(&mut self, input: &Input) -> Option<Head> {
        let count = match input {
            Input::Table(features) => features.iter().map(Feature::count).sum(),
            Input::Text(grams) => grams.buckets as usize,
        };
        Some(Head::Linear(self.numbers(count, i8::from_le_bytes)?))
    }

    fn trees(&mut self, features: usize) -> Option<Trees> {
        let count = self.word().filter(|&count| count <= MAX_TREES)?;
        let mut trees = Trees::default();
        for _ in 0..count {
            let nodes = self.byte().map(usize::from).filter(|&nodes| nodes <= MAX_NODES)?;
            let leaves = nodes + 1;
            let nodes = self.numbers(nodes, |[a, b, level, left, right]| Node {
                feature: u16::from_le_bytes([a, b]),
                level: level as i8,
                children: [left, right],
            })?;
            self.had(trees.reserve(nodes.len()))?;
            trees.push(&nodes, &self.numbers(leaves, i16::from_le_bytes)?, features)?;
        }
        Some(trees)
    }

    fn oblivious(&mut self, features: usize) -> Option<Oblivious> {
        let count = self.word().filter(|&count| count <= MAX_TREES)?;
        let mut trees = Oblivious::default();
        for _ in 0..count {
            let depth = self.byte().map(usize::from).filter(|&depth| depth <= MAX_DEPTH)?;
            let splits = self.numbers(depth, |[a, b, level]| Split {
                feature: u16::from_le_bytes([a, b]),
                level: level as i8,
            })?;
            self.had(trees.reserve(splits.len()))?;
            trees.push(&splits, &self.numbers(1 << depth, i16::from_le_bytes)?, features)?;
        }
        Some(trees)
    }
}
