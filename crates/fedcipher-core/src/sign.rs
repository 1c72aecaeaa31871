//! Ed25519 signatures (RFC 8032), which prove the sender of a message, and one predicate of validity.
//!
//! Implementations differ on the validity of unusual signatures, and some differ between single and batch verification
//! ("Taming the many EdDSAs", Chalkias, Garillot, Nikolaenko, 2020). Here a signature is valid by the rules of ZIP 215,
//! which take the cofactor into account both alone and in a batch. The key must have the encoding of RFC 8032. It must not
//! be of small order, because under such a key one signature is valid for many messages.

use crate::prf::{Draws, Stream, random_bytes};
use crate::shown::shown;
use crate::{ClientId, Error, Result};
use ed25519_dalek::Signer;
use ed25519_zebra::batch::{Item, Verifier};
use ed25519_zebra::{Signature, VerificationKey, VerificationKeyBytes};
use rayon::prelude::*;
use zeroize::Zeroizing;

pub mod hybrid;

/// Bytes of a signature.
pub const SIGNATURE_LEN: usize = 64;
/// Bytes of a public key to check signatures with.
pub const VERIFY_LEN: usize = 32;
/// Bytes of a secret key.
pub const SEED_LEN: usize = 32;

/// Signatures that are checked together. A larger batch gains no time.
const BATCH: usize = 128;

/// The purpose of a signature. A signature holds for one purpose only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A client sends its one update of the round.
    Update,
    /// A committee's member answers.
    Answer,
    /// A committee's member complains about clients that have sent it false shares.
    Complaint,
    /// A committee's member has remembered sets of clients.
    Sets,
    /// A run's coordinator signs the run's charter.
    Charter,
    /// A party has joined a roster.
    Roster,
    /// A committee's member publishes a key to which shares are encrypted.
    Prekey,
    /// A site signs the head of its log.
    Log,
}

impl Purpose {
    /// All purposes.
    pub const ALL: [Purpose; 8] = [
        Purpose::Update,
        Purpose::Answer,
        Purpose::Complaint,
        Purpose::Sets,
        Purpose::Charter,
        Purpose::Roster,
        Purpose::Prekey,
        Purpose::Log,
    ];

    fn domain(self) -> &'static [u8] {
        match self {
            Purpose::Update => b"fedcipher update 1\0",
            Purpose::Answer => b"fedcipher answer 1\0",
            Purpose::Complaint => b"fedcipher complaint 1\0",
            Purpose::Sets => b"fedcipher sets 1\0",
            Purpose::Charter => b"fedcipher charter 1\0",
            Purpose::Roster => b"fedcipher roster 1\0",
            Purpose::Prekey => b"fedcipher prekey 1\0",
            Purpose::Log => b"fedcipher log 1\0",
        }
    }

    /// The bytes that are signed in place of `message`.
    fn of(self, message: &[u8]) -> Vec<u8> {
        [self.domain(), message].concat()
    }
}

/// A secret key. It is zeroised when dropped, and never printed.
#[derive(Clone)]
pub struct SigningKey(ed25519_dalek::SigningKey);

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningKey(secret)")
    }
}

impl SigningKey {
    /// Generates a key from the operating system's randomness.
    pub fn generate() -> Result<Self> {
        Ok(SigningKey::from_seed(&*random_bytes::<SEED_LEN>()?))
    }

    #[must_use]
    pub fn from_seed(seed: &[u8; SEED_LEN]) -> Self {
        SigningKey(ed25519_dalek::SigningKey::from_bytes(seed))
    }

    /// The secret seed of the key.
    #[must_use]
    pub fn seed(&self) -> Zeroizing<[u8; SEED_LEN]> {
        Zeroizing::new(self.0.to_bytes())
    }

    /// The public key for verification.
    #[must_use]
    pub fn verify_key(&self) -> [u8; VERIFY_LEN] {
        shown(self.0.verifying_key().to_bytes())
    }

    #[must_use]
    pub fn sign(&self, purpose: Purpose, message: &[u8]) -> [u8; SIGNATURE_LEN] {
        self.sign_bytes(&purpose.of(message))
    }

    fn sign_bytes(&self, bytes: &[u8]) -> [u8; SIGNATURE_LEN] {
        self.0.sign(bytes).to_bytes()
    }
}

/// Encodings of keys that are refused: points of small order with y below p, and 1 and -1 with a sign that RFC 8032
/// forbids.
const SMALL: [[u8; VERIFY_LEN]; 10] = {
    const ORDER_8: [[u8; VERIFY_LEN]; 2] = [
        [
            0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f, 0x2a, 0x20,
            0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a,
        ],
        [
            0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5, 0xdf,
            0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05,
        ],
    ];
    let mut minus_one = [0xff; VERIFY_LEN];
    (minus_one[0], minus_one[VERIFY_LEN - 1]) = (0xec, 0x7f);
    let mut one = [0; VERIFY_LEN];
    one[0] = 1;
    let zero = [0; VERIFY_LEN];
    let all = [zero, one, minus_one, ORDER_8[0], ORDER_8[1]];
    let mut signed = [[0; VERIFY_LEN]; 10];
    let mut k = 0;
    while k < all.len() {
        signed[2 * k] = all[k];
        signed[2 * k + 1] = all[k];
        signed[2 * k + 1][VERIFY_LEN - 1] |= 0x80;
        k += 1;
    }
    signed
};

