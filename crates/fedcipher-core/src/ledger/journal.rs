//! A log of records of any length. The folder's index counts the records. A journal can be rewritten shorter.

use super::folder::{Folder, Indexed, LedgerFile, check_header};
use super::header::{self, LEN, LedgerHeader};
use super::slots::Newest;
use super::{disk, failed, locked, lost};
use crate::{Result, os};
use std::fs::File;
use std::path::Path;

/// `header | before u64 | last u64 | kept u64 | checksum`: the number of records when the file was made, the checksum
/// that the index has of the last one, and the number of records that replace all of them.
const HEAD: usize = LEN + 32;
/// Bytes before each record: `bytes u64 | checksum`. The checksum covers the header and the record's number too.
const FRAME: usize = 16;
/// Added to the numbers of kept records.
const KEPT: u64 = 1 << 63;

/// A journal of at least this many bytes is rewritten if that makes it much shorter.
const SHORT: u64 = 1 << 16;

#[derive(Debug)]
pub struct Journal {
    place: LedgerFile,
}

/// The position up to which an object has read a journal.
#[derive(Debug, Default, Clone, Copy)]
pub struct Position {
    /// The `before` of the file that was read.
    before: Option<u64>,
    count: u64,
    last: u64,
    end: u64,
    /// The offset after the kept records.
    kept: u64,
}

/// A journal that is locked, read to its end, and consistent with the index.
pub struct Held<'a> {
    file: File,
    header: LedgerHeader,
    path: &'a Path,
    indexed: Indexed<'a>,
}

fn head(header: &LedgerHeader, before: u64, last: u64, kept: u64) -> Vec<u8> {
    let mut out =
        [&header.encode()[..], &before.to_le_bytes(), &last.to_le_bytes(), &kept.to_le_bytes(), &[0; 8]].concat();
    header::write_checksum(&mut out);
    out
}

/// The checksum of a record in its frame and in the index.
fn checksum(header: &LedgerHeader, number: u64, body: &[u8]) -> u64 {
    let mut hash = blake3::Hasher::new();
    hash.update(&header.encode()).update(&number.to_le_bytes()).update(body);
    u64::from_le_bytes(hash.finalize().as_bytes().first_chunk().copied().unwrap_or_default())
}

fn framed(header: &LedgerHeader, number: u64, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u64).to_le_bytes()[..], &checksum(header, number, body).to_le_bytes(), body].concat()
}

/// The whole record with this number at the front of `bytes`: its checksum and its body.
fn record<'a>(header: &LedgerHeader, number: u64, bytes: &'a [u8]) -> Option<(u64, &'a [u8])> {
    let length = usize::try_from(header::word(bytes, 0)?).ok()?;
    let body = bytes.get(FRAME..FRAME.checked_add(length)?)?;
    let sum = header::word(bytes, 8)?;
    (sum == checksum(header, number, body)).then_some((sum, body))
}

impl Journal {
    /// The journal of `header`; it is made if the folder never had it.
    pub fn open(folder: &Folder, suffix: &str, header: LedgerHeader) -> Result<Self> {
        Ok(Journal { place: folder.ensure(suffix, header, |header| head(header, 0, 0, 0))? })
    }

    /// Locks the journal and reads the records since `position`. `take` receives each record. It receives `None` if the
    /// following records replace all earlier ones.
    pub fn hold(&self, position: &mut Position, take: &mut dyn FnMut(Option<&[u8]>) -> Result<()>) -> Result<Held<'_>> {
        let held = self.read(position, take);
        if held.is_err() {
            // The next read starts at the beginning, because it is unknown how much `take` has used.
            position.before = None;
        }
        held
    }

    fn read(&self, position: &mut Position, take: &mut dyn FnMut(Option<&[u8]>) -> Result<()>) -> Result<Held<'_>> {
        let path = self.place.path.as_path();
        let io = |e: std::io::Error| failed(path, e);
        let file = loop {
            let file = locked(path)?;
            // Another process may have replaced the file while this one waited for the lock.
            if os::is_at(&file, path) {
                break file;
            }
        };
        let mut bytes = [0u8; HEAD];
        os::read_exact_at(&file, &mut bytes, 0).map_err(|_| lost(path, "has been cut short"))?;
        let header = LedgerHeader::decode(&bytes[..LEN], self.place.header.magic);
        let header = header.ok_or_else(|| lost(path, "does not begin as a ledger does"))?;
        check_header(&header, path, &self.place.header)?;
        let word = |at| header::word(&bytes, at).unwrap_or_default();
        let (before, last, kept) = (word(LEN), word(LEN + 8), word(LEN + 16));
        if bytes[..] != head(&header, before, last, kept) {
            return Err(lost(path, "begins with what is damaged"));
        }
        let mut held = Held { file, header, path, indexed: self.place.indexed()? };
        if position.before != Some(before) {
            // The process that replaced the file may have ended before the name was durable.
            header::sync_parent(path).map_err(io)?;
            *position = Position { before: Some(before), count: before, last, end: HEAD as u64, kept: 0 };
            take(None)?;
            held.read_kept(kept, position, take)?;
        }
        held.read_on(position, take)?;
        Ok(held)
    }

    /// Notes that the index is durable up to `position`, through the sync of another entry.
    pub fn note_durable(&self, position: &Position) {
        self.place.note_durable(position.count);
    }
}

