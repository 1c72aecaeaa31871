//! Bad input is refused with the right error. Nothing panics, and the sum of the other updates stands.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Client, bfv, dense_schemes, encrypt, expected, flashe, floats, layout};
use fedcipher_core::admission::check_sums;
use fedcipher_core::bounds::{Bounds, Levels};
use fedcipher_core::codec::{Layout, Rounding, Sums, Tensor, Update};
use fedcipher_core::flashe::{Masking, Policy};
use fedcipher_core::keys::{ClientKey, ServerKey};
use fedcipher_core::mac::Tag;
use fedcipher_core::rlwe::params::Preset;
use fedcipher_core::scheme::{Expect, Request, Scheme};
use fedcipher_core::statement::END_LEN;
use fedcipher_core::wire::{self, Contribution, Header, Kind};
use fedcipher_core::{ClientId, Epoch, Error, RoundId, TotalWeight, Weight};
use proptest::prelude::*;
use std::sync::Arc;

fn bounds() -> Bounds {
    Bounds::new(4, Weight::new(2), Some(1)).unwrap()
}

fn double() -> Arc<dyn Scheme> {
    flashe(bounds(), Policy::Fixed(Masking::Double), None)
}

fn all_schemes() -> Vec<Arc<dyn Scheme>> {
    let mut all = dense_schemes(bounds(), &[12]);
    all.push(flashe(bounds(), Policy::Fixed(Masking::Double), Some(0.2)));
    all
}

#[test]
fn nan_and_infinity_name_tensor_and_index() {
    for scheme in all_schemes() {
        let keys = scheme.keygen(&ClientId::list([0]), Epoch::new(1)).unwrap();
        let layout = layout(&[(5, 12), (4000, 12)]);
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = floats(&layout, 1);
            values[1][3999] = poison;
            let update = common::update(&layout, &values);
            let request = Request {
                round: RoundId::new(1),
                weight: Weight::ONE,
                update: &update,
                round_plan: &[],
                model: b"model",
                memory: &[],
                associated_data: &[],
            };
            let error = scheme.encryptor(&keys.clients[0], None).unwrap().encrypt(&request).unwrap_err();
            assert!(matches!(error, Error::NotFinite { tensor: 1, index: 3999, .. }), "{error}");
        }
    }
}

#[test]
fn values_beyond_the_clip_are_clipped_and_counted() {
    let layout = layout(&[(4, 12)]);
    let values = [vec![5.0, -7.0, 1.0, 0.0]];
    for rounding in [Rounding::Nearest, Rounding::stochastic().unwrap()] {
        let update = Update::new(&layout, vec![&values[0]], rounding).unwrap();
        let mut ints = [0u32; 4];
        update.quantise(Levels::default(), 0, &mut ints).unwrap();
        assert_eq!(ints, [4094, 0, 4094, 2047]);
        assert_eq!(update.clipped(), [2]);
    }
}

#[test]
fn the_bound_is_checked_before_the_round_and_names_what_fits() {
    let error = bfv_result(Bounds::new(1000, Weight::new(1 << 30), Some(1)).unwrap(), Preset::Fast, 24).unwrap_err();
    let Error::Bound { needed_bits, ref fix, .. } = error else { panic!("{error}") };
    assert!(needed_bits >= 63 && fix.contains("max_weight="), "{error}");
    let wide = flashe(Bounds::new(1 << 20, Weight::new(1 << 32), Some(1)).unwrap(), Policy::Adaptive, None);
    assert!(matches!(wide.check_layout(&layout(&[(3, 24)])), Err(Error::Bound { .. })));
    // The fix works.
    let text = error.to_string();
    let weight: u64 = text.split("max_weight=").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    assert!(bfv_result(Bounds::new(1000, Weight::new(weight), Some(1)).unwrap(), Preset::Fast, 24).is_ok());
    assert!(bfv_result(Bounds::new(1000, Weight::new(weight + 1), Some(1)).unwrap(), Preset::Fast, 24).is_err());
}

