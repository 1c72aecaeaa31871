//! For every scheme: the decrypted sum equals the sum of the quantised updates, exactly.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Client, bfv, dense_schemes, encrypt, expected, flashe, floats, integers, layout, run_round, zero};
use fedcipher_core::bounds::Bounds;
use fedcipher_core::codec::{Layout, Sums};
use fedcipher_core::flashe::{Masking, Policy};
use fedcipher_core::rlwe::params::Preset;
use fedcipher_core::scheme::{Expect, Request};
use fedcipher_core::{ClientId, Epoch, RoundId, TotalWeight, Weight};
use proptest::prelude::*;

fn cohort_of(ids: &[(u32, u64)], layout: &Layout, seed: u64) -> Vec<Client> {
    ids.iter().map(|(id, weight)| (*id, *weight, floats(layout, seed + u64::from(*id)))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Random cohorts, drop-outs, weights, lengths and widths per layer.
    #[test]
    fn sums_are_exact(
        members in prop::collection::btree_map(0u32..20, 1u64..=5, 1..8),
        sizes in prop::collection::vec((0usize..3000, prop::sample::select(vec![2u32, 3, 4, 8, 12])), 1..5),
        seed in any::<u64>(),
    ) {
        let layout = layout(&sizes);
        let ids: Vec<(u32, u64)> = members.into_iter().collect();
        let clients = cohort_of(&ids, &layout, seed >> 8);
        let bounds = Bounds::new(8, Weight::new(5), Some(1)).unwrap();
        let want = expected(bounds.levels(), &layout, &clients);
        for scheme in dense_schemes(bounds, &[2, 3, 4, 8, 12]) {
            let got = run_round(scheme.as_ref(), &layout, &(0..20).collect::<Vec<_>>(), &clients);
            prop_assert!(got == want, "{} {:?}", scheme.name(), scheme.describe());
        }
    }

    /// As many levels as a field holds sums of, and not one step more.
    #[test]
    fn levels_fill_the_field(clients in 1u64..2000, weight in 1u64..5000, bits in 2u32..=24, prime in any::<bool>()) {
        let bounds = Bounds::new(clients, Weight::new(weight), Some(1)).unwrap();
        let field = 1u128 << bounds.field_bits(bits);
        // The largest sum that the bits need is below the prime too.
        let room = if prime { bounds.max_sum(bits) + 1 } else { field };
        let levels = if prime { bounds.levels().below(room as u64) } else { bounds.levels() }.of(bits);
        let sum = |levels: u64| u128::from(bounds.total_weight().get()) * u128::from(levels);
        prop_assert!(levels % 2 == 0 && levels >= (1 << bits) - 2);
        prop_assert!(sum(levels) < room && sum(levels + 2) >= room.min(field));
        prop_assert!(levels < 1 << (bits + 1), "half of them are a float32 number");
    }

    /// FLASHE at every lane width.
    #[test]
    fn flashe_at_any_width(
        bits in 2u32..=24,
        max_weight in prop_oneof![Just(1u64), 1u64..8, 1u64..1_000_000],
        others in 0usize..=2,
        len in 1usize..2000,
        seed in any::<u32>(),
    ) {
        let layout = layout(&[(len, bits)]);
        let cohort = [(3, max_weight), (4, 1), (9, max_weight / 2 + 1)];
        let clients = cohort_of(&cohort[..=others], &layout, u64::from(seed));
        let bounds = Bounds::new(others as u64 + 1, Weight::new(max_weight), Some(1)).unwrap();
        for masking in [Masking::Single, Masking::Double] {
            let scheme = flashe(bounds, Policy::Fixed(masking), None);
            let want = expected(scheme.values().levels, &layout, &clients);
            prop_assert_eq!(run_round(scheme.as_ref(), &layout, &[3, 4, 9], &clients), want);
        }
    }
}

#[test]
fn a_layer_larger_than_one_ciphertext_just_works() {
    let layout = layout(&[(100_000, 12), (1, 12), (50_001, 8)]);
    let clients = cohort_of(&[(0, 1), (1, 1)], &layout, 5);
    for scheme in dense_schemes(Bounds::new(2, Weight::ONE, Some(1)).unwrap(), &[8, 12]) {
        let want = expected(scheme.values().levels, &layout, &clients);
        assert_eq!(run_round(scheme.as_ref(), &layout, &[0, 1], &clients), want);
    }
}

#[test]
fn largest_values_of_the_largest_cohort_do_not_overflow() {
    let layout = layout(&[(500, 12)]);
    let clients: Vec<Client> = (0..100).map(|id| (id, 3, vec![vec![1.0; 500]])).collect();
    for scheme in dense_schemes(Bounds::new(100, Weight::new(3), Some(1)).unwrap(), &[12]) {
        let got = run_round(scheme.as_ref(), &layout, &(0..100).collect::<Vec<_>>(), &clients);
        assert!(got.iter().all(|s| *s == 300 * scheme.values().levels.of(12)), "{}", scheme.name());
    }
}

/// A server's false plan costs no round: it is refused before anything is on disk.
#[test]
fn a_plan_that_is_none_spends_no_round() {
    let layout = layout(&[(5000, 12)]);
    let values = floats(&layout, 1);
    let update = common::update(&layout, &values);
    for top in [None, Some(0.1)] {
        let scheme = flashe(Bounds::new(2, Weight::ONE, Some(1)).unwrap(), Policy::Adaptive, top);
        let keys = scheme.keygen(&ClientId::list([0, 1]), Epoch::new(1)).unwrap();
        let mut encryptor = scheme.encryptor(&keys.clients[0], None).unwrap();
        for plan in [&[9][..], &[0, 0], &[1; 40]] {
            assert_eq!(
                encryptor.precompute(RoundId::new(6), &layout, plan).unwrap_err().class(),
                "FrameError",
                "{top:?} {plan:?}"
            );
        }
        let request = Request {
            round: RoundId::new(6),
            weight: Weight::ONE,
            update: &update,
            round_plan: &[],
            model: b"model",
            memory: &[],
            associated_data: &[],
        };
        encryptor.encrypt(&request).unwrap();
    }
}

/// Whatever is made meanwhile: when it returns the round is on disk, and refused where it was there before.
#[test]
fn what_is_precomputed_has_spent_its_round() {
    let layout = layout(&[(5000, 12)]);
    let values = floats(&layout, 1);
    let update = common::update(&layout, &values);
    let of = |round| Request {
        round,
        weight: Weight::ONE,
        update: &update,
        round_plan: &[],
        model: b"model",
        memory: &[],
        associated_data: &[],
    };
    let bounds = Bounds::new(2, Weight::ONE, Some(1)).unwrap();
    let sparse = flashe(bounds, Policy::Adaptive, Some(0.1));
    for scheme in dense_schemes(bounds, &[12]).into_iter().chain([sparse]) {
        let (keys, state) =
            (scheme.keygen(&ClientId::list([0, 1]), Epoch::new(1)).unwrap(), tempfile::tempdir().unwrap());
        let make = || scheme.encryptor(&keys.clients[0], Some(state.path())).unwrap();
        let (mut one, mut other) = (make(), make());
        one.precompute(RoundId::new(6), &layout, &[]).unwrap();
        let refused = [
            other.encrypt(&of(RoundId::new(6))).map(drop),
            other.precompute(RoundId::new(6), &layout, &[]),
            one.precompute(RoundId::new(5), &layout, &[]),
        ];
        for refusal in refused {
            assert_eq!(refusal.unwrap_err().class(), "NonceReuseError", "{}", scheme.name());
        }
        one.encrypt(&of(RoundId::new(6))).unwrap();
        other.encrypt(&of(RoundId::new(7))).unwrap();
        assert_eq!(one.encrypt(&of(RoundId::new(7))).unwrap_err().class(), "NonceReuseError", "{}", scheme.name());
    }
}

#[test]
fn server_side_weights_multiply() {
    let layout = layout(&[(700, 12)]);
    let clients = cohort_of(&[(0, 9), (1, 4)], &layout, 8);
    let scheme = bfv(Bounds::new(2, Weight::new(9), Some(1)).unwrap(), Preset::Compact, &[12], true);
    let keys = scheme.keygen(&ClientId::list([0, 1]), Epoch::new(1)).unwrap();
    let mut aggregator = scheme.aggregator(&keys.server, None).unwrap();
    for client in &clients {
        aggregator.add(&encrypt(scheme.as_ref(), &keys, &layout, 1, client, &[])).unwrap();
    }
    let frame = aggregator.finish().unwrap();
    let decryptor = scheme.decryptor(&keys.clients[1], None).unwrap();
    let (summary, sums) = decryptor.decrypt(&frame, &Expect::default(), Sums::default()).unwrap().into_parts();
    let ints: Vec<Vec<u64>> = clients.iter().map(|c| integers(scheme.values().levels, &layout, &c.2)).collect();
    let want: Vec<u64> = ints[0].iter().zip(&ints[1]).map(|(a, b)| 9 * a + 4 * b).collect();
    assert_eq!(sums.0, want);
    assert_eq!(summary.header.total_weight(), TotalWeight::new(13));
}

/// Top-s%: what was sent sums exactly, the rest counts as zero, and nothing is lost over rounds.
#[test]
fn sparse_rounds_sum_what_was_sent_and_keep_the_rest() {
    let layout = layout(&[(2000, 12), (0, 12), (37, 8)]);
    let bounds = Bounds::new(4, Weight::new(3), Some(1)).unwrap();
    for policy in [Policy::Fixed(Masking::Single), Policy::Fixed(Masking::Double), Policy::Adaptive] {
        let scheme = flashe(bounds, policy, Some(0.1));
        let keys = scheme.keygen(&ClientId::list([0, 1, 2, 5]), Epoch::new(1)).unwrap();
        let mut encryptors: Vec<_> = keys.clients.iter().map(|k| scheme.encryptor(k, None).unwrap()).collect();
        let values: Vec<Vec<Vec<f32>>> = (0..4)
            .map(|seed| floats(&layout, seed).into_iter().map(|x| x.into_iter().map(|v| v * 0.04).collect()).collect())
            .collect();
        let weights = [1u64, 3, 2, 1];
        let mut total = vec![0f64; layout.elements()];
        const ROUNDS: u64 = 40;
        for round in 1..=ROUNDS {
            let plan = scheme.plan(&keys.server, &ClientId::list([0, 1, 2, 5])).unwrap();
            let mut aggregator = scheme.aggregator(&keys.server, Some(RoundId::new(round))).unwrap();
            for ((encryptor, x), weight) in encryptors.iter_mut().zip(&values).zip(weights) {
                let update = common::update(&layout, x);
                let request = Request {
                    round: RoundId::new(round),
                    weight: Weight::new(weight),
                    update: &update,
                    round_plan: &plan,
                    model: b"model",
                    memory: &[],
                    associated_data: &[],
                };
                aggregator.add(&encryptor.encrypt(&request).unwrap()).unwrap();
            }
            let frame = aggregator.finish().unwrap();
            let decryptor = scheme.decryptor(&keys.clients[0], None).unwrap();
            let opened = decryptor.decrypt(&frame, &Expect::default(), Sums::default()).unwrap();
            let (summary, sums) = opened.into_parts();
            let counts = summary.counts.unwrap();
            let sent: u32 = counts.iter().sum();
            assert_eq!(sent, 4 * (200 + 37));
            for (d, (sum, count)) in sums.0.iter().zip(&counts).enumerate() {
                let bits = if d < 2000 { 12 } else { 8 };
                if *count == 0 {
                    assert_eq!(*sum, 7 * zero(scheme.values().levels, bits), "an unsent coordinate is zero");
                }
                total[d] += (*sum as f64 - 7.0 * zero(scheme.values().levels, bits) as f64)
                    / zero(scheme.values().levels, bits) as f64;
            }
        }
        // Error feedback: over many rounds the sums approach the full updates' sums.
        let mut worst = 0f64;
        for (d, total) in total.iter().enumerate().take(2000) {
            let full: f64 = values.iter().zip(weights).map(|(x, w)| f64::from(x[0][d]) * w as f64).sum();
            worst = worst.max((full - total / ROUNDS as f64).abs());
        }
        assert!(worst < 0.04, "error feedback lost {worst}");
    }
}

#[test]
fn error_feedback_survives_export_and_import() {
    let layout = layout(&[(300, 12)]);
    let scheme = flashe(Bounds::new(2, Weight::ONE, Some(1)).unwrap(), Policy::Fixed(Masking::Double), Some(0.05));
    let keys = scheme.keygen(&ClientId::list([0, 1]), Epoch::new(1)).unwrap();
    let x = floats(&layout, 3);
    let update = common::update(&layout, &x);
    let mut first = scheme.encryptor(&keys.clients[0], None).unwrap();
    first
        .encrypt(&Request {
            round: RoundId::new(1),
            weight: Weight::ONE,
            update: &update,
            round_plan: &[],
            model: b"model",
            memory: &[],
            associated_data: &[],
        })
        .unwrap();
    let mut second = scheme.encryptor(&keys.clients[0], None).unwrap();
    let kept = first.residual().unwrap().export_state();
    second.residual().unwrap().import_state(&kept).unwrap();
    let request = Request {
        round: RoundId::new(2),
        weight: Weight::ONE,
        update: &update,
        round_plan: &[],
        model: b"model",
        memory: &[],
        associated_data: &[],
    };
    assert_eq!(first.encrypt(&request).unwrap(), second.encrypt(&request).unwrap());
    assert!(second.residual().unwrap().import_state(&[1, 2, 3]).is_err());
}
