//! The gRPC service of the authority: the certificate says who calls, the store says what they may have.

use crate::authority::Authority;
use crate::certificates::{self, Party, Role};
use crate::error::{Error, Result};
use crate::proto::{self, authority_server};
use crate::sealed_keys;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::block_in_place;
use tonic::{Request, Response, Status};

const INSTANCE_LEN: usize = 16;

#[derive(Clone)]
pub struct AuthorityService {
    store: Arc<Mutex<Authority>>,
}

/// Who the verified certificate of a call names.
pub fn caller<T>(request: &Request<T>) -> Result<Party> {
    let certificates = request.peer_certs().unwrap_or_default();
    let leaf = certificates.first().ok_or_else(|| Error::Access("this call needs a client certificate".into()))?;
    certificates::party(leaf)
}

impl AuthorityService {
    #[must_use]
    pub fn new(store: Authority) -> Self {
        AuthorityService { store: Arc::new(Mutex::new(store)) }
    }

    /// Runs `work` on the store.
    pub fn with<T>(&self, work: impl FnOnce(&mut Authority) -> Result<T>) -> Result<T> {
        block_in_place(|| work(&mut self.store.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// The caller, who must be enrolled in `role`.
    fn enrolled<T>(&self, request: &Request<T>, role: Role) -> Result<Party> {
        let party = caller(request)?;
        if party.role != role {
            return Err(Error::Access(format!("{party} called what is for a {}", role.name())));
        }
        self.with(|store| store.check(&party))?;
        Ok(party)
    }
}

#[tonic::async_trait]
impl authority_server::Authority for AuthorityService {
    async fn keys(
        &self,
        request: Request<proto::KeysRequest>,
    ) -> std::result::Result<Response<proto::KeysReply>, Status> {
        let party = self.enrolled(&request, Role::Device)?;
        let request = request.into_inner();
        if request.device != party.name {
            let asked = request.device;
            return Err(Error::Access(format!("{party} asked for the keys of {asked}; a device gets its own")).into());
        }
        if request.instance.len() != INSTANCE_LEN {
            return Err(Error::Protocol(format!("an instance is {INSTANCE_LEN} bytes")).into());
        }
        let (spec, keys, usable) = self.with(|store| {
            let keys = store.device_keys(&party.name, &request.instance, &request.held)?;
            Ok((store.spec()?, keys, store.usable()?))
        })?;
        let seal = |k: crate::authority::DeviceKey| {
            let (encapped, sealed) = sealed_keys::seal(&request.hpke_public, &party.name, k.epoch, &k.key)?;
            Ok(proto::IssuedKey { epoch: k.epoch, encapped: encapped.into(), sealed: sealed.into() })
        };
        let issued = keys.into_iter().map(seal).collect::<Result<Vec<_>>>()?;
        tracing::info!(device = party.name, epochs = ?issued.iter().map(|k| k.epoch).collect::<Vec<_>>(), "issued");
        Ok(Response::new(proto::KeysReply { spec, issued, usable }))
    }

    async fn server_keys(
        &self,
        request: Request<proto::ServerKeysRequest>,
    ) -> std::result::Result<Response<proto::ServerKeysReply>, Status> {
        self.enrolled(&request, Role::Server)?;
        let held = request.into_inner().held;
        let reply = self.with(|store| {
            let issued = store.server_keys(&held)?;
            Ok(proto::ServerKeysReply {
                spec: store.spec()?,
                issued: issued.into_iter().map(|(epoch, key)| proto::EpochKey { epoch, key: key.into() }).collect(),
                usable: store.usable()?,
                revoked: store.revoked()?,
            })
        })?;
        Ok(Response::new(reply))
    }

    async fn settle(
        &self,
        request: Request<proto::SettleRequest>,
    ) -> std::result::Result<Response<proto::SettleReply>, Status> {
        self.enrolled(&request, Role::Server)?;
        let epoch = request.into_inner().epoch;
        self.with(|store| store.settle(epoch))?;
        Ok(Response::new(proto::SettleReply {}))
    }
}
