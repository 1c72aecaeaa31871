//! The order in which updates are made and aggregates opened, in types: a program that takes another order does not
//! compile.
//!
//! An update: [`Sender::claim`] claims the round, durably, and gives the [`ClaimedRound`] that alone makes tags and
//! signatures. An [`Encryption`] takes every piece once and in order, and ends with both.
//!
//! An aggregate: [`Receiver`] checks its head ([`CheckedHead`]), then claims the sum, durably, once all bytes are here
//! ([`ClaimedSum`]), then checks the tag ([`Proven`]). Only that gives [`Opened`], and values come out of [`Opened`]
//! alone. A refusal that could tell of the key closes it on the way.
//!
//! A library call ([`Decryptor::decrypt`]) and the offload engine ([`Decryption`]) go through the same types.

mod decryption;
mod digest;
mod encryption;
mod pieces;
mod receiving;
mod sending;

pub use decryption::{Covered, Decryption, Decryptor, Form};
pub(crate) use decryption::{DecryptKernel, PieceDecryptor, open_pieces};
pub use digest::FrameDigest;
pub use encryption::{CarriedResidual, Encryption, Encryptor};
pub(crate) use encryption::{EncryptKernel, PieceEncryptor};
pub use pieces::Piece;
pub(crate) use receiving::CheckedHead;
pub use receiving::{ClaimedSum, Opened, Proven, Receiver};
pub use sending::{ClaimedRound, Sender};