/// The best that fits is named, and nothing that does not.
#[test]
fn each_fix_of_a_bound_fits() {
    let fix = |clients, max_weight, bits, limit| {
        let bounds = Bounds::new(clients, Weight::new(max_weight), None).unwrap();
        match bounds.checked_field_bits(bits, limit) {
            Err(Error::Bound { fix, .. }) => fix,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(fix(4, 2, 12, 14), "bits=11, or max_weight=1, or a modulus of 15 bits");
    assert_eq!(fix(4, 2, 12, 13), "bits=10, or a modulus of 15 bits");
    assert_eq!(fix(4, 100, 2, 4), "max_weight=1, or a modulus of 10 bits");
    assert_eq!(fix(4, 100, 2, 3), "a modulus of 10 bits, or fewer clients");
    assert_eq!(Bounds::new(4, Weight::new(2), None).unwrap().checked_field_bits(12, 15).unwrap(), 15);
}

#[test]
fn a_scheme_says_how_many_clients_it_is_for() {
    let says = Bounds::new(7, Weight::ONE, None).unwrap().describe();
    let says: Vec<_> = says.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(says, [("clients", "7"), ("least contributions", "3")]);
}

fn bfv_result(bounds: Bounds, preset: Preset, bits: u32) -> fedcipher_core::Result<()> {
    use fedcipher_core::rlwe::{Bfv, params::BfvParams};
    Bfv::new(BfvParams { bounds, preset, bits: vec![bits], server_weights: false }).map(drop)
}

#[test]
fn a_weight_beyond_the_bound_is_refused_on_both_sides() {
    for scheme in all_schemes() {
        let layout = layout(&[(50, 12)]);
        let keys = scheme.keygen(&ClientId::list([0]), Epoch::new(1)).unwrap();
        let values = floats(&layout, 1);
        let update = common::update(&layout, &values);
        for weight in [0, 3] {
            let request = Request {
                round: RoundId::new(1),
                weight: Weight::new(weight),
                update: &update,
                round_plan: &[],
                model: b"model",
                memory: &[],
                associated_data: &[],
            };
            let error = scheme.encryptor(&keys.clients[0], None).unwrap().encrypt(&request).unwrap_err();
            assert!(
                matches!(error, Error::Weight { client, max_weight, .. } if client.get() == 0 && max_weight.get() == 2),
                "{error}"
            );
            let frame = encrypt(scheme.as_ref(), &keys, &layout, 1, &(0, 1, values.clone()), &[]);
            let forged = reframe(&frame, |h| h.contributions[0].weight = Weight::new(weight));
            let error = scheme.aggregator(&keys.server, None).unwrap().add(&forged).unwrap_err();
            assert!(matches!(error, Error::Weight { .. }), "{error}");
        }
    }
}

/// The same frame with a changed header and a right checksum.
fn reframe(frame: &[u8], change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let parsed = wire::parse(frame).unwrap();
    let mut header = parsed.header;
    change(&mut header);
    header.frame(parsed.payload)
}

#[test]
fn frames_of_elsewhere_are_refused_and_the_sum_of_the_others_is_right() {
    for scheme in all_schemes().iter().filter(|s| s.name() != "flashe" || s.describe()[2].1 == "all") {
        let layout = layout(&[(3000, 12)]);
        let keys = scheme.keygen(&ClientId::list([0, 1, 2, 3]), Epoch::new(1)).unwrap();
        let foreign = scheme.keygen(&ClientId::list([0, 1, 2, 3]), Epoch::new(1)).unwrap();
        let later = scheme.keygen(&ClientId::list([0, 1, 2, 3]), Epoch::new(2)).unwrap();
        let clients: Vec<Client> = (0..3).map(|id| (id, 1, floats(&layout, u64::from(id)))).collect();
        let frame = |keys, round, client: &Client| encrypt(scheme.as_ref(), keys, &layout, round, client, &[]);
        let mut aggregator = scheme.aggregator(&keys.server, Some(RoundId::new(7))).unwrap();
        assert!(matches!(aggregator.finish(), Err(Error::EmptyCohort)));
        let good = frame(&keys, 7, &clients[0]);
        aggregator.add(&good).unwrap();

        let mut refuse = |bytes: &[u8], class: &str| {
            let error = aggregator.add(bytes).unwrap_err();
            assert_eq!(error.class(), class, "{error}");
        };
        refuse(&good, "DuplicateClientError");
        refuse(&frame(&keys, 6, &clients[1]), "WrongRoundError");
        refuse(&frame(&later, 7, &clients[1]), "WrongEpochError");
        refuse(&frame(&foreign, 7, &clients[1]), "WrongEpochError");
        let sound = frame(&keys, 7, &clients[1]);
        refuse(&reframe(&sound, |h| h.scheme = *b"other\0\0\0\0\0\0\0\0\0\0\0"), "WrongSchemeError");
        refuse(&reframe(&sound, |h| h.params[0] ^= 1), "WrongParametersError");
        refuse(&reframe(&sound, |h| h.contributions[0].client = ClientId::new(99)), "UnknownClientError");
        refuse(&reframe(&sound, |h| h.elements += 1), "FrameError");
        refuse(
            &reframe(&sound, |h| h.contributions.push(Contribution { client: ClientId::new(2), weight: Weight::ONE })),
            "FrameError",
        );
        refuse(&reframe(&sound, |h| h.kind = Kind::Aggregate), "FrameError");
        let shorter = common::layout(&[(2999, 12)]);
        let odd: Client = (1, 1, floats(&shorter, 1));
        refuse(&encrypt(scheme.as_ref(), &keys, &shorter, 7, &odd, &[]), "LayoutError");
        refuse(&sound[..sound.len() - 1], "FrameError");
        refuse(&[], "FrameError");
        let mut flipped = sound.clone();
        flipped[200] ^= 4;
        refuse(&flipped, "FrameError");
        // A right checksum with a wrong payload length: another party's, and the client's own.
        let parsed = wire::parse(&sound).unwrap();
        let (body, end) = parsed.payload.split_at(parsed.payload.len() - END_LEN);
        let longer = [body, &[0; 9]].concat();
        for wrong in [&body[..body.len() - 9], &longer] {
            let frame = parsed.header.frame(&[wrong, end].concat());
            refuse(&frame, "SignatureError");
            refuse(&common::resigned(&keys.clients[1].sign, &frame), "FrameError");
        }
        refuse(&parsed.header.frame(&parsed.payload[..END_LEN - 1]), "FrameError");

        aggregator.add(&sound).unwrap();
        aggregator.add(&frame(&keys, 7, &clients[2])).unwrap();
        let aggregate = aggregator.finish().unwrap();
        let decryptor = scheme.decryptor(&keys.clients[3], None).unwrap();
        let of = |round| Expect { round: Some(round), ..Expect::default() };
        let opened = decryptor.decrypt(&aggregate, &of(RoundId::new(7)), Sums::default()).unwrap();
        assert_eq!(opened.values().0, expected(scheme.values().levels, &layout, &clients), "{}", scheme.name());

        let wrong = decryptor.decrypt(&aggregate, &of(RoundId::new(8)), Sums::default()).unwrap_err();
        assert_eq!(wrong.class(), "WrongRoundError");
        let error = scheme
            .decryptor(&foreign.clients[0], None)
            .unwrap()
            .decrypt(&aggregate, &Expect::default(), Sums::default())
            .unwrap_err();
        assert_eq!(error.class(), "WrongEpochError");
    }
}

/// A key of the right name but other bytes: the plausibility check notices, no wrong sum comes back.
#[test]
fn a_wrong_key_under_the_right_name_yields_an_error() {
    let layout = layout(&[(2000, 12)]);
    for scheme in all_schemes() {
        let keys = scheme.keygen(&ClientId::list([0, 1]), Epoch::new(1)).unwrap();
        let mut impostor = scheme.keygen(&ClientId::list([0, 1]), Epoch::new(1)).unwrap().clients.remove(0);
        impostor.tag = keys.server.tag.clone();
        let mut aggregator = scheme.aggregator(&keys.server, None).unwrap();
        aggregator.add(&encrypt(scheme.as_ref(), &keys, &layout, 1, &(0, 1, floats(&layout, 1)), &[])).unwrap();
        let frame = aggregator.finish().unwrap();
        let error = scheme
            .decryptor(&impostor, None)
            .unwrap()
            .decrypt(&frame, &Expect::default(), Sums::default())
            .unwrap_err();
        assert!(["DecryptError", "ForgedAggregateError"].contains(&error.class()), "{}: {error}", scheme.name());
    }
}

#[test]
fn sums_beyond_what_their_clients_can_have_sent_are_refused() {
    let most = 3 * 4094;
    let mut sums = vec![most; 40];
    check_sums(&sums, TotalWeight::new(3), 4094).unwrap();
    // One of them, then another beside it, wherever a vector's lanes end.
    for at in 0..sums.len() {
        sums[at] = most + 1 + at as u64;
        let error = check_sums(&sums, TotalWeight::new(3), 4094).unwrap_err();
        let says = format!("a sum of {} exceeds the largest possible {most} for total weight 3", sums[at]);
        assert!(matches!(&error, Error::Decrypt { reason } if *reason == says), "{error}");
        if at > 0 {
            sums[at - 1] = most;
        }
    }
}

#[test]
fn a_scheme_is_called_by_its_name() {
    for name in ["flashe", "bfv", "sixteen-letters!"] {
        let id = wire::scheme_id(name).unwrap();
        assert!(id.starts_with(name.as_bytes()) && id[name.len()..].iter().all(|b| *b == 0));
        assert_eq!(wire::scheme_name(&id), name);
    }
    for name in ["", "seventeen-letters", "two words", "tab\t", "caf\u{e9}"] {
        assert!(matches!(wire::scheme_id(name), Err(Error::Parameter { .. })), "{name:?}");
    }
    // A foreign id goes into messages: nothing in it reaches a terminal as it is.
    assert_eq!(wire::scheme_name(b"a\x1b[2J\xff\0behind\0\0\0"), "a\\x1b[2J\\xff");
}

/// The checksum of a frame that comes in parts covers every bit, too.
#[test]
fn a_checksum_in_parts_is_that_of_the_whole() {
    let frame = wire::append_checksum(vec![7; 300]);
    let (body, tail) = frame.split_at(300);
    let mut checksum = wire::Checksum::default();
    body.chunks(64).for_each(|part| checksum.update(part));
    checksum.check(tail).unwrap();
    for at in 0..tail.len() {
        let mut other = tail.to_vec();
        other[at] ^= 1;
        assert!(matches!(checksum.check(&other), Err(Error::Frame { .. })));
    }
    assert!(checksum.check(&tail[1..]).is_err() && checksum.check(&frame).is_err());
}

/// All fields at once are what they are piece by piece, and as sums.
#[test]
fn a_polynomial_is_of_every_field_of_every_segment() {
    let (key, layout) =
        (&double().keygen(&ClientId::list([0, 1]), Epoch::new(1)).unwrap().clients[0], layout(&[(700, 12), (300, 8)]));
    let own = Contribution { client: ClientId::new(0), weight: Weight::ONE };
    let header = key.tag.round_header(Kind::Update, RoundId::new(1), vec![own], &layout, [0; 16], [0; 16]);
    let mac = key.mac().unwrap().round(&header, &layout, bounds(), b"");
    let mut fields: Vec<u32> = (0..1000).collect();
    let whole = |fields: &[u32]| mac.tag(mac.hash_fields(fields), &own);
    let all = whole(&fields);
    let pieces = [0..512, 512..700, 700..1000].map(|piece| {
        let mut hasher = mac.hasher(piece.start);
        hasher.fields(&fields[piece]);
        hasher.hash()
    });
    assert_eq!(all, mac.tag(pieces.into_iter().sum(), &own));
    let sums: Vec<u64> = fields.iter().map(|f| u64::from(*f)).collect();
    assert_eq!(all, mac.tag(mac.hash_sums(&sums), &own));
    for at in [0, 699, 700, 999] {
        fields[at] += 1;
        assert_ne!(all, whole(&fields), "{at}");
        fields[at] -= 1;
    }
}

/// A key is of one scheme and of its parameters, for each of the three who use one.
#[test]
fn a_key_of_another_scheme_or_of_other_parameters_is_refused() {
    let (ours, others) = (all_schemes(), dense_schemes(Bounds::new(4, Weight::ONE, Some(1)).unwrap(), &[12]));
    for scheme in &ours {
        for other in ours.iter().chain(&others).filter(|o| (o.name(), o.digest()) != (scheme.name(), scheme.digest())) {
            let keys = other.keygen(&ClientId::list([0, 1]), Epoch::new(1)).unwrap();
            let client = &keys.clients[0];
            let refusals = [
                scheme.encryptor(client, None).err().unwrap(),
                scheme.aggregator(&keys.server, None).err().unwrap(),
                scheme.decryptor(client, None).err().unwrap(),
            ];
            for error in refusals {
                match error {
                    Error::Scheme { found, expected } => {
                        assert_eq!([found.as_str(), &expected], [other.name(), scheme.name()]);
                        assert_ne!(found, expected);
                    }
                    Error::Parameters { found, expected } => {
                        assert_eq!(scheme.name(), other.name());
                        assert_eq!([found, expected], [other.digest(), scheme.digest()].map(|d| wire::hex(&d.short())));
                    }
                    other => panic!("{other}"),
                }
            }
        }
    }
}

#[test]
fn too_many_clients_for_the_modulus() {
    let layout = layout(&[(10, 12)]);
    let scheme = bfv(Bounds::new(2, Weight::ONE, Some(1)).unwrap(), Preset::Compact, &[12], false);
    let keys = scheme.keygen(&ClientId::list([0, 1, 2]), Epoch::new(1)).unwrap();
    let mut aggregator = scheme.aggregator(&keys.server, None).unwrap();
    for id in 0..2 {
        aggregator.add(&encrypt(scheme.as_ref(), &keys, &layout, 1, &(id, 1, floats(&layout, 1)), &[])).unwrap();
    }
    let third = encrypt(scheme.as_ref(), &keys, &layout, 1, &(2, 1, floats(&layout, 1)), &[]);
    assert_eq!(aggregator.add(&third).unwrap_err().class(), "ParameterError");
}

#[test]
fn mixed_masking_in_one_round_is_refused() {
    let layout = layout(&[(10, 12)]);
    let scheme = flashe(bounds(), Policy::Adaptive, None);
    let keys = scheme.keygen(&ClientId::list([0, 1]), Epoch::new(1)).unwrap();
    let mut aggregator = scheme.aggregator(&keys.server, None).unwrap();
    aggregator.add(&encrypt(scheme.as_ref(), &keys, &layout, 1, &(0, 1, floats(&layout, 1)), &[1])).unwrap();
    let other = encrypt(scheme.as_ref(), &keys, &layout, 1, &(1, 1, floats(&layout, 1)), &[2]);
    assert_eq!(aggregator.add(&other).unwrap_err().class(), "FrameError");
}

#[test]
fn a_nonce_is_never_used_twice_even_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let layout = layout(&[(10, 12)]);
    let scheme = double();
    let keys = scheme.keygen(&ClientId::list([0, 1]), Epoch::new(1)).unwrap();
    let values = floats(&layout, 1);
    let attempt = |key: &ClientKey, round| {
        let update = common::update(&layout, &values);
        let request = Request {
            round,
            weight: Weight::ONE,
            update: &update,
            round_plan: &[],
            model: b"model",
            memory: &[],
            associated_data: &[],
        };
        // A new encryptor each time: as after a restart.
        scheme.encryptor(key, Some(folder.path()))?.encrypt(&request).map(drop)
    };
    attempt(&keys.clients[0], RoundId::new(5)).unwrap();
    for round in [5, 4, 0] {
        let error = attempt(&keys.clients[0], RoundId::new(round)).unwrap_err();
        assert!(matches!(error, Error::NonceReuse { last, .. } if last.get() == 5), "{error}");
    }
    attempt(&keys.clients[0], RoundId::new(6)).unwrap();
    attempt(&keys.clients[1], RoundId::new(5)).unwrap();
    // A destroyed ledger refuses; tests/ledger.rs has every way to destroy one.
    let path = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|f| f.unwrap().path())
        .find(|p| p.to_string_lossy().ends_with("-0.nonce"))
        .unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, vec![0xaa; bytes.len()]).unwrap();
    assert_eq!(attempt(&keys.clients[0], RoundId::new(7)).unwrap_err().class(), "LedgerError");
    std::fs::write(&path, &bytes).unwrap();
    attempt(&keys.clients[0], RoundId::new(7)).unwrap();
}

