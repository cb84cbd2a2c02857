//! The pages of Parquet column chunks, which may be forged: what they claim is checked before
//! anyone allocates memory for it.
//!
//! A page begins with a header, a Thrift struct in the compact protocol, which says how many bytes
//! and values follow. Values in delta encodings come in blocks, whose header counts them once more:
//! a few bytes can claim billions. DELTA_BYTE_ARRAY stores text as the length of the prefix that it
//! shares with the value before, so a page can stand for far more text than it has bytes.

/// Structs in a struct; a page header has three.
const DEEPEST: u32 = 8;
/// Parts of a delta block, each with a width of its own; writers use 4.
const MAX_PARTS: u64 = 1 << 16;

// Encodings of data pages that count their own values.
const DELTA_BINARY_PACKED: i64 = 5;
const DELTA_LENGTH_BYTE_ARRAY: i64 = 6;
const DELTA_BYTE_ARRAY: i64 = 7;

type Result<T> = std::result::Result<T, String>;

/// How many bytes a page may claim.
#[derive(Clone, Copy)]
pub struct Bound {
    /// What any page may claim.
    pub large: u64,
    /// How many times its compressed size a larger page may claim.
    pub ratio: u64,
}

impl Bound {
    fn of(self, bytes: usize) -> u64 {
        self.large.max(self.ratio.saturating_mul(bytes as u64))
    }
}

/// A page whose content has to be looked at: a dictionary, or values in a delta encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Where its content begins in the chunk.
    pub start: usize,
    /// The bytes of its content in the chunk.
    pub compressed: usize,
    /// The bytes of its content once it is decompressed.
    pub uncompressed: usize,
    /// The number of its values, nulls included.
    pub values: u64,
    /// The encoding of a data page; none for a dictionary.
    pub encoding: Option<i64>,
    /// The bytes of levels before the values, which are never compressed; none if they are part of
    /// the compressed content (version 1).
    pub levels: Option<usize>,
    /// Whether the values are compressed, if the chunk is.
    pub is_compressed: bool,
}

/// The fields of a page header that matter.
#[derive(Default)]
struct Header {
    uncompressed: Option<i64>,
    compressed: Option<i64>,
    dictionary: Option<i64>,
    values: Option<i64>,
    encoding: Option<i64>,
    definition: i64,
    repetition: i64,
    second_version: bool,
    plain: bool,
}

/// Checks the headers of a chunk of `length` bytes; `content` may be longer, as readers read some
/// bytes past it. Returns the pages whose content has to be looked at.
pub fn check(content: &[u8], length: usize, bound: Bound) -> Result<Vec<Page>> {
    let mut pages = Vec::new();
    let mut at = 0;
    while at < content.len() {
        let mut reader = Reader { bytes: content, at };
        let found = Header::read(&mut reader)
            .and_then(|header| Some((header.uncompressed?, header.compressed?, header)));
        let Some((claimed, compressed, header)) = found else {
            match at < length {
                true => return Err(format!("the page header at byte {at} is damaged")),
                false => return Ok(pages), // what follows a chunk may be anything
            }
        };
        let size = usize::try_from(compressed);
        let bytes = match (size, u64::try_from(claimed)) {
            (Ok(size), Ok(claimed)) if claimed <= bound.of(size) => size,
            _ => {
                return Err(format!(
                    "a page of {compressed} bytes claims to have {claimed} uncompressed"
                ));
            }
        };
        if let Some(values) = header.dictionary
            && !(0..=claimed).contains(&values)
        {
            return Err(format!("a dictionary of {claimed} bytes claims to have {values} values"));
        }
        let start = reader.at;
        pages.extend(header.page(start, bytes, claimed as usize)?);
        at = start.saturating_add(bytes);
    }
    Ok(pages)
}

impl Header {
    fn read(reader: &mut Reader<'_>) -> Option<Header> {
        let mut header = Header::default();
        reader.integers(0, 0, &mut |path, value| match path {
            (0, 2) => header.uncompressed = Some(value),
            (0, 3) => header.compressed = Some(value),
            (7, 1) => header.dictionary = Some(value),
            (5 | 8, 1) => header.values = Some(value),
            (5, 2) | (8, 4) => {
                header.encoding = Some(value);
                header.second_version = path.0 == 8;
            }
            (8, 5) => header.definition = value,
            (8, 6) => header.repetition = value,
            // Compact Thrift has the value of a bool in its type.
            (8, 7) => header.plain = value == 0,
            _ => (),
        })?;
        Some(header)
    }

    /// The page, if its content has to be looked at.
    fn page(&self, start: usize, compressed: usize, uncompressed: usize) -> Result<Option<Page>> {
        let delta = [DELTA_BINARY_PACKED, DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY];
        let encoding = self.encoding.filter(|encoding| delta.contains(encoding));
        let Some(values) = self.dictionary.or(encoding.and(self.values)) else { return Ok(None) };
        let levels = self.definition.saturating_add(self.repetition);
        let levels = usize::try_from(levels).ok().filter(|&levels| levels <= uncompressed);
        let (Ok(values), Some(levels)) = (u64::try_from(values), levels) else {
            return Err(format!("a page of {uncompressed} bytes claims to have {values} values"));
        };
        Ok(Some(Page {
            start,
            compressed,
            uncompressed,
            values,
            encoding,
            levels: self.second_version.then_some(levels),
            is_compressed: !(self.second_version && self.plain),
        }))
    }
}

