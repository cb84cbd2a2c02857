//! Storage for the selectors of all blocks: of fixed size per block, or growing with its code.

use super::code::{self, Code, PADDING, SELECTORS, Selectors};
use super::groups;
use super::stream::Mode;
use crate::bits::{Buffer, prefetch};
use crate::error::{Error, Result};
use crate::memory::{self, TryGrow};
use crate::processor::Processor;

/// How selectors are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A code of 56 bits per block; selectors that do not fit are reset.
    Block,
    /// A code of variable length per block, in groups; nothing is reset.
    Growing,
    /// A byte per selector, uncoded.
    Plain,
}

/// Bytes of a code of 56 bits.
const BLOCK: usize = 7;
/// Blocks that share a piece of memory for their codes, which moves when one gets longer: 64 codes
/// are half a kilobyte, which moves quickly, and the overhead of a piece is shared by 4,096 slots.
const SHARING: usize = 64;

/// The selectors of a filter by block.
pub struct Store {
    mode: Mode,
    memory: Memory,
}

enum Memory {
    /// A fixed number of bytes per block, and padding.
    Fixed {
        layout: Layout,
        bytes: Buffer,
    },
    Shared(Vec<Piece>),
}

/// The codes of up to [`SHARING`] blocks, one after the other.
#[repr(C)]
struct Piece {
    /// The codes, and padding.
    bytes: Vec<u8>,
    /// Where each block's code ends.
    ends: [u16; SHARING],
}

impl Piece {
    fn new() -> Piece {
        Piece { bytes: Vec::new(), ends: [0; SHARING] }
    }

    #[inline(always)]
    fn start(&self, index: usize) -> usize {
        if index == 0 { 0 } else { usize::from(self.ends[index - 1]) }
    }

    /// The code of a block and the bytes behind it; empty if all selectors are 0.
    #[inline(always)]
    fn code(&self, index: usize) -> &[u8] {
        let start = self.start(index);
        if start == usize::from(self.ends[index]) { &[] } else { &self.bytes[start..] }
    }

    fn set(&mut self, index: usize, code: &[u8]) {
        let (start, end) = (self.start(index), usize::from(self.ends[index]));
        let longer = code.len().saturating_sub(end - start);
        if self.bytes.is_empty() && !code.is_empty() {
            self.bytes = vec![0; PADDING];
        }
        self.bytes.reserve_exact(longer);
        self.bytes.splice(start..end, code.iter().copied());
        for later in &mut self.ends[index..] {
            // At most 64 codes of 450 bytes.
            *later = (usize::from(*later) + code.len() - (end - start)) as u16;
        }
    }
}

impl Store {
    /// Selectors of 0 for this many blocks.
    pub fn new(layout: Layout, mode: Mode, blocks: usize) -> Result<Store> {
        let memory = match layout {
            Layout::Growing => Memory::Shared(Vec::new()),
            fixed => Memory::Fixed { layout: fixed, bytes: Buffer::zeroed(PADDING)? },
        };
        let mut store = Store { mode, memory };
        store.reserve(blocks)?;
        Ok(store)
    }

    /// How the selectors are stored.
    pub fn layout(&self) -> Layout {
        match &self.memory {
            Memory::Fixed { layout, .. } => *layout,
            Memory::Shared(_) => Layout::Growing,
        }
    }

