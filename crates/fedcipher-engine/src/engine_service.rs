//! The gRPC service of the engine: finds the device's keys, runs the sessions, counts calls.

use crate::compute::compute;
use crate::error::{Error, Result};
use crate::keyring::{DeviceKeys, Granted, Keyring};
use crate::listen::{self, Grant, grant};
use crate::memory_budget::MemoryBudget;
use crate::metrics::Metrics;
use crate::proto::{self, answer_request, decrypt_request, encrypt_request, engine_server, import_state_request};
use crate::revoked_hosts::RevokedHosts;
use crate::ring::SharedMemoryRing;
use crate::streams::{self, RingSide, StreamSession};
use crate::{MAX_MESSAGE, MESSAGE};
use bytes::{Bytes, BytesMut};
use fedcipher_core::codec::Layout;
use fedcipher_core::wire;
use fedcipher_core::{Epoch, RoundId};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// In place of an epoch number: the newest epoch held.
const NEWEST: Epoch = Epoch::new(0);

/// The number of replies that may be made before the connection takes them.
const AHEAD: usize = 2;

/// Largest request to a member: thousands of clients, each with its encrypted share.
const MAX_ANSWERED: usize = 64 << 20;

/// Largest number of prekeys in one call: the size of the largest committee.
const MAX_PREKEYS: usize = 64;
/// Largest prekey: a public key and a signature, in a frame.
const MAX_PREKEY: usize = 8 << 10;

/// Checks number and sizes before any frame is parsed.
fn check_prekeys(frames: &[Bytes]) -> Result<()> {
    if frames.len() <= MAX_PREKEYS && frames.iter().all(|frame| frame.len() <= MAX_PREKEY) {
        return Ok(());
    }
    let largest = frames.iter().map(Bytes::len).max().unwrap_or_default();
    Err(Error::Protocol(format!(
        "{} prekeys of at most {largest} bytes; a call takes at most {MAX_PREKEYS} of {MAX_PREKEY} bytes, one of each member",
        frames.len()
    )))
}

/// The source of keys that are requested but not held.
#[tonic::async_trait]
pub trait KeySource: Send + Sync {
    /// Asks for the current keys of `device`.
    async fn refresh(&self, device: &str) -> Result<()>;
}

/// The source of an engine whose keys are all given at the start.
pub struct NoSource;

#[tonic::async_trait]
impl KeySource for NoSource {
    async fn refresh(&self, _device: &str) -> Result<()> {
        Ok(())
    }
}

#[derive(Clone)]
pub struct EngineService {
    pub keyring: Arc<Keyring>,
    pub source: Arc<dyn KeySource>,
    pub hosts: Arc<RevokedHosts>,
    pub metrics: Arc<Metrics>,
    /// Longest silence of a host during a stream.
    pub stall: Duration,
    /// Largest update that is precomputed. Precomputed data stay in memory.
    pub ahead_elements: usize,
    /// The memory of messages that have not arrived completely.
    pub unfinished: MemoryBudget,
}

type Replies<T> = Pin<Box<dyn Stream<Item = std::result::Result<T, Status>> + Send>>;

impl EngineService {
    /// The keys of `device` in `epoch`. If they are not held, the key source is asked once.
    async fn device_keys(&self, device: &Granted, epoch: Epoch) -> Result<Arc<DeviceKeys>> {
        let epoch = Some(epoch).filter(|epoch| *epoch != NEWEST);
        match self.keyring.device_keys(device, epoch) {
            Err(Error::Core(fedcipher_core::Error::Epoch { .. }) | Error::Access(_)) => {
                self.source.refresh(device.name()).await?;
                self.keyring.device_keys(device, epoch)
            }
            other => other,
        }
    }

    /// The device with this name, if the call may use it.
    fn device(&self, grant: &Grant, asked: &str) -> Result<Granted> {
        self.keyring.device(&grant.devices, asked)
    }

