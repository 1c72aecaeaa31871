//! Client key files: read only if other users cannot read them, and used by one program, or the processes of one app,
//! at a time.
//!
//! A file is a line of text, the scheme, then the key. From its first use on, `client-0.key.used` lies beside
//! `client-0.key`. It names the state folder whose ledgers have the key's history, and carries the lock. If this user
//! cannot
//! write there (a Kubernetes Secret), the marker is in the state folder, under the key's own name.

use crate::exposure::trust_group;
pub use crate::exposure::{changeable, replaceable};
use crate::keys::ClientKey;
use crate::ledger::header::{self, LEN, LedgerHeader, Magic};
use crate::ledger::{self, Folder, REMEDY};
use crate::os::{self, Exposed, TRUSTED_GROUP};
use crate::wire::hex;
use crate::{Error, Result, container};
use std::fs::{File, Metadata, TryLockError};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

const MAGIC: Magic = *b"FEDUSED1";
/// Far above any scheme's keys.
const MAX_BYTES: u64 = 1 << 30;

fn refused(path: &Path, reason: impl std::fmt::Display) -> Error {
    Error::KeyFile { path: path.display().to_string(), reason: reason.to_string() }
}

/// The remedy if other users may read a key file. It depends on the source of the file's modes.
fn unread(path: &Path, about: &Metadata) -> String {
    if container::in_kubernetes() {
        return format!(
            "give the Secret's volume defaultMode: 0440 and the pod an fsGroup, and set {TRUSTED_GROUP} to that group \
             (docs/how-to/deploy.md, Kubernetes)"
        );
    }
    format!("chmod 600 {}{}", path.display(), trust_group(Some(about)))
}

/// The bytes of a client's key file. A file that others may read, or that lies where others may replace it or a
/// folder above it, is refused with the command that mends it.
pub fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let io = |e: std::io::Error| match e.kind() {
        ErrorKind::NotFound => refused(path, "is absent; make keys with `fedcipher keygen`, or ask the authority"),
        _ => refused(path, e),
    };
    let file = os::open_file(path).map_err(io)?;
    let about = file.metadata().map_err(io)?;
    if about.len() > MAX_BYTES {
        return Err(refused(path, "is not a key file"));
    }
    if let Some(Exposed::Readable(mode)) = os::exposed_file(&about) {
        return Err(refused(path, format!("may be read by other users (mode {mode:04o}): {}", unread(path, &about))));
    }
    if let Some(why) = replaceable(path).map_err(io)? {
        return Err(refused(path, why));
    }
    // One allocation: a vector that grows would leave the key in memory that was freed.
    let mut bytes = Zeroizing::new(Vec::with_capacity(about.len() as usize + 1));
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes)
}

/// The scheme's text and the key in a client's file.
pub fn load(path: &Path) -> Result<(String, ClientKey)> {
    let content = read(path)?;
    let end = content.iter().position(|b| *b == b'\n').ok_or_else(|| refused(path, "is not a key file"))?;
    let spec = std::str::from_utf8(&content[..end]).map_err(|_| refused(path, "is not a key file"))?;
    let key = ClientKey::from_bytes(&content[end + 1..]).map_err(|_| {
        refused(
            path,
            "is damaged, cut short or made by another version of Fedcipher; ask for the file again, or have new \
             keys made",
        )
    })?;
    Ok((spec.to_owned(), key))
}

/// The programs that may use a key file at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// No other program: an engine.
    Alone,
    /// Other processes of this kind: an app's workers, whose ledger keeps them apart.
    Workers,
}

/// A key file in use; the lock ends with this object, or with the process.
#[derive(Debug)]
pub struct InUse {
    _marker: File,
    /// Where the marker is not beside it.
    _key_file: Option<File>,
    first: bool,
}

impl InUse {
    /// True if this was the first use according to the state folder, and no marker lies beside the key file. If the
    /// folder is lost, the key's history is lost too.
    #[must_use]
    pub fn first_in_state(&self) -> bool {
        self.first
    }
}

/// Where the marker of a key file lies: beside the file itself, not beside a link to it.
pub fn marker(path: &Path) -> Result<PathBuf> {
    let mut name = path.canonicalize().map_err(|e| refused(path, e))?.into_os_string();
    name.push(".used");
    Ok(name.into())
}

/// Where it lies if this user cannot write there.
fn marker_in(state: &Path, key: &ClientKey) -> PathBuf {
    state.join(format!("{}-{}.used", hex(&key.tag.key_id), key.client))
}

/// Whether files cannot be made in the folder of a file at all, so that a retry is useless.
fn is_read_only(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied)
}

