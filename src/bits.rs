//! Memory and bit tricks shared by the kernels: the buffer of a filter, range reduction, select,
//! prefetch.

use crate::error::{Error, Result};
use crate::hash::Hash128;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::hint::black_box;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A cache line: the unit that a blocked kernel accesses per key, and the alignment of every
/// buffer.
pub const LINE: usize = 64;

/// Bytes aligned to a cache line: allocated here, or inside a private mapping of a file.
///
/// The memory is zeroed or mapped, never uninitialized, and stays in place until drop.
///
/// A kernel shares it between threads in one of two ways. Either all of it is behind a lock, and
/// readers and the writer use slices. Or readers run concurrently with the writer: then both use only
/// [`Buffer::words`] or [`Buffer::lines`], and take a slice only while the writer is locked out (to
/// save or copy the filter); others may then still read atomically.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

enum Owner {
    Allocated(Layout),
    /// Pages of its own, this many bytes.
    #[cfg(target_os = "linux")]
    Pages(usize),
    /// Keeps a mapping alive; never read.
    Mapping(#[allow(dead_code)] Box<dyn Any + Send + Sync>),
}

// SAFETY: a Buffer is the only owner of its bytes, like a Vec; shared access to them is read-only
// or through atomics, never both at a time where one of them writes (see above).
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `len` zero bytes, or [`Error::Memory`] if they cannot be allocated.
    pub fn zeroed(len: usize) -> Result<Buffer> {
        let refused = || Error::Memory(format!("cannot allocate {len} bytes for the filter"));
        let layout = Layout::from_size_align(len.max(1), LINE).map_err(|_| refused())?;
        #[cfg(target_os = "linux")]
        if len >= huge::PAGE {
            let (start, mapped) = huge::pages(len).ok_or_else(refused)?;
            return Ok(Buffer { start, len, owner: Owner::Pages(mapped) });
        }
        // SAFETY: the layout has a size of at least one byte.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        Ok(Buffer { start, len, owner: Owner::Allocated(layout) })
    }

    /// A copy of `bytes`.
    pub fn copied(bytes: &[u8]) -> Result<Buffer> {
        let mut buffer = Buffer::zeroed(bytes.len())?;
        buffer.as_mut_slice().copy_from_slice(bytes);
        Ok(buffer)
    }

    /// Bytes inside a private, writable mapping that `mapping` keeps alive.
    ///
    /// # Safety
    /// `start` must be aligned to [`LINE`] and point to `len` bytes that stay readable and
    /// writable, at the same place and for nobody else, until `mapping` is dropped.
    pub unsafe fn mapped(
        start: NonNull<u8>,
        len: usize,
        mapping: Box<dyn Any + Send + Sync>,
    ) -> Buffer {
        debug_assert_eq!(start.as_ptr() as usize % LINE, 0);
        Buffer { start, len, owner: Owner::Mapping(mapping) }
    }

    /// The number of bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the bytes are in the mapping of a file, where a process that writes to the file may
    /// change them until they are written to here.
    pub fn is_mapped(&self) -> bool {
        matches!(self.owner, Owner::Mapping(_))
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes. If the kernel writes through [`Buffer::words`], only while its writer is locked
    /// out.
    #[inline(always)]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` points to `len` initialized bytes for as long as self lives, which nobody
        // writes to meanwhile: as for `Buffer`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, mutable.
    #[inline(always)]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_slice`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// The complete 64-bit words, for kernels whose readers run concurrently with one writer.
    #[inline(always)]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: aligned to 64 bytes, and AtomicU64 has the layout of u64. Such kernels write to the
        // bytes through these atomics alone while they are shared.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len / 8) }
    }

    /// The complete cache lines.
    #[inline(always)]
    pub fn lines(&self) -> &[[AtomicU64; LINE / 8]] {
        self.words().as_chunks().0
    }

    /// Reads words, as far as they exist, to bring them into the cache. Sequential reads are
    /// recognized by the processor, and several times as fast as prefetching lines one by one.
    pub fn preload(&self, words: Range<usize>) {
        let all = self.words();
        let words = &all[words.start.min(all.len())..words.end.min(all.len())];
        let lines = words.iter().step_by(LINE / 8);
        black_box(lines.fold(0, |sum: u64, word| sum.wrapping_add(word.load(Relaxed))));
    }

    /// The words of one of `parts` equal parts.
    pub fn part(&self, part: usize, parts: usize) -> Range<usize> {
        let words = self.len.div_ceil(8) as u64;
        part_start(words, part, parts) as usize..part_start(words, part + 1, parts) as usize
    }

