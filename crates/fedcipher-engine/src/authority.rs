//! The authority's state: devices, epochs and issued keys, in one SQLite file. Every change is one transaction, so that
//! a kill at any point leaves the state before or after it. The file gets its name once it is complete.

use crate::boot_time::BootTime;
use crate::certificates::{Role, Root, Subject, Terms};
use crate::error::{Error, Result};
use crate::files::{self, Draft};
use crate::rejection_log::Rejection;
use crate::store_check::{self, FILE, SERVER, unread};
use fedcipher_core::committee::Committee;
use fedcipher_core::keys::ServerKey;
use fedcipher_core::oneshot::roster::{Card, Roles, Roster};
use fedcipher_core::registry;
use fedcipher_core::scheme::Scheme;
use fedcipher_core::statement::sha256;
use fedcipher_core::{ClientId, Epoch};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use std::fs::TryLockError;
use std::io::ErrorKind;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use zeroize::Zeroizing;

/// The store before it is complete. While this file exists, an `init` is running or was killed.
const DRAFT: &str = ".authority.db.draft";
const SERVICE: &str = "service";
/// Suffixes of the files that SQLite writes.
const ENDINGS: [&str; 4] = ["", "-wal", "-shm", "-journal"];
/// `secure_delete` overwrites deleted data, so that free pages hold no keys of ended epochs. [`Authority::forget`]
/// removes what the log (WAL) still has of them.
const PRAGMAS: &str = "PRAGMA synchronous = FULL; PRAGMA secure_delete = ON; PRAGMA foreign_keys = ON;";
/// Longest wait for another writing process.
const BUSY: Duration = Duration::from_secs(60);
/// The number of rows of rejected attempts that are kept.
const REFUSALS: u64 = 10_000;
/// Entry in `config`: a revocation still waits for its rotation.
const OWED: &str = "rotation_owed";
/// Entry in `config`: the number of clients that may lie. More devices than this must report a closed key before it is
/// replaced.
const CORRUPT_CLIENTS: &str = "corrupt_clients";
/// Entry in `config`: the time of the last replacement of closed keys.
const REPLACED: &str = "replaced";
/// The shortest time between two replacements of closed keys, in seconds.
const REPLACE_SECONDS: u64 = 3600;
/// The number of unrevoked devices that have reported their key of the current epoch as closed.
const CLOSED_KEYS: &str = "SELECT COUNT(*) FROM closed JOIN epochs USING (epoch) JOIN parties ON name = device
    WHERE state = 'current' AND revoked = 0";
