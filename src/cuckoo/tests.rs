//! The geometry for every size, and the table compared with a plain multiset.

use super::*;
use crate::distinct::{Distinct, Partitions};
use crate::hash::Hasher;
use proptest::prelude::*;
use std::collections::HashMap;

fn hashes(seed: u64, keys: std::ops::Range<i64>) -> Vec<Hash128> {
    let hasher = Hasher::seeded(seed);
    keys.map(|key| hasher.signed(key)).collect()
}

fn distinct(hashes: &[Hash128]) -> Distinct {
    let mut partitions = Partitions::new(hashes.len(), hashes.len()).unwrap();
    partitions.extend(hashes);
    Distinct::new(vec![partitions], 1).unwrap()
}

fn any_shape() -> impl Strategy<Value = Shape> {
    (1u64..4, 1u64..40, 1u32..=32, 1u32..8)
        .prop_map(|(chunks, pairs, bits, near)| Shape::new(chunks, 2 * pairs, bits, near).unwrap())
}

/// The identity of a key in the table: its chunk, its buckets in order, its fingerprint.
fn identity(shape: &Shape, hash: Hash128) -> (u64, u64, u64, u32) {
    let Address { chunk, bucket, fingerprint } = shape.address(hash);
    let other = shape.other(bucket, fingerprint);
    (chunk, bucket.min(other), bucket.max(other), fingerprint)
}

#[test]
fn two_buckets_lead_to_each_other() {
    for buckets in (2..300).step_by(2).chain([16_446, 24_574, 1 << 31]) {
        for (bits, near) in [(1, 1), (2, 5), (8, 5), (12, 7), (32, 31)] {
            let shape = Shape::new(1, buckets, bits, near).unwrap();
            for hash in hashes(0, 0..300) {
                let Address { bucket, fingerprint, .. } = shape.address(hash);
                let other = shape.other(bucket, fingerprint);
                assert!(other < buckets && other != bucket);
                assert_eq!(shape.other(other, fingerprint), bucket);
                if fingerprint & 1 == 0 {
                    assert!(bucket.abs_diff(other) < 2 << near);
                }
            }
        }
    }
}

#[test]
fn slots_of_every_length_keep_their_content() {
    fn check<W: Word>(bits: u32) {
        let slots = Slots::<W>::new(bits);
        let max = u32::MAX >> (32 - bits);
        let mut bytes = vec![0; 9 * bits as usize / 2 + 32];
        let value = |bucket: u64, i: u64| ((bucket * 4 + i) as u32).wrapping_mul(0x9E37_79B9) & max;
        for bucket in 0..9 {
            for (slot, i) in slots.all().into_iter().zip(0..) {
                slots.set(&mut bytes, slots.start(bucket), slot, max);
                slots.set(&mut bytes, slots.start(bucket), slot, value(bucket, i));
            }
        }
        for bucket in 0..9 {
            let content = slots.bucket(&bytes, slots.start(bucket));
            for (slot, i) in slots.all().into_iter().zip(0..) {
                assert_eq!(slots.get(content, slot), value(bucket, i));
            }
            for asked in [0, 1, max, value(bucket, 2)] {
                let first = (0..4).find(|&i| value(bucket, i) == asked);
                let slot = first.map(|i| slots.all()[i as usize]);
                assert_eq!(slots.first(slots.matching(content, asked)), slot);
                let all = (0..4).filter(|&i| value(bucket, i) == asked).count() as u32;
                assert_eq!(slots.matching(content, asked).ones(), all);
            }
        }
    }
    (1..=16).for_each(check::<u64>);
    (1..=32).for_each(check::<u128>);
}

#[test]
fn held_bits_stand_for_their_fingerprints() {
    for bits in 1..=9 {
        for kept in 1..=bits {
            let shape = Shape::new(1, 2, bits, 5).unwrap().truncated(kept).unwrap();
            let mut all = Vec::new();
            for held in 1..1 << kept {
                let (count, some) = shape.standing_for(held, u64::MAX);
                let some: Vec<u32> = some.collect();
                assert_eq!(count, some.len() as u64);
                assert!(some.iter().all(|&fingerprint| shape.held(fingerprint) == held));
                all.extend(some);
            }
            all.sort_unstable();
            assert_eq!(all, (1..1 << bits).collect::<Vec<u32>>());
        }
    }
    let shape = Shape::new(1, 2, 32, 5).unwrap().truncated(1).unwrap();
    let (count, some) = shape.standing_for(1, 1000);
    assert_eq!(
        (count, some.filter(|fingerprint| fingerprint & 1 == 1).count()),
        (u32::MAX.into(), 500)
    );
}

