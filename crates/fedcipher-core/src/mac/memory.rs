//! The memory of the rule of sets that a sum counts in, as headers carry it.
//!
//! Parties name a memory by a digest of its id. A header carries this digest, enciphered under the cohort's secret.
//! Without the secret, a reader of headers learns which sums of one key count in the same memory, and nothing else.
//! With it, a party deciphers the digest. So it finds the same memory under another roster or epoch, although these
//! have other secrets.
//!
//! Assumption: AES-256 is a PRP. The digest is enciphered with zeros beside it (encode-then-encipher: Bellare and
//! Rogaway, Asiacrypt 2000). A tag that was drawn at random, or made under an independent secret, deciphers to a memory
//! with probability 2^-39. A secret can be searched for under which a given tag does: a roster fixes its secret
//! ([`crate::oneshot::roster`]), so that all its parties have the same one.

use super::derive;
use crate::shown::shown;
use crate::wire::MemoryTag;
use crate::{Error, Result, RoundId};
use aes::Aes256;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};

/// The first byte of the id of a memory that is never forgotten. First positions and queries have such memories.
const PINNED: u8 = 1;
/// Bytes of zeros after the byte that says whether the memory is pinned.
const ZEROS: usize = 4;

/// The name of a memory: `pinned u8 | zeros 4 | digest of the id 11`. Holders of the cohort's secret decipher it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryId([u8; 16]);

impl MemoryId {
    /// The name of the memory `id`.
    #[must_use]
    pub fn of(id: &[u8]) -> Self {
        let mut out = [0; 16];
        out[0] = u8::from(id.first() == Some(&PINNED));
        let digest = blake3::derive_key("fedcipher v2 memory id", id);
        out[1 + ZEROS..].copy_from_slice(&digest[..15 - ZEROS]);
        MemoryId(out)
    }

    /// Fails for bytes that [`Self::to_bytes`] does not make.
    #[must_use]
    pub fn parse(bytes: [u8; 16]) -> Option<Self> {
        (bytes[0] <= 1 && bytes[1..=ZEROS].iter().all(|byte| *byte == 0)).then_some(MemoryId(bytes))
    }

    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Whether the memory is kept indefinitely.
    #[must_use]
    pub fn pinned(self) -> bool {
        self.0[0] == 1
    }
}

/// The cipher for names of memories.
#[derive(Clone)]
pub struct MemoryKey(Aes256);

impl std::fmt::Debug for MemoryKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryKey(secret)")
    }
}

impl MemoryKey {
    pub fn new(root: &[u8; 32]) -> Result<Self> {
        let key = derive(root, "fedcipher v2 memory")?;
        Aes256::new_from_slice(key.as_slice()).map(MemoryKey).map_err(|e| Error::Key { reason: e.to_string() })
    }

    /// The tag in the headers of sums that count in the memory `id`; zeros for no memory, where `id` is empty.
    #[must_use]
    pub fn tag(&self, id: &[u8]) -> MemoryTag {
        if id.is_empty() {
            return MemoryTag::default();
        }
        let mut block = MemoryId::of(id).to_bytes().into();
        self.0.encrypt_block(&mut block);
        // Headers carry the tag, so it is public.
        shown(block.into())
    }

    /// Deciphers the memory in a header's tag; `None` for zeros. Fails with `Error::Memory` of `round` if the result
    /// does not name a memory.
    pub fn read(&self, tag: MemoryTag, round: RoundId) -> Result<Option<MemoryId>> {
        if tag == MemoryTag::default() {
            return Ok(None);
        }
        let mut block = tag.into();
        self.0.decrypt_block(&mut block);
        // Tags already show which memories are the same.
        MemoryId::parse(shown(block.into())).map(Some).ok_or(Error::Memory { round })
    }
}