/// Entry in `config`: names of the committee's members, one per line.
const MEMBERS: &str = "members";
const SCHEMA: &str = "
CREATE TABLE config (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE parties (
    name TEXT PRIMARY KEY, role TEXT NOT NULL, client INTEGER UNIQUE, revoked INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE epochs (
    epoch INTEGER PRIMARY KEY, state TEXT NOT NULL CHECK (state IN ('current', 'previous', 'ended')),
    made TEXT NOT NULL, server_key BLOB, taken INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX one_current ON epochs (state) WHERE state = 'current';
CREATE TABLE keys (
    epoch INTEGER NOT NULL REFERENCES epochs, device TEXT NOT NULL REFERENCES parties, key BLOB, instance BLOB,
    PRIMARY KEY (epoch, device)
);
CREATE TABLE audit (id INTEGER PRIMARY KEY, at TEXT NOT NULL, party TEXT NOT NULL, action TEXT NOT NULL, epoch INTEGER);
CREATE TABLE uses (
    host TEXT NOT NULL REFERENCES parties, device TEXT NOT NULL REFERENCES parties, PRIMARY KEY (host, device)
);
CREATE TABLE closed (
    epoch INTEGER NOT NULL REFERENCES epochs, device TEXT NOT NULL REFERENCES parties, PRIMARY KEY (epoch, device)
);
CREATE TABLE cards (
    device TEXT PRIMARY KEY REFERENCES parties, verify BLOB NOT NULL UNIQUE, sealing BLOB NOT NULL
);
CREATE TABLE refusals (
    minute TEXT NOT NULL, party TEXT NOT NULL, what TEXT NOT NULL, count INTEGER NOT NULL,
    UNIQUE (minute, party, what)
);
CREATE TABLE digests (
    epoch INTEGER NOT NULL REFERENCES epochs, device TEXT NOT NULL, digest BLOB NOT NULL, PRIMARY KEY (epoch, device)
);
";

/// An open store. Several processes may hold one: `serve`, and other commands at the same time.
pub struct Authority {
    connection: Connection,
    folder: PathBuf,
    /// The number of committee members in each epoch's roster; 0 for a scheme whose keys the authority makes.
    committee: usize,
}

/// The key of a device for one epoch.
pub struct DeviceKey {
    pub epoch: Epoch,
    pub issue: Issue,
    /// True if the engine has received it before.
    pub again: bool,
}

pub enum Issue {
    /// A key that the authority has made, not yet encrypted.
    Key(Zeroizing<Vec<u8>>),
    /// The server's key with the device's roster. The device has its own secrets.
    Roster(Vec<u8>),
}

/// Epoch, key and the engine instance that holds it.
type IssuedRow = (Epoch, Zeroizing<Vec<u8>>, Option<Vec<u8>>);

/// Client numbers and their keys.
type IssuedKeys = Vec<(ClientId, Zeroizing<Vec<u8>>)>;

/// A party's line in `status`.
#[derive(Debug)]
pub struct Enrolled {
    pub name: String,
    pub role: String,
    pub client: Option<ClientId>,
    pub revoked: bool,
    /// The devices in a host's certificate, as text.
    pub devices: Option<String>,
}

/// The content of `status`.
#[derive(Debug)]
pub struct Status {
    pub parties: Vec<Enrolled>,
    pub epochs: Vec<(Epoch, String, String, usize)>,
    pub audit: Vec<(String, String, String, Option<Epoch>)>,
    pub refused: Vec<Rejection>,
}

/// The remains on disk after `rotate` and `finish_epoch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgotten {
    /// No keys of ended epochs remain.
    All,
    /// Another process is reading the store, so the log still has ended keys.
    LogInUse,
}

/// The current time in UTC, to the minute.
pub fn minute() -> Result<String> {
    let now = OffsetDateTime::now_utc();
    now.replace_second(0)
        .and_then(|t| t.replace_nanosecond(0))
        .map_err(|e| Error::Store(e.to_string()))?
        .format(&Rfc3339)
        .map_err(|e| Error::Store(e.to_string()))
}

fn now() -> Result<String> {
    OffsetDateTime::now_utc().format(&Rfc3339).map_err(|e| Error::Store(e.to_string()))
}

/// The number of clients that may lie, from the scheme's parameters. If `given`, it must agree with them.
fn may_lie(of_scheme: Option<u64>, given: Option<u64>) -> Result<u64> {
    match (of_scheme, given) {
        (Some(said), Some(given)) if said != given => Err(Error::Configuration(format!(
            "--corrupt-clients {given}, and the scheme's own parameter is corrupt_clients={said}: leave the option out, \
             or make the specification with corrupt_clients={given}"
        ))),
        (said, given) => Ok(said.or(given).unwrap_or(1)),
    }
}

impl Authority {
    /// Makes a new authority in `folder` for the scheme `spec` (JSON, as `fedcipher spec` prints it). `corrupt_clients`
    /// is the number of clients that may lie; if `None`, it comes from the scheme's parameters, or is 1.
    pub fn init(folder: &Path, spec: &str, reached_as: Vec<String>, corrupt_clients: Option<u64>) -> Result<Self> {
        let scheme = registry::make(spec)?;
        let corrupt_clients = may_lie(scheme.committee().map(Committee::corrupt_clients), corrupt_clients)?;
        let committee = scheme.members();
        files::make_folder(folder)?;
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o700)).map_err(|e| Error::file(folder, &e))?;
        let alone = std::fs::File::open(folder).map_err(|e| Error::file(folder, &e))?;
        // Without working locks on the folder, concurrent starts cannot be excluded.
        if matches!(alone.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(Error::file(folder, &"another `init` is under way here; let it end"));
        }
        let path = folder.join(FILE);
        if path.exists() {
            return Err(Error::file(&path, &"it exists; an authority is made once, so name another folder (--state)"));
        }
        drop_unfinished(folder)?;
        let draft = folder.join(DRAFT);
        // Made here with mode 600: SQLite would follow the umask.
        let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft);
        made.map_err(|e| Error::file(&draft, &format!("{e}; name a folder that this user may write to")))?;
        let filled = Self::fill(folder, &draft, spec, reached_as, corrupt_clients);
        if filled.is_err() {
            remove_store(&draft);
        }
        filled?;
        let mut this = Self::connect(folder)?;
        this.committee = committee;
        Ok(this)
    }

    /// Makes the store as `draft`, and the service's credentials. The last step renames the draft to the store's name.
    fn fill(folder: &Path, draft: &Path, spec: &str, reached_as: Vec<String>, corrupt_clients: u64) -> Result<()> {
        let mut connection = Connection::open(draft)?;
        connection.execute_batch(PRAGMAS)?;
        let root = Root::generate()?;
        let service = Subject::new(Role::Authority, "authority");
        let (certificate, key) = root.issue(&service, &Terms::days(3650, reached_as))?;
        let tx = connection.transaction()?;
        tx.execute_batch(SCHEMA)?;
        let corrupt_clients = corrupt_clients.to_string();
        let entries = [
            ("spec", spec),
            ("root_certificate", &root.certificate),
            ("root_key", &root.key),
            (CORRUPT_CLIENTS, &corrupt_clients),
        ];
        for (name, value) in entries {
            tx.execute("INSERT INTO config VALUES (?1, ?2)", params![name, value])?;
        }
        log(&tx, "authority", "init", None)?;
        tx.commit()?;
        drop(connection);
        keep_log(draft)?;
        let credentials = write_party(&folder.join(SERVICE), &root.certificate, &certificate, Some(&key))?;
        let path = folder.join(FILE);
        std::fs::rename(draft, &path).map_err(|e| Error::file(&path, &e))?;
        credentials.keep();
        files::sync_folder(folder)
    }

    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let about = std::fs::metadata(&path).map_err(|e| match e.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => Error::file(&path, &absent(folder)),
            _ => Error::file(&path, &e),
        })?;
        if !about.is_file() {
            return Err(Error::file(&path, &"it is not a file; name the folder of an authority (--state)"));
        }
        let mode = about.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(Error::file(&path, &format!("mode {mode:o} lets others read all keys; chmod 600 it")));
        }
        let mut this = Self::connect(folder).map_err(|e| unread(folder, &e))?;
        store_check::check_structure(&this.connection, folder)?;
        let tables: u64 = this.connection.query_row("SELECT COUNT(*) FROM sqlite_master", [], |r| r.get(0))?;
        if tables == 0 {
            // An earlier version renamed the store first.
            let fix =
                format!("it is empty: `init` was interrupted. Delete it and the folder {SERVICE}, and init again");
            return Err(Error::file(&path, &fix));
        }
        this.committee = registry::make(&this.spec()?)?.members();
        store_check::check_content(&this.connection, folder)?;
        // A process that was killed after a rotation may have left its log.
        this.forget(Duration::from_millis(200))?;
        Ok(this)
    }

    fn connect(folder: &Path) -> rusqlite::Result<Self> {
        let connection = Connection::open(folder.join(FILE))?;
        connection.busy_timeout(BUSY)?;
        connection.execute_batch(PRAGMAS)?;
        Ok(Authority { connection, folder: folder.to_owned(), committee: 0 })
    }

    /// The folder with the credentials of the service.
    #[must_use]
    pub fn service_folder(&self) -> PathBuf {
        self.folder.join(SERVICE)
    }

    /// Empties the store's log, which would otherwise keep the keys of ended epochs until it is overwritten. Waits at
    /// most `most` for other processes that read the store.
    pub fn forget(&self, most: Duration) -> Result<Forgotten> {
        self.connection.busy_timeout(most)?;
        let busy = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |r| r.get::<_, bool>(0));
        self.connection.busy_timeout(BUSY)?;
        match busy {
            Ok(false) => Ok(Forgotten::All),
            Ok(true) => Ok(Forgotten::LogInUse),
            Err(e) if e.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => Ok(Forgotten::LogInUse),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether the store's log holds anything.
    #[must_use]
    pub fn has_log(&self) -> bool {
        std::fs::metadata(self.folder.join(format!("{FILE}-wal"))).is_ok_and(|about| about.len() > 0)
    }

    /// Adds rejected attempts to the audit log, and deletes the oldest rows beyond the limit.
    pub fn refused(&mut self, rows: &[Rejection]) -> Result<()> {
        let tx = self.begin()?;
        for row in rows {
            tx.execute(
                "INSERT INTO refusals VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (minute, party, what) DO UPDATE SET count = count + ?4",
                params![row.minute, row.party, row.what, row.count],
            )?;
        }
        tx.execute("DELETE FROM refusals WHERE rowid <= (SELECT MAX(rowid) FROM refusals) - ?1", [REFUSALS])?;
        tx.commit()?;
        Ok(())
    }

    fn begin(&mut self) -> Result<Transaction<'_>> {
        Ok(self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?)
    }

    fn config(&self, name: &str) -> Result<String> {
        let value = self.connection.query_row("SELECT value FROM config WHERE name = ?1", [name], |r| r.get(0));
        value
            .optional()?
            .ok_or_else(|| Error::Store(format!("it lacks {name}; was init interrupted? delete it and init again")))
    }

    pub fn spec(&self) -> Result<String> {
        self.config("spec")
    }

    /// Enrols `party` and writes its credentials to `out`. With a request, the private key stays where it was made.
    /// Returns a device's client id.
    pub fn enrol(
        &mut self,
        party: &Subject,
        terms: &Terms,
        request: Option<&str>,
        out: &Path,
    ) -> Result<Option<ClientId>> {
        if party.role == Role::Authority {
            return Err(Error::Configuration("the authority has its certificate from init".into()));
        }
        let root = Root { certificate: self.config("root_certificate")?, key: self.config("root_key")? };
        let tx = self.begin()?;
        let taken: bool =
            tx.query_row("SELECT EXISTS (SELECT 1 FROM parties WHERE name = ?1)", [&party.name], |r| r.get(0))?;
        if taken {
            return Err(Error::Configuration(format!("{} is enrolled already; names are not used twice", party.name)));
        }
        let client: Option<ClientId> = match party.role {
            Role::Device => {
                Some(tx.query_row("SELECT COALESCE(MAX(client) + 1, 0) FROM parties", [], |r| client_at(r, 0))?)
            }
            _ => None,
        };
        tx.execute(
            "INSERT INTO parties (name, role, client) VALUES (?1, ?2, ?3)",
            params![party.name, party.role.name(), client.map(ClientId::get)],
        )?;
        for device in &party.devices {
            let known = "SELECT EXISTS (SELECT 1 FROM parties WHERE name = ?1 AND role = 'device' AND revoked = 0)";
            if !tx.query_row(known, [device], |r| r.get::<_, bool>(0))? {
                return Err(Error::Configuration(format!(
                    "--device {device:?} is not an enrolled device; enrol it first"
                )));
            }
            tx.execute("INSERT INTO uses VALUES (?1, ?2)", params![party.name, device])?;
        }
        log(&tx, &party.name, "enrol", None)?;
        let draft = match request {
            Some(csr) => write_party(out, &root.certificate, &root.sign(csr, party, terms)?, None)?,
            None => {
                let (certificate, key) = root.issue(party, terms)?;
                write_party(out, &root.certificate, &certificate, Some(&key))?
            }
        };
        tx.commit()?;
        draft.keep();
        Ok(client)
    }

    /// The number of clients that may lie.
    pub fn corrupt_clients(&self) -> Result<u64> {
        let text = self.config(CORRUPT_CLIENTS)?;
        text.parse().map_err(|_| Error::Store(format!("{CORRUPT_CLIENTS} is {text:?}, which is not a number")))
    }

    /// Whether an epoch is a roster of the devices' own identities.
    #[must_use]
    pub fn has_rosters(&self) -> bool {
        self.committee > 0
    }

    /// Records the public keys of the identity of `device`. They cannot change while it is enrolled.
    pub fn show_card(&mut self, device: &str, verify: &[u8], sealing: &[u8]) -> Result<()> {
        if !self.has_rosters() {
            return Err(Error::Protocol("this authority's scheme has no identities".into()));
        }
        Card::check(verify, sealing)?;
        let tx = self.begin()?;
        let known: Option<(Vec<u8>, Vec<u8>)> = tx
            .query_row("SELECT verify, sealing FROM cards WHERE device = ?1", [device], |r| Ok((r.get(0)?, r.get(1)?)))
            .optional()?;
        match known {
            Some((v, s)) if v == verify && s == sealing => return Ok(()),
            Some(_) => return Err(Error::OtherIdentity { device: device.to_owned() }),
            None => {
                let taken: bool =
                    tx.query_row("SELECT EXISTS (SELECT 1 FROM cards WHERE verify = ?1)", [verify], |r| r.get(0))?;
                if taken {
                    return Err(Error::Access(format!("the identity of device {device} is that of another device")));
                }
                tx.execute("INSERT INTO cards VALUES (?1, ?2, ?3)", params![device, verify, sealing])?;
                log(&tx, device, "card", None)?;
            }
        }
        tx.commit()?;
        Ok(())
    }

    /// Sets the committee of the next rosters.
    pub fn set_members(&mut self, names: &[String]) -> Result<()> {
        if names.len() != self.committee {
            return Err(Error::Configuration(format!(
                "{} members are named, the scheme's committee has {}",
                names.len(),
                self.committee
            )));
        }
        let tx = self.begin()?;
        for name in names {
            let query =
                "SELECT EXISTS (SELECT 1 FROM cards JOIN parties ON name = device WHERE name = ?1 AND revoked = 0)";
            if !tx.query_row(query, [name], |r| r.get::<_, bool>(0))? {
                return Err(Error::Configuration(format!(
                    "{name} cannot be a member: no device of this name is enrolled, or its engine has not been started"
                )));
            }
        }
        tx.execute("INSERT OR REPLACE INTO config VALUES (?1, ?2)", params![MEMBERS, names.join("\n")])?;
        tx.commit()?;
        Ok(())
    }

    /// Makes the next epoch for all devices that are not revoked. The current epoch becomes the previous one, and stays
    /// usable
    /// until a round of the new one is complete. The former previous epoch ends.
    ///
    /// If the scheme has rosters, the epoch contains the devices whose engines have shown their card.
    ///
    /// Fails, unless `force` is set, while an aggregator that took the previous epoch has completed no round of the
    /// current one.
    /// Its last aggregate would be under keys that no longer exist.
    pub fn rotate(&mut self, force: bool) -> Result<Epoch> {
        let keys = self.plan(force)?.make()?;
        self.begin_epoch(keys, force)
    }

    /// The parameters of the next epoch's keys. Making the keys takes seconds, during which the store is not locked.
    pub fn plan(&self, force: bool) -> Result<Plan> {
        check_unused(&self.connection, force)?;
        let (epoch, devices) = next_epoch(&self.connection)?;
        Ok(Plan { spec: self.spec()?, epoch, devices })
    }

    /// Like [`Authority::rotate`], with `keys` made in advance. They are made again if devices or epochs have changed
    /// since.
    pub fn begin_epoch(&mut self, keys: NewKeys, force: bool) -> Result<Epoch> {
        let tx = self.begin()?;
        let epoch = rotate(&tx, keys, force)?;
        tx.commit()?;
        Ok(epoch)
    }

    /// Records that the engine `instance` of `device` has closed its keys of the epochs `closed` after an attempted
    /// forgery. Only the current epoch counts, and only if that engine holds the key.
    pub fn report_closed(&mut self, device: &str, instance: &[u8], closed: &[Epoch]) -> Result<()> {
        let tx = self.begin()?;
        let current: Option<Epoch> = tx
            .query_row(
                "SELECT epoch FROM keys JOIN epochs USING (epoch)
                 WHERE state = 'current' AND device = ?1 AND instance = ?2",
                params![device, instance],
                |r| epoch_at(r, 0),
            )
            .optional()?;
        if let Some(epoch) = current.filter(|epoch| closed.contains(epoch))
            && tx.execute("INSERT OR IGNORE INTO closed VALUES (?1, ?2)", params![epoch.get(), device])? > 0
        {
            log(&tx, device, "closed", Some(epoch))?;
        }
        tx.commit()?;
        Ok(())
    }

    /// Makes the next epoch if more devices than may lie have reported their current key as closed, at most once an
    /// hour.
    /// Returns `None` if they have not, or if the epoch that would end is still in use.
    ///
    /// The hour is measured by a clock that cannot be set, and starts again after a reboot.
    pub fn replace_closed(&mut self, now: &BootTime) -> Result<Option<Epoch>> {
        match self.plan_replacement(now)? {
            Some(plan) => self.replace_by(plan.make()?, now),
            None => Ok(None),
        }
    }

    /// The parameters of the keys for [`Authority::replace_closed`]; `None` if it would do nothing.
    pub fn plan_replacement(&mut self, now: &BootTime) -> Result<Option<Plan>> {
        let most = self.corrupt_clients()?;
        // Without a lock on the store, because `serve` asks every second.
        match due(&self.connection, most, now)? {
            Due::Later => Ok(None),
            Due::AfterAnHour => {
                let tx = self.begin()?;
                note_replacement(&tx, now)?;
                tx.commit()?;
                Ok(None)
            }
            Due::Now => match self.plan(false) {
                Err(Error::EpochInUse { .. }) => Ok(None),
                plan => plan.map(Some),
            },
        }
    }

    /// Like [`Authority::replace_closed`], with `keys` made in advance.
    pub fn replace_by(&mut self, keys: NewKeys, now: &BootTime) -> Result<Option<Epoch>> {
        let most = self.corrupt_clients()?;
        let tx = self.begin()?;
        if due(&tx, most, now)? != Due::Now {
            return Ok(None);
        }
        let epoch = match rotate(&tx, keys, false) {
            Err(Error::EpochInUse { .. }) => return Ok(None),
            rotated => rotated?,
        };
        note_replacement(&tx, now)?;
        tx.commit()?;
        Ok(Some(epoch))
    }

    /// Ends all epochs before `epoch`, which must be the current one or an ended one. Also makes the epoch that a
    /// revocation waits for. Returns true if keys have ended.
    pub fn finish_epoch(&mut self, epoch: Epoch) -> Result<bool> {
        let tx = self.begin()?;
        let ended = end_epochs(&tx, "state = 'previous' AND epoch < ?1", [epoch.get()])? > 0;
        if ended {
            log(&tx, "authority", "settle", Some(epoch))?;
        }
        let owed: bool = tx.query_row("SELECT EXISTS (SELECT 1 FROM config WHERE name = ?1)", [OWED], |r| r.get(0))?;
        tx.commit()?;
        if owed {
            match self.rotate(false) {
                Ok(next) => tracing::info!(epoch = next.get(), "rotated, as a revocation asked"),
                // The round was of an older epoch. The next complete round finishes the epoch in use.
                Err(Error::EpochInUse { .. }) => {}
                // The aggregator has completed its round and cannot fix this error.
                Err(error) => tracing::error!("no new epoch, which a revocation asked for: {error}"),
            }
        }
        Ok(ended)
    }

    /// Gives no further epoch to `name`, and rejects its ciphertexts from now on. With `rotation`, the next epoch is
    /// owed too: [`Authority::rotate`] makes it, or [`Authority::finish_epoch`] if the caller ends before.
    pub fn revoke(&mut self, name: &str, rotation: bool) -> Result<()> {
        let tx = self.begin()?;
        if tx.execute("UPDATE parties SET revoked = 1 WHERE name = ?1", [name])? == 0 {
            return Err(Error::Configuration(format!("no party {name} is enrolled")));
        }
        if rotation {
            tx.execute("INSERT OR REPLACE INTO config VALUES (?1, '1')", [OWED])?;
        }
        log(&tx, name, "revoke", None)?;
        tx.commit()?;
        Ok(())
    }

    /// Checks a certificate's subject against the authority's records.
    pub fn check(&self, party: &Subject) -> Result<()> {
        let found =
            self.connection.query_row("SELECT role, revoked FROM parties WHERE name = ?1", [&party.name], |r| {
                Ok((r.get::<_, String>(0)?, r.get::<_, bool>(1)?))
            });
        match found.optional()? {
            Some((_, true)) => Err(Error::Revoked(party.to_string())),
            Some((role, false)) if role == party.role.name() => Ok(()),
            _ => Err(Error::Access(format!("{party} is not enrolled here"))),
        }
    }

    /// The keys of `device` in all usable epochs except `held`. They are bound to `instance` from now on.
    pub fn device_keys(&mut self, device: &str, instance: &[u8], held: &[Epoch]) -> Result<Vec<DeviceKey>> {
        let tx = self.begin()?;
        let rows: Vec<IssuedRow> = {
            let mut query = tx.prepare(
                "SELECT epoch, key, instance FROM keys JOIN epochs USING (epoch)
                 WHERE device = ?1 AND state != 'ended' ORDER BY epoch",
            )?;
            let rows = query.query_map([device], |r| Ok((epoch_at(r, 0)?, Zeroizing::new(r.get(1)?), r.get(2)?)))?;
            rows.collect::<rusqlite::Result<_>>()?
        };
        let other = |owner: &Option<Vec<u8>>| owner.as_deref().is_some_and(|o| o != instance);
        if let Some((epoch, ..)) = rows.last().filter(|(_, _, owner)| other(owner)) {
            return Err(Error::IdentityInUse { device: device.to_owned(), epoch: *epoch });
        }
        let mut keys = Vec::new();
        for (epoch, key, owner) in rows {
            if held.contains(&epoch) || other(&owner) {
                continue;
            }
            tx.execute(
                "UPDATE keys SET instance = ?3 WHERE epoch = ?1 AND device = ?2",
                params![epoch.get(), device, instance],
            )?;
            // An engine's failed requests are counted instead of logged one by one: see `AuthorityService`.
            if owner.is_none() {
                log(&tx, device, "issue", Some(epoch))?;
            }
            let issue = if key.is_empty() {
                let query = "SELECT server_key FROM epochs WHERE epoch = ?1";
                Issue::Roster(tx.query_row(query, [epoch.get()], |r| r.get(0))?)
            } else {
                Issue::Key(key)
            };
            keys.push(DeviceKey { epoch, issue, again: owner.is_some() });
        }
        tx.commit()?;
        Ok(keys)
    }

    /// (epoch, server key) of all usable epochs except `held`. They count as taken.
    pub fn server_keys(&mut self, held: &[Epoch]) -> Result<Vec<(Epoch, Vec<u8>)>> {
        self.connection.execute("UPDATE epochs SET taken = 1 WHERE state != 'ended' AND taken = 0", [])?;
        let mut query =
            self.connection.prepare("SELECT epoch, server_key FROM epochs WHERE state != 'ended' ORDER BY epoch")?;
        let rows = query.query_map([], |r| Ok((epoch_at(r, 0)?, r.get(1)?)))?;
        let keys: Vec<(Epoch, Vec<u8>)> = rows.collect::<rusqlite::Result<_>>()?;
        Ok(keys.into_iter().filter(|(epoch, _)| !held.contains(epoch)).collect())
    }

    /// Usable epochs, the newest last.
    pub fn usable(&self) -> Result<Vec<Epoch>> {
        let mut query = self.connection.prepare("SELECT epoch FROM epochs WHERE state != 'ended' ORDER BY epoch")?;
        let rows = query.query_map([], |r| epoch_at(r, 0))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Names of revoked training hosts.
    pub fn revoked_hosts(&self) -> Result<Vec<String>> {
        let mut query = self.connection.prepare("SELECT name FROM parties WHERE revoked = 1 AND role = 'host'")?;
        let rows = query.query_map([], |r| r.get(0))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Client ids of revoked devices.
    pub fn revoked(&self) -> Result<Vec<ClientId>> {
        let mut query =
            self.connection.prepare("SELECT client FROM parties WHERE revoked = 1 AND client IS NOT NULL")?;
        let rows = query.query_map([], |r| client_at(r, 0))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Seconds since the current epoch was made.
    pub fn age(&self) -> Result<Option<Duration>> {
        let made: Option<String> = self
            .connection
            .query_row("SELECT made FROM epochs WHERE state = 'current'", [], |r| r.get(0))
            .optional()?;
        let Some(made) = made else { return Ok(None) };
        let made = OffsetDateTime::parse(&made, &Rfc3339).map_err(|e| Error::Store(e.to_string()))?;
        // A clock that was set back must not make the process fail; the epoch then counts as new.
        Ok(Some((OffsetDateTime::now_utc() - made).try_into().unwrap_or(Duration::ZERO)))
    }

    pub fn status(&self) -> Result<Status> {
        let all = |sql: &str| self.connection.prepare(sql);
        let mut query =
            all("SELECT name, role, client, revoked, (SELECT group_concat(device, ', ') FROM uses WHERE host = name)
             FROM parties ORDER BY role, client, name")?;
        let parties = query.query_map([], |r| {
            let (name, role, client) = (r.get(0)?, r.get(1)?, r.get::<_, Option<u32>>(2)?.map(ClientId::new));
            Ok(Enrolled { name, role, client, revoked: r.get(3)?, devices: r.get(4)? })
        })?;
        let parties = parties.collect::<rusqlite::Result<_>>()?;
        let mut query = all(
            "SELECT epoch, state, made, (SELECT COUNT(*) FROM keys WHERE keys.epoch = epochs.epoch AND key IS NOT NULL)
             FROM epochs ORDER BY epoch",
        )?;
        let epochs = query.query_map([], |r| Ok((epoch_at(r, 0)?, r.get(1)?, r.get(2)?, r.get(3)?)))?;
        let epochs = epochs.collect::<rusqlite::Result<_>>()?;
        let mut query = all("SELECT at, party, action, epoch FROM audit ORDER BY id")?;
        let audit = query
            .query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get::<_, Option<u64>>(3)?.map(Epoch::new))))?;
        let audit = audit.collect::<rusqlite::Result<_>>()?;
        let mut query = all("SELECT minute, party, what, count FROM refusals ORDER BY rowid")?;
        let refused = query.query_map([], |r| {
            Ok(Rejection { minute: r.get(0)?, party: r.get(1)?, what: r.get(2)?, count: r.get(3)? })
        })?;
        let refused = refused.collect::<rusqlite::Result<_>>()?;
        Ok(Status { parties, epochs, audit, refused })
    }
}

