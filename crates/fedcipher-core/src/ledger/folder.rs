//! A state folder: its identity, and the list of its ledgers with the newest counter of each.

use super::header::{self, LEN, LedgerHeader, Magic};
use super::slots::{BYTES, Counter, Newest};
use super::{disk, failed, lost};
use crate::exposure::changeable;
use crate::keys::ClientKey;
use crate::prf::random_bytes;
use crate::wire::hex;
use crate::{ClientId, Result};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The index file. The folder's own header comes first, as an unused counter; then the counter of each ledger in order
/// of creation. It grows by 128 bytes per ledger.
const INDEX: &str = "ledgers.index";
const MAGIC: Magic = *b"FEDSTAT2";

/// A folder of ledgers. A copy of the folder has the same identity: see the module's warning.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
    identity: [u8; 16],
}

impl Folder {
    /// Opens the folder, or makes it with a fresh random identity. Fails if other users may write to the folder: they
    /// could put back an older copy of it, which no ledger can detect.
    pub fn open(path: &Path) -> Result<Self> {
        header::make_folder(path)?;
        if let Some(reason) = changeable(path).map_err(|e| failed(path, e))? {
            return Err(failed(path, reason));
        }
        let index = path.join(INDEX);
        loop {
            match header::open(&index, false) {
                Ok(file) => {
                    // With mandatory locks (Windows), a file cannot be read while another process adds to it.
                    file.lock_shared().map_err(|e| failed(&index, e))?;
                    let found = Counter::read(&file, &index, 0, MAGIC)?.header;
                    return Ok(Folder { path: path.to_owned(), identity: found.folder });
                }
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    let folder = *random_bytes::<16>()?;
                    let fresh = LedgerHeader {
                        magic: MAGIC,
                        folder,
                        key_id: [0; 16],
                        client: ClientId::new(0),
                        born: super::now(),
                    };
                    header::publish(&index, &Counter::born(&fresh)).map_err(|e| failed(&index, e))?;
                }
                Err(e) => return Err(header::unopened(&index, &e)),
            }
        }
    }

    /// 16 random bytes, as old as the folder.
    #[must_use]
    pub fn identity(&self) -> [u8; 16] {
        self.identity
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The ledger of `header`. If the folder never had it, it is made: the header, then the bytes that `newborn`
    /// returns. If it is listed but missing, it has been deleted and its history is lost.
    pub(super) fn ensure(&self, suffix: &str, header: LedgerHeader, newborn: Newborn) -> Result<LedgerFile> {
        let path = self.path.join(format!("{}-{}.{suffix}", hex(&header.key_id), header.client));
        let index = self.path.join(INDEX);
        let mut list = header::open(&index, true).map_err(|e| header::unopened(&index, &e))?;
        list.lock().map_err(|e| failed(&index, e))?;
        let listed = self.listed(&mut list, &index, &header)?;
        let found = match header::open(&path, false) {
            Ok(mut file) => {
                let found = read_header(&mut file, &path, &header)?;
                if listed.is_none() {
                    check_unused(file, &index, &newborn(&found))?;
                    header::sync_parent(&path).map_err(|e| failed(&path, e))?;
                }
                found
            }
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(header::unopened(&path, &e)),
            Err(_) if listed.is_some() => return Err(lost(&path, "has been deleted")),
            Err(_) => {
                header::publish(&path, &newborn(&header)).map_err(|e| failed(&path, e))?;
                header
            }
        };
        // The ledger is made before its entry. So a ledger without an entry is unused, and an entry's ledger exists.
        let (at, durable) = match listed {
            Some(at) => (at, UNKNOWN),
            None => (append(&mut list, &found).map_err(|e| failed(&index, e))?, 0),
        };
        Ok(LedgerFile { path, header, index, at, durable: AtomicU64::new(durable) })
    }

    /// Fails if a ledger of `key` has been in this folder and is missing.
    pub(crate) fn existing(&self, key: &ClientKey, magic: Magic) -> Result<()> {
        let index = self.path.join(INDEX);
        let mut list = header::open(&index, false).map_err(|e| header::unopened(&index, &e))?;
        list.lock_shared().map_err(|e| failed(&index, e))?;
        if self.listed(&mut list, &index, &LedgerHeader::of(magic, self.identity, key, 0))?.is_some() {
            return Ok(());
        }
        Err(lost(&self.path, &format!("the ledger of client {} is gone from this folder", key.client)))
    }

    /// The offset of the index entry of `header`.
    fn listed(&self, list: &mut File, index: &Path, header: &LedgerHeader) -> Result<Option<u64>> {
        let mut bytes = Vec::new();
        list.seek(SeekFrom::Start(0)).and_then(|_| list.read_to_end(&mut bytes)).map_err(|e| failed(index, e))?;
        let (entries, _torn) = bytes.as_chunks::<BYTES>();
        let Some((head, entries)) = entries.split_first() else { return Err(lost(index, "has been cut short")) };
        if LedgerHeader::decode(&head[..LEN], MAGIC).is_none_or(|head| head.folder != self.identity) {
            return Err(lost(index, "is not the one that this folder had"));
        }
        let mut damaged = false;
        for (number, entry) in entries.iter().enumerate() {
            match LedgerHeader::decode(&entry[..LEN], entry.first_chunk().copied().unwrap_or_default()) {
                Some(entry) if entry.same_file(header) => return Ok(Some((number as u64 + 1) * BYTES as u64)),
                Some(_) => {}
                None => damaged = true,
            }
        }
        // The damaged entry may be the one that is looked for.
        if damaged { Err(lost(index, "holds a damaged entry")) } else { Ok(None) }
    }
}

