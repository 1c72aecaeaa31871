//! Checks of the authority's store at the start, so that damage is found before it affects a caller.

use crate::error::{Error, Result};
use fedcipher_core::statement::sha256;
use rusqlite::{Connection, OptionalExtension};
use std::path::Path;
use zeroize::Zeroizing;

/// The name of the store in the authority's folder.
pub const FILE: &str = "authority.db";
/// The name of the server's key in `digests`.
pub const SERVER: &str = "";

/// Checks the structure of the SQLite file.
pub fn check_structure(store: &Connection, folder: &Path) -> Result<()> {
    let found = store.query_row("PRAGMA quick_check(1)", [], |r| r.get::<_, String>(0));
    match found.map_err(|error| unread(folder, &error))?.as_str() {
        "ok" => Ok(()),
        wrong => Err(damaged(folder, &wrong)),
    }
}

/// Checks the digests of keys and the list of revoked parties. Damage to these does not show in the file's structure.
pub fn check_content(store: &Connection, folder: &Path) -> Result<()> {
    let wrong = |error: rusqlite::Error| unread(folder, &error);
    // A transaction, so that all rows are of one state while other processes write.
    let tx = store.unchecked_transaction()?;
    let mut query = tx.prepare(
        "SELECT epoch, device, digest, CASE device WHEN ?1 THEN (SELECT server_key FROM epochs e WHERE e.epoch = d.epoch)
         ELSE (SELECT key FROM keys k WHERE k.epoch = d.epoch AND k.device = d.device) END FROM digests d",
    )?;
    let mut rows = query.query([SERVER]).map_err(wrong)?;
    while let Some(row) = rows.next().map_err(wrong)? {
        let (epoch, device): (u64, String) = (row.get(0).map_err(wrong)?, row.get(1).map_err(wrong)?);
        let digest: Vec<u8> = row.get(2).map_err(wrong)?;
        let key = Zeroizing::new(row.get::<_, Option<Vec<u8>>>(3).map_err(wrong)?.unwrap_or_default());
        if digest != sha256(&[&key]) {
            let whose = if device == SERVER { "the server".to_owned() } else { format!("device {device}") };
            return Err(damaged(folder, &format!("the key of {whose} in epoch {epoch}")));
        }
    }
    let back =
        "SELECT name FROM parties WHERE revoked != 1 AND name IN (SELECT party FROM audit WHERE action = 'revoke')";
    if let Some(name) = tx.query_row(back, [], |r| r.get::<_, String>(0)).optional().map_err(wrong)? {
        return Err(damaged(folder, &format!("{name} has been revoked and is not any more")));
    }
    Ok(())
}

/// The error for a store that cannot be read. A full disk is not a reason to restore a backup, which would lose epochs.
pub fn unread(folder: &Path, error: &rusqlite::Error) -> Error {
    use rusqlite::ErrorCode::{
        CannotOpen, DatabaseBusy, DatabaseLocked, DiskFull, OutOfMemory, PermissionDenied, ReadOnly, SystemIoFailure,
    };
    if lacks_shared_map(error) {
        return Error::Store(format!(
            "{} cannot be used here: its file system has no maps that processes share ({error}), which the store's log \
             needs. Move the authority's folder to a local disk",
            folder.join(FILE).display()
        ));
    }
    match error.sqlite_error_code() {
        Some(
            CannotOpen | DatabaseBusy | DatabaseLocked | DiskFull | OutOfMemory | PermissionDenied | ReadOnly
            | SystemIoFailure,
        ) => Error::Store(format!(
            "{} cannot be read or written ({error}); see that its disk has room, works and may be written to. The \
             store itself need not be damaged",
            folder.join(FILE).display()
        )),
        _ => damaged(folder, error),
    }
}

/// Whether SQLite has failed to map its shared memory file. A full disk has another error.
pub fn lacks_shared_map(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|e| e.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMMAP)
}

/// The error for a damaged store.
pub fn damaged(folder: &Path, what: &impl std::fmt::Display) -> Error {
    Error::Store(format!(
        "{} is damaged ({what}); put back the last backup of the folder, or make a new authority",
        folder.join(FILE).display()
    ))
}
