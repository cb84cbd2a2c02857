//! Stable learned Bloom filters: a classifier's score chooses one of several stable filters.
//!
//! Rising borders divide the scores from 0 to 1 into groups (τ_{j−1}, τ_j]. Each group is a
//! [`stable`] filter, or gives one answer to all: "yes" where the classifier is trusted, "no" where
//! next to no member is expected. If a fraction p_j of absent keys has scores in group j, their
//! rate is (Liu et al. 2020, Eq. 10)
//!
//! ```text
//! rate = Σ p_j · rate_j
//! ```
//!
//! Two groups of which the upper one answers "yes" are the paper's s-SLBF, any others its g-SLBF;
//! `planning/stable_learned/groups.py` chooses them. Groups share nothing, so a batch may be inserted group
//! by group, each in the order of the stream, with the same result as key by key.
//!
//! The insertions of each group are counted, to be compared with the plan (q_j), and so are queries
//! and accepted queries: these counts reveal drift. The counts of queries are not saved.

use crate::error::{Error, Result};
use crate::format::{Head, Section};
use crate::hash::Hash128;
use crate::interrupt;
use crate::kernel::{self, Content, Kernel, Kind, Opening};
use crate::memory::{self, TryGrow};
use crate::model;
use crate::stable;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Stable learned filters; they insert by [`StableLearned::pass`], which takes the scores.
pub static KIND: Kind = Kind {
    inserts: true,
    forgets: true,
    ..Kind::new(15, "stable_learned", |head, sections, opening| {
        Ok(Arc::new(StableLearned::from_frame(head, sections, opening)?))
    })
};
/// Maximum number of groups.
pub const MAX_GROUPS: usize = 64;
/// Hashes that are divided by group at a time, few enough for the L1 cache.
const CHUNK: usize = 1 << 10;

/// The group of a score: how many borders it exceeds.
#[inline(always)]
pub fn group_of(score: f32, borders: &[f32]) -> usize {
    borders.iter().map(|&border| usize::from(score > border)).sum()
}

/// A group of scores.
pub struct Group {
    /// The filter; without one, `answer` is the answer to all queries.
    pub filter: Option<Arc<dyn Kernel>>,
    /// The answer without a filter.
    pub answer: bool,
    /// The planned fraction of absent keys (p_j).
    pub nonmembers: f64,
    /// The planned fraction of members (q_j).
    pub members: f64,
    /// Counts since it was created, or since the classifier was replaced.
    pub counts: Counts,
}

/// The counts of a group.
#[derive(Default)]
pub struct Counts {
    /// Insertions.
    pub inserted: AtomicU64,
    /// Queries, since the filter was opened.
    pub queried: AtomicU64,
    /// Queries answered "yes".
    pub accepted: AtomicU64,
}

impl Clone for Counts {
    fn clone(&self) -> Counts {
        let same = |count: &AtomicU64| AtomicU64::new(count.load(Relaxed));
        Counts {
            inserted: same(&self.inserted),
            queried: same(&self.queried),
            accepted: same(&self.accepted),
        }
    }
}

impl Group {
    fn pass(&self, hashes: &[Hash128], insert: bool, answers: &mut [bool]) -> Result<()> {
        match &self.filter {
            Some(filter) if insert => filter.seen(hashes, answers)?,
            Some(filter) => filter.contains(hashes, answers),
            None => {}
        }
        let Counts { inserted, queried, accepted } = &self.counts;
        if insert {
            inserted.fetch_add(hashes.len() as u64, Relaxed);
        } else if !hashes.is_empty() {
            queried.fetch_add(hashes.len() as u64, Relaxed);
            accepted.fetch_add(answers.iter().filter(|&&yes| yes).count() as u64, Relaxed);
        }
        Ok(())
    }
}

/// A classifier, borders, and the groups between them.
pub struct StableLearned {
    /// The classifier, unless it is supplied by the user and not saved.
    pub model: Option<Arc<dyn Kernel>>,
    /// The borders between groups.
    pub borders: Vec<f32>,
    /// The groups, by rising scores.
    pub groups: Vec<Group>,
}

