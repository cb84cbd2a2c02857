use super::*;
use crate::distinct::Partitions;
use crate::hash::{Hash128, Hasher};

fn distinct(keys: impl Iterator<Item = i64>) -> Distinct {
    let hashes: Vec<Hash128> = keys.map(|key| Hasher::seeded(1).signed(key)).collect();
    let mut partitions = Partitions::new(hashes.len(), hashes.len()).unwrap();
    partitions.extend(&hashes);
    Distinct::new(vec![partitions], 1).unwrap()
}

/// Every kind at every prefix: no false negatives, and fewer false positives with more bits.
#[test]
fn every_prefix_keeps_every_key() {
    for (n, step) in [(1i64, 1), (3, 1), (40, 7), (300, 97), (1000, 501), (6000, 6007)] {
        let keys = distinct(0..n);
        let levels: &[u64] = if n == 6000 { &[5632] } else { &[] };
        let bits = 10 * n as u64;
        for kind in [Kind::Segmented, Kind::Ribbon, Kind::Truncated] {
            let own: &[u64] = if kind == Kind::Ribbon { levels } else { &[] };
            let (filter, bytes) = Filter::build(kind, 7, bits, own, &keys).unwrap();
            assert_eq!(filter.count, n as u64);
            let mut denied_before = 0;
            for kept in (0..=filter.bits().unwrap()).step_by(step) {
                let resident =
                    Resident::load([(5, &filter, kept)].into_iter(), 6, None, |_, out| {
                        out.copy_from_slice(&bytes[..out.len()]);
                        Ok(())
                    })
                    .unwrap();
                let may = |key: i64| {
                    let mut found = 0;
                    let query = resident.query(Hasher::seeded(1).signed(key)).unwrap();
                    resident.candidates(&query, |candidate| {
                        assert_eq!((candidate.id, candidate.kept), (5, kept));
                        found += 1;
                        true
                    });
                    found == 1
                };
                assert!((0..n).all(may), "{kind:?} of {n} keys denies one at {kept} bits");
                let denied = (n..n + 200).filter(|&key| !may(key)).count();
                assert!(denied >= denied_before);
                denied_before = denied;
            }
            assert!(n < 40 || denied_before > 180);
        }
    }
}

#[test]
fn records_come_back_and_lies_are_refused() {
    let (filter, _) = Filter::build(Kind::Ribbon, 7, 0, &[5632], &distinct(0..6000)).unwrap();
    let record = filter.record(2.5);
    let levels = [5632u64.to_le_bytes()];
    let mut rest = &levels[..];
    assert_eq!(Filter::from_record(&record, &mut rest).unwrap(), (filter, 2.5));
    assert!(rest.is_empty());
    assert!(Filter::from_record(&record, &mut &levels[..0]).is_err());
    for (at, value) in [(0, 9), (0, 0), (1, 0), (1, 200), (4, 255), (6, 1), (31, 0xC0), (31, 0xFF)]
    {
        let mut lying = record;
        lying[at] = value;
        let refused = Filter::from_record(&lying, &mut &levels[..]);
        assert!(refused.is_err() || (at, value) == (4, 255), "byte {at} as {value}");
    }
}

/// Every length of prefix, copied and shortened: the same bits as if they were loaded alone.
#[test]
fn changed_prefixes_are_those_of_loading() {
    let sizes = [0i64, 1, 5, 40, 63, 64, 300, 6000, 2, 90];
    let kinds = [Kind::Segmented, Kind::Ribbon, Kind::Truncated];
    let built: Vec<_> = (0..200)
        .map(|i| {
            let (n, kind) = (sizes[i % sizes.len()], kinds[i % 3]);
            let levels: &[u64] = if n == 6000 && kind == Kind::Ribbon { &[5632] } else { &[] };
            let keys = distinct(1000 * i as i64..1000 * i as i64 + n);
            Filter::build(kind, 7, (10 * n as u64).max(7), levels, &keys).unwrap()
        })
        .collect();
    let kept = |i: usize, share: u64| built[i].0.bits().unwrap() * share / 10;
    let read = |id: u32, out: &mut [u8]| {
        out.copy_from_slice(&built[id as usize].1[..out.len()]);
        Ok(())
    };
    let load = |ids: &[usize], lengths: &[u64], loaded: Option<Loaded<'_>>| {
        let wanted = ids.iter().zip(lengths).map(|(&i, &kept)| (i as u32, &built[i].0, kept));
        Resident::load(wanted, 200, loaded, read).unwrap()
    };
    let same = |one: &Resident, other: &Resident| {
        assert_eq!(
            one.kept().unwrap().collect::<Vec<_>>(),
            other.kept().unwrap().collect::<Vec<_>>()
        );
        assert_eq!(one.overhead(), other.overhead());
        for key in (0..200_000).step_by(523).chain(-200..0) {
            let query = one.query(Hasher::seeded(1).signed(key)).unwrap();
            let [mut a, mut b] = [Vec::new(), Vec::new()];
            one.candidates(&query, |found| {
                a.push(found);
                true
            });
            other.candidates(&query, |found| {
                b.push(found);
                true
            });
            assert_eq!(a, b);
        }
    };
    let ids: Vec<usize> = (0..200).rev().collect();
    let before: Vec<u64> = ids.iter().map(|&i| kept(i, 6)).collect();
    let old = load(&ids, &before, None);
    let mut positions = vec![u32::MAX; 200];
    ids.iter().enumerate().for_each(|(at, &id)| positions[id] = at as u32);
    for share in [0, 3, 6, 9] {
        let lengths: Vec<u64> = ids.iter().map(|&i| kept(i, share)).collect();
        let loaded = Loaded { resident: &old, positions: &positions };
        same(&load(&ids, &lengths, None), &load(&ids, &lengths, Some(loaded)));
    }
    // Leave every fifth out, then add them, and change every third of the others.
    let some: Vec<usize> = ids.iter().copied().filter(|i| i % 5 > 0).collect();
    let less: Vec<u64> = some.iter().map(|&i| kept(i, 6)).collect();
    let old = load(&some, &less, None);
    let changed: Vec<(usize, u64)> =
        (0..some.len()).step_by(3).map(|at| (at, kept(some[at], at as u64 % 10))).collect();
    let added: Vec<(usize, u32, &Filter, u64)> = (0..200)
        .rev()
        .filter(|i| i % 5 == 0)
        .map(|i| (some.partition_point(|&j| j > i), i as u32, &built[i].0, kept(i, 4)))
        .collect();
    let got = old.changed(200, &changed, &added, read).unwrap();
    let lengths: Vec<u64> = ids
        .iter()
        .map(|&i| match some.iter().position(|&j| j == i) {
            None => kept(i, 4),
            Some(at) if at % 3 == 0 => kept(i, at as u64 % 10),
            Some(_) => kept(i, 6),
        })
        .collect();
    same(&got, &load(&ids, &lengths, None));
}

