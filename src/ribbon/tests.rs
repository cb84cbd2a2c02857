//! Tests that Python cannot express: hashes that no key has, and the equations themselves.

use super::build::solve;
use super::system::{Added, Row, System, Wide};
use super::*;
use crate::hash::{Hasher, mix13};

fn equations(hashes: impl Iterator<Item = Hash128>, bits: u32) -> Vec<Equation> {
    let value = |hash: Hash128| mix13(hash.lo ^ hash.hi.rotate_left(9)) as u32 & mask(bits);
    let mut all: Vec<Equation> = hashes.map(|hash| Equation { hash, value: value(hash) }).collect();
    all.sort_unstable();
    all
}

/// Builds a solution and queries every value.
fn check(levels: &[u64], equations: &[Equation], bits: u32) -> Solution {
    let sizes = Sizes { columns: bits, levels, ..Sizes::default() };
    let solution = solve(Layout::Interleaved, sizes, equations.iter().copied()).unwrap();
    assert!(equations.iter().all(|equation| solution.value(equation.hash) == equation.value));
    solution
}

#[test]
fn hashes_that_share_a_half_are_separated() {
    for n in [2, 100, 600] {
        check(&[], &equations((0..n).map(|i| Hash128 { hi: mix13(i), lo: 7 }), 20), 20);
        check(&[], &equations((0..n).map(|i| Hash128 { hi: 7, lo: mix13(i) }), 20), 20);
    }
}

#[test]
fn hashes_in_one_place_are_bumped() {
    let close = equations((0..9000).map(|i| Hash128 { hi: i << 8, lo: mix13(i) }), 9);
    let solution = check(&[8448, 512], &close, 9);
    assert!(solution.shape.last.slots > 8000);
}

#[test]
fn levels_of_any_size_take_equations_that_fit() {
    let hasher = Hasher::seeded(3);
    let all = equations((0..5000).map(|i| hasher.signed(i)), 3);
    for levels in [&[128][..], &[128, 128, 128], &[4992], &[10_048], &[4672, 320], &[4992, 6400]] {
        check(levels, &all, 3);
    }
    check(&[128], &[], 3);
}

#[test]
fn rows_of_both_widths_solve_the_same_equations() {
    let (mut narrow, mut wide) =
        (System::<u64>::new(200).unwrap(), System::<Wide>::new(200).unwrap());
    let mut kept = Vec::new();
    for i in 0..190 {
        let (start, row, value) = (mix13(i) % 136, mix13(i + 1000), i as u32);
        let added = narrow.add(start, row, value);
        assert_eq!(added, wide.add(start, [row, 0, 0, 0], value));
        if added != Added::Refused {
            kept.push((start, row, value));
        }
    }
    let mut columns = [[0u64; 5]; 8];
    narrow.solve(8, 0, |block, column, word| columns[column][block] = word);
    wide.solve(8, 0, |block, column, word| assert_eq!(columns[column][block], word));
    for (start, row, value) in kept {
        for (column, words) in columns.iter().enumerate() {
            let (at, rest) = ((start / 64) as usize, start % 64);
            let window = words[at] >> rest | words[at + 1] << 1 << (63 - rest);
            assert_eq!(row.times(window), u64::from(value >> column & 1));
        }
    }
}

#[test]
fn the_last_equation_can_be_removed() {
    let mut system = System::<u64>::new(128).unwrap();
    assert_eq!(system.add(0, 0b11, 1), Added::At(0));
    assert_eq!(system.add(0, 0b101, 0), Added::At(1));
    assert_eq!(system.add(1, 0b11, 1), Added::Implied);
    assert_eq!(system.add(1, 0b11, 0), Added::Refused);
    system.take_back(1);
    assert_eq!(system.add(1, 0b11, 0), Added::At(1));
}

#[test]
fn invalid_shapes_are_refused() {
    let of = |columns, share, levels: &[u64], last, extra| {
        let sizes = Sizes { columns, share, levels, last, extra, ..Sizes::default() };
        shape::Shape::new(Layout::Columns, sizes)
    };
    let shape = |columns, levels: &[u64], last| of(columns, 0, levels, last, 0);
    assert!(shape(0, &[], 5).is_err() && shape(33, &[], 5).is_err());
    assert!(shape(1, &[64], 5).is_err() && shape(1, &[130], 5).is_err());
    assert!(shape(1, &[128; 17], 5).is_err() && shape(1, &[], u64::MAX).is_err());
    let largest = shape(32, &[1 << 42; 16], 1 << 42).unwrap();
    assert_eq!(largest.kept, 17 << 47);
    assert!(largest.clone().cut(1).is_ok() && largest.clone().cut((17 << 47) + 1).is_err());
    assert!(of(32, 1, &[], 5, 0).is_err() && of(31, 1, &[], 5, u64::MAX).is_err());
    assert!(of(8, 0, &[], 5, 3).is_err() && of(8, 1, &[128], 0, 3).is_err());
    // One start in 2³² is 16 of these blocks, and the block after them.
    assert_eq!(of(0, 1, &[1 << 42], 0, 0).unwrap().kept, 64 * 17);
    let nearly = of(31, u32::MAX, &[1 << 42; 16], 1 << 42, 1 << 42).unwrap();
    assert_eq!(nearly.kept, (17 << 47) - 16 * 15 * 64);
}

#[test]
fn an_extra_column_holds_for_every_key() {
    let hasher = Hasher::seeded(5);
    for (n, levels) in [(1, &[][..]), (300, &[]), (3000, &[2688]), (9000, &[8448, 320])] {
        let all = equations((0..n).map(|i| hasher.signed(i)), 6);
        for layout in [Layout::Interleaved, Layout::Columns] {
            for share in [1, 1 << 24, 1 << 31, u32::MAX] {
                for columns in [0, 3, 5] {
                    let sizes = Sizes { columns, share, levels, ..Sizes::default() };
                    let equations = all.iter().map(|equation| Equation {
                        value: equation.value & mask(columns + 1),
                        ..*equation
                    });
                    let solution = solve(layout, sizes, equations).unwrap();
                    let held = |e: &Equation| solution.may_have(e.hash, e.value);
                    assert!(all.iter().all(held), "{n} {layout:?} {share} {columns}");
                }
            }
        }
    }
}
