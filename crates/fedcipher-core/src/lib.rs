//! The mathematics of Fedcipher: float update -> integers -> packed integers -> ciphertext ->
//! frame -> homomorphic weighted sum -> frame -> integers -> float average.
//!
//! No Python and no network here. `docs/explanation/architecture.md` draws how the modules follow each other.

pub mod admission;
pub mod bits;
pub mod bounds;
pub mod codec;
pub mod committee;
mod container;
pub mod error;
mod exposure;
pub mod flashe;
pub mod former;
mod frame_digest;
pub mod key_file;
pub mod keys;
pub(crate) mod lanes;
pub mod ledger;
pub mod log_tree;
pub mod mac;
pub mod memory;
pub mod noise;
pub mod oneshot;
pub(crate) mod os;
pub mod packing;
pub mod params_digest;
pub mod pasta;
pub mod plain;
pub mod prf;
pub mod protocol;
pub mod registry;
pub mod request;
pub mod rlwe;
pub mod rotation;
pub mod scheme;
pub mod sets;
mod shown;
pub mod sign;
#[cfg(all(feature = "ntt-tfhe", target_arch = "x86_64"))]
mod simd;
pub mod sparse;
pub mod statement;
pub mod steps;
pub(crate) mod threads;
pub mod wire;

pub use error::{Error, Result};
pub use fedcipher_types::{ClientId, Epoch, RoundId, TotalWeight, Weight, canonical};
/// Re-exported for files that the engine writes itself.
pub use os::{name_new, sync_folder};
