//! Bit-sliced signatures of documents: one word of memory tests one term in 64 documents.
//!
//! A document is the set of its words. Its signature is a segmented Bloom filter of them: k segments
//! of L bits, where word t sets bit h_j(t) in segment j. A query finds the documents that contain
//! all of its terms. Documents with about as many words share one L (planning/collection/text.py),
//! so a term tests the same bit in all of them. They are grouped in blocks of up to 64, and a block
//! is stored row by row instead of signature by signature:
//!
//! ```text
//!              document 0 1 2 … d−1
//! segment 0   row 0     0 1 1 …  0
//!             …
//!             row L−1   1 0 0 …  0      a query ANDs the rows h_0(t), L + h_1(t), … of its terms t
//! segment 1   row L     0 0 1 …  1      until no document or no row is left
//! ```
//!
//! A block keeps its first rows in memory, as many as the budget allows: prefixes of its signatures,
//! as in a collection (Mersy, Wang, Sintos, Krishnan 2024). Invariant: a row that is not in memory
//! excludes no document, so a block without rows returns all of its documents and no match is lost.
//! The layout is that of bit-sliced signature files (BitFunnel: Goodwin et al. 2017).
//!
//! Documents are ranked by utility; rank 0 is the most useful. Blocks are searched in order of their
//! best rank, and the search ends when enough documents are found and all later blocks rank lower.

use crate::bits::{prefetch, reduce};
use crate::collection::{Filter, Kind};
use crate::error::{Error, Result};
use crate::hash::{Hash128, mix13};
use std::collections::BinaryHeap;

/// The kind number of a text index in a frame.
pub const KIND: u16 = 18;
/// Section type: bytes of each document, 4 bytes each.
pub const SECTION_LENGTHS: u32 = 20;
/// Section type: stop words, one per line.
pub const SECTION_STOPS: u32 = 21;
/// The error message if a text index is opened as something else.
pub const OPENS_IT: &str = "this is a text index: open it with tamis.text.SearchIndex.open";

/// Documents per block: the bits of a word.
pub const BLOCK: usize = 64;
/// Padding bytes after the last row, so that a word can be read at any bit.
const PAD: usize = 16;
/// How many blocks ahead to prefetch.
const AHEAD: usize = 8;
/// How many segments to prefetch: most blocks end after six rows, which leave one document of 64.
const SEGMENTS_AHEAD: usize = 3;

/// The words of a text: runs of characters that continue a Unicode identifier (letters, marks,
/// digits), except connectors such as the underscore.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    // NFKC normalization removes the other connectors.
    let joins = |c: char| matches!(c, '_' | '\u{203F}' | '\u{2040}' | '\u{2054}');
    text.split(move |c: char| joins(c) || !unicode_ident::is_xid_continue(c))
        .filter(|word| !word.is_empty())
}

/// The bits per segment, if a filter is a signature: all segments have the same length.
pub fn segment(filter: &Filter) -> Option<u64> {
    let (bits, hashes) = (filter.size, u64::from(filter.hashes));
    let whole = filter.kind == Kind::Segmented && hashes > 0 && bits % hashes == 0;
    (whole && u32::try_from(bits).is_ok()).then(|| bits / hashes)
}

/// A block of documents; blocks are sorted by their best document.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Position of its first row.
    bit: u64,
    /// Index of its first rank.
    first: u32,
    /// Its best rank.
    best: u32,
    /// Rows in memory.
    rows: u32,
    /// Index of its segment length.
    class: u16,
    /// Documents, and bits per row.
    documents: u8,
}

/// The rows in memory.
pub struct Sliced {
    blocks: Vec<Block>,
    /// Ranks of the documents, block after block.
    ranks: Vec<u32>,
    /// Bits per segment, by class.
    lengths: Vec<u64>,
    rows: Vec<u8>,
    bits: u64,
    hashes: u8,
}

/// The blocks to load.
pub struct Blocks<'a> {
    /// Documents per block.
    pub documents: &'a [u8],
    /// Rows per block to load.
    pub rows: &'a [u32],
    /// The documents, block after block.
    pub ids: &'a [u32],
    /// Their ranks.
    pub ranks: &'a [u32],
}