/// True if the y of `key` is below p = 2^255 - 19 and the point is not of small order.
fn is_admissible(key: &[u8; VERIFY_LEN]) -> bool {
    let [first, middle @ .., last] = key;
    let beyond = last & 0x7f == 0x7f && *first >= 0xed && middle.iter().all(|byte| *byte == 0xff);
    !beyond && !SMALL.contains(key)
}

/// True if signatures can be checked with `key`.
#[must_use]
pub fn is_key(key: &[u8; VERIFY_LEN]) -> bool {
    is_admissible(key) && VerificationKey::try_from(*key).is_ok()
}

/// A message with a claimed signature.
#[derive(Debug, Clone, Copy)]
pub struct Signed<'a> {
    /// The party that signed.
    pub party: ClientId,
    pub key: &'a [u8; VERIFY_LEN],
    pub purpose: Purpose,
    pub message: &'a [u8],
    pub signature: &'a [u8; SIGNATURE_LEN],
}

impl Signed<'_> {
    fn item(&self) -> Option<Item> {
        item(self.key, &self.purpose.of(self.message), self.signature)
    }

    /// True if the signature is valid.
    #[must_use]
    pub fn holds(&self) -> bool {
        holds_alone(self.item())
    }

    /// Fails unless the signature is valid.
    pub fn check(&self) -> Result<()> {
        if self.holds() { Ok(()) } else { Err(Error::Signature { party: self.party }) }
    }
}

/// The parties of `all` whose signatures are invalid; empty if all are valid. A batch takes half the time per
/// signature.
pub fn refused(all: &[Signed<'_>]) -> Result<Vec<ClientId>> {
    let holds = hold(all, Signed::item)?;
    Ok(all.iter().zip(holds).filter_map(|(signed, holds)| (!holds).then_some(signed.party)).collect())
}

/// A signature over exactly `bytes`, for the single or the batch check. Returns `None` for a refused key.
fn item(key: &[u8; VERIFY_LEN], bytes: &[u8], signature: &[u8; SIGNATURE_LEN]) -> Option<Item> {
    let item = || (VerificationKeyBytes::from(*key), Signature::from_bytes(signature), &bytes).into();
    is_admissible(key).then(item)
}

fn holds_alone(item: Option<Item>) -> bool {
    item.is_some_and(|item| item.verify_single().is_ok())
}

/// Checks `all` signatures in batches. Returns true for each valid one.
fn hold<T: Sync>(all: &[T], item: impl Fn(&T) -> Option<Item> + Sync) -> Result<Vec<bool>> {
    let part = |some: &[T]| hold_together(some.iter().map(&item).collect());
    Ok(all.par_chunks(BATCH).map(part).collect::<Result<Vec<_>>>()?.concat())
}

fn hold_together(items: Vec<Option<Item>>) -> Result<Vec<bool>> {
    let mut batch = Verifier::new();
    items.iter().flatten().for_each(|item| batch.queue(item.clone()));
    // The seed was unpredictable when the signatures were made, so it may be marked public now.
    let draws = Stream::new(&shown(*random_bytes::<32>()?), [0; 12])?;
    let together = batch.verify(Draws(draws)).is_ok();
    Ok(items.into_iter().map(|item| if together { item.is_some() } else { holds_alone(item) }).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    fn unhex<const N: usize>(text: &str) -> [u8; N] {
        let byte = |k: usize| u8::from_str_radix(&text[2 * k..2 * k + 2], 16).unwrap();
        std::array::from_fn(byte)
    }

    /// (message, key, signature, valid by ZIP 215, key accepted here). The vectors, and the comment on the last one, come
    /// from the repository ed25519-speccheck of "Taming the many EdDSAs" (Apache-2.0).
    const VECTORS: [(&str, &str, &str, bool, bool); 15] = include!("../tests/speccheck.in");

    /// The validity of a signature without a purpose: (alone, in a batch of one).
    fn bare(message: &[u8], key: [u8; VERIFY_LEN], signature: &[u8; SIGNATURE_LEN]) -> (bool, bool) {
        let item = || Item::from((VerificationKeyBytes::from(key), Signature::from_bytes(signature), message));
        let mut batch = Verifier::new();
        batch.queue(item());
        (item().verify_single().is_ok(), batch.verify(Draws(Stream::from_os().unwrap())).is_ok())
    }

    #[test]
    fn the_published_edge_cases_hold_alone_as_in_a_batch() {
        for (number, (message, key, signature, zip215, taken)) in VECTORS.into_iter().enumerate() {
            let (message, key, signature) = (unhex::<32>(message), unhex(key), unhex(signature));
            assert_eq!(bare(&message, key, &signature), (zip215, zip215), "vector {number}");
            assert_eq!(is_key(&key), taken, "vector {number}");
        }
    }
}
