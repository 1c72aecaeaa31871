//! Hybrid signatures: Ed25519 (RFC 8032) and ML-DSA-65 (FIPS 204). A forger must break both.
//!
//! This is `id-MLDSA65-Ed25519-SHA512` of draft-ietf-lamps-pq-composite-sigs, and passes the draft's vectors. The draft's
//! context is the purpose's domain. Both halves sign one representative of context and message, in which the message is
//! hashed by SHA-512. The representative starts with a prefix that differs from the start of every purpose of a plain
//! signature, and ML-DSA has the label of the combination as its context. So neither half is valid by itself for any
//! message.
//!
//! A forger must break both halves, or find a collision of SHA-512. An attacker who breaks Ed25519 can replace the
//! Ed25519 half of an honest signature by another one over the same message. So callers must not identify a message by
//! the bytes of its signature.

use super::{Purpose, hold, holds_alone, item};
use crate::prf::random_bytes;
use crate::shown::shown;
use crate::{ClientId, Error, Result};
use ed25519_zebra::batch::Item;
use libcrux_ml_dsa::ml_dsa_65::{self, MLDSA65Signature, MLDSA65SigningKey, MLDSA65VerificationKey};
use rayon::prelude::*;
use sha2::{Digest, Sha256, Sha512};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of the ML-DSA-65 half of a signature, which comes first as in the draft.
const LATTICE_SIGNATURE_LEN: usize = 3309;
/// Bytes of the ML-DSA-65 half of a public key, which comes first.
const LATTICE_VERIFY_LEN: usize = 1952;

/// Bytes of a signature.
pub const SIGNATURE_LEN: usize = LATTICE_SIGNATURE_LEN + super::SIGNATURE_LEN;
/// Bytes of a public key to check signatures with.
pub const VERIFY_LEN: usize = LATTICE_VERIFY_LEN + super::VERIFY_LEN;
/// Bytes of a secret key, which is the seed of an Ed25519 key.
pub const SEED_LEN: usize = super::SEED_LEN;

/// The prefix of every representative, and the name of the combination. Both come from the draft.
const PREFIX: &[u8] = b"CompositeAlgorithmSignatures2025";
const LABEL: &[u8] = b"COMPSIG-MLDSA65-Ed25519-SHA512";

/// The label under which the seed of the ML-DSA-65 key is derived.
const LATTICE_SEED: &[u8] = b"fedcipher ml-dsa-65 seed of ed25519 seed 1\0";

/// The representative that both halves sign in place of `message`.
fn representative(context: &[u8], message: &[u8]) -> Vec<u8> {
    [PREFIX, LABEL, &[context.len() as u8], context, &Sha512::digest(message)].concat()
}

/// The secret ML-DSA-65 key, zeroised when dropped. During its creation and its use, the library leaves copies of it
/// and of derived values on the stack, which it does not wipe.
#[derive(Clone)]
struct Lattice {
    secret: Box<MLDSA65SigningKey>,
    public: Box<[u8; LATTICE_VERIFY_LEN]>,
}

impl Drop for Lattice {
    fn drop(&mut self) {
        self.secret.as_mut_slice().zeroize();
    }
}

impl Lattice {
    fn from_seed(seed: &[u8; SEED_LEN]) -> Self {
        let mut pair = ml_dsa_65::generate_key_pair(*seed);
        let own = Lattice {
            secret: Box::new(pair.signing_key.clone()),
            public: Box::new(shown(*pair.verification_key.as_ref())),
        };
        pair.signing_key.as_mut_slice().zeroize();
        own
    }

    /// Signs with fresh randomness (FIPS 204: hedged), which protects the key from fault attacks and side channels.
    fn sign(&self, bytes: &[u8], context: &[u8], fresh: &[u8; 32]) -> Result<MLDSA65Signature> {
        ml_dsa_65::sign(&self.secret, bytes, context, *fresh)
            .map_err(|e| Error::Internal { reason: format!("ML-DSA-65 does not sign: {e:?}") })
    }
}