impl Sliced {
    /// Loads prefixes of signatures and transposes them into rows: `read(document, bytes)` fills in
    /// the first bytes of a signature.
    pub fn load(
        blocks: &Blocks<'_>,
        filters: &[&Filter],
        mut read: impl FnMut(u32, &mut [u8]) -> Result<()>,
    ) -> Result<Sliced> {
        let wrong = |what: &str| Error::Parameter(format!("blocks: {what}"));
        let Blocks { documents, rows, ids, ranks } = *blocks;
        let total: usize = documents.iter().map(|&each| usize::from(each)).sum();
        if documents.len() != rows.len() || total != ids.len() || total != ranks.len() {
            return Err(wrong("documents, rows, ids and ranks differ in length"));
        }
        let mut sliced = Sliced {
            blocks: Vec::with_capacity(documents.len()),
            ranks: ranks.into(),
            lengths: Vec::new(),
            rows: Vec::new(),
            bits: documents.iter().zip(rows).map(|(&d, &r)| u64::from(d) * u64::from(r)).sum(),
            hashes: 0,
        };
        sliced.allocate()?;
        let (mut first, mut bit, mut signature) = (0, 0, Vec::new());
        for (&documents, &rows) in documents.iter().zip(rows) {
            let own = &ids[first..first + usize::from(documents)];
            let (length, hashes) = shared_shape(own, filters).map_err(wrong)?;
            if u64::from(rows) > length * u64::from(hashes) || usize::from(documents) > BLOCK {
                return Err(wrong("a block has too many rows or documents"));
            }
            sliced.hashes = sliced.hashes.max(hashes);
            let class = sliced.class(length)?;
            let best = ranks[first..first + own.len()].iter().copied().min().unwrap_or(0);
            let start = first as u32;
            sliced.blocks.push(Block { bit, first: start, best, rows, class, documents });
            for (column, &id) in (bit..).zip(own) {
                signature.clear();
                signature.resize((rows as usize).div_ceil(8), 0);
                if rows > 0 {
                    read(id, &mut signature)?;
                }
                sliced.set_column(column, documents, rows, &signature);
            }
            first += own.len();
            bit += u64::from(documents) * u64::from(rows);
        }
        if !sliced.blocks.is_sorted_by_key(|block| block.best) {
            return Err(wrong("they are not sorted by their best documents"));
        }
        Ok(sliced)
    }

    fn allocate(&mut self) -> Result<()> {
        let bytes = usize::try_from(self.bits.div_ceil(8)).unwrap_or(usize::MAX);
        let refused = |_| Error::Memory(format!("cannot allocate {bytes} bytes for signatures"));
        self.rows.try_reserve_exact(bytes.saturating_add(PAD)).map_err(refused)?;
        self.rows.resize(bytes + PAD, 0);
        Ok(())
    }

    fn class(&mut self, length: u64) -> Result<u16> {
        let known = self.lengths.iter().position(|&each| each == length);
        let class = known.unwrap_or_else(|| {
            self.lengths.push(length);
            self.lengths.len() - 1
        });
        let many = |_| Error::Parameter("blocks: there are over 2**16 segment lengths".into());
        u16::try_from(class).map_err(many)
    }

    /// Sets the bits of a signature in one column; `column` is its bit in row 0.
    fn set_column(&mut self, column: u64, documents: u8, rows: u32, signature: &[u8]) {
        for (i, &byte) in signature.iter().enumerate() {
            let mut left = byte;
            while left != 0 {
                let row = 8 * i as u64 + u64::from(left.trailing_zeros());
                left &= left - 1;
                if row < u64::from(rows) {
                    let bit = column + row * u64::from(documents);
                    self.rows[(bit / 8) as usize] |= 1 << (bit % 8);
                }
            }
        }
    }

    /// Total bits of the rows.
    pub fn bits(&self) -> u64 {
        self.bits
    }

    /// Memory of blocks and documents apart from their rows.
    pub fn least_bytes(blocks: usize, documents: usize) -> usize {
        PAD + size_of::<Block>() * blocks + size_of::<u32>() * documents
    }

    /// The ranks of the best `limit` documents that may contain all terms, best first.
    pub fn search(&self, terms: &[Hash128], limit: usize) -> Vec<u32> {
        let places = self.places(terms);
        let width = terms.len() * usize::from(self.hashes);
        let mut best = BinaryHeap::new();
        for (i, block) in self.blocks.iter().enumerate() {
            let full = best.len() >= limit;
            if full && best.peek().is_none_or(|&worst| worst < block.best) {
                break;
            }
            if let Some(later) = self.blocks.get(i + AHEAD) {
                self.prefetch_rows(later, &places[usize::from(later.class) * width..], terms.len());
            }
            let own = &places[usize::from(block.class) * width..][..width];
            let mut found = self.matches(block, own, terms.len());
            while found != 0 {
                let rank = self.ranks[block.first as usize + found.trailing_zeros() as usize];
                found &= found - 1;
                best.push(rank);
                if best.len() > limit {
                    best.pop();
                }
            }
        }
        best.into_sorted_vec()
    }

