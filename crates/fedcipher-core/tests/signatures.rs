//! One predicate for a signature, wherever it is checked: alone and in batches, by server and members.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use curve25519_dalek::constants::{ED25519_BASEPOINT_TABLE, EIGHT_TORSION};
use curve25519_dalek::edwards::EdwardsPoint;
use curve25519_dalek::scalar::Scalar;
use fedcipher_core::bounds::Bounds;
use fedcipher_core::committee::Committee;
use fedcipher_core::keys::{ClientKey, KeySet, ServerKey};
use fedcipher_core::mac::{TAG_LEN, Tag};
use fedcipher_core::oneshot::identity::Identity;
use fedcipher_core::oneshot::prekeys::{Life, Published};
use fedcipher_core::oneshot::roster::{Card, Roles, Roster};
use fedcipher_core::oneshot::sealed_share::Envelope;
use fedcipher_core::oneshot::statement::share_info;
use fedcipher_core::oneshot::{Oneshot, OneshotParams, Reveal};
use fedcipher_core::plain::Plain;
use fedcipher_core::protocol::FrameDigest;
use fedcipher_core::rlwe::params::Preset;
use fedcipher_core::scheme::Scheme;
use fedcipher_core::sign::{Purpose, SIGNATURE_LEN, Signed, SigningKey, hybrid, is_key, refused};
use fedcipher_core::statement::{RoundContext, sha256, split};
use fedcipher_core::wire::{self, Contribution, Kind};
use fedcipher_core::{ClientId, Epoch, Error, RoundId, Weight};
use sha2::{Digest as _, Sha512};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The client that signs oddly.
const ODD: u32 = 4;
/// The order of the base point.
const ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];
/// p + 1, which is 1: the neutral element, not as RFC 8032 encodes it.
const NEUTRAL: [u8; 32] = {
    let mut bytes = [0xff; 32];
    (bytes[0], bytes[31]) = (0xee, 0x7f);
    bytes
};

/// A signature that needs the scalars a and r: A = aB + torsion, R = rB + torsion, S = r + ka.
struct Odd {
    name: &'static str,
    scalars: (u64, u64),
    /// Multiples of a point of order 8 in A and in R.
    torsion: (usize, usize),
    /// Encodings in place of their own.
    encoded: (Option<[u8; 32]>, Option<[u8; 32]>),
    /// How often the order is added to S.
    orders: usize,
    holds: bool,
}

const PLAIN: Odd =
    Odd { name: "plain", scalars: (77, 5), torsion: (0, 0), encoded: (None, None), orders: 0, holds: true };

/// As the twelve of "Taming the many EdDSAs" are made, over any message.
fn odd() -> Vec<Odd> {
    vec![
        PLAIN,
        Odd { name: "mixed A", torsion: (1, 0), ..PLAIN },
        Odd { name: "mixed R", torsion: (0, 3), ..PLAIN },
        Odd { name: "mixed A and R", torsion: (5, 2), ..PLAIN },
        Odd { name: "small R", scalars: (77, 0), torsion: (0, 1), ..PLAIN },
        Odd { name: "small R, mixed A", scalars: (77, 0), torsion: (7, 1), ..PLAIN },
        Odd { name: "R not canonical", scalars: (77, 0), encoded: (None, Some(NEUTRAL)), ..PLAIN },
        Odd { name: "small A", scalars: (0, 5), torsion: (1, 0), holds: false, ..PLAIN },
        Odd { name: "small A and R, S = 0", scalars: (0, 0), torsion: (1, 1), holds: false, ..PLAIN },
        Odd { name: "neutral A", scalars: (0, 5), holds: false, ..PLAIN },
        Odd { name: "A not canonical", scalars: (0, 5), encoded: (Some(NEUTRAL), None), holds: false, ..PLAIN },
        Odd { name: "S + L", orders: 1, holds: false, ..PLAIN },
        Odd { name: "S + 8 L", orders: 8, holds: false, ..PLAIN },
    ]
}

