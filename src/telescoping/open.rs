//! Bytes to an adaptive filter.

use super::rate::Shares;
use super::{KIND, Layout, Mode, Shared, Store, Telescoping};
use crate::bits::Buffer;
use crate::error::{Error, Result};
use crate::format::{Head, SECTION_BITS, SECTION_SELECTORS, Section};
use crate::memory;
use crate::quotient::{SLOTS, Table};

impl Shared {
    /// Opens the filter of a frame; `own` turns the bytes of the slots into a buffer.
    pub fn from_frame(
        head: &Head,
        sections: &[Section<'_>],
        own: impl FnOnce(&[u8]) -> Result<Buffer>,
    ) -> Result<Shared> {
        let damaged = |what: &str| Error::Format(format!("the adaptive filter is damaged: {what}"));
        let (&[quotients, bits, layout, capacity, forgotten], [slots, selectors]) =
            (&head.parameters[..], sections)
        else {
            return Err(damaged("it does not have five parameters and two sections"));
        };
        let bits = u32::try_from(bits).map_err(|_| damaged("its remainders are too long"))?;
        let mode = if head.kind == KIND.number { Mode::Telescoping } else { Mode::Extending };
        let layout = match layout {
            0 => Layout::Block,
            1 => Layout::Growing,
            2 if mode == Mode::Telescoping => Layout::Plain,
            _ => return Err(damaged("its selectors have an unknown layout")),
        };
        let kinds = [(slots.kind, slots.piece), (selectors.kind, selectors.piece)];
        if kinds != [(SECTION_BITS, 0), (SECTION_SELECTORS, 0)] || capacity != head.capacity {
            return Err(damaged("its sections do not match its parameters"));
        }
        let buffer = own(slots.bytes)?;
        let mut filter =
            Telescoping::open((quotients, bits), layout, mode, buffer, selectors.bytes)?;
        filter.forgotten = forgotten;
        if filter.table().used_slots() != head.count {
            return Err(damaged("its number of keys does not match its slots"));
        }
        Ok(Shared::with_capacity(filter, capacity))
    }
}

/// The number of blocks in a frame.
pub(super) fn blocks(table: &Table) -> usize {
    table.quotients().div_ceil(SLOTS).max(table.end().div_ceil(SLOTS)) as usize
}

impl Telescoping {
    /// Copies the table out of a mapped file; see [`Table::out_of_mapping`].
    pub(super) fn leave_mapping(&mut self) -> Result<()> {
        if let Some(copy) = self.table.out_of_mapping() {
            let (quotients, bits) = (self.table.quotients(), self.table.remainder_bits());
            let table = Table::from_bytes(quotients, bits, copy?)?;
            if table.used_slots() != self.table.used_slots() {
                let message =
                    "the adaptive filter is damaged: its number of keys does not match its slots";
                return Err(Error::Format(message.into()));
            }
            self.table = table;
        }
        Ok(())
    }

    /// Opens a filter from untrusted bytes of slots and selectors.
    pub(super) fn open(
        (quotients, bits): (u64, u32),
        layout: Layout,
        mode: Mode,
        slots: Buffer,
        selectors: &[u8],
    ) -> Result<Telescoping> {
        let table = Table::from_bytes(quotients, bits, slots)?;
        let store = Store::from_bytes(layout, mode, blocks(&table), selectors)?;
        let shares = Shares::default();
        let mut filter =
            Telescoping { table, store, max_steps: 0, version: 0, forgotten: 0, shares };
        let mut free_from = 0;
        let mut used = memory::filled(blocks(&filter.table), 0u64)?;
        for (_, run) in filter.table.runs(0..quotients) {
            for slot in run.start.max(free_from)..run.end {
                used[(slot / SLOTS) as usize] |= 1 << (slot % SLOTS);
            }
            free_from = run.end;
        }
        for (block, used) in used.iter().enumerate() {
            for (slot, selector) in filter.store.selectors(block as u64).into_iter().enumerate() {
                filter.max_steps = filter.max_steps.max(filter.steps(selector));
                if selector != 0 && used >> slot & 1 == 0 {
                    let message = "the adaptive filter is damaged: a free slot has a selector";
                    return Err(Error::Format(message.into()));
                }
            }
        }
        Ok(filter)
    }
}
