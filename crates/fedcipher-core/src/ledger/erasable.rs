//! Records of one length, written in place. To overwrite a record erases it as far as the file system does: a file
//! system or disk that writes elsewhere, a snapshot and a backup keep the old bytes.

use super::{Folder, disk, failed, header};
use crate::keys::ClientKey;
use crate::wire::hex;
use crate::{Result, os};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Bytes of a record. A power of two: none crosses a disk sector.
pub const RECORD: usize = 128;
/// Bytes of a record's content. The other bytes are its checksum.
pub const CONTENT: usize = RECORD - 8;

pub type Content = Zeroizing<[u8; CONTENT]>;

/// A file of records. An empty, torn or missing record reads as zeros.
#[derive(Debug)]
pub struct Erasable {
    path: PathBuf,
    records: usize,
}

impl Erasable {
    /// The file of `key` in folder `state`, with this number of records.
    pub fn of(key: &ClientKey, state: &Path, suffix: &str, records: usize) -> Result<Self> {
        let folder = Folder::open(state)?;
        Ok(Erasable { path: folder.path().join(format!("{}-{}.{suffix}", hex(&key.tag.key_id), key.client)), records })
    }

    /// The file, locked against other processes while the handle lives.
    fn locked(&self) -> Result<File> {
        let io = |e: std::io::Error| failed(&self.path, e);
        let file = loop {
            match header::open(&self.path, true) {
                Ok(file) => break file,
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    header::publish(&self.path, &[]).map_err(io)?;
                }
                Err(e) => return Err(header::unopened(&self.path, &e)),
            }
        };
        file.lock().map_err(io)?;
        Ok(file)
    }

    /// Applies `change` to all records. If `durable`, the result is on disk when this returns; otherwise once the
    /// system has written it.
    pub fn change<T>(&self, durable: bool, change: impl FnOnce(&mut [Content]) -> Result<T>) -> Result<T> {
        let file = self.locked()?;
        let io = |e: std::io::Error| failed(&self.path, e);
        // Allocated at full size: a growing list would leave unwiped copies behind.
        let (mut before, mut after) = (Vec::with_capacity(self.records), Vec::with_capacity(self.records));
        for at in 0..self.records {
            before.push(read(&file, at).map_err(io)?);
            after.push(before[at].0.clone());
        }
        let made = change(&mut after)?;
        // A damaged record may still hold a secret, so it is written again.
        let changed = |at: &usize| before[*at].1 || before[*at].0 != after[*at];
        let changed: Vec<usize> = (0..self.records).filter(changed).collect();
        for at in &changed {
            write(&file, *at, &after[*at]).map_err(io)?;
        }
        if durable && !changed.is_empty() {
            disk::sync(&file).map_err(io)?;
        }
        Ok(made)
    }
}

/// A record, and whether it is damaged.
fn read(file: &File, at: usize) -> std::io::Result<(Content, bool)> {
    let mut bytes = Zeroizing::new([0; RECORD]);
    let mut content = Zeroizing::new([0; CONTENT]);
    match os::read_exact_at(file, &mut *bytes, (at * RECORD) as u64) {
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok((content, false)),
        other => other?,
    }
    let mut sealed = bytes.clone();
    header::write_checksum(&mut *sealed);
    if sealed == bytes {
        content.copy_from_slice(&bytes[..CONTENT]);
    }
    Ok((content, sealed != bytes && bytes.iter().any(|byte| *byte != 0)))
}

fn write(file: &File, at: usize, content: &Content) -> std::io::Result<()> {
    let mut bytes = Zeroizing::new([0; RECORD]);
    bytes[..CONTENT].copy_from_slice(&**content);
    if content.iter().any(|byte| *byte != 0) {
        header::write_checksum(&mut *bytes);
    }
    disk::write(file, &*bytes, (at * RECORD) as u64)
}