/// The warning if only the state folder knows of a key's use: see [`InUse::first_in_state`].
#[must_use]
pub fn only_in(path: &Path, state: &Path) -> String {
    format!(
        "key file {} cannot have a note of its use beside it, so {} alone knows what it has encrypted: keep that folder as \
         long as the key, and if it is lost have new keys made",
        path.display(),
        state.display()
    )
}

/// Takes the key file at `path`, which holds `key`, into use with the ledgers of folder `state`.
///
/// Refuses at once where another program uses it, where it has been used with another state folder, where that folder
/// has lost its ledgers, and where it ends with the container.
pub fn take(path: &Path, key: &ClientKey, state: &Path, sharing: Sharing) -> Result<InUse> {
    container::check_state(state)?;
    let folder = Folder::open(state)?;
    let (beside, within) = (marker(path)?, marker_in(state, key));
    match take_at(&beside, path, key, &folder, sharing)? {
        Taken::Yes(marker, _) => return Ok(InUse { _marker: marker, _key_file: None, first: false }),
        Taken::Unwritten(e) if is_read_only(&e) => {}
        Taken::Unwritten(e) => return Err(unwritten(path, &beside, &e)),
    }
    // Another program may use the same file with another state folder. Read-only files cannot be locked everywhere.
    let held = os::open_file(path).map_err(|e| refused(path, e))?;
    if let Err(in_use @ Error::KeyInUse { .. }) = lock(&held, path, sharing) {
        return Err(in_use);
    }
    match take_at(&within, path, key, &folder, sharing)? {
        Taken::Yes(marker, first) => Ok(InUse { _marker: marker, _key_file: Some(held), first }),
        Taken::Unwritten(e) => Err(unwritten(path, &within, &e)),
    }
}

fn unwritten(path: &Path, at: &Path, e: &std::io::Error) -> Error {
    refused(path, format!("cannot note its use in {}: {e}; make room there, or keep the key elsewhere", at.display()))
}

enum Taken {
    /// The marker, locked, and whether it was made now.
    Yes(File, bool),
    Unwritten(std::io::Error),
}

/// Like [`take`], with the marker `at`.
fn take_at(at: &Path, path: &Path, key: &ClientKey, folder: &Folder, sharing: Sharing) -> Result<Taken> {
    let (state, mut first) = (folder.path(), false);
    let fresh = LedgerHeader::of(MAGIC, folder.identity(), key, 0);
    loop {
        let mut file = match header::open(at, false) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                if let Err(e) = header::try_to_make(at) {
                    return Ok(Taken::Unwritten(e));
                }
                // Unused according to this file. The ledgers are made first, because a marker promises that they exist.
                ledger::register(key, state)?;
                first = header::publish(at, &fresh.encode()).map_err(|e| unwritten(path, at, &e))?;
                continue;
            }
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                return Err(refused(
                    path,
                    format!(
                        "has been used by another user, and only that user can read {}: run both as one user",
                        at.display()
                    ),
                ));
            }
            Err(e) => return Err(header::unopened(at, &e)),
        };
        let mut bytes = Vec::new();
        (&mut file).take(2 * LEN as u64).read_to_end(&mut bytes).map_err(|e| refused(at, e))?;
        let Some(found) = LedgerHeader::decode(&bytes, MAGIC) else {
            return Err(refused(at, format!("is cut or damaged; {REMEDY}")));
        };
        // The marker of an earlier key at this path may be removed only once that key is not in use.
        let earlier = !found.is_of(key);
        lock(&file, path, if earlier { Sharing::Alone } else { sharing })?;
        if !os::is_at(&file, at) {
            continue;
        }
        if earlier {
            if let Err(e) = header::try_to_make(at) {
                return Ok(Taken::Unwritten(e));
            }
            ledger::register(key, state)?;
            header::replace(at, &fresh.encode()).map_err(|e| unwritten(path, at, &e))?;
            continue;
        }
        if found.folder != fresh.folder {
            return Err(refused(
                path,
                format!(
                    "has been used with another state folder than {}: give that one again (FEDCIPHER_STATE_DIR, or the \
                 engine's --state), or make new keys; the key may have encrypted rounds that this folder does not know",
                    state.display()
                ),
            ));
        }
        ledger::check_registered(key, folder)?;
        ledger::register(key, state)?;
        return Ok(Taken::Yes(file, first));
    }
}

fn lock(file: &File, path: &Path, sharing: Sharing) -> Result<()> {
    let (tried, holder) = match sharing {
        Sharing::Alone => (file.try_lock(), "an engine (fedcipher-engine serve --key-file) or a training process"),
        Sharing::Workers => (file.try_lock_shared(), "an engine (fedcipher-engine serve --key-file)"),
    };
    tried.map_err(|e| match e {
        TryLockError::WouldBlock => Error::KeyInUse { path: path.display().to_string(), holder },
        TryLockError::Error(e) => refused(path, format!("cannot be locked: {e}; keep keys on a local file system")),
    })
}