/// A secret key. It is zeroised when dropped, and never printed.
///
/// Its 32 bytes are the seed of the Ed25519 key. The seed of the ML-DSA-65 key is a SHA-256 of these bytes. An attacker
/// who computes the secret scalar from the Ed25519 public key learns half of the SHA-512 of the seed. The halves stay
/// independent if the attacker cannot compute the SHA-256 from that. This holds if both hashes are random oracles,
/// because a search for the seed takes 2^128 quantum steps.
#[derive(Clone)]
pub struct SigningKey {
    curve: super::SigningKey,
    lattice: Lattice,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("hybrid::SigningKey(secret)")
    }
}

impl From<super::SigningKey> for SigningKey {
    fn from(curve: super::SigningKey) -> Self {
        let mut seed = Zeroizing::new([0; SEED_LEN]);
        let hash = Sha256::new().chain_update(LATTICE_SEED).chain_update(curve.seed().as_slice());
        hash.finalize_into((&mut *seed).into());
        SigningKey { lattice: Lattice::from_seed(&seed), curve }
    }
}

impl SigningKey {
    /// Generates a key from the operating system's randomness.
    pub fn generate() -> Result<Self> {
        super::SigningKey::generate().map(SigningKey::from)
    }

    #[must_use]
    pub fn from_seed(seed: &[u8; SEED_LEN]) -> Self {
        super::SigningKey::from_seed(seed).into()
    }

    /// The secret seed of the key.
    #[must_use]
    pub fn seed(&self) -> Zeroizing<[u8; SEED_LEN]> {
        self.curve.seed()
    }

    /// The public keys for verification.
    #[must_use]
    pub fn verify_key(&self) -> [u8; VERIFY_LEN] {
        joined(&*self.lattice.public, &self.curve.verify_key())
    }

    pub fn sign(&self, purpose: Purpose, message: &[u8]) -> Result<[u8; SIGNATURE_LEN]> {
        self.sign_in(purpose.domain(), message, &*random_bytes()?)
    }

    fn sign_in(&self, context: &[u8], message: &[u8], fresh: &[u8; 32]) -> Result<[u8; SIGNATURE_LEN]> {
        let bytes = representative(context, message);
        Ok(joined(self.lattice.sign(&bytes, LABEL, fresh)?.as_slice(), &self.curve.sign_bytes(&bytes)))
    }
}

/// Both halves, in the draft's order.
fn joined<const N: usize>(lattice: &[u8], curve: &[u8]) -> [u8; N] {
    let mut both = [0; N];
    both[..lattice.len()].copy_from_slice(lattice);
    both[lattice.len()..].copy_from_slice(curve);
    both
}

/// Splits bytes into `N` bytes of ML-DSA-65 and `M` bytes of Ed25519; `None` for any other length.
fn halves<const N: usize, const M: usize>(both: &[u8]) -> Option<(&[u8; N], &[u8; M])> {
    let (lattice, curve) = both.split_first_chunk()?;
    Some((lattice, curve.try_into().ok()?))
}

/// True if signatures can be checked with `key`. Any bytes of the right length are an ML-DSA-65 key.
#[must_use]
pub fn is_key(key: &[u8]) -> bool {
    halves::<LATTICE_VERIFY_LEN, _>(key).is_some_and(|(_, curve)| super::is_key(curve))
}

/// A message with a claimed signature.
#[derive(Debug, Clone, Copy)]
pub struct Signed<'a> {
    /// The party that signed.
    pub party: ClientId,
    pub key: &'a [u8],
    pub purpose: Purpose,
    pub message: &'a [u8],
    pub signature: &'a [u8],
}

impl Signed<'_> {
    /// The Ed25519 half, still to be checked; `None` if the ML-DSA-65 half is invalid or a length is wrong.
    fn item(&self) -> Option<Item> {
        item_in(self.purpose.domain(), self.message, self.key, self.signature)
    }

    /// True if both halves are valid.
    #[must_use]
    pub fn holds(&self) -> bool {
        holds_alone(self.item())
    }

    /// Fails unless the signature is valid.
    pub fn check(&self) -> Result<()> {
        if self.holds() { Ok(()) } else { Err(Error::Signature { party: self.party }) }
    }
}

