//! The offload engine: encrypts and decrypts for training hosts that hold no key. `fedcipher-engine authority` is the key
//! authority, so that a wheel carries one file for both programs: most of each file are libraries that the other has too.

use clap::{Parser, Subcommand};
use fedcipher_core::key_file::{self, InUse, Sharing};
use fedcipher_core::keys::ClientKey;
use fedcipher_core::registry;
use fedcipher_core::rlwe::accelerator::Accelerators;
use fedcipher_engine::client::Target;
use fedcipher_engine::connection_limiter::ConnectionLimiter;
use fedcipher_engine::engine_service::{EngineService, KeySource, NoSource};
use fedcipher_engine::key_source::{AuthoritySource, device_of};
use fedcipher_engine::keyring::{self, Keyring};
use fedcipher_engine::listen::{self, Guard, Pages, UserDevice};
use fedcipher_engine::memory_budget::MemoryBudget;
use fedcipher_engine::metrics::Metrics;
use fedcipher_engine::proto::engine_server::EngineServer;
use fedcipher_engine::revoked_hosts::RevokedHosts;
use fedcipher_engine::text::one_line;
use fedcipher_engine::tls::{Credentials, KEY_FILE};
use fedcipher_engine::{Error, MAX_REQUEST, Result, affinity, certificates, console, files, hardening, logs};
use rustix::fs::Gid;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tonic::service::interceptor::InterceptedService;

#[allow(dead_code, reason = "its own `main` is that of the program fedcipher-authority")]
#[path = "fedcipher-authority.rs"]
mod authority;

/// Used because chunks are allocated and freed often, and musl's own allocator would ask the kernel for each.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Holds keys; encrypts and decrypts for training hosts that have none.
#[derive(Parser)]
#[command(version, after_help = "fedcipher-engine authority ...: the key authority, as fedcipher-authority")]
struct Options {
    /// How the log on standard error is written.
    #[arg(long, global = true, value_enum, default_value = "text")]
    log_format: logs::Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a key and a certificate request for `fedcipher-authority enrol --request`.
    Request {
        name: String,
        /// Folder for key.pem and request.pem.
        #[arg(long)]
        out: PathBuf,
    },
    /// Serve training hosts.
    Serve(Box<Serve>),
}

