//! The core's only error type. Every variant says what was wrong and what to do about it.

use crate::ledger;
use crate::{ClientId, Epoch, RoundId, Weight};

/// An error between a float update and a decrypted average.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("parameter {name}: {reason}")]
    Parameter { name: &'static str, reason: String },

    #[error(
        "aggregate bound exceeded: {clients} clients x weight {max_weight} x {bits}-bit values need \
         {needed_bits} bits but the modulus has {modulus_bits}; use {fix}"
    )]
    Bound { clients: u64, max_weight: Weight, bits: u32, needed_bits: u32, modulus_bits: u32, fix: String },

    #[error(
        "weight {weight} of client {client} is outside 1..={max_weight}; scale the weights down \
         (for example divide sample counts by {divisor}) or create the scheme with a larger max_weight"
    )]
    Weight { client: ClientId, weight: Weight, max_weight: Weight, divisor: u64 },

    #[error(
        "tensor {tensor} holds {value} at flat index {index}; training diverged: lower the learning \
         rate or drop this client from the round"
    )]
    NotFinite { tensor: usize, index: usize, value: f32 },

    #[error("layout: {reason}")]
    Layout { reason: String },

    #[error("malformed frame: {reason}; the sender must transmit it again")]
    Frame { reason: String },

    #[error("frame is of kind {found}, expected {expected}")]
    Kind { found: u8, expected: u8 },

    #[error("frame is of scheme {found:?}, this object speaks {expected:?}; both sides must name the same scheme")]
    Scheme { found: String, expected: String },

    #[error(
        "frame was made with other parameters (digest {found}, expected {expected}); give every party the same scheme parameters"
    )]
    Parameters { found: String, expected: String },

    #[error("frame belongs to key epoch {found}, this key is of epoch {expected}; fetch the current epoch's keys")]
    Epoch { found: Epoch, expected: Epoch },

    #[error(
        "frame was made under another key set of epoch {epoch}; all clients of a round must hold keys of one keygen"
    )]
    KeySet { epoch: Epoch },

    #[error("frame is of round {found}, expected round {expected}; it is late or replayed and was not added")]
    Round { found: RoundId, expected: RoundId },

    #[error("client {client} has already been added to round {round}; the first contribution stands")]
    DuplicateClient { client: ClientId, round: RoundId },

    #[error("client {client} is not in the cohort of this key epoch; enrol it and rotate the keys")]
    UnknownClient { client: ClientId },

    #[error("round has no contribution to aggregate; wait for at least one client")]
    EmptyCohort,

    #[error(
        "a sum of {found} clients where at least {minimum} must take part (min_contributions); wait for more clients"
    )]
    TooFew { found: usize, minimum: u64 },

    #[error(
        "this sum is refused: together with earlier sums of its memory it would set {found} clients apart, but every group \
         of clients in the same sums must have at least {minimum}; sum a whole group or none of it"
    )]
    Set { found: u64, minimum: u64 },

    #[error(
        "updates of round {round} were trained from another global model or under another configuration than \
         expected; the server must give all clients of a round the same"
    )]
    Model { round: RoundId },

    #[error(
        "updates of round {round} count in another memory of the rule of sets than expected; all sums at one position \
         of a run share one"
    )]
    Memory { round: RoundId },

    #[error(
        "the aggregate is not the sum of the updates that its named clients sent: it was changed, mixed or relabelled \
         on its way"
    )]
    Tag,

    #[error(
        "nonce reuse refused: client {client} has already encrypted round {last} under this key and \
         was asked for round {round}; rounds must increase, rotate the key to start over{}",
        ledger::ahead(*last)
    )]
    NonceReuse { client: ClientId, round: RoundId, last: RoundId },

    #[error(
        "privacy budget spent: client {client} has given {most} updates under this key set, the most that its epsilon \
         covers; stop here, or have new keys made (the epsilons of both key sets then add up)"
    )]
    Budget { client: ClientId, most: u64 },

    #[error("ledger {path}: {reason}")]
    Ledger { path: String, reason: String },

    #[error(
        "round {round} is dated {days} days ahead of this machine's clock; set the clock of the server or of this \
         machine right, then start a new run"
    )]
    RoundDate { round: RoundId, days: u64 },

    #[error(
        "aggregate refused: another one of round {round}, or a later one (round {last}), has been opened under this \
         key; the server must send the aggregate of a new round, or the one of round {round} as it was{}",
        ledger::ahead(*last)
    )]
    Opened { round: RoundId, last: RoundId },

    #[error(
        "round {round} is refused: members may have forgotten sums that must agree with it, since far later rounds were \
         summed under this key; go on with newer rounds, or begin a new run from the model of `fedcipher open`"
    )]
    Forgotten { round: RoundId },

    #[error(
        "this key is closed: an aggregate under it was forged, and each further attempt could reveal more of the key to \
         the forger; have new keys made (the next key epoch)"
    )]
    Closed,

    #[error("key file {path} {reason}")]
    KeyFile { path: String, reason: String },

    #[error(
        "key file {path} is in use on this machine by {holder}; stop that one first, or have a key of its own issued \
         to each: two users of one key could encrypt one round twice"
    )]
    KeyInUse { path: String, holder: &'static str },

    #[error("key: {reason}")]
    Key { reason: String },

    #[error(
        "decryption failed its plausibility check: {reason}; the aggregate is corrupt or was made under another key"
    )]
    Decrypt { reason: String },

    #[error("{answers} members of the committee have answered, {needed} must; ask the others, or start a new round")]
    Committee { answers: usize, needed: usize },

    #[error(
        "not enough parties have joined this roster: {missing}; get their .joined files from them, and add these with \
         `fedcipher joined KEY FILES...`"
    )]
    NotJoined { missing: String },

    #[error(
        "member {member} of the committee has published prekey {seen}, this one is {number}: it is old, and \
         shares encrypted to it could be opened with old files"
    )]
    OldPrekey { member: ClientId, number: u64, seen: u64 },

    #[error(
        "{known} members of the committee have published a prekey, {needed} must: shares are encrypted to prekeys only; \
         give this client the members' newest prekeys with the round{refused}"
    )]
    NoPrekeys { known: usize, needed: usize, refused: String },

    #[error(
        "clients {} have encrypted shares of round {round} to deleted prekeys; a member keeps each prekey for limited \
         rounds and time, so begin a new round with its newest prekey",
        bare(clients)
    )]
    PrekeyGone { round: RoundId, clients: Vec<ClientId> },

    #[error("a message in the name of party {party} lacks its valid signature")]
    Signature { party: ClientId },

    #[error(
        "member {member} reports that clients {} have sent it invalid shares; it does not answer for them",
        bare(clients)
    )]
    FalseShare { member: ClientId, clients: Vec<ClientId> },

    #[error("the committee has been asked for round {round}; later updates belong to the next round")]
    Asked { round: RoundId },

    #[error(
        "the sum of round {round} has been handed out and accepts no more updates; begin the next round with a new aggregator"
    )]
    Finished { round: RoundId },

    #[error("{operation} is not supported by {scheme}: {reason}")]
    Unsupported { scheme: &'static str, operation: &'static str, reason: &'static str },

    #[error("cancelled after {done} of {total} steps; call finish() again to start over")]
    Cancelled { done: usize, total: usize },

    #[error("the operating system's random number generator failed: {0}")]
    Rng(String),

    #[error("the accelerator failed: {reason}; train without it, or let the core take over its failed work")]
    Device { reason: String },

    #[error("a fault of Fedcipher itself, or of a library it uses: {reason}; please report it")]
    Internal { reason: String },
}

