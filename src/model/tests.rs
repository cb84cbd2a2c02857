//! The parts of a model against their definitions.

use super::*;
use crate::bits::reduce;
use crate::hash::{GOLDEN, mix13};
use proptest::prelude::*;

#[test]
fn sigmoid_matches_its_definition() {
    for i in -4000..=4000 {
        let x = f64::from(i) / 100.0;
        let exact = 1.0 / (1.0 + (-x).exp());
        assert!((sigmoid(x) - exact).abs() < 1e-10, "{x}");
    }
    assert!(sigmoid(f64::INFINITY) <= 1.0 && sigmoid(f64::NEG_INFINITY) >= 0.0);
    assert_eq!(sigmoid(0.0), 0.5);
}

proptest! {
    #[test]
    fn grams_match_their_definition(
        text in proptest::collection::vec(any::<u8>(), 0..700),
        shortest in 1u8..=8,
        more in 0u8..4,
        buckets in 1u32..5000,
    ) {
        let longest = (shortest + more).min(MAX_GRAM);
        let marked: Vec<u8> = [&[2], &text[..], &[3]].concat();
        let mut wanted = Vec::new();
        for at in 0..marked.len() {
            for n in shortest..=longest {
                let Some(gram) = marked.get(at..at + usize::from(n)) else { continue };
                let mut word = [0; 8];
                word[..gram.len()].copy_from_slice(gram);
                let salted = u64::from_le_bytes(word).wrapping_add(GOLDEN.wrapping_mul(n.into()));
                wanted.push(reduce(mix13(salted), buckets.into()) as u32);
            }
        }
        let mut found = Vec::new();
        Grams { shortest, longest, buckets }.each(&text, |bucket| found.push(bucket));
        prop_assert_eq!(found, wanted);
    }
}
