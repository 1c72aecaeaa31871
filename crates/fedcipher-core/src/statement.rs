//! The message that a client signs for an update, in every scheme.

use crate::mac::tag::{TAG_LEN, Tag};
use crate::sign::{Purpose, SIGNATURE_LEN, SigningKey};
use crate::wire::{Contribution, Header};
use crate::{Error, Result, RoundId};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Bytes of a tag and a signature, at the end of every update.
pub const END_LEN: usize = TAG_LEN + SIGNATURE_LEN;

/// Splits an update's payload into its content, its tag and its signature, which has `N` bytes.
pub fn split<const N: usize>(payload: &[u8]) -> Result<(&[u8], Tag, &[u8; N])> {
    let (rest, signature) = payload.split_last_chunk().ok_or_else(|| Error::frame("it ends before its signature"))?;
    let (body, tag) = Tag::split(rest)?;
    Ok((body, tag, signature))
}

/// A client's signature under updates of one round.
#[derive(Clone)]
pub struct Signer {
    pub key: Arc<SigningKey>,
    pub context: RoundContext,
}

impl Signer {
    /// `tag | signature`: the end of the payload whose other bytes `body` is the digest of.
    #[must_use]
    pub fn end(&self, own: Contribution, tag: Tag, body: &[u8]) -> [u8; END_LEN] {
        let mut end = [0; END_LEN];
        let (first, last) = end.split_at_mut(TAG_LEN);
        first.copy_from_slice(&tag.to_bytes());
        last.copy_from_slice(&self.key.sign(Purpose::Update, &self.context.update(own, tag, body)));
        end
    }
}

/// The round as all its parties must know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundContext {
    /// Digest of the roster, which names parameters and epoch too; zeros where a cohort has a common key.
    scope: [u8; 32],
    round: RoundId,
    model: [u8; 16],
    memory: [u8; 16],
    /// Digest of all that updates have in common: scheme, parameters, key set, epoch, round, model, memory, layout.
    pub common: [u8; 32],
}

impl RoundContext {
    #[must_use]
    pub fn of(scope: [u8; 32], header: &Header) -> Self {
        Self::given(scope, header, sha256(&[&header.common()]))
    }

    /// Where the header does not carry the layout.
    #[must_use]
    pub fn given(scope: [u8; 32], header: &Header, common: [u8; 32]) -> Self {
        RoundContext { scope, round: header.round, model: header.model, memory: header.memory, common }
    }

    /// `scope 32 | round u64 | model 16 | memory 16 | digest of the common fields 32`.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let RoundContext { scope, round, model, memory, common } = self;
        [scope.as_slice(), &round.to_le_bytes(), model, memory, common].concat()
    }

    /// The message that a client signs: the round, its number, its weight, its tag, and digests of the rest of its
    /// payload.
    #[must_use]
    pub fn update(&self, own: Contribution, tag: Tag, body: &[u8]) -> Vec<u8> {
        [self.bytes().as_slice(), &own.to_bytes(), &tag.to_bytes(), body].concat()
    }
}

/// SHA-256 of parts in a row.
#[must_use]
pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}
