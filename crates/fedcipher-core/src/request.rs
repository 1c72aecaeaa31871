//! Requests to an encryptor and to a decryptor, and the summary of an opened aggregate.

use crate::codec::{Layout, Update};
use crate::wire::Header;
use crate::{ClientId, RoundId, Weight};

/// A request to encrypt one update.
#[derive(Debug)]
pub struct Request<'a> {
    pub round: RoundId,
    pub weight: Weight,
    pub update: &'a Update<'a>,
    /// The server's plan of the round, from [`crate::scheme::RoundPlan::plan`]; empty for the default.
    pub round_plan: &'a [u8],
    /// Names the global model, and anything else that all clients of the round must have received alike. Updates that
    /// name different models add up to an aggregate that does not open. The header carries a keyed tag of the name.
    pub model: &'a [u8],
    /// Names the memory of the rule of sets that the sum counts in; empty for none. All updates of a sum must agree on
    /// it. The header carries a keyed tag of the name.
    pub memory: &'a [u8],
    /// Associated data: both ends know it and no header carries it. The decryptor must give the same bytes.
    pub associated_data: &'a [u8],
}

impl<'a> Request<'a> {
    /// The request without its data.
    #[must_use]
    pub fn terms(&self) -> Terms<'a> {
        Terms {
            round: self.round,
            weight: self.weight,
            layout: self.update.layout(),
            round_plan: self.round_plan,
            model: self.model,
            memory: self.memory,
            associated_data: self.associated_data,
        }
    }
}

/// The part of a [`Request`] that is known before the data. It is enough to claim the nonce and to make the header.
#[derive(Debug)]
pub struct Terms<'a> {
    pub round: RoundId,
    pub weight: Weight,
    pub layout: &'a Layout,
    pub round_plan: &'a [u8],
    pub model: &'a [u8],
    pub memory: &'a [u8],
    pub associated_data: &'a [u8],
}

/// The properties that an aggregate must have to be opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expect<'a> {
    pub round: Option<RoundId>,
    /// The global model that the updates must have been trained from, as in [`Request::model`].
    pub model: Option<&'a [u8]>,
    /// The memory that the updates must count in, as in [`Request::memory`].
    pub memory: Option<&'a [u8]>,
    /// The associated data of the updates, as in [`Request::associated_data`].
    pub associated_data: &'a [u8],
}

/// The content of a decrypted aggregate other than its sums.
#[derive(Debug, Clone)]
pub struct Summary {
    pub header: Header,
    pub layout: Layout,
    /// The number of contributing clients per element; only for sparse updates.
    pub counts: Option<Vec<u32>>,
    /// Committee members whose answers disagree with the answers that the sums were made from.
    pub false_members: Vec<ClientId>,
}
