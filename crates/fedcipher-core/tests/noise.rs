//! Noise for differential privacy: its distribution, its grid, its bound and its budget.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use fedcipher_core::bounds::{Bounds, Levels};
use fedcipher_core::codec::{Layout, Rounding, Tensor, Update};
use fedcipher_core::ledger::Ledger;
use fedcipher_core::noise::{DiscreteGaussian, Limits, noised};
use fedcipher_core::plain::Plain;
use fedcipher_core::prf::Stream;
use fedcipher_core::scheme::Scheme;
use fedcipher_core::{ClientId, Epoch, Error, RoundId, Weight, registry};
use proptest::prelude::*;

fn layout(bits: u32, alpha: f32, lengths: &[usize]) -> Layout {
    let tensor = |n: &usize| Tensor { dtype: 1, bits, alpha, shape: vec![*n as u32] };
    Layout::new(lengths.iter().map(tensor).collect()).unwrap()
}

/// The integers into which a scheme's kernel quantises these values, less the integer of zero.
fn integers(layout: &Layout, flat: &[f32]) -> Vec<i64> {
    let update = Update::new(layout, layout.split(flat).unwrap(), Rounding::Nearest).unwrap();
    let mut ints = vec![0u32; flat.len()];
    update.quantise(Levels::default(), 0, &mut ints).unwrap();
    assert!(update.clipped().iter().all(|n| *n == 0));
    let half = (1i64 << (layout.tensors()[0].bits - 1)) - 1;
    ints.into_iter().map(|x| i64::from(x) - half).collect()
}

fn draws(numerator: u64, shift: u32, count: usize, seed: u8) -> Vec<i64> {
    let gaussian = DiscreteGaussian::new(numerator, shift).unwrap();
    let mut random = Stream::new(&[seed; 32], [0; 12]).unwrap();
    (0..count).map(|_| gaussian.sample(&mut random)).collect()
}

