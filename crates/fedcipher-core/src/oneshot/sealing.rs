//! Encryption to one party: HPKE's base mode with X-Wing (X25519 and ML-KEM-768, draft-connolly-cfrg-xwing-kem-10),
//! SHAKE256 (draft-ietf-hpke-pq-04) and AES-256-GCM.

use crate::prf::{Draws, Stream};
use crate::{Error, Result};
use hpke::aead::AesGcm256;
use hpke::kdf::KdfShake256;
use hpke::kem::XWing;
use hpke::{Deserializable, Kem, OpModeR, OpModeS, Serializable};
use zeroize::Zeroizing;

/// Bytes of a public key.
pub const PUBLIC_LEN: usize = 1216;
/// Bytes of a secret key.
pub const SECRET_LEN: usize = 32;
/// Bytes of an encapsulated key, which precede the ciphertext.
pub const ENCAPPED_LEN: usize = 1120;
/// Bytes of the secret that an encapsulation gives both sides.
pub const EXPORT_LEN: usize = 32;
const EXPORT: &[u8] = b"fedcipher oneshot v1 share";
/// Bytes that encryption adds to a message.
pub const OVERHEAD: usize = ENCAPPED_LEN + 16;

/// A fresh pair of keys, both as bytes: (secret, public).
pub fn generate() -> Result<(Zeroizing<Vec<u8>>, Vec<u8>)> {
    let (secret, public) = XWing::gen_keypair_with_rng(&mut Draws(Stream::from_os()?));
    Ok((Zeroizing::new(secret.to_bytes().to_vec()), public.to_bytes().to_vec()))
}

/// Another party's public key.
#[derive(Clone, PartialEq, Eq)]
pub struct HpkePublicKey(<XWing as Kem>::PublicKey);

impl std::fmt::Debug for HpkePublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HpkePublicKey")
    }
}

impl HpkePublicKey {
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let failed = |e| Error::Key { reason: format!("a public key is not of X-Wing: {e}") };
        <XWing as Kem>::PublicKey::from_bytes(bytes).map(HpkePublicKey).map_err(failed)
    }

    /// Encrypts `bytes` to the holder of this key, in the context `info` only.
    pub fn hpke_seal(&self, info: &[u8], bytes: &[u8]) -> Result<Vec<u8>> {
        let failed = |e| Error::Key { reason: format!("sealing failed: {e}") };
        let mut draws = Draws(Stream::from_os()?);
        let (encapped, sealed) = hpke::single_shot_seal_with_rng::<AesGcm256, KdfShake256, XWing>(
            &OpModeS::Base,
            &self.0,
            info,
            bytes,
            &[],
            &mut draws,
        )
        .map_err(failed)?;
        Ok([encapped.to_bytes().as_slice(), &sealed].concat())
    }

    /// A fresh secret in the context `info`, and the encapsulation that gives it to the holder of this key.
    pub fn encapsulate(&self, info: &[u8]) -> Result<(Vec<u8>, Zeroizing<[u8; EXPORT_LEN]>)> {
        let failed = |e| Error::Key { reason: format!("sealing failed: {e}") };
        let mut draws = Draws(Stream::from_os()?);
        let (encapped, context) =
            hpke::setup_sender_with_rng::<AesGcm256, KdfShake256, XWing>(&OpModeS::Base, &self.0, info, &mut draws)
                .map_err(failed)?;
        let mut x = Zeroizing::new([0; EXPORT_LEN]);
        context.export(EXPORT, &mut *x).map_err(failed)?;
        Ok((encapped.to_bytes().to_vec(), x))
    }
}

/// A party's own secret key.
#[derive(Clone)]
pub struct HpkeSecretKey(<XWing as Kem>::PrivateKey);

impl std::fmt::Debug for HpkeSecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HpkeSecretKey(secret)")
    }
}

impl HpkeSecretKey {
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let failed = |_| Error::Key { reason: "an identity's sealing key is not of X-Wing".into() };
        <XWing as Kem>::PrivateKey::from_bytes(bytes).map(HpkeSecretKey).map_err(failed)
    }

    #[must_use]
    pub fn public(&self) -> Vec<u8> {
        XWing::sk_to_pk(&self.0).to_bytes().to_vec()
    }

    /// Decrypts bytes from [`HpkePublicKey::hpke_seal`] in the same context; `None` for anything else.
    #[must_use]
    pub fn open(&self, info: &[u8], sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (encapped, sealed) = sealed.split_at_checked(ENCAPPED_LEN)?;
        let encapped = <XWing as Kem>::EncappedKey::from_bytes(encapped).ok()?;
        hpke::single_shot_open::<AesGcm256, KdfShake256, XWing>(&OpModeR::Base, &self.0, &encapped, info, sealed, &[])
            .ok()
            .map(Zeroizing::new)
    }

    /// The secret from [`HpkePublicKey::encapsulate`] in the same context. For any other input, a different secret or
    /// `None`.
    #[must_use]
    pub fn decapsulate(&self, info: &[u8], encapped: &[u8]) -> Option<Zeroizing<[u8; EXPORT_LEN]>> {
        let encapped = <XWing as Kem>::EncappedKey::from_bytes(encapped).ok()?;
        let context =
            hpke::setup_receiver::<AesGcm256, KdfShake256, XWing>(&OpModeR::Base, &self.0, &encapped, info).ok()?;
        let mut x = Zeroizing::new([0; EXPORT_LEN]);
        context.export(EXPORT, &mut *x).ok()?;
        Some(x)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn only_whom_it_was_sealed_to_opens_it_and_only_in_its_context() {
        let ((secret, public), (other, _)) = (generate().unwrap(), generate().unwrap());
        assert_eq!((secret.len(), public.len()), (SECRET_LEN, PUBLIC_LEN));
        let (secret, other) = (HpkeSecretKey::parse(&secret).unwrap(), HpkeSecretKey::parse(&other).unwrap());
        assert_eq!(secret.public(), public);
        let sealed = HpkePublicKey::parse(&public).unwrap().hpke_seal(b"here", b"words").unwrap();
        assert_eq!(sealed.len(), 5 + OVERHEAD);
        assert_eq!(secret.open(b"here", &sealed).unwrap().as_slice(), b"words");
        assert!(secret.open(b"there", &sealed).is_none() && other.open(b"here", &sealed).is_none());
        for at in [0, ENCAPPED_LEN - 1, ENCAPPED_LEN, sealed.len() - 1] {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert!(secret.open(b"here", &damaged).is_none());
        }
        for cut in [0, 5, ENCAPPED_LEN, sealed.len() - 1] {
            assert!(secret.open(b"here", &sealed[..cut]).is_none());
        }
        assert!(HpkePublicKey::parse(&public[1..]).is_err() && HpkeSecretKey::parse(b"short").is_err());
        // An invalid lattice part, as an attacker would send it to cause a panic.
        assert!(HpkePublicKey::parse(&[0xff; PUBLIC_LEN]).is_err());
    }
}