#[test]
fn two_processes_with_one_key_cannot_both_claim_a_round() {
    let folder = tempfile::tempdir().unwrap();
    let keys = double().keygen(&ClientId::list([0]), Epoch::new(1)).unwrap();
    let claims: Vec<_> = (0..8)
        .map(|_| {
            let (key, path) = (keys.clients[0].clone(), folder.path().to_owned());
            std::thread::spawn(move || {
                fedcipher_core::ledger::Ledger::open(&key, Some(&path)).unwrap().claim(RoundId::new(1)).is_ok()
            })
        })
        .collect();
    let won = claims.into_iter().map(|t| t.join().unwrap()).filter(|won| *won).count();
    assert_eq!(won, 1);
}

#[test]
fn secrets_do_not_show_in_debug_output_and_server_keys_hold_none() {
    for scheme in all_schemes() {
        let keys = scheme.keygen(&ClientId::list([0, 1]), Epoch::new(3)).unwrap();
        let text = format!("{:?}", keys.clients[0]);
        assert!(text.contains("client 0") && !text.contains("secret"), "{text}");
        let secret = &keys.clients[0].secret;
        assert!(text.len() < 100);
        let tagged = keys.clients[0].mac().unwrap();
        assert_eq!(format!("{tagged:?} {:?}", Tag::default()), "MacKey(secret) Tag");
        if secret.len() >= 16 {
            let public = keys.server.to_bytes();
            assert!(!public.windows(16).any(|w| w == &secret[..16]));
        }
        let again = ClientKey::from_bytes(&keys.clients[0].to_bytes()).unwrap();
        assert_eq!((again.client, again.secret.as_slice()), (ClientId::new(0), secret.as_slice()));
        assert_eq!(ServerKey::from_bytes(&keys.server.to_bytes()).unwrap(), keys.server);
        assert!(ServerKey::from_bytes(&keys.clients[0].to_bytes()).is_err());
        assert!(matches!(scheme.keygen(&ClientId::list([]), Epoch::new(1)), Err(Error::EmptyCohort)));
        assert!(scheme.keygen(&ClientId::list([1, 1]), Epoch::new(1)).is_err());
    }
}

