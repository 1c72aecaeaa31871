//! Client key files: read only where nobody else can, used by one program (or the processes of one app) at a time.
//!
//! A file is a line of text, the scheme, then the key. Beside `client-0.key` lies `client-0.key.used` from its
//! first use on: it names the state folder whose ledgers know what the key has encrypted, and carries the lock.

use crate::keys::ClientKey;
use crate::ledger::stamp::{self, LEN, Magic, Stamp};
use crate::ledger::{self, CURE, Folder};
use crate::os::{self, Exposed};
use crate::{Error, Result};
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

const MAGIC: Magic = *b"FEDUSED1";
/// Far above any scheme's keys.
const MOST_BYTES: u64 = 1 << 30;

fn refused(path: &Path, reason: impl std::fmt::Display) -> Error {
    Error::KeyFile { path: path.display().to_string(), reason: reason.to_string() }
}

/// Why another user could put something of his own in the place of what is at `path`, and what to do; none where
/// nobody can. Links are followed, and every folder on the way is looked at.
pub fn replaceable(path: &Path) -> std::io::Result<Option<String>> {
    Ok(os::exposed_path(path)?.map(|(place, exposed)| told(&place, exposed)))
}

/// Why another user could put files into the folder at `path`, or another folder in its place; none where nobody can.
pub fn changeable(path: &Path) -> std::io::Result<Option<String>> {
    Ok(os::exposed_folder(path)?.map(|(place, exposed)| told(&place, exposed)))
}

fn told(place: &Path, exposed: Exposed) -> String {
    let place = place.display();
    match exposed {
        Exposed::OfUser(user) => {
            format!("may be replaced by user {user}, to whom {place} belongs: make this user or root its owner (chown)")
        }
        Exposed::Sticky => {
            format!(
                "may be replaced by every user, as all write to {place}: move it to a folder of its own (mkdir -m 700)"
            )
        }
        Exposed::Writable(mode) | Exposed::Readable(mode) => {
            format!("may be replaced by other users, who may write to {place} (mode {mode:04o}): chmod go-w {place}")
        }
    }
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
    if about.len() > MOST_BYTES {
        return Err(refused(path, "is no key file"));
    }
    if let Some(Exposed::Readable(mode)) = os::exposed_file(&about) {
        return Err(refused(
            path,
            format!("may be read by other users (mode {mode:04o}): chmod 600 {}", path.display()),
        ));
    }
    if let Some(why) = replaceable(path).map_err(io)? {
        return Err(refused(path, why));
    }
    // One allocation: a vector that grows would leave the key in memory that was freed.
    let mut bytes = Zeroizing::new(Vec::with_capacity(about.len() as usize + 1));
    file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes)
}

/// The scheme's text and the key in a client's file.
pub fn load(path: &Path) -> Result<(String, ClientKey)> {
    let content = read(path)?;
    let end = content.iter().position(|b| *b == b'\n').ok_or_else(|| refused(path, "is no key file"))?;
    let spec = std::str::from_utf8(&content[..end]).map_err(|_| refused(path, "is no key file"))?;
    let key = ClientKey::from_bytes(&content[end + 1..]).map_err(|_| {
        refused(
            path,
            "is damaged, cut short or made by another version of Fedcipher; ask for the file again, or have new \
             keys made",
        )
    })?;
    Ok((spec.to_owned(), key))
}

/// Who may use a key file at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Nobody: an engine.
    Alone,
    /// Other processes of this kind: an app's workers, whose ledger keeps them apart.
    Workers,
}

/// A key file in use; the lock ends with this object, or with the process.
#[derive(Debug)]
pub struct InUse {
    _marker: File,
}

/// Where the marker of a key file lies: beside the file itself, not beside a link to it.
pub fn marker(path: &Path) -> Result<PathBuf> {
    let mut name = path.canonicalize().map_err(|e| refused(path, e))?.into_os_string();
    name.push(".used");
    Ok(name.into())
}

/// Takes the key file at `path`, which holds `key`, into use with the ledgers of folder `state`.
///
/// Refuses at once where another program uses it, where it has been used with another state folder, and where
/// that folder has lost its ledgers.
pub fn take(path: &Path, key: &ClientKey, state: &Path, sharing: Sharing) -> Result<InUse> {
    let folder = Folder::open(state)?;
    let at = marker(path)?;
    let fresh = Stamp::of(MAGIC, folder.identity(), key, 0);
    let unwritten = |e: std::io::Error| {
        refused(
            path,
            format!(
                "cannot note its use in {}: {e}; this user must be able to write to the folder of the key file (chown it, or \
             move the file)",
                at.display()
            ),
        )
    };
    loop {
        let mut file = match stamp::open(&at, false) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                // Unused as far as this file knows. The ledgers come first: a marker vouches for them.
                ledger::register(key, state)?;
                stamp::publish(&at, &fresh.encode()).map_err(unwritten)?;
                continue;
            }
            Err(e) => return Err(stamp::unopened(&at, &e)),
        };
        let mut bytes = Vec::new();
        (&mut file).take(2 * LEN as u64).read_to_end(&mut bytes).map_err(|e| refused(&at, e))?;
        let Some(found) = Stamp::decode(&bytes, MAGIC) else {
            return Err(refused(&at, format!("is cut or damaged; {CURE}")));
        };
        // The marker of an earlier key at this path may only go when nobody uses that key any more.
        let earlier = !found.is_of(key);
        lock(&file, path, if earlier { Sharing::Alone } else { sharing })?;
        if !os::is_at(&file, &at) {
            continue;
        }
        if earlier {
            ledger::register(key, state)?;
            stamp::replace(&at, &fresh.encode()).map_err(unwritten)?;
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
        ledger::check_registered(key, &folder)?;
        ledger::register(key, state)?;
        return Ok(InUse { _marker: file });
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
