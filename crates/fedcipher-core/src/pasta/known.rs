//! The server's side: a cache of parsed evaluation keys and of the PASTA keys that clients have sent, by key set.

use super::context::Context;
use super::ring::Pair;
use super::shared::locked;
use super::transcipher::ServerKeys;
use crate::keys::ServerKey;
use crate::wire::Reader;
use crate::{ClientId, Error, Result};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

type KeyId = [u8; 16];

/// A client's PASTA key, encrypted under BFV: the bytes as sent, and the parsed ciphertext.
pub struct EncryptedKey {
    pub bytes: Vec<u8>,
    pub pair: Pair,
}

impl EncryptedKey {
    pub fn parse(c: &Context, bytes: &[u8]) -> Result<Arc<Self>> {
        let ring = &c.server()?.ring;
        let pair = ring.ciphertext("encrypted PASTA key", bytes, ring.top())?;
        Ok(Arc::new(EncryptedKey { bytes: bytes.to_vec(), pair }))
    }
}

/// The state that all aggregators of a scheme share.
#[derive(Default)]
pub struct Known {
    evaluation: Mutex<Option<(KeyId, Arc<ServerKeys>)>>,
    clients: Mutex<HashMap<(KeyId, ClientId), Arc<EncryptedKey>>>,
}

/// A server key's public part: `cohort x SHA-256 of the encrypted PASTA key | length u64 | Galois keys |
/// relinearisation key`.
pub fn pack(digests: &[u8], galois: &[u8], relinearisation: &[u8]) -> Vec<u8> {
    [digests, &(galois.len() as u64).to_le_bytes(), galois, relinearisation].concat()
}

/// The digest of each client's encrypted PASTA key.
pub fn digests(key: &ServerKey) -> Result<BTreeMap<ClientId, [u8; 32]>> {
    let mut r = Reader::new(&key.public);
    key.cohort.keys().map(|client| Ok((*client, r.array()?))).collect()
}

impl Known {
    pub fn evaluation_keys(&self, c: &Context, key: &ServerKey) -> Result<Arc<ServerKeys>> {
        let mut cached = locked(&self.evaluation);
        if let Some((id, keys)) = cached.as_ref()
            && *id == key.tag.key_id
        {
            return Ok(Arc::clone(keys));
        }
        let mut r = Reader::new(&key.public);
        r.bytes(key.cohort.len() * 32)?;
        let length = r.length()?;
        let galois = r.bytes(length)?;
        let missing = |e: Error| Error::Key { reason: format!("evaluation keys: {e}; load the server key again") };
        // The former epoch's keys are dropped first, because both together would need twice the memory.
        *cached = None;
        let keys = Arc::new(ServerKeys::parse(c, galois, r.rest()).map_err(missing)?);
        // A new epoch has begun, so the keys of the old one are no longer needed.
        locked(&self.clients).retain(|(id, _), _| *id == key.tag.key_id);
        *cached = Some((key.tag.key_id, Arc::clone(&keys)));
        Ok(keys)
    }

    /// Stores a client's encrypted PASTA key. Fails if the authority did not make this key for the client.
    pub fn learn(
        &self,
        c: &Context,
        id: KeyId,
        client: ClientId,
        bytes: &[u8],
        digest: Option<&[u8; 32]>,
    ) -> Result<()> {
        let found: [u8; 32] = Sha256::digest(bytes).into();
        if digest != Some(&found) {
            return Err(Error::Key {
                reason: format!("client {client} sent a PASTA key that was not issued to it in this epoch"),
            });
        }
        let key = EncryptedKey::parse(c, bytes)?;
        locked(&self.clients).insert((id, client), key);
        Ok(())
    }

    pub fn of(&self, id: KeyId, client: ClientId) -> Result<Arc<EncryptedKey>> {
        locked(&self.clients).get(&(id, client)).cloned().ok_or_else(|| Error::Key {
            reason: format!(
                "client {client} has not sent its encrypted PASTA key in this epoch; the client must send the key again"
            ),
        })
    }

    /// The clients whose PASTA key the server has.
    pub fn clients(&self, id: KeyId) -> BTreeSet<ClientId> {
        locked(&self.clients).keys().filter(|(of, _)| *of == id).map(|(_, client)| *client).collect()
    }
}
