//! The history of a key, kept across restarts: rounds encrypted ([`Ledger`]) and aggregates opened ([`OpenedLedger`]).
//!
//! Both are files of one state folder ([`Folder`]). The folder has an identity, and an index with the newest counter of
//! each ledger. A claim is written to the ledger first and then to the index, before its result is used. So if the
//! ledger
//! or the index was deleted, cut or put back from a copy, the two do not match. A checksum detects damage. It does not
//! stop a person with the user's rights, who can write to the folder. A copy of the *whole* folder is a second user of
//! its
//! keys and cannot be detected: never restore one from a backup, rotate the keys instead.

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

/// The remedy in the error about a lost ledger.
pub(crate) const REMEDY: &str = "what this key has been used for is no longer known, and a second use of a round would \
     reveal updates: rotate the keys (`fedcipher-authority rotate`, or new key files by `fedcipher keygen`)";

/// Furthest that a dated round may be ahead of this machine's clock, seconds.
const MAX_AHEAD: u64 = 86_400;

/// This machine's clock, unix seconds.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Fails for a round dated more than a day ahead of this machine's clock. Rounds must increase, so one server with a
/// wrong clock could otherwise make a key useless until that date.
pub fn check_date(round: RoundId) -> Result<()> {
    match round.date().map(|date| date.saturating_sub(now())) {
        Some(ahead) if ahead > MAX_AHEAD => Err(Error::RoundDate { round, days: ahead / 86_400 }),
        _ => Ok(()),
    }
}

/// The remedy if the `last` round of a key is dated ahead of this machine's clock: a clock was wrong in that round.
/// Empty otherwise.
pub(crate) fn ahead(last: RoundId) -> String {
    let days = last.date().map_or(0, |date| date.saturating_sub(now()) / 86_400);
    // A closed key has a last round that is not a date.
    if days == 0 || last == RoundId::LAST {
        return String::new();
    }
    format!(
        ". Round {last} is dated {days} days ahead of this machine's clock, so a clock was wrong then: until that date this \
         key takes no other round. Set the clocks of the server and the clients right, then have new keys made \
         (`fedcipher keygen`, or `fedcipher-authority rotate`) and start a new run"
    )
}

/// Creates the ledgers of a key that is known to be unused: a key file without a marker, or a key that an authority
/// issues to this folder's identity only. They accept rounds of any date. A ledger created by [`Ledger::open`] rejects
/// rounds begun before it, because the key may have encrypted them elsewhere.
pub fn register(key: &ClientKey, state: &Path) -> Result<()> {
    let folder = Folder::open(state)?;
    nonces::place(&folder, key, 0)?;
    opened::place(&folder, key).map(drop)
}

/// Deletes the files of an ended key, named by its `key_id` and `client`. The entries in the folder's index stay, so
/// the key is rejected from now on as a key with lost ledgers.
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

/// Fails if a key was registered in `state` and its ledgers are missing.
pub(crate) fn check_registered(key: &ClientKey, folder: &Folder) -> Result<()> {
    folder.existing(key, nonces::MAGIC)?;
    folder.existing(key, opened::MAGIC).map(drop)
}

pub(crate) fn failed(path: &Path, reason: impl std::fmt::Display) -> Error {
    Error::Ledger { path: path.display().to_string(), reason: reason.to_string() }
}

/// The ledger at `path`, locked against other objects and processes while the handle lives.
fn locked(path: &Path) -> Result<std::fs::File> {
    let file = header::open(path, true).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => lost(path, "has been deleted"),
        _ => header::unopened(path, &e),
    })?;
    file.lock().map_err(|e| failed(path, e))?;
    Ok(file)
}

fn lost(path: &Path, what: &str) -> Error {
    failed(path, format!("{what}; {REMEDY}"))
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

    /// A claim, and a claim of the same round that must fail after it.
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

    /// The largest number of steps of a claim that follows an interrupted one.
    const STEPS: u32 = 14;

    /// The end of a claim: the step before which it ends; and, for a power cut, which of the writes that were not
    /// durable are undone. Without the second, only the process ends.
    type End = (u32, Option<u32>);

    #[derive(Debug, PartialEq)]
    enum Claimed {
        Yes,
        BrokenOff,
        /// A claim with the same result as another one that undoes less.
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

    /// Copies the state of `folder` to another folder.
    fn copied(folder: &Path) -> tempfile::TempDir {
        let state = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(folder).unwrap().map(|file| file.unwrap()) {
            std::fs::copy(file.path(), state.path().join(file.file_name())).unwrap();
        }
        state
    }

    /// Two claims, each interrupted before every one of its steps, with every choice of undone writes; then further
    /// claims. Everything claimed must stay claimed, and the ledger must go on.
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

    /// Two concurrent claims of one ledger, each with the lock of a file that the other does not have.
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

    /// The same, while the ledger is being created.
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
            // The claim is interrupted, but the ledger is made.
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
