//! The bytes of text or binary items in an Arrow array, located by offsets or a view; for each item
//! that is read, they are checked to be inside the array's buffers.

use super::keys::NotAKey;
use arrow_array::cast::AsArray;
use arrow_array::types::{ByteArrayType, ByteViewType};
use arrow_array::{Array, GenericByteArray, GenericByteViewArray};
use arrow_buffer::ArrowNativeType;
use arrow_data::{ByteView, MAX_INLINE_VIEW_LEN};
use arrow_schema::DataType;

/// An array of text or binary.
pub trait Items {
    /// The bytes of an item, or `None` if they do not lie in the array's buffers.
    fn item(&self, at: usize) -> Option<&[u8]>;
    /// A description of where an item is, for errors.
    fn place(&self, at: usize) -> String;

    /// The error for an item without bytes.
    #[cold]
    fn damaged(&self, at: usize) -> NotAKey {
        NotAKey::Damaged(self.place(at))
    }
}

impl<T: ByteArrayType> Items for GenericByteArray<T> {
    #[inline(always)]
    fn item(&self, at: usize) -> Option<&[u8]> {
        // An offset below zero becomes one past the end of any buffer.
        let offsets = self.value_offsets();
        self.value_data().get(offsets[at].as_usize()..offsets[at + 1].as_usize())
    }

    fn place(&self, at: usize) -> String {
        let (offsets, size) = (self.value_offsets(), self.value_data().len());
        let (from, to) = (offsets[at], offsets[at + 1]);
        format!("at offsets {from:?} to {to:?} of an Arrow buffer of {size} bytes")
    }
}

impl<T: ByteViewType + ?Sized> Items for GenericByteViewArray<T> {
    #[inline(always)]
    fn item(&self, at: usize) -> Option<&[u8]> {
        let place = &self.views()[at];
        let view = ByteView::from(*place);
        if view.length <= MAX_INLINE_VIEW_LEN {
            // SAFETY: the 16 bytes of the view as they lie in memory: length first, then the text.
            let bytes: &[u8; 16] = unsafe { &*(&raw const *place).cast() };
            return bytes[4..].get(..view.length as usize);
        }
        let start = view.offset as usize;
        let buffer = self.data_buffers().get(view.buffer_index as usize)?;
        buffer.get(start..start + view.length as usize)
    }

    fn place(&self, at: usize) -> String {
        let ByteView { length, buffer_index, offset, .. } = ByteView::from(self.views()[at]);
        match self.data_buffers().get(buffer_index as usize).map(|buffer| buffer.len()) {
            Some(size) => {
                format!("{length} bytes at offset {offset} of an Arrow buffer of {size} bytes")
            }
            None => format!("in Arrow buffer {buffer_index}, which its array does not have"),
        }
    }
}

/// Checks all items of an array at once, for a caller that must not fail half-way.
pub fn check(array: &dyn Array) -> Result<(), (usize, NotAKey)> {
    fn each(array: &impl Items, length: usize) -> Result<(), (usize, NotAKey)> {
        let damaged = (0..length).find(|&at| array.item(at).is_none());
        damaged.map_or(Ok(()), |at| Err((at, array.damaged(at))))
    }
    use DataType::*;
    match array.data_type() {
        Utf8 => each(array.as_string::<i32>(), array.len()),
        LargeUtf8 => each(array.as_string::<i64>(), array.len()),
        Utf8View => each(array.as_string_view(), array.len()),
        Binary => each(array.as_binary::<i32>(), array.len()),
        LargeBinary => each(array.as_binary::<i64>(), array.len()),
        BinaryView => each(array.as_binary_view(), array.len()),
        _ => Ok(()),
    }
}
