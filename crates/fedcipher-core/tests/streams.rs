//! Piece by piece is the same as all at once, for every scheme that has pieces.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Client, dense_schemes, encrypt, expected, floats, integers, layout, update};
use fedcipher_core::bounds::{Bounds, Levels};
use fedcipher_core::codec::{Layout, Means, Rounding, Sums, Update};
use fedcipher_core::keys::KeySet;
use fedcipher_core::prf::KeyStream;
use fedcipher_core::protocol::{Decryption, Decryptor, Form};
use fedcipher_core::scheme::{Expect, Scheme, Terms};
use fedcipher_core::{ClientId, Epoch, Error, RoundId, Weight, wire};
use proptest::prelude::*;
use std::sync::Arc;

/// A frame made from windows of the flat update, as the offload engine makes it: `step` values come at a time.
fn sealed(scheme: &dyn Scheme, keys: &KeySet, layout: &Layout, client: &Client, step: usize) -> Vec<u8> {
    let key = keys.clients.iter().find(|k| k.client == ClientId::new(client.0)).unwrap();
    let mut encryptor = scheme.encryptor(key, None).unwrap();
    let mut sealing = encryptor.start(&terms(layout, client.1)).unwrap().unwrap();
    let flat = client.2.concat();
    let (mut frame, mut first, mut have) = (Vec::new(), 0, 0);
    while first < flat.len() {
        have = (have + step).min(flat.len() - first);
        let used = sealing.whole(have);
        let part = Update::window(layout, first, &flat[first..first + used], Rounding::Nearest).unwrap();
        sealing.push(&part, &mut frame).unwrap();
        (first, have) = (first + used, have - used);
    }
    let len = sealing.frame_len();
    frame.extend_from_slice(&sealing.finish().unwrap());
    assert_eq!(frame.len(), len);
    frame
}

fn terms(layout: &Layout, weight: u64) -> Terms<'_> {
    Terms {
        round: RoundId::new(1),
        weight: Weight::new(weight),
        layout,
        round_plan: &[],
        model: b"model",
        memory: &[],
        associated_data: &[],
    }
}

/// The first bytes of an aggregate, as its reader needs them.
fn beginning<'a>(decryptor: &Decryptor, frame: &'a [u8]) -> &'a [u8] {
    let head_len = wire::head_len(&frame[..wire::FIXED_LEN]).unwrap();
    let head = wire::parse_head(&frame[..head_len]).unwrap();
    &frame[..head_len + decryptor.prefix_len(head.header.contributions.len()).min(head.payload_len)]
}

/// Its values, from `step` bytes at a time.
fn opened(decryptor: &Decryptor, frame: &[u8], form: Form, step: usize) -> Result<Vec<u8>, Error> {
    let begin = beginning(decryptor, frame);
    let head_len = wire::head_len(begin).unwrap();
    let mut opening = Decryption::start(decryptor, begin, &Expect::default(), form)?.unwrap();
    let (mut at, mut have, mut covered) = (head_len + opening.prefix(), 0, Vec::new());
    let end = frame.len() - Decryption::END;
    while opening.next_len().is_some() {
        have = (have + step).min(end - at);
        let used = opening.whole(have);
        covered.extend_from_slice(opening.push(&frame[at..at + used])?.bytes());
        (at, have) = (at + used, have - used);
    }
    let (_, key) = opening.finish(frame[end..].try_into().unwrap())?.into_parts();
    KeyStream::new(key)?.apply(&mut covered);
    Ok(covered)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn pieces_make_the_whole(
        sizes in prop::collection::vec((0usize..100_000, prop::sample::select(vec![4u32, 8, 12])), 1..4),
        seed in any::<u32>(),
        step in 1usize..200_000,
    ) {
        let layout = layout(&sizes);
        prop_assume!(layout.elements() > 0);
        let clients: Vec<Client> =
            [(0, 2), (1, 1), (5, 5)].map(|(id, w)| (id, w, floats(&layout, u64::from(seed) + u64::from(id)))).into();
        for scheme in dense_schemes(Bounds::new(8, Weight::new(5), Some(1)).unwrap(), &[4, 8, 12]) {
            let keys = scheme.keygen(&ClientId::list([0, 1, 5]), Epoch::new(1)).unwrap();
            let mut aggregator = scheme.aggregator(&keys.server, None).unwrap();
            for client in &clients {
                let frame = sealed(scheme.as_ref(), &keys, &layout, client, step);
                if scheme.name() != "bfv" {
                    // BFV draws a seed and errors for every frame.
                    prop_assert!(frame == encrypt(scheme.as_ref(), &keys, &layout, 1, client, &[]));
                }
                aggregator.add(&frame).unwrap();
            }
            let aggregate = aggregator.finish().unwrap();
            let decryptor = scheme.decryptor(&keys.clients[0], None).unwrap();
            let sums = opened(&decryptor, &aggregate, Form::Sums, step).unwrap();
            let want = expected(scheme.values().levels, &layout, &clients);
            prop_assert!(sums == bytemuck::cast_slice::<u64, u8>(&want), "{:?}", scheme.describe());
            let means = opened(&decryptor, &aggregate, Form::Means, step).unwrap();
            let whole = decryptor.decrypt(&aggregate, &Expect::default(), Means::default()).unwrap();
            prop_assert!(means == bytemuck::cast_slice::<f32, u8>(&whole.values().values));
        }
    }

    /// The head of a frame is a wire format of its own: whatever bytes come, an error at worst.
    #[test]
    fn no_bytes_panic_the_head_parser(bytes in prop::collection::vec(any::<u8>(), 128..300), lengths in any::<[u8; 16]>()) {
        let mut bytes = bytes;
        bytes[..5].copy_from_slice(b"FEDC\x03");
        let _ = wire::head_len(&bytes);
        let _ = wire::parse_head(&bytes);
        bytes[5..8].copy_from_slice(&[1, 0, 0]);
        bytes[112..128].copy_from_slice(&lengths);
        let _ = wire::parse_head(&bytes);
    }
}