/// Makes the content of a new ledger's file from its header.
pub type Newborn = fn(&LedgerHeader) -> Vec<u8>;

/// Fails if a ledger without an index entry has been used. An unused one is left by a process that ended early. A used
/// one means that the index is an old copy.
fn check_unused(mut file: File, index: &Path, newborn: &[u8]) -> Result<()> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))
        .and_then(|_| file.take(newborn.len() as u64 + 1).read_to_end(&mut bytes))
        .map_err(|e| failed(index, e))?;
    if bytes == newborn {
        return Ok(());
    }
    Err(lost(index, "does not list a ledger that has been used: it has been put back from a copy, or cut"))
}

/// Adds the entry of an unused ledger. Returns its offset.
fn append(list: &mut File, header: &LedgerHeader) -> std::io::Result<u64> {
    let end = list.metadata()?.len();
    // Overwrites an entry that a torn write has left. Its ledger, if it exists, is listed when it is opened.
    let end = end - end % BYTES as u64;
    list.set_len(end)?;
    list.seek(SeekFrom::Start(end))?;
    list.write_all(&Counter::born(header))?;
    list.sync_all()?;
    Ok(end)
}

/// Stands for an unknown number of durable claims, after another process has written the last.
const UNKNOWN: u64 = u64::MAX;

/// A ledger's file, with the place of its entry in the folder's index.
#[derive(Debug)]
pub struct LedgerFile {
    pub path: PathBuf,
    /// The file's header, except for its date of birth.
    pub header: LedgerHeader,
    index: PathBuf,
    /// The offset of its entry in the index.
    at: u64,
    /// The number of claims that this object knows to be durable in the index.
    durable: AtomicU64,
}

impl LedgerFile {
    /// The ledger's entry in the index.
    pub fn indexed(&self) -> Result<Indexed<'_>> {
        let file = header::open(&self.index, true).map_err(|e| match e.kind() {
            ErrorKind::NotFound => lost(&self.index, "has been deleted"),
            _ => header::unopened(&self.index, &e),
        })?;
        let counter = self.read(&file)?;
        Ok(Indexed { place: self, file, counter })
    }

    /// Notes that this number of claims is durable in the index.
    pub fn note_durable(&self, count: u64) {
        self.durable.store(count, Ordering::Relaxed);
    }

    fn read(&self, file: &File) -> Result<Counter> {
        file.lock().map_err(|e| failed(&self.index, e))?;
        let found = self.read_locked(file);
        file.unlock().map_err(|e| failed(&self.index, e))?;
        found
    }

    fn read_locked(&self, file: &File) -> Result<Counter> {
        let found = Counter::read(file, &self.index, self.at, self.header.magic)?;
        if found.header.same_file(&self.header) {
            return Ok(found);
        }
        Err(lost(&self.index, "is not the one that this folder had"))
    }
}

