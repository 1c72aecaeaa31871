//! What a key has done, kept across restarts: rounds encrypted ([`Ledger`]) and aggregates opened ([`OpenedLedger`]).
//!
//! Both are files of one state folder ([`Folder`]), which has an identity and an index with the newest counter of each
//! ledger. A claim is on disk in the ledger first and then in the index, before anything comes of it. So a file that
//! was deleted, cut or put back from a copy, be it a ledger or the index, does not fit the other. A checksum tells damage
//! from data. It does not stop a person with write access to the folder, who has the user's rights. A copy of the *whole*
//! folder is a second user of its keys and cannot be told apart: never restore one from a backup, rotate the keys instead.

mod disk;
pub(crate) mod erasable;
mod folder;
pub(crate) mod header;
mod journal;
mod memories;
mod nonces;
mod opened;
mod slots;

pub use folder::Folder;
pub use memories::Sum;
pub use nonces::Ledger;
pub use opened::{Holder, OpenedLedger};

use crate::keys::ClientKey;
use crate::wire::hex;
use crate::{ClientId, Error, Result, RoundId};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// What mends a ledger whose history is lost.
pub(crate) const CURE: &str = "what this key has been used for is no longer known, and a second use of a round would \
     reveal updates: rotate the keys (`fedcipher-authority rotate`, or new key files by `fedcipher keygen`)";

/// Furthest that a dated round may be ahead of this machine's clock, seconds.
const MAX_AHEAD: u64 = 86_400;

/// This machine's clock, unix seconds.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Refuses a round dated more than a day ahead of this machine's clock: rounds must increase, so one server
/// with a wrong clock would make a key useless until that date.
pub fn check_date(round: RoundId) -> Result<()> {
    match round.date().map(|date| date.saturating_sub(now())) {
        Some(ahead) if ahead > MAX_AHEAD => Err(Error::RoundDate { round, days: ahead / 86_400 }),
        _ => Ok(()),
    }
}

/// What to do where the `last` round of a key is dated ahead of this machine's clock: a clock was wrong at that round.
/// Empty where it is not.
pub(crate) fn ahead(last: RoundId) -> String {
    let days = last.date().map_or(0, |date| date.saturating_sub(now()) / 86_400);
    // What closes a key for good is dated as no round is.
    if days == 0 || last == RoundId::LAST {
        return String::new();
    }
    format!(
        ". Round {last} is dated {days} days ahead of this machine's clock, so a clock was wrong then: until that date this \
         key takes no other round. Set the clocks of the server and the clients right, then have new keys made \
         (`fedcipher keygen`, or `fedcipher-authority rotate`) and start a new run"
    )
}

/// Makes the ledgers of a key whose holder knows that it has never been used (a key file without a marker, a
/// key that an authority issues to this folder's identity only). Such a ledger takes rounds of any date, where
/// one that [`Ledger::open`] makes refuses those begun before it: the key may have encrypted them elsewhere.
pub fn register(key: &ClientKey, state: &Path) -> Result<()> {
    let folder = Folder::open(state)?;
    nonces::place(&folder, key, 0)?;
    opened::place(&folder, key).map(drop)
}

/// Deletes the files of a key that has ended, which are named by its `key_id` and `client`. Its entries in the folder's
/// index stay, and so the key is refused from now on as one whose ledgers are lost.
pub fn retire(key_id: &[u8; 16], client: ClientId, state: &Path) -> std::io::Result<()> {
    let start = format!("{}-{client}.", hex(key_id));
    for entry in std::fs::read_dir(state)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start)) {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Refuses a key that was registered in `state` and whose ledgers are not there.
pub(crate) fn check_registered(key: &ClientKey, folder: &Folder) -> Result<()> {
    folder.existing(key, nonces::MAGIC)?;
    folder.existing(key, opened::MAGIC).map(drop)
}

pub(crate) fn failed(path: &Path, reason: impl std::fmt::Display) -> Error {
    Error::Ledger { path: path.display().to_string(), reason: reason.to_string() }
}

/// The ledger at `path`, which no other object or process changes while this handle lives.
fn locked(path: &Path) -> Result<std::fs::File> {
    let file = header::open(path, true).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => lost(path, "has been deleted"),
        _ => header::unopened(path, &e),
    })?;
    file.lock().map_err(|e| failed(path, e))?;
    Ok(file)
}

