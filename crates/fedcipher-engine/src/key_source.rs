//! An engine's side of the authority: fetches each device's keys, forgets ended epochs.

use crate::certificates;
use crate::client::{Patience, Peer, Target, channel};
use crate::engine_service::KeySource;
use crate::error::{Error, Result};
use crate::hosts::Hosts;
use crate::keyring::Keyring;
use crate::proto::{self, authority_client::AuthorityClient};
use crate::sealed_keys::Recipient;
use crate::tls::Credentials;
use fedcipher_core::keys::ClientKey;
use fedcipher_core::ledger::Folder;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::Channel;

/// Longest wait for the authority's answer: with `--refresh`, when an engine knows whom it has revoked.
const ANSWER: Duration = Duration::from_secs(30);
/// Keys of two epochs for one device, with what travels beside them.
const MAX_KEYS: usize = 64 << 20;

/// The connection to one authority, for all devices of an engine.
pub struct AuthoritySource {
    keyring: Arc<Keyring>,
    hosts: Arc<Hosts>,
    instance: Vec<u8>,
    clients: BTreeMap<String, (AuthorityClient<Channel>, Peer)>,
}

/// The device that a credentials folder belongs to.
pub fn device_of(folder: &Path) -> Result<String> {
    let party = certificates::party_of_pem(&Credentials::new(folder).certificate()?)?;
    if party.role == certificates::Role::Device {
        return Ok(party.name);
    }
    Err(Error::Configuration(format!("{} holds the credentials of {party}, not of a device", folder.display())))
}

/// This engine's random name: the identity of the folder with its nonce ledgers. Who has those may use a key
/// again; an engine whose folder was lost is another one to the authority, which refuses it the same key.
fn instance(state: &Path) -> Result<Vec<u8>> {
    Ok(Folder::open(state)?.identity().to_vec())
}

impl AuthoritySource {
    /// `devices`: name and credentials folder; `hosts` learns whom the authority has revoked.
    pub fn new(
        keyring: Arc<Keyring>,
        hosts: Arc<Hosts>,
        target: &Target,
        devices: &[(String, std::path::PathBuf)],
    ) -> Result<Self> {
        let mut clients = BTreeMap::new();
        for (name, folder) in devices {
            let channel = channel(target, Some(folder), None, &Patience::default())?;
            let client = AuthorityClient::new(channel).max_decoding_message_size(MAX_KEYS);
            clients.insert(name.clone(), (client, Peer::new(target)));
        }
        let instance = instance(keyring.state())?;
        Ok(AuthoritySource { keyring, hosts, instance, clients })
    }

    /// Names of the devices.
    pub fn devices(&self) -> impl Iterator<Item = &String> {
        self.clients.keys()
    }
}

#[tonic::async_trait]
impl KeySource for AuthoritySource {
    async fn refresh(&self, device: &str) -> Result<()> {
        let Some((client, peer)) = self.clients.get(device) else { return Ok(()) };
        let recipient = Recipient::default();
        let request = proto::KeysRequest {
            device: device.to_owned(),
            instance: self.instance.clone().into(),
            hpke_public: recipient.public().into(),
            held: self.keyring.epochs(device),
        };
        let mut client = client.clone();
        let reply = match peer.answer(ANSWER, client.keys(request)).await {
            Ok(reply) => reply,
            Err(error) => {
                if error.class() == "RevokedError" {
                    self.keyring.keep(device, &[]);
                }
                return Err(error);
            }
        };
        self.hosts.revoked(reply.revoked_hosts);
        for issued in reply.issued {
            let bytes = recipient.open(device, issued.epoch, &issued.encapped, &issued.sealed)?;
            let key = ClientKey::from_bytes(&bytes)?;
            tokio::task::block_in_place(|| self.keyring.insert(device, &reply.spec, &key))?;
            tracing::info!(device, epoch = issued.epoch, "key received");
        }
        self.keyring.keep(device, &reply.usable);
        Ok(())
    }
}