/// No scheme but `plain` puts the packed integers on the wire.
#[test]
fn ciphertexts_are_not_the_plaintext() {
    let layout = layout(&[(4000, 12)]);
    let zeros = vec![vec![0.0f32; 4000]];
    for scheme in all_schemes().iter().filter(|s| s.name() != "plain") {
        let keys = scheme.keygen(&ClientId::list([0]), Epoch::new(1)).unwrap();
        let frame = encrypt(scheme.as_ref(), &keys, &layout, 1, &(0, 1, zeros.clone()), &[]);
        let payload = wire::parse(&frame).unwrap().payload;
        // A constant plaintext must look random: no 8-byte word repeats, bytes are spread evenly.
        let words: std::collections::BTreeSet<&[u8]> = payload[48..].chunks_exact(8).collect();
        assert_eq!(words.len(), payload[48..].len() / 8, "{} repeats itself", scheme.name());
        let mut histogram = [0f64; 256];
        payload[48..].iter().for_each(|b| histogram[usize::from(*b)] += 1.0);
        let mean = payload[48..].len() as f64 / 256.0;
        let chi: f64 = histogram.iter().map(|n| (n - mean).powi(2) / mean).sum();
        assert!(chi < 420.0, "{}: chi square {chi} of 255 degrees", scheme.name());
    }
}

