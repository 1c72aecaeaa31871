//! A party's own keys: Ed25519 and ML-DSA-65 together for signatures, X-Wing for encryption to the party. Only the
//! party makes and holds them.

use super::sealing::{self, HpkeSecretKey};
use crate::sign::hybrid::{self, SIGNATURE_LEN};
use crate::sign::{Purpose, SEED_LEN, SigningKey, VERIFY_LEN};
use crate::statement::sha256;
use crate::{Error, Result};
use zeroize::Zeroizing;

/// Bytes of an identity's secrets.
pub const IDENTITY_LEN: usize = SEED_LEN + sealing::SECRET_LEN;

/// Both secret keys; zeroised when dropped, never printed.
#[derive(Clone)]
pub struct Identity {
    pub signing: SigningKey,
    both: hybrid::SigningKey,
    pub secret: HpkeSecretKey,
    bytes: Zeroizing<[u8; IDENTITY_LEN]>,
}

/// The fingerprint of a party's public keys, for people to compare.
pub(super) fn fingerprint(verify_keys: &[u8], sealed_to: &[u8]) -> [u8; 32] {
    sha256(&[b"fedcipher card 1\0", verify_keys, sealed_to])
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity(secret)")
    }
}

impl Identity {
    pub fn generate() -> Result<Self> {
        let (seal, _) = sealing::generate()?;
        Identity::of(&SigningKey::generate()?, &seal)
    }

    /// An identity from its signing key and its HPKE secret key.
    pub fn of(signing: &SigningKey, sealing: &[u8]) -> Result<Self> {
        Identity::from_bytes(&Zeroizing::new([signing.seed().as_slice(), sealing].concat()))
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bytes: [u8; IDENTITY_LEN] = bytes
            .try_into()
            .map_err(|_| Error::Key { reason: format!("an identity has {IDENTITY_LEN} bytes, not {}", bytes.len()) })?;
        let bytes = Zeroizing::new(bytes);
        let (sign, seal) = bytes.split_at(SEED_LEN);
        let mut seed = Zeroizing::new([0u8; SEED_LEN]);
        seed.copy_from_slice(sign);
        let signing = SigningKey::from_seed(&seed);
        Ok(Identity { both: signing.clone().into(), signing, secret: HpkeSecretKey::parse(seal)?, bytes })
    }

    /// Serialised form; it holds the secrets.
    #[must_use]
    pub fn to_bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// The HPKE public key.
    #[must_use]
    pub fn sealing(&self) -> &[u8] {
        &self.bytes[SEED_LEN..]
    }

    /// The Ed25519 half of the verification keys. It names the party.
    #[must_use]
    pub fn verify_key(&self) -> [u8; VERIFY_LEN] {
        self.signing.verify_key()
    }

    /// The party's verification keys.
    #[must_use]
    pub fn verify_keys(&self) -> [u8; hybrid::VERIFY_LEN] {
        self.both.verify_key()
    }

    /// The fingerprint of the public keys, for people to compare.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        fingerprint(&self.verify_keys(), &self.secret.public())
    }

    pub fn sign(&self, purpose: Purpose, message: &[u8]) -> Result<[u8; SIGNATURE_LEN]> {
        self.both.sign(purpose, message)
    }

    /// The signing keys, for another object of this party.
    #[must_use]
    pub fn signer(&self) -> hybrid::SigningKey {
        self.both.clone()
    }
}