#[derive(clap::Args)]
struct Serve {
    /// unix:/path, or host:port for mutual TLS.
    #[arg(long)]
    listen: Target,
    /// Folder of the nonce ledgers; it must survive restarts.
    #[arg(long)]
    state: PathBuf,
    /// host:port of the authority that gives the keys.
    #[arg(long, requires = "credentials")]
    authority: Option<Target>,
    /// Credentials folder of a device; several for several devices. The first also serves TLS.
    #[arg(long)]
    credentials: Vec<PathBuf>,
    /// A client key file of `fedcipher keygen`, instead of an authority; the device is the file's stem.
    #[arg(long, conflicts_with = "authority")]
    key_file: Vec<PathBuf>,
    /// Name of a training host that may use this engine over TCP, with the devices that its certificate names.
    #[arg(long)]
    host: Vec<String>,
    /// A user that may use a device over the Unix socket, once for each device. The engine's own user and root use all.
    #[arg(long, value_name = "UID=DEVICE")]
    allow_uid: Vec<UserDevice>,
    /// Group (name or number) that may open the Unix socket; --allow-uid says which users may use the engine.
    #[arg(long)]
    socket_group: Option<String>,
    /// host:port of the Prometheus page.
    #[arg(long)]
    metrics: Option<std::net::SocketAddr>,
    /// Seconds between two looks for a new key epoch, and for hosts that have been revoked.
    #[arg(long, default_value_t = 5)]
    refresh: u64,
    /// Seconds between two checks for expired prekeys of a committee. They are deleted even without a call.
    #[arg(long, default_value_t = 180, value_parser = clap::value_parser!(u64).range(1..=3600))]
    expire: u64,
    /// Longest silence of a host in mid-stream, and longest time in which a request that is one message comes in, seconds.
    #[arg(long, default_value_t = 30)]
    stall: u64,
    /// Longest wait for active streams after SIGTERM, seconds.
    #[arg(long, default_value_t = 30)]
    drain: u64,
    /// Largest update that is precomputed, in values: what is made ahead stays in memory.
    #[arg(long, default_value_t = 4 << 20)]
    ahead: usize,
    /// Most that calls hold, all together, of what must come whole before it is worked on (heads, imported states,
    /// updates of sparse FLASHE and of PASTA) or waits to be taken (exported states); one host's at most half of it.
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    unfinished_mib: u32,
    /// Threads that encrypt, at most 256; 0 for one a core.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=256))]
    threads: u16,
    /// Do not keep each thread on one core: for engines that share their cores with other pinned work.
    #[arg(long)]
    roam: bool,
    /// Do the arithmetic of `bfv` on FedBit's accelerator. `sim`: a simulated one, of --accelerator-library.
    #[cfg(feature = "accelerator")]
    #[arg(long, value_parser = ["sim"], requires = "accelerator_library")]
    accelerator: Option<String>,
    /// The library that `make hardware-sim` builds.
    #[cfg(feature = "accelerator")]
    #[arg(long)]
    accelerator_library: Option<PathBuf>,
    /// When an accelerator fails at a piece: return an error to the host (refuse), or compute the piece in this process
    /// (fall-back), with the same result to the bit.
    #[cfg(feature = "accelerator")]
    #[arg(long, default_value = "refuse", value_parser = ["refuse", "fall-back"])]
    accelerator_failure: String,
    /// Go on where memory cannot be locked.
    #[arg(long)]
    allow_swap: bool,
    /// End when the process that started this one ends.
    #[arg(long)]
    exit_with_parent: bool,
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if words.get(1).is_some_and(|word| word == "authority") {
        return authority::begin(std::iter::once("fedcipher authority".into()).chain(words.into_iter().skip(2)));
    }
    let options: Options = match console::options(words) {
        Ok(options) => options,
        Err(ended) => return ended,
    };
    logs::begin(options.log_format);
    match run(options.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fedcipher-engine: {}: {}", error.class(), one_line(&error.to_string()));
            ExitCode::from(2)
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Request { name, out } => {
            let (request, key) = certificates::request(&name)?;
            let mut draft = files::Draft::new(&out)?;
            draft.write(KEY_FILE, key.as_bytes())?;
            draft.write("request.pem", request.as_bytes())?;
            draft.keep();
            Ok(())
        }
        Command::Serve(options) => {
            hardening::harden(options.allow_swap)?;
            if options.exit_with_parent {
                hardening::exit_with_parent()?;
            }
            affinity::start_worker_threads(options.threads.into(), options.roam)
                .map_err(|e| Error::Configuration(e.to_string()))?;
            let runtime = affinity::event_loop(options.roam);
            runtime.map_err(|e| Error::Configuration(format!("no event loop: {e}")))?.block_on(serve(&options))
        }
    }
}

/// Loads the keys in the files at `paths`. Other processes cannot use them while the result lives. All files are read
/// and checked before the first key is bound to this state folder.
fn load_keys(keyring: &Keyring, paths: &[PathBuf]) -> Result<Vec<InUse>> {
    let mut keys = paths.iter().map(|path| readable(path)).collect::<Result<Vec<_>>>()?;
    keys.sort_by_key(|(path, ..)| !key_file::marker(path).is_ok_and(|marker| marker.exists()));
    keys.into_iter().map(|(path, spec, key)| take_key(keyring, path, &spec, &key)).collect()
}

fn readable(path: &Path) -> Result<(&Path, String, ClientKey)> {
    let (spec, key) = key_file::load(path)?;
    registry::make(&spec)?.roles(&key)?;
    Ok((path, spec, key))
}

fn take_key(keyring: &Keyring, path: &Path, spec: &str, key: &ClientKey) -> Result<InUse> {
    let in_use = key_file::take(path, key, keyring.state(), Sharing::Alone)?;
    if in_use.first_in_state() {
        tracing::warn!("{}", key_file::only_in(path, keyring.state()));
    }
    keyring.insert(&stem(path), spec, key)?;
    Ok(in_use)
}

fn stem(path: &Path) -> String {
    path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
}