impl StableLearned {
    /// Checks that the parts are consistent.
    pub fn checked(self) -> Result<StableLearned> {
        let wrong = |what: &str| Err(Error::Parameter(format!("a stable learned filter {what}")));
        if self.groups.is_empty() || self.groups.len() > MAX_GROUPS {
            return wrong("has from 1 to 64 groups");
        }
        if self.borders.len() + 1 != self.groups.len() {
            return wrong("has one border less than groups");
        }
        let rising = self.borders.windows(2).all(|pair| pair[0] < pair[1]);
        if !rising || !self.borders.iter().all(|border| border.is_finite()) {
            return wrong("has borders that rise");
        }
        let mut shares = self.groups.iter().flat_map(|group| [group.nonmembers, group.members]);
        if !shares.all(|share| (0.0..=1.0).contains(&share)) {
            return wrong("has shares from 0 to 1");
        }
        let mut filters = self.groups.iter().filter_map(|group| group.filter.as_ref());
        if !filters.all(|filter| filter.kind().number == stable::KIND.number) {
            return wrong("is made of stable filters");
        }
        if self.model.as_ref().is_some_and(|model| model.kind().number != model::KIND.number) {
            return wrong("has a model for a classifier");
        }
        Ok(self)
    }

    /// [`StableLearned::pass`] for one hash.
    pub fn pass_one(&self, hash: Hash128, score: f32, insert: bool) -> Result<bool> {
        let group = &self.groups[group_of(score, &self.borders)];
        let mut answer = [group.answer];
        group.pass(&[hash], insert, &mut answer)?;
        Ok(answer[0])
    }

    /// Whether each hash, given its score, may have occurred before; `insert` adds it.
    pub fn pass(
        &self,
        hashes: &[Hash128],
        scores: &[f32],
        insert: bool,
        out: &mut [bool],
    ) -> Result<()> {
        let mut places: Vec<Vec<usize>> = memory::filled(self.groups.len(), Vec::new())?;
        let (mut gathered, mut answers) = (Vec::new(), Vec::new());
        let parts = hashes.chunks(CHUNK).zip(scores.chunks(CHUNK)).zip(out.chunks_mut(CHUNK));
        for ((hashes, scores), out) in parts {
            interrupt::check();
            places.iter_mut().for_each(Vec::clear);
            for (i, &score) in scores.iter().enumerate() {
                places[group_of(score, &self.borders)].try_push(i)?;
            }
            for (group, places) in self.groups.iter().zip(&places) {
                gathered.clear();
                gathered.try_append(places.iter().map(|&i| hashes[i]))?;
                answers.clear();
                answers.try_resize(places.len(), group.answer)?;
                group.pass(&gathered, insert, &mut answers)?;
                places.iter().zip(&answers).for_each(|(&i, &answer)| out[i] = answer);
            }
        }
        Ok(())
    }

