//! The key authority: enrols devices, makes each epoch's keys, and gives every device its own.

use clap::{Parser, Subcommand};
use fedcipher_engine::authority::{Authority, Enrolled, Forgotten};
use fedcipher_engine::authority_service::AuthorityService;
use fedcipher_engine::certificates::{self, Role, Subject, Terms};
use fedcipher_engine::client::Target;
use fedcipher_engine::connection_limiter::ConnectionLimiter;
use fedcipher_engine::console::{self, say};
use fedcipher_engine::files::read_text;
use fedcipher_engine::proto::authority_server::AuthorityServer;
use fedcipher_engine::rejection_log::Rejection;
use fedcipher_engine::text::one_line;
use fedcipher_engine::tls::Credentials;
use fedcipher_engine::{Error, MAX_ASKED, Result, hardening, listen, logs};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::signal::unix::{SignalKind, signal};
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Status};

/// Enrols devices, makes each epoch's keys, hands every device its own.
#[derive(Parser)]
#[command(name = "fedcipher-authority", version)]
struct Options {
    /// Folder of the authority's state.
    #[arg(long, global = true, default_value = "authority")]
    state: PathBuf,
    /// Go on where memory cannot be locked.
    #[arg(long, global = true)]
    allow_swap: bool,
    /// How the log on standard error is written.
    #[arg(long, global = true, value_enum, default_value = "text")]
    log_format: logs::Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a new authority.
    Init {
        /// JSON of the scheme, as `fedcipher spec` prints it.
        #[arg(long)]
        spec: PathBuf,
        /// DNS name or address under which engines and the server reach this authority.
        #[arg(long = "name", default_values = LOCAL)]
        names: Vec<String>,
        /// How many clients may lie. When more devices say that their key is closed after a forgery, the next epoch
        /// replaces it, at most once an hour. Default: `corrupt_clients` of the scheme's parameters, 1 where it has none.
        #[arg(long)]
        corrupt_clients: Option<u64>,
    },
    /// Enrol an engine, a training host or the aggregator, and write its credentials.
    Enrol {
        name: String,
        #[arg(long, default_value = "device")]
        role: Role,
        /// Folder for the credentials.
        #[arg(long)]
        out: PathBuf,
        /// A request of `fedcipher-engine request`: the private key stays where it was made.
        #[arg(long)]
        request: Option<PathBuf>,
        /// DNS name or address under which training hosts reach this engine.
        #[arg(long = "name", default_values = LOCAL)]
        names: Vec<String>,
        /// For a host: an enrolled device that the host may use. Repeat the option for each device. The host can use
        /// no other device.
        #[arg(long = "device")]
        devices: Vec<String>,
        #[arg(long, default_value_t = 365)]
        days: i64,
        /// When the certificate begins to hold (RFC 3339); an hour ago by default.
        #[arg(long)]
        from: Option<String>,
    },
    /// Serve engines and the aggregator.
    Serve {
        #[arg(long)]
        listen: Target,
        /// Rotate when the current epoch is this old, seconds; 0: on demand only.
        #[arg(long, default_value_t = 0)]
        rotate_every: u64,
        /// End when the process that started this one ends.
        #[arg(long)]
        exit_with_parent: bool,
    },
    /// Make the next epoch.
    Rotate {
        /// Also while an aggregator still uses the epoch that would end.
        #[arg(long)]
        force: bool,
        /// Devices that are the committee from now on, for schemes that have one; otherwise the first enrolled.
        #[arg(long, value_delimiter = ',')]
        members: Vec<String>,
    },
    /// Give a party no further epoch, reject its messages, and rotate. Status 3: revoked, and the rotation
    /// follows when the current round is complete.
    Revoke {
        name: String,
        /// Leave the current epoch as it is: the device still holds its key.
        #[arg(long)]
        no_rotate: bool,
    },
    /// Parties, epochs and the audit log.
    Status {
        #[arg(long)]
        audit: bool,
    },
}

/// Names of a machine for itself.
const LOCAL: [&str; 2] = ["localhost", "127.0.0.1"];

/// Time for active calls after SIGTERM.
const GRACE: Duration = Duration::from_millis(300);

/// Longest time in which a request may arrive.
const REQUEST: Duration = Duration::from_secs(10);

/// Longest wait for processes that read the store while keys end.
const FORGET: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    begin(std::env::args_os())
}

