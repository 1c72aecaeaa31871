//! An engine's connection to the authority: fetches each device's keys, forgets ended epochs.

use crate::certificates;
use crate::client::{Patience, Peer, Target, channel};
use crate::engine_service::KeySource;
use crate::error::{Error, Result};
use crate::files;
use crate::keyring::Keyring;
use crate::proto::{self, authority_client::AuthorityClient};
use crate::revoked_hosts::RevokedHosts;
use crate::sealed_keys::Recipient;
use crate::tls::Credentials;
use fedcipher_core::keys::{ClientKey, ServerKey};
use fedcipher_core::ledger::Folder;
use fedcipher_core::oneshot::identity::Identity;
use fedcipher_core::oneshot::roster::{Roles, Roster};
use fedcipher_core::wire::hex;
use fedcipher_core::{Epoch, key_file, registry};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tonic::transport::Channel;

/// Longest wait for the authority's answer. Together with `--refresh`, it bounds the time until an engine knows of a
/// revocation.
const ANSWER: Duration = Duration::from_secs(30);
/// Largest answer: keys of two epochs for one device, with their rosters.
const MAX_KEYS: usize = 64 << 20;

/// The fingerprint in the form of Python's commands (`keys/roster.py`).
fn fingerprint(of: [u8; 32]) -> String {
    let groups: Vec<String> = of.chunks(2).map(hex).collect();
    groups.join("-")
}

fn list_parties(epoch: Epoch, roster: &Roster) {
    for party in roster.parties() {
        let Roles { client, member, reader } = party.roles;
        let (epoch, number) = (epoch.get(), party.id.get());
        let (name, keys) = (&party.name, fingerprint(party.fingerprint()));
        tracing::info!(epoch, number, name, client, member, reader, keys, "party of the roster");
    }
}

/// Epochs as numbers, for messages to the authority.
fn numbers(epochs: Vec<Epoch>) -> Vec<u64> {
    epochs.into_iter().map(Epoch::get).collect()
}

/// The path of the identity of `device`. The file must survive restarts, like the ledgers beside it.
fn identity_file(state: &Path, device: &str) -> PathBuf {
    state.join(format!("{device}.identity"))
}

fn read_identity(state: &Path, device: &str) -> Result<Option<Identity>> {
    let path = identity_file(state, device);
    if !path.exists() {
        return Ok(None);
    }
    Ok(Some(Identity::from_bytes(&key_file::read(&path)?)?))
}

/// The connection to one authority, for all devices of an engine.
pub struct AuthoritySource {
    keyring: Arc<Keyring>,
    hosts: Arc<RevokedHosts>,
    instance: Vec<u8>,
    /// Rosters whose parties have been logged.
    shown: Mutex<BTreeSet<[u8; 32]>>,
    identities: Mutex<BTreeMap<String, Identity>>,
    lines: BTreeMap<String, Line>,
}

/// The connection of one device.
struct Line {
    client: AuthorityClient<Channel>,
    peer: Peer,
    /// Serialises requests. Two requests could insert the keys of one epoch twice, and the second keys would lack the
    /// reservations of the first. Of two new identities, the authority could know one and the disk the other.
    asking: tokio::sync::Mutex<()>,
}

/// The device in the certificate of a credentials folder.
pub fn device_of(folder: &Path) -> Result<String> {
    let party = certificates::subject_of_pem(&Credentials::new(folder).certificate()?)?;
    if party.role == certificates::Role::Device {
        return Ok(party.name);
    }
    Err(Error::Configuration(format!("{} holds the credentials of {party}, not of a device", folder.display())))
}

/// This engine's random name: the identity of the folder with its nonce ledgers. A holder of these ledgers may use a
/// key again. To the authority, an engine with a new folder is another engine, which does not get the same key.
fn instance(state: &Path) -> Result<Vec<u8>> {
    Ok(Folder::open(state)?.identity().to_vec())
}

impl AuthoritySource {
    /// `devices`: name and credentials folder. `hosts` receives the revocations.
    pub fn new(
        keyring: Arc<Keyring>,
        hosts: Arc<RevokedHosts>,
        target: &Target,
        devices: &[(String, std::path::PathBuf)],
    ) -> Result<Self> {
        let mut lines = BTreeMap::new();
        for (name, folder) in devices {
            let channel = channel(target, Some(folder), None, &Patience::default())?;
            let client = AuthorityClient::new(channel).max_decoding_message_size(MAX_KEYS);
            let line = Line { client, peer: Peer::new(target), asking: tokio::sync::Mutex::default() };
            lines.insert(name.clone(), line);
        }
        let instance = instance(keyring.state())?;
        let mut identities = BTreeMap::new();
        for name in lines.keys() {
            if let Some(identity) = read_identity(keyring.state(), name)? {
                identities.insert(name.clone(), identity);
            }
        }
        Ok(AuthoritySource {
            keyring,
            hosts,
            instance,
            identities: Mutex::new(identities),
            shown: Mutex::default(),
            lines,
        })
    }

