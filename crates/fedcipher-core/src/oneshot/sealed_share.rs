//! Encryption of a share to one member. Only that member can open it, under one of its prekeys and beside one update.
//! If a
//! member cannot read a share, it can prove so.
//!
//! An encapsulation of X-Wing in HPKE's base mode gives a secret X. The share is encrypted with AES-256-GCM under a key
//! derived from X. GCM does not commit to its key, so the client signs a hash of X too. A member that reveals X proves
//! what it was sent. The associated data is the digest of the content that the client signs.

use super::sealing::{ENCAPPED_LEN, EXPORT_LEN, HpkePublicKey, HpkeSecretKey};
use crate::shown::shown;
use crate::statement::sha256;
use crate::wire::Reader;
use crate::{Error, Result};
use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

const NUMBER_LEN: usize = 8;
const GCM_TAG: usize = 16;
/// Bytes that encryption adds to a share.
pub const OVERHEAD: usize = NUMBER_LEN + 32 + ENCAPPED_LEN + GCM_TAG;

/// The secret X that a client and a member use for one share.
pub type Exported = Zeroizing<[u8; EXPORT_LEN]>;

/// A hash that hides X, which is 256 bits from a KDF.
fn commitment(x: &Exported) -> [u8; 32] {
    sha256(&[b"fedcipher oneshot v1 committed", x.as_slice()])
}

/// The cipher of one message. X is fresh each time, so the nonce is zero.
fn cipher(x: &Exported) -> Aes256Gcm {
    let key = Zeroizing::new(sha256(&[b"fedcipher oneshot v1 share key", x.as_slice()]));
    Aes256Gcm::new((&*key).into())
}

/// The part of an encrypted share that needs no data.
pub struct Envelope {
    pub number: u64,
    encapped: Vec<u8>,
    x: Exported,
}

impl Envelope {
    /// An envelope for the holder of prekey `number`, in the context `info` only.
    pub fn to(number: u64, prekey: &HpkePublicKey, info: &[u8]) -> Result<Self> {
        let (encapped, x) = prekey.encapsulate(info)?;
        Ok(Envelope { number, encapped, x })
    }

    /// `number u64 | hash of X 32 | encapsulated key | share and its tag`.
    pub fn encrypt_share(&self, data: &[u8; 32], share: &[u8]) -> Result<Vec<u8>> {
        let sealed = cipher(&self.x)
            .encrypt(&Nonce::default(), Payload { msg: share, aad: data })
            .map_err(|_| Error::Key { reason: "sealing a share failed".into() })?;
        Ok([&self.number.to_le_bytes()[..], &commitment(&self.x), &self.encapped, &sealed].concat())
    }
}

/// The placeholder for the share of a member without a published prekey.
pub const NO_SHARE: [u8; NUMBER_LEN] = [0; NUMBER_LEN];

/// An encrypted share on the wire.
#[derive(Debug, Clone, Copy)]
pub struct SealedShare<'a> {
    /// The number of the prekey; 0 if there is no share.
    pub number: u64,
    committed: [u8; 32],
    encapped: &'a [u8],
    sealed: &'a [u8],
    /// The whole encrypted share.
    pub bytes: &'a [u8],
}

impl<'a> SealedShare<'a> {
    /// Reads an encrypted share whose plaintext has `len` bytes.
    pub fn read(r: &mut Reader<'a>, len: usize) -> Result<Self> {
        let whole = r.clone().rest();
        let number = r.u64()?;
        if number == 0 {
            return Ok(SealedShare {
                number,
                committed: [0; 32],
                encapped: &[],
                sealed: &[],
                bytes: &whole[..NUMBER_LEN],
            });
        }
        let (committed, encapped, sealed) = (r.array()?, r.bytes(ENCAPPED_LEN)?, r.bytes(len + GCM_TAG)?);
        Ok(SealedShare { number, committed, encapped, sealed, bytes: &whole[..len + OVERHEAD] })
    }

    /// The bytes that the client signs of the share.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        sha256(&[self.bytes])
    }

    /// X, for the holder of the prekey; `None` if the client has signed another X.
    #[must_use]
    pub fn exported(&self, prekey: &HpkeSecretKey, info: &[u8]) -> Option<Exported> {
        prekey.decapsulate(info, self.encapped).filter(|x| self.is_of(x))
    }

    /// Whether the client has signed this X.
    #[must_use]
    pub fn is_of(&self, x: &Exported) -> bool {
        shown(bool::from(commitment(x).ct_eq(&self.committed)))
    }

    /// The share; `None` if X or `data` differ from those of its encryption.
    #[must_use]
    pub fn open(&self, x: &Exported, data: &[u8; 32]) -> Option<Zeroizing<Vec<u8>>> {
        let opened = cipher(x).decrypt(&Nonce::default(), Payload { msg: self.sealed, aad: data });
        opened.ok().map(Zeroizing::new)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use crate::oneshot::sealing::generate;

    fn read(bytes: &[u8], len: usize) -> Result<SealedShare<'_>> {
        let mut r = Reader::new(bytes);
        let read = SealedShare::read(&mut r, len)?;
        r.finish().map(|()| read)
    }

    #[test]
    fn a_share_opens_for_its_member_beside_its_update_only() {
        let (secret, public) = generate().unwrap();
        let (secret, public) = (HpkeSecretKey::parse(&secret).unwrap(), HpkePublicKey::parse(&public).unwrap());
        let envelope = Envelope::to(7, &public, b"here").unwrap();
        let bytes = envelope.encrypt_share(&[1; 32], b"share").unwrap();
        assert_eq!(bytes.len(), 5 + OVERHEAD);
        let share = read(&bytes, 5).unwrap();
        let x = share.exported(&secret, b"here").unwrap();
        assert_eq!(share.open(&x, &[1; 32]).unwrap().as_slice(), b"share");
        assert!(share.open(&x, &[2; 32]).is_none() && share.exported(&secret, b"there").is_none());
        assert!(read(&bytes[..bytes.len() - 1], 5).is_err() && read(&bytes, 4).is_err());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let damaged = read(&damaged, 5).unwrap();
            assert_ne!(damaged.digest(), share.digest());
            let opened = damaged.exported(&secret, b"here").and_then(|x| damaged.open(&x, &[1; 32]));
            // The number is not encrypted; the client's signature covers it.
            assert_eq!(opened.is_some(), at < NUMBER_LEN, "byte {at}");
        }
    }

    /// One GCM ciphertext that is valid under two keys. Only the X that the client has signed proves anything.
    #[test]
    fn another_secret_than_the_signed_one_proves_nothing() {
        let (_, public) = generate().unwrap();
        let envelope = Envelope::to(1, &HpkePublicKey::parse(&public).unwrap(), b"here").unwrap();
        let bytes = envelope.encrypt_share(&[0; 32], b"share").unwrap();
        let share = read(&bytes, 5).unwrap();
        let mut other = envelope.x.clone();
        other[3] ^= 1;
        assert!(share.is_of(&envelope.x) && !share.is_of(&other) && share.open(&other, &[0; 32]).is_none());
    }

    #[test]
    fn no_share_is_eight_bytes() {
        let read = read(&NO_SHARE, 5).unwrap();
        assert_eq!((read.number, read.bytes.len()), (0, NUMBER_LEN));
    }
}
