//! HyperLogLog: estimates the number of distinct hashes from one register per group (Flajolet et
//! al. 2007).
//!
//! A hash falls into one of m groups, and has rank r with probability 2⁻ʳ; a register keeps the
//! highest rank of its group. Repetitions and order change nothing. The estimator is Ertl's (2017,
//! algorithm 6), which is unbiased for small and large counts; its relative standard deviation is
//! 1.04/√m, and less for few hashes.

use crate::bits::zeros;
use crate::error::Result;
use crate::hash::Hash128;

/// log2 of the registers: 1 % is 3.5 standard deviations.
const BITS: u32 = 17;
const REGISTERS: usize = 1 << BITS;
/// Bits of a hash that make its rank.
const RANK_BITS: u32 = 64 - BITS;
/// An estimate is lower than the truth by more than this once in four thousand times.
pub const MARGIN: f64 = 0.01;

/// A sketch of a set of hashes.
pub struct HyperLogLog {
    registers: Vec<u8>,
}

impl HyperLogLog {
    /// A sketch of the empty set.
    pub fn new() -> Result<HyperLogLog> {
        Ok(HyperLogLog { registers: zeros(REGISTERS)? })
    }

    /// Adds hashes.
    pub fn extend(&mut self, hashes: &[Hash128]) {
        for hash in hashes {
            let register = &mut self.registers[(hash.lo >> RANK_BITS) as usize];
            let rank = (hash.lo | 1 << RANK_BITS).trailing_zeros() as u8 + 1;
            *register = (*register).max(rank);
        }
    }

    /// Adds all hashes of another sketch.
    pub fn merge(&mut self, other: &HyperLogLog) {
        for (register, other) in self.registers.iter_mut().zip(&other.registers) {
            *register = (*register).max(*other);
        }
    }

    /// The estimated number of distinct hashes.
    pub fn estimate(&self) -> f64 {
        let mut counts = [0.0; RANK_BITS as usize + 2];
        for &rank in &self.registers {
            counts[usize::from(rank)] += 1.0;
        }
        let m = REGISTERS as f64;
        let (zero, ranks) = (counts[0], &counts[1..]);
        let (last, inner) = (ranks[ranks.len() - 1], &ranks[..ranks.len() - 1]);
        let sum =
            inner.iter().rev().fold(m * tau(1.0 - last / m), |sum, count| 0.5 * (sum + count));
        m * m / (2.0 * std::f64::consts::LN_2 * (sum + m * sigma(zero / m)))
    }
}

/// x + Σ x^(2ᵏ)·2^(k−1) over k ≥ 1: the contribution of registers that are still zero.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut sum, mut weight, mut before) = (x, 1.0, f64::NAN);
    while sum != before {
        x *= x;
        before = sum;
        sum += x * weight;
        weight += weight;
    }
    sum
}

/// (1 − x − Σ (1 − x^(2^−k))²·2^−k)/3 over k ≥ 1: the contribution of registers at the highest
/// rank.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut sum, mut weight, mut before) = (1.0 - x, 1.0, f64::NAN);
    while sum != before {
        x = x.sqrt();
        before = sum;
        weight *= 0.5;
        sum -= (1.0 - x) * (1.0 - x) * weight;
    }
    sum / 3.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Hasher;

    /// Sizes that leave most, some or none of the registers empty.
    #[test]
    fn estimates_are_as_close_as_promised() {
        let sigma = 1.04 / (REGISTERS as f64).sqrt();
        assert!(3.0 * sigma < MARGIN && MARGIN < 4.0 * sigma);
        let mut squares = 0.0;
        for seed in 0..8 {
            let hasher = Hasher::seeded(seed);
            let mut sketch = HyperLogLog::new().unwrap();
            assert_eq!(sketch.estimate(), 0.0);
            let mut seen = 0;
            for count in [100, 20_000, 500_000, 1_000_000] {
                let hashes: Vec<_> = (seen..count).map(|key| hasher.signed(key)).collect();
                sketch.extend(&hashes);
                seen = count;
                let error = sketch.estimate() / count as f64 - 1.0;
                assert!(error.abs() < 4.0 * sigma, "{seed} {count} {error}");
                squares += if count > 100_000 { error * error / (sigma * sigma) } else { 0.0 };
            }
        }
        // A mean of sixteen squares of nearly standard normals, half of them dependent.
        assert!((0.2..3.0).contains(&(squares / 16.0)), "{squares}");
    }

    #[test]
    fn order_repetitions_and_parts_change_nothing() {
        let hasher = Hasher::seeded(3);
        let hashes: Vec<_> = (0..300_000).map(|key| hasher.signed(key)).collect();
        let of = |parts: &[&[Hash128]]| {
            let mut sketch = HyperLogLog::new().unwrap();
            parts.iter().for_each(|part| sketch.extend(part));
            sketch
        };
        let whole = of(&[&hashes]);
        let backwards: Vec<_> = hashes.iter().rev().copied().collect();
        assert_eq!(of(&[&backwards, &hashes[7..99]]).registers, whole.registers);
        let mut merged = of(&[&hashes[..1000]]);
        merged.merge(&of(&[&hashes[1000..]]));
        assert_eq!(merged.registers, whole.registers);
    }
}