/// Classes of many sizes: whatever segments are kept, sets are found as each filter alone says.
#[test]
fn sliced_sets_answer_as_filters_alone_do() {
    let shapes = [(30, 7, 20i64), (30, 9, 25), (67, 5, 40), (200, 8, 150)];
    let built: Vec<_> = (0..300usize)
        .map(|i| {
            let (length, hashes, n) = shapes[if i < 170 { i % 2 } else { 2 + i % 2 }];
            let keys = distinct(5 * i as i64..5 * i as i64 + if i == 7 { 0 } else { n });
            Filter::build(Kind::Segmented, hashes, length * u64::from(hashes), &[], &keys).unwrap()
        })
        .collect();
    let filters: Vec<&Filter> = built.iter().map(|(filter, _)| filter).collect();
    let order: Vec<u32> = (0..300).map(|i| i * 7 % 300).collect();
    for share in [0usize, 1, 3, 10] {
        let segments =
            |i: u32| filters[i as usize].hashes.min(((i as usize * 13) % 10 * share / 3) as u8);
        let mut ids: Vec<u32> = (0..300).filter(|&i| i != 7).collect();
        let length = |i: u32| sliced::segment_length(filters[i as usize]).unwrap();
        ids.sort_by_key(|&i| (length(i), std::cmp::Reverse(segments(i))));
        let kept: Vec<u8> = ids.iter().map(|&i| segments(i)).collect();
        let classes = [169, 65, 65];
        let layout =
            sliced::Layout { classes: &classes, ids: &ids, segments: &kept, order: &order };
        let read = |id: u32, out: &mut [u8]| {
            out.copy_from_slice(&built[id as usize].1[..out.len()]);
            Ok(())
        };
        let rows = sliced::Sliced::load(&layout, &filters, read).unwrap();
        let kept: std::collections::HashMap<u32, u32> = rows.kept().collect();
        assert!(ids.iter().all(|&i| kept[&i] >= u32::from(segments(i))));
        for key in (-300..1700).step_by(3) {
            let keys = [key, key + 1].map(|key| Hasher::seeded(1).signed(key));
            for keys in [&keys[..1], &keys[..]] {
                let alone = |&i: &u32| {
                    let (filter, bytes) = (filters[i as usize], &built[i as usize].1);
                    let own = kept.get(&i).map_or(0, |&s| s.min(filter.hashes.into()));
                    let bits = u64::from(own) * if i == 7 { 0 } else { length(i) };
                    let resident =
                        Resident::load([(0, filter, bits)].into_iter(), 1, None, |_, out| {
                            out.copy_from_slice(&bytes[..out.len()]);
                            Ok(())
                        });
                    let resident = resident.unwrap();
                    keys.iter().all(|&key| {
                        let mut found = false;
                        resident.candidates(&resident.query(key).unwrap(), |_| {
                            found = true;
                            true
                        });
                        found
                    })
                };
                let expected: Vec<u32> = order.iter().copied().filter(alone).collect();
                for limit in [0, 1, 5, usize::MAX] {
                    let found = rows.search(keys, limit, None).unwrap();
                    assert_eq!(found, expected[..limit.min(expected.len())]);
                }
                let mut odd = |found: sliced::Match| Ok(found.id % 2 == 1);
                let found = rows.search(keys, 4, Some(&mut odd)).unwrap();
                let some: Vec<u32> = expected.into_iter().filter(|i| i % 2 == 1).take(4).collect();
                assert_eq!(found, some);
            }
        }
    }
}