/// The time of the next replacement of closed keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Now,
    /// The last replacement was before the machine booted, so the time since then is unknown. Another hour must pass.
    AfterAnHour,
    Later,
}

fn due(store: &Connection, most: u64, now: &BootTime) -> Result<Due> {
    if store.query_row(CLOSED_KEYS, [], |r| r.get::<_, u64>(0))? <= most {
        return Ok(Due::Later);
    }
    let last: Option<String> =
        store.query_row("SELECT value FROM config WHERE name = ?1", [REPLACED], |r| r.get(0)).optional()?;
    let Some(last) = last else { return Ok(Due::Now) };
    Ok(match now.since(&last.parse()?) {
        None => Due::AfterAnHour,
        Some(seconds) if seconds < REPLACE_SECONDS => Due::Later,
        Some(_) => Due::Now,
    })
}

/// The epoch in a column.
fn epoch_at(row: &Row<'_>, column: usize) -> rusqlite::Result<Epoch> {
    row.get(column).map(Epoch::new)
}

/// The client's number in a column.
fn client_at(row: &Row<'_>, column: usize) -> rusqlite::Result<ClientId> {
    row.get(column).map(ClientId::new)
}

/// Client numbers and names of devices.
type Cohort = Vec<(ClientId, String)>;

/// The parameters of the keys of an epoch.
pub struct Plan {
    spec: String,
    epoch: Epoch,
    devices: Cohort,
}

