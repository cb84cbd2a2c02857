//! Learned Bloom filters: a classifier's score chooses which filter is queried.
//!
//! Rising borders divide the scores from 0 to 1 into regions. Region i treats the keys with scores
//! in it in one of three ways: *none* (it has no keys: the answer is no), *all* (it has too many
//! keys for a filter to pay off: the answer is yes), or a filter of its keys. A filter of all keys
//! may precede the regions. So no key is rejected. If a fraction h_i of absent keys has scores in
//! region i,
//!
//! ```text
//! rate = rate of the filter in front · Σ h_i · rate_i
//! ```
//!
//! Two regions, the upper one *all*, are Kraska et al.'s learned Bloom filter (2018); with a filter
//! in front it is Mitzenmacher's sandwich (2018); any number of regions are Vaidya et al.'s
//! partitions (2021). `planning/learned_bloom.py` chooses among them.
//!
//! The filter in front sees remixed hashes, so its false positives are independent of the others'.

use crate::error::{Error, Result};
use crate::format::{Head, Section};
use crate::hash::Hash128;
use crate::kernel::{self, Content, Kernel, Kind, Opening};
use crate::memory::{self, TryGrow};
use crate::model;
use crate::ribbon::KIND_FUNCTION;
use std::sync::Arc;

/// Learned Bloom filters.
pub static KIND: Kind = Kind::new(14, "learned", |head, sections, opening| {
    Ok(Arc::new(Learned::from_frame(head, sections, opening)?))
});
/// Maximum number of regions.
pub const MAX_REGIONS: usize = 256;
/// The domain of the filter in front: "front" in ASCII.
const DOMAIN: u64 = 0x66_726F_6E74;

/// Whether a region or the front may be of this kind: any layer of a stack except functions, which
/// are not filters.
fn is_plain(kind: &Kind) -> bool {
    kind.layer && kind.number != KIND_FUNCTION.number
}

/// The hash that the filter in front sees.
#[inline(always)]
pub fn in_front(hash: Hash128) -> Hash128 {
    hash.remix(DOMAIN)
}

/// The region of a score: how many borders it reaches.
#[inline(always)]
pub fn region_of(score: f32, borders: &[f32]) -> usize {
    borders.iter().map(|&border| usize::from(score >= border)).sum()
}

/// How a region answers.
#[derive(Clone)]
pub enum Region {
    /// No.
    None,
    /// Yes.
    All,
    /// As its filter does.
    Filter(Arc<dyn Kernel>),
}

impl Region {
    /// The fraction of absent keys that pass.
    pub fn rate(&self) -> f64 {
        match self {
            Region::None => 0.0,
            Region::All => 1.0,
            Region::Filter(filter) => filter.rate(),
        }
    }

    fn filter(&self) -> Option<&Arc<dyn Kernel>> {
        if let Region::Filter(filter) = self { Some(filter) } else { None }
    }
}

/// A classifier, borders, and the answer of each region.
pub struct Learned {
    /// The classifier, unless it is supplied by the user and not saved.
    pub model: Option<Arc<dyn Kernel>>,
    /// A filter of all keys, queried first.
    pub front: Option<Arc<dyn Kernel>>,
    /// The borders between regions.
    pub borders: Vec<f32>,
    /// The answer of each region, and the fraction of absent keys with scores in it.
    pub regions: Vec<(Region, f64)>,
    /// How many keys.
    pub count: u64,
}

impl Learned {
    /// Checks that the parts are consistent.
    pub fn checked(self) -> Result<Learned> {
        let wrong = |what: &str| Err(Error::Parameter(format!("a learned filter must {what}")));
        let plain = |filter: &Arc<dyn Kernel>| is_plain(filter.kind());
        if self.regions.is_empty() || self.regions.len() > MAX_REGIONS {
            return wrong("have from 1 to 256 regions");
        }
        if self.borders.len() + 1 != self.regions.len() {
            return wrong("have one border less than regions");
        }
        let rising = self.borders.windows(2).all(|pair| pair[0] < pair[1]);
        if !rising || !self.borders.iter().all(|border| border.is_finite()) {
            return wrong("have finite borders in ascending order");
        }
        if !self.regions.iter().all(|(_, share)| (0.0..=1.0).contains(share)) {
            return wrong("have shares from 0 to 1");
        }
        let filters = self.regions.iter().filter_map(|(region, _)| region.filter());
        if !filters.chain(&self.front).all(plain) {
            return wrong("consist of plain filters");
        }
        if self.model.as_ref().is_some_and(|model| model.kind().number != model::KIND.number) {
            return wrong("have a model as its classifier");
        }
        Ok(self)
    }

    /// [`Learned::contains_scored`] for one hash.
    pub fn contains_one_scored(&self, hash: Hash128, score: f32) -> bool {
        let inside = match &self.regions[region_of(score, &self.borders)].0 {
            Region::None => false,
            Region::All => true,
            Region::Filter(filter) => filter.contains_one(hash),
        };
        inside && self.front.as_ref().is_none_or(|front| front.contains_one(in_front(hash)))
    }

