//! A party's own keys: Ed25519 to sign (RFC 8032), X-Wing to be sealed to. Nobody else makes or holds them.

use super::sealing::{self, Secret};
use crate::prf::random_bytes;
use crate::{Error, Result};
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use zeroize::Zeroizing;

/// Bytes of a signature.
pub const SIGNATURE_LEN: usize = 64;
/// Bytes of a public key to check signatures with.
pub const VERIFY_LEN: usize = 32;
/// Bytes of an identity's secrets.
pub const IDENTITY_LEN: usize = 32 + sealing::SECRET_LEN;

/// Both secret keys; zeroised when dropped, never printed.
#[derive(Clone)]
pub struct Identity {
    signing: SigningKey,
    pub secret: Secret,
    bytes: Zeroizing<[u8; IDENTITY_LEN]>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity(secret)")
    }
}

impl Identity {
    pub fn generate() -> Result<Self> {
        let (seal, _) = sealing::generate()?;
        let bytes = Zeroizing::new([random_bytes::<32>()?.as_slice(), &seal].concat());
        Identity::from_bytes(&bytes)
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bytes: [u8; IDENTITY_LEN] = bytes
            .try_into()
            .map_err(|_| Error::Key { reason: format!("an identity has {IDENTITY_LEN} bytes, not {}", bytes.len()) })?;
        let bytes = Zeroizing::new(bytes);
        let (sign, seal) = bytes.split_at(32);
        let mut seed = Zeroizing::new([0u8; 32]);
        seed.copy_from_slice(sign);
        Ok(Identity { signing: SigningKey::from_bytes(&seed), secret: Secret::parse(seal)?, bytes })
    }

    /// Serialised form; it holds the secrets.
    #[must_use]
    pub fn to_bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// What others check this party's signatures with.
    #[must_use]
    pub fn verify_key(&self) -> [u8; VERIFY_LEN] {
        self.signing.verifying_key().to_bytes()
    }

    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_LEN] {
        self.signing.sign(message).to_bytes()
    }
}

/// Whether `key` is one that signatures can be checked with: on the curve, and not of small order.
#[must_use]
pub fn is_key(key: &[u8; VERIFY_LEN]) -> bool {
    VerifyingKey::from_bytes(key).is_ok_and(|key| !key.is_weak())
}

/// Whether `signature` over `message` was made with the secret of `key`. Keys of small order are refused.
#[must_use]
pub fn verifies(key: &[u8; VERIFY_LEN], message: &[u8], signature: &[u8; SIGNATURE_LEN]) -> bool {
    VerifyingKey::from_bytes(key).is_ok_and(|key| key.verify_strict(message, &Signature::from_bytes(signature)).is_ok())
}
