//! The start of every fuzz target: a small honest round under each scheme, and frames made from a fuzzer's bytes.
//!
//! Keys are drawn anew in each process, so corpora hold no keys. This crate fills in a frame's key tag, model and
//! checksum, which needs no secret. The rest of a frame are the fuzzer's bytes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is what a fuzzer looks for")]

pub mod entries;
mod round;

pub(crate) use round::{AGREED, COMMITTEE, NUMBER, SPARSE, quick, spec};
pub use round::{Frames, Round, of};
