//! The order in which updates are made and aggregates opened, in types: a program that takes another order does not
//! compile.
//!
//! An update: [`Sender::claim`] claims the round, durably, and gives the [`ClaimedRound`] that alone makes tags and
//! signatures. A [`SealingFrame`] takes every piece once and in order, and ends with both.
//!
//! An aggregate: [`Receiver`] checks its head ([`CheckedHead`]), then claims the sum, durably, once all bytes are here
//! ([`ClaimedSum`]), then checks the tag ([`Proven`]). Only that gives [`Opened`], and values come out of [`Opened`]
//! alone. A refusal that could tell of the key closes it on the way.
//!
//! A library call ([`Decryptor::decrypt`]) and the offload engine ([`OpeningFrame`]) go through the same types.

mod digest;
mod opening;
mod pieces;
mod receiving;
mod sealing;
mod sending;

pub use digest::Digest;
pub use opening::{Covered, Decryptor, Form, OpeningFrame};
pub(crate) use opening::{DecryptKernel, PieceOpener, open_pieces};
pub use pieces::Piece;
pub(crate) use receiving::CheckedHead;
pub use receiving::{ClaimedSum, Opened, Proven, Receiver};
pub use sealing::{CarriedResidual, Encryptor, SealingFrame};
pub(crate) use sealing::{EncryptKernel, PieceSealer};
pub use sending::{ClaimedRound, Sender};
