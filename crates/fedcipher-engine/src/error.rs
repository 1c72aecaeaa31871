//! Errors between host, engine and authority, and their form on the wire: a gRPC status whose metadata names the class
//! of `fedcipher.errors`.

use crate::text::quoted;
use fedcipher_core::Epoch;
use fedcipher_core::Error as CoreError;
use tonic::{Code, Status};

/// Metadata entry with the class of the error.
const CLASS: &str = "fedcipher-class";
/// The longest name of a class, in characters.
const MAX_CLASS: usize = 64;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Core(#[from] CoreError),

    #[error("{target} cannot be reached or went away: {reason}; start it, or leave this client out of the round")]
    Unavailable { target: String, reason: String },

    #[error("{0}")]
    Access(String),

    /// Role and name of the party.
    #[error("{0} has been revoked; its operator must enrol it again under another name")]
    Revoked(String),

    #[error(
        "the key of device {device} in epoch {epoch} was issued to another engine; two engines with one identity \
         would use nonces twice: stop this one, or rotate to give it the next epoch"
    )]
    IdentityInUse { device: String, epoch: Epoch },

    #[error(
        "device {device} has shown a different card before: its identity was made by another engine, or the state folder with \
         it was lost; give that folder back, or revoke the device and enrol it under another name"
    )]
    OtherIdentity { device: String },

    #[error(
        "epoch {epoch} is still in use: no round of the next epoch is complete; rotate after the next round, or \
         with --force, which makes a running federation lose its last aggregate"
    )]
    EpochInUse { epoch: Epoch },

    /// The error is the same for a device of other hosts and for an unknown one.
    #[error(
        "this caller may not use this device, its devices are: {own}; a host's certificate names its devices (enrol \
         --device), and --allow-uid those of a user"
    )]
    UnknownDevice { own: String },

    #[error("the other side sent nothing for {seconds} s during a stream; the stream is closed")]
    Stalled { seconds: u64 },

    #[error("a call to {target} made no progress for {seconds} s and was cancelled; restart the service there")]
    Stuck { target: String, seconds: f64 },

    #[error(
        "the memory for unfinished calls is used up ({mib} MiB, at most half of it for one host); wait for other calls and \
         try again, or start it with a larger --unfinished-mib"
    )]
    Full { mib: u32 },

    #[error("the stream broke off: {0}; the host must start again with a new round")]
    Truncated(String),

    #[error("protocol: {0}")]
    Protocol(String),

    #[error("{path}: {reason}")]
    File { path: String, reason: String },

    #[error("configuration: {0}")]
    Configuration(String),

    #[error("authority's store: {0}")]
    Store(String),

    /// A temporary condition: the disk is full, or another process holds the store.
    #[error("authority's store: {0}")]
    StoreAway(String),

    /// An error of another process, with the class it named.
    #[error("{message}")]
    Remote { class: String, message: String },
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The name of the class in `fedcipher.errors`.
    #[must_use]
    pub fn class(&self) -> &str {
        match self {
            Error::Core(core) => core.class(),
            Error::Unavailable { .. } | Error::Full { .. } | Error::StoreAway(_) => "EngineUnavailableError",
            Error::Access(_) => "AccessError",
            Error::Revoked(_) => "RevokedError",
            Error::IdentityInUse { .. } | Error::OtherIdentity { .. } => "IdentityInUseError",
            Error::UnknownDevice { .. } => "UnknownDeviceError",
            Error::Stalled { .. } | Error::Stuck { .. } => "StalledError",
            Error::Truncated(_) => "TruncatedError",
            Error::EpochInUse { .. }
            | Error::Protocol(_)
            | Error::Configuration(_)
            | Error::Store(_)
            | Error::File { .. } => "EngineError",
            Error::Remote { class, .. } => class,
        }
    }

    fn code(&self) -> Code {
        match self {
            Error::Access(_) | Error::Revoked(_) => Code::PermissionDenied,
            Error::IdentityInUse { .. } | Error::OtherIdentity { .. } => Code::AlreadyExists,
            Error::UnknownDevice { .. } => Code::NotFound,
            Error::Unavailable { .. } | Error::StoreAway(_) => Code::Unavailable,
            Error::Full { .. } => Code::ResourceExhausted,
            Error::Stalled { .. } | Error::Stuck { .. } => Code::DeadlineExceeded,
            Error::EpochInUse { .. } => Code::FailedPrecondition,
            Error::Store(_) | Error::File { .. } | Error::Configuration(_) => Code::Internal,
            Error::Core(_) | Error::Truncated(_) | Error::Protocol(_) | Error::Remote { .. } => Code::InvalidArgument,
        }
    }

    #[must_use]
    pub fn file(path: &std::path::Path, reason: &impl std::fmt::Display) -> Self {
        Error::File { path: path.display().to_string(), reason: reason.to_string() }
    }

    /// The error of another process from its message and class.
    #[must_use]
    pub fn remote(class: &str, message: &str) -> Self {
        let named = class.len() <= MAX_CLASS && class.bytes().all(|b| b.is_ascii_alphanumeric());
        let class = if named { class } else { "EngineError" };
        Error::Remote { class: class.to_owned(), message: quoted(message) }
    }

    /// The error of a status from `target`: the process's own error if the status has a class, otherwise an error of
    /// the connection.
    #[must_use]
    pub fn of_status(target: &str, status: &Status) -> Self {
        if let Some(class) = status.metadata().get(CLASS).and_then(|c| c.to_str().ok()) {
            return Self::remote(class, status.message());
        }
        if status.code() == Code::Unimplemented {
            let said = status.message();
            let said = if said.is_empty() { String::new() } else { format!(" ({})", quoted(said)) };
            return Error::Protocol(format!(
                "{target} does not know this call{said}: it is older than this side, or serves something else; upgrade it \
                 to this side's version of fedcipher"
            ));
        }
        Self::of_transport(target, status)
    }

    /// This error for a peer that has never answered. A TLS 1.3 server that rejects a certificate closes after the
    /// handshake, and its reason is often lost.
    #[must_use]
    pub fn of_stranger(self) -> Self {
        let closed = ["connection closed", "broken pipe", "reset"];
        match self {
            Error::Unavailable { target, reason } if closed.iter().any(|w| reason.to_lowercase().contains(w)) => {
                Error::Access(format!(
                    "{target} closed the connection before it answered ({reason}); most likely it does not accept this \
                     side's certificate: both must come from one authority, be in date (check both clocks) and not be \
                     revoked"
                ))
            }
            other => other,
        }
    }

    /// The error of a failed connection. TLS puts the reason in the chain of causes.
    #[must_use]
    pub fn of_transport(target: &str, error: &dyn std::error::Error) -> Self {
        let mut reason = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            let text = inner.to_string();
            if !reason.contains(&text) {
                reason = format!("{reason}: {text}");
            }
            cause = inner.source();
        }
        let reason = quoted(&reason);
        let lower = reason.to_lowercase();
        if lower.contains("not valid for name") {
            return Error::Access(format!(
                "{target} shows a certificate that is not for this name: {reason}; connect under a name that it is for, \
                 or enrol (the authority: init) it with --name for this one"
            ));
        }
        if ["handshakefailure", "handshake failure", "protocolversion", "peer is incompatible"]
            .iter()
            .any(|w| lower.contains(w))
        {
            return Error::Access(format!(
                "{target} and this side have no TLS in common: {reason}; both must speak TLS 1.3 with the group \
                 X25519MLKEM768, so upgrade the other side"
            ));
        }
        if ["certificate", "unknownca", "fatal alert", "unknownissuer"].iter().any(|word| lower.contains(word)) {
            return Error::Access(format!(
                "{target} and this side do not accept each other's certificate: {reason}; both must come from one \
                 authority, be in date (check both clocks) and not be revoked"
            ));
        }
        Error::Unavailable { target: target.to_owned(), reason }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        // The text travels in a header, and headers of more than 16 KiB break a connection.
        let mut status = Status::new(error.code(), quoted(&error.to_string()));
        if let Ok(class) = error.class().parse() {
            status.metadata_mut().insert(CLASS, class);
        }
        status
    }
}