/// The keys of an epoch that is not yet in the store.
pub struct NewKeys {
    plan: Plan,
    scheme: Arc<dyn Scheme>,
    /// `None` if the scheme has rosters.
    made: Option<(ServerKey, IssuedKeys)>,
}

impl Plan {
    pub fn make(self) -> Result<NewKeys> {
        let scheme = registry::make(&self.spec)?;
        let made = (scheme.members() == 0).then(|| keygen(scheme.as_ref(), &self.devices, self.epoch)).transpose()?;
        Ok(NewKeys { plan: self, scheme, made })
    }
}

fn keygen(scheme: &dyn Scheme, devices: &Cohort, epoch: Epoch) -> Result<(ServerKey, IssuedKeys)> {
    let cohort: Vec<ClientId> = devices.iter().map(|(client, _)| *client).collect();
    let set = scheme.keygen(&cohort, epoch)?;
    Ok((set.server, set.clients.iter().map(|key| (key.client, key.to_bytes())).collect()))
}

/// The number of the next epoch, and its devices.
fn next_epoch(store: &Connection) -> Result<(Epoch, Cohort)> {
    let mut query = store.prepare("SELECT client, name FROM parties WHERE role = 'device' AND revoked = 0")?;
    let rows = query.query_map([], |r| Ok((client_at(r, 0)?, r.get(1)?)))?;
    let devices = rows.collect::<rusqlite::Result<_>>()?;
    Ok((store.query_row("SELECT COALESCE(MAX(epoch), 0) + 1 FROM epochs", [], |r| epoch_at(r, 0))?, devices))
}