/// Checks the values of a data page in a delta encoding, after its levels.
pub fn check_delta(bytes: &[u8], encoding: i64, values: u64, bound: Bound) -> Result<()> {
    let mut reader = Reader { bytes, at: 0 };
    let damaged = || "a block of deltas is damaged".to_string();
    let counted = |blocks: &Blocks| match blocks.total <= values && blocks.parts <= MAX_PARTS {
        true => Ok(()),
        false => Err(format!(
            "a page of {values} values claims to have {} deltas in blocks of {} parts",
            blocks.total, blocks.parts
        )),
    };
    let blocks = Blocks::read(&mut reader).ok_or_else(damaged)?;
    counted(&blocks)?;
    if encoding == DELTA_BYTE_ARRAY {
        let most = bound.of(bytes.len());
        if blocks.sum(&mut reader, most).ok_or_else(damaged)? > most {
            return Err(format!(
                "a page of {} bytes claims to have over {most} bytes of repeated prefixes",
                bytes.len()
            ));
        }
        counted(&Blocks::read(&mut reader).ok_or_else(damaged)?)?;
    }
    Ok(())
}

/// The length of the longest value in a dictionary of text; none if it is damaged.
pub fn longest_value(dictionary: &[u8], values: u64) -> Option<usize> {
    let (mut at, mut longest) = (0_usize, 0);
    for _ in 0..values {
        let bytes = dictionary.get(at..at.checked_add(4)?)?;
        let length = u32::from_le_bytes(bytes.try_into().ok()?) as usize;
        at = (at + 4).checked_add(length)?;
        longest = longest.max(length);
    }
    (at <= dictionary.len()).then_some(longest)
}

/// Where the values of a page of version 1 begin, after its `levels` kinds of levels, each of which
/// begins with its length.
pub fn skip_levels(page: &[u8], levels: usize) -> Option<usize> {
    (0..levels).try_fold(0_usize, |at, _| {
        let bytes = page.get(at..at.checked_add(4)?)?;
        let length = u32::from_le_bytes(bytes.try_into().ok()?) as usize;
        (at + 4).checked_add(length).filter(|&end| end <= page.len())
    })
}

/// The header of a sequence of blocks of deltas.
struct Blocks {
    per_block: u64,
    parts: u64,
    total: u64,
    first: i64,
}

impl Blocks {
    fn read(reader: &mut Reader<'_>) -> Option<Blocks> {
        let (per_block, parts) = (reader.varint()?, reader.varint()?);
        let (total, first) = (reader.varint()?, reader.integer()?);
        (parts > 0 && per_block % parts == 0 && per_block / parts % 8 == 0).then_some(Blocks {
            per_block,
            parts,
            total,
            first,
        })
    }

    /// The sum of all values, which are lengths; or of the first of them, if it exceeds `most`.
    fn sum(&self, reader: &mut Reader<'_>, most: u64) -> Option<u64> {
        if self.total == 0 {
            return Some(0);
        }
        let per_part = self.per_block / self.parts;
        let mut value = self.first as i32;
        let mut sum = u64::try_from(value).ok()?;
        let mut left = self.total - 1;
        while left > 0 {
            let smallest = reader.integer()? as i32;
            let widths = reader.take(self.parts as usize)?;
            for &width in widths {
                if left == 0 {
                    break;
                }
                let count = left.min(per_part);
                let size = per_part.checked_mul(u64::from(width))? / 8;
                let packed = reader.take(usize::try_from(size).ok()?)?;
                if width > 32 {
                    return None;
                }
                if width == 0 && smallest == 0 {
                    // A few bytes hold billions of equal lengths.
                    sum = sum.checked_add(u64::try_from(value).ok()?.checked_mul(count)?)?;
                    left -= count;
                    continue;
                }
                for i in 0..count {
                    if sum > most {
                        return Some(sum);
                    }
                    let delta = unpack(packed, i as usize * usize::from(width), width);
                    value = value.wrapping_add(smallest).wrapping_add(delta as i32);
                    sum = sum.checked_add(u64::try_from(value).ok()?)?;
                }
                left -= count;
            }
        }
        Some(sum)
    }
}

/// The bits of a packed number, the lowest first.
fn unpack(packed: &[u8], bit: usize, width: u8) -> u32 {
    let mut word = [0; 8];
    let bytes = &packed[(bit / 8).min(packed.len())..];
    let length = bytes.len().min(8);
    word[..length].copy_from_slice(&bytes[..length]);
    let shifted = u64::from_le_bytes(word) >> (bit % 8);
    (shifted & ((1 << width) - 1)) as u32
}

/// Reads numbers; `None` at the end of the bytes.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(length)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 127) << shift;
            if byte & 128 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn integer(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Calls `found` with the integers and bools of a struct by their field, and the field that the
    /// struct itself is `within`, 0 for the outermost.
    fn integers(
        &mut self,
        within: i64,
        depth: u32,
        found: &mut impl FnMut((i64, i64), i64),
    ) -> Option<()> {
        let mut field = 0_i64;
        loop {
            let head = self.byte()?;
            let (delta, kind) = (i64::from(head >> 4), head & 15);
            if kind == 0 {
                return Some(());
            }
            field = if delta > 0 { field.checked_add(delta)? } else { self.integer()? };
            match kind {
                1 | 2 => found((within, field), i64::from(kind == 1)),
                3 => drop(self.byte()?),
                4..=6 => found((within, field), self.integer()?),
                7 => drop(self.take(8)?),
                8 => {
                    let length = usize::try_from(self.varint()?).ok()?;
                    self.take(length)?;
                }
                12 if depth < DEEPEST => {
                    // Deeper ones are of no interest: their fields are under no known one.
                    let path = if depth == 0 { field } else { -1 };
                    self.integers(path, depth + 1, found)?;
                }
                _ => return None, // page headers have no lists
            }
        }
    }
}