    /// A larger buffer with the same beginning and zeros behind it.
    pub fn extended(&self, len: usize) -> Result<Buffer> {
        let mut longer = Buffer::zeroed(len)?;
        longer.as_mut_slice()[..self.len].copy_from_slice(self.as_slice());
        Ok(longer)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.owner {
            // SAFETY: allocated by `zeroed` with this layout, and freed once.
            Owner::Allocated(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            #[cfg(target_os = "linux")]
            // SAFETY: mapped by `zeroed`, this many bytes, and freed once.
            Owner::Pages(mapped) => unsafe { huge::free(self.start, mapped) },
            Owner::Mapping(_) => {}
        }
    }
}

/// The start of one of `parts` equal parts of `0..n`.
pub fn part_start(n: u64, part: usize, parts: usize) -> u64 {
    (u128::from(n) * part as u128 / parts as u128) as u64
}

/// Maps a uniform `hash` to `0..n`, order-preserving, without division (Lemire 2019).
#[inline(always)]
pub fn reduce(hash: u64, n: u64) -> u64 {
    ((hash as u128 * n as u128) >> 64) as u64
}

/// [`select_plain`] by depositing one bit (Pandey et al. 2017, section 3.4).
///
/// # Safety
/// The processor must have BMI2, and `rank` must be below 64.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2")]
#[inline]
pub unsafe fn select_pdep(word: u64, rank: u32) -> u32 {
    std::arch::x86_64::_pdep_u64(1 << rank, word).trailing_zeros()
}

/// The lowest bits of `word`, in order, at the places of the set bits of `mask`.
///
/// # Safety
/// The processor must have BMI2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi2")]
#[inline]
pub unsafe fn scatter_pdep(word: u64, mask: u64) -> u64 {
    std::arch::x86_64::_pdep_u64(word, mask)
}

/// The position of the set bit of rank `rank` (from 0) in `word`, or 64 if there are too few: for
/// any processor, halving the word by its population counts.
#[inline(always)]
pub fn select_plain(mut word: u64, mut rank: u32) -> u32 {
    let mut position = 0;
    for width in [32, 16, 8, 4, 2, 1] {
        let below = (word & ((1 << width) - 1)).count_ones();
        if rank >= below {
            rank -= below;
            word >>= width;
            position += width;
        }
    }
    if rank == 0 && word & 1 == 1 { position } else { 64 }
}

/// Prefetches the cache line at `place`, which may be any address.
#[inline(always)]
pub fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is a hint and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch(place.cast(), std::arch::x86_64::_MM_HINT_T0)
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Types for which zero bytes are a valid value.
///
/// # Safety
/// All bits zero must be a valid value of the type.
pub unsafe trait Zero: Copy {}
// SAFETY: numbers, or made of numbers.
unsafe impl Zero for u8 {}
// SAFETY: as above.
unsafe impl Zero for u16 {}
// SAFETY: as above.
unsafe impl Zero for u32 {}
// SAFETY: as above.
unsafe impl Zero for u64 {}
// SAFETY: as above.
unsafe impl Zero for Hash128 {}

/// A zeroed vector, or [`Error::Memory`] if it cannot be allocated. Its memory is not touched here,
/// and is on huge pages if it is large and they are available: together, these save a third of the
/// time to remove duplicate hashes.
pub fn zeros<T: Zero>(len: usize) -> Result<Vec<T>> {
    let bytes = len.saturating_mul(size_of::<T>());
    let refused = || Error::Memory(format!("cannot allocate {bytes} bytes to build the filter"));
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let layout = Layout::array::<T>(len).map_err(|_| refused())?;
    // SAFETY: the layout has a size above zero.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?.as_ptr();
    prefer_huge_pages(start, bytes);
    // SAFETY: allocated by the global allocator with the layout of `len` items, each of them zero
    // bytes, which `Zero` says are a valid value.
    Ok(unsafe { Vec::from_raw_parts(start.cast(), len, len) })
}

/// Requests huge pages for memory that was not touched yet: one TLB entry then covers 2 MiB of it,
/// and its first touch is one fault instead of 512.
fn prefer_huge_pages(start: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    huge::prefer(start, bytes);
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}

#[cfg(target_os = "linux")]
mod huge {
    use std::ffi::{c_int, c_long, c_void};
    use std::ptr::{NonNull, null_mut};

