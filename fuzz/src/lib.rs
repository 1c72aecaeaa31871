//! What every fuzz target starts from: a small honest round under each scheme, and frames made of a fuzzer's bytes.
//!
//! Keys are drawn anew in each process, so corpora hold none: a frame's tag of the key, its model and its checksum are
//! put in here, as whoever holds no key can, and the fuzzer's bytes are the rest.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is what a fuzzer looks for")]

pub mod entries;
mod round;

pub(crate) use round::{AGREED, COMMITTEE, NUMBER, SPARSE, quick, spec};
pub use round::{Frames, Round, of};
