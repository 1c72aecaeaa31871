//! Hybrid HE: what comes out of BFV is what went into PASTA, and nothing of the cipher's state beside it.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(unsafe_code, reason = "fhe.rs marks measuring noise unsafe because its time depends on the noise")]

mod common;

use common::{Client, encrypt, expected, floats, layout, run_round};
use fedcipher_core::bounds::Bounds;
use fedcipher_core::codec::Sums;
use fedcipher_core::keys::KeySet;
use fedcipher_core::pasta::cipher::{PASTA_3, PASTA_4, Pasta, Variant};
use fedcipher_core::pasta::context::Context;
use fedcipher_core::pasta::field::{Field, PRIMES};
use fedcipher_core::pasta::scheme::{PastaBfv, PastaParams, predicted_noise};
use fedcipher_core::pasta::transcipher::{Diagonals, EvaluationKeys, ServerKeys, Transcipher};
use fedcipher_core::scheme::{Expect, Request, RoundPlan, Scheme, Workers};
use fedcipher_core::wire::{self, Contribution};
use fedcipher_core::{ClientId, Epoch, Error, RoundId, Weight};
use fhe::bfv::{BfvParametersBuilder, Ciphertext, SecretKey};
use fhe_traits::{DeserializeParametrized, Serialize};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::sync::{Mutex, PoisonError};

/// Tests at N = 32768 take gigabytes each: one at a time.
static HEAVY: Mutex<()> = Mutex::new(());

fn scheme(variant: u32, prime: u64, clients: u64, max_weight: u64) -> PastaBfv {
    PastaBfv::new(PastaParams {
        bounds: Bounds::new(clients, Weight::new(max_weight), Some(1)).unwrap(),
        variant,
        prime,
    })
    .unwrap()
}

/// Deciphers part of a chunk and looks at everything a holder of the BFV key can see.
fn one_evaluation(variant: Variant, p: u64) {
    let _alone = (p == PRIMES[1]).then(|| HEAVY.lock().unwrap_or_else(PoisonError::into_inner));
    let mut rng = StdRng::seed_from_u64(p ^ variant.t as u64);
    let field = Field::new(p).unwrap();
    let context = Context::new(variant, field).unwrap();
    let par = &context.authority().unwrap();
    let secret = SecretKey::random(par, &mut rng);
    let keys = ServerKeys::of(&context, &EvaluationKeys::new(&context, &secret, &mut rng).unwrap()).unwrap();
    let key = Pasta::random_key(variant, field).unwrap();
    let encrypted_key = context.encrypt_key(&key, &secret, &mut rng).unwrap().to_bytes();
    let ring = &context.server().unwrap().ring;
    let encrypted_key = ring.ciphertext("key", &encrypted_key, ring.top()).unwrap();
    let present = context.blocks() - 3;
    let values: Vec<u64> = (0..present * variant.t).map(|_| rng.random_range(0..p)).collect();
    let mut words = values.clone();
    let pasta = Pasta::new(variant, field, &key).unwrap();
    pasta.encrypt(77, &mut words);
    let diagonals = Diagonals::new(&context, 77, 0, present).unwrap();
    let transcipher = Transcipher::new(&context, &keys).unwrap();
    // SAFETY: the key is the test's own; its timing is not secret.
    let measured = |x: &Ciphertext| unsafe { secret.measure_noise(x).unwrap() } as u32;
    let theirs = |pair: &_| Ciphertext::from_bytes(&ring.ciphertext_bytes(pair), par).unwrap();

    // Primes go only while the noise is above what their going makes: a round's noise, in bits of its own modulus.
    let mut rounds = Vec::new();
    transcipher
        .key_stream(&encrypted_key, &diagonals, &mut |round, pair| {
            let log_q = context.log_q(pair[0].len());
            let noise = measured(&theirs(pair));
            let left = i64::from(log_q) - i64::from(field.bits()) - 1 - i64::from(noise);
            eprintln!("round {round}: {} primes, {noise} bits of noise, {left} left", pair[0].len());
            rounds.push((round, left));
        })
        .unwrap();
    let (_, end) = rounds[rounds.len() - 1];
    assert!(rounds.iter().all(|(_, left)| *left >= end), "{rounds:?}");

    let result = theirs(&transcipher.decipher(&words, &encrypted_key, &diagonals).unwrap());
    let [row0, row1] = context.decrypt(&result, &secret).unwrap();
    assert_eq!(&row0[..values.len()], values.as_slice());
    // Row 1, where the right half of the final state would be, holds the same message; slots without a
    // message hold zero, not key stream. So nothing in the result depends on the state.
    assert_eq!(row0.as_slice(), row1.as_slice());
    assert!(row0[values.len()..].iter().all(|x| *x == 0));

    let (noise, predicted) = (measured(&result), predicted_noise(variant, field));
    assert!(noise <= predicted && noise + 12 > predicted, "{noise} bits of noise, predicted {predicted}");
}