    fn session<'a, In, Out>(
        &'a self,
        requests: &'a mut In,
        replies: &'a mpsc::Sender<std::result::Result<Out, Status>>,
        grant: &Grant,
    ) -> StreamSession<'a, In, Out> {
        let held = self.unfinished.call(&grant.owner);
        StreamSession { requests, replies, ring: None, metrics: &self.metrics, stall: self.stall, held }
    }

    async fn run_encrypt(
        &self,
        mut requests: Streaming<proto::EncryptRequest>,
        ring: Option<Arc<SharedMemoryRing>>,
        grant: &Grant,
        replies: &mpsc::Sender<std::result::Result<proto::EncryptReply, Status>>,
    ) -> Result<()> {
        let mut session = self.session(&mut requests, replies, grant);
        let Some(proto::EncryptRequest { part: Some(encrypt_request::Part::Begin(begin)) }) = session.next().await?
        else {
            return Err(Error::Protocol("an Encrypt call starts with begin".into()));
        };
        session.ring = ring.filter(|_| begin.ring).map(RingSide::new);
        let device_keys = self.device_keys(&self.device(grant, &begin.device)?, Epoch::new(begin.epoch)).await?;
        session.encrypt(&device_keys, begin).await
    }

    async fn run_decrypt(
        &self,
        mut requests: Streaming<proto::DecryptRequest>,
        ring: Option<Arc<SharedMemoryRing>>,
        grant: &Grant,
        replies: &mpsc::Sender<std::result::Result<proto::DecryptReply, Status>>,
    ) -> Result<()> {
        let mut session = self.session(&mut requests, replies, grant);
        let Some(proto::DecryptRequest { part: Some(decrypt_request::Part::Begin(begin)) }) = session.next().await?
        else {
            return Err(Error::Protocol("a Decrypt call starts with begin".into()));
        };
        let device = self.device(grant, &begin.device)?;
        session.ring = ring.filter(|_| begin.ring).map(RingSide::new);
        let mut buffer = BytesMut::new();
        let (head_len, head) = session.head(&mut buffer).await?;
        // The frame names its epoch.
        let device_keys = self.device_keys(&device, head.header.epoch).await?;
        session.decrypt(&device_keys, &begin, buffer, head_len, head).await
    }

    async fn run_import(&self, grant: &Grant, mut parts: Streaming<proto::ImportStateRequest>) -> Result<()> {
        let Some(import_state_request::Part::Begin(begin)) =
            streams::next(&mut parts, self.stall).await?.and_then(|m| m.part)
        else {
            return Err(Error::Protocol("an ImportState call starts with begin".into()));
        };
        let device = self.device(grant, &begin.device)?;
        let (mut state, mut held) = (Vec::new(), self.unfinished.call(&grant.owner));
        while let Some(message) = streams::next(&mut parts, self.stall).await? {
            match message.part {
                Some(import_state_request::Part::Data(data)) if state.len() + data.len() <= MAX_MESSAGE => {
                    held.grow_to(state.len() + data.len())?;
                    state.extend_from_slice(&data);
                }
                _ => return Err(Error::Protocol("state is data after one begin, at most 1 GiB".into())),
            }
        }
        let device_keys = self.device_keys(&device, Epoch::new(begin.epoch)).await?;
        device_keys.encryptor().await?.import_residual(&state)?;
        Ok(())
    }

    async fn run_export(
        &self,
        request: &proto::StateRequest,
        grant: &Grant,
        replies: &mpsc::Sender<std::result::Result<proto::StateChunk, Status>>,
    ) -> Result<()> {
        let device = self.device(grant, &request.device)?;
        let mut encryptor = self.device_keys(&device, Epoch::new(request.epoch)).await?.encryptor().await?;
        let export = move || Ok(encryptor.residual().map(|residual| residual.export_state()).unwrap_or_default());
        let state = Bytes::from(compute(export).await?);
        let mut held = self.unfinished.call(&grant.owner);
        held.grow_to(state.len())?;
        for at in (0..state.len()).step_by(MESSAGE) {
            let data = state.slice(at..state.len().min(at + MESSAGE));
            streams::answer(replies, proto::StateChunk { data }, self.stall).await?;
        }
        Ok(())
    }

    async fn run_answer(&self, grant: &Grant, mut parts: Streaming<proto::AnswerRequest>) -> Result<Vec<u8>> {
        let Some(answer_request::Part::Begin(begin)) =
            streams::next(&mut parts, self.stall).await?.and_then(|m| m.part)
        else {
            return Err(Error::Protocol("an Answer call starts with begin".into()));
        };
        let device = self.device(grant, &begin.device)?;
        let (mut frame, mut held) = (Vec::new(), self.unfinished.call(&grant.owner));
        while let Some(message) = streams::next(&mut parts, self.stall).await? {
            match message.part {
                Some(answer_request::Part::Frame(data)) if frame.len() + data.len() <= MAX_ANSWERED => {
                    held.grow_to(frame.len() + data.len())?;
                    frame.extend_from_slice(&data);
                }
                _ => {
                    return Err(Error::Protocol(
                        "a committee's request is data after one begin, at most 64 MiB".into(),
                    ));
                }
            }
        }
        // The frame names its epoch.
        let device_keys = self.device_keys(&device, wire::parse(&frame)?.header.epoch).await?;
        compute(move || Ok(device_keys.member()?.answer(&frame)?)).await
    }

    async fn run_take_prekeys(&self, grant: &Grant, request: proto::PrekeysRequest) -> Result<Vec<String>> {
        let device = self.device(grant, &request.device)?;
        check_prekeys(&request.frames)?;
        let mut encryptor = self.device_keys(&device, Epoch::new(request.epoch)).await?.encryptor().await?;
        compute(move || {
            let frames: Vec<&[u8]> = request.frames.iter().map(AsRef::as_ref).collect();
            Ok(encryptor.take_prekeys(&frames)?.iter().map(ToString::to_string).collect())
        })
        .await
    }

    async fn run_prekey(&self, grant: &Grant, request: proto::PrekeyRequest) -> Result<Vec<u8>> {
        let device_keys = self.device_keys(&self.device(grant, &request.device)?, Epoch::new(request.epoch)).await?;
        compute(move || Ok(device_keys.member()?.prekey()?)).await
    }

    async fn run_forget(&self, grant: &Grant, request: proto::ForgetRequest) -> Result<()> {
        let device = self.device(grant, &request.device)?;
        let named = self.device_keys(&device, Epoch::new(request.epoch)).await?;
        let all = if Epoch::new(request.epoch) == NEWEST {
            self.keyring.all_device_keys(device.name())
        } else {
            vec![Arc::clone(&named)]
        };
        compute(move || {
            let members: Vec<_> = all.iter().filter_map(|device_keys| device_keys.member().ok()).collect();
            if members.is_empty() {
                named.member()?;
            }
            // Every member is tried, even after a failure.
            let forgotten: Vec<_> = members.iter().map(|member| member.forget()).collect();
            Ok(forgotten.into_iter().collect::<fedcipher_core::Result<()>>()?)
        })
        .await
    }

    /// Runs `work` of a call with a single answer, as below, and counts the call.
    async fn counted<T>(&self, call: &'static str, grant: &Grant, work: impl Future<Output = Result<T>>) -> Result<T> {
        let result = self.unless_revoked(grant.host.as_deref(), work).await;
        self.metrics.ended(call, &result);
        result
    }

    /// Runs `work` of a call of `host`. Cancels it when the authority revokes the host.
    async fn unless_revoked<T>(&self, host: Option<&str>, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            error = self.hosts.cut(host) => Err(error),
            result = work => result,
        }
    }

    /// Runs `work` for `host` while its answers are streamed. An error is the stream's last item.
    fn spawn<T: Send + 'static>(
        &self,
        call: &'static str,
        host: Option<String>,
        replies: mpsc::Sender<std::result::Result<T, Status>>,
        work: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        let (service, metrics) = (self.clone(), Arc::clone(&self.metrics));
        tokio::spawn(async move {
            metrics.streams.inc();
            let result = service.unless_revoked(host.as_deref(), work).await;
            metrics.streams.dec();
            metrics.ended(call, &result);
            if let Err(error) = result {
                tracing::info!(call, class = error.class(), "{error}");
                // If the host is gone or reads no more, the error is dropped.
                let _ = tokio::time::timeout(service.stall, replies.send(Err(error.into()))).await;
            }
        });
    }
}