fn point(scalar: u64, torsion: usize) -> [u8; 32] {
    let point: EdwardsPoint = &Scalar::from(scalar) * ED25519_BASEPOINT_TABLE + EIGHT_TORSION[torsion];
    point.compress().to_bytes()
}

fn plus(a: [u8; 32], b: [u8; 32]) -> [u8; 32] {
    let mut carry = 0;
    std::array::from_fn(|k| {
        let sum = u16::from(a[k]) + u16::from(b[k]) + carry;
        carry = sum >> 8;
        sum as u8
    })
}

impl Odd {
    fn key(&self) -> [u8; 32] {
        self.encoded.0.unwrap_or_else(|| point(self.scalars.0, self.torsion.0))
    }

    /// Over what an update's signature covers.
    fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.sign_bytes(&[b"fedcipher update 1\0", message].concat())
    }

    /// As the second half of a party's signature, whose first half is another's.
    fn sign_beside(&self, lattice: &[u8], message: &[u8]) -> Vec<u8> {
        let (label, purpose) = (b"COMPSIG-MLDSA65-Ed25519-SHA512", b"fedcipher update 1\0");
        let hash = Sha512::digest(message);
        let bytes = [b"CompositeAlgorithmSignatures2025", &label[..], &[purpose.len() as u8], purpose, &hash].concat();
        [lattice, &self.sign_bytes(&bytes)].concat()
    }

    fn sign_bytes(&self, bytes: &[u8]) -> [u8; 64] {
        let r = self.encoded.1.unwrap_or_else(|| point(self.scalars.1, self.torsion.1));
        let hash = Sha512::new().chain_update(r).chain_update(self.key());
        let k: [u8; 64] = hash.chain_update(bytes).finalize().into();
        let s = Scalar::from(self.scalars.1) + Scalar::from_bytes_mod_order_wide(&k) * Scalar::from(self.scalars.0);
        let s = (0..self.orders).fold(s.to_bytes(), |s, _| plus(s, ORDER));
        let mut out = [0; 64];
        out[..32].copy_from_slice(&r);
        out[32..].copy_from_slice(&s);
        out
    }
}

/// Among signatures of others, and in a batch of its own.
fn alone_and_in_batches(odd: &Odd) -> Vec<bool> {
    let (key, message) = (odd.key(), b"a message");
    let signature = odd.sign(message);
    let signed =
        Signed { party: ClientId::new(ODD), key: &key, purpose: Purpose::Update, message, signature: &signature };
    let others: Vec<SigningKey> = (0..9).map(|_| SigningKey::generate().unwrap()).collect();
    let keys: Vec<_> = others.iter().map(SigningKey::verify_key).collect();
    let signatures: Vec<_> = others.iter().map(|key| key.sign(Purpose::Update, message)).collect();
    let mut all = vec![signed];
    for (party, (key, signature)) in (10..).zip(keys.iter().zip(&signatures)) {
        all.push(Signed { party: ClientId::new(party), key, purpose: Purpose::Update, message, signature });
    }
    let batch = refused(&all).unwrap();
    assert!(batch.is_empty() || batch == [ClientId::new(ODD)], "{}: {batch:?}", odd.name);
    vec![signed.holds(), signed.check().is_ok(), batch.is_empty(), refused(&[signed]).unwrap().is_empty()]
}

fn keys() -> KeySet {
    plain().keygen(&ClientId::list([0, ODD]), Epoch::new(1)).unwrap()
}

fn plain() -> Plain {
    Plain::new(Bounds::new(5, Weight::ONE, Some(1)).unwrap())
}

