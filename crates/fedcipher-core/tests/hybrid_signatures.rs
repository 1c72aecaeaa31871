//! A hybrid signature holds where both halves do, and its predicate is the same alone as in a batch.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use fedcipher_core::sign::hybrid::{SIGNATURE_LEN, Signed, SigningKey, VERIFY_LEN, is_key, refused};
use fedcipher_core::sign::{self, Purpose};
use fedcipher_core::{ClientId, Error};

/// Where the Ed25519 half starts, in a key and in a signature.
const KEY_SPLIT: usize = VERIFY_LEN - sign::VERIFY_LEN;
const SPLIT: usize = SIGNATURE_LEN - sign::SIGNATURE_LEN;

const UPDATE: Purpose = Purpose::Update;

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

fn holds(key: &[u8], purpose: Purpose, message: &[u8], signature: &[u8]) -> bool {
    Signed { party: ClientId::new(7), key, purpose, message, signature }.holds()
}

/// The ML-DSA-65 half of the one, the Ed25519 half of the other.
fn mixed(split: usize, lattice: &[u8], curve: &[u8]) -> Vec<u8> {
    [&lattice[..split], &curve[split..]].concat()
}

#[test]
fn a_change_of_any_byte_of_signature_or_key_is_refused() {
    let own = key(1);
    let (public, signature) = (own.verify_key(), own.sign(UPDATE, b"words").unwrap());
    assert!(holds(&public, UPDATE, b"words", &signature));
    for at in 0..SIGNATURE_LEN {
        let mut changed = signature;
        changed[at] ^= 1 << (at % 8);
        assert!(!holds(&public, UPDATE, b"words", &changed), "byte {at} of the signature");
    }
    for at in 0..VERIFY_LEN {
        let mut changed = public;
        changed[at] ^= 1 << (at % 8);
        assert!(!holds(&changed, UPDATE, b"words", &signature), "byte {at} of the key");
    }
}

#[test]
fn any_other_length_of_signature_or_key_is_refused() {
    let own = key(1);
    let (public, signature) = (own.verify_key(), own.sign(UPDATE, b"words").unwrap());
    for len in 0..SIGNATURE_LEN {
        assert!(!holds(&public, UPDATE, b"words", &signature[..len]), "{len} bytes");
        assert!(!holds(&public, UPDATE, b"words", &signature[SIGNATURE_LEN - len..]), "the last {len} bytes");
    }
    for len in 0..VERIFY_LEN {
        assert!(!holds(&public[..len], UPDATE, b"words", &signature), "a key of {len} bytes");
        assert!(!is_key(&public[..len]) && !is_key(&public[VERIFY_LEN - len..]), "a key of {len} bytes");
    }
    assert!(!holds(&public, UPDATE, b"words", &[&signature[..], &[0]].concat()));
    assert!(!holds(&[&public[..], &[0]].concat(), UPDATE, b"words", &signature));
    assert!(is_key(&public) && !is_key(&[&public[..], &[0]].concat()));
}