#[tonic::async_trait]
impl engine_server::Engine for EngineService {
    type EncryptStream = Replies<proto::EncryptReply>;
    type DecryptStream = Replies<proto::DecryptReply>;
    type ExportStateStream = Replies<proto::StateChunk>;

    async fn describe(
        &self,
        request: Request<proto::DescribeRequest>,
    ) -> std::result::Result<Response<proto::DescribeReply>, Status> {
        let device = self.device(&grant(&request)?, &request.get_ref().device)?;
        let device_keys = self.device_keys(&device, NEWEST).await?;
        let epochs = self.keyring.epochs(device.name()).into_iter().map(Epoch::get).collect();
        let client = device_keys.client.get();
        Ok(Response::new(proto::DescribeReply { spec: device_keys.spec.to_string(), client, epochs }))
    }

    async fn encrypt(
        &self,
        request: Request<Streaming<proto::EncryptRequest>>,
    ) -> std::result::Result<Response<Self::EncryptStream>, Status> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let (service, replies, ring) = (self.clone(), sender.clone(), listen::ring(&request));
        let grant = grant(&request)?;
        let (host, requests) = (grant.host.clone(), request.into_inner());
        self.spawn("encrypt", host, sender, async move { service.run_encrypt(requests, ring, &grant, &replies).await });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn decrypt(
        &self,
        request: Request<Streaming<proto::DecryptRequest>>,
    ) -> std::result::Result<Response<Self::DecryptStream>, Status> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let (service, replies, ring) = (self.clone(), sender.clone(), listen::ring(&request));
        let grant = grant(&request)?;
        let (host, requests) = (grant.host.clone(), request.into_inner());
        self.spawn("decrypt", host, sender, async move { service.run_decrypt(requests, ring, &grant, &replies).await });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn precompute(
        &self,
        request: Request<proto::PrecomputeRequest>,
    ) -> std::result::Result<Response<proto::PrecomputeReply>, Status> {
        let device = self.device(&grant(&request)?, &request.get_ref().device)?;
        let request = request.into_inner();
        let layout = Layout::decode(&request.layout).map_err(Error::from)?;
        let device_keys = self.device_keys(&device, Epoch::new(request.epoch)).await?;
        let made = layout.elements() <= self.ahead_elements;
        if made {
            let mut encryptor = device_keys.encryptor().await?;
            compute(move || Ok(encryptor.precompute(RoundId::new(request.round), &layout, &request.plan)?)).await?;
        }
        Ok(Response::new(proto::PrecomputeReply { made }))
    }

