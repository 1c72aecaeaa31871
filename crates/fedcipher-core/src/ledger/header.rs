//! The header of every file in a state folder, and the creation of such files.

use crate::keys::ClientKey;
use crate::os::{self, Unopened};
use crate::prf::random_bytes;
use crate::wire::hex;
use crate::{ClientId, Error, Result};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Bytes of a header.
pub const LEN: usize = 64;

pub type Magic = [u8; 8];

/// `magic | folder identity | key id | client u32 | 0 u32 | born u64 | CRC-64`: names the owner of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerHeader {
    pub magic: Magic,
    pub folder: [u8; 16],
    pub key_id: [u8; 16],
    pub client: ClientId,
    /// Rounds begun before this time are rejected, unix seconds; 0 if the key was known to be unused.
    pub born: u64,
}

impl LedgerHeader {
    pub fn of(magic: Magic, folder: [u8; 16], key: &ClientKey, born: u64) -> Self {
        LedgerHeader { magic, folder, key_id: key.tag.key_id, client: key.client, born }
    }

    /// Whether both name the same file of the same key; the date of birth may differ.
    pub fn same_file(&self, other: &LedgerHeader) -> bool {
        LedgerHeader { born: 0, ..*self } == LedgerHeader { born: 0, ..*other }
    }

    pub fn is_of(&self, key: &ClientKey) -> bool {
        (self.key_id, self.client) == (key.tag.key_id, key.client)
    }

    pub fn encode(&self) -> [u8; LEN] {
        let mut out = [0u8; LEN];
        out[..8].copy_from_slice(&self.magic);
        out[8..24].copy_from_slice(&self.folder);
        out[24..40].copy_from_slice(&self.key_id);
        out[40..44].copy_from_slice(&self.client.to_le_bytes());
        out[48..56].copy_from_slice(&self.born.to_le_bytes());
        write_checksum(&mut out);
        out
    }

    /// Returns `None` unless `bytes` are an undamaged header of `magic`.
    pub fn decode(bytes: &[u8], magic: Magic) -> Option<Self> {
        let header = LedgerHeader {
            magic,
            folder: bytes.get(8..24)?.try_into().ok()?,
            key_id: bytes.get(24..40)?.try_into().ok()?,
            client: ClientId::from_le_bytes(bytes.get(40..44)?.try_into().ok()?),
            born: word(bytes, 48)?,
        };
        (bytes == header.encode()).then_some(header)
    }
}

/// Writes the checksum of all other bytes into the last eight.
pub fn write_checksum(bytes: &mut [u8]) {
    if let Some((content, sum)) = bytes.split_last_chunk_mut::<8>() {
        *sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, content).to_le_bytes();
    }
}

/// The little-endian word at byte `at`.
pub fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Opens an existing file of the state folder. Fails for a symbolic link, which could lead to another user's file.
pub fn open(path: &Path, write: bool) -> std::io::Result<File> {
    os::open_no_link(path, write)
}

/// Makes `path` with `content`, whole and durable or not at all. Returns false if the file exists already.
pub fn publish(path: &Path, content: &[u8]) -> std::io::Result<bool> {
    let draft = draft(path, content)?;
    let made = match os::name_new(&draft, path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(e),
    };
    sync_parent(path)?;
    made
}

/// Fails if no file can be made at `path`. It tries with another file beside it, and removes that.
pub fn try_to_make(path: &Path) -> std::io::Result<()> {
    std::fs::remove_file(draft(path, b"")?)
}

/// Like [`publish`], but replaces an existing file.
pub fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    std::fs::rename(draft(path, content)?, path)?;
    sync_parent(path)
}

fn draft(path: &Path, content: &[u8]) -> std::io::Result<PathBuf> {
    let salt = random_bytes::<8>().map_err(std::io::Error::other)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.{}", hex(salt.as_slice())));
    let mut file = os::create_private(&draft)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    if written.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    written.map(|()| draft)
}

/// Makes a file's name durable, by syncing its folder.
pub fn sync_parent(path: &Path) -> std::io::Result<()> {
    if cfg!(test) {
        // Tests simulate power cuts themselves.
        return Ok(());
    }
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => os::sync_folder(folder),
        _ => os::sync_folder(Path::new(".")),
    }
}

/// Makes a folder for its owner only, and the folders above it, durably.
pub fn make_folder(path: &Path) -> Result<()> {
    let failed =
        |e: std::io::Error| super::failed(path, format!("{e}; it must be a folder that this user may write to"));
    let missing: Vec<&Path> = path.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists()).collect();
    for folder in missing.into_iter().rev() {
        match os::create_private_folder(folder) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(failed(e)),
            _ => sync_parent(folder).map_err(failed)?,
        }
    }
    if path.is_dir() { Ok(()) } else { Err(failed(ErrorKind::NotADirectory.into())) }
}

/// The error for a file that cannot be opened, with what to do about it.
pub fn unopened(path: &Path, e: &std::io::Error) -> Error {
    let fix = match os::unopened(e) {
        Unopened::Link => "is a symbolic link, which is not followed; put the file itself there".to_owned(),
        Unopened::TooMany => format!("{e}; raise the limit of open files (`ulimit -n`)"),
        Unopened::Other => e.to_string(),
    };
    super::failed(path, fix)
}