fn item_in(context: &[u8], message: &[u8], key: &[u8], signature: &[u8]) -> Option<Item> {
    let (lattice_key, curve_key) = halves(key)?;
    let (lattice, curve) = halves(signature)?;
    let bytes = representative(context, message);
    lattice_holds(lattice_key, &bytes, LABEL, lattice).then(|| item(curve_key, &bytes, curve))?
}

fn lattice_holds(
    key: &[u8; LATTICE_VERIFY_LEN],
    bytes: &[u8],
    context: &[u8],
    signature: &[u8; LATTICE_SIGNATURE_LEN],
) -> bool {
    let (key, signature) = (MLDSA65VerificationKey::new(*key), MLDSA65Signature::new(*signature));
    ml_dsa_65::verify(&key, bytes, context, &signature).is_ok()
}

/// The parties of `all` whose signatures are invalid; empty if all are valid. The Ed25519 halves are checked in
/// batches.
pub fn refused(all: &[Signed<'_>]) -> Result<Vec<ClientId>> {
    let items: Vec<_> = all.par_iter().map(Signed::item).collect();
    let holds = hold(&items, Option::clone)?;
    Ok(all.iter().zip(holds).filter_map(|(signed, holds)| (!holds).then_some(signed.party)).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use sha3::Shake128;
    use sha3::digest::{ExtendableOutput, Update, XofReader};

    const NOTHING_FRESH: [u8; 32] = [0; 32];

    fn unhex(text: &str) -> Vec<u8> {
        let byte = |k: usize| u8::from_str_radix(&text[2 * k..2 * k + 2], 16).unwrap();
        (0..text.len() / 2).map(byte).collect()
    }

    /// The key of each line of the file, and its values.
    fn all_known() -> impl Iterator<Item = (&'static str, Vec<Vec<u8>>)> {
        let lines = include_str!("../../tests/mldsa.in").lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split_once(' ').unwrap()).map(|(what, v)| (what, v.split(' ').map(unhex).collect()))
    }

    fn known(what: &str) -> impl Iterator<Item = Vec<Vec<u8>>> {
        all_known().filter(move |(found, _)| *found == what).map(|(_, values)| values)
    }

    fn holds_in(context: &[u8], message: &[u8], key: &[u8], signature: &[u8]) -> bool {
        holds_alone(item_in(context, message, key, signature))
    }

    #[test]
    fn the_draft_s_own_signatures_hold_under_the_keys_of_its_seeds() {
        let mut seen = 0;
        for v in known("composite") {
            let [seeds, context, message, key, signature] = v.try_into().unwrap();
            let (lattice, curve) = halves::<SEED_LEN, SEED_LEN>(&seeds).unwrap();
            let curve = super::super::SigningKey::from_seed(curve);
            let own = SigningKey { lattice: Lattice::from_seed(lattice), curve };
            assert_eq!(own.verify_key()[..], key);
            assert!(holds_in(&context, &message, &key, &signature));
            let ours = own.sign_in(&context, &message, &NOTHING_FRESH).unwrap();
            assert_eq!(ours[LATTICE_SIGNATURE_LEN..], signature[LATTICE_SIGNATURE_LEN..]);
            assert!(holds_in(&context, &message, &key, &ours));
            assert!(!holds_in(b"another", &message, &key, &signature));
            seen += 1;
        }
        assert_eq!(seen, 2);
    }

    #[test]
    fn what_another_implementation_signed_from_the_seed_holds() {
        let mut seen = 0;
        for v in known("openssl") {
            let [seed, message, key, signature] = v.try_into().unwrap();
            let own = SigningKey::from_seed(&seed.try_into().unwrap());
            assert_eq!(own.verify_key()[..], key);
            let signed = Signed {
                party: ClientId::new(1),
                key: &key,
                purpose: Purpose::Update,
                message: &message,
                signature: &signature,
            };
            assert!(signed.holds());
            seen += 1;
        }
        assert_eq!(seen, 1);
    }

    /// Wycheproof chose these vectors to reach every rejection and the rare branches of sampling.
    #[test]
    fn keys_and_signatures_of_ml_dsa_65_are_the_known_ones() {
        let mut seen = 0;
        for v in known("signs") {
            let [seed, context, message, hash] = v.try_into().unwrap();
            let own = Lattice::from_seed(&seed.try_into().unwrap());
            let signature = own.sign(&message, &context, &NOTHING_FRESH).unwrap();
            assert_eq!(Sha256::digest([own.public.as_slice(), signature.as_slice()].concat())[..], hash, "line {seen}");
            assert!(lattice_holds(&own.public, &message, &context, signature.as_ref()), "line {seen}");
            seen += 1;
        }
        assert_eq!(seen, 83);
    }

    #[test]
    fn odd_signatures_of_ml_dsa_65_hold_where_fips_204_says_so() {
        let (mut key, mut seen) = (None, [0; 2]);
        for (what, v) in all_known() {
            match (what, v.as_slice()) {
                ("key", [own]) => key = Some(own.as_slice().try_into().unwrap()),
                ("refused" | "holds", [context, message, signature]) => {
                    let signature = signature.as_slice().try_into().unwrap();
                    let holds = lattice_holds(key.as_ref().unwrap(), message, context, signature);
                    assert_eq!(holds, what == "holds", "{seen:?}");
                    seen[usize::from(holds)] += 1;
                }
                _ => {}
            }
        }
        assert_eq!(seen, [16, 4]);
    }

    /// The hash of keys and signatures of a sequence of seeds. Go's and other implementations publish the same value.
    #[test]
    fn a_hundred_keys_and_signatures_hash_to_the_published_value() {
        let mut seeds = Shake128::default().finalize_xof();
        let mut all = Shake128::default();
        for _ in 0..100 {
            let mut seed = [0; SEED_LEN];
            seeds.read(&mut seed);
            let own = Lattice::from_seed(&seed);
            all.update(own.public.as_slice());
            all.update(own.sign(b"", b"", &NOTHING_FRESH).unwrap().as_slice());
        }
        let mut hash = [0; 32];
        all.finalize_xof().read(&mut hash);
        assert_eq!(hash[..], unhex("8358a1843220194417cadbc2651295cd8fc65125b5a5c1a239a16dc8b57ca199"));
    }

    #[test]
    fn neither_half_holds_as_a_plain_signature() {
        let own = SigningKey::from_seed(&[3; SEED_LEN]);
        let curve_key = own.curve.verify_key();
        for purpose in Purpose::ALL {
            let both = own.sign(purpose, b"words").unwrap();
            let (lattice, curve) = halves::<LATTICE_SIGNATURE_LEN, _>(&both).unwrap();
            let bytes = representative(purpose.domain(), b"words");
            assert!(!Purpose::ALL.iter().any(|other| bytes.starts_with(other.domain())));
            for (context, alone) in [(LABEL, true), (b"", false), (purpose.domain(), false)] {
                assert_eq!(lattice_holds(&own.lattice.public, &bytes, context, lattice), alone);
                assert!(!lattice_holds(&own.lattice.public, &purpose.of(b"words"), context, lattice));
            }
            for purpose in Purpose::ALL {
                for message in [&b"words"[..], &bytes] {
                    let plain = super::super::Signed {
                        party: ClientId::new(1),
                        key: &curve_key,
                        purpose,
                        message,
                        signature: curve,
                    };
                    assert!(!plain.holds());
                }
            }
            let plain = own.curve.sign(purpose, b"words");
            let stuck: [u8; SIGNATURE_LEN] = joined(lattice, &plain);
            assert!(!holds_in(purpose.domain(), b"words", &own.verify_key(), &stuck));
        }
    }
}