/// fhe.rs's choice for the sizes that docs/explanation/hybrid.md names: key files of either go on.
#[test]
fn the_primes_are_those_of_fhe_rs() {
    for (variant, p, sizes) in [(PASTA_4, PRIMES[0], [51; 8].as_slice()), (PASTA_3, PRIMES[1], &[60; 11])] {
        let context = Context::new(variant, Field::new(p).unwrap()).unwrap();
        let mut builder = BfvParametersBuilder::new();
        // They depend on 2 N only; a small ring is quick to make, but its primes are others.
        builder.set_degree(context.degree).set_plaintext_modulus(p).set_moduli_sizes(sizes);
        let _alone = HEAVY.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(context.moduli, builder.build().unwrap().moduli());
    }
}

#[test]
fn pasta_4_over_17_bits() {
    one_evaluation(PASTA_4, PRIMES[0]);
}

#[test]
fn pasta_3_over_17_bits() {
    one_evaluation(PASTA_3, PRIMES[0]);
}

#[test]
#[ignore = "half a minute: `make test-long`"]
fn pasta_4_over_33_bits() {
    one_evaluation(PASTA_4, PRIMES[1]);
}

#[test]
#[ignore = "a minute: `make test-long`"]
fn pasta_3_over_33_bits() {
    one_evaluation(PASTA_3, PRIMES[1]);
}

/// Several clients with weights, more values than one ciphertext: three chunks, two of them folded.
fn weighted_sums_over_several_chunks(variant: u32) {
    let layout = layout(&[(9_000, 8), (0, 8), (8_500, 12)]);
    let clients: Vec<Client> = vec![(1, 5, floats(&layout, 1)), (4, 2, floats(&layout, 2)), (6, 1, floats(&layout, 3))];
    let s = scheme(variant, PRIMES[0], 3, 5);
    assert_eq!(run_round(&s, &layout, &[1, 4, 6, 7], &clients), expected(s.values().levels, &layout, &clients));
}

#[test]
fn weighted_sums_are_exact_over_several_chunks() {
    weighted_sums_over_several_chunks(4);
}

#[test]
#[ignore = "a minute: `make test-long`"]
fn weighted_sums_are_exact_over_several_chunks_with_pasta_3() {
    weighted_sums_over_several_chunks(3);
}

/// 33 bits hold what 17 cannot: 20-bit values, weights in the hundreds.
fn wide_sums(variant: u32) {
    let _alone = HEAVY.lock().unwrap_or_else(PoisonError::into_inner);
    let layout = layout(&[(100, 20)]);
    let clients: Vec<Client> = vec![(0, 100, floats(&layout, 1)), (1, 37, floats(&layout, 2))];
    let s = scheme(variant, PRIMES[1], 2, 100);
    assert_eq!(run_round(&s, &layout, &[0, 1], &clients), expected(s.values().levels, &layout, &clients));
}

#[test]
fn wide_values_need_the_wide_prime() {
    let error = scheme(4, PRIMES[0], 2, 100).check_layout(&layout(&[(100, 20)])).unwrap_err();
    assert!(matches!(error, Error::Bound { .. }), "{error}");
    wide_sums(4);
}

#[test]
#[ignore = "a minute: `make test-long`"]
fn wide_values_with_pasta_3() {
    wide_sums(3);
}

fn add(s: &PastaBfv, keys: &KeySet, frames: &[Vec<u8>]) -> Result<Vec<u8>, Error> {
    let mut aggregator = s.aggregator(&keys.server, None).unwrap();
    for frame in frames {
        aggregator.add(frame)?;
    }
    aggregator.finish()
}

