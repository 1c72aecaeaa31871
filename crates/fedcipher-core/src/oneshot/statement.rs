//! The messages that a member signs, and the labels under which the round's context seeds polynomials and seals keys.

use crate::mac::Tag;
pub use crate::statement::RoundContext;
use crate::statement::sha256;
use crate::wire::Contribution;
use crate::{ClientId, RoundId};

impl RoundContext {
    fn labelled(&self, label: &str) -> Vec<u8> {
        [b"fedcipher oneshot v1 ", label.as_bytes(), &[0], &self.bytes()].concat()
    }

    /// The seed of the round's public polynomials: a new model, layout, epoch or roster has its own.
    #[must_use]
    pub fn seed(&self) -> [u8; 32] {
        sha256(&[&self.labelled("a")])
    }

    /// The context of the key that `member` seals to `reader`.
    #[must_use]
    pub fn key_info(&self, member: ClientId, reader: ClientId) -> Vec<u8> {
        [self.labelled("key").as_slice(), &member.to_le_bytes(), &reader.to_le_bytes()].concat()
    }

    /// For whom a member has summed shares, and the sum: as it leaves, in what the member signs; as it is, in what hides
    /// the sum of pads.
    #[must_use]
    pub fn answer(&self, of: &[Contribution], member: ClientId, sum: &[u8]) -> Vec<u8> {
        let mut out = self.bytes();
        out.extend_from_slice(&member.to_le_bytes());
        out.extend_from_slice(&sha256(&[&contributions(of)]));
        out.extend_from_slice(&sha256(&[sum]));
        out
    }

    /// What the combinations of a client's shares follow from: all that this client has signed, and nothing else. An
    /// honest client signs once a round, so nobody gets two different combinations under one mask.
    #[must_use]
    pub fn combination_seed(&self, own: Contribution, tag: Tag, signed: &[u8]) -> [u8; 32] {
        sha256(&[&self.labelled("combination"), &self.update(own, tag, signed)])
    }

    /// Names a request by its clients and all that these have signed.
    #[must_use]
    pub fn request<'a>(&self, of: &[Contribution], signed: impl Iterator<Item = (Tag, &'a [u8])>) -> [u8; 32] {
        let each = signed.flat_map(|(tag, digests)| [&tag.to_bytes()[..], digests].concat());
        let all: Vec<u8> = contributions(of).into_iter().chain(each).collect();
        sha256(&[&self.labelled("request"), &all])
    }

    /// The data beside each share: the update that it belongs to, by the digest of its ciphertexts.
    #[must_use]
    pub fn share_data(&self, own: Contribution, tag: Tag, ciphertexts: &[u8; 32]) -> [u8; 32] {
        sha256(&[b"fedcipher oneshot v2 share of", &self.update(own, tag, ciphertexts)])
    }

    /// What a member signs of the sets that it has remembered, with this round's among them, by the digest of their
    /// groups.
    #[must_use]
    pub fn sets(&self, member: ClientId, groups: &[u8; 32]) -> Vec<u8> {
        [self.bytes().as_slice(), &member.to_le_bytes(), groups].concat()
    }

    /// What a member signs to accuse clients.
    #[must_use]
    pub fn complaint(&self, member: ClientId, clients: &[u8]) -> Vec<u8> {
        [self.bytes().as_slice(), &member.to_le_bytes(), clients].concat()
    }
}

/// The context of the share that `client` seals to prekey `number` of `member`. Which update it belongs to is in the data
/// beside it, so that the encapsulation need not wait for the model.
#[must_use]
pub fn share_info(roster: &[u8; 32], round: RoundId, client: ClientId, member: ClientId, number: u64) -> Vec<u8> {
    let (round, number) = (round.to_le_bytes(), number.to_le_bytes());
    let parts: [&[u8]; 6] =
        [b"fedcipher oneshot v2 share", roster, &round, &client.to_le_bytes(), &member.to_le_bytes(), &number];
    parts.concat()
}

fn contributions(of: &[Contribution]) -> Vec<u8> {
    of.iter().flat_map(|c| c.to_bytes()).collect()
}
