//! The listeners of a service, and access control.

use crate::call_limits::CallLimits;
use crate::caller::Caller;
use crate::client::Target;
use crate::connection_limiter::{Admitted, ConnectionLimiter, Origin};
use crate::error::{Error, Result};
use crate::files::modes::check_place;
use crate::keyring::Devices;
use crate::revoked_hosts::RevokedHosts;
use crate::ring::SharedMemoryRing;
use crate::{FRAME, WINDOW, certificates};
use certificates::{Role, Subject};
use rustix::fs::{Gid, Mode};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::{Connected, TlsConnectInfo};
use tonic::{Request, Status};
use tower::layer::util::{Identity, Stack};

/// Streams of one connection: a host needs one per device.
const STREAMS: u32 = 128;
/// The number of admitted connections that are not yet served.
const BACKLOG: usize = 16;
/// The pause before the next attempt when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(50);
/// A connection that has been quiet for this long is pinged.
pub const QUIET: Duration = Duration::from_secs(30);
/// The connection ends if its peer does not answer a ping for this long.
const PONG: Duration = Duration::from_secs(30);

/// A server with the limits of this protocol. `request` is the time limit of a request that is one message.
#[must_use]
pub fn server(request: Duration) -> Server<Stack<CallLimits, Identity>> {
    Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(2 * WINDOW)
        .max_frame_size(FRAME)
        .max_concurrent_streams(STREAMS)
        .http2_keepalive_interval(Some(QUIET))
        .http2_keepalive_timeout(Some(PONG))
        .layer(CallLimits { request })
}

/// The connections that a server accepts.
pub type Connections<S> = ReceiverStream<std::io::Result<Admitted<S>>>;

/// A TCP listener, bound.
pub async fn tcp(target: &Target) -> Result<TcpListener> {
    let Target::Tls { host, port } = target else {
        return Err(Error::Configuration(format!("{target} is not host:port")));
    };
    TcpListener::bind((host.as_str(), *port)).await.map_err(|e| Error::Configuration(format!("{target}: {e}")))
}

/// Connections admitted by `limiter`, without Nagle's delay: a chunk's last packet does not wait for an
/// acknowledgement.
#[must_use]
pub fn incoming(listener: TcpListener, limiter: Arc<ConnectionLimiter>) -> Connections<TcpStream> {
    let (sender, receiver) = mpsc::channel(BACKLOG);
    tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                () = sender.closed() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((socket, address)) = accepted else {
                exhausted(&limiter).await;
                continue;
            };
            let Some(pass) = limiter.admit(Origin::address(address.ip())) else { continue };
            // A failure costs speed only.
            let _ = socket.set_nodelay(true);
            if sender.send(Ok(Admitted { socket, pass, ring: None })).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// Called when an accept fails, for example because descriptors have run out.
async fn exhausted(limiter: &ConnectionLimiter) {
    limiter.make_room();
    tokio::time::sleep(PAUSE).await;
}

/// A Unix socket in a folder that other users cannot write to. Only its owner may open it; with `group`, also the
/// members
/// of that group. [`Guard`] then checks the user.
///
/// A socket left by a dead engine is replaced. A socket that answers is not replaced, nor is any other file: a mistyped
/// path
/// may name a file of any kind.
pub fn unix(path: &Path, group: Option<Gid>) -> Result<UnixListener> {
    check(path, group)?;
    if std::fs::symlink_metadata(path).is_ok() {
        std::fs::remove_file(path).map_err(|e| Error::file(path, &e))?;
    }
    // The mode is set before the socket exists, rather than by a later chmod. The process has only one thread here.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    rustix::process::umask(before);
    let bound = bound.map_err(|e| Error::file(path, &e))?;
    if let Some(group) = group {
        // The group is set before its permission, so that no other group can open the socket in between.
        rustix::fs::chown(path, None, Some(group)).map_err(|e| {
            Error::file(path, &format!("cannot be given to group {group}: {e}; put the engine's user into it"))
        })?;
        rustix::fs::chmod(path, Mode::from_raw_mode(0o660)).map_err(|e| Error::file(path, &e))?;
    }
    Ok(bound)
}

/// Fails where [`unix`] would, and changes nothing.
pub fn check(path: &Path, group: Option<Gid>) -> Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    check_place(folder)?;
    if let Some(group) = group {
        passable(folder, group)?;
    }
    if let Ok(there) = std::fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            return Err(Error::file(
                path,
                &"a file that is not a socket exists there; choose a path that does not exist",
            ));
        }
        match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => return Err(Error::file(path, &"another engine answers there; stop it first")),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {}
            Err(e) => {
                return Err(Error::file(
                    path,
                    &format!("cannot tell whether a process answers there: {e}; remove it first"),
                ));
            }
        }
    }
    Ok(())
}