/// Fails, unless `force` is set, if a federation still needs the epoch that would end.
fn check_unused(store: &Connection, force: bool) -> Result<()> {
    let query = "SELECT epoch FROM epochs WHERE state = 'previous' AND taken = 1";
    let in_use = store.query_row(query, [], |r| epoch_at(r, 0)).optional()?;
    match in_use.filter(|_| !force) {
        Some(epoch) => Err(Error::EpochInUse { epoch }),
        None => Ok(()),
    }
}

fn note_replacement(tx: &Transaction<'_>, now: &BootTime) -> Result<()> {
    tx.execute("INSERT OR REPLACE INTO config VALUES (?1, ?2)", params![REPLACED, now.to_string()])?;
    Ok(())
}

/// Does the work of [`Authority::rotate`].
fn rotate(tx: &Transaction<'_>, keys: NewKeys, force: bool) -> Result<Epoch> {
    check_unused(tx, force)?;
    let (epoch, devices) = next_epoch(tx)?;
    let NewKeys { plan, scheme, made } = keys;
    let (server, keys) = match made {
        Some(made) if plan.epoch == epoch && plan.devices == devices => made,
        Some(_) => keygen(scheme.as_ref(), &devices, epoch)?,
        None => roster_of(tx, scheme.as_ref(), &devices, epoch)?,
    };
    end_epochs(tx, "state = 'previous'", [])?;
    tx.execute("UPDATE epochs SET state = 'previous' WHERE state = 'current'", [])?;
    tx.execute(
        "INSERT INTO epochs (epoch, state, made, server_key) VALUES (?1, 'current', ?2, ?3)",
        params![epoch.get(), now()?, server.to_bytes()],
    )?;
    let digest = "INSERT INTO digests VALUES (?1, ?2, ?3)";
    tx.execute(digest, params![epoch.get(), SERVER, sha256(&[&server.to_bytes()])])?;
    for (client, key) in &keys {
        let name = devices.iter().find(|(number, _)| number == client).map(|(_, name)| name);
        tx.execute("INSERT INTO keys VALUES (?1, ?2, ?3, NULL)", params![epoch.get(), name, key.as_slice()])?;
        tx.execute(digest, params![epoch.get(), name, sha256(&[key.as_slice()])])?;
    }
    tx.execute("DELETE FROM config WHERE name = ?1", [OWED])?;
    log(tx, "authority", "rotate", Some(epoch))?;
    Ok(epoch)
}