fn any_header() -> impl Strategy<Value = Header> {
    let kinds = prop::sample::select(vec![Kind::Update, Kind::Aggregate, Kind::ClientKey, Kind::ServerKey]);
    let clients = prop::collection::btree_map(any::<u32>(), any::<u64>(), 0..6);
    let ids = (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<[u8; 16]>());
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>());
    (kinds, clients, ids, numbers, prop::collection::vec(any::<u8>(), 0..40)).prop_map(
        |(kind, clients, ids, n, layout)| Header {
            kind,
            scheme: ids.0,
            params: ids.1,
            key_id: ids.2,
            epoch: Epoch::new(n.0),
            round: RoundId::new(n.1),
            elements: n.2,
            model: ids.2,
            memory: ids.1,
            contributions: clients
                .into_iter()
                .map(|(client, weight)| Contribution { client: ClientId::new(client), weight: Weight::new(weight) })
                .collect(),
            layout,
        },
    )
}

/// Fuzz cases in CI; raise with PROPTEST_CASES for a long run.
fn fuzz_cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(3000)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(fuzz_cases()))]

    #[test]
    fn frames_round_trip(header in any_header(), payload in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = header.frame(&payload);
        let parsed = wire::parse(&bytes).unwrap();
        prop_assert_eq!(parsed.header, header);
        prop_assert_eq!(parsed.payload, payload);
    }

    /// Any change of any byte, and any truncation, is noticed.
    #[test]
    fn damage_is_noticed(header in any_header(), payload in prop::collection::vec(any::<u8>(), 0..50), at in any::<usize>(), flip in 1u8..) {
        let mut bytes = header.frame(&payload);
        let at = at % bytes.len();
        prop_assert!(wire::parse(&bytes[..at]).is_err());
        bytes[at] ^= flip;
        prop_assert!(wire::parse(&bytes).is_err());
    }

    #[test]
    fn the_frame_parser_survives_anything(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = wire::parse(&bytes);
        let mut framed = b"FEDC\x01\x01\0\0".to_vec();
        framed.extend(&bytes);
        let _ = wire::parse(&wire::append_checksum(framed));
    }

    #[test]
    fn the_layout_parser_survives_anything(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(layout) = Layout::decode(&bytes) {
            prop_assert_eq!(Layout::decode(&layout.encode()).unwrap(), layout);
        }
    }

    /// Layouts of any widths and lengths, those that a scheme has no fields for too, before payloads that do not fit:
    /// of any length, or of the right one.
    #[test]
    fn every_layout_is_opened_or_refused(
        sizes in prop::collection::vec((0usize..5000, prop::sample::select(vec![2u32, 5, 12, 12, 16, 24])), 1..7),
        noise in prop::collection::vec(any::<u8>(), 1..3000),
        which in any::<prop::sample::Index>(),
    ) {
        let layout = layout(&sizes);
        let (scheme, keys, update, aggregate) = which.get(hostile_cases());
        let (scheme, key) = (scheme.as_ref(), &keys.clients[0]);
        let mut frames = vec![update.clone(), aggregate.clone()];
        if scheme.check_layout(&layout).is_ok() && layout.elements() > 0 {
            let update = encrypt(scheme, keys, &layout, 1, &(0, 1, floats(&layout, 1)), &[]);
            let mut aggregator = scheme.aggregator(&keys.server, None).unwrap();
            aggregator.add(&update).unwrap();
            frames.extend([aggregator.finish().unwrap(), update]);
        }
        for frame in frames {
            let parsed = wire::parse(&frame).unwrap();
            let mut header = parsed.header.clone();
            (header.layout, header.elements) = (layout.encode(), layout.elements() as u64);
            let mixed = parsed.payload.iter().zip(noise.iter().cycle()).map(|(a, b)| a ^ b).collect();
            for mut payload in [noise.clone(), mixed] {
                // A tag that is a field element, and what takes a signature.
                payload.truncate(payload.len().saturating_sub(80));
                payload.extend([0; 80]);
                let bytes = header.frame(&payload);
                if header.kind == Kind::Update {
                    let _ = scheme.aggregator(&keys.server, None).unwrap().add(&common::resigned(&key.sign, &bytes));
                } else {
                    let opened = scheme.decryptor(key, None).unwrap().decrypt(&bytes, &Expect::default(), Sums::default());
                    prop_assert!(opened.is_err());
                }
            }
        }
    }

    /// Hostile payloads behind a sound header and checksum: errors, never panics, for every scheme.
    #[test]
    fn every_payload_parser_survives_anything(
        which in any::<prop::sample::Index>(),
        noise in prop::collection::vec(any::<u8>(), 0..300),
        cut in any::<prop::sample::Index>(),
    ) {
        let cases = hostile_cases();
        let (scheme, keys, update, aggregate) = which.get(cases);
        for (frame, is_update) in [(update, true), (aggregate, false)] {
            let parsed = wire::parse(frame).unwrap();
            let keep = cut.index(parsed.payload.len() + 1);
            let mut payload = parsed.payload[..keep].to_vec();
            payload.extend(&noise);
            let mixed: Vec<u8> = parsed.payload.iter().enumerate()
                .map(|(i, b)| if i < keep { *b } else { b ^ noise.get(i % 301).copied().unwrap_or(0) })
                .collect();
            for payload in [payload, mixed] {
                let bytes = parsed.header.frame(&payload);
                if is_update {
                    let _ = scheme.aggregator(&keys.server, None).unwrap().add(&bytes);
                } else {
                    let _ = scheme.decryptor(&keys.clients[0], None).unwrap().decrypt(&bytes, &Expect::default(), Sums::default());
                }
            }
        }
    }
}