/// Computed by the fractions of Python's in `tests/schemes/test_dp.py`, over the same words of AES-256-CTR.
#[test]
fn discrete_gaussian_known_answers() {
    assert_eq!(draws(1, 2, 16, 7), [0, 1, 0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(draws(81, 3, 16, 7), [5, -4, 3, 3, 1, -1, 2, -1, -3, 5, 3, 1, -2, 2, 3, -1]);
    assert_eq!(draws(5_235_429_288_279, 29, 8, 7), [145, 35, 33, -47, -93, 87, 96, 45]);
}

/// Pearson's chi-square against the definition, at a tail of six deviations.
#[test]
fn draws_have_the_probabilities_of_the_definition() {
    for (numerator, shift) in [(1, 2), (1, 0), (81, 3), (1000, 0)] {
        let (count, variance) = (200_000, numerator as f64 / f64::from(1u32 << shift));
        let density = |x: i64| (-(x as f64).powi(2) / (2.0 * variance)).exp();
        let total: f64 = (-2000..=2000).map(density).sum();
        let drawn = draws(numerator, shift, count, 3);
        let bulk: Vec<i64> = (-2000..=2000).filter(|x| density(*x) / total * count as f64 > 20.0).collect();
        let (mut square, mut seen, mut expected_seen) = (0.0, 0usize, 0.0);
        for x in &bulk {
            let (found, expected) = (drawn.iter().filter(|d| *d == x).count(), density(*x) / total * count as f64);
            square += (found as f64 - expected).powi(2) / expected;
            (seen, expected_seen) = (seen + found, expected_seen + expected);
        }
        let rest = count as f64 - expected_seen;
        square += ((count - seen) as f64 - rest).powi(2) / rest.max(1.0);
        let freedom = bulk.len() as f64;
        assert!(square < freedom + 6.0 * (2.0 * freedom).sqrt() + 12.0, "{variance}: {square} of {freedom}");
    }
}

#[test]
fn variances_out_of_range_are_refused() {
    for (numerator, shift) in [(0, 0), (1, 3), ((1 << 44) + 1, 0), (1, 200)] {
        assert_eq!(DiscreteGaussian::new(numerator, shift).unwrap_err().class(), "ParameterError");
    }
    // The largest that there are still fit the arithmetic.
    assert!(draws(1 << 44, 0, 1000, 1).iter().any(|x| x.unsigned_abs() > 1 << 20));
}

proptest! {
    /// Values that are written back are quantised to exactly the intended integers: all of them, at every width, for
    /// every range.
    #[test]
    fn the_grid_is_exact_at_every_width(alpha in 1e-20f32..1e20, bits in 4u32..=24, at in any::<u32>()) {
        let half = (1i64 << (bits - 1)) - 1;
        let step = f64::from(alpha) / half as f64;
        let around = i64::from(at) % (2 * half + 1) - half;
        let wanted: Vec<i64> =
            (-half..=half).take(64).chain(half - 63..=half).chain(around - 32..=around + 32)
                .filter(|x| x.abs() <= half).collect();
        let flat: Vec<f32> = wanted.iter().map(|x| (*x as f64 * step) as f32).collect();
        let layout = layout(bits, alpha, &[flat.len()]);
        prop_assert_eq!(integers(&layout, &flat), wanted);
    }

    /// However the update is: the norm after rounding keeps its bound, and the noise is the same integers.
    #[test]
    fn norms_are_bounded_whatever_the_update(
        x in prop::collection::vec(-3f32..3.0, 1..400), clip in 0.01f64..10.0, bits in 8u32..=20
    ) {
        let alpha = (4.0 * clip) as f32;
        let layout = layout(bits, alpha, &[x.len()]);
        let step = f64::from(alpha) / ((1i64 << (bits - 1)) - 1) as f64;
        let (reach, d) = (clip / step, x.len() as f64);
        let square = (reach * reach + d / 4.0 + 5.3 * (reach + d.sqrt() / 2.0)).floor() as u64;
        let (limits, gaussian) = (Limits { clip, square }, DiscreteGaussian::new(1, 2).unwrap());
        let made = noised(&layout, &[&x], limits, &gaussian, &[9; 32]).unwrap();
        let noise = noised(&layout, &[&vec![0.0; x.len()]], limits, &gaussian, &[9; 32]).unwrap();
        prop_assert_eq!((&made.cut, &noise.cut), (&vec![0], &vec![0]));
        prop_assert_eq!(noise.norm, 0.0);
        let both = integers(&layout, &made.values).into_iter().zip(integers(&layout, &noise.values));
        let rounded: Vec<i64> = both.map(|(a, b)| a - b).collect();
        prop_assert!(rounded.iter().map(|x| (x * x) as u64).sum::<u64>() <= square);
        let norm = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        prop_assert!((made.norm - norm).abs() <= 1e-9 * norm);
        let scale = (clip / norm).min(1.0) / step;
        for (x, z) in x.iter().zip(rounded) {
            prop_assert!((f64::from(*x) * scale - z as f64).abs() < 1.0 + 1e-6);
        }
    }
}

#[test]
fn rounding_is_unbiased() {
    let (n, layout) = (40_000, layout(16, 32_767.0, &[40_000]));
    let (limits, gaussian) = (Limits { clip: 1e9, square: 1 << 40 }, DiscreteGaussian::new(1, 2).unwrap());
    let made = noised(&layout, &[&vec![0.3; n]], limits, &gaussian, &[2; 32]).unwrap();
    let mean = made.values.iter().map(|x| f64::from(*x)).sum::<f64>() / n as f64;
    // Six deviations: those of a coin and of the noise together are below 0.7.
    assert!((mean - 0.3).abs() < 6.0 * 0.7 / 200.0, "{mean}");
}

#[test]
fn what_is_beyond_the_range_is_cut_and_counted() {
    // Four bits hold 7 steps, noise of deviation 8 often more.
    let layout = layout(4, 1.0, &[40_000, 20_000]);
    let (zeros, limits) = (vec![0f32; 60_000], Limits { clip: 1.0, square: 49 });
    let gaussian = DiscreteGaussian::new(64, 0).unwrap();
    let made = noised(&layout, &[&zeros[..40_000], &zeros[40_000..]], limits, &gaussian, &[1; 32]).unwrap();
    let found = integers(&layout, &made.values);
    assert!(found.iter().all(|x| x.abs() <= 7));
    for (cut, part) in made.cut.iter().zip([&found[..40_000], &found[40_000..]]) {
        let edge = part.iter().filter(|x| x.abs() == 7).count() as u64;
        // 7 itself is at the edge and not cut.
        assert!(*cut < edge && *cut > edge / 2, "{cut} of {edge}");
        assert!((*cut as f64 / part.len() as f64 - 0.348).abs() < 0.02, "{cut}");
    }
}

#[test]
fn a_bound_that_no_rounding_keeps_is_an_error() {
    let (layout, x) = (layout(12, 1.0, &[100]), vec![0.05f32; 100]);
    let (limits, gaussian) = (Limits { clip: 1.0, square: 10 }, DiscreteGaussian::new(1, 0).unwrap());
    let error = noised(&layout, &[&x], limits, &gaussian, &[1; 32]).unwrap_err();
    assert!(error.to_string().contains("all exceed its norm"), "{error}");
}

#[test]
fn other_grids_and_broken_values_are_refused() {
    let gaussian = DiscreteGaussian::new(1, 0).unwrap();
    let limits = Limits { clip: 1.0, square: 1 << 40 };
    let with = |layout: &Layout, x: &[&[f32]]| noised(layout, x, limits, &gaussian, &[1; 32]).map(drop).unwrap_err();
    let mut tensors = layout(8, 1.0, &[2, 2]).tensors().to_vec();
    tensors[1].alpha = 2.0;
    let two = Layout::new(tensors).unwrap();
    assert!(with(&two, &[&[0.0; 2], &[0.0; 2]]).to_string().contains("one grid"));
    assert_eq!(with(&layout(8, 1.0, &[3]), &[&[0.0; 2]]).class(), "LayoutError");
    let error = with(&layout(8, 1.0, &[2, 2]), &[&[0.0; 2], &[0.0, f32::NAN]]);
    assert!(matches!(error, Error::NotFinite { tensor: 1, index: 1, .. }));
}

/// Above a million values several threads work, and draw the same.
#[test]
fn threads_change_nothing() {
    let n = (1 << 20) + 1;
    let x: Vec<f32> = (0..n).map(|k| (k % 17) as f32 - 8.0).collect();
    let (layout, gaussian) = (layout(16, 1.0, &[n]), DiscreteGaussian::new(1000, 0).unwrap());
    let limits = Limits { clip: 0.5, square: 1 << 40 };
    let made = || noised(&layout, &[&x], limits, &gaussian, &[5; 32]).unwrap().values;
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap().install(made);
    assert!(alone == made());
    // The first values of a shorter update, which one thread does, have the same noise.
    let short = self::layout(16, 1.0, &[100]);
    let few = noised(&short, &[&vec![0.0; 100]], limits, &gaussian, &[5; 32]).unwrap().values;
    let zeros = noised(&layout, &[&vec![0.0; n]], limits, &gaussian, &[5; 32]).unwrap().values;
    assert_eq!(few, zeros[..100]);
}

const PRIVACY: &str = r#"{"clip": 1.0, "noise_multiplier": 2.0, "rounds": 3, "delta": 1e-5}"#;

fn private() -> Bounds {
    Bounds::new(4, Weight::ONE, None).unwrap().with_privacy(Some(registry::privacy(PRIVACY).unwrap())).unwrap()
}

#[test]
fn a_key_gives_as_many_updates_as_its_budget_also_after_restarts() {
    let key = Plain::new(private()).keygen(&ClientId::list([0]), Epoch::new(1)).unwrap().clients.remove(0);
    let state = tempfile::tempdir().unwrap();
    for folder in [Some(state.path()), None] {
        let open = || Ledger::open(&key, folder).unwrap().within(Some(3));
        let mut ledger = open();
        for round in 1..=3 {
            if folder.is_some() {
                ledger = open();
            }
            // A round that is reserved and then claimed counts once. A rejection does not count.
            ledger.reserve(RoundId::new(round)).unwrap();
            ledger.claim(RoundId::new(round)).unwrap();
            assert_eq!(ledger.claim(RoundId::new(round)).unwrap_err().class(), "NonceReuseError");
        }
        assert!(matches!(ledger.claim(RoundId::new(4)), Err(Error::Budget { client, most: 3 }) if client.get() == 0));
        assert_eq!(ledger.reserve(RoundId::new(5)).unwrap_err().class(), "PrivacyBudgetError");
    }
    // Nor for another process, nor for an encryptor of the scheme.
    let mut other = Plain::new(private()).encryptor(&key, Some(state.path())).unwrap();
    let error = other.precompute(RoundId::new(9), &layout(8, 1.0, &[1]), &[]).unwrap_err();
    assert!(error.to_string().contains("new keys"), "{error}");
    // Rounds that were claimed without a budget count as soon as there is one.
    Ledger::open(&key, Some(state.path())).unwrap().claim(RoundId::new(6)).unwrap();
    assert!(Ledger::open(&key, Some(state.path())).unwrap().within(Some(4)).claim(RoundId::new(7)).is_err());
    assert!(Ledger::open(&key, Some(state.path())).unwrap().within(Some(5)).claim(RoundId::new(7)).is_ok());
}

#[test]
fn privacy_is_in_digests_and_its_absence_is_not() {
    let bounds = Bounds::new(4, Weight::ONE, Some(2)).unwrap();
    let make = |privacy: &str| {
        let params = r#""params": {"clients": 4, "max_weight": 1, "min_contributions": 2}"#;
        registry::make(&format!(r#"{{"scheme": "plain", {params}, "codec": {{"bits": 8{privacy}}}}}"#))
            .unwrap()
            .digest()
    };
    assert_eq!(make(""), Plain::new(bounds).digest());
    assert_eq!(make(r#", "privacy": null"#), make(""));
    let with = |p: &str| make(&format!(r#", "privacy": {p}"#));
    assert_ne!(with(PRIVACY), make(""));
    for (found, other) in [("3,", "4,"), ("1e-5", "1e-6"), ("2.0", "2.5"), ("1.0", "1.5")] {
        assert_ne!(with(PRIVACY), with(&PRIVACY.replacen(found, other, 1)), "{found}");
    }
}

#[test]
fn weights_do_not_go_with_privacy() {
    let error =
        Bounds::new(4, Weight::new(2), None).unwrap().with_privacy(registry::privacy(PRIVACY).ok()).unwrap_err();
    assert!(error.to_string().contains("--equal"), "{error}");
    assert!(registry::privacy(r#"{"clip": 1.0}"#).is_err());
}