    async fn export_state(
        &self,
        request: Request<proto::StateRequest>,
    ) -> std::result::Result<Response<Self::ExportStateStream>, Status> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let (service, replies) = (self.clone(), sender.clone());
        let grant = grant(&request)?;
        let (host, request) = (grant.host.clone(), request.into_inner());
        self.spawn("export", host, sender, async move { service.run_export(&request, &grant, &replies).await });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn import_state(
        &self,
        request: Request<Streaming<proto::ImportStateRequest>>,
    ) -> std::result::Result<Response<proto::ImportStateReply>, Status> {
        let grant = grant(&request)?;
        self.unless_revoked(grant.host.as_deref(), self.run_import(&grant, request.into_inner())).await?;
        Ok(Response::new(proto::ImportStateReply {}))
    }

    async fn answer(
        &self,
        request: Request<Streaming<proto::AnswerRequest>>,
    ) -> std::result::Result<Response<proto::AnswerReply>, Status> {
        let grant = grant(&request)?;
        let frame = self.counted("answer", &grant, self.run_answer(&grant, request.into_inner())).await?;
        Ok(Response::new(proto::AnswerReply { frame: frame.into() }))
    }

    async fn take_prekeys(
        &self,
        request: Request<proto::PrekeysRequest>,
    ) -> std::result::Result<Response<proto::PrekeysReply>, Status> {
        let grant = grant(&request)?;
        let refused = self.counted("prekeys", &grant, self.run_take_prekeys(&grant, request.into_inner())).await?;
        Ok(Response::new(proto::PrekeysReply { refused }))
    }

    async fn prekey(
        &self,
        request: Request<proto::PrekeyRequest>,
    ) -> std::result::Result<Response<proto::PrekeyReply>, Status> {
        let grant = grant(&request)?;
        let frame = self.counted("prekey", &grant, self.run_prekey(&grant, request.into_inner())).await?;
        Ok(Response::new(proto::PrekeyReply { frame: frame.into() }))
    }

    async fn forget(
        &self,
        request: Request<proto::ForgetRequest>,
    ) -> std::result::Result<Response<proto::ForgetReply>, Status> {
        let grant = grant(&request)?;
        self.counted("forget", &grant, self.run_forget(&grant, request.into_inner())).await?;
        Ok(Response::new(proto::ForgetReply {}))
    }
}