    /// The meaning of the selectors.
    #[inline(always)]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    fn extending(&self) -> bool {
        self.mode == Mode::Extending
    }

    /// The memory in bytes.
    pub fn size_in_bytes(&self) -> usize {
        match &self.memory {
            Memory::Fixed { bytes, .. } => bytes.len(),
            Memory::Shared(pieces) => {
                let codes: usize = pieces.iter().map(|piece| piece.bytes.capacity()).sum();
                codes + std::mem::size_of_val(&pieces[..])
            }
        }
    }

    /// Ensures that this many blocks have selectors.
    pub fn reserve(&mut self, blocks: usize) -> Result<()> {
        match &mut self.memory {
            Memory::Fixed { layout, bytes } => {
                let needed = blocks.saturating_mul(width(*layout)).saturating_add(PADDING);
                if needed > bytes.len() {
                    *bytes = bytes.extended(needed)?;
                }
            }
            Memory::Shared(pieces) => {
                let more = blocks.div_ceil(SHARING).saturating_sub(pieces.len());
                pieces.try_reserve_exact(more).map_err(|_| {
                    Error::Memory(format!("cannot allocate the selectors of {blocks} blocks"))
                })?;
                pieces.resize_with(pieces.len() + more, Piece::new);
            }
        }
        Ok(())
    }

    /// Prefetches the first bytes that a query of a block reads.
    #[inline(always)]
    pub fn prefetch(&self, block: u64) {
        match &self.memory {
            Memory::Fixed { layout, bytes } => {
                let at = block as usize * width(*layout);
                prefetch(bytes.as_slice().as_ptr().wrapping_add(at));
            }
            Memory::Shared(pieces) => {
                let piece = pieces.as_ptr().wrapping_add(block as usize / SHARING).cast::<u8>();
                prefetch(piece);
                let end = std::mem::offset_of!(Piece, ends) + 2 * (block as usize % SHARING);
                prefetch(piece.wrapping_add(end));
            }
        }
    }

    /// Prefetches the code of a block, after [`Store::prefetch`] has loaded its position.
    #[inline(always)]
    pub fn prefetch_code(&self, block: u64) {
        if let Memory::Shared(pieces) = &self.memory
            && let Some(piece) = pieces.get(block as usize / SHARING)
        {
            let start = piece.start(block as usize % SHARING);
            prefetch(piece.bytes.as_ptr().wrapping_add(start));
        }
    }

    /// The code of a block and the bytes behind it; empty if all selectors are 0.
    #[inline(always)]
    fn code(&self, block: u64) -> &[u8] {
        match &self.memory {
            Memory::Fixed { layout, bytes } => {
                let width = width(*layout);
                let start = block as usize * width;
                let code = bytes.as_slice().get(start..).unwrap_or_default();
                // If the size in its first 7 bits is 0, nothing has moved.
                let clear = |first: &u8| *layout == Layout::Block && first & 127 == 0;
                if code.first().is_none_or(clear) { &[] } else { code }
            }
            Memory::Shared(pieces) => {
                let piece = pieces.get(block as usize / SHARING);
                piece.map_or(&[], |piece| piece.code(block as usize % SHARING))
            }
        }
    }

    /// Whether no slot of a block has moved. A quick check: `false` may be wrong.
    #[inline(always)]
    pub fn is_clear(&self, block: u64) -> bool {
        self.code(block).is_empty()
    }

    /// The slots of a block that have moved, as bits, if the code shows them quickly.
    #[inline(always)]
    pub fn moved_on<P: Processor>(&self, p: P, block: u64) -> Option<u64> {
        match (&self.memory, self.code(block)) {
            (Memory::Fixed { .. }, _) => None,
            (Memory::Shared(_), []) => Some(0),
            (Memory::Shared(_), code) => Some(groups::moved(p, code)),
        }
    }

    /// The selector of a slot.
    #[inline(always)]
    pub fn selector(&self, slot: u64) -> u64 {
        let (block, index) = (slot / SELECTORS as u64, slot as usize % SELECTORS);
        let code = self.code(block);
        if code.is_empty() {
            return 0;
        }
        match (self.layout(), self.mode) {
            (Layout::Plain, _) => u64::from(code[index]),
            (Layout::Growing, Mode::Telescoping) => groups::steps_of(code, index),
            (Layout::Growing, Mode::Extending) if groups::steps_of(code, index) == 0 => 0,
            (Layout::Block, Mode::Telescoping) => code::steps_of(code, index),
            (_, Mode::Extending) => self.selectors(block)[index],
        }
    }

    /// The selectors of a block.
    pub fn selectors(&self, block: u64) -> Selectors {
        let code = self.code(block);
        if code.is_empty() {
            return [0; SELECTORS];
        }
        match self.layout() {
            Layout::Plain => std::array::from_fn(|index| u64::from(code[index])),
            Layout::Growing => groups::decode(code, self.extending()),
            // Encoded here, or checked when the file was opened.
            Layout::Block => code::decode(code, self.extending())
                .map_or([0; SELECTORS], |(selectors, _)| selectors),
        }
    }

    /// The code of selectors, or `None` if it is too long for a block.
    pub fn coded(&self, selectors: &Selectors) -> Option<Code> {
        match self.layout() {
            Layout::Plain => Some(Code::plain(selectors)),
            Layout::Growing => Some(groups::encode(selectors, self.extending())),
            Layout::Block => Some(Code::of(selectors, self.extending()))
                .filter(|code| code.bytes().len() <= BLOCK),
        }
    }

    /// Writes the code of a block's selectors.
    pub fn set(&mut self, block: u64, code: &Code) {
        match &mut self.memory {
            Memory::Fixed { layout, bytes } => {
                let width = width(*layout);
                let place = &mut bytes.as_mut_slice()[block as usize * width..][..width];
                place.fill(0);
                place[..code.bytes().len()].copy_from_slice(code.bytes());
            }
            Memory::Shared(pieces) => {
                pieces[block as usize / SHARING].set(block as usize % SHARING, code.bytes());
            }
        }
    }

    /// The selectors of the first blocks in the form of a frame: fixed codes unchanged; others in
    /// the shortest code: the length of each in two bytes, then the codes.
    pub fn to_bytes(&self, blocks: usize) -> Result<Vec<u8>> {
        match &self.memory {
            Memory::Fixed { layout, bytes } => {
                memory::copied(&bytes.as_slice()[..blocks * width(*layout)])
            }
            Memory::Shared(_) => {
                let (mut lengths, mut codes) = (memory::with_capacity(2 * blocks)?, Vec::new());
                for block in 0..blocks as u64 {
                    let code = Code::of(&self.selectors(block), self.extending());
                    lengths.extend_from_slice(&(code.bytes().len() as u16).to_le_bytes());
                    codes.try_extend(code.bytes())?;
                }
                lengths.try_extend(&codes)?;
                Ok(lengths)
            }
        }
    }

    /// Reads the bytes that [`Store::to_bytes`] wrote.
    pub fn from_bytes(layout: Layout, mode: Mode, blocks: usize, bytes: &[u8]) -> Result<Store> {
        let damaged =
            || Error::Format("the filter is damaged: its selectors cannot be decoded".into());
        let each = if layout == Layout::Growing { 2 } else { width(layout) };
        let heads = blocks.checked_mul(each).filter(|heads| *heads <= bytes.len());
        let (heads, mut rest) = bytes.split_at(heads.ok_or_else(damaged)?);
        let mut store = Store::new(layout, mode, blocks)?;
        let mut padded = Vec::new();
        for (block, head) in heads.chunks_exact(each).enumerate() {
            let code = match *head {
                [low, high] if layout == Layout::Growing => {
                    let length = usize::from(u16::from_le_bytes([low, high]));
                    let (code, later) = rest.split_at_checked(length).ok_or_else(damaged)?;
                    rest = later;
                    code
                }
                _ => head,
            };
            if layout != Layout::Plain && code.iter().any(|byte| *byte != 0) {
                padded.clear();
                padded.extend_from_slice(code);
                padded.extend_from_slice(&[0; PADDING]);
                let extending = mode == Mode::Extending;
                let (selectors, _) = code::decode(&padded, extending).ok_or_else(damaged)?;
                let again = Code::of(&selectors, extending);
                let zeros = code.len() - again.bytes().len().min(code.len());
                if !code.starts_with(again.bytes()) || zeros > 0 && layout == Layout::Growing {
                    return Err(damaged());
                }
                if code[again.bytes().len()..].iter().any(|byte| *byte != 0) {
                    return Err(damaged());
                }
                store.set(block as u64, &store.coded(&selectors).ok_or_else(damaged)?);
            } else if layout == Layout::Growing && !code.is_empty() {
                return Err(damaged());
            } else if layout == Layout::Plain {
                let selectors = std::array::from_fn(|index| u64::from(code[index]));
                store.set(block as u64, &Code::plain(&selectors));
            }
        }
        if rest.is_empty() { Ok(store) } else { Err(damaged()) }
    }
}

/// Bytes per block of a fixed layout.
#[inline(always)]
fn width(layout: Layout) -> usize {
    if layout == Layout::Plain { SELECTORS } else { BLOCK }
}
