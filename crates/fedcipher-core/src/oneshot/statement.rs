//! What is signed: by a client, that this is its one update of the round; by a member, that this is its answer.

use super::roster::sha256;
use crate::wire::{Contribution, Header};

/// The round as everybody in it must have it: roster (with parameters and epoch), round, model, memory,
/// layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundContext {
    roster: [u8; 32],
    round: u64,
    model: [u8; 16],
    memory: [u8; 16],
    /// Digest of the layout and all else that updates have in common.
    pub common: [u8; 32],
}

impl RoundContext {
    #[must_use]
    pub fn of(roster: [u8; 32], header: &Header) -> Self {
        Self::given(roster, header, sha256(&[&header.common()]))
    }

    /// Where the header does not carry the layout.
    #[must_use]
    pub fn given(roster: [u8; 32], header: &Header, common: [u8; 32]) -> Self {
        RoundContext { roster, round: header.round, model: header.model, memory: header.memory, common }
    }

    fn bytes(&self, purpose: &str) -> Vec<u8> {
        let RoundContext { roster, round, model, memory, common } = self;
        let head: [&[u8]; 3] = [b"fedcipher oneshot v1 ", purpose.as_bytes(), &[0]];
        [head.concat().as_slice(), roster, &round.to_le_bytes(), model, memory, common].concat()
    }

    /// The seed of the round's public polynomials: a new model, layout, epoch or roster has its own.
    #[must_use]
    pub fn seed(&self) -> [u8; 32] {
        sha256(&[&self.bytes("a")])
    }

    /// The context of the key that `member` seals to `reader`.
    #[must_use]
    pub fn key_info(&self, member: u32, reader: u32) -> Vec<u8> {
        [self.bytes("key").as_slice(), &member.to_le_bytes(), &reader.to_le_bytes()].concat()
    }

    /// What a client signs: who it is, what it weighs, its ciphertexts and its sealed shares.
    #[must_use]
    pub fn update(&self, own: Contribution, ciphertexts: &[u8; 32], shares: &[u8]) -> Vec<u8> {
        let mut out = self.bytes("update");
        out.extend_from_slice(&contributions(&[own]));
        out.extend_from_slice(ciphertexts);
        // A digest a member.
        out.extend_from_slice(shares);
        out
    }

    /// What a member signs: for whom it has summed shares, and the sum as it leaves.
    #[must_use]
    pub fn answer(&self, of: &[Contribution], member: u32, sum: &[u8]) -> Vec<u8> {
        let mut out = self.bytes("answer");
        out.extend_from_slice(&member.to_le_bytes());
        out.extend_from_slice(&sha256(&[&contributions(of)]));
        out.extend_from_slice(&sha256(&[sum]));
        out
    }

    /// What a member signs to accuse clients.
    #[must_use]
    pub fn complaint(&self, member: u32, clients: &[u32]) -> Vec<u8> {
        let mut out = self.bytes("complaint");
        out.extend_from_slice(&member.to_le_bytes());
        clients.iter().for_each(|client| out.extend_from_slice(&client.to_le_bytes()));
        out
    }
}

/// The context of the share that `client` seals to `member`. Which update it belongs to is what the client signs, so
/// that sharing need not wait for the model.
#[must_use]
pub fn share_info(roster: &[u8; 32], round: u64, client: u32, member: u32) -> Vec<u8> {
    let parts: [&[u8]; 5] =
        [b"fedcipher oneshot v1 share", roster, &round.to_le_bytes(), &client.to_le_bytes(), &member.to_le_bytes()];
    parts.concat()
}

fn contributions(of: &[Contribution]) -> Vec<u8> {
    of.iter().flat_map(|c| [c.client.to_le_bytes().as_slice(), &c.weight.to_le_bytes()].concat()).collect()
}
