//! An engine's side of the authority: fetches each device's keys, forgets ended epochs.

use crate::client::{Peer, Target, channel};
use crate::engine_service::KeySource;
use crate::error::{Error, Result};
use crate::keyring::Keyring;
use crate::proto::{self, authority_client::AuthorityClient};
use crate::sealed_keys::Recipient;
use crate::tls::Credentials;
use crate::{MAX_MESSAGE, certificates};
use fedcipher_core::keys::ClientKey;
use fedcipher_core::ledger::Folder;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tonic::transport::Channel;

/// The connection to one authority, for all devices of an engine.
pub struct AuthoritySource {
    keyring: Arc<Keyring>,
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
    /// `devices`: name and credentials folder.
    pub fn new(keyring: Arc<Keyring>, target: &Target, devices: &[(String, std::path::PathBuf)]) -> Result<Self> {
        let mut clients = BTreeMap::new();
        for (name, folder) in devices {
            let client =
                AuthorityClient::new(channel(target, Some(folder), None)?).max_decoding_message_size(MAX_MESSAGE);
            clients.insert(name.clone(), (client, Peer::new(target)));
        }
        let instance = instance(keyring.state())?;
        Ok(AuthoritySource { keyring, instance, clients })
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
        let reply = match peer.answer(client.clone().keys(request).await) {
            Ok(reply) => reply,
            Err(error) => {
                if error.class() == "RevokedError" {
                    self.keyring.keep(device, &[]);
                }
                return Err(error);
            }
        };
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