    /// Opens the filter in a frame.
    pub fn from_frame(
        head: &Head,
        sections: &[Section<'_>],
        opening: &Opening<'_>,
    ) -> Result<StableLearned> {
        let damaged =
            |what: &str| Error::Format(format!("the stable learned filter is damaged: {what}"));
        let (&groups, rest) =
            head.parameters.split_first().ok_or_else(|| damaged("it has no parameters"))?;
        let count = usize::try_from(groups).unwrap_or(usize::MAX);
        if !(1..=MAX_GROUPS).contains(&count) || rest.len() != 5 * count - 1 {
            return Err(damaged("its parameters do not match its groups"));
        }
        let (borders, rest) = rest.split_at(count - 1);
        if borders.iter().any(|&border| border > u64::from(u32::MAX)) {
            return Err(damaged("a border is not a score"));
        }
        let mut sections = sections.iter();
        let mut next = |kind: &Kind| {
            let section = sections.next().ok_or_else(|| damaged("a part is missing"))?;
            let opened = opening.nested(section, |found| found.number == kind.number)?;
            opened.ok_or_else(|| damaged("a part is not a filter"))
        };
        let model = Some(next(&model::KIND)?);
        let group = |facts: &[u64]| {
            let filter = match facts[0] {
                0 | 1 => None,
                2 => Some(next(&stable::KIND)?),
                _ => return Err(damaged("the answer of a group is unknown")),
            };
            Ok(Group {
                filter,
                answer: facts[0] > 0,
                nonmembers: f64::from_bits(facts[1]),
                members: f64::from_bits(facts[2]),
                counts: Counts { inserted: AtomicU64::new(facts[3]), ..Counts::default() },
            })
        };
        let groups = rest.chunks_exact(4).map(group).collect::<Result<Vec<_>>>()?;
        if sections.next().is_some() {
            return Err(damaged("it has more parts than it says"));
        }
        let borders = borders.iter().map(|&border| f32::from_bits(border as u32)).collect();
        let found = StableLearned { model, borders, groups }
            .checked()
            .map_err(|error| error.in_frame(damaged))?;
        if found.count() != head.count {
            return Err(damaged("its number of keys does not match its groups"));
        }
        Ok(found)
    }
}

/// Without scores every key may be present; see [`StableLearned::pass`].
impl Kernel for StableLearned {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn contains(&self, _hashes: &[Hash128], out: &mut [bool]) {
        out.fill(true);
    }

    /// Insertions.
    fn count(&self) -> u64 {
        let each = self.groups.iter().map(|group| group.counts.inserted.load(Relaxed));
        each.fold(0, u64::saturating_add)
    }

    fn overfull(&self, _capacity: u64) -> bool {
        false
    }

    /// The counters, the classifier, and per group a border, two shares and a count.
    fn size_in_bits(&self) -> u64 {
        let filters = self.groups.iter().filter_map(|group| group.filter.as_ref());
        let counters: u64 = filters.map(|filter| filter.size_in_bits()).sum();
        let model = self.model.as_ref().map_or(0, |model| model.size_in_bits());
        counters + model + 224 * self.groups.len() as u64
    }

    fn rate(&self) -> f64 {
        let rate = |group: &Group| match &group.filter {
            Some(filter) => filter.rate(),
            None => f64::from(u8::from(group.answer)),
        };
        self.groups.iter().map(|group| group.nonmembers * rate(group)).sum()
    }

    fn copy(&self) -> Result<Arc<dyn Kernel>> {
        let group = |group: &Group| {
            Ok(Group {
                filter: group.filter.as_ref().map(|filter| filter.copy()).transpose()?,
                answer: group.answer,
                nonmembers: group.nonmembers,
                members: group.members,
                counts: group.counts.clone(),
            })
        };
        Ok(Arc::new(StableLearned {
            model: self.model.clone(),
            borders: self.borders.clone(),
            groups: self.groups.iter().map(group).collect::<Result<_>>()?,
        }))
    }

    fn content(&self) -> Result<Content<'_>> {
        let mut parameters = vec![self.groups.len() as u64];
        parameters.extend(self.borders.iter().map(|border| u64::from(border.to_bits())));
        let mut count = 0u64;
        for group in &self.groups {
            let state = if group.filter.is_some() { 2 } else { u64::from(group.answer) };
            let inserted = group.counts.inserted.load(Relaxed);
            count = count.saturating_add(inserted);
            let shares = [group.nonmembers.to_bits(), group.members.to_bits()];
            parameters.extend([state, shares[0], shares[1], inserted]);
        }
        let filters = self.groups.iter().filter_map(|group| group.filter.as_ref());
        let parts = self.model.iter().chain(filters);
        let sections = memory::collected_ok(parts.map(|part| kernel::nested(&**part)))?;
        Ok(Content { parameters, count, capacity: None, sections, lock: None })
    }
}