/// Runs a command line, which begins with the program's name.
pub fn begin(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let options: Options = match console::options(words) {
        Ok(options) => options,
        Err(ended) => return ended,
    };
    logs::begin(options.log_format);
    match run(options) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("fedcipher-authority: {}: {}", error.class(), one_line(&error.to_string()));
            ExitCode::from(2)
        }
    }
}

fn run(options: Options) -> Result<ExitCode> {
    // All commands except `status` have keys in memory. Commands that only enrol continue with a warning.
    match &options.command {
        Command::Status { .. } => {}
        Command::Init { .. } | Command::Enrol { .. } => hardening::harden(true)?,
        _ => hardening::harden(options.allow_swap)?,
    }
    match options.command {
        Command::Init { spec, names, corrupt_clients } => {
            let note = certificates::only_local(&names);
            Authority::init(&options.state, &read_text(&spec)?, names, corrupt_clients)?;
            say(format!("the authority's state is in {}", options.state.display()))?;
            if let Some(note) = note {
                say(format!("note: {note}"))?;
            }
        }
        Command::Enrol { name, role, out, request, names, devices, days, from } => {
            if !role.is_reached() && names != LOCAL {
                let role = role.name();
                let reason =
                    format!("a {role} accepts no connections, so its certificate takes no --name; leave it out");
                return Err(Error::Configuration(reason));
            }
            let mut terms = Terms::days(days, names);
            if let Some(from) = from {
                let parsed = OffsetDateTime::parse(&from, &Rfc3339);
                terms.from = parsed.map_err(|e| Error::Configuration(format!("--from {from}: {e}")))?;
            }
            let request = request.as_deref().map(read_text).transpose()?;
            let party = Subject { role, name, devices: devices.into_iter().collect() };
            let mut store = Authority::open(&options.state)?;
            let client = store.enrol(&party, &terms, request.as_deref(), &out)?;
            match client {
                Some(client) => {
                    say(format!("{party} enrolled as client {client}; it takes part from the next epoch on"))?;
                }
                None => say(format!("{party} enrolled"))?,
            }
            let (devices, most) = (party.devices.len(), store.corrupt_clients()?);
            if devices as u64 > most {
                say(format!(
                    "note: an attacker who takes over {party} has {devices} clients, and only {most} may lie here: it can open an \
                     upload in a sum with updates of its own. Give each host the device of one client"
                ))?;
            }
            // Hosts and the aggregator accept no connections.
            if let Some(note) = certificates::only_local(&terms.reached_as).filter(|_| role == Role::Device) {
                say(format!("note: {note} (an engine on a Unix socket needs none)"))?;
            }
        }
        Command::Rotate { force, members } => {
            let mut store = Authority::open(&options.state)?;
            if !members.is_empty() {
                store.set_members(&members)?;
            }
            let epoch = store.rotate(force)?;
            forget(&store)?;
            say(format!("epoch {epoch}"))?;
        }
        Command::Revoke { name, no_rotate } => return revoke(&mut Authority::open(&options.state)?, &name, no_rotate),
        Command::Status { audit } => status(&Authority::open(&options.state)?, audit)?,
        Command::Serve { listen, rotate_every, exit_with_parent } => {
            if exit_with_parent {
                hardening::exit_with_parent()?;
            }
            let store = Authority::open(&options.state)?;
            let failed = |e: std::io::Error| Error::Configuration(format!("no event loop: {e}"));
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed)?;
            runtime.block_on(serve(store, &listen, rotate_every))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes ended keys from the store's log.
fn forget(store: &Authority) -> Result<()> {
    if store.forget(FORGET)? == Forgotten::LogInUse {
        tracing::warn!(
            "another process is reading the store: the keys that have ended stay in its log (authority.db-wal) until \
             that process is done; `serve` removes them then, and so does the next command here"
        );
    }
    Ok(())
}

/// All work is done before anything is printed, so that a closed output keeps no key alive.
fn revoke(store: &mut Authority, name: &str, no_rotate: bool) -> Result<ExitCode> {
    let rotation = !no_rotate && !store.usable()?.is_empty();
    store.revoke(name, rotation)?;
    let rotated = rotation.then(|| store.rotate(false)).transpose();
    if matches!(rotated, Ok(Some(_))) {
        forget(store)?;
    }
    say(format!("{name} revoked: its calls and ciphertexts are refused from now on"))?;
    match rotated {
        Ok(Some(epoch)) => say(format!("epoch {epoch}"))?,
        Ok(None) => {}
        Err(Error::EpochInUse { epoch }) => {
            say(format!(
                "no new epoch yet: epoch {epoch} is still in use. The next epoch, without {name}, is made when the \
                 aggregator settles the round under way; `rotate --force` makes it now, and a federation that runs \
                 loses its last aggregate"
            ))?;
            return Ok(ExitCode::from(3));
        }
        Err(error) => return Err(error),
    }
    Ok(ExitCode::SUCCESS)
}

fn status(store: &Authority, audit: bool) -> Result<()> {
    let status = store.status()?;
    for Enrolled { name, role, client, revoked, devices } in status.parties {
        let client = client.map_or(String::new(), |c| format!(", client {c}"));
        let devices = devices.map_or(String::new(), |devices| format!(", may use {devices}"));
        say(format!("{role} {name}{client}{devices}{}", if revoked { ", revoked" } else { "" }))?;
    }
    for (epoch, state, made, keys) in status.epochs {
        say(format!("epoch {epoch}: {state}, made {made}, {keys} keys"))?;
    }
    if audit {
        let done = status.audit.into_iter().map(|(at, party, action, epoch)| {
            let epoch = epoch.map_or(String::new(), |e| format!(" epoch {e}"));
            (at.clone(), format!("{at} {party}: {action}{epoch}"))
        });
        let refused = status.refused.into_iter().map(|Rejection { minute, party, what, count }| {
            let line = format!("{minute} {party}: {what}, {count} in this minute");
            (minute, line)
        });
        let mut lines: Vec<(String, String)> = done.chain(refused).collect();
        lines.sort_by(|a, b| a.0.cmp(&b.0));
        lines.iter().try_for_each(|(_, line)| say(line))?;
    }
    Ok(())
}

async fn serve(store: Authority, listen: &Target, rotate_every: u64) -> Result<()> {
    let credentials = Credentials::new(&store.service_folder());
    let service = AuthorityService::new(store);
    let noted = service.clone();
    let limiter = ConnectionLimiter::new(Box::new(move |origin, what| {
        noted.rejected_connection(&origin, what);
    }));
    tokio::spawn(service.clone().upkeep());
    tokio::spawn(service.clone().replacements());
    let ending = service.clone();
    let listener = listen::tcp(listen).await?;
    let failed = |e: tonic::transport::Error| Error::of_transport("the authority's service", &e);
    let mut server = listen::server(REQUEST).tls_config(credentials.server()?).map_err(failed)?;
    if rotate_every > 0 {
        tokio::spawn(rotate_on_schedule(service.clone(), Duration::from_secs(rotate_every)));
    }
    let mut terminate = signal(SignalKind::terminate()).map_err(|e| Error::Configuration(format!("signals: {e}")))?;
    let until = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = tokio::signal::ctrl_c() => {} }
        // Calls are single and short. Idle connections of engines do not delay the end.
        tokio::time::sleep(GRACE).await;
    };
    let address = listener.local_addr().map_or_else(|e| e.to_string(), |a| a.to_string());
    tracing::info!("listening on {address}");
    // Checked on the call's headers, so that a rejected caller uses no memory.
    let door_keeper = service.clone();
    let known = move |request: Request<()>| match door_keeper.known(&request) {
        Ok(_) => Ok(request),
        Err(error) => Err(Status::from(error)),
    };
    let calls = AuthorityServer::new(service).max_decoding_message_size(MAX_ASKED);
    let router = server.add_service(InterceptedService::new(calls, known));
    let result = tokio::select! {
        result = router.serve_with_incoming(listen::incoming(listener, limiter)) => result.map_err(failed),
        () = until => Ok(()),
    };
    ending.write_refusals();
    result
}

/// Rotates by the age of the epoch in the store, so that a restart neither skips nor repeats a rotation.
async fn rotate_on_schedule(service: AuthorityService, every: Duration) {
    let mut tick = tokio::time::interval(every.min(Duration::from_secs(1)));
    loop {
        tick.tick().await;
        let due = service.with(|store| Ok(store.age()?.is_some_and(|age| age >= every)));
        let rotated = due.and_then(|due| if due { service.rotate().map(Some) } else { Ok(None) });
        // `upkeep` removes the ended keys from the log.
        match rotated {
            // The rotation follows once the current round is complete.
            Ok(None) | Err(Error::EpochInUse { .. }) => {}
            Ok(Some(epoch)) => tracing::info!(epoch = epoch.get(), "rotated on schedule"),
            Err(error) => tracing::warn!(class = error.class(), "rotation: {error}"),
        }
    }
}