/// `[1, 2]`.
fn bare(clients: &[ClientId]) -> String {
    format!("[{}]", clients.iter().map(ClientId::to_string).collect::<Vec<_>>().join(", "))
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Name of the class in `fedcipher.errors` that carries this error in Python.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            Error::Parameter { .. } => "ParameterError",
            Error::Bound { .. } => "BoundError",
            Error::Weight { .. } => "WeightError",
            Error::NotFinite { .. } => "NotFiniteError",
            Error::Layout { .. } => "LayoutError",
            Error::Frame { .. } | Error::Kind { .. } => "FrameError",
            Error::Scheme { .. } => "WrongSchemeError",
            Error::Parameters { .. } => "WrongParametersError",
            Error::Epoch { .. } | Error::KeySet { .. } => "WrongEpochError",
            Error::Round { .. } => "WrongRoundError",
            Error::DuplicateClient { .. } => "DuplicateClientError",
            Error::UnknownClient { .. } => "UnknownClientError",
            Error::EmptyCohort => "EmptyCohortError",
            Error::TooFew { .. } => "TooFewContributionsError",
            Error::Set { .. } => "SetRuleError",
            Error::Model { .. } | Error::Memory { .. } => "ModelMismatchError",
            Error::Tag => "ForgedAggregateError",
            Error::NonceReuse { .. } => "NonceReuseError",
            Error::Budget { .. } => "PrivacyBudgetError",
            Error::Ledger { .. } => "LedgerError",
            Error::RoundDate { .. } => "WrongRoundError",
            Error::Opened { .. } | Error::Forgotten { .. } => "ReplayError",
            Error::Closed => "KeyClosedError",
            Error::Key { .. } | Error::KeyFile { .. } => "KeyFormatError",
            Error::KeyInUse { .. } => "KeyInUseError",
            Error::Decrypt { .. } => "DecryptError",
            Error::Device { .. } => "AcceleratorError",
            Error::Committee { .. } => "CommitteeError",
            Error::NotJoined { .. } => "NotJoinedError",
            Error::OldPrekey { .. } | Error::NoPrekeys { .. } | Error::PrekeyGone { .. } => "PrekeyError",
            Error::Signature { .. } => "SignatureError",
            Error::FalseShare { .. } => "FalseShareError",
            Error::Asked { .. } | Error::Finished { .. } => "WrongRoundError",
            Error::Unsupported { .. } => "UnsupportedError",
            Error::Cancelled { .. } => "CancelledError",
            Error::Rng(_) => "EntropyError",
            Error::Internal { .. } => "InternalError",
        }
    }

    pub(crate) fn frame(reason: impl Into<String>) -> Self {
        Error::Frame { reason: reason.into() }
    }

    pub(crate) fn layout(reason: impl Into<String>) -> Self {
        Error::Layout { reason: reason.into() }
    }

    pub(crate) fn parameter(name: &'static str, reason: impl Into<String>) -> Self {
        Error::Parameter { name, reason: reason.into() }
    }
}

/// `work`, and an error where it panics: hosts catch errors, and what unwinds through them ends whole runs.
pub fn unwound<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let said = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let said = said.or_else(|| payload.downcast_ref::<String>().cloned());
        Err(Error::Internal { reason: said.unwrap_or_else(|| "it panicked".into()) })
    })
}

#[cfg(test)]
#[allow(clippy::panic, clippy::unwrap_used, reason = "what is tested")]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_text() {
        assert_eq!(unwound(|| Ok(1)).unwrap(), 1);
        let said = |work: fn() -> Result<()>| unwound(work).unwrap_err().to_string();
        assert!(said(|| panic!("a plain text")).contains("a plain text; please report it"));
        assert!(said(|| panic!("with a number: {}", std::process::id())).contains("with a number"));
        assert!(said(|| std::panic::resume_unwind(Box::new(3))).contains("it panicked"));
    }
}