fn lost(path: &Path, what: &str) -> Error {
    failed(path, format!("{what}; {CURE}"))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::disk::ends;
    use super::*;
    use crate::bounds::Bounds;
    use crate::mac::memory::MemoryId;
    use crate::plain::Plain;
    use crate::scheme::Scheme;
    use crate::{Epoch, Weight};

    type Claim = fn(&ClientKey, &Path, u64) -> Result<()>;

    /// A claim, and one of the same round that must be refused after it.
    const CLAIMS: [(Claim, Claim); 3] = [
        (
            |key, state, round| Ledger::open(key, Some(state))?.claim(RoundId::new(round)),
            |key, state, round| Ledger::open(key, Some(state))?.claim(RoundId::new(round)),
        ),
        (
            |key, state, round| openings(key, state)?.claim(&Sum::alone(RoundId::new(round)), &[round as u8; 32]),
            |key, state, round| openings(key, state)?.claim(&Sum::alone(RoundId::new(round)), &[99; 32]),
        ),
        (
            |key, state, round| openings(key, state)?.claim(&of_all(RoundId::new(round)), &[round as u8; 32]),
            |key, state, round| openings(key, state)?.claim(&of_all(RoundId::new(round)), &[99; 32]),
        ),
    ];

    fn openings(key: &ClientKey, state: &Path) -> Result<OpenedLedger> {
        OpenedLedger::open(&Holder { key, roster: None, minimum: 2 }, Some(state))
    }

    /// A sum of both clients that counts in the memory of its round.
    fn of_all(round: RoundId) -> Sum {
        Sum::new([0; 16], round, 2, Some(MemoryId::of(&[round.get() as u8])), vec![0, 1])
    }

    /// The most steps that a claim takes, after one that was broken off.
    const STEPS: u32 = 14;

    /// How a claim ends: before which of its steps, and then the power with which of the writes that were not durable
    /// undone; or, without these, the process only.
    type End = (u32, Option<u32>);

    #[derive(Debug, PartialEq)]
    enum Claimed {
        Yes,
        BrokenOff,
        /// The end is one of those that undo less.
        Same,
    }

    fn end(claim: Claim, key: &ClientKey, state: &Path, round: RoundId, (steps, undone): End) -> Claimed {
        let done = ends::within(steps, || claim(key, state, round.get()));
        match undone.map(|undone| undone >> ends::power_cut(undone)) {
            Some(1..) => Claimed::Same,
            _ if done => Claimed::Yes,
            _ => Claimed::BrokenOff,
        }
    }

    /// What has happened in `folder`, once more in another.
    fn copied(folder: &Path) -> tempfile::TempDir {
        let state = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(folder).unwrap().map(|file| file.unwrap()) {
            std::fs::copy(file.path(), state.path().join(file.file_name())).unwrap();
        }
        state
    }

    /// Two claims, each broken off before any of its steps, with any of the writes that were not durable undone; then
    /// more. What was claimed stays so, and the ledger goes on.
    #[test]
    fn attack_25_a_claim_broken_off_at_any_step_loses_nothing_and_bricks_nothing() {
        let key = Plain::new(Bounds::new(2, Weight::ONE, None).unwrap())
            .keygen(&ClientId::list([0, 1]), Epoch::new(1))
            .unwrap()
            .clients
            .remove(0);
        for (claim, refused) in CLAIMS {
            let once = tempfile::tempdir().unwrap();
            register(&key, once.path()).unwrap();
            claim(&key, once.path(), 1).unwrap();
            let mut broken = 0;
            for first in (0..STEPS).flat_map(|steps| (0..16).map(Some).chain([None]).map(move |undone| (steps, undone)))
            {
                'second: for steps in 0..STEPS {
                    for undone in 0..16 {
                        let state = copied(once.path());
                        let one = end(claim, &key, state.path(), RoundId::new(2), first);
                        if one == Claimed::Same {
                            break 'second;
                        }
                        let two = end(claim, &key, state.path(), RoundId::new(3), (steps, Some(undone)));
                        if two == Claimed::Same {
                            break;
                        }
                        let last = if two == Claimed::Yes { 3 } else { 1 + u64::from(one == Claimed::Yes) };
                        let said = refused(&key, state.path(), last).unwrap_err();
                        let expected = matches!(said, Error::NonceReuse { .. } | Error::Opened { .. });
                        assert!(expected, "{first:?} {steps} {undone}: {said}");
                        claim(&key, state.path(), 4).unwrap();
                        claim(&key, state.path(), 5).unwrap();
                        broken += 1;
                        if two == Claimed::Yes {
                            break 'second;
                        }
                    }
                }
            }
            assert!(broken > 100, "{broken}");
        }
    }

    /// Two claims of one ledger at the same time, each with a lock of a file that the other does not have.
    #[test]
    fn attack_25_a_ledger_replaced_during_a_claim_is_seen() {
        let key = Plain::new(Bounds::new(2, Weight::ONE, None).unwrap())
            .keygen(&ClientId::list([0, 1]), Epoch::new(1))
            .unwrap()
            .clients
            .remove(0);
        let state = tempfile::tempdir().unwrap();
        let place = nonces::place(&Folder::open(state.path()).unwrap(), &key, 0).unwrap();
        let (mut first, mut second) = (place.indexed().unwrap(), place.indexed().unwrap());
        first.advance(slots::Newest::of(1, 7)).unwrap();
        let refused = second.advance(slots::Newest::of(1, 7)).unwrap_err();
        assert!(refused.to_string().contains("replaced during a claim"), "{refused}");
    }

    /// The same as a ledger comes into being.
    #[test]
    fn attack_25_a_ledger_whose_making_was_broken_off_goes_on() {
        let key = Plain::new(Bounds::new(2, Weight::ONE, None).unwrap())
            .keygen(&ClientId::list([0, 1]), Epoch::new(1))
            .unwrap()
            .clients
            .remove(0);
        for (claim, _) in CLAIMS {
            let state = tempfile::tempdir().unwrap();
            Folder::open(state.path()).unwrap();
            let index = state.path().join("ledgers.index");
            let before = std::fs::read(&index).unwrap();
            // A claim that is refused: the ledger is made.
            ends::within(0, || claim(&key, state.path(), 1));
            let after = std::fs::read(&index).unwrap();
            assert!(after.len() > before.len());
            for len in before.len()..=after.len() {
                std::fs::write(&index, &after[..len]).unwrap();
                ends::within(0, || claim(&key, state.path(), 1));
            }
            claim(&key, state.path(), 1).unwrap();
            claim(&key, state.path(), 2).unwrap();
        }
    }
}