/// Of two signatures that differ in party, purpose or message: all three, two of them, or one.
#[test]
fn halves_of_two_signatures_do_not_hold_together() {
    let cases: Vec<(u8, Purpose, &[u8])> = vec![
        (1, Purpose::Update, b"words"),
        (1, Purpose::Update, b"others"),
        (1, Purpose::Answer, b"words"),
        (2, Purpose::Update, b"words"),
        (2, Purpose::Roster, b"others"),
    ];
    let signed = |&(own, purpose, message): &(u8, Purpose, &'static [u8])| key(own).sign(purpose, message).unwrap();
    let signatures: Vec<_> = cases.iter().map(signed).collect();
    for (i, &(own, purpose, message)) in cases.iter().enumerate() {
        let public = key(own).verify_key();
        for (j, other) in signatures.iter().enumerate() {
            assert_eq!(holds(&public, purpose, message, other), i == j, "{i} {j}");
            assert_eq!(holds(&public, purpose, message, &mixed(SPLIT, &signatures[i], other)), i == j, "{i} {j}");
            assert_eq!(holds(&public, purpose, message, &mixed(SPLIT, other, &signatures[i])), i == j, "{i} {j}");
        }
    }
}

/// The forger has the secret of one half. That its own halves do hold, a key that is mixed just so shows.
#[test]
fn one_forged_half_is_not_enough() {
    let (victim, forger) = (key(1), key(2));
    let keys = [victim.verify_key(), forger.verify_key()];
    let [true_one, false_one] = [&victim, &forger].map(|own| own.sign(UPDATE, b"words").unwrap());
    for (lattice, curve) in [(0, 1), (1, 0)] {
        let signatures = [&true_one[..], &false_one];
        let forged = mixed(SPLIT, signatures[lattice], signatures[curve]);
        assert!(!holds(&keys[0], UPDATE, b"words", &forged));
        assert!(!holds(&keys[1], UPDATE, b"words", &forged));
        assert!(holds(&mixed(KEY_SPLIT, &keys[lattice], &keys[curve]), UPDATE, b"words", &forged));
    }
    let nothing = mixed(SPLIT, &true_one, &[0; SIGNATURE_LEN]);
    assert!(!holds(&keys[0], UPDATE, b"words", &nothing));
    assert!(!holds(&keys[0], UPDATE, b"words", &mixed(SPLIT, &[0; SIGNATURE_LEN], &true_one)));
}

/// Under the neutral element as a key, R = 0 and S = 0 is an Ed25519 signature of any message by the bare equation.
#[test]
fn a_key_whose_ed25519_half_is_of_small_order_is_refused() {
    let own = key(1);
    let mut neutral = [0; VERIFY_LEN];
    neutral[KEY_SPLIT] = 1;
    let public = mixed(KEY_SPLIT, &own.verify_key(), &neutral);
    let mut zero = [0; SIGNATURE_LEN];
    zero[SPLIT] = 1;
    assert!(!is_key(&public));
    let signature = mixed(SPLIT, &own.sign(UPDATE, b"words").unwrap(), &zero);
    let signed =
        Signed { party: ClientId::new(7), key: &public, purpose: UPDATE, message: b"words", signature: &signature };
    assert!(!signed.holds());
    assert_eq!(refused(&[signed]).unwrap(), [ClientId::new(7)]);
}

/// More than two batches, in which each kind of false signature stands alone and beside others.
#[test]
fn who_is_refused_alone_is_refused_in_a_batch() {
    let own: Vec<_> = (0..4).map(key).collect();
    let publics: Vec<_> = own.iter().map(SigningKey::verify_key).collect();
    let messages: Vec<_> = (0..300_u32).map(|k| k.to_le_bytes()).collect();
    let mut signatures: Vec<_> = (0..300).map(|k| own[k % 4].sign(UPDATE, &messages[k]).unwrap().to_vec()).collect();
    let all = |signatures: &[Vec<u8>]| -> Vec<u32> {
        let signed = |k: usize| Signed {
            party: ClientId::new(k as u32),
            key: &publics[k % 4],
            purpose: UPDATE,
            message: &messages[k],
            signature: &signatures[k],
        };
        let all: Vec<_> = (0..300).map(signed).collect();
        let alone: Vec<_> = all.iter().filter(|one| !one.holds()).map(|one| one.party).collect();
        assert_eq!(refused(&all).unwrap(), alone);
        let checked =
            all.iter().filter(|one| matches!(one.check(), Err(Error::Signature { party }) if party == one.party));
        assert_eq!(checked.count(), alone.len());
        alone.into_iter().map(ClientId::get).collect()
    };
    assert!(all(&signatures).is_empty());
    signatures[140][SPLIT + 40] ^= 1;
    assert_eq!(all(&signatures), [140]);
    signatures[3][100] ^= 1;
    signatures[4].pop();
    signatures.swap(298, 299);
    assert_eq!(all(&signatures), [3, 4, 140, 298, 299]);
    assert!(refused(&[]).unwrap().is_empty());
}

/// Hedged: only what is drawn afresh tells two signatures of a message apart, and it goes into the ML-DSA-65 half.
#[test]
fn two_signatures_of_a_message_differ_and_both_hold() {
    let own = key(1);
    let [first, second] = [(); 2].map(|()| own.sign(UPDATE, b"words").unwrap());
    assert_ne!(first[..SPLIT], second[..SPLIT]);
    assert_eq!(first[SPLIT..], second[SPLIT..]);
    assert!(holds(&own.verify_key(), UPDATE, b"words", &first) && holds(&own.verify_key(), UPDATE, b"words", &second));
}

#[test]
fn a_key_is_its_seed_and_does_not_print_it() {
    let own = SigningKey::generate().unwrap();
    assert_eq!(SigningKey::from_seed(&own.seed()).verify_key(), own.verify_key());
    let plain = sign::SigningKey::from_seed(&own.seed());
    assert_eq!(plain.verify_key(), own.verify_key()[KEY_SPLIT..]);
    assert_eq!(format!("{own:?}"), "hybrid::SigningKey(secret)");
    assert_ne!(SigningKey::generate().unwrap().verify_key(), own.verify_key());
}