    /// Bytes of a huge page.
    pub const PAGE: usize = 1 << 21;
    const SMALL_PAGE: usize = 1 << 12;
    const MADV_HUGEPAGE: c_int = 14;
    const PROT_READ_WRITE: c_int = 1 | 2;
    const MAP_PRIVATE_ANONYMOUS: c_int = 2 | 0x20;

    unsafe extern "C" {
        fn madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int;
        fn mmap(
            start: *mut c_void,
            len: usize,
            protection: c_int,
            flags: c_int,
            file: c_int,
            offset: c_long,
        ) -> *mut c_void;
        fn munmap(start: *mut c_void, len: usize) -> c_int;
    }

    /// Requests huge pages for the aligned 2 MiB pieces of a memory range.
    pub fn prefer(start: *mut u8, bytes: usize) {
        let skipped = start.addr().next_multiple_of(PAGE) - start.addr();
        let whole = bytes.saturating_sub(skipped) / PAGE * PAGE;
        if whole > 0 {
            // SAFETY: a hint about our own memory, which changes no content; if it is refused,
            // nothing changes.
            unsafe { madvise(start.wrapping_add(skipped).cast(), whole, MADV_HUGEPAGE) };
        }
    }

    /// Zeros that start on a huge page, and the number of bytes mapped for them. The allocator
    /// aligns less, and may reuse memory on small pages: with it, only a third of the shards of 3 MB
    /// were on huge pages.
    pub fn pages(len: usize) -> Option<(NonNull<u8>, usize)> {
        let mapped = len.checked_next_multiple_of(SMALL_PAGE)?;
        let all = mapped.checked_add(PAGE)?;
        // SAFETY: new memory, at an address chosen by the system.
        let start = unsafe { mmap(null_mut(), all, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0) };
        if start.addr() == usize::MAX {
            return None;
        }
        let start: *mut u8 = start.cast();
        let before = start.addr().next_multiple_of(PAGE) - start.addr();
        let first = start.wrapping_add(before);
        for (unused, len) in [(start, before), (first.wrapping_add(mapped), PAGE - before)] {
            if len > 0 {
                // SAFETY: unused pages of the mapping just created.
                unsafe { munmap(unused.cast(), len) };
            }
        }
        prefer(first, mapped);
        NonNull::new(first).map(|first| (first, mapped))
    }

    /// Unmaps memory of [`pages`].
    ///
    /// # Safety
    /// `start` and `mapped` must be from [`pages`], and the memory must no longer be used.
    pub unsafe fn free(start: NonNull<u8>, mapped: usize) {
        // SAFETY: as the caller promises.
        unsafe { munmap(start.as_ptr().cast(), mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn select_finds_every_set_bit_and_no_other() {
        let mut word = 0x9E37_79B9_7F4A_7C15u64;
        for _ in 0..2000 {
            word = crate::hash::mix13(word);
            for sample in [word, word & (word >> 7), word | (word << 3), 0, u64::MAX, 1 << 63] {
                let mut rank = 0;
                for position in 0..64 {
                    if sample >> position & 1 == 1 {
                        assert_eq!(select_plain(sample, rank), position);
                        #[cfg(target_arch = "x86_64")]
                        if std::arch::is_x86_feature_detected!("bmi2") {
                            // SAFETY: just checked.
                            assert_eq!(unsafe { select_pdep(sample, rank) }, position);
                        }
                        rank += 1;
                    }
                }
                assert_eq!(select_plain(sample, rank), 64);
            }
        }
    }

    /// Less than a huge page, one, and a few with a remainder.
    #[test]
    fn buffers_are_zeroed_and_separate() {
        for len in [0, 1, 100, (1 << 21) - 1, 1 << 21, 5_000_003] {
            let mut buffer = Buffer::zeroed(len).unwrap();
            assert_eq!((buffer.len(), buffer.start.as_ptr() as usize % LINE), (len, 0));
            assert!(buffer.as_slice().iter().all(|&byte| byte == 0));
            buffer.as_mut_slice().fill(1);
            let longer = buffer.extended(len + 70).unwrap();
            drop(buffer);
            assert_eq!(longer.as_slice().iter().filter(|&&byte| byte == 1).count(), len);
            assert_eq!(longer.as_slice().iter().rposition(|&byte| byte == 1), len.checked_sub(1));
        }
    }

    #[test]
    fn failed_allocation_is_an_error() {
        assert!(matches!(Buffer::zeroed(isize::MAX as usize - 63), Err(Error::Memory(_))));
        assert!(matches!(Buffer::zeroed(usize::MAX), Err(Error::Memory(_))));
    }
}
