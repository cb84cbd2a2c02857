//! Bytes from outside: they are refused, or are a filter on which every operation is safe.
//!
//! Checksums would stop a fuzzer at the door, so the mutator takes a valid frame apart, changes its
//! head, a parameter or a section, in nested frames too, and writes it again with right checksums.
//! What is not a frame is mutated as plain bytes.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use tamis::bits::Buffer;
use tamis::format::{self, SECTION_CONTAINED, SECTION_FRAME, Section};
use tamis::hash::{Hash128, Hasher};
use tamis::kernel::{self, Kernel};
use tamis::kinds;

/// Streams forget: a key that was inserted may be denied.
const STREAMS: [&str; 3] = ["stable", "windowed", "stable_learned"];

fuzz_target!(|data: &[u8]| {
    let Ok((_, sections)) = format::read(data) else { return };
    for section in sections.iter().filter(|section| section.kind == SECTION_CONTAINED) {
        open_and_exercise(section.bytes);
    }
    open_and_exercise(data);
});

/// A frame on its own, or in a container.
fn open_and_exercise(data: &[u8]) {
    let Ok((head, sections)) = format::read(data) else { return };
    let Ok(filter) = kinds::open(&head, &sections, &Buffer::copied) else { return };
    exercise(&*filter);
}

/// Everything a caller can do with any kernel.
fn exercise(filter: &dyn Kernel) {
    let hasher = Hasher::seeded(0);
    let hashes: Vec<Hash128> = (0..100).map(|key| hasher.signed(key)).collect();
    let mut before = [false; 100];
    filter.contains(&hashes, &mut before);
    for (&hash, &answer) in hashes.iter().zip(&before) {
        assert_eq!(filter.contains_one(hash), answer, "one key is answered unlike many");
    }
    let copy = filter.copy().expect("what was opened can be copied");
    assert!(filter.rate() >= 0.0 && filter.unseen_rate() >= 0.0);
    let kind = filter.kind();
    if copy.insert(&hashes).is_ok() && !STREAMS.contains(&kind.name) {
        let mut after = [false; 100];
        copy.contains(&hashes, &mut after);
        assert_eq!(after, [true; 100], "a key that was inserted is denied");
        hashes.iter().for_each(|&hash| drop(copy.remove(hash)));
        let mut still = [false; 100];
        copy.contains(&hashes, &mut still);
        assert!(before.iter().zip(still).all(|(&was, is)| !was || is), "a stored key is denied");
    }
    let frame = kernel::frame(filter, (1, 0), filter.count()).and_then(|frame| frame.to_bytes());
    let frame = frame.expect("memory can be written");
    let (head, sections) = format::read(&frame).expect("what was written is a frame");
    assert!(kinds::open(&head, &sections, &Buffer::copied).is_ok(), "a copy cannot be opened");
}

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    match changed(&data[..size], &mut Random(u64::from(seed))) {
        Some(frame) if frame.len() <= max_size => {
            data[..frame.len()].copy_from_slice(&frame);
            frame.len()
        }
        _ => fuzzer_mutate(data, size, max_size),
    }
});

/// A frame with one thing changed and all checksums right; `None` if the bytes are no frame.
fn changed(frame: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let (mut head, sections) = format::read(frame).ok()?;
    let mut parts: Vec<(u32, u32, Vec<u8>)> =
        sections.iter().map(|s| (s.kind, s.piece, s.bytes.to_vec())).collect();
    match random.below(10) {
        0 => head.count = random.number(head.count),
        1 => head.capacity = random.number(head.capacity),
        2 => head.kind = 1 + random.below(kinds::KINDS.len() as u64) as u16,
        3 => head.parameters.push(random.number(0)),
        4 => drop(head.parameters.pop()),
        5 | 6 => {
            let at = random.below(head.parameters.len() as u64) as usize;
            let value = head.parameters.get_mut(at)?;
            *value = random.number(*value);
        }
        _ if parts.is_empty() => parts.push((1, 0, vec![0; 64])),
        choice => {
            let at = random.below(parts.len() as u64) as usize;
            match (choice, parts[at].0) {
                (9, _) => rearrange(&mut parts, at, random),
                (_, SECTION_FRAME | SECTION_CONTAINED) => parts[at].2 = changed(&parts[at].2, random)?,
                _ => mutate(&mut parts[at].2, random),
            }
        }
    }
    let sections: Vec<Section<'_>> = parts
        .iter()
        .map(|(kind, piece, bytes)| Section { kind: *kind, piece: *piece, bytes })
        .collect();
    format::to_bytes(&head, &sections).ok()
}

fn rearrange(parts: &mut Vec<(u32, u32, Vec<u8>)>, at: usize, random: &mut Random) {
    match random.below(5) {
        0 => drop(parts.remove(at)),
        1 => parts.push(parts[at].clone()),
        2 => parts.swap(at, 0),
        3 => parts[at].0 = 1 + random.below(12) as u32,
        _ => parts[at].1 = random.below(16) as u32,
    }
}

/// Changes content by libFuzzer's own means, half of the time to another length.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    let length = bytes.len();
    bytes.resize(2 * length + 64, 0);
    let max = bytes.len();
    let mutated = fuzzer_mutate(bytes, length, max);
    bytes.truncate(if random.below(2) == 0 { mutated } else { length });
}

/// SplitMix64: enough for choices, and it repeats.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next() % end }
    }

    /// A number near another, or where arithmetic ends.
    fn number(&mut self, near: u64) -> u64 {
        match self.below(6) {
            0 => near.wrapping_add(1),
            1 => near.wrapping_sub(1),
            2 => near ^ 1 << self.below(64),
            3 => self.below(100),
            4 => 1 << self.below(64),
            _ => u64::MAX - self.below(3),
        }
    }
}
