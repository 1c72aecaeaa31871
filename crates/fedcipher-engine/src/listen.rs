//! Where a service listens and who may come in.

use crate::client::Target;
use crate::error::{Error, Result};
use crate::ring::Ring;
use crate::{FRAME, WINDOW, authority_service, certificates};
use certificates::Role;
use rustix::fs::Mode;
use std::collections::BTreeSet;
use std::io::IoSlice;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::{Connected, TcpIncoming};
use tonic::{Request, Status};

/// Connections are told apart by the streams on them; one host needs no more.
const STREAMS: u32 = 1024;
/// Connections greeted and not yet served.
const BACKLOG: usize = 16;
/// Longest silence of a new connection.
const GREETING: Duration = Duration::from_secs(10);

/// A server with the limits of this protocol.
#[must_use]
pub fn server() -> Server {
    Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(2 * WINDOW)
        .max_frame_size(FRAME)
        .max_concurrent_streams(STREAMS)
}

/// A TCP listener, bound.
pub async fn tcp(target: &Target) -> Result<TcpListener> {
    let Target::Tls { host, port } = target else {
        return Err(Error::Configuration(format!("{target} is no host:port")));
    };
    TcpListener::bind((host.as_str(), *port)).await.map_err(|e| Error::Configuration(format!("{target}: {e}")))
}

/// Connections without Nagle's delay: a chunk's last packet does not wait for the other side's answer.
#[must_use]
pub fn incoming(listener: TcpListener) -> TcpIncoming {
    TcpIncoming::from(listener).with_nodelay(Some(true))
}

/// A Unix socket only its owner may open, in a folder nobody else can write to.
///
/// A socket left behind by a dead engine is replaced, one that answers is not.
pub fn unix(path: &Path) -> Result<UnixListener> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let about = std::fs::metadata(folder).map_err(|e| Error::file(folder, &e))?;
    let sticky = about.mode() & 0o1000 != 0;
    if about.mode() & 0o022 != 0 && !sticky {
        let reason = format!("mode {:o} lets others replace the socket; chmod go-w it", about.mode() & 0o7777);
        return Err(Error::file(folder, &reason));
    }
    if path.exists() {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(Error::file(path, &"another engine answers there; stop it first"));
        }
        std::fs::remove_file(path).map_err(|e| Error::file(path, &e))?;
    }
    // From its first moment, not from a chmod on: the process is still single-minded here.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    bound.map_err(|e| Error::file(path, &e))
}

/// A connection over the Unix socket, after its greeting.
pub struct Local {
    socket: UnixStream,
    info: LocalInfo,
}

/// Who is at the other end, and the ring it has brought.
#[derive(Debug, Clone)]
pub struct LocalInfo {
    user: Option<u32>,
    ring: Option<Arc<Ring>>,
}

impl Local {
    async fn greet(socket: UnixStream) -> Result<Self> {
        let failed = |e: std::io::Error| Error::Truncated(format!("a connection's greeting: {e}"));
        let greeting = socket.async_io(Interest::READABLE, || Ring::greeting(&socket)).await.map_err(failed)?;
        let user = socket.peer_cred().ok().map(|peer| peer.uid());
        Ok(Local { info: LocalInfo { user, ring: greeting.transpose()?.map(Arc::new) }, socket })
    }
}

/// Connections of the Unix socket; one whose greeting is slow or malformed holds up no other.
pub fn local(listener: UnixListener) -> ReceiverStream<std::io::Result<Local>> {
    let (sender, receiver) = mpsc::channel(BACKLOG);
    tokio::spawn(async move {
        loop {
            let socket = tokio::select! {
                () = sender.closed() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((socket, _)) = socket else {
                // Out of descriptors, say: others may end meanwhile.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let sender = sender.clone();
            tokio::spawn(async move {
                match tokio::time::timeout(GREETING, Local::greet(socket)).await {
                    Ok(Ok(connection)) => drop(sender.send(Ok(connection)).await),
                    Ok(Err(error)) => tracing::info!(class = error.class(), "{error}"),
                    Err(_) => tracing::info!("a connection said nothing for {} s", GREETING.as_secs()),
                }
            });
        }
    });
    ReceiverStream::new(receiver)
}

impl Connected for Local {
    type ConnectInfo = LocalInfo;

    fn connect_info(&self) -> LocalInfo {
        self.info.clone()
    }
}

impl AsyncRead for Local {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl AsyncWrite for Local {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

/// The ring of the connection that a call came over.
#[must_use]
pub fn ring<T>(request: &Request<T>) -> Option<Arc<Ring>> {
    request.extensions().get::<LocalInfo>().and_then(|info| info.ring.clone())
}

/// Who may use an engine: over TCP the hosts it lists, over a Unix socket its own user, root and the users
/// it lists.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    pub hosts: BTreeSet<String>,
    pub users: BTreeSet<u32>,
}

impl Guard {
    /// Refuses a call that comes from anyone else.
    pub fn check(&self, request: &Request<()>) -> Result<()> {
        if let Some(info) = request.extensions().get::<LocalInfo>() {
            let user = info.user;
            let own = rustix::process::geteuid().as_raw();
            return match user {
                Some(user) if user == own || user == 0 || self.users.contains(&user) => Ok(()),
                _ => Err(Error::Access(format!("user {user:?} may not use this engine; start it with --allow-uid"))),
            };
        }
        let party = authority_service::caller(request)?;
        if party.role == Role::Host && self.hosts.contains(&party.name) {
            return Ok(());
        }
        Err(Error::Access(format!("{party} may not use this engine; start it with --host for each training host")))
    }
}

impl tonic::service::Interceptor for Guard {
    fn call(&mut self, request: Request<()>) -> std::result::Result<Request<()>, Status> {
        self.check(&request)?;
        Ok(request)
    }
}
