//! Secret files: read only if other users can neither read nor replace them, and written whole or not at all.

use crate::{Error, Result};
#[cfg(feature = "server")]
use fedcipher_core::{name_new, sync_folder as sync_core};
use std::fs::File;
#[cfg(feature = "server")]
use std::io::ErrorKind;
use std::io::Read;
use std::path::Path;
#[cfg(feature = "server")]
use std::path::PathBuf;
#[cfg(feature = "server")]
use std::{fs::OpenOptions, io::Write, os::unix::fs::OpenOptionsExt};

/// Largest file that is read: keys, certificates, requests and a scheme's text are small.
const LARGEST: u64 = 1 << 20;

/// The content of a secret file. Fails if another user could read or replace it. On Windows the folder's access-control
/// list must ensure this.
pub fn read_secret(path: &Path) -> Result<Vec<u8>> {
    let file = open(path)?;
    #[cfg(unix)]
    modes::check_secret(&file, path)?;
    content(file, path)
}

/// The content of a file that others may read but not change, such as the authority's certificate.
pub fn read_trusted(path: &Path) -> Result<Vec<u8>> {
    let file = open(path)?;
    #[cfg(unix)]
    modes::check_trusted(&file, path)?;
    content(file, path)
}

/// The text of a small file that the command line names.
pub fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(content(open(path)?, path)?).map_err(|_| Error::file(path, &"it is not text (UTF-8)"))
}

/// Opens a regular file, and checks it before it is read. Opening a pipe does not block.
fn open(path: &Path) -> Result<File> {
    let mut options = std::fs::OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, modes::NO_WAITING);
    let file = options.read(true).open(path).map_err(|e| Error::file(path, &e))?;
    // Metadata of the open file, not of the path: the file that is checked is the file that is read.
    let about = file.metadata().map_err(|e| Error::file(path, &e))?;
    if !about.is_file() || about.len() > LARGEST {
        return Err(Error::file(path, &format!("it is not a file of at most {LARGEST} bytes; name the file itself")));
    }
    Ok(file)
}

fn content(file: File, path: &Path) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(LARGEST).read_to_end(&mut content).map_err(|e| Error::file(path, &e))?;
    Ok(content)
}

/// Checks the modes and owners of a file, and of every folder and link on its path.
#[cfg(unix)]
pub mod modes {
    use super::{Error, File, Path, Result};
    use fedcipher_core::key_file::replaceable;
    use std::os::unix::fs::MetadataExt;

    pub(super) const NO_WAITING: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    /// The permission bits of a mode.
    const PERMISSIONS: u32 = 0o7777;
    const OTHERS_WRITE: u32 = 0o022;

    pub(super) fn check_secret(file: &File, path: &Path) -> Result<()> {
        let about = file.metadata().map_err(|e| Error::file(path, &e))?;
        let mode = about.mode() & PERMISSIONS;
        // Root may give a service access to a file through its group.
        let by_group = about.uid() == 0 && !rustix::process::geteuid().is_root() && mode & 0o037 == 0;
        if mode & 0o077 != 0 && !by_group {
            let fix = format!("chmod 600 {}", path.display());
            return Err(Error::file(path, &format!("mode {mode:o} lets other users read the key; run: {fix}")));
        }
        check_place(path)
    }

    pub(super) fn check_trusted(file: &File, path: &Path) -> Result<()> {
        let mode = file.metadata().map_err(|e| Error::file(path, &e))?.mode() & PERMISSIONS;
        if mode & OTHERS_WRITE != 0 {
            let fix = format!("chmod go-w {}", path.display());
            return Err(Error::file(path, &format!("mode {mode:o} lets other users change it; run: {fix}")));
        }
        check_place(path)
    }

    /// Fails if another user could replace a file or folder. A folder itself may be sticky, as for a socket.
    pub fn check_place(path: &Path) -> Result<()> {
        match replaceable(path).map_err(|e| Error::file(path, &e))? {
            Some(why) => Err(Error::file(path, &why)),
            None => Ok(()),
        }
    }
}

#[cfg(feature = "server")]
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes a new file of mode 600. Its whole content is on disk when this returns. An existing file is not replaced.
#[cfg(feature = "server")]
pub fn write_secret(path: &Path, content: &[u8]) -> Result<()> {
    let failed = |e: std::io::Error| Error::file(path, &e);
    let folder = folder_of(path);
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let unfinished = folder.join(format!(".{name}.{}", std::process::id()));
    let _ = std::fs::remove_file(&unfinished);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished).map_err(failed)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    if written.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    written.and_then(|()| name_new(&unfinished, path)).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => Error::file(path, &"it exists; choose another folder, or delete it first"),
        _ => failed(e),
    })?;
    sync_folder(folder)
}

/// Makes a folder and the folders above it.
#[cfg(feature = "server")]
pub fn make_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
            Error::file(folder, &"there is a file where a folder is needed; name a new folder")
        }
        _ => Error::file(folder, &format!("{e}; name a folder that this user may write to")),
    })
}

/// A set of new secret files. Unless they are kept, dropping the set removes the files written so far: half a set is
/// useless and would block the next attempt.
#[cfg(feature = "server")]
#[derive(Debug)]
pub struct Draft {
    folder: PathBuf,
    made_folder: bool,
    written: Vec<PathBuf>,
}

