//! Windows. A file's access-control list, inherited from its folder, decides who may read it. The user's own profile
//! keeps other users out. This module does not check that a key lies in such a folder.

use super::{Exposed, Unopened};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::windows::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// `FILE_FLAG_OPEN_REPARSE_POINT`: opens the link itself, not its target.
const OPEN_LINK: u32 = 0x0020_0000;
/// `ERROR_TOO_MANY_OPEN_FILES`.
const TOO_MANY: i32 = 4;

/// The bytes at `offset`; moves the file's position.
pub fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> Result<()> {
    while !bytes.is_empty() {
        match file.seek_read(bytes, offset)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => (bytes, offset) = (&mut bytes[n..], offset + n as u64),
        }
    }
    Ok(())
}

/// Writes all of `bytes` at `offset`; moves the file's position.
pub fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> Result<()> {
    while !bytes.is_empty() {
        match file.seek_write(bytes, offset)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            n => (bytes, offset) = (&bytes[n..], offset + n as u64),
        }
    }
    Ok(())
}

/// Opens an existing file; a link is refused.
pub fn open_no_link(path: &Path, write: bool) -> Result<File> {
    let file = OpenOptions::new().read(true).write(write).custom_flags(OPEN_LINK).open(path)?;
    if file.metadata()?.file_type().is_symlink() {
        return Err(Error::new(ErrorKind::InvalidInput, Link));
    }
    Ok(file)
}

/// The error of [`open_no_link`] for a link.
#[derive(Debug, thiserror::Error)]
#[error("a symbolic link")]
struct Link;

/// Makes a file with the access-control list of its folder.
pub fn create_private(path: &Path) -> Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Makes a folder with the access-control list of the one above.
pub fn create_private_folder(path: &Path) -> Result<()> {
    std::fs::create_dir(path)
}

/// Nothing to do: a folder cannot be flushed here, NTFS keeps a journal of names.
pub fn sync_folder(_: &Path) -> Result<()> {
    Ok(())
}

/// Gives the file at `draft` the name `path`, which nothing has yet.
pub fn name_new(draft: &Path, path: &Path) -> Result<()> {
    let linked = std::fs::hard_link(draft, path);
    std::fs::remove_file(draft)?;
    linked
}

/// Files have no modes on Windows.
pub fn exposed_file(_: &Metadata) -> Option<Exposed> {
    None
}

/// Files have no groups on Windows.
pub fn group_to_trust(_: &Metadata) -> Option<u32> {
    None
}

/// Files have no modes on Windows.
pub fn exposed_path(_: &Path) -> Result<Option<(PathBuf, Exposed)>> {
    Ok(None)
}

/// Files have no modes on Windows.
pub fn exposed_folder(_: &Path) -> Result<Option<(PathBuf, Exposed)>> {
    Ok(None)
}

/// Opens a file to read. Follows a link. Pipes and devices have no paths among files here.
pub fn open_file(path: &Path) -> Result<File> {
    File::open(path)
}

/// Whether the open `file` is the one at `path`.
pub fn is_at(file: &File, path: &Path) -> bool {
    let open = file.try_clone().and_then(same_file::Handle::from_file);
    open.ok().is_some_and(|open| same_file::Handle::from_path(path).is_ok_and(|found| found == open))
}

/// The meaning of an error of [`open_no_link`].
pub fn unopened(error: &Error) -> Unopened {
    if error.get_ref().is_some_and(|inner| inner.is::<Link>()) {
        Unopened::Link
    } else if error.raw_os_error() == Some(TOO_MANY) {
        Unopened::TooMany
    } else {
        Unopened::Other
    }
}
