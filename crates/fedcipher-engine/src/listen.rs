//! Where a service listens and who may come in.

use crate::client::Target;
use crate::error::{Error, Result};
use crate::{FRAME, WINDOW, authority_service, certificates};
use certificates::Role;
use rustix::fs::Mode;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tokio::net::{TcpListener, UnixListener};
use tonic::transport::Server;
use tonic::transport::server::{TcpIncoming, UdsConnectInfo};
use tonic::{Request, Status};

/// Connections are told apart by the streams on them; one host needs no more.
const STREAMS: u32 = 1024;

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
        if let Some(info) = request.extensions().get::<UdsConnectInfo>() {
            let user = info.peer_cred.map(|c| c.uid());
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
