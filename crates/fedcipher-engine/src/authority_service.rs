//! The gRPC service of the authority. The certificate names the caller, and the store decides what the caller may get.

use crate::authority::{self, Authority, DeviceKey, Forgotten, Issue};
use crate::boot_time::BootTime;
use crate::certificates::{Role, Subject};
use crate::error::{Error, Result};
use crate::listen::{self, caller};
use crate::proto::{self, authority_server};
use crate::rejection_log::RejectionLog;
use crate::sealed_keys;
use fedcipher_core::{ClientId, Epoch};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::block_in_place;
use tonic::{Request, Response, Status};

const INSTANCE_LEN: usize = 16;

/// Longest time that a call, or the service's own upkeep, waits for other processes that read the store.
const FORGET: Duration = Duration::from_millis(200);
/// Interval of the upkeep of the store.
const UPKEEP: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct AuthorityService {
    store: Arc<Mutex<Authority>>,
    refusals: RejectionLog,
}

impl AuthorityService {
    #[must_use]
    pub fn new(store: Authority) -> Self {
        AuthorityService { store: Arc::new(Mutex::new(store)), refusals: RejectionLog::default() }
    }

    /// Runs `work` on the store.
    pub fn with<T>(&self, work: impl FnOnce(&mut Authority) -> Result<T>) -> Result<T> {
        block_in_place(|| work(&mut self.store.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Records a rejected attempt. The first of its kind is in the log before the answer is sent.
    fn refuse(&self, party: &impl ToString, what: &str, error: Error) -> Error {
        self.note(party, &format!("refuse {what}"));
        error
    }

    /// Counts an event that may occur without limit. The first of its kind is logged at once.
    fn note(&self, party: &impl ToString, what: &str) {
        if self.counted(party, what) {
            self.write_refusals();
        }
    }

    /// Records a rejected connection, without touching the store.
    pub fn rejected_connection(&self, party: &impl ToString, what: &str) {
        self.counted(party, &format!("refuse {what}"));
    }

    /// True if the event is the first of its kind in this minute.
    fn counted(&self, party: &impl ToString, what: &str) -> bool {
        authority::minute().is_ok_and(|minute| self.refusals.note(&minute, party.to_string(), what))
    }

    pub fn write_refusals(&self) {
        let rows = self.refusals.take();
        if !rows.is_empty()
            && let Err(error) = self.with(|store| store.refused(&rows))
        {
            tracing::warn!(class = error.class(), "refused attempts are not in the audit log: {error}");
        }
    }

    /// Makes the next epoch. Its keys are made while other calls are served.
    pub fn rotate(&self) -> Result<Epoch> {
        let plan = self.with(|store| store.plan(false))?;
        let keys = block_in_place(|| plan.make())?;
        self.with(|store| store.begin_epoch(keys, false))
    }

    fn replace_closed(&self) -> Result<Option<Epoch>> {
        let now = BootTime::now()?;
        let Some(plan) = self.with(|store| store.plan_replacement(&now))? else { return Ok(None) };
        let keys = block_in_place(|| plan.make())?;
        self.with(|store| store.replace_by(keys, &now))
    }

    /// Replaces closed keys when a replacement is due.
    pub async fn replacements(self) {
        let mut tick = tokio::time::interval(UPKEEP);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            match self.replace_closed() {
                Ok(None) => {}
                Ok(Some(epoch)) => {
                    tracing::warn!(epoch = epoch.get(), "rotated: more devices than may lie report their key closed")
                }
                Err(error) => tracing::warn!(class = error.class(), "closed keys are not replaced: {error}"),
            }
        }
    }

    /// Writes rejections to the store, and empties the store's log after changes by this or another process.
    pub async fn upkeep(self) {
        let mut tick = tokio::time::interval(UPKEEP);
        let mut in_use = 0u32;
        loop {
            tick.tick().await;
            self.write_refusals();
            match self.with(|store| if store.has_log() { store.forget(FORGET) } else { Ok(Forgotten::All) }) {
                Ok(Forgotten::All) => in_use = 0,
                Ok(Forgotten::LogInUse) => {
                    in_use += 1;
                    if in_use.is_power_of_two() && in_use >= 8 {
                        tracing::warn!(
                            "another process has been reading the store for {in_use} s: the keys of ended epochs stay \
                             in its log (authority.db-wal) until it ends"
                        );
                    }
                }
                Err(error) => tracing::warn!(class = error.class(), "the store's log: {error}"),
            }
        }
    }

    /// The caller, who must be enrolled.
    pub fn known<T>(&self, request: &Request<T>) -> Result<Subject> {
        let party = caller(request).map_err(|error| match listen::origin(request) {
            Some(origin) => self.refuse(&origin, "a certificate of no party", error),
            None => error,
        })?;
        self.with(|store| store.check(&party)).map_err(|error| match error {
            Error::Revoked(_) => self.refuse(&party, "revoked", error),
            Error::Access(_) => self.refuse(&party, "not enrolled", error),
            other => other,
        })?;
        Ok(party)
    }

    /// The caller, who must be enrolled in `role`; `known` has asked the store when the call began.
    fn enrolled<T>(&self, request: &Request<T>, role: Role) -> Result<Subject> {
        let party = caller(request)?;
        if party.role != role {
            let error = Error::Access(format!("{party} called what is for a {}", role.name()));
            return Err(self.refuse(&party, &format!("a call for a {}", role.name()), error));
        }
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
            let error = Error::Access(format!("{party} asked for the keys of another device; a device gets its own"));
            return Err(self.refuse(&party, "another device's key", error).into());
        }
        if request.instance.len() != INSTANCE_LEN {
            return Err(Error::Protocol(format!("an instance is {INSTANCE_LEN} bytes")).into());
        }
        // Checked before a key is bound to the engine: with an invalid public key the engine could not open it.
        sealed_keys::check(&request.hpke_public)?;
        if !request.closed.is_empty() {
            let closed = Epoch::list(request.closed.iter().copied());
            self.with(|store| store.report_closed(&party.name, &request.instance, &closed))?;
        }
        let issue = |store: &mut Authority| {
            if let Some(card) = &request.card {
                store.show_card(&party.name, &card.verify, &card.sealing)?;
            }
            store.device_keys(&party.name, &request.instance, &Epoch::list(request.held.iter().copied()))
        };
        let (issued, show_card, spec, usable, revoked_hosts) = self.with(|store| {
            // A device must show its card before keys are issued and so bound to its engine.
            let show_card = store.has_rosters() && request.card.is_none();
            let issued = if show_card { Ok(Vec::new()) } else { issue(store) };
            Ok((issued, show_card, store.spec()?, store.usable()?, store.revoked_hosts()?))
        })?;
        let (keys, refused) = match issued {
            Ok(keys) => (keys, None),
            // The engine must learn of ended epochs and revoked hosts in any case.
            Err(error @ (Error::IdentityInUse { .. } | Error::OtherIdentity { .. })) => {
                let what = match &error {
                    Error::IdentityInUse { epoch, .. } => format!("second engine epoch {epoch}"),
                    _ => "another card".to_owned(),
                };
                let error = self.refuse(&party, &what, error);
                (Vec::new(), Some(proto::Refusal { class: error.class().into(), message: error.to_string() }))
            }
            Err(error) => return Err(error.into()),
        };
        let seal = |DeviceKey { epoch, issue, .. }: DeviceKey| {
            let issued = match issue {
                Issue::Roster(key) => {
                    proto::IssuedKey { epoch: epoch.get(), roster: key.into(), ..proto::IssuedKey::default() }
                }
                Issue::Key(key) => {
                    let (encapped, sealed) = sealed_keys::seal_key(&request.hpke_public, &party.name, epoch, &key)?;
                    let (encapped, sealed) = (encapped.into(), sealed.into());
                    proto::IssuedKey { epoch: epoch.get(), encapped, sealed, ..proto::IssuedKey::default() }
                }
            };
            Ok(issued)
        };
        for key in keys.iter().filter(|key| key.again) {
            self.note(&party, &format!("issue again epoch {}", key.epoch));
        }
        let usable = usable.into_iter().map(Epoch::get).collect();
        let issued = keys.into_iter().map(seal).collect::<Result<Vec<_>>>()?;
        // Not logged if empty: every engine asks every few seconds.
        if !issued.is_empty() {
            tracing::info!(device = party.name, epochs = ?issued.iter().map(|k| k.epoch).collect::<Vec<_>>(), "issued");
        }
        Ok(Response::new(proto::KeysReply { spec, issued, usable, revoked_hosts, show_card, refused }))
    }

    async fn server_keys(
        &self,
        request: Request<proto::ServerKeysRequest>,
    ) -> std::result::Result<Response<proto::ServerKeysReply>, Status> {
        self.enrolled(&request, Role::Server)?;
        let held = Epoch::list(request.into_inner().held);
        let reply = self.with(|store| {
            let issued = store.server_keys(&held)?;
            Ok(proto::ServerKeysReply {
                spec: store.spec()?,
                issued: issued
                    .into_iter()
                    .map(|(epoch, key)| proto::EpochKey { epoch: epoch.get(), key: key.into() })
                    .collect(),
                usable: store.usable()?.into_iter().map(Epoch::get).collect(),
                revoked: store.revoked()?.into_iter().map(ClientId::get).collect(),
            })
        })?;
        Ok(Response::new(reply))
    }

    async fn settle(
        &self,
        request: Request<proto::SettleRequest>,
    ) -> std::result::Result<Response<proto::SettleReply>, Status> {
        self.enrolled(&request, Role::Server)?;
        let epoch = Epoch::new(request.into_inner().epoch);
        self.with(|store| {
            if store.finish_epoch(epoch)? && store.forget(FORGET)? == Forgotten::LogInUse {
                tracing::info!("another process reads the store: ended keys leave its log when it is done");
            }
            Ok(())
        })?;
        Ok(Response::new(proto::SettleReply {}))
    }
}