type Hostile = (Arc<dyn Scheme>, fedcipher_core::keys::KeySet, Vec<u8>, Vec<u8>);

fn hostile_cases() -> &'static Vec<Hostile> {
    static CASES: std::sync::OnceLock<Vec<Hostile>> = std::sync::OnceLock::new();
    CASES.get_or_init(|| {
        let of = |scheme: &dyn Scheme| {
            let other = scheme.values().lanes.map_or([12, 12], |lanes| [lanes.count, lanes.digit]);
            [layout(&[(40, 12), (0, 12), (3, 12)]), layout(&[(40, 12), (0, 12), (9, other[0]), (3, other[1]), (1, 12)])]
        };
        all_schemes()
            .into_iter()
            .chain(all_schemes())
            .enumerate()
            .map(|(k, scheme)| {
                let layout = of(scheme.as_ref())[usize::from(k >= all_schemes().len())].clone();
                let keys = scheme.keygen(&ClientId::list([0, 1]), Epoch::new(1)).unwrap();
                let update = encrypt(scheme.as_ref(), &keys, &layout, 1, &(0, 1, floats(&layout, 1)), &[]);
                let mut aggregator = scheme.aggregator(&keys.server, None).unwrap();
                aggregator.add(&update).unwrap();
                let aggregate = aggregator.finish().unwrap();
                (scheme, keys, update, aggregate)
            })
            .collect()
    })
}

