//! What a header says of the memory of the rule of sets that a sum counts in.
//!
//! A party knows a memory by a digest of the memory's id. Headers carry this digest enciphered: to whoever lacks the
//! cohort's secret they say which sums of one key count in one memory, and nothing else. Whoever has the secret reads
//! the digest, and so knows a memory again under another roster or epoch, whose secret is another.
//!
//! Assumption: AES-256 is a PRP. The digest is enciphered with zeros (encode-then-encipher: Bellare and Rogaway,
//! Asiacrypt 2000): of what was enciphered under another secret, or drawn, one in 2^39 can be read.

use super::derive;
use crate::wire::MemoryTag;
use crate::{Error, Result};
use aes::Aes256;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};

/// The first byte of the id of a memory that is never forgotten: first positions, queries.
const PINNED: u8 = 1;
/// Bytes of zeros after the byte that says whether it is pinned.
const ZEROS: usize = 4;

/// A memory, as whoever holds the cohort's secret knows it: `pinned u8 | zeros 4 | digest of the id 11`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryId([u8; 16]);

impl MemoryId {
    /// Of the memory that `id` names.
    #[must_use]
    pub fn of(id: &[u8]) -> Self {
        let mut out = [0; 16];
        out[0] = u8::from(id.first() == Some(&PINNED));
        let digest = blake3::derive_key("fedcipher v2 memory id", id);
        out[1 + ZEROS..].copy_from_slice(&digest[..15 - ZEROS]);
        MemoryId(out)
    }

    /// Refuses what [`Self::to_bytes`] does not make.
    #[must_use]
    pub fn parse(bytes: [u8; 16]) -> Option<Self> {
        (bytes[0] <= 1 && bytes[1..=ZEROS].iter().all(|byte| *byte == 0)).then_some(MemoryId(bytes))
    }

    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Whether it is never to be forgotten.
    #[must_use]
    pub fn pinned(self) -> bool {
        self.0[0] == 1
    }
}

/// What enciphers ids of memories.
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

    /// What a header says of the memory that `id` names: zeros where that is empty, for none.
    #[must_use]
    pub fn tag(&self, id: &[u8]) -> MemoryTag {
        if id.is_empty() {
            return MemoryTag::default();
        }
        let mut block = MemoryId::of(id).to_bytes().into();
        self.0.encrypt_block(&mut block);
        block.into()
    }

    /// The memory that a header's tag says, if any. Refuses a tag that nobody with this secret has made, of `round`.
    pub fn read(&self, tag: MemoryTag, round: u64) -> Result<Option<MemoryId>> {
        if tag == MemoryTag::default() {
            return Ok(None);
        }
        let mut block = tag.into();
        self.0.decrypt_block(&mut block);
        MemoryId::parse(block.into()).map(Some).ok_or(Error::Memory { round })
    }
}