#[test]
fn bad_input_is_refused_before_the_work_starts() {
    let s = scheme(4, PRIMES[0], 4, 2);
    let layout = layout(&[(50, 12)]);
    let keys = s.keygen(&ClientId::list([0, 1, 2]), Epoch::new(1)).unwrap();
    let client = |id: u32| -> Client { (id, 1, floats(&layout, u64::from(id))) };
    let first = encrypt(&s, &keys, &layout, 5, &client(0), &[]);
    let second = encrypt(&s, &keys, &layout, 5, &client(1), &[]);

    // The key travels once: the plan names who need not send it again.
    assert!(s.plan(&keys.server, &ClientId::list([0, 1])).unwrap().is_empty());
    add(&s, &keys, std::slice::from_ref(&first)).unwrap();
    let plan = s.plan(&keys.server, &ClientId::list([0, 1])).unwrap();
    assert_eq!(plan, 0u32.to_le_bytes());
    // In the next epoch it is not known.
    assert!(
        s.plan(&s.keygen(&ClientId::list([0, 1]), Epoch::new(2)).unwrap().server, &ClientId::list([0, 1]))
            .unwrap()
            .is_empty()
    );
    let short = encrypt(&s, &keys, &layout, 6, &client(0), &plan);
    assert!(short.len() < 400 && first.len() > 100 * short.len());
    add(&s, &keys, &[short]).unwrap();

    // Another server process does not know the key yet, and says so.
    let fresh = scheme(4, PRIMES[0], 4, 2);
    let unknown = encrypt(&s, &keys, &layout, 7, &client(0), &plan);
    let error = add(&fresh, &keys, &[unknown]).unwrap_err();
    assert!(matches!(error, Error::Key { .. }) && error.to_string().contains("send the key again"), "{error}");

    // Client 1 with client 0's encrypted key.
    let (theirs, ours) = (wire::parse(&first).unwrap(), wire::parse(&second).unwrap());
    let key_bytes = 8 + u64::from_le_bytes(theirs.payload[..8].try_into().unwrap()) as usize;
    let own = 8 + u64::from_le_bytes(ours.payload[..8].try_into().unwrap()) as usize;
    let mixed = [&theirs.payload[..key_bytes], &ours.payload[own..]].concat();
    let by_one = |payload: &[u8]| common::resigned(&keys.clients[1].sign, &ours.header.frame(payload));
    let error = add(&s, &keys, &[by_one(&mixed)]).unwrap_err();
    assert!(error.to_string().contains("that was not issued to it"), "{error}");

    // A word that is not below p, a short payload, a wrong round.
    let mut bad = ours.payload.to_vec();
    bad[own..own + 3].fill(0xff);
    assert_eq!(add(&s, &keys, &[by_one(&bad)]).unwrap_err().class(), "FrameError");
    let cut = [&ours.payload[..own], &ours.payload[own + 1..]].concat();
    assert_eq!(add(&s, &keys, &[by_one(&cut)]).unwrap_err().class(), "FrameError");
    let mut aggregator = s.aggregator(&keys.server, Some(RoundId::new(9))).unwrap();
    assert_eq!(aggregator.add(&first).unwrap_err().class(), "WrongRoundError");

    // A repeated nonce.
    let values = floats(&layout, 0);
    let update = common::update(&layout, &values);
    let mut encryptor = s.encryptor(&keys.clients[0], None).unwrap();
    encryptor
        .encrypt(&Request {
            round: RoundId::new(5),
            weight: Weight::ONE,
            update: &update,
            round_plan: &[],
            model: b"model",
            memory: &[],
            associated_data: &[],
        })
        .unwrap();
    let again = encryptor
        .encrypt(&Request {
            round: RoundId::new(5),
            weight: Weight::ONE,
            update: &update,
            round_plan: &[],
            model: b"model",
            memory: &[],
            associated_data: &[],
        })
        .unwrap_err();
    assert_eq!(again.class(), "NonceReuseError");

    // Galois keys that are missing or damaged.
    let mut crippled = s.keygen(&ClientId::list([0]), Epoch::new(1)).unwrap().server;
    crippled.public.truncate(3 * 32 + 1000);
    assert!(scheme(4, PRIMES[0], 4, 2).aggregator(&crippled, None).is_err());

    // Damaged and hostile aggregates: errors, no panic, no wrong sum. Bytes that are not of a coefficient get many values:
    // lengths, the numbers of forms, degrees and levels. They stand before both elements, and at the end.
    let aggregate = add(&s, &keys, &[first]).unwrap();
    let parsed = wire::parse(&aggregate).unwrap();
    // A new decryptor for each try, because a forgery closes a decryptor.
    let open = |payload: &[u8]| {
        let decryptor = s.decryptor(&keys.clients[2], None).unwrap();
        decryptor.decrypt(&parsed.header.frame(payload), &Expect::default(), Sums::default())
    };
    assert!(open(parsed.payload).is_ok());
    let mut rng = StdRng::seed_from_u64(3);
    let (length, element) = (parsed.payload.len(), 8 + (parsed.payload.len() - 8 - 2) / 2);
    let heads = (0..24).chain(element..element + 16).chain(length - 2..length);
    let flips = heads.flat_map(|at| (1..16).chain([16, 32, 64, 128]).map(move |flip| (at, flip)));
    let anywhere: Vec<(usize, u8)> = (0..20).map(|_| (rng.random_range(24..2000), rng.random_range(1..=255))).collect();
    for (at, flip) in flips.chain(anywhere) {
        let mut payload = parsed.payload.to_vec();
        payload[at] ^= flip;
        // A flip in the lowest bits is noise and changes nothing; any other must be noticed.
        if let Ok(opened) = open(&payload) {
            assert_eq!(opened.values().0, expected(s.values().levels, &layout, &[client(0)]));
        }
    }
    for _ in 0..20 {
        let payload = parsed.payload;
        let cut = rng.random_range(0..payload.len());
        assert!(open(&payload[..cut]).is_err());
    }
}