/// One client's update of one tensor, in each scheme that has pieces.
fn one_update() -> impl Iterator<Item = (Arc<dyn Scheme>, KeySet, Layout, Client)> {
    dense_schemes(Bounds::new(2, Weight::ONE, Some(1)).unwrap(), &[12]).into_iter().map(|scheme| {
        let layout = layout(&[(200_000, 12)]);
        let keys = scheme.keygen(&ClientId::list([0, 1]), Epoch::new(1)).unwrap();
        let client = (0, 1, floats(&layout, 1));
        (scheme, keys, layout, client)
    })
}

/// A piece that was sealed twice would be two messages under one mask.
#[test]
fn pieces_are_sealed_in_order_and_once() {
    for (scheme, keys, layout, client) in one_update() {
        let mut encryptor = scheme.encryptor(&keys.clients[0], None).unwrap();
        encryptor.precompute(RoundId::new(1), &layout, &[]).unwrap();
        let mut sealing = encryptor.start(&terms(&layout, 1)).unwrap().unwrap();
        let flat = client.2.concat();
        let first = (1..flat.len()).find(|len| sealing.whole(*len) > 0).unwrap();
        let part = Update::window(&layout, 0, &flat[..first], Rounding::Nearest).unwrap();
        let cut = Update::window(&layout, 0, &flat[..first - 1], Rounding::Nearest).unwrap();
        let mut out = Vec::new();
        assert!(sealing.push(&cut, &mut out).is_err(), "{}: a part of a piece", scheme.name());
        sealing.push(&part, &mut out).unwrap();
        let before = out.clone();
        assert!(sealing.push(&part, &mut out).is_err(), "{}: the same piece again", scheme.name());
        assert_eq!(out, before);
        let late = Update::window(&layout, first + 1, &flat[first + 1..], Rounding::Nearest).unwrap();
        assert!(sealing.push(&late, &mut out).is_err(), "{}: a piece is left out", scheme.name());
        let refusal = sealing.finish().err().unwrap();
        assert!(refusal.to_string().contains("before its last piece"), "{refusal}");
    }
}

/// Every refusal of the whole frame is one in parts too, and an aggregate that was tried is the only one of its round.
#[test]
fn an_aggregate_in_parts_is_held_to_what_one_in_a_row_is() {
    for (scheme, keys, layout, client) in one_update() {
        let mut aggregator = scheme.aggregator(&keys.server, None).unwrap();
        aggregator.add(&sealed(scheme.as_ref(), &keys, &layout, &client, 70_000)).unwrap();
        let aggregate = aggregator.finish().unwrap();
        let mut forged = aggregate.clone();
        let tag = forged.len() - Decryption::END;
        forged[tag] ^= 1;
        let body = forged.len() - wire::CRC_LEN;
        let forged = wire::append_checksum(forged[..body].to_vec());
        let decryptor = scheme.decryptor(&keys.clients[0], None).unwrap();
        let error = opened(&decryptor, &forged, Form::Sums, 70_000).unwrap_err();
        assert!(matches!(error, Error::Tag), "{}: {error}", scheme.name());
        let error = opened(&decryptor, &aggregate, Form::Sums, 70_000).unwrap_err();
        assert!(matches!(error, Error::Opened { .. }), "{}: {error}", scheme.name());
        let error = decryptor.decrypt(&aggregate, &Expect::default(), Sums::default()).unwrap_err();
        assert!(matches!(error, Error::Opened { .. }), "{}: {error}", scheme.name());

        let other = scheme.decryptor(&keys.clients[1], None).unwrap();
        let mut opening =
            Decryption::start(&other, beginning(&other, &aggregate), &Expect::default(), Form::Means).unwrap().unwrap();
        assert!(opening.push(&aggregate[..1]).is_err(), "{}: a part of a piece", scheme.name());
        let end = aggregate[tag..].try_into().unwrap();
        let refusal = opening.finish(&end).unwrap_err();
        assert!(refusal.to_string().contains("before its last piece"), "{refusal}");
        // Nothing was claimed of what has not come.
        assert!(opened(&other, &aggregate, Form::Means, 70_000).is_ok());
    }
}

#[test]
fn a_window_holds_its_elements_only() {
    let layout = layout(&[(10, 8), (10, 8)]);
    let values = floats(&layout, 7);
    let flat = values.concat();
    let mut part = [0u32; 8];
    let window = Update::window(&layout, 6, &flat[6..14], Rounding::Nearest).unwrap();
    window.quantise(Levels::default(), 6, &mut part).unwrap();
    assert_eq!(part.map(u64::from).as_slice(), &integers(Levels::default(), &layout, &values)[6..14]);
    assert!(window.quantise(Levels::default(), 5, &mut part).is_err());
    assert!(window.quantise(Levels::default(), 7, &mut part).is_err());
    assert!(window.tensors().is_err());
    assert!(update(&layout, &values).tensors().is_ok());
    assert!(Update::window(&layout, 18, &flat[..3], Rounding::Nearest).is_err());
}
