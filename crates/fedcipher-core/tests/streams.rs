//! Piece by piece is the same as all at once, for every scheme that has pieces.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Client, dense_schemes, encrypt, expected, floats, integers, layout, update};
use fedcipher_core::bounds::{Bounds, Levels};
use fedcipher_core::codec::{Layout, Rounding, Update};
use fedcipher_core::keys::KeySet;
use fedcipher_core::mac::{Hash, Tag};
use fedcipher_core::scheme::{Expect, Scheme, Terms};
use fedcipher_core::wire::{self, Checksum};
use proptest::prelude::*;

/// A frame made from windows of the flat update, as the offload engine makes it.
fn sealed(scheme: &dyn Scheme, keys: &KeySet, layout: &Layout, round: u64, client: &Client) -> Vec<u8> {
    let key = keys.clients.iter().find(|k| k.client == client.0).unwrap();
    let mut encryptor = scheme.encryptor(key, None).unwrap();
    let terms = Terms { round, weight: client.1, layout, plan: &[], model: b"model", memory: &[], bound: &[] };
    let sealing = encryptor.sealer(&terms).unwrap().unwrap();
    let sealer = sealing.sealer();
    let flat = client.2.concat();
    let mut frame = sealer.header().head(sealer.payload_len());
    frame.extend_from_slice(sealer.prefix());
    let mut checksum = Checksum::default();
    checksum.update(&frame);
    let (mut hash, mut digest) = (Hash::default(), sealer.digest());
    for (k, piece) in sealer.pieces().iter().enumerate() {
        let window = &flat[piece.start..piece.start + piece.len];
        let part = Update::window(layout, piece.start, window, Rounding::Nearest).unwrap();
        let mut out = vec![0; piece.bytes];
        hash += sealing.seal(k, &part, &mut out).unwrap();
        assert!(sealing.seal(k, &part, &mut out).is_err(), "a piece was sealed twice");
        checksum.update(&out);
        digest.update(&out);
        frame.extend_from_slice(&out);
    }
    let end = sealer.end(hash, &digest.finish()).unwrap();
    checksum.update(&end);
    frame.extend_from_slice(&end);
    frame.extend_from_slice(&checksum.finish());
    frame
}

fn opened(scheme: &dyn Scheme, keys: &KeySet, frame: &[u8]) -> Vec<u64> {
    let decryptor = scheme.decryptor(&keys.clients[0], None).unwrap();
    let head_len = wire::head_len(&frame[..wire::FIXED_LEN]).unwrap();
    let head = wire::parse_head(&frame[..head_len]).unwrap();
    let payload = &frame[head_len..head_len + head.payload_len];
    let prefix = payload.len().min(decryptor.prefix_len(head.header.contributions.len()));
    let opening = decryptor.opener(&head, &Expect::default(), &payload[..prefix]).unwrap().unwrap();
    opening.opener.check_len(payload.len()).unwrap();
    let mut sums = vec![0; opening.layout.elements()];
    let mut hash = Hash::default();
    for (k, piece) in opening.opener.pieces().iter().enumerate() {
        let bytes = &payload[piece.at..piece.at + piece.bytes];
        let sums = &mut sums[piece.start..piece.start + piece.len];
        hash += opening.opener.open(k, bytes, sums).unwrap();
        hash += opening.verifier.hash(piece.start, sums);
    }
    opening.verifier.check(hash, Tag::split(payload).unwrap().1).unwrap();
    let mut checksum = Checksum::default();
    checksum.update(&frame[..frame.len() - wire::CRC_LEN]);
    checksum.check(&frame[frame.len() - wire::CRC_LEN..]).unwrap();
    sums
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn pieces_make_the_whole(
        sizes in prop::collection::vec((0usize..100_000, prop::sample::select(vec![4u32, 8, 12])), 1..4),
        seed in any::<u32>(),
    ) {
        let layout = layout(&sizes);
        prop_assume!(layout.elements() > 0);
        let clients: Vec<Client> =
            [(0, 2), (1, 1), (5, 5)].map(|(id, w)| (id, w, floats(&layout, u64::from(seed) + u64::from(id)))).into();
        for scheme in dense_schemes(Bounds::new(8, 5, Some(1)).unwrap(), &[4, 8, 12]) {
            let keys = scheme.keygen(&[0, 1, 5], 1).unwrap();
            let mut aggregator = scheme.aggregator(&keys.server, None).unwrap();
            for client in &clients {
                let frame = sealed(scheme.as_ref(), &keys, &layout, 1, client);
                if scheme.name() != "bfv" {
                    // BFV draws a seed and errors for every frame.
                    prop_assert!(frame == encrypt(scheme.as_ref(), &keys, &layout, 1, client, &[]));
                }
                aggregator.add(&frame).unwrap();
            }
            let aggregate = aggregator.finish().unwrap();
            prop_assert!(opened(scheme.as_ref(), &keys, &aggregate) == expected(scheme.levels(), &layout, &clients), "{:?}", scheme.describe());
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

/// Without `Sealing`, which refuses it for every scheme: a fresh mask would be a second one under the same polynomial.
#[test]
fn a_mask_that_was_made_ahead_serves_once() {
    let layout = layout(&[(40_000, 12)]);
    let scheme =
        dense_schemes(Bounds::new(2, 1, Some(1)).unwrap(), &[12]).into_iter().find(|s| s.name() == "bfv").unwrap();
    let keys = scheme.keygen(&[0, 1], 1).unwrap();
    let mut encryptor = scheme.encryptor(&keys.clients[0], None).unwrap();
    encryptor.precompute(1, &layout, &[]).unwrap();
    let terms = Terms { round: 1, weight: 1, layout: &layout, plan: &[], model: b"model", memory: &[], bound: &[] };
    let sealing = encryptor.sealer(&terms).unwrap().unwrap();
    let values = floats(&layout, 1);
    let whole = update(&layout, &values);
    let mut out = vec![0; sealing.sealer().pieces()[0].bytes];
    sealing.sealer().seal(0, &whole, &mut out).unwrap();
    let refusal = sealing.sealer().seal(0, &whole, &mut out).err().unwrap();
    assert!(refusal.to_string().contains("encrypted already"), "{refusal}");
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
