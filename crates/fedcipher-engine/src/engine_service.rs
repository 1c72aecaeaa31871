//! The gRPC service of the engine: finds the party, runs the pumps, counts.

use crate::error::{Error, Result};
use crate::keyring::{Keyring, Party};
use crate::listen;
use crate::metrics::Metrics;
use crate::proto::{self, decrypt_request, encrypt_request, engine_server, import_state_request};
use crate::ring::Ring;
use crate::streams::{Pump, RingEnd, compute};
use crate::{CHUNK, MAX_MESSAGE};
use bytes::{Bytes, BytesMut};
use fedcipher_core::codec::Layout;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// Replies made but not yet taken by the connection.
const AHEAD: usize = 2;

/// Where keys come from when one is asked for that is not here.
#[tonic::async_trait]
pub trait KeySource: Send + Sync {
    /// Asks for the current keys of `device`.
    async fn refresh(&self, device: &str) -> Result<()>;
}

/// For keys given at the start.
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
    pub metrics: Arc<Metrics>,
    /// Longest silence of a host in mid-stream.
    pub stall: Duration,
    /// Largest update that is precomputed: what is made ahead stays in memory.
    pub ahead_elements: usize,
}

type Replies<T> = Pin<Box<dyn Stream<Item = std::result::Result<T, Status>> + Send>>;

impl EngineService {
    /// The party of `device` in `epoch` (0: newest); asks the key source once for what is not here.
    async fn party(&self, device: &str, epoch: u64) -> Result<Arc<Party>> {
        let device = self.keyring.device(device)?;
        let epoch = Some(epoch).filter(|e| *e != 0);
        match self.keyring.party(&device, epoch) {
            Err(Error::Core(fedcipher_core::Error::Epoch { .. }) | Error::Access(_)) => {
                self.source.refresh(&device).await?;
                self.keyring.party(&device, epoch)
            }
            other => other,
        }
    }

    async fn run_encrypt(
        &self,
        mut requests: Streaming<proto::EncryptRequest>,
        ring: Option<Arc<Ring>>,
        replies: &mpsc::Sender<std::result::Result<proto::EncryptReply, Status>>,
    ) -> Result<()> {
        let mut pump = Pump { requests: &mut requests, replies, ring: None, metrics: &self.metrics, stall: self.stall };
        let Some(proto::EncryptRequest { part: Some(encrypt_request::Part::Begin(begin)) }) = pump.next().await? else {
            return Err(Error::Protocol("an Encrypt call starts with begin".into()));
        };
        pump.ring = ring.filter(|_| begin.ring).map(RingEnd::new);
        let party = self.party(&begin.device, begin.epoch).await?;
        pump.encrypt(&party, begin).await
    }

    async fn run_decrypt(
        &self,
        mut requests: Streaming<proto::DecryptRequest>,
        ring: Option<Arc<Ring>>,
        replies: &mpsc::Sender<std::result::Result<proto::DecryptReply, Status>>,
    ) -> Result<()> {
        let mut pump = Pump { requests: &mut requests, replies, ring: None, metrics: &self.metrics, stall: self.stall };
        let Some(proto::DecryptRequest { part: Some(decrypt_request::Part::Begin(begin)) }) = pump.next().await? else {
            return Err(Error::Protocol("a Decrypt call starts with begin".into()));
        };
        pump.ring = ring.filter(|_| begin.ring).map(RingEnd::new);
        let mut buffer = BytesMut::new();
        let (head_len, head) = pump.head(&mut buffer).await?;
        // The frame says which epoch it is of.
        let party = self.party(&begin.device, head.header.epoch).await?;
        pump.decrypt(&party, &begin, buffer, head_len, head).await
    }

    /// Runs `work` beside the answer's stream; an error is the stream's last item.
    fn spawn<T: Send + 'static>(
        &self,
        call: &'static str,
        replies: mpsc::Sender<std::result::Result<T, Status>>,
        work: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        let metrics = Arc::clone(&self.metrics);
        tokio::spawn(async move {
            metrics.streams.inc();
            let result = work.await;
            metrics.streams.dec();
            metrics.ended(call, &result);
            if let Err(error) = result {
                tracing::info!(call, class = error.class(), "{error}");
                // A host that has gone needs no answer.
                let _ = replies.send(Err(error.into())).await;
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
        let device = self.keyring.device(&request.get_ref().device)?;
        let party = self.party(&device, 0).await?;
        let epochs = self.keyring.epochs(&device);
        Ok(Response::new(proto::DescribeReply { spec: party.spec.to_string(), client: party.client, epochs }))
    }

    async fn encrypt(
        &self,
        request: Request<Streaming<proto::EncryptRequest>>,
    ) -> std::result::Result<Response<Self::EncryptStream>, Status> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let (service, replies, ring) = (self.clone(), sender.clone(), listen::ring(&request));
        let requests = request.into_inner();
        self.spawn("encrypt", sender, async move { service.run_encrypt(requests, ring, &replies).await });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn decrypt(
        &self,
        request: Request<Streaming<proto::DecryptRequest>>,
    ) -> std::result::Result<Response<Self::DecryptStream>, Status> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let (service, replies, ring) = (self.clone(), sender.clone(), listen::ring(&request));
        let requests = request.into_inner();
        self.spawn("decrypt", sender, async move { service.run_decrypt(requests, ring, &replies).await });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn precompute(
        &self,
        request: Request<proto::PrecomputeRequest>,
    ) -> std::result::Result<Response<proto::PrecomputeReply>, Status> {
        let request = request.into_inner();
        let layout = Layout::decode(&request.layout).map_err(Error::from)?;
        let party = self.party(&request.device, request.epoch).await?;
        let made = layout.elements() <= self.ahead_elements;
        if made {
            compute(move || Ok(party.encryptor().precompute(request.round, &layout, &request.plan)?)).await?;
        }
        Ok(Response::new(proto::PrecomputeReply { made }))
    }

    async fn export_state(
        &self,
        request: Request<proto::StateRequest>,
    ) -> std::result::Result<Response<Self::ExportStateStream>, Status> {
        let request = request.into_inner();
        let party = self.party(&request.device, request.epoch).await?;
        let state = Bytes::from(party.encryptor().export_state());
        let chunks = (0..state.len()).step_by(CHUNK).map(move |at| {
            let data = state.slice(at..state.len().min(at + CHUNK));
            Ok(proto::StateChunk { data })
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(chunks))))
    }

    async fn import_state(
        &self,
        request: Request<Streaming<proto::ImportStateRequest>>,
    ) -> std::result::Result<Response<proto::ImportStateReply>, Status> {
        let mut parts = request.into_inner();
        let first = tokio::time::timeout(self.stall, parts.next());
        let first = first.await.map_err(|_| Error::Stalled { seconds: self.stall.as_secs() })?.transpose()?;
        let Some(import_state_request::Part::Begin(begin)) = first.and_then(|m| m.part) else {
            return Err(Error::Protocol("an ImportState call starts with begin".into()).into());
        };
        let mut state = Vec::new();
        while let Some(message) = parts.next().await.transpose()? {
            if let Some(import_state_request::Part::Data(data)) = message.part
                && state.len() + data.len() <= MAX_MESSAGE
            {
                state.extend_from_slice(&data);
            } else {
                return Err(Error::Protocol("state is data after one begin, at most 1 GiB".into()).into());
            }
        }
        let party = self.party(&begin.device, begin.epoch).await?;
        party.encryptor().import_state(&state).map_err(Error::from)?;
        Ok(Response::new(proto::ImportStateReply {}))
    }
}