proptest! {
    /// Insertions, one by one or in batches, and deletions, compared with a map.
    #[test]
    fn holds_a_multiset(
        shape in any_shape(),
        batches in prop::collection::vec(prop::collection::vec(0i64..60, 0..30), 0..12),
        removed in prop::collection::vec(0i64..60, 0..40),
    ) {
        let hasher = Hasher::seeded(1);
        let (mut table, mut twin) = (Table::new(shape).unwrap(), HashMap::new());
        for batch in batches {
            let batch: Vec<Hash128> = batch.into_iter().map(|key| hasher.signed(key)).collect();
            let before = table.slots.as_slice().to_vec();
            if table.insert(&batch).is_ok() {
                batch.iter().for_each(|&h| *twin.entry(identity(&shape, h)).or_insert(0) += 1);
            } else {
                prop_assert_eq!(&before[..], table.slots.as_slice());
            }
        }
        for key in removed {
            let hash = hasher.signed(key);
            let stored = twin.get_mut(&identity(&shape, hash)).filter(|count| **count > 0);
            prop_assert_eq!(table.remove(hash).is_ok(), stored.is_some());
            stored.into_iter().for_each(|count| *count -= 1);
        }
        twin.retain(|_, count| *count > 0);
        prop_assert_eq!(table.len(), twin.values().sum::<u64>());
        prop_assert_eq!(table.len(), on_width!(shape, W => table.used::<W>()));
        let asked = hashes(1, 0..100);
        let mut answers = vec![false; asked.len()];
        table.contains_batch(&asked, &mut answers);
        for (&hash, answer) in asked.iter().zip(answers) {
            prop_assert_eq!(answer, twin.contains_key(&identity(&shape, hash)));
            prop_assert_eq!(answer, table.contains(hash));
        }
        // Each stored identity accepts absent keys at either of its buckets.
        let pairs = (shape.slots() / 4) as f64 * shape.fingerprints() as f64;
        prop_assert!((table.rate() - 2.0 * twin.len() as f64 / pairs).abs() < 1e-12);
    }

    #[test]
    fn threads_make_no_difference(chunks in 1u64..9, threads in 2usize..5, bits in 4u32..32) {
        let shape = Shape::new(chunks, 300, bits, 5).unwrap();
        let keys = hashes(2, 0..1000 * chunks as i64);
        let one = Table::build(shape, &distinct(&keys), 1).unwrap();
        let mut reversed = keys.clone();
        reversed.reverse();
        let more = Table::build(shape, &distinct(&reversed), threads).unwrap();
        prop_assert_eq!(one.slots.as_slice(), more.slots.as_slice());
        prop_assert!(keys.iter().all(|&hash| more.contains(hash)));
        prop_assert_eq!(more.len(), keys.len() as u64);
    }
}

#[test]
fn a_build_that_does_not_fit_is_refused() {
    let shape = Shape::new(3, 20, 8, 5).unwrap();
    let keys = distinct(&hashes(0, 0..241));
    assert!(matches!(Table::build(shape, &keys, 1), Err(Error::Capacity(_))));
    assert!(matches!(Table::build(shape, &keys, 3), Err(Error::Capacity(_))));
}

#[test]
fn invalid_sizes_are_refused() {
    for (chunks, buckets, bits, near) in [
        (0, 2, 8, 5),
        (1, 0, 8, 5),
        (1, 3, 8, 5),
        (1, 1 << 32, 8, 5),
        (1 << 48, 2, 8, 5),
        (u64::MAX, u64::MAX - 1, 8, 5),
        (1, 2, 0, 5),
        (1, 2, 33, 5),
        (1, 2, 8, 0),
        (1, 2, 8, 32),
    ] {
        assert!(matches!(Shape::new(chunks, buckets, bits, near), Err(Error::Parameter(_))));
    }
}