/// The roster of the `devices` that have shown their cards, and an empty key for each. The empty key binds the epoch to
/// one engine, because only that engine's state folder has the history of an identity.
fn roster_of(
    tx: &Transaction<'_>,
    scheme: &dyn Scheme,
    devices: &[(ClientId, String)],
    epoch: Epoch,
) -> Result<(ServerKey, IssuedKeys)> {
    let card = |(id, name): &(ClientId, String)| -> Result<Option<Card>> {
        let query = "SELECT verify, sealing FROM cards WHERE device = ?1";
        let found = tx.query_row(query, [name], |r| Ok((r.get::<_, Vec<u8>>(0)?, r.get::<_, Vec<u8>>(1)?)));
        let Some((verify, sealing)) = found.optional()? else { return Ok(None) };
        let roles = Roles { client: true, member: false, reader: true };
        Card::check(&verify, &sealing)?;
        Ok(Some(Card { id: *id, name: name.clone(), roles, signing: verify, sealing }))
    };
    let mut cards = devices.iter().filter_map(|device| card(device).transpose()).collect::<Result<Vec<_>>>()?;
    cards.sort_by_key(|card| card.id);
    let named: Option<String> =
        tx.query_row("SELECT value FROM config WHERE name = ?1", [MEMBERS], |r| r.get(0)).optional()?;
    match named {
        Some(names) => {
            let names: Vec<&str> = names.lines().collect();
            cards.iter_mut().for_each(|card| card.roles.member = names.contains(&card.name.as_str()));
        }
        None => cards.iter_mut().take(scheme.members()).for_each(|card| card.roles.member = true),
    }
    let members = cards.iter().filter(|card| card.roles.member).count();
    if members < scheme.members() {
        return Err(Error::Configuration(format!(
            "{members} of the {} members of the committee are enrolled and have shown their cards: start their engines, \
             which show them, or name others with rotate --members",
            scheme.members()
        )));
    }
    let absent: Vec<&str> = devices
        .iter()
        .map(|(_, name)| name.as_str())
        .filter(|name| cards.iter().all(|card| card.name != *name))
        .collect();
    if !absent.is_empty() {
        tracing::warn!(
            "epoch {epoch} is without {}: their engines have not shown a card yet; rotate again when they have",
            absent.join(", ")
        );
    }
    let keys = cards.iter().map(|card| (card.id, Zeroizing::default())).collect();
    Ok((scheme.require_committee()?.roster_key(&Roster::new(cards)?, epoch)?, keys))
}

