//! Whole numbers beside an update: lanes of other widths than its values', their sums exact, their bytes few.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use common::{Client, bfv, dense_schemes, encrypt, expected, finished, flashe, floats, integers, run_round};
use fedcipher_core::bits;
use fedcipher_core::bounds::Bounds;
use fedcipher_core::codec::{Layout, Means, Sums, Tensor, WHOLE};
use fedcipher_core::flashe::{Masking, Policy};
use fedcipher_core::mac::hash::GROUP;
use fedcipher_core::oneshot::prekeys::Life;
use fedcipher_core::oneshot::{Oneshot, OneshotParams, Reveal};
use fedcipher_core::prf::round_client;
use fedcipher_core::rlwe::Bfv;
use fedcipher_core::rlwe::params::{BfvParams, Preset};
use fedcipher_core::scheme::{Expect, Scheme};
use fedcipher_core::wire;
use fedcipher_core::{ClientId, Epoch, RoundId, Weight};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

fn values(len: u32, bits: u32) -> Tensor {
    Tensor { dtype: 1, bits, alpha: 1.0, shape: vec![len] }
}

/// Whole numbers in steps of one.
fn whole(scheme: &dyn Scheme, len: usize, bits: u32) -> Tensor {
    let alpha = (scheme.values().levels.of(bits) / 2) as f32;
    Tensor { dtype: WHOLE, bits, alpha, shape: vec![len as u32] }
}

fn oneshot(clients: u64, bits: &[u32]) -> Arc<dyn Scheme> {
    let params = OneshotParams {
        bounds: Bounds::new(clients, Weight::ONE, Some(3)).unwrap(),
        preset: Preset::Compact,
        bits: bits.to_vec(),
        members: 5,
        threshold: 4,
        corrupt_clients: 1,
        corrupt_members: 1,
        pack: 1,
        reveal: Reveal::Clients,
        life: Life { rounds: 1, hours: 24 },
    };
    Arc::new(Oneshot::new(params).unwrap())
}

/// Opens one round: the values that a reader gets, and the sums behind them.
fn opened(scheme: &dyn Scheme, layout: &Layout, clients: &[Client]) -> (Vec<f32>, Vec<u64>) {
    let ids = ClientId::list(0..clients.len().max(5) as u32);
    let keys = scheme.keygen(&ids, Epoch::new(1)).unwrap();
    let plan = scheme.plan(&keys.server, &ids[..clients.len()]).unwrap();
    let mut aggregator = scheme.aggregator(&keys.server, Some(RoundId::new(9))).unwrap();
    for client in clients {
        aggregator.add(&encrypt(scheme, &keys, layout, 9, client, &plan)).unwrap();
    }
    let aggregate = finished(scheme, &keys.clients, aggregator.as_mut()).unwrap();
    let decryptor = scheme.decryptor(&keys.clients[0], None).unwrap();
    let means = decryptor.decrypt(&aggregate, &Expect::default(), Means::default()).unwrap().into_parts().1;
    let sums = decryptor.decrypt(&aggregate, &Expect::default(), Sums::default()).unwrap().into_parts().1;
    (means.values, sums.0)
}

/// Counts of all clients, and the largest digits on both sides of zero, behind values of five widths.
fn extremes(scheme: &dyn Scheme, clients: usize, widths: &[u32]) {
    let lanes = scheme.values().lanes.unwrap();
    let most = (scheme.values().levels.of(lanes.digit) / 2) as f32;
    let mut tensors: Vec<Tensor> = widths.iter().map(|bits| values(331 + 7 * bits, *bits)).collect();
    tensors.extend([whole(scheme, 5, lanes.count), whole(scheme, 4, lanes.digit)]);
    let layout = Layout::new(tensors).unwrap();
    let cohort: Vec<Client> = (0..clients as u32)
        .map(|id| {
            let mut all = floats(&layout, u64::from(id));
            let last = all.len();
            all[last - 2] = vec![1.0, 0.0, 1.0, f32::from(u8::from(id == 0)), 0.0];
            all[last - 1] = vec![most, -most, 0.0, if id == 0 { most } else { -most }];
            (id, 1, all)
        })
        .collect();
    let n = clients as f32;
    let want = [n, 0.0, n, 1.0, 0.0, n * most, -n * most, 0.0, (2.0 - n) * most];
    let (means, sums) = opened(scheme, &layout, &cohort);
    assert_eq!(means[layout.elements() - 9..], want, "{} of {clients}", scheme.name());
    assert!(sums == expected(scheme.values().levels, &layout, &cohort), "{} of {clients}", scheme.name());
}

