//! Encryption in a process that alone holds keys (FedNIC), and the authority that hands the keys out.
//!
//! `fedcipher-engine` holds keys and talks to a training host; `fedcipher-authority` enrols devices,
//! makes the keys of each epoch and gives every device its own. A host has [`client`] and no key.
//! docs/how-to/offload.md draws who trusts whom.

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
pub mod authority;
#[cfg(feature = "server")]
pub mod authority_service;
#[cfg(feature = "server")]
pub mod boot_time;
#[cfg(feature = "server")]
pub mod calls;
#[cfg(feature = "server")]
pub mod certificates;
#[cfg(feature = "server")]
pub mod console;
#[cfg(feature = "server")]
pub mod cores;
#[cfg(feature = "server")]
mod damage;
#[cfg(feature = "server")]
pub mod door;
#[cfg(feature = "server")]
pub mod engine_service;
#[cfg(feature = "server")]
pub mod hosts;
#[cfg(feature = "server")]
pub mod key_source;
#[cfg(feature = "server")]
pub mod keyring;
#[cfg(feature = "server")]
pub mod listen;
#[cfg(feature = "server")]
pub mod lockdown;
#[cfg(feature = "server")]
pub mod logs;
#[cfg(feature = "server")]
pub mod metrics;
#[cfg(feature = "server")]
pub mod refusals;
#[cfg(feature = "server")]
pub mod sealed_keys;
#[cfg(feature = "server")]
pub mod streams;
#[cfg(feature = "server")]
pub mod unfinished;

pub use error::{Error, Result};

#[cfg(all(feature = "server", not(target_os = "linux")))]
compile_error!(
    "the engine and the authority lock memory, refuse to be traced and ask who calls in Linux's ways; \
     build with --no-default-features for the client"
);

/// The protocol, from `proto/`.
#[allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]
pub mod proto {
    tonic::include_proto!("fedcipher.v1");
}

/// Bytes of values or ciphertext in one place of a ring: large enough to amortise a message, small enough that a
/// few of them are nothing.
pub const CHUNK: usize = 1 << 19;
/// Bytes in one message where there is no ring: over 20 kbit/s it comes within the 30 s of silence that a host has.
pub const MESSAGE: usize = 1 << 16;
/// Flow-control window of one stream: what a sender may be ahead of its reader.
pub const WINDOW: u32 = 1 << 20;
/// Largest HTTP/2 frame: a chunk goes in one.
pub const FRAME: u32 = 1 << 20;
/// Largest message to an engine: a few chunks, or a layout and a plan. A message's announced length is taken
/// from memory before its bytes have come.
pub const MAX_REQUEST: usize = 32 << 20;
/// Largest message to the authority.
pub const MAX_ASKED: usize = 1 << 20;
/// Largest reply: a server's evaluation keys, counts of every element; and the most that an engine holds of one call.
pub const MAX_MESSAGE: usize = 1 << 30;
