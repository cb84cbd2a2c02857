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
                let resident = Resident::load([(5, &filter, kept)].into_iter(), 6, None, |_, out| {
                    out.copy_from_slice(&bytes[..out.len()]);
                    Ok(())
                })
                .unwrap();
                let may = |key: i64| {
                    let mut found = 0;
                    let query = resident.query(Hasher::seeded(1).signed(key));
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