fn log(tx: &Transaction<'_>, party: &str, action: &str, epoch: Option<Epoch>) -> Result<()> {
    tx.execute(
        "INSERT INTO audit (at, party, action, epoch) VALUES (?1, ?2, ?3, ?4)",
        params![now()?, party, action, epoch.map(Epoch::get)],
    )?;
    Ok(())
}

/// Ends the epochs that match `condition`, and deletes their keys.
fn end_epochs(tx: &Transaction<'_>, condition: &str, bound: impl rusqlite::Params + Clone) -> Result<usize> {
    let which = format!("SELECT epoch FROM epochs WHERE {condition}");
    tx.execute(&format!("UPDATE keys SET key = NULL WHERE epoch IN ({which})"), bound.clone())?;
    for table in ["digests", "closed"] {
        tx.execute(&format!("DELETE FROM {table} WHERE epoch IN ({which})"), bound.clone())?;
    }
    Ok(tx.execute(&format!("UPDATE epochs SET state = 'ended', server_key = NULL WHERE {condition}"), bound)?)
}

/// The reason why a folder has no store.
fn absent(folder: &Path) -> &'static str {
    if folder.join(DRAFT).exists() {
        "it is not there yet: `init` is under way, or it was interrupted and is to be run again"
    } else if folder.join(SERVICE).exists() {
        LOST
    } else {
        "it is not there: name the folder of an authority (--state), or make one with `init`"
    }
}

