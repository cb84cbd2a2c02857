//! Memory whose size follows the input: it is allocated, or [`Error::Memory`] is returned.
//!
//! Vectors of the standard library end the process if the system has no memory left. So a vector
//! that grows with keys, hashes, filters, names or bytes is made and extended here. Small
//! allocations of a fixed size (messages, parameters, handles) are not.

use crate::error::{Error, Result};

/// The error for memory that the system refused.
#[cold]
pub fn refused(bytes: usize) -> Error {
    Error::Memory(format!("cannot allocate {bytes} bytes"))
}

/// A vector with memory for `count` items.
pub fn with_capacity<T>(count: usize) -> Result<Vec<T>> {
    let mut items = Vec::new();
    items.try_reserve_exact(count).map_err(|_| refused(count.saturating_mul(size_of::<T>())))?;
    Ok(items)
}

/// `count` copies of a value.
pub fn filled<T: Clone>(count: usize, value: T) -> Result<Vec<T>> {
    let mut items = with_capacity(count)?;
    items.resize(count, value);
    Ok(items)
}

/// A copy of the items.
pub fn copied<T: Copy>(of: &[T]) -> Result<Vec<T>> {
    let mut items = with_capacity(of.len())?;
    items.extend_from_slice(of);
    Ok(items)
}

/// The items of an iterator.
pub fn collected<T>(items: impl IntoIterator<Item = T>) -> Result<Vec<T>> {
    let mut all = Vec::new();
    all.try_append(items)?;
    Ok(all)
}

/// The items of an iterator, up to its first error.
pub fn collected_ok<T, E: From<Error>>(
    items: impl IntoIterator<Item = std::result::Result<T, E>>,
) -> std::result::Result<Vec<T>, E> {
    let items = items.into_iter();
    let mut all = with_capacity(items.size_hint().0)?;
    for item in items {
        all.try_push(item?)?;
    }
    Ok(all)
}

/// The slices one after the other.
pub fn joined<T: Copy>(slices: &[&[T]]) -> Result<Vec<T>> {
    let mut all = with_capacity(slices.iter().map(|slice| slice.len()).sum())?;
    slices.iter().for_each(|slice| all.extend_from_slice(slice));
    Ok(all)
}

/// Growing a vector, as its methods of similar names do.
pub trait TryGrow<T> {
    /// Reserves memory for `more` items.
    fn reserve_more(&mut self, more: usize) -> Result<()>;
    /// Appends an item.
    fn try_push(&mut self, item: T) -> Result<()>;
    /// Appends the items of an iterator.
    fn try_append(&mut self, items: impl IntoIterator<Item = T>) -> Result<()>;
    /// Appends a copy of the items.
    fn try_extend(&mut self, items: &[T]) -> Result<()>
    where
        T: Copy;
    /// Changes the number of items; new ones are copies of `value`.
    fn try_resize(&mut self, count: usize, value: T) -> Result<()>
    where
        T: Clone;
}

impl<T> TryGrow<T> for Vec<T> {
    #[inline]
    fn reserve_more(&mut self, more: usize) -> Result<()> {
        self.try_reserve(more).map_err(|_| refused(more.saturating_mul(size_of::<T>())))
    }

    #[inline]
    fn try_push(&mut self, item: T) -> Result<()> {
        if self.len() == self.capacity() {
            self.reserve_more(1)?;
        }
        self.push(item);
        Ok(())
    }

    #[inline]
    fn try_append(&mut self, items: impl IntoIterator<Item = T>) -> Result<()> {
        let mut items = items.into_iter();
        loop {
            self.reserve_more(items.size_hint().0.max(1))?;
            // As much as is reserved, so that nothing is allocated meanwhile.
            let free = self.capacity() - self.len();
            self.extend(items.by_ref().take(free));
            if self.len() < self.capacity() {
                return Ok(());
            }
            match items.next() {
                Some(item) => self.try_push(item)?,
                None => return Ok(()),
            }
        }
    }

    #[inline]
    fn try_extend(&mut self, items: &[T]) -> Result<()>
    where
        T: Copy,
    {
        self.reserve_more(items.len())?;
        self.extend_from_slice(items);
        Ok(())
    }

    #[inline]
    fn try_resize(&mut self, count: usize, value: T) -> Result<()>
    where
        T: Clone,
    {
        self.reserve_more(count.saturating_sub(self.len()))?;
        self.resize(count, value);
        Ok(())
    }
}