/// A ledger's entry in the index: a copy of its counter, written once the counter is durable. So a ledger equals its
/// entry or is one claim ahead. A file put back from a copy does not match the other.
pub struct Indexed<'a> {
    place: &'a LedgerFile,
    file: File,
    counter: Counter,
}

impl Indexed<'_> {
    /// The number of claims that the index counts.
    pub fn count(&self) -> u64 {
        self.counter.newest.count()
    }

    /// Fails if the ledger's counter `newest` contradicts the index. If the index misses a claim, because the process
    /// or the power ended, the claim is completed. The index is then durable, so that the ledger may go on.
    pub fn check(&mut self, ledger: &File, newest: Newest) -> Result<()> {
        let (LedgerFile { path, index, .. }, counted) = (self.place, self.counter.newest);
        if newest.count() < counted.count() {
            return Err(lost(path, "counts fewer claims than ledgers.index: it has been put back from a copy, or cut"));
        }
        if newest.count() - counted.count() > 1 {
            return Err(lost(index, "counts fewer claims than its ledger: it has been put back from a copy"));
        }
        if newest.count() > counted.count() {
            disk::sync(ledger).map_err(|e| failed(path, e))?;
            return self.advance(newest);
        }
        if newest != counted {
            return Err(lost(path, "does not end as ledgers.index says: it has been put back from a copy"));
        }
        // An earlier process may have ended before its claim was durable here. A further claim would leave the index
        // two behind.
        if self.place.durable.load(Ordering::Relaxed) == counted.count() { Ok(()) } else { self.sync() }
    }

    /// Writes `newest` durably. It must be durable in the ledger.
    pub fn advance(&mut self, newest: Newest) -> Result<()> {
        self.write(newest)?;
        self.sync()
    }

    /// Writes `newest`, unless another process has claimed since. The lock of a replaced ledger does not exclude other
    /// processes.
    pub fn write(&mut self, newest: Newest) -> Result<()> {
        let index = &self.place.index;
        self.file.lock().map_err(|e| failed(index, e))?;
        let written = self.place.read_locked(&self.file).and_then(|mut found| {
            if found.newest != self.counter.newest {
                return Err(lost(&self.place.path, "was replaced during a claim"));
            }
            found.write(&self.file, newest).map_err(|e| failed(index, e))?;
            self.counter = found;
            Ok(())
        });
        self.file.unlock().map_err(|e| failed(index, e))?;
        written
    }

    fn sync(&self) -> Result<()> {
        disk::sync(&self.file).map_err(|e| failed(&self.place.index, e))?;
        self.place.note_durable(self.count());
        Ok(())
    }
}

/// The header at the start of `file`. It must equal `expected` except for its date of birth.
pub(super) fn read_header(file: &mut File, path: &Path, expected: &LedgerHeader) -> Result<LedgerHeader> {
    let mut bytes = [0u8; LEN];
    match file.read_exact(&mut bytes) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Err(lost(path, "has been cut short")),
        Err(e) => return Err(failed(path, e)),
    }
    let found =
        LedgerHeader::decode(&bytes, expected.magic).ok_or_else(|| lost(path, "does not begin as a ledger does"))?;
    check_header(&found, path, expected)?;
    Ok(found)
}

/// Fails if `found` is the header of another file than `expected`.
pub(super) fn check_header(found: &LedgerHeader, path: &Path, expected: &LedgerHeader) -> Result<()> {
    if found.same_file(expected) {
        return Ok(());
    }
    if found.folder != expected.folder {
        return Err(lost(path, "is of another state folder, or this folder's ledgers.index has been replaced"));
    }
    Err(lost(path, "is the ledger of another key"))
}
