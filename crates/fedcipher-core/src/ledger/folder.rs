//! A state folder: its identity, and the list of its ledgers with the newest counter of each.

use super::header::{self, LEN, LedgerHeader, Magic};
use super::slots::{BYTES, Counter, Newest};
use super::{disk, failed, lost};
use crate::key_file::changeable;
use crate::keys::ClientKey;
use crate::prf::random_bytes;
use crate::wire::hex;
use crate::{ClientId, Result};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The folder's own header as a counter that nobody counts with, then the counter of each ledger in it, as they were
/// made. Grows by 128 bytes a ledger.
const INDEX: &str = "ledgers.index";
const MAGIC: Magic = *b"FEDSTAT2";

/// A folder of ledgers. Copies of it have its identity: see the module's warning.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
    identity: [u8; 16],
}

impl Folder {
    /// Opens the folder, or makes it with a fresh random identity. One that other users write to is refused: they could
    /// put back an older one as a whole, which no ledger can see.
    pub fn open(path: &Path) -> Result<Self> {
        header::make_folder(path)?;
        if let Some(reason) = changeable(path).map_err(|e| failed(path, e))? {
            return Err(failed(path, reason));
        }
        let index = path.join(INDEX);
        loop {
            match header::open(&index, false) {
                Ok(file) => {
                    // Where locks are mandatory (Windows), what another process is adding to cannot be read.
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

    /// The ledger of `header`, made if the folder never had it: its header, then what `newborn` makes of that. One that is
    /// listed and not there has been deleted: its history is lost.
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
        // The ledger comes first: one that is not listed yet has not been used, one that is listed exists.
        let (at, durable) = match listed {
            Some(at) => (at, UNKNOWN),
            None => (append(&mut list, &found).map_err(|e| failed(&index, e))?, 0),
        };
        Ok(LedgerFile { path, header, index, at, durable: AtomicU64::new(durable) })
    }

    /// Refuses a ledger of `key` that is not in this folder, though it has been.
    pub(crate) fn existing(&self, key: &ClientKey, magic: Magic) -> Result<()> {
        let index = self.path.join(INDEX);
        let mut list = header::open(&index, false).map_err(|e| header::unopened(&index, &e))?;
        list.lock_shared().map_err(|e| failed(&index, e))?;
        if self.listed(&mut list, &index, &LedgerHeader::of(magic, self.identity, key, 0))?.is_some() {
            return Ok(());
        }
        Err(lost(&self.path, &format!("the ledger of client {} is gone from this folder", key.client)))
    }

    /// Where the list has its entry for the file of `header`.
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
        // A damaged entry may have been this one.
        if damaged { Err(lost(index, "holds a damaged entry")) } else { Ok(None) }
    }
}

/// The whole of a ledger's file as it is born, from its header.
pub type Newborn = fn(&LedgerHeader) -> Vec<u8>;

/// A ledger that is not in the list was made by a process that ended before it could use it; or the list is an old one.
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

/// Adds the entry of an unused ledger; where it lies.
fn append(list: &mut File, header: &LedgerHeader) -> std::io::Result<u64> {
    let end = list.metadata()?.len();
    // What a torn write has left of an entry: its ledger, if there is one, gets listed when it is opened.
    let end = end - end % BYTES as u64;
    list.set_len(end)?;
    list.seek(SeekFrom::Start(end))?;
    list.write_all(&Counter::born(header))?;
    list.sync_all()?;
    Ok(end)
}

/// How many claims are on disk in the index, where another process has written the last.
const UNKNOWN: u64 = u64::MAX;

/// A ledger's file, and where its folder's index counts along.
#[derive(Debug)]
pub struct LedgerFile {
    pub path: PathBuf,
    /// What the file begins with, but for its date of birth.
    pub header: LedgerHeader,
    index: PathBuf,
    /// Of its entry in the index.
    at: u64,
    /// How many claims this object knows to be on disk in the index.
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

    /// So many claims are on disk in the index.
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

/// A ledger's entry in the index: a copy of its counter, written once that is on disk. So a ledger is as its entry says
/// or one claim further, and one file put back from a copy does not fit the other.
pub struct Indexed<'a> {
    place: &'a LedgerFile,
    file: File,
    counter: Counter,
}

impl Indexed<'_> {
    /// How many claims the index counts.
    pub fn count(&self) -> u64 {
        self.counter.newest.count()
    }

    /// Refuses a ledger that says `newest` where the index says otherwise. A claim that the index misses, because the
    /// process or the power ended, is completed. Its index is durable after it, so that the ledger may go on.
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
        // An earlier process may have ended before its claim was on disk here: a further one would leave it two behind.
        if self.place.durable.load(Ordering::Relaxed) == counted.count() { Ok(()) } else { self.sync() }
    }

    /// Says `newest`, which is on disk in the ledger, durably.
    pub fn advance(&mut self, newest: Newest) -> Result<()> {
        self.write(newest)?;
        self.sync()
    }

    /// Says `newest`, unless another has claimed since: a lock of a ledger that was replaced keeps nobody apart.
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

/// The header at the start of `file`, which must be that of `expected` but for its date of birth.
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

/// Refuses the header of another file than `expected`.
pub(super) fn check_header(found: &LedgerHeader, path: &Path, expected: &LedgerHeader) -> Result<()> {
    if found.same_file(expected) {
        return Ok(());
    }
    if found.folder != expected.folder {
        return Err(lost(path, "is of another state folder, or this folder's ledgers.index has been replaced"));
    }
    Err(lost(path, "is the ledger of another key"))
}