#[cfg(feature = "server")]
impl Draft {
    /// A set in `folder`, which is made if it is absent.
    pub fn new(folder: &Path) -> Result<Self> {
        let made_folder = !folder.exists();
        make_folder(folder)?;
        Ok(Draft { folder: folder.to_owned(), made_folder, written: Vec::new() })
    }

    /// Like [`write_secret`].
    pub fn write(&mut self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.folder.join(name);
        write_secret(&path, content)?;
        self.written.push(path);
        Ok(())
    }

    /// Keeps the files.
    pub fn keep(mut self) {
        self.written.clear();
        self.made_folder = false;
    }
}

#[cfg(feature = "server")]
impl Drop for Draft {
    fn drop(&mut self) {
        // A file that cannot be removed stays. The error in progress has the cause.
        for path in &self.written {
            let _ = std::fs::remove_file(path);
        }
        if self.made_folder {
            let _ = std::fs::remove_dir(&self.folder);
        }
    }
}

/// Puts a folder's entries on disk.
#[cfg(feature = "server")]
pub fn sync_folder(folder: &Path) -> Result<()> {
    sync_core(folder).map_err(|e| Error::file(folder, &e))
}

#[cfg(all(test, feature = "server"))]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_that_belong_together_come_all_or_none() {
        let base = std::env::temp_dir().join(format!("fedcipher-draft-{}", std::process::id()));
        let folder = base.join("new");
        std::fs::create_dir_all(&base).unwrap();
        let mut draft = Draft::new(&folder).unwrap();
        draft.write("a", b"1").unwrap();
        assert!(draft.write("a", b"2").unwrap_err().to_string().contains("choose another folder"));
        drop(draft);
        assert!(!folder.exists());
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("theirs"), b"3").unwrap();
        let mut draft = Draft::new(&folder).unwrap();
        draft.write("a", b"1").unwrap();
        assert!(draft.write("theirs", b"2").is_err());
        drop(draft);
        assert_eq!(std::fs::read(folder.join("theirs")).unwrap(), b"3");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        let mut draft = Draft::new(&folder).unwrap();
        draft.write("a", b"1").unwrap();
        draft.keep();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_secret_is_written_once_and_refused_where_others_reach_it() {
        let folder = std::env::temp_dir().join(format!("fedcipher-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("key.pem");
        let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        mode(&folder, 0o700);
        write_secret(&path, b"secret").unwrap();
        assert!(write_secret(&path, b"other").is_err());
        assert_eq!(read_secret(&path).unwrap(), b"secret");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing unfinished is left");
        for open in [0o644, 0o640, 0o606] {
            mode(&path, open);
            assert!(read_secret(&path).unwrap_err().to_string().contains("chmod 600"), "{open:o}");
        }
        mode(&path, 0o600);
        mode(&path, 0o664);
        assert!(read_trusted(&path).unwrap_err().to_string().contains("chmod go-w"));
        mode(&path, 0o600);
        read_trusted(&path).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn attack_30_a_key_is_refused_where_others_write_to_any_folder_above_it() {
        let above = std::env::temp_dir().join(format!("fedcipher-above-{}", std::process::id()));
        let folder = above.join("ours");
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("key.pem");
        let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        write_secret(&path, b"secret").unwrap();
        // A link from our own folder leads through another user's folder.
        let link = std::env::temp_dir().join(format!("fedcipher-above-{}.link", std::process::id()));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let said = || {
            let reads = [&path, &link].into_iter().flat_map(|place| [read_secret(place), read_trusted(place)]);
            reads.map(|read| read.err().map(|error| error.to_string())).collect::<Vec<_>>()
        };
        for (parent, own, refused) in [
            (0o755, 0o700, None),
            (0o755, 0o777, Some(&folder)),
            (0o755, 0o770, Some(&folder)),
            (0o777, 0o700, Some(&above)),
            (0o775, 0o700, Some(&above)),
            (0o1777, 0o700, None),
        ] {
            mode(&above, parent);
            mode(&folder, own);
            let told = refused.map(|folder| format!("chmod go-w {}", folder.display()));
            for said in said() {
                match (&said, &told) {
                    (None, None) => {}
                    (Some(said), Some(told)) => assert!(said.contains(told), "{said}"),
                    other => unreachable!("{parent:o} {own:o}: {other:?}"),
                }
            }
        }
        mode(&folder, 0o1777);
        assert!(said().into_iter().flatten().filter(|said| said.ends_with("(mkdir -m 700)")).count() == 4);
        std::fs::remove_file(&link).unwrap();
        std::fs::remove_dir_all(&above).unwrap();
    }

    #[test]
    fn attack_28_what_is_no_small_file_is_not_read() {
        let folder = std::env::temp_dir().join(format!("fedcipher-kinds-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (pipe, large, link) = (folder.join("pipe"), folder.join("large"), folder.join("link"));
        let user = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, user, 0).unwrap();
        File::create(&large).unwrap().set_len(LARGEST + 1).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        for path in [&pipe, &large, &link, &folder] {
            for said in [
                read_secret(path).unwrap_err().to_string(),
                read_trusted(path).unwrap_err().to_string(),
                read_text(path).unwrap_err().to_string(),
            ] {
                assert!(said.contains("it is not a file of at most"), "{said}");
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