    /// Whether each hash, given its score, may be in the set.
    pub fn contains_scored(
        &self,
        hashes: &[Hash128],
        scores: &[f32],
        out: &mut [bool],
    ) -> Result<()> {
        match &self.front {
            Some(front) => {
                let remixed = memory::collected(hashes.iter().map(|&hash| in_front(hash)))?;
                front.contains(&remixed, out);
            }
            None => out.fill(true),
        }
        let mut queried: Vec<Vec<u32>> = memory::filled(self.regions.len(), Vec::new())?;
        for (i, (out, &score)) in out.iter_mut().zip(scores).enumerate() {
            let region = region_of(score, &self.borders);
            match self.regions[region].0 {
                Region::None => *out = false,
                Region::Filter(_) if *out => queried[region].try_push(i as u32)?,
                _ => {}
            }
        }
        let (mut gathered, mut answers) = (Vec::new(), Vec::new());
        for ((region, _), queried) in self.regions.iter().zip(&queried) {
            let Some(filter) = region.filter() else { continue };
            gathered.clear();
            gathered.try_append(queried.iter().map(|&i| hashes[i as usize]))?;
            answers.clear();
            answers.try_resize(queried.len(), false)?;
            filter.contains(&gathered, &mut answers);
            for (&i, &answer) in queried.iter().zip(&answers) {
                out[i as usize] = answer;
            }
        }
        Ok(())
    }

    /// Opens the filter in a frame.
    pub fn from_frame(
        head: &Head,
        sections: &[Section<'_>],
        opening: &Opening<'_>,
    ) -> Result<Learned> {
        let damaged = |what: &str| Error::Format(format!("the learned filter is damaged: {what}"));
        let (&[regions, front], rest) = head
            .parameters
            .split_first_chunk()
            .ok_or_else(|| damaged("it has too few parameters"))?;
        let count = usize::try_from(regions).unwrap_or(usize::MAX);
        if !(1..=MAX_REGIONS).contains(&count) || front > 1 || rest.len() != 3 * count - 1 {
            return Err(damaged("its parameters do not match its regions"));
        }
        let (borders, rest) = rest.split_at(count - 1);
        let (shares, states) = rest.split_at(count);
        if borders.iter().any(|&border| border > u64::from(u32::MAX)) {
            return Err(damaged("a border is not a score"));
        }
        let mut sections = sections.iter();
        let mut next = |may_be: fn(&Kind) -> bool| {
            let section = sections.next().ok_or_else(|| damaged("a part is missing"))?;
            opening.nested(section, may_be)?.ok_or_else(|| damaged("a part is not a filter"))
        };
        let model = Some(next(|kind| kind.number == model::KIND.number)?);
        let front = if front == 1 { Some(next(is_plain)?) } else { None };
        let region = |(&state, &share): (&u64, &u64)| {
            let region = match state {
                0 => Region::None,
                1 => Region::All,
                2 => Region::Filter(next(is_plain)?),
                _ => return Err(damaged("the answer of a region is unknown")),
            };
            Ok((region, f64::from_bits(share)))
        };
        let regions = states.iter().zip(shares).map(region).collect::<Result<Vec<_>>>()?;
        if sections.next().is_some() {
            return Err(damaged("it has more parts than it says"));
        }
        let borders = borders.iter().map(|&border| f32::from_bits(border as u32)).collect();
        Learned { model, front, borders, regions, count: head.count }
            .checked()
            .map_err(|error| error.in_frame(damaged))
    }

    fn filters(&self) -> impl Iterator<Item = &Arc<dyn Kernel>> {
        self.front.iter().chain(self.regions.iter().filter_map(|(region, _)| region.filter()))
    }
}

/// Without scores every key may be present; see [`Learned::contains_scored`].
impl Kernel for Learned {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn contains(&self, _hashes: &[Hash128], out: &mut [bool]) {
        out.fill(true);
    }

    fn count(&self) -> u64 {
        self.count
    }

    /// The filters, the classifier, and a border and a share per region.
    fn size_in_bits(&self) -> u64 {
        let parts = self.model.iter().chain(self.filters()).map(|part| part.size_in_bits());
        parts.sum::<u64>() + 96 * self.regions.len() as u64
    }

    fn rate(&self) -> f64 {
        let front = self.front.as_ref().map_or(1.0, |front| front.rate());
        front * self.regions.iter().map(|(region, share)| share * region.rate()).sum::<f64>()
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        let copied = |part: &Option<Arc<dyn Kernel>>| part.as_ref().map(|p| p.copy()).transpose();
        let region = |(region, share): &(Region, f64)| {
            Ok(match region.filter() {
                Some(filter) => (Region::Filter(filter.copy()?), *share),
                None => (region.clone(), *share),
            })
        };
        Ok(Arc::new(Learned {
            model: copied(&self.model)?,
            front: copied(&self.front)?,
            borders: self.borders.clone(),
            regions: self.regions.iter().map(region).collect::<Result<_>>()?,
            count: self.count,
        }))
    }

    fn content(&self) -> Result<Content<'_>> {
        let state = |region: &Region| match region {
            Region::None => 0,
            Region::All => 1,
            Region::Filter(_) => 2,
        };
        let mut parameters = vec![self.regions.len() as u64, self.front.is_some().into()];
        parameters.extend(self.borders.iter().map(|border| u64::from(border.to_bits())));
        parameters.extend(self.regions.iter().map(|(_, share)| share.to_bits()));
        parameters.extend(self.regions.iter().map(|(region, _)| state(region)));
        let parts = self.model.iter().chain(self.filters());
        let sections = memory::collected_ok(parts.map(|part| kernel::nested(&**part)))?;
        Ok(Content { parameters, count: self.count, capacity: None, sections, lock: None })
    }
}
