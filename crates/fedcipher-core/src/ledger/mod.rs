//! What a key has done, kept across restarts: rounds encrypted ([`Ledger`]) and aggregates opened ([`Openings`]).
//!
//! Both are files of one state folder ([`Folder`]), which has an identity and lists its ledgers, so that a
//! file that was deleted, cut or put back from a copy is not taken for a fresh start. A checksum tells damage
//! from data; it is no defence against whoever can write to the folder, who has the user's rights anyway.
//! A copy of the *whole* folder is a second user of its keys and cannot be told apart: never restore one from
//! a backup, rotate the keys instead.

mod folder;
mod nonces;
mod openings;
mod slots;
pub(crate) mod stamp;

pub use folder::Folder;
pub use nonces::Ledger;
pub use openings::Openings;

use crate::keys::ClientKey;
use crate::{Error, Result};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// What mends a ledger whose history is lost.
pub(crate) const CURE: &str = "what this key has been used for is no longer known, and a second use of a round would \
     reveal updates: rotate the keys (`fedcipher-authority rotate`, or new key files by `fedcipher keygen`)";

/// A round from here on is *dated*: `unix seconds << 20 | n`, as the Flower strategy counts. Below are 12 days
/// of 1970, which no clock in use shows: plain counters.
const DATED: u64 = 1 << 40;

/// Furthest that a dated round may be ahead of this machine's clock, seconds.
const MOST_AHEAD: u64 = 86_400;

/// When a dated round was begun, unix seconds.
fn date(round: u64) -> Option<u64> {
    (round >= DATED).then_some(round >> 20)
}

/// This machine's clock, unix seconds.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Refuses a round dated more than a day ahead of this machine's clock: rounds must increase, so one server
/// with a wrong clock would make a key useless until that date.
pub fn check_date(round: u64) -> Result<()> {
    match date(round).map(|date| date.saturating_sub(now())) {
        Some(ahead) if ahead > MOST_AHEAD => Err(Error::RoundDate { round, days: ahead / 86_400 }),
        _ => Ok(()),
    }
}

/// Makes the ledgers of a key whose holder knows that it has never been used (a key file without a marker, a
/// key that an authority issues to this folder's identity only). Such a ledger takes rounds of any date, where
/// one that [`Ledger::open`] makes refuses those begun before it: the key may have encrypted them elsewhere.
pub fn register(key: &ClientKey, state: &Path) -> Result<()> {
    let folder = Folder::open(state)?;
    nonces::place(&folder, key, 0)?;
    openings::place(&folder, key).map(drop)
}

/// Refuses a key that was registered in `state` and whose ledgers are not there.
pub(crate) fn check_registered(key: &ClientKey, folder: &Folder) -> Result<()> {
    folder.existing(key, nonces::MAGIC)?;
    folder.existing(key, openings::MAGIC).map(drop)
}

pub(crate) fn failed(path: &Path, reason: impl std::fmt::Display) -> Error {
    Error::Ledger { path: path.display().to_string(), reason: reason.to_string() }
}

/// The ledger at `path`, which no other object or process changes while this handle lives.
fn locked(path: &Path) -> Result<std::fs::File> {
    let file = stamp::open(path, true).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => lost(path, "has been deleted"),
        _ => stamp::unopened(path, &e),
    })?;
    file.lock().map_err(|e| failed(path, e))?;
    Ok(file)
}

fn lost(path: &Path, what: &str) -> Error {
    failed(path, format!("{what}; {CURE}"))
}