#[test]
fn counts_and_the_largest_digits_come_out_exact() {
    let widths = [2, 3, 6, 12, 24];
    for clients in [1, 2, 100] {
        for scheme in dense_schemes(Bounds::new(clients as u64, Weight::ONE, Some(1)).unwrap(), &widths) {
            extremes(scheme.as_ref(), clients, &widths);
        }
    }
    extremes(oneshot(4, &widths).as_ref(), 4, &widths);
    extremes(oneshot(100, &widths).as_ref(), 8, &widths);
}

#[cfg(feature = "hhe")]
#[test]
fn a_field_of_a_prime_has_digits_as_wide_as_it_holds() {
    use fedcipher_core::pasta::{field::PRIMES, scheme::PastaBfv, scheme::PastaParams};
    let bounds = Bounds::new(3, Weight::ONE, Some(1)).unwrap();
    let scheme = PastaBfv::new(PastaParams { bounds, variant: 4, prime: PRIMES[0] }).unwrap();
    assert_eq!(scheme.values().lanes.unwrap().digit, 14);
    extremes(&scheme, 3, &[2, 3, 6, 12]);
}

/// A sparse scheme, whose clients choose their coordinates, has lanes of one width.
#[test]
fn sparse_updates_have_no_lanes_of_other_widths() {
    let bounds = Bounds::new(4, Weight::ONE, Some(1)).unwrap();
    assert!(flashe(bounds, Policy::Adaptive, Some(0.1)).values().lanes.is_none());
    assert!(flashe(bounds, Policy::Adaptive, None).values().lanes.is_some());
}

#[test]
fn whole_numbers_of_sparse_updates_are_sums() {
    let scheme = flashe(Bounds::new(3, Weight::ONE, Some(1)).unwrap(), Policy::Adaptive, Some(0.1));
    let layout = Layout::new(vec![values(1000, 12), whole(scheme.as_ref(), 3, 12)]).unwrap();
    let most = (scheme.values().levels.of(12) / 2) as f32;
    let client = |id| (id, 1, vec![floats(&layout, 1).remove(0), vec![1.0, most, -most]]);
    let clients: Vec<Client> = (0..3).map(client).collect();
    assert_eq!(opened(scheme.as_ref(), &layout, &clients).0[1000..], [3.0, 3.0 * most, -3.0 * most]);
}

#[test]
fn the_sum_of_the_largest_digits_is_a_float32_number() {
    for (clients, digit) in [(1, 16), (2, 16), (100, 16), (256, 16), (512, 16), (513, 15), (1 << 20, 5)] {
        let bounds = Bounds::new(clients, Weight::ONE, Some(1)).unwrap();
        let scheme = flashe(bounds, Policy::Adaptive, None);
        let lanes = scheme.values().lanes.unwrap();
        assert_eq!((lanes.count, lanes.digit), (2, digit), "{clients} clients");
        let most = scheme.values().levels.of(lanes.digit);
        assert!(clients * (most / 2) <= 1 << 24 && clients * most < 1 << bounds.field_bits(lanes.digit));
    }
}

/// Bytes of one client's frame.
fn bytes(scheme: &dyn Scheme, tensors: Vec<Tensor>) -> usize {
    let layout = Layout::new(tensors).unwrap();
    let keys = scheme.keygen(&ClientId::list(0..5), Epoch::new(1)).unwrap();
    encrypt(scheme, &keys, &layout, 9, &(0, 1, floats(&layout, 1)), &[]).len()
}

