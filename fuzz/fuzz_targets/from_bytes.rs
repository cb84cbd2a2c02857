//! Bytes from outside: they are refused, or are a filter on which every operation is safe.
//!
//! Checksums would stop a fuzzer at the door. So the input is read twice: as a frame, and as the
//! content of one whose checksums are right (kind, piece, count, five parameters, of which Fuse has
//! all and others four, then the section).

#![no_main]

use libfuzzer_sys::fuzz_target;
use tamis::bits::Buffer;
use tamis::format::{self, Head, SECTION_BITS, Section};
use tamis::hash::{Hash128, Hasher};
use tamis::kernel::Kernel;
use tamis::kinds;

fuzz_target!(|data: &[u8]| {
    if let Ok((head, sections)) = format::read(data) {
        open(&head, &sections);
    }
    let Some((numbers, content)) = data.split_at_checked(50) else { return };
    let number = |i: usize| u64::from_le_bytes(numbers[2 + 8 * i..][..8].try_into().unwrap());
    let head = Head {
        kind: u16::from(numbers[0]),
        hash: 1,
        tag: 0,
        count: number(0),
        capacity: number(1),
        parameters: (1..if numbers[0] == 4 { 6 } else { 5 }).map(number).collect(),
    };
    let piece = u32::from(numbers[1] % 16);
    open(&head, &[Section { kind: SECTION_BITS, piece, bytes: content }]);
});

fn open(head: &Head, sections: &[Section<'_>]) {
    let Ok(filter) = kinds::open(head, sections, &Buffer::copied) else { return };
    exercise(&*filter);
}

/// Everything a caller can do.
fn exercise(filter: &dyn Kernel) {
    let hasher = Hasher::seeded(0);
    let hashes: Vec<Hash128> = (0..100).map(|key| hasher.signed(key)).collect();
    let mut before = [false; 100];
    filter.contains(&hashes, &mut before);
    let copy = filter.copy().expect("what was opened can be copied");
    assert!(filter.rate() >= 0.0);
    if copy.insert(&hashes).is_ok() {
        let mut after = [false; 100];
        copy.contains(&hashes, &mut after);
        assert_eq!(after, [true; 100], "a key that was inserted is denied");
        hashes.iter().for_each(|&hash| drop(copy.remove(hash)));
        let mut still = [false; 100];
        copy.contains(&hashes, &mut still);
        assert!(before.iter().zip(still).all(|(&was, is)| !was || is), "a stored key is denied");
    }
    filter.frozen(&mut |content| assert!(!content.parameters.is_empty()));
}