    fn identity(&self, device: &str) -> Option<Identity> {
        self.identities.lock().unwrap_or_else(PoisonError::into_inner).get(device).cloned()
    }

    /// Makes a new identity of `device`. It is on disk before the authority sees it.
    fn make_identity(&self, device: &str) -> Result<()> {
        let made = Identity::generate()?;
        files::write_secret(&identity_file(self.keyring.state(), device), made.to_bytes())?;
        let keys = fingerprint(made.fingerprint());
        tracing::info!(device, keys, "identity made: every roster with this device must list these keys");
        self.identities.lock().unwrap_or_else(PoisonError::into_inner).insert(device.to_owned(), made);
        Ok(())
    }

    async fn ask(&self, line: &Line, device: &str, recipient: &Recipient) -> Result<proto::KeysReply> {
        let card = self.identity(device).map(|identity| proto::Card {
            verify: identity.verify_keys().to_vec().into(),
            sealing: identity.secret.public().into(),
        });
        let request = proto::KeysRequest {
            device: device.to_owned(),
            instance: self.instance.clone().into(),
            hpke_public: recipient.public().into(),
            held: numbers(self.keyring.epochs(device)),
            closed: numbers(tokio::task::block_in_place(|| self.keyring.closed(device))),
            card,
        };
        let mut client = line.client.clone();
        let answer = line.peer.answer(ANSWER, client.keys(request)).await;
        if answer.as_ref().is_err_and(|error| error.class() == "RevokedError") {
            tokio::task::block_in_place(|| self.keyring.keep(device, &[]));
        }
        answer
    }

    /// The key of `device` in `issued`.
    fn key(&self, device: &str, spec: &str, issued: &proto::IssuedKey, recipient: &Recipient) -> Result<ClientKey> {
        let epoch = Epoch::new(issued.epoch);
        if issued.roster.is_empty() {
            let bytes = recipient.open(device, epoch, &issued.encapped, &issued.sealed)?;
            return Ok(ClientKey::from_bytes(&bytes)?);
        }
        let identity = self.identity(device).ok_or_else(|| Error::Protocol("a roster before a card".into()))?;
        let server = ServerKey::from_bytes(&issued.roster)?;
        let (scheme, roster) = (registry::make(spec)?, Roster::parse(&server.public)?);
        let key = scheme.require_committee()?.join(&roster, &identity, epoch)?;
        if key.tag != server.tag {
            return Err(Error::Protocol(format!("the roster of epoch {epoch} is not the one that it names")));
        }
        self.show(device, epoch, &roster, scheme.require_committee()?.roster_fingerprint(&roster, epoch, None)?);
        Ok(key)
    }

    /// Logs the roster that a device has joined, and each roster's parties once. Only this log lets an operator check
    /// the authority's rosters.
    fn show(&self, device: &str, epoch: Epoch, roster: &Roster, digest: [u8; 32]) {
        if self.shown.lock().unwrap_or_else(PoisonError::into_inner).insert(digest) {
            list_parties(epoch, roster);
        }
        let (parties, roster) = (roster.parties().count(), fingerprint(digest));
        tracing::info!(device, epoch = epoch.get(), parties, roster, "roster joined");
    }

    /// Names of the devices.
    pub fn devices(&self) -> impl Iterator<Item = &String> {
        self.lines.keys()
    }
}

#[tonic::async_trait]
impl KeySource for AuthoritySource {
    async fn refresh(&self, device: &str) -> Result<()> {
        let recipient = Recipient::generate()?;
        let Some(line) = self.lines.get(device) else { return Ok(()) };
        let _one = tokio::time::timeout(ANSWER, line.asking.lock()).await.map_err(|_| line.peer.stuck(ANSWER))?;
        let mut reply = self.ask(line, device, &recipient).await?;
        if reply.show_card && self.identity(device).is_none() {
            self.make_identity(device)?;
            reply = self.ask(line, device, &recipient).await?;
        }
        // Done even if the keys are rejected: epochs end and hosts are revoked.
        self.hosts.revoked(reply.revoked_hosts);
        let usable = Epoch::list(reply.usable);
        tokio::task::block_in_place(|| self.keyring.keep(device, &usable));
        let refused = reply.refused.map(|r| Err(Error::remote(&r.class, &r.message)));
        let taken = reply.issued.iter().map(|issued| {
            let key = self.key(device, &reply.spec, issued, &recipient)?;
            tokio::task::block_in_place(|| self.keyring.insert(device, &reply.spec, &key))?;
            let key_set = hex(&key.tag.key_id);
            tracing::info!(device, epoch = issued.epoch, key_set, "key received");
            Ok(())
        });
        // Every key is tried, even after a failure.
        let all: Vec<Result<()>> = refused.into_iter().chain(taken).collect();
        all.into_iter().collect()
    }
}
