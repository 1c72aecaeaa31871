//! The messages that a member signs, and the labels under which the round's context seeds polynomials and encrypts
//! keys.

use crate::mac::Tag;
pub use crate::statement::RoundContext;
use crate::statement::sha256;
use crate::wire::Contribution;
use crate::{ClientId, RoundId};

impl RoundContext {
    fn labelled(&self, label: &str) -> Vec<u8> {
        [b"fedcipher oneshot v1 ", label.as_bytes(), &[0], &self.bytes()].concat()
    }

    /// The seed of the round's public polynomials. A new model, layout, epoch or roster has its own seed.
    #[must_use]
    pub fn seed(&self) -> [u8; 32] {
        sha256(&[&self.labelled("a")])
    }

    /// The context of the key that `member` encrypts to `reader`.
    #[must_use]
    pub fn key_info(&self, member: ClientId, reader: ClientId) -> Vec<u8> {
        [self.labelled("key").as_slice(), &member.to_le_bytes(), &reader.to_le_bytes()].concat()
    }

    /// The clients whose shares a member has added, and the sum. The member signs the sum in its encrypted form; the
    /// mask of the sum of pads uses its plain form.
    #[must_use]
    pub fn answer(&self, of: &[Contribution], member: ClientId, sum: &[u8]) -> Vec<u8> {
        let mut out = self.bytes();
        out.extend_from_slice(&member.to_le_bytes());
        out.extend_from_slice(&sha256(&[&contributions(of)]));
        out.extend_from_slice(&sha256(&[sum]));
        out
    }

    /// The seed of the combinations of a client's shares. It depends only on the content that this client has signed.
    /// An honest client signs once a round, so two different combinations under one mask cannot be obtained.
    #[must_use]
    pub fn combination_seed(&self, own: Contribution, tag: Tag, signed: &[u8]) -> [u8; 32] {
        sha256(&[&self.labelled("combination"), &self.update(own, tag, signed)])
    }

    /// Names a request by its clients and the content that they have signed.
    #[must_use]
    pub fn request<'a>(&self, of: &[Contribution], signed: impl Iterator<Item = (Tag, &'a [u8])>) -> [u8; 32] {
        let each = signed.flat_map(|(tag, digests)| [&tag.to_bytes()[..], digests].concat());
        let all: Vec<u8> = contributions(of).into_iter().chain(each).collect();
        sha256(&[&self.labelled("request"), &all])
    }

    /// The associated data of each share: it names the share's update by the digest of its ciphertexts.
    #[must_use]
    pub fn share_data(&self, own: Contribution, tag: Tag, ciphertexts: &[u8; 32]) -> [u8; 32] {
        sha256(&[b"fedcipher oneshot v2 share of", &self.update(own, tag, ciphertexts)])
    }

    /// The message that a member signs about the sets that it has remembered, including this round's: the digest of
    /// their groups.
    #[must_use]
    pub fn sets(&self, member: ClientId, groups: &[u8; 32]) -> Vec<u8> {
        [self.bytes().as_slice(), &member.to_le_bytes(), groups].concat()
    }

    /// The message that a member signs to accuse clients.
    #[must_use]
    pub fn complaint(&self, member: ClientId, clients: &[u8]) -> Vec<u8> {
        [self.bytes().as_slice(), &member.to_le_bytes(), clients].concat()
    }
}

/// The context of the share that `client` encrypts to prekey `number` of `member`. The associated data names the
/// update, so the encapsulation need not wait for the model.
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