/// The aggregator of a scheme with a common key.
fn server(odd: &Odd) -> bool {
    let (scheme, keys, layout) = (plain(), keys(), common::layout(&[(9, 8)]));
    let frame = common::encrypt(&scheme, &keys, &layout, 1, &(ODD, 1, common::floats(&layout, 1)), &[]);
    let parsed = wire::parse(&frame).unwrap();
    let (body, tag, _) = split::<SIGNATURE_LEN>(parsed.payload).unwrap();
    let own = parsed.header.contributions[0];
    let signature = odd.sign(&RoundContext::of([0; 32], &parsed.header).update(own, tag, &FrameDigest::of(body)));
    let frame = parsed.header.frame(&[body, &tag.to_bytes(), &signature].concat());
    let cohort: BTreeMap<_, _> =
        [(ClientId::new(0), keys.clients[0].sign.verify_key()), (ClientId::new(ODD), odd.key())].into();
    let key = ServerKey { cohort: Arc::new(cohort), ..keys.server };
    assert_eq!(ServerKey::from_bytes(&key.to_bytes()).is_ok(), is_key(&odd.key()), "{}", odd.name);
    match scheme.aggregator(&key, None).unwrap().add(&frame) {
        Ok(_) => true,
        Err(error) => {
            assert!(matches!(error, Error::Signature { party } if party.get() == ODD), "{}: {error}", odd.name);
            false
        }
    }
}

/// A committee member, which checks all clients' signatures at once; `None` if this key has no roster.
fn member(odd: &Odd) -> Option<bool> {
    let scheme = Oneshot::new(OneshotParams {
        bounds: Bounds::new(5, Weight::new(3), Some(3)).unwrap(),
        preset: Preset::Fast,
        bits: vec![8],
        members: 3,
        threshold: 3,
        corrupt_clients: 1,
        corrupt_members: 1,
        pack: 1,
        reveal: Reveal::Clients,
        life: Life { rounds: 1, hours: 24 },
    })
    .unwrap();
    let identities: Vec<Identity> = (0..5).map(|_| Identity::generate().unwrap()).collect();
    let card = |id: u32| {
        let roles = Roles { client: true, member: id < 3, reader: true };
        let card = Card::of(&identities[id as usize], ClientId::new(id), &format!("party-{id}"), roles);
        let odd_key = [&card.signing[..hybrid::VERIFY_LEN - 32], &odd.key()].concat();
        Card { signing: if id == ODD { odd_key } else { card.signing.clone() }, ..card }
    };
    let roster = match Roster::new((0..5).map(card).collect()) {
        Ok(roster) => roster,
        Err(error) => {
            assert!(!is_key(&odd.key()) && matches!(error, Error::Parameter { name: "roster", .. }), "{error}");
            return None;
        }
    };
    let key = scheme.join(&roster, &identities[0], Epoch::new(1)).unwrap();
    let scope = roster.digest(scheme.digest().short(), Epoch::new(1));
    let asked: Vec<Contribution> =
        [1, 2, ODD].map(|client| Contribution { client: ClientId::new(client), weight: Weight::ONE }).into();
    let header = key.tag.header(Kind::Request, RoundId::new(7), asked.clone());
    let context = RoundContext::given(scope, &header, [9; 32]);
    // No members' signatures: the sum counts in no memory.
    let mut payload = [[9; 32].as_slice(), &[0; 4]].concat();
    let member = scheme.member(&key, None).unwrap();
    let published = member.prekey().unwrap();
    let prekey = Published::read(&published, &key.tag, &roster, &scope).unwrap();
    for of in asked {
        let info = share_info(&scope, RoundId::new(7), of.client, ClientId::new(0), prekey.number);
        let data = context.share_data(of, Tag::default(), &[1; 32]);
        let envelope = Envelope::to(prekey.number, &prekey.public, &info).unwrap();
        let share = envelope.encrypt_share(&data, &[7; 32 + 2 * TAG_LEN]).unwrap();
        let signed = [[1; 32], sha256(&[&share]), [2; 32], [3; 32]].concat();
        let message = context.update(of, Tag::default(), &signed);
        let signature = identities[of.client.get() as usize].sign(Purpose::Update, &message).unwrap().to_vec();
        let signature = match of.client.get() {
            ODD => odd.sign_beside(&signature[..hybrid::SIGNATURE_LEN - 64], &message),
            _ => signature,
        };
        payload.extend([signature.as_slice(), &Tag::default().to_bytes(), &signed, &share].concat());
    }
    let answered = member.answer(&header.frame(&payload));
    match answered {
        Ok(_) => Some(true),
        Err(error) => {
            assert!(matches!(error, Error::Signature { party } if party.get() == ODD), "{}: {error}", odd.name);
            Some(false)
        }
    }
}