#[test]
fn layouts_that_make_no_sense_are_refused() {
    let tensor = |bits, alpha, shape: &[u32]| Tensor { dtype: 0, bits, alpha, shape: shape.to_vec() };
    for bad in [
        tensor(1, 1.0, &[1]),
        tensor(25, 1.0, &[1]),
        tensor(8, 0.0, &[1]),
        tensor(8, f32::NAN, &[1]),
        tensor(8, 1.0, &[u32::MAX, u32::MAX]),
        tensor(8, 1.0, &[1; 9]),
    ] {
        assert!(matches!(Layout::new(vec![bad]), Err(Error::Layout { .. })));
    }
    assert!(Layout::new(vec![]).is_err());
}

/// A sum that has been handed out is spent: what would be added to it would be a sum of few under the names of all.
#[test]
fn nothing_is_added_to_a_sum_that_has_been_handed_out() {
    let layout = layout(&[(300, 12)]);
    for scheme in all_schemes() {
        let keys = scheme.keygen(&ClientId::list([0, 1, 2]), Epoch::new(1)).unwrap();
        let clients: Vec<Client> = (0..3).map(|id| (id, 1, floats(&layout, 3))).collect();
        let frames: Vec<_> = clients.iter().map(|c| encrypt(scheme.as_ref(), &keys, &layout, 1, c, &[])).collect();
        let mut aggregator = scheme.aggregator(&keys.server, None).unwrap();
        // Too few clients do not end the wait for more.
        assert!(matches!(aggregator.finish(), Err(Error::EmptyCohort)), "{}", scheme.name());
        aggregator.add(&frames[0]).unwrap();
        aggregator.add(&frames[1]).unwrap();
        aggregator.finish().unwrap();
        for result in [aggregator.add(&frames[2]).map(drop), aggregator.finish().map(drop)] {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Finished { round } if round.get() == 1), "{}: {error}", scheme.name());
        }
    }
}