/// Four digits at 100 clients have more than the 2^64 + 1 numbers from -2^63 to 2^63, whatever bits values have.
#[test]
fn a_number_of_64_bits_is_four_digits() {
    let bounds = Bounds::new(100, Weight::ONE, Some(1)).unwrap();
    for bits in [2, 3, 6, 12, 24] {
        let schemes = [
            (flashe(bounds, Policy::Fixed(Masking::Double), None), 11.6, 1.01),
            (bfv(bounds, Preset::Compact, &[bits], false), 12.8, 1.12),
            (oneshot(100, &[bits]), 12.9, 1.13),
        ];
        for (scheme, most, of_a_count) in schemes {
            let lanes = scheme.values().lanes.unwrap();
            let radix = scheme.values().levels.of(lanes.digit) + 1;
            assert!(u128::from(radix).pow(4) > 1 << 64, "{radix}");
            let with = |counts: usize, digits: usize| {
                let beside = [whole(scheme.as_ref(), counts, lanes.count), whole(scheme.as_ref(), digits, lanes.digit)];
                bytes(scheme.as_ref(), [vec![values(1000, bits)], beside.to_vec()].concat()) as f64
            };
            let number = (with(3, 40_000) - with(3, 0)) / 10_000.0;
            let count = (with(40_000, 4) - with(0, 4)) / 40_000.0;
            assert!(number <= most, "{} of {bits} bits: {number} bytes a number", scheme.name());
            assert!(count <= of_a_count, "{} of {bits} bits: {count} bytes a count", scheme.name());
        }
    }
}

/// LeNet-5 of 3-bit values, with the histograms of its ten arrays and as many digits as its counters take: no more than
/// all of these took as lanes of the values' width.
#[test]
fn a_small_model_is_no_larger_than_with_lanes_of_its_values() {
    let bounds = Bounds::new(100, Weight::ONE, Some(1)).unwrap();
    for scheme in [flashe(bounds, Policy::Adaptive, None), bfv(bounds, Preset::Compact, &[3], false)] {
        let lanes = scheme.values().lanes.unwrap();
        let beside = [whole(scheme.as_ref(), 560, lanes.count), whole(scheme.as_ref(), 30, lanes.digit)];
        let now = bytes(scheme.as_ref(), [vec![values(61_706, 3)], beside.to_vec()].concat());
        // A number of 41 bits was 21 lanes of 2 bits.
        let before = bytes(scheme.as_ref(), vec![values(61_706, 3), values(560 + 150, 3)]);
        assert!(now < before, "{}: {now} and {before} bytes", scheme.name());
    }
}

