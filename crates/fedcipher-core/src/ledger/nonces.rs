//! The last round that each (key, client) has encrypted. The round is on disk *before* any ciphertext of it exists.

use super::folder::{Folder, LedgerFile, check_header};
use super::header::{LedgerHeader, Magic};
use super::slots::{BYTES, Counter};
use super::{check_date, disk, failed, locked, lost};
use crate::keys::ClientKey;
use crate::{ClientId, Error, Result, RoundId};
use std::path::Path;

pub(super) const MAGIC: Magic = *b"FEDNONC3";

/// The file of `key`; it is made if the folder never had one.
pub(super) fn place(folder: &Folder, key: &ClientKey, born: u64) -> Result<LedgerFile> {
    let header = LedgerHeader::of(MAGIC, folder.identity(), key, born);
    folder.ensure("nonce", header, |header| Counter::born(header).to_vec())
}

/// Rejects every round that is not greater than the last one.
#[derive(Debug)]
pub struct Ledger {
    client: ClientId,
    file: Option<LedgerFile>,
    last: Option<RoundId>,
    /// The largest number of rounds that may ever be claimed.
    most: Option<u64>,
    /// The number of claimed rounds, if there is no file.
    claimed: u64,
    /// A round that is claimed and not yet used.
    reserved: Option<RoundId>,
    /// The process that holds this object. A forked process must not use the object's memory.
    process: u32,
}

impl Ledger {
    /// The ledger of `key` in folder `state`. Without a folder, it lives as long as this object.
    ///
    /// A new ledger rejects rounds begun before now; see [`super::register`].
    pub fn open(key: &ClientKey, state: Option<&Path>) -> Result<Self> {
        let file = state.map(|state| place(&Folder::open(state)?, key, super::now())).transpose()?;
        let process = std::process::id();
        Ok(Ledger { client: key.client, file, last: None, most: None, claimed: 0, reserved: None, process })
    }

    /// Rejects all rounds after the first `most`. A round counts once it is claimed, even if it is not used.
    #[must_use]
    pub fn within(self, most: Option<u64>) -> Self {
        Ledger { most, ..self }
    }

    /// Claims `round`, durably. A failed claim changes nothing. A lock excludes other processes with the same key and
    /// folder.
    pub fn claim(&mut self, round: RoundId) -> Result<()> {
        self.check_process()?;
        if self.reserved == Some(round) {
            self.reserved = None;
            return Ok(());
        }
        check_date(round)?;
        if self.file.is_some() {
            self.claim_on_disk(round)?;
        } else {
            self.check_increase(round)?;
            self.check_budget(self.claimed)?;
            self.claimed += 1;
        }
        (self.last, self.reserved) = (Some(round), None);
        Ok(())
    }

    /// Claims `round` ahead of time, durably. The next [`Ledger::claim`] of it in this process then takes no time. A
    /// reservation can be used once. It is lost with this object or after a claim of a later round, and forked
    /// processes do not inherit it.
    pub fn reserve(&mut self, round: RoundId) -> Result<()> {
        self.check_process()?;
        if self.reserved != Some(round) {
            self.claim(round)?;
            self.reserved = Some(round);
        }
        Ok(())
    }

    fn check_process(&mut self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        if self.file.is_none() {
            return Err(Error::Ledger {
                path: "in memory".into(),
                reason: format!(
                    "made by process {}, forked into this one: both could encrypt the same round; make the encryptor \
                     after the fork, or give a state folder",
                    self.process
                ),
            });
        }
        (self.reserved, self.process) = (None, std::process::id());
        Ok(())
    }

    fn check_increase(&self, round: RoundId) -> Result<()> {
        match self.last {
            Some(last) if round <= last => Err(Error::NonceReuse { client: self.client, round, last }),
            _ => Ok(()),
        }
    }

    fn check_budget(&self, claimed: u64) -> Result<()> {
        match self.most {
            Some(most) if claimed >= most => Err(Error::Budget { client: self.client, most }),
            _ => Ok(()),
        }
    }

    fn claim_on_disk(&mut self, round: RoundId) -> Result<()> {
        let Some(place) = &self.file else { return Ok(()) };
        let path = place.path.as_path();
        let io = |e: std::io::Error| failed(path, e);
        let file = locked(path)?;
        if file.metadata().map_err(io)?.len() != BYTES as u64 {
            return Err(lost(path, "has not the length of a ledger, it has been cut or added to"));
        }
        let mut counter = Counter::read(&file, path, 0, MAGIC)?;
        check_header(&counter.header, path, &place.header)?;
        let mut indexed = place.indexed()?;
        indexed.check(&file, counter.newest)?;
        let last = counter.newest.value().map(RoundId::new);
        if last < self.last {
            return Err(lost(path, "is older than what this process has written, it has been put back"));
        }
        self.last = last;
        self.check_increase(round)?;
        if round.date().is_some_and(|date| date < counter.header.born) {
            return Err(lost(
                path,
                "the round was begun before this ledger was made, so it may have been encrypted under another one \
                 (open the key by its file, `fedcipher.keys.open_client`, where the key is known to be unused)",
            ));
        }
        // Every claim is one write, so the file's counter is the number of claims.
        self.check_budget(counter.newest.count())?;
        counter.write(&file, counter.newest.next(round.get())).and_then(|()| disk::sync(&file)).map_err(io)?;
        indexed.advance(counter.newest)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::bounds::Bounds;
    use crate::plain::Plain;
    use crate::scheme::Scheme;
    use crate::{Epoch, Weight};

    /// As in a forked process, whose memory is a copy of its parent's.
    #[test]
    fn what_a_fork_remembers_is_void() {
        let key = Plain::new(Bounds::new(2, Weight::ONE, None).unwrap())
            .keygen(&ClientId::list([0, 1]), Epoch::new(1))
            .unwrap()
            .clients
            .remove(0);
        let mut alone = Ledger::open(&key, None).unwrap();
        alone.reserve(RoundId::new(4)).unwrap();
        alone.process ^= 1;
        for refused in [alone.claim(RoundId::new(4)), alone.claim(RoundId::new(9)), alone.reserve(RoundId::new(10))] {
            assert!(refused.unwrap_err().to_string().contains("make the encryptor after the fork"));
        }
        let state = tempfile::tempdir().unwrap();
        let mut kept = Ledger::open(&key, Some(state.path())).unwrap();
        kept.reserve(RoundId::new(4)).unwrap();
        kept.process ^= 1;
        assert!(
            matches!(kept.claim(RoundId::new(4)), Err(Error::NonceReuse { round, last, .. }) if round.get() == 4 && last.get() == 4)
        );
        kept.claim(RoundId::new(5)).unwrap();
    }
}