#[test]
fn every_edge_case_is_the_same_alone_in_batches_at_server_and_member() {
    for odd in odd() {
        let found: Vec<bool> =
            alone_and_in_batches(&odd).into_iter().chain([server(&odd)]).chain(member(&odd)).collect();
        assert!(found.iter().all(|holds| *holds == odd.holds), "{}: {found:?}", odd.name);
    }
}

#[test]
fn a_batch_names_whose_signatures_do_not_hold() {
    let keys: Vec<SigningKey> = (0..300).map(|_| SigningKey::generate().unwrap()).collect();
    let messages: Vec<[u8; 8]> = (0..300u64).map(u64::to_le_bytes).collect();
    let verify: Vec<_> = keys.iter().map(SigningKey::verify_key).collect();
    let mut signatures: Vec<_> =
        keys.iter().zip(&messages).map(|(key, message)| key.sign(Purpose::Update, message)).collect();
    let bad = |signatures: &[[u8; 64]]| {
        let of = |k: usize| Signed {
            party: ClientId::new(k as u32),
            key: &verify[k],
            purpose: Purpose::Update,
            message: &messages[k],
            signature: &signatures[k],
        };
        let all: Vec<Signed<'_>> = (0..300).map(of).collect();
        let named = refused(&all).unwrap();
        let alone: Vec<ClientId> = all.iter().filter(|signed| !signed.holds()).map(|signed| signed.party).collect();
        assert_eq!(named, alone);
        named
    };
    assert_eq!(bad(&signatures), []);
    signatures[131][40] ^= 1;
    assert_eq!(bad(&signatures), [ClientId::new(131)]);
    signatures.swap(7, 8);
    signatures[299][0] ^= 1;
    assert_eq!(bad(&signatures), ClientId::list([7, 8, 131, 299]));
    assert_eq!(refused(&[]).unwrap(), []);
}

#[test]
fn a_signature_of_one_purpose_holds_for_no_other() {
    let key = SigningKey::generate().unwrap();
    let (verify, message) = (key.verify_key(), b"fedcipher update 1\0fedcipher answer 1\0");
    for made in Purpose::ALL {
        let signature = key.sign(made, message);
        for purpose in Purpose::ALL {
            for message in [message.as_slice(), &message[19..], &message[38..], b""] {
                let signed = Signed { party: ClientId::new(0), key: &verify, purpose, message, signature: &signature };
                let same = purpose == made && message.len() == 38;
                assert_eq!(signed.holds(), same, "{made:?} for {purpose:?}");
                assert_eq!(refused(&[signed]).unwrap().is_empty(), same);
            }
        }
    }
}

/// A key file is the same after it was written and read, with what it signs with; and is never printed.
#[test]
fn a_clients_key_holds_what_it_signs_with() {
    let keys = keys();
    for key in &keys.clients {
        let read = ClientKey::from_bytes(&key.to_bytes()).unwrap();
        assert_eq!(read.sign.seed(), key.sign.seed());
        assert_eq!(keys.server.cohort[&key.client], read.sign.verify_key());
        assert_eq!(format!("{:?}", key.sign), "SigningKey(secret)");
    }
    assert_ne!(keys.clients[0].sign.seed(), keys.clients[1].sign.seed());
    let read = ServerKey::from_bytes(&keys.server.to_bytes()).unwrap();
    assert_eq!(read, keys.server);
    let same: BTreeMap<_, _> =
        keys.server.cohort.keys().map(|client| (*client, keys.server.cohort[&ClientId::new(0)])).collect();
    let shared = ServerKey { cohort: Arc::new(same), ..keys.server };
    let error = ServerKey::from_bytes(&shared.to_bytes()).unwrap_err();
    assert!(
        matches!(error, Error::Key { .. }) && error.to_string().contains("client 4 has no key of its own"),
        "{error}"
    );
}