impl Held<'_> {
    fn rest(&self, from: u64) -> Result<Vec<u8>> {
        let io = |e: std::io::Error| failed(self.path, e);
        let end = self.file.metadata().map_err(io)?.len();
        let Some(length) = end.checked_sub(from) else { return Err(lost(self.path, "has been cut short")) };
        let mut bytes = vec![0; length as usize];
        os::read_exact_at(&self.file, &mut bytes, from).map_err(io)?;
        Ok(bytes)
    }

    fn read_kept(
        &self,
        kept: u64,
        position: &mut Position,
        take: &mut dyn FnMut(Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let bytes = self.rest(position.end)?;
        let mut rest = bytes.as_slice();
        for number in 0..kept {
            let found = record(&self.header, KEPT | number, rest);
            let (_, body) = found.ok_or_else(|| lost(self.path, &format!("record {number} in it is damaged")))?;
            take(Some(body))?;
            rest = rest.get(FRAME + body.len()..).unwrap_or_default();
        }
        position.end += (bytes.len() - rest.len()) as u64;
        position.kept = position.end;
        Ok(())
    }

    fn read_on(&mut self, position: &mut Position, take: &mut dyn FnMut(Option<&[u8]>) -> Result<()>) -> Result<()> {
        let bytes = self.rest(position.end)?;
        let mut rest = bytes.as_slice();
        while let Some((sum, body)) = record(&self.header, position.count, rest) {
            take(Some(body))?;
            (position.count, position.last) = (position.count + 1, sum);
            rest = rest.get(FRAME + body.len()..).unwrap_or_default();
        }
        position.end += (bytes.len() - rest.len()) as u64;
        self.indexed.check(&self.file, Newest::of(position.count, position.last))?;
        // The remainder of a write that a crash cut off. No answer depended on it.
        if !rest.is_empty() {
            disk::cut(&self.file, position.end).map_err(|e| failed(self.path, e))?;
        }
        Ok(())
    }

    /// Appends a record, durably. [`Self::count`] then tells the index.
    pub fn append(&mut self, position: &mut Position, body: &[u8]) -> Result<()> {
        let bytes = framed(&self.header, position.count, body);
        disk::write(&self.file, &bytes, position.end)
            .and_then(|()| disk::sync(&self.file))
            .map_err(|e| failed(self.path, e))?;
        position.last = checksum(&self.header, position.count, body);
        position.count += 1;
        position.end += bytes.len() as u64;
        Ok(())
    }

    /// Updates the index. A later sync of the index makes the update durable.
    pub fn count(&mut self, position: &Position) -> Result<()> {
        self.indexed.write(Newest::of(position.count, position.last))
    }

    /// Updates the index, durably.
    pub fn settle(&mut self, position: &Position) -> Result<()> {
        self.indexed.advance(Newest::of(position.count, position.last))
    }

    /// Whether the file has grown enough that rewriting may be worthwhile.
    pub fn is_long(&self, position: &Position) -> bool {
        position.end > SHORT && position.end / 2 > position.kept
    }

    /// Replaces all records by `kept`. The replaced records stay counted.
    pub fn rewrite(self, position: &mut Position, kept: &[Vec<u8>]) -> Result<()> {
        let mut content = head(&self.header, position.count, position.last, kept.len() as u64);
        for (number, body) in kept.iter().enumerate() {
            content.extend(framed(&self.header, KEPT | number as u64, body));
        }
        position.before = None;
        header::replace(self.path, &content).map_err(|e| failed(self.path, e))
    }
}