async fn serve(options: &Serve) -> Result<()> {
    let mut devices = Vec::new();
    for folder in &options.credentials {
        devices.push((device_of(folder)?, folder.clone()));
    }
    let names: Vec<String> = match options.authority {
        Some(_) => devices.iter().map(|(name, _)| name.clone()).collect(),
        None => options.key_file.iter().map(|path| stem(path)).collect(),
    };
    if names.is_empty() {
        return Err(Error::Configuration("no keys: give --authority and --credentials, or --key-file".into()));
    }
    check_users(options, &names)?;
    // Checked before a key file is bound to --state, so that a rejected start can be repeated with another key.
    match &options.listen {
        Target::Unix(path) => listen::check(path, socket_group(options)?)?,
        Target::Tls { .. } => {
            tls_credentials(options)?.server()?;
            drop(listen::tcp(&options.listen).await?);
        }
    }
    // Logged at debug level only, because there may be many.
    let limiter = ConnectionLimiter::new(Box::new(|origin, what| tracing::debug!("{origin}: {what}")));
    let pages = match options.metrics {
        None => None,
        Some(address) => {
            let pages = Pages::bind(address, Arc::clone(&limiter)).await;
            Some(pages.map_err(|e| Error::Configuration(format!("metrics on {address}: {e}")))?)
        }
    };
    let metrics = Metrics::new().map_err(|e| Error::Configuration(e.to_string()))?;
    let accelerators = accelerators(options, &metrics)?;
    let keyring = Arc::new(Keyring::new(&options.state, &names).with_accelerators(accelerators));
    let hosts = Arc::new(RevokedHosts::default());
    let mut _in_use: Vec<InUse> = Vec::new();
    let source: Arc<dyn KeySource> = match &options.authority {
        None => {
            _in_use = load_keys(&keyring, &options.key_file)?;
            Arc::new(NoSource)
        }
        Some(target) => {
            let source = Arc::new(AuthoritySource::new(Arc::clone(&keyring), Arc::clone(&hosts), target, &devices)?);
            first_keys(&source).await?;
            tokio::spawn(follow(Arc::clone(&source), Duration::from_secs(options.refresh.max(1))));
            source
        }
    };
    tokio::spawn(keyring::expire(Arc::clone(&keyring), Duration::from_secs(options.expire)));
    let service = EngineService {
        keyring,
        source,
        hosts,
        metrics: Arc::clone(&metrics),
        stall: Duration::from_secs(options.stall),
        ahead_elements: options.ahead,
        unfinished: MemoryBudget::new(options.unfinished_mib),
    };
    if let Some(pages) = pages {
        tracing::info!("metrics at {}", pages.address());
        let page = Arc::clone(&metrics).router();
        tokio::spawn(async move { axum::serve(pages, page).await });
    }
    listen_until_told(options, service, metrics, limiter).await
}

#[cfg(feature = "accelerator")]
fn accelerators(options: &Serve, metrics: &Arc<Metrics>) -> Result<Option<Arc<dyn Accelerators>>> {
    use fedcipher_accel::link::Link;
    use fedcipher_accel::sim::{Setup, SimAccelerators, Simulator};
    let (Some(_), Some(library)) = (&options.accelerator, &options.accelerator_library) else { return Ok(None) };
    let simulator = Simulator::load(library, Setup::default()).map_err(fedcipher_core::Error::from)?;
    tracing::info!("a simulated accelerator of {} lanes for each key", simulator.lanes());
    let fall_back = options.accelerator_failure == "fall-back";
    let counted = Arc::clone(metrics);
    let all = SimAccelerators::new(simulator, Link::PCIE3_X16, fall_back);
    Ok(Some(Arc::new(all.told(Box::new(move |usage| counted.accelerated(usage))))))
}

#[cfg(not(feature = "accelerator"))]
fn accelerators(_options: &Serve, _metrics: &Arc<Metrics>) -> Result<Option<Arc<dyn Accelerators>>> {
    Ok(None)
}

/// Fetches keys before the first host connects. An error that retries cannot fix ends the start.
async fn first_keys(source: &AuthoritySource) -> Result<()> {
    for device in source.devices() {
        match source.refresh(device).await {
            Err(error @ (Error::Unavailable { .. } | Error::Stuck { .. })) => tracing::warn!("{error}; trying again"),
            other => other?,
        }
    }
    Ok(())
}

/// Follows the authority's epochs.
async fn follow(source: Arc<AuthoritySource>, every: Duration) {
    let mut tick = tokio::time::interval(every);
    // After a long absence of the authority: one request, instead of all missed ones.
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        for device in source.devices() {
            if let Err(error) = source.refresh(device).await {
                tracing::warn!(device, class = error.class(), "{error}");
            }
        }
    }
}

/// The devices of each user that --allow-uid names.
fn users(options: &Serve) -> BTreeMap<u32, BTreeSet<String>> {
    let mut users: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for UserDevice { user, device } in &options.allow_uid {
        users.entry(*user).or_default().insert(device.clone());
    }
    users
}

