//! Linux and macOS.

use super::{Exposed, TRUSTED_GROUP, Unopened};
use std::ffi::OsString;
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

const OTHERS: u32 = 0o077;
/// Permission bits of the group, and of others.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;
const GROUP_READS: u32 = 0o040;
const GROUP_WRITES: u32 = 0o020;
const MAX_LINKS: u32 = 40;

/// The bytes at `offset`; the file's position is of no matter.
pub fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> Result<()> {
    file.read_exact_at(bytes, offset)
}

/// Writes all of `bytes` at `offset`.
pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> Result<()> {
    file.write_all_at(bytes, offset)
}

/// Opens an existing file. Refuses a link, a folder, a device and a pipe.
pub fn open_no_link(path: &Path, write: bool) -> Result<File> {
    open_regular(path, write, libc::O_NOFOLLOW)
}

/// Opens a file to read. Follows a link. Refuses a folder, a device and a pipe.
pub fn open_file(path: &Path) -> Result<File> {
    open_regular(path, false, 0)
}

fn open_regular(path: &Path, write: bool, flags: i32) -> Result<File> {
    // Without O_NONBLOCK the opening of a pipe waits for its other end.
    let flags = flags | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).write(write).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(Error::new(ErrorKind::InvalidInput, "it is a folder, a device or a pipe, and not a file"))
}

/// Makes a file that only its owner can read.
pub fn create_private(path: &Path) -> Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Makes a folder that only its owner can enter.
pub fn create_private_folder(path: &Path) -> Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Puts a folder's entries on disk. Where the file system syncs files only (FUSE, CIFS), everything is synced.
pub fn sync_folder(path: &Path) -> Result<()> {
    match File::open(path)?.sync_all() {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EBADF | libc::ENOSYS | libc::EOPNOTSUPP)) => {
            rustix::fs::sync();
            Ok(())
        }
        synced => synced,
    }
}

/// Gives the file at `draft` the name `path`, which nothing has yet. Where the file system has no hard links (exFAT),
/// by a rename that replaces nothing.
pub fn name_new(draft: &Path, path: &Path) -> Result<()> {
    let linked = std::fs::hard_link(draft, path);
    match linked.as_ref().map_err(Error::raw_os_error) {
        Err(Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS | libc::EMLINK)) => rename_new(draft, path),
        _ => {
            std::fs::remove_file(draft)?;
            linked
        }
    }
}

#[cfg(any(target_os = "linux", target_vendor = "apple"))]
fn rename_new(draft: &Path, path: &Path) -> Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, draft, CWD, path, RenameFlags::NOREPLACE).map_err(|e| {
        let _ = std::fs::remove_file(draft);
        match Error::from(e) {
            e if e.kind() == ErrorKind::AlreadyExists => e,
            e => no_new_names(&e),
        }
    })
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn rename_new(draft: &Path, _: &Path) -> Result<()> {
    let _ = std::fs::remove_file(draft);
    Err(no_new_names(&ErrorKind::Unsupported.into()))
}

fn no_new_names(e: &Error) -> Error {
    Error::new(
        e.kind(),
        format!("its file system has neither hard links nor a rename that replaces nothing ({e}); use a local disk"),
    )
}

/// The objection to a secret file with this metadata.
pub fn exposed_file(about: &Metadata) -> Option<Exposed> {
    (rights(about, OTHERS, GROUP_READS) != 0).then(|| Exposed::Readable(about.mode() & 0o7777))
}

/// The `rights` that other users have, except those of a group whose members are trusted.
fn rights(about: &Metadata, rights: u32, of_group: u32) -> u32 {
    let trusted = about.mode() & of_group != 0 && trusts(about.gid());
    about.mode() & rights & !if trusted { of_group } else { 0 }
}

/// Whether the user has said that members of this group are taken for him; the process must be in it.
fn trusts(group: u32) -> bool {
    let named = std::env::var(TRUSTED_GROUP).unwrap_or_default();
    (named == "own" || named.parse() == Ok(group)) && is_of(group)
}

fn is_of(group: u32) -> bool {
    let more = rustix::process::getgroups().unwrap_or_default();
    more.iter().chain([&rustix::process::getegid()]).any(|own| own.as_raw() == group)
}

/// The group that alone stands between a file or folder and its use, where this process is in it and another user, or a
/// mount, has the mode in his hands.
pub fn group_to_trust(about: &Metadata) -> Option<u32> {
    let others = about.mode() & 0o7;
    (about.mode() & (GROUP_READS | GROUP_WRITES) != 0 && others == 0 && is_of(about.gid())).then(|| about.gid())
}

/// The first folder, link or file on the path of the secret file `path` through which another user could replace the
/// file, and how.
///
/// As in ssh, everything on the path, including the path of links, must belong to this user or root, and other users
/// must
/// not be able to write to the folders. In a sticky folder, such as `/tmp`, items of this user or root cannot be
/// replaced:
/// the path may continue from a folder or a link there, but a file there is rejected.
pub fn exposed_path(path: &Path) -> Result<Option<(PathBuf, Exposed)>> {
    let own = rustix::process::geteuid().as_raw();
    let whole = std::path::absolute(path)?;
    let mut left: Vec<OsString> = steps(&whole);
    let (mut at, mut sticky, mut links) = (PathBuf::new(), false, 0);
    while let Some(step) = left.pop() {
        if step == ".." {
            at.pop();
            continue;
        }
        let found = at.join(&step);
        let about = found.symlink_metadata()?;
        let owner = about.uid();
        if owner != own && owner != 0 {
            return Ok(Some((found, Exposed::OfUser(owner))));
        }
        if about.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(Error::from_raw_os_error(libc::ELOOP));
            }
            left.extend(steps(&found.read_link()?));
            continue;
        }
        if !about.is_dir() {
            return Ok(sticky.then_some((at, Exposed::Sticky)));
        }
        let others_write = rights(&about, OTHERS_WRITE, GROUP_WRITES) != 0;
        sticky = about.mode() & STICKY != 0 && others_write;
        if others_write && !sticky {
            return Ok(Some((found, Exposed::Writable(about.mode() & 0o7777))));
        }
        at = found;
    }
    Ok(None)
}

/// The same of the folder at `path`, and whether another user may put files into it: a sticky folder is refused too.
pub fn exposed_folder(path: &Path) -> Result<Option<(PathBuf, Exposed)>> {
    match exposed_path(path)? {
        None if rights(&path.metadata()?, OTHERS_WRITE, GROUP_WRITES) != 0 => {
            Ok(Some((path.to_owned(), Exposed::Sticky)))
        }
        found => Ok(found),
    }
}

/// The parts of a path, the last first.
fn steps(path: &Path) -> Vec<OsString> {
    path.components().rev().filter(|c| *c != Component::CurDir).map(|c| c.as_os_str().to_owned()).collect()
}

/// Whether the open `file` is the one at `path`, not followed where that is a link.
pub fn is_at(file: &File, path: &Path) -> bool {
    let identity = |m: Metadata| (m.dev(), m.ino());
    file.metadata().map(identity).ok() == path.symlink_metadata().map(identity).ok()
}

/// The meaning of an error of [`open_no_link`].
pub fn unopened(error: &std::io::Error) -> Unopened {
    match error.raw_os_error() {
        Some(libc::ELOOP) => Unopened::Link,
        Some(libc::EMFILE) => Unopened::TooMany,
        _ => Unopened::Other,
    }
}
