//! A device's key on its way from the authority: HPKE (RFC 9180) to a public key that the engine makes for
//! one call, with X-Wing (X25519 and ML-KEM-768), so that what is recorded today stays closed to a later
//! quantum computer, as the ring-LWE schemes are.

use crate::{Error, Result};
use hpke::aead::AesGcm256;
use hpke::kdf::KdfShake256;
use hpke::kem::XWing;
use hpke::{Deserializable, Kem, OpModeR, OpModeS, Serializable};
use zeroize::Zeroizing;

/// Binds a sealed key to its purpose.
fn info(device: &str, epoch: u64) -> Vec<u8> {
    format!("fedcipher v1 key|{epoch}|{device}").into_bytes()
}

/// The engine's side, for one call.
pub struct Recipient {
    secret: <XWing as Kem>::PrivateKey,
    public: <XWing as Kem>::PublicKey,
}

impl Default for Recipient {
    fn default() -> Self {
        let (secret, public) = XWing::gen_keypair();
        Recipient { secret, public }
    }
}

impl Recipient {
    /// To send to the authority.
    #[must_use]
    pub fn public(&self) -> Vec<u8> {
        self.public.to_bytes().to_vec()
    }

    pub fn open(&self, device: &str, epoch: u64, encapped: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
        let failed = |_| Error::Protocol(format!("the key of epoch {epoch} was not sealed to this engine"));
        let encapped = <XWing as Kem>::EncappedKey::from_bytes(encapped).map_err(failed)?;
        let info = info(device, epoch);
        let mode = OpModeR::Base;
        hpke::single_shot_open::<AesGcm256, KdfShake256, XWing>(&mode, &self.secret, &encapped, &info, sealed, &[])
            .map(Zeroizing::new)
            .map_err(failed)
    }
}

/// The authority's side: (encapsulated key, sealed bytes).
pub fn seal(public: &[u8], device: &str, epoch: u64, key: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
    let failed = |e| Error::Protocol(format!("cannot seal to the engine's public key: {e}"));
    let public = <XWing as Kem>::PublicKey::from_bytes(public).map_err(failed)?;
    let mode = OpModeS::Base;
    let sealed =
        hpke::single_shot_seal::<AesGcm256, KdfShake256, XWing>(&mode, &public, &info(device, epoch), key, &[]);
    sealed.map(|(encapped, sealed)| (encapped.to_bytes().to_vec(), sealed)).map_err(failed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn only_the_recipient_opens_and_only_for_the_purpose() {
        let (engine, other) = (Recipient::default(), Recipient::default());
        let (encapped, sealed) = seal(&engine.public(), "nic-1", 3, b"secret").unwrap();
        assert_eq!(engine.open("nic-1", 3, &encapped, &sealed).unwrap().as_slice(), b"secret");
        assert!(other.open("nic-1", 3, &encapped, &sealed).is_err());
        assert!(engine.open("nic-2", 3, &encapped, &sealed).is_err());
        assert!(engine.open("nic-1", 4, &encapped, &sealed).is_err());
        let mut damaged = sealed.clone();
        damaged[0] ^= 1;
        assert!(engine.open("nic-1", 3, &encapped, &damaged).is_err());
        assert!(seal(b"short", "nic-1", 3, b"secret").is_err());
    }
}