#[test]
fn a_noise_budget_that_would_run_out_is_an_error_beforehand() {
    let params = PastaParams {
        bounds: Bounds::new(1 << 20, Weight::new(1 << 32), Some(1)).unwrap(),
        variant: 4,
        prime: PRIMES[0],
    };
    let error = PastaBfv::new(params).err().unwrap();
    assert!(error.to_string().contains("exceeds the budget"), "{error}");
}

#[test]
fn the_work_can_be_watched_and_cancelled() {
    let s = scheme(4, PRIMES[0], 4, 1);
    let layout = layout(&[(9_000, 8)]);
    let keys = s.keygen(&ClientId::list([0, 1, 2]), Epoch::new(1)).unwrap();
    let clients: Vec<Client> = (0..3).map(|id| (id, 1, floats(&layout, u64::from(id)))).collect();
    let mut aggregator = s.aggregator(&keys.server, None).unwrap();
    for client in &clients {
        aggregator.add(&encrypt(&s, &keys, &layout, 1, client, &[])).unwrap();
    }
    let error = aggregator.finish_into(&mut Vec::new(), &mut |done, _| done < 2).unwrap_err();
    assert!(matches!(error, Error::Cancelled { total: 6, .. }), "{error}");
    let parts = aggregator.require_parts().unwrap().parts().unwrap();
    let mut seen = Vec::new();
    let mut frame = Vec::new();
    aggregator
        .finish_into(&mut frame, &mut |done, total| {
            seen.push((done, total));
            true
        })
        .unwrap();
    assert_eq!((seen[0], seen[seen.len() - 1]), ((0, 6), (6, 6)));
    // Another process, which has the parts and the server's key only, makes the same to the bit.
    let other = scheme(4, PRIMES[0], 4, 1);
    let work = |piece: &Vec<u8>| other.run_work_item(&keys.server, &parts.common, piece).unwrap();
    let results: Vec<Vec<u8>> = parts.pieces.iter().map(work).collect();
    let mut aggregator = s.aggregator(&keys.server, None).unwrap();
    let plan = s.plan(&keys.server, &ClientId::list([0, 1, 2])).unwrap();
    for client in &clients {
        aggregator.add(&encrypt(&s, &keys, &layout, 1, client, &plan)).unwrap();
    }
    let mut damaged = results.clone();
    damaged[0].truncate(1000);
    assert_eq!(aggregator.require_parts().unwrap().finish_from(&damaged).unwrap_err().class(), "FrameError");
    assert!(other.run_work_item(&keys.server, &parts.common[..parts.common.len() - 1], &parts.pieces[0]).is_err());
    assert_eq!(aggregator.require_parts().unwrap().finish_from(&results).unwrap(), frame);
    let decryptor = s.decryptor(&keys.clients[0], None).unwrap();
    let (summary, sums) = decryptor.decrypt(&frame, &Expect::default(), Sums::default()).unwrap().into_parts();
    assert_eq!(sums.0, expected(s.values().levels, &layout, &clients));
    assert_eq!(summary.header.contributions[2], Contribution { client: ClientId::new(2), weight: Weight::ONE });
}