/// A service is made together with its store, which cannot issue certificates for another authority.
const LOST: &str = "it is missing, and the authority's service is here: put back the last backup of the folder, or make \
     a new authority in another folder";

/// Removes the files of an `init` that was killed.
fn drop_unfinished(folder: &Path) -> Result<()> {
    use crate::tls::{AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE};
    let (draft, service) = (folder.join(DRAFT), folder.join(SERVICE));
    if !draft.exists() {
        return if service.exists() { Err(Error::file(&folder.join(FILE), &LOST)) } else { Ok(()) };
    }
    // The draft is removed last: it shows that the other files belong to no authority.
    let ours = [AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE];
    for entry in std::fs::read_dir(&service).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if ours.iter().any(|our| name == *our || name.starts_with(&format!(".{our}."))) {
            std::fs::remove_file(entry.path()).map_err(|e| Error::file(&entry.path(), &e))?;
        }
    }
    remove_store(&draft);
    Ok(())
}

/// Removes an incomplete store, which would block the next attempt.
fn remove_store(draft: &Path) {
    for ending in ENDINGS.iter().rev() {
        let _ = std::fs::remove_file(format!("{}{ending}", draft.display()));
    }
}

/// Uses a log (WAL), so that commands can read while `serve` writes. On a file system without shared maps it uses a
/// rollback journal, and the processes wait for each other.
fn keep_log(draft: &Path) -> Result<()> {
    let log = Connection::open(draft)?;
    let kept = log
        .query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))
        .and_then(|()| log.query_row("SELECT COUNT(*) FROM config", [], |_| Ok(())));
    drop(log);
    match kept {
        Err(e) if store_check::lacks_shared_map(&e) => {
            let alone = Connection::open(draft)?;
            // A process that has the store to itself can leave the log without a shared map.
            alone.execute_batch("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = DELETE;")?;
            drop(alone);
            // Removes a file that the failed attempt has left. The log is not used any more.
            let _ = std::fs::remove_file(format!("{}-shm", draft.display()));
            tracing::warn!("the store's file system has no shared maps: commands and `serve` wait for each other");
            Ok(())
        }
        kept => Ok(kept?),
    }
}

fn write_party(folder: &Path, root: &str, certificate: &str, key: Option<&str>) -> Result<Draft> {
    use crate::tls::{AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE};
    let mut draft = Draft::new(folder)?;
    let files = [(AUTHORITY_FILE, Some(root)), (CERTIFICATE_FILE, Some(certificate)), (KEY_FILE, key)];
    for (name, content) in files {
        if let Some(content) = content {
            draft.write(name, content.as_bytes())?;
        }
    }
    Ok(draft)
}

#[cfg(test)]
mod tests {
    use super::may_lie;

    #[test]
    fn how_many_clients_may_lie_is_said_once() {
        assert_eq!(may_lie(None, None).ok(), Some(1));
        assert_eq!(may_lie(None, Some(0)).ok(), Some(0));
        assert_eq!(may_lie(Some(2), None).ok(), Some(2));
        assert_eq!(may_lie(Some(2), Some(2)).ok(), Some(2));
        let said = may_lie(Some(2), Some(1)).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(said.contains("--corrupt-clients 1") && said.contains("corrupt_clients=2"), "{said}");
    }
}