#[cfg(feature = "server")]
impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked, DiskFull, SystemIoFailure};
        match error.sqlite_error_code() {
            Some(DiskFull | SystemIoFailure) => {
                Error::StoreAway(format!("{error}; see that its disk has room and works, then try again"))
            }
            Some(DatabaseBusy | DatabaseLocked) => {
                Error::StoreAway(format!("{error}; another process keeps it: let it end, then try again"))
            }
            _ => Error::Store(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_the_other_side_lacks_is_answered_with_the_fix() {
        for (said, shown) in
            [("", "this call: it is older"), ("no such\nmethod", "this call (no such\\u000amethod): it")]
        {
            let error = Error::of_status("unix:/x", &Status::unimplemented(said)).to_string();
            assert!(error.contains(shown) && error.contains("unix:/x") && error.contains("upgrade it"), "{error}");
        }
    }

    #[test]
    fn an_error_fits_into_a_header() {
        let sent: Status = Error::Access("long ".repeat(100_000)).into();
        assert!(sent.message().len() < 5000);
    }

    #[test]
    fn an_error_survives_the_wire_with_its_class() {
        let sent: Status = Error::IdentityInUse { device: "nic-3".into(), epoch: Epoch::new(7) }.into();
        let got = Error::of_status("unix:/x", &sent);
        assert_eq!(got.class(), "IdentityInUseError");
        assert!(got.to_string().contains("nic-3"));
        let lost = Error::of_status("unix:/x", &Status::unavailable("broken pipe"));
        assert_eq!(lost.class(), "EngineUnavailableError");
    }
}