/// Fails if members of `group` cannot reach the socket through a folder.
fn passable(folder: &Path, group: Gid) -> Result<()> {
    let whole = folder.canonicalize().map_err(|e| Error::file(folder, &e))?;
    for folder in whole.ancestors() {
        let about = std::fs::metadata(folder).map_err(|e| Error::file(folder, &e))?;
        let bit = if about.gid() == group.as_raw() { 0o010 } else { 0o001 };
        if about.mode() & bit == 0 {
            let (mode, who) = (about.mode() & 0o7777, if bit == 0o010 { "g" } else { "o" });
            let reason = format!("mode {mode:o} keeps group {group} from the socket; chmod {who}+x it");
            return Err(Error::file(folder, &reason));
        }
    }
    Ok(())
}

/// The group with this name or number.
pub fn group(text: &str) -> Result<Gid> {
    if let Ok(number) = text.parse() {
        return Ok(Gid::from_raw(number));
    }
    let path = Path::new("/etc/group");
    let groups = std::fs::read_to_string(path).map_err(|e| Error::file(path, &e))?;
    let mut known = groups.lines().map(|line| line.split(':'));
    let number = known.find_map(|mut f| (f.next() == Some(text)).then(|| f.nth(1)?.parse().ok())).flatten();
    number
        .map(Gid::from_raw)
        .ok_or_else(|| Error::Configuration(format!("no group {text:?} in /etc/group; make it, or give its number")))
}

/// Connections of the Unix socket. A slow or malformed greeting does not delay other connections.
pub fn local(listener: UnixListener, limiter: Arc<ConnectionLimiter>) -> Connections<UnixStream> {
    let (sender, receiver) = mpsc::channel(BACKLOG);
    tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                () = sender.closed() => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((socket, _)) = accepted else {
                exhausted(&limiter).await;
                continue;
            };
            let Ok(user) = socket.peer_cred().map(|peer| peer.uid()) else { continue };
            let Some(pass) = limiter.admit(Origin::User(user)) else { continue };
            let sender = sender.clone();
            let mut io = Admitted { socket, pass, ring: None };
            tokio::spawn(async move {
                let greeted = tokio::select! {
                    greeted = greet(&io.socket) => greeted,
                    error = io.pass.ended() => Err(Error::Truncated(format!("a connection's greeting: {error}"))),
                };
                match greeted {
                    Ok(ring) => {
                        io.ring = ring;
                        let _ = sender.send(Ok(io)).await;
                    }
                    Err(error) => tracing::debug!(class = error.class(), "{error}"),
                }
            });
        }
    });
    ReceiverStream::new(receiver)
}

/// Reads the first bytes of a connection over the Unix socket.
async fn greet(socket: &UnixStream) -> Result<Option<Arc<SharedMemoryRing>>> {
    let failed = |e: std::io::Error| Error::Truncated(format!("a connection's greeting: {e}"));
    let greeting = socket.async_io(Interest::READABLE, || SharedMemoryRing::greeting(socket)).await.map_err(failed)?;
    Ok(greeting.transpose()?.map(Arc::new))
}

impl<S> Connected for Admitted<S> {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        Caller { origin: self.pass.origin(), ring: self.ring.clone(), tracker: self.pass.call_tracker() }
    }
}

/// The ring of the call's connection.
#[must_use]
pub fn ring<T>(request: &Request<T>) -> Option<Arc<SharedMemoryRing>> {
    request.extensions().get::<Caller>().and_then(|caller| caller.ring.clone())
}

/// The origin of a call.
#[must_use]
pub fn origin<T>(request: &Request<T>) -> Option<Origin> {
    request.extensions().get::<Caller>().map(|caller| caller.origin)
}

