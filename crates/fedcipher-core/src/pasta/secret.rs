//! The secret in a client's key: `PASTA words | length u64 | their encryption | BFV secret`.
//!
//! The BFV secret is parsed only when an aggregate is opened, so a client that only encrypts needs no BFV tables.

use super::cipher::Pasta;
use super::context::Context;
use super::ring::wire::check_secret;
use super::shared::parsed;
use crate::keys::ClientKey;
use crate::wire::Reader;
use crate::{Error, Result};
use fhe::bfv::SecretKey;
use fhe_traits::DeserializeParametrized;
use zeroize::Zeroizing;

/// A client's secret.
pub struct Secret {
    pub pasta: Pasta,
    /// The PASTA key encrypted under BFV, which the client sends once an epoch.
    pub encrypted_key: Vec<u8>,
    bfv: Zeroizing<Vec<u8>>,
}

impl Secret {
    /// Writes the bytes that [`Self::parse`] reads.
    pub fn pack(words: &[u64], encrypted: &[u8], bfv: &[u8]) -> Zeroizing<Vec<u8>> {
        let mut own = Zeroizing::new(Vec::with_capacity(8 * words.len() + 8 + encrypted.len() + bfv.len()));
        words.iter().for_each(|w| own.extend_from_slice(&w.to_le_bytes()));
        own.extend_from_slice(&(encrypted.len() as u64).to_le_bytes());
        own.extend_from_slice(encrypted);
        own.extend_from_slice(bfv);
        own
    }

    pub fn parse(c: &Context, key: &ClientKey) -> Result<Self> {
        let bad = |_| Error::Key { reason: "a pasta-bfv client key is malformed".into() };
        let mut r = Reader::new(&key.secret);
        let mut words = Zeroizing::new(Vec::with_capacity(2 * c.variant.t));
        for _ in 0..2 * c.variant.t {
            words.push(r.u64().map_err(bad)?);
        }
        let length = r.length().map_err(bad)?;
        let encrypted_key = r.bytes(length).map_err(bad)?.to_vec();
        let bfv = Zeroizing::new(r.rest().to_vec());
        check_secret(&bfv, c.degree).map_err(bad)?;
        Ok(Secret { pasta: Pasta::new(c.variant, c.field, &words)?, encrypted_key, bfv })
    }

    /// The BFV secret under the parameters of an aggregate.
    pub fn bfv(&self, c: &Context) -> Result<SecretKey> {
        let par = c.reader()?;
        parsed("BFV secret key", || SecretKey::from_bytes(&self.bfv, par))
            .map_err(|_| Error::Key { reason: "a pasta-bfv client key is malformed".into() })
    }
}