/// The masks of a frame of several widths, one AES call a lane: lanes of two segments never share a block.
#[test]
fn no_word_of_the_key_stream_is_used_twice() {
    let scheme = flashe(Bounds::new(100, Weight::ONE, Some(1)).unwrap(), Policy::Fixed(Masking::Single), None);
    let lanes = scheme.values().lanes.unwrap();
    let tensors = vec![
        values(40_001, 3),
        values(77, 12),
        values(3, 24),
        values(1, 8),
        whole(scheme.as_ref(), 561, lanes.count),
        whole(scheme.as_ref(), 30_003, lanes.digit),
        values(5, 2),
    ];
    let layout = Layout::new(tensors).unwrap();
    let keys = scheme.keygen(&ClientId::list([7, 8]), Epoch::new(1)).unwrap();
    let client = (7, 1, floats(&layout, 3));
    let frame = encrypt(scheme.as_ref(), &keys, &layout, 5, &client, &[]);
    let payload = &wire::parse(&frame).unwrap().payload[1..];
    let mut key = [0; 16];
    key.copy_from_slice(&keys.clients[0].secret[..16]);
    let aes = aes::Aes128::new(&key.into());
    let ints = integers(scheme.values().levels, &layout, &client.2);
    let bounds = Bounds::new(100, Weight::ONE, Some(1)).unwrap();
    let (mut at, mut first, mut used) = (0, 0, BTreeSet::new());
    for segment in layout.segments() {
        let width = bounds.field_bits(segment.bits);
        let per = (128 / width) as usize;
        for d in 0..segment.len {
            let number = (first + d / per) as u32;
            let mut block = [0u8; 16];
            block[..12].copy_from_slice(&round_client(RoundId::new(5), ClientId::new(7)));
            block[12..].copy_from_slice(&number.to_be_bytes());
            let mut block = block.into();
            aes.encrypt_block(&mut block);
            let from = d % per * width as usize;
            let mask = (u128::from_le_bytes(block.into()) >> from) as u64;
            let sent = bits::read_bits(&payload[at..], d * width as usize, width) as u64;
            let wanted = ints[segment.start + d].wrapping_add(mask) & bits::lane_mask(width);
            assert_eq!(sent, wanted, "lane {d} of {segment:?}");
            assert!(used.insert((number, d % per)), "word {} of block {number} twice", d % per);
        }
        first += segment.len.div_ceil(per);
        at += bits::packed_len(segment.len, width);
        assert!(used.iter().next_back().is_some_and(|(last, _)| (*last as usize) < first));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Every element has a field of one coefficient, no coefficient belongs to two runs, and a tag may be cut where
    /// ciphertexts are.
    #[test]
    fn segments_share_ciphertexts(
        sizes in prop::collection::vec((0u32..60_000, prop::sample::select(vec![2u32, 3, 12, 16, 24])), 1..9),
    ) {
        let bounds = Bounds::new(100, Weight::ONE, Some(1)).unwrap();
        let params = BfvParams { bounds, preset: Preset::Compact, bits: vec![3, 12, 24], server_weights: false };
        let bfv = Bfv::new(params).unwrap();
        let d = bfv.derived();
        let layout = Layout::new(sizes.iter().map(|(len, bits)| values(*len, *bits)).collect()).unwrap();
        let (blocks, segments) = (d.shape(&layout).unwrap(), layout.segments());
        let mut end = 0;
        for block in &blocks {
            let mut coefficient = 0;
            prop_assert_eq!(block.start(), end);
            for part in &block.parts {
                prop_assert!(part.len > 0 && part.start == end && part.first == coefficient);
                prop_assert_eq!(part.used, part.packing.fields.coefficients(part.len));
                let segment = segments.iter().rfind(|s| s.start <= part.start).unwrap();
                prop_assert!(segment.bits == part.packing.bits && (part.start - segment.start).is_multiple_of(GROUP));
                end += part.len;
                prop_assert!(end <= segment.start + segment.len);
                coefficient += part.used;
            }
            prop_assert!(coefficient <= d.ring.n && coefficient == block.used());
        }
        prop_assert_eq!(end, layout.elements());
        // A ciphertext is begun where the last one is full, but for a group.
        let all: usize = blocks.iter().map(|block| block.used()).sum();
        prop_assert!(blocks.len() <= all.div_ceil(d.ring.n - GROUP + 1));
    }

    #[test]
    fn frames_of_any_widths_are_exact(
        sizes in prop::collection::vec((0u32..9000, prop::sample::select(vec![2u32, 3, 12, 16])), 1..7),
        seed in any::<u32>(),
    ) {
        let layout = Layout::new(sizes.iter().map(|(len, bits)| values(*len, *bits)).collect()).unwrap();
        let clients: Vec<Client> = (0..3).map(|id| (id, 1, floats(&layout, u64::from(seed) + u64::from(id)))).collect();
        let mut schemes = dense_schemes(Bounds::new(100, Weight::ONE, Some(1)).unwrap(), &[3, 12]);
        schemes.push(oneshot(100, &[3, 12]));
        for scheme in schemes {
            let got = run_round(scheme.as_ref(), &layout, &(0..5).collect::<Vec<_>>(), &clients);
            prop_assert!(got == expected(scheme.values().levels, &layout, &clients), "{}", scheme.name());
        }
    }
}