/// The subject of a call's verified certificate.
pub fn caller<T>(request: &Request<T>) -> Result<Subject> {
    let certificates = request.extensions().get::<TlsConnectInfo<Caller>>().and_then(TlsConnectInfo::peer_certs);
    let leaf = certificates.as_ref().and_then(|chain| chain.first());
    certificates::subject(leaf.ok_or_else(|| Error::Access("this call needs a client certificate".into()))?)
}

/// The permissions of a call. The [`Guard`] attaches them to each admitted call.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The training host; `None` over a Unix socket.
    pub host: Option<String>,
    /// The owner by which calls are counted: a training host, or a user of this machine.
    pub owner: String,
    pub devices: Devices,
}

/// The grant of a call.
pub fn grant<T>(request: &Request<T>) -> Result<Grant> {
    let found = request.extensions().get::<Grant>().cloned();
    found.ok_or_else(|| Error::Access("this call has passed no guard".into()))
}

/// A user of this machine and a device that it may use over the Unix socket: `UID=DEVICE`.
#[derive(Debug, Clone)]
pub struct UserDevice {
    pub user: u32,
    pub device: String,
}

impl std::str::FromStr for UserDevice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once('=').and_then(|(user, device)| Some((user.parse().ok()?, device)));
        match parts {
            Some((user, device)) if !device.is_empty() => Ok(UserDevice { user, device: device.to_owned() }),
            _ => Err(Error::Configuration(format!(
                "{text:?} is not UID=DEVICE: a user's number and a device that it may use, once for each device"
            ))),
        }
    }
}

/// Decides which callers may use an engine, and which devices. Over TCP, these are the listed hosts, each with the
/// devices in its certificate, until the authority revokes them. Over a Unix socket, the engine's own user and root use
/// all devices, since they can read the engine's files. A listed user uses the devices listed with it.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    pub hosts: BTreeSet<String>,
    pub users: BTreeMap<u32, BTreeSet<String>>,
    pub revoked: Arc<RevokedHosts>,
}

impl Guard {
    /// The permissions of a call; an error if the caller has none.
    pub fn check(&self, request: &Request<()>) -> Result<Grant> {
        if let Some(Origin::User(user)) = origin(request) {
            let all = user == rustix::process::geteuid().as_raw() || user == 0;
            let devices = if all { Some(Devices::All) } else { self.users.get(&user).cloned().map(Devices::Named) };
            let devices = devices.ok_or_else(|| {
                Error::Access(format!("user {user} may not use this engine; start it with --allow-uid {user}=DEVICE"))
            })?;
            return Ok(Grant { host: None, owner: Origin::User(user).to_string(), devices });
        }
        let party = caller(request)?;
        if self.revoked.is_revoked(&party.name) {
            return Err(Error::Revoked(party.to_string()));
        }
        if party.role == Role::Host && self.hosts.contains(&party.name) {
            let Subject { name, devices, .. } = party;
            return Ok(Grant { host: Some(name.clone()), owner: name, devices: Devices::Named(devices) });
        }
        Err(Error::Access(format!("{party} may not use this engine; start it with --host for each training host")))
    }
}

impl tonic::service::Interceptor for Guard {
    fn call(&mut self, mut request: Request<()>) -> std::result::Result<Request<()>, Status> {
        let grant = self.check(&request)?;
        request.extensions_mut().insert(grant);
        Ok(request)
    }
}

/// The connections of the metrics page, under the same limits. Each may last as long as a first call may take.
pub struct Pages {
    connections: Connections<TcpStream>,
    address: std::net::SocketAddr,
}

impl Pages {
    pub async fn bind(address: std::net::SocketAddr, limiter: Arc<ConnectionLimiter>) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Pages { address: listener.local_addr()?, connections: incoming(listener, limiter) })
    }

    /// The address. For port 0 it has the actual port.
    #[must_use]
    pub fn address(&self) -> std::net::SocketAddr {
        self.address
    }
}

impl axum::serve::Listener for Pages {
    type Io = Admitted<TcpStream>;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.connections.next().await {
            Some(Ok(connection)) => (connection, self.address),
            // The listener ends with the process.
            _ => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        Ok(self.address)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn groups_have_names_and_numbers() {
        assert_eq!(group("root").unwrap().as_raw(), 0);
        assert_eq!(group("61100").unwrap().as_raw(), 61100);
        assert!(group("no such group").unwrap_err().to_string().contains("no such group"));
    }
}