/// Double masking gives client j the masks j and j + 1, so there is no client 4294967295.
#[test]
fn a_client_without_a_neighbour_is_refused() {
    let layout = layout(&[(300, 12)]);
    for top in [None, Some(0.2)] {
        let scheme = flashe(bounds(), Policy::Fixed(Masking::Double), top);
        let keys = scheme.keygen(&ClientId::list([0, 1]), Epoch::new(1)).unwrap();
        let frames = [0, 1].map(|id| encrypt(scheme.as_ref(), &keys, &layout, 1, &(id, 1, floats(&layout, 3)), &[]));
        let mut aggregator = scheme.aggregator(&keys.server, None).unwrap();
        for frame in &frames {
            aggregator.add(frame).unwrap();
        }
        let last = Contribution { client: ClientId::new(u32::MAX), weight: Weight::ONE };
        let aggregate = reframe(&aggregator.finish().unwrap(), |header| header.contributions[1] = last);
        let decryptor = scheme.decryptor(&keys.clients[0], None).unwrap();
        let error = decryptor.decrypt(&aggregate, &Expect::default(), Sums::default()).unwrap_err();
        let unknown = matches!(error, Error::UnknownClient { client } if client.get() == u32::MAX);
        assert!(unknown || matches!(error, Error::Tag), "{error}");
        // A key for it too, from another maker of keys.
        let mut key = keys.clients[0].clone();
        key.client = ClientId::new(u32::MAX);
        assert!(matches!(scheme.encryptor(&key, None).err(), Some(Error::UnknownClient { .. })));
    }
}

/// Beside its own fields a key has nothing to say: what a reader passes over, another may go by.
#[test]
fn a_key_with_more_in_it_than_a_key_is_refused() {
    let keys = double().keygen(&ClientId::list([3, 5]), Epoch::new(1)).unwrap();
    let changes: [fn(&mut Header); 5] = [
        |header| header.round = RoundId::new(1),
        |header| header.elements = 1,
        |header| header.model = [1; 16],
        |header| header.layout = vec![0],
        |header| header.contributions[0].weight = Weight::new(2),
    ];
    for change in changes {
        let client = ClientKey::from_bytes(&reframe(&keys.clients[0].to_bytes(), change)).unwrap_err();
        let server = ServerKey::from_bytes(&reframe(&keys.server.to_bytes(), change)).unwrap_err();
        for error in [client, server] {
            assert!(matches!(&error, Error::Key { reason } if reason.contains("more than a key")), "{error}");
        }
    }
}

#[test]
fn committees_of_any_numbers_are_refused_in_words() {
    for (members, threshold, corrupt, pack) in [
        ("3", "3", "18446744073709551615", "1"),
        ("3", "3", "1", "18446744073709551615"),
        ("64", "64", "9223372036854775807", "1"),
    ] {
        let text = format!(
            r#"{{"scheme":"oneshot","codec":{{"bits":12}},"params":{{"clients":5,"max_weight":1,"preset":"fast",
            "members":{members},"threshold":{threshold},"corrupt_clients":1,"corrupt_members":{corrupt},"pack":{pack},
            "reveal":"clients","prekey_rounds":1,"prekey_hours":24}}}}"#
        );
        let error = fedcipher_core::registry::make(&text).err().unwrap();
        assert!(matches!(error, Error::Parameter { .. }), "{error}");
    }
}