/// A device that --allow-uid names must be one of the engine's `names`.
fn check_users(options: &Serve, names: &[String]) -> Result<()> {
    match options.allow_uid.iter().find(|to| !names.contains(&to.device)) {
        None => Ok(()),
        Some(UserDevice { user, device }) => Err(Error::Configuration(format!(
            "--allow-uid {user}={device}: this engine does not serve such a device; it serves {}",
            names.join(", ")
        ))),
    }
}

/// Users that --allow-uid admits must also be able to open the socket.
fn socket_group(options: &Serve) -> Result<Option<Gid>> {
    let own = rustix::process::geteuid().as_raw();
    let others = options.allow_uid.iter().map(|to| to.user).find(|user| *user != 0 && *user != own);
    match (&options.socket_group, others) {
        (Some(text), _) => listen::group(text).map(Some),
        (None, None) => Ok(None),
        (None, Some(user)) => Err(Error::Configuration(format!(
            "--allow-uid for user {user} needs --socket-group GROUP, a group that user {user} and the engine's user are in: the \
             socket is its owner's alone otherwise"
        ))),
    }
}

/// The credentials that a service over TCP shows.
fn tls_credentials(options: &Serve) -> Result<Credentials> {
    let folder = options.credentials.first().ok_or_else(|| Error::Configuration("TCP needs --credentials".into()))?;
    Ok(Credentials::new(folder))
}

async fn listen_until_told(
    options: &Serve,
    service: EngineService,
    metrics: Arc<Metrics>,
    limiter: Arc<ConnectionLimiter>,
) -> Result<()> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<EngineServer<EngineService>>().await;
    let guard = Guard {
        hosts: options.host.iter().cloned().collect(),
        users: users(options),
        revoked: Arc::clone(&service.hosts),
    };
    let engine = EngineServer::new(service).max_decoding_message_size(MAX_REQUEST);
    let guarded = InterceptedService::new(engine, guard);

    let signals = || signal(SignalKind::terminate()).and_then(|t| Ok((t, signal(SignalKind::interrupt())?)));
    let (mut terminate, mut interrupt) = signals().map_err(|e| Error::Configuration(format!("signals: {e}")))?;
    let (told, mut stop) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        tracing::info!("draining: no new calls, streams under way may end");
        health.set_not_serving::<EngineServer<EngineService>>().await;
        let _ = told.send(true);
    });
    let mut draining = stop.clone();
    let until = async move {
        let _ = stop.wait_for(|told| *told).await;
    };
    let mut server = listen::server(Duration::from_secs(options.stall));
    let failed = |e: tonic::transport::Error| Error::of_transport("the engine's service", &e);
    if let Target::Tls { .. } = options.listen {
        server = server.tls_config(tls_credentials(options)?.server()?).map_err(failed)?;
    }
    let router = server.add_service(health_service).add_service(guarded);
    let serving = async {
        match &options.listen {
            Target::Unix(path) => {
                let incoming = listen::local(listen::unix(path, socket_group(options)?)?, limiter);
                let _socket = SocketFile(path);
                tracing::info!("listening on {}", options.listen);
                router.serve_with_incoming_shutdown(incoming, until).await.map_err(failed)
            }
            Target::Tls { .. } => {
                let listener = listen::tcp(&options.listen).await?;
                let address = listener.local_addr().map_or_else(|e| e.to_string(), |a| a.to_string());
                tracing::info!("listening on {address}");
                router.serve_with_incoming_shutdown(listen::incoming(listener, limiter), until).await.map_err(failed)
            }
        }
    };
    tokio::select! {
        result = serving => result,
        () = async {
            let _ = draining.wait_for(|told| *told).await;
            drained(&metrics, Duration::from_secs(options.drain)).await;
        } => Ok(()),
    }
}

/// The socket that this engine has bound, removed when it ends.
struct SocketFile<'a>(&'a Path);

impl Drop for SocketFile<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

/// Waits until no stream is active. Idle connections, which hosts keep open, do not delay the end.
async fn drained(metrics: &Metrics, most: Duration) {
    const LOOK: Duration = Duration::from_millis(50);
    let end = tokio::time::Instant::now() + most;
    // The last replies are handed over some time after their stream's work has ended.
    let mut quiet = 0;
    while quiet < 3 {
        if tokio::time::Instant::now() > end {
            tracing::warn!("streams were still under way after {} s; they are cut off", most.as_secs());
            return;
        }
        quiet = if metrics.streams.get() == 0 { quiet + 1 } else { 0 };
        tokio::time::sleep(LOOK).await;
    }
}