    /// The rows that the terms test: by class, then by segment, then by term.
    fn places(&self, terms: &[Hash128]) -> Vec<u32> {
        let probe = |term: &Hash128, j: u64| mix13(term.hi.wrapping_add(term.lo.wrapping_mul(j)));
        let segments = 0..u64::from(self.hashes);
        let probes: Vec<(u64, u64)> =
            segments.flat_map(|j| terms.iter().map(move |term| (j, probe(term, j)))).collect();
        let rows = self.lengths.iter().flat_map(|&length| {
            probes.iter().map(move |&(j, probe)| (j * length + reduce(probe, length)) as u32)
        });
        rows.collect()
    }

    #[inline(always)]
    fn prefetch_rows(&self, block: &Block, places: &[u32], terms: usize) {
        for &row in places.iter().take(SEGMENTS_AHEAD * terms) {
            if row < block.rows {
                let bit = block.bit + u64::from(row) * u64::from(block.documents);
                prefetch(self.rows.as_ptr().wrapping_add((bit / 8) as usize));
            }
        }
    }

    /// The documents of a block that may contain all terms, as bits.
    #[inline(always)]
    fn matches(&self, block: &Block, places: &[u32], terms: usize) -> u64 {
        let mut found = u64::MAX >> (BLOCK as u32 - u32::from(block.documents));
        let documents = u64::from(block.documents);
        for segment in places.chunks_exact(terms.max(1)) {
            for &row in segment {
                if row < block.rows {
                    found &= self.window(block.bit + u64::from(row) * documents);
                }
            }
            if found == 0 {
                break;
            }
        }
        found
    }

    /// The 64 bits that start at `bit`.
    #[inline(always)]
    fn window(&self, bit: u64) -> u64 {
        let (at, rest) = ((bit / 8) as usize, bit % 8);
        match self.rows.get(at..).and_then(|bytes| bytes.first_chunk::<9>()) {
            Some(&[a, b, c, d, e, f, g, h, i]) => {
                let low = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
                low >> rest | u64::from(i) << 1 << (63 - rest)
            }
            None => u64::MAX,
        }
    }
}

/// The length and number of segments that all documents of a block share.
fn shared_shape(ids: &[u32], filters: &[&Filter]) -> std::result::Result<(u64, u8), &'static str> {
    let shape = |&id: &u32| {
        let filter = filters.get(id as usize)?;
        Some((segment(filter)?, filter.hashes))
    };
    let mut shapes = ids.iter().map(shape);
    let first = shapes.next().ok_or("a block is empty")?.ok_or("a document has no signature")?;
    match shapes.all(|shape| shape == Some(first)) {
        true => Ok(first),
        false => Err("a block has signatures of different lengths"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distinct::{Distinct, Partitions};
    use crate::hash::Hasher;

    fn document(words: std::ops::Range<i64>) -> (Filter, Vec<u8>) {
        let hashes: Vec<Hash128> = words.map(|word| Hasher::seeded(1).signed(word)).collect();
        let mut partitions = Partitions::new(hashes.len(), hashes.len()).unwrap();
        partitions.extend(&hashes);
        let keys = Distinct::new(vec![partitions], 1).unwrap();
        Filter::build(Kind::Segmented, 7, 7 * 30, &[], &keys).unwrap()
    }

    /// Blocks of 64 and of 6: whatever rows are kept, no document is lost, and the best come first.
    #[test]
    fn every_prefix_keeps_every_document() {
        let built: Vec<_> = (0..70).map(|i| document(i..i + 20)).collect();
        let filters: Vec<&Filter> = built.iter().map(|(filter, _)| filter).collect();
        let ids: Vec<u32> = (0..70).collect();
        let ranks: Vec<u32> = (0..70).map(|i| (i * 3) % 70).collect();
        for rows in (0..=210).step_by(5) {
            let blocks =
                Blocks { documents: &[64, 6], rows: &[rows, rows / 2], ids: &ids, ranks: &ranks };
            let sliced = Sliced::load(&blocks, &filters, |id, out| {
                out.copy_from_slice(&built[id as usize].1[..out.len()]);
                Ok(())
            })
            .unwrap();
            for word in 0..80 {
                let terms = [word, word + 3].map(|word| Hasher::seeded(1).signed(word));
                let found = sliced.search(&terms, usize::MAX);
                assert!(found.is_sorted());
                for i in (0..70).filter(|i| *i <= word && word + 3 < i + 20) {
                    assert!(found.contains(&ranks[i as usize]), "{i} is lost at {rows} rows");
                }
                for limit in [0, 1, 3] {
                    assert_eq!(sliced.search(&terms, limit), found[..limit.min(found.len())]);
                }
            }
        }
    }

    #[test]
    fn words_are_those_of_unicode() {
        let all: Vec<&str> = words("naïve Δοκιμή, snake_case: हिन्दी 42nd—don't").collect();
        assert_eq!(all, ["naïve", "Δοκιμή", "snake", "case", "हिन्दी", "42nd", "don", "t"]);
        assert_eq!(words(" \t,. ").count(), 0);
    }
}
