//! A state folder: its identity, and the list of its ledgers.

use super::stamp::{self, LEN, Magic, Stamp};
use super::{failed, lost};
use crate::Result;
use crate::keys::ClientKey;
use crate::prf::random_bytes;
use crate::wire::hex;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The folder's stamp, then the stamp of each ledger in it, as they were made. Grows by 64 bytes a ledger.
const INDEX: &str = "ledgers.index";
const MAGIC: Magic = *b"FEDSTATE";

/// A folder of ledgers. Copies of it have its identity: see the module's warning.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
    identity: [u8; 16],
}

impl Folder {
    /// Opens the folder, or makes it with a fresh random identity.
    pub fn open(path: &Path) -> Result<Self> {
        stamp::make_folder(path)?;
        let index = path.join(INDEX);
        loop {
            match stamp::open(&index, false) {
                Ok(mut file) => {
                    // Where locks are mandatory (Windows), what another process is adding to cannot be read.
                    file.lock_shared().map_err(|e| failed(&index, e))?;
                    let mut head = [0u8; LEN];
                    let read = file.read_exact(&mut head).ok().and_then(|()| Stamp::decode(&head, MAGIC));
                    let found = read.ok_or_else(|| lost(&index, "is cut or damaged"))?;
                    return Ok(Folder { path: path.to_owned(), identity: found.folder });
                }
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    let folder = *random_bytes::<16>()?;
                    let fresh = Stamp { magic: MAGIC, folder, key_id: [0; 16], client: 0, born: super::now() };
                    stamp::publish(&index, &fresh.encode()).map_err(|e| failed(&index, e))?;
                }
                Err(e) => return Err(stamp::unopened(&index, &e)),
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

    /// Where the ledger of `key` is or would be.
    pub(super) fn file(&self, key: &ClientKey, suffix: &str) -> PathBuf {
        self.path.join(format!("{}-{}.{suffix}", hex(&key.tag.key_id), key.client))
    }

    /// Makes the file of `stamp` with what follows the stamp, unless it is there. One that is listed and not
    /// there has been deleted: its history is lost.
    pub(super) fn ensure(&self, path: &Path, stamp: Stamp, rest: &[u8]) -> Result<()> {
        let index = self.path.join(INDEX);
        let mut list = stamp::open(&index, true).map_err(|e| stamp::unopened(&index, &e))?;
        list.lock().map_err(|e| failed(&index, e))?;
        let listed = self.listed(&mut list, &index, &stamp)?;
        match stamp::open(path, false) {
            Ok(mut file) => {
                read_stamp(&mut file, path, &stamp)?;
            }
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(stamp::unopened(path, &e)),
            Err(_) if listed => return Err(lost(path, "has been deleted")),
            Err(_) => {
                let content = [&stamp.encode()[..], rest].concat();
                stamp::publish(path, &content).map_err(|e| failed(path, e))?;
            }
        }
        if listed {
            return Ok(());
        }
        // The ledger comes first: one that is not listed yet has not been used, one that is listed exists.
        let append = |list: &mut File| {
            let end = list.metadata()?.len();
            // What a torn write has left of an entry: its ledger, if there is one, gets listed when it is opened.
            list.set_len(end - end % LEN as u64)?;
            list.seek(SeekFrom::End(0))?;
            list.write_all(&stamp.encode())?;
            list.sync_all()
        };
        append(&mut list).map_err(|e| failed(&index, e))
    }

    /// Refuses a ledger of `key` that is not in this folder, though it has been.
    pub(crate) fn existing(&self, key: &ClientKey, magic: Magic) -> Result<()> {
        let index = self.path.join(INDEX);
        let mut list = stamp::open(&index, false).map_err(|e| stamp::unopened(&index, &e))?;
        list.lock_shared().map_err(|e| failed(&index, e))?;
        if self.listed(&mut list, &index, &Stamp::of(magic, self.identity, key, 0))? {
            return Ok(());
        }
        Err(lost(&self.path, &format!("the ledger of client {} is gone from this folder", key.client)))
    }

    /// Whether the list has an entry for the file of `stamp`.
    fn listed(&self, list: &mut File, index: &Path, stamp: &Stamp) -> Result<bool> {
        let mut bytes = Vec::new();
        list.seek(SeekFrom::Start(0)).and_then(|_| list.read_to_end(&mut bytes)).map_err(|e| failed(index, e))?;
        let head = bytes.get(..LEN).and_then(|head| Stamp::decode(head, MAGIC));
        if head.is_none_or(|head| head.folder != self.identity) {
            return Err(lost(index, "is not the one that this folder had"));
        }
        let (entries, _torn) = bytes[LEN..].as_chunks::<LEN>();
        let mut damaged = false;
        for entry in entries {
            match Stamp::decode(entry, entry.first_chunk().copied().unwrap_or_default()) {
                Some(entry) if entry.same_file(stamp) => return Ok(true),
                Some(_) => {}
                None => damaged = true,
            }
        }
        // A damaged entry may have been this one.
        if damaged { Err(lost(index, "holds a damaged entry")) } else { Ok(false) }
    }
}

/// The stamp at the start of `file`, which must be that of `expected` but for its date of birth.
pub(super) fn read_stamp(file: &mut File, path: &Path, expected: &Stamp) -> Result<Stamp> {
    let mut bytes = [0u8; LEN];
    match file.read_exact(&mut bytes) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Err(lost(path, "has been cut short")),
        Err(e) => return Err(failed(path, e)),
    }
    let found = Stamp::decode(&bytes, expected.magic).ok_or_else(|| lost(path, "does not begin as a ledger does"))?;
    if found.same_file(expected) {
        return Ok(found);
    }
    if found.folder != expected.folder {
        return Err(lost(path, "is of another state folder, or this folder's ledgers.index has been replaced"));
    }
    Err(lost(path, "is the ledger of another key"))
}
