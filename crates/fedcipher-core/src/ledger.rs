//! A nonce ledger: which round each (key, client) has encrypted last, kept across restarts.
//!
//! One file per key set and client with two 32-byte slots written in turn; a torn write leaves the
//! older slot intact. The round is on disk *before* any ciphertext of it exists.

use crate::keys::ClientKey;
use crate::wire::hex;
use crate::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const SLOT: usize = 32;

/// Refuses any round that is not greater than the last one.
#[derive(Debug)]
pub struct Ledger {
    client: u32,
    path: Option<PathBuf>,
    last: Option<u64>,
    reserved: Option<(u64, u32)>,
}

/// TEMPORARY until the real one is merged.
#[derive(Debug)]
pub struct Openings(std::sync::Mutex<std::collections::BTreeMap<u64, [u8; 32]>>);

impl Openings {
    pub fn open(_key: &ClientKey, _state: Option<&Path>) -> Result<Self> {
        Ok(Openings(Default::default()))
    }

    pub fn claim(&self, round: u64, digest: &[u8; 32]) -> Result<()> {
        let mut opened = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if opened.get(&round) == Some(digest) {
            return Ok(());
        }
        match opened.last_key_value() {
            Some((last, _)) if *last >= round => Err(Error::Opened { round, last: *last }),
            _ => {
                opened.insert(round, *digest);
                Ok(())
            }
        }
    }
}

impl Ledger {
    /// The ledger of `key` in folder `state`; without a folder it lives as long as this object.
    pub fn open(key: &ClientKey, state: Option<&Path>) -> Result<Self> {
        let path = state
            .map(|folder| {
                std::fs::create_dir_all(folder).map_err(|e| failed(folder, &e))?;
                Ok(folder.join(format!("{}-{}.nonce", hex(&key.tag.key_id), key.client)))
            })
            .transpose()?;
        Ok(Ledger { client: key.client, path, last: None, reserved: None })
    }

    /// Claims `round`, durably, or refuses it. Two processes with one key are kept apart by a lock.
    pub fn claim(&mut self, round: u64) -> Result<()> {
        if self.reserved.take() == Some((round, std::process::id())) {
            return Ok(());
        }
        match self.path.clone() {
            None => self.advance(round),
            Some(path) => self.claim_on_disk(round, &path).map_err(|e| match e {
                Claim::Io(e) => failed(&path, &e),
                Claim::Refused(e) => e,
            }),
        }
    }

    pub fn reserve(&mut self, round: u64) -> Result<()> {
        if self.reserved == Some((round, std::process::id())) {
            return Ok(());
        }
        self.claim(round)?;
        self.reserved = Some((round, std::process::id()));
        Ok(())
    }

    fn advance(&mut self, round: u64) -> Result<()> {
        match self.last {
            Some(last) if round <= last => Err(Error::NonceReuse { client: self.client, round, last }),
            _ => {
                self.last = Some(round);
                Ok(())
            }
        }
    }

    fn claim_on_disk(&mut self, round: u64, path: &Path) -> std::result::Result<(), Claim> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.lock()?;
        let (slot, sequence, last) = newest(&mut file, path)?;
        self.last = self.last.max(last);
        self.advance(round).map_err(Claim::Refused)?;
        file.seek(SeekFrom::Start((1 - slot) as u64 * SLOT as u64))?;
        file.write_all(&encode(sequence + 1, round))?;
        file.sync_all()?;
        Ok(())
    }
}

enum Claim {
    Io(std::io::Error),
    Refused(Error),
}

impl From<std::io::Error> for Claim {
    fn from(e: std::io::Error) -> Self {
        Claim::Io(e)
    }
}

fn failed(path: &Path, e: &std::io::Error) -> Error {
    Error::Ledger { path: path.display().to_string(), reason: e.to_string() }
}

fn encode(sequence: u64, round: u64) -> [u8; SLOT] {
    let mut out = [0u8; SLOT];
    out[..8].copy_from_slice(b"FEDNONCE");
    out[8..16].copy_from_slice(&sequence.to_le_bytes());
    out[16..24].copy_from_slice(&round.to_le_bytes());
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &out[..24]);
    out[24..].copy_from_slice(&crc.to_le_bytes());
    out
}

fn decode(slot: &[u8]) -> Option<(u64, u64)> {
    let word = |at: usize| -> Option<u64> { Some(u64::from_le_bytes(slot.get(at..at + 8)?.try_into().ok()?)) };
    let (sequence, round) = (word(8)?, word(16)?);
    (slot == encode(sequence, round)).then_some((sequence, round))
}

/// The newest valid slot: (its index, sequence number, round). An empty file is a new ledger.
fn newest(file: &mut File, path: &Path) -> std::result::Result<(usize, u64, Option<u64>), Claim> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let best = bytes.chunks(SLOT).enumerate().filter_map(|(i, s)| decode(s).map(|(n, r)| (n, i, r))).max();
    match best {
        Some((sequence, slot, round)) => Ok((slot, sequence, Some(round))),
        // A first write that was torn has released no ciphertext: at most one slot, and it is short
        // or unreadable. Anything longer without a valid slot has lost its history.
        None if bytes.len() <= 2 * SLOT && bytes.get(..SLOT).is_none_or(|s| s.iter().all(|b| *b == 0)) => {
            Ok((0, 0, None))
        }
        None => Err(Claim::Refused(Error::Ledger {
            path: path.display().to_string(),
            reason: "no valid entry, its history is lost; rotate the key".into(),
        })),
    }
}
