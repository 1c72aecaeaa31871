//! Linux and macOS.

use super::{Exposed, Unopened};
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::Result;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

const OTHERS: u32 = 0o077;
const WORLD_WRITABLE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// The bytes at `offset`; the file's position is of no matter.
pub fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> Result<()> {
    file.read_exact_at(bytes, offset)
}

/// Writes all of `bytes` at `offset`.
pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> Result<()> {
    file.write_all_at(bytes, offset)
}

/// Opens an existing file; a link is refused.
pub fn open_no_link(path: &Path, write: bool) -> Result<File> {
    OpenOptions::new().read(true).write(write).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC).open(path)
}

/// Makes a file that only its owner can read.
pub fn create_private(path: &Path) -> Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Makes a folder that only its owner can enter.
pub fn create_private_folder(path: &Path) -> Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Puts a folder's entries on disk.
pub fn sync_folder(path: &Path) -> Result<()> {
    File::open(path)?.sync_all()
}

/// What stands against a secret file with this metadata.
pub fn exposed_file(about: &Metadata) -> Option<Exposed> {
    (about.mode() & OTHERS != 0).then(|| Exposed::Readable(about.mode() & 0o7777))
}

/// What stands against a secret file in a folder with this metadata.
pub fn exposed_folder(about: &Metadata) -> Option<Exposed> {
    let sticky = about.mode() & STICKY != 0;
    (about.mode() & WORLD_WRITABLE != 0).then_some(Exposed::Replaceable { sticky })
}

/// Whether the open `file` is the one at `path`, not followed where that is a link.
pub fn is_at(file: &File, path: &Path) -> bool {
    let identity = |m: Metadata| (m.dev(), m.ino());
    file.metadata().map(identity).ok() == path.symlink_metadata().map(identity).ok()
}

/// What an error of [`open_no_link`] means.
pub fn unopened(error: &std::io::Error) -> Unopened {
    match error.raw_os_error() {
        Some(libc::ELOOP) => Unopened::Link,
        Some(libc::EMFILE) => Unopened::TooMany,
        _ => Unopened::Other,
    }
}
