//! Encryption of a device's key on its way from the authority: HPKE (`fedcipher_core::oneshot::sealing`) with X-Wing
//! (X25519 and ML-KEM-768), to a public key that the engine makes for one call. Recorded traffic stays secret from a
//! later quantum computer, as with the ring-LWE schemes.

use crate::{Error, Result};
use fedcipher_core::Epoch;
use fedcipher_core::oneshot::sealing::{self, ENCAPPED_LEN, HpkePublicKey, HpkeSecretKey};
use zeroize::Zeroizing;

/// The context of an encrypted key: its purpose, device and epoch.
fn info(device: &str, epoch: Epoch) -> Vec<u8> {
    format!("fedcipher v1 key|{epoch}|{device}").into_bytes()
}

/// The engine's key pair for one call.
pub struct Recipient {
    secret: HpkeSecretKey,
    public: Vec<u8>,
}

impl Recipient {
    pub fn generate() -> Result<Self> {
        let (secret, public) = sealing::generate()?;
        Ok(Recipient { secret: HpkeSecretKey::parse(&secret)?, public })
    }

    /// The public key for the authority.
    #[must_use]
    pub fn public(&self) -> Vec<u8> {
        self.public.clone()
    }

    pub fn open(&self, device: &str, epoch: Epoch, encapped: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
        let opened = (encapped.len() == ENCAPPED_LEN)
            .then(|| self.secret.open(&info(device, epoch), &[encapped, sealed].concat()))
            .flatten();
        opened.ok_or_else(|| Error::Protocol(format!("the key of epoch {epoch} was not sealed to this engine")))
    }
}

/// Fails if `public` is not a valid public key.
pub fn check(public: &[u8]) -> Result<()> {
    let failed = |e| Error::Protocol(format!("cannot seal to the engine's public key: {e}"));
    HpkePublicKey::parse(public).map(|_| ()).map_err(failed)
}

/// Encrypts a key at the authority: (encapsulated key, ciphertext).
pub fn seal_key(public: &[u8], device: &str, epoch: Epoch, key: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
    let failed = |e| Error::Protocol(format!("cannot seal to the engine's public key: {e}"));
    let mut encapped =
        HpkePublicKey::parse(public).and_then(|to| to.hpke_seal(&info(device, epoch), key)).map_err(failed)?;
    let sealed = encapped.split_off(ENCAPPED_LEN);
    Ok((encapped, sealed))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn only_the_recipient_opens_and_only_for_the_purpose() {
        let (engine, other) = (Recipient::generate().unwrap(), Recipient::generate().unwrap());
        let (encapped, sealed) = seal_key(&engine.public(), "nic-1", Epoch::new(3), b"secret").unwrap();
        assert_eq!(engine.open("nic-1", Epoch::new(3), &encapped, &sealed).unwrap().as_slice(), b"secret");
        assert!(other.open("nic-1", Epoch::new(3), &encapped, &sealed).is_err());
        assert!(engine.open("nic-2", Epoch::new(3), &encapped, &sealed).is_err());
        assert!(engine.open("nic-1", Epoch::new(4), &encapped, &sealed).is_err());
        let mut damaged = sealed.clone();
        damaged[0] ^= 1;
        assert!(engine.open("nic-1", Epoch::new(3), &encapped, &damaged).is_err());
        assert!(seal_key(b"short", "nic-1", Epoch::new(3), b"secret").is_err());
    }
}
