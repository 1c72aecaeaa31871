//! Encryption in a separate process that alone holds the keys (FedNIC), and the authority that issues the keys.
//!
//! `fedcipher-engine` holds keys and serves a training host. `fedcipher-authority` enrols devices, makes the keys of
//! each epoch and gives every device its own. A host has [`client`] and no key. docs/how-to/offload.md shows the
//! trust between them.

pub mod client;
pub mod error;
pub mod files;
#[cfg(target_os = "linux")]
pub mod ring;
#[cfg(not(target_os = "linux"))]
#[path = "ring_absent.rs"]
pub mod ring;
pub mod text;
pub mod tls;

#[cfg(feature = "server")]
pub mod affinity;
#[cfg(feature = "server")]
pub mod authority;
#[cfg(feature = "server")]
pub mod authority_service;
#[cfg(feature = "server")]
pub mod boot_time;
#[cfg(feature = "server")]
pub mod call_limits;
#[cfg(feature = "server")]
pub mod caller;
#[cfg(feature = "server")]
pub mod certificates;
#[cfg(feature = "server")]
mod compute;
#[cfg(feature = "server")]
pub mod connection_limiter;
#[cfg(feature = "server")]
pub mod console;
#[cfg(feature = "server")]
pub mod engine_service;
#[cfg(feature = "server")]
pub mod hardening;
#[cfg(feature = "server")]
pub mod key_source;
#[cfg(feature = "server")]
pub mod keyring;
#[cfg(feature = "server")]
pub mod listen;
#[cfg(feature = "server")]
pub mod logs;
#[cfg(feature = "server")]
pub mod memory_budget;
#[cfg(feature = "server")]
pub mod metrics;
#[cfg(feature = "server")]
pub mod rejection_log;
#[cfg(feature = "server")]
pub mod revoked_hosts;
#[cfg(feature = "server")]
pub mod sealed_keys;
#[cfg(feature = "server")]
mod store_check;
#[cfg(feature = "server")]
pub mod streams;

pub use error::{Error, Result};

#[cfg(all(feature = "server", not(target_os = "linux")))]
compile_error!(
    "the engine and the authority lock memory, forbid tracing and identify callers with Linux's interfaces; \
     build with --no-default-features for the client"
);

/// The protocol, from `proto/`.
#[allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
pub mod proto {
    tonic::include_proto!("fedcipher.v1");
}

/// Bytes of values or ciphertext in one slot of a ring: large enough to amortise a message, and small enough that a few
/// chunks need little memory.
pub const CHUNK: usize = 1 << 19;
/// Bytes in one message without a ring. Over 20 kbit/s a message arrives within the 30 s of silence that a host may
/// keep.
pub const MESSAGE: usize = 1 << 16;
/// Flow-control window of one stream: the bytes by which a sender may be ahead of its reader.
pub const WINDOW: u32 = 1 << 20;
/// Largest HTTP/2 frame. It holds a whole chunk.
pub const FRAME: u32 = 1 << 20;
/// Largest message to an engine: a few chunks, or a layout and a plan. Memory for the announced length of a message is
/// allocated before its bytes arrive.
pub const MAX_REQUEST: usize = 32 << 20;
/// Largest message to the authority.
pub const MAX_ASKED: usize = 1 << 20;
/// Largest reply: a server's evaluation keys, or counts of every element. Also the most memory that an engine uses for
/// one call.
pub const MAX_MESSAGE: usize = 1 << 30;
