//! Secrets on disk: read only where nobody else can read or replace them, written whole or not at all.

use crate::{Error, Result};
use std::fs::File;
#[cfg(feature = "server")]
use std::io::ErrorKind;
use std::io::Read;
#[cfg(unix)]
use std::os::unix::fs::MetadataExt;
use std::path::Path;
#[cfg(feature = "server")]
use std::path::PathBuf;
#[cfg(feature = "server")]
use std::{fs::OpenOptions, io::Write, os::unix::fs::OpenOptionsExt};

/// Bits of a mode that concern permissions.
#[cfg(unix)]
const PERMISSIONS: u32 = 0o7777;

/// A secret file's content. Refused where another user could read it, or put his own in its place; on Windows that
/// is left to the folder's access-control list.
pub fn read_secret(path: &Path) -> Result<Vec<u8>> {
    let failed = |e: std::io::Error| Error::file(path, &e);
    let mut file = File::open(path).map_err(failed)?;
    #[cfg(unix)]
    check_private(&file, path)?;
    let mut content = Vec::new();
    file.read_to_end(&mut content).map_err(failed)?;
    Ok(content)
}

#[cfg(unix)]
fn check_private(file: &File, path: &Path) -> Result<()> {
    // Of the open file, not of the path: what is checked is what is read.
    let about = file.metadata().map_err(|e| Error::file(path, &e))?;
    let (mode, owner, own) = (about.mode() & PERMISSIONS, about.uid(), rustix::process::geteuid().as_raw());
    // A file of root's may be handed to a service by its group.
    let by_group = owner == 0 && own != 0 && mode & 0o037 == 0;
    if mode & 0o077 != 0 && !by_group {
        let cure = format!("chmod 600 {}", path.display());
        return Err(Error::file(path, &format!("mode {mode:o} lets other users read the key; run: {cure}")));
    }
    if own != 0 && owner != own && owner != 0 {
        let reason = format!("it belongs to user {owner}, who can change it; make user {own} or root its owner");
        return Err(Error::file(path, &reason));
    }
    let folder = folder_of(path);
    let open = std::fs::metadata(folder).map_err(|e| Error::file(folder, &e))?.mode() & PERMISSIONS;
    if open & 0o002 != 0 {
        let cure = format!("chmod o-w {}, or move the key to a folder of its own", folder.display());
        let reason = format!("its folder's mode {open:o} lets other users replace the key; run: {cure}");
        return Err(Error::file(path, &reason));
    }
    Ok(())
}

#[cfg(unix)]
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A new file of mode 600, on disk with all its content when this returns; an existing one is not replaced.
#[cfg(feature = "server")]
pub fn write_secret(path: &Path, content: &[u8]) -> Result<()> {
    let failed = |e: std::io::Error| Error::file(path, &e);
    let folder = folder_of(path);
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let unfinished = folder.join(format!(".{name}.{}", std::process::id()));
    let _ = std::fs::remove_file(&unfinished);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished).map_err(failed)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    // A link, unlike a rename, does not replace what is there.
    let named = written.and_then(|()| std::fs::hard_link(&unfinished, path));
    let _ = std::fs::remove_file(&unfinished);
    named.map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => Error::file(path, &"it exists; choose another folder, or delete it first"),
        _ => failed(e),
    })?;
    sync_folder(folder)
}

/// New secret files that belong together: until they are kept, an end takes those that are there away again. Half of
/// them would be of no use, and in the way of the next try.
#[cfg(feature = "server")]
#[derive(Debug)]
pub struct Draft {
    folder: PathBuf,
    made_folder: bool,
    written: Vec<PathBuf>,
}

#[cfg(feature = "server")]
impl Draft {
    /// In `folder`, which is made where it is absent.
    pub fn new(folder: &Path) -> Result<Self> {
        let made_folder = !folder.exists();
        std::fs::create_dir_all(folder).map_err(|e| Error::file(folder, &e))?;
        Ok(Draft { folder: folder.to_owned(), made_folder, written: Vec::new() })
    }

    /// As [`write_secret`].
    pub fn write(&mut self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.folder.join(name);
        write_secret(&path, content)?;
        self.written.push(path);
        Ok(())
    }

    /// They stay.
    pub fn keep(mut self) {
        self.written.clear();
        self.made_folder = false;
    }
}

#[cfg(feature = "server")]
impl Drop for Draft {
    fn drop(&mut self) {
        // Whatever cannot be removed stays, and the error under way says why there was an end.
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
    File::open(folder).and_then(|f| f.sync_all()).map_err(|e| Error::file(folder, &e))
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
        mode(&folder, 0o777);
        assert!(read_secret(&path).unwrap_err().to_string().contains("chmod o-w"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
