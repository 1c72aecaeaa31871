//! The order of operations on updates and aggregates, enforced by types: a program in another order does not compile.
//!
//! An update: [`Sender::claim`] claims the round on disk and returns a [`ClaimedRound`]. Only a claimed round makes
//! tags and
//! signatures. An [`Encryption`] takes every piece once and in order, and ends with both.
//!
//! An aggregate: [`Receiver`] checks the head (`CheckedHead`). Once all bytes are present it claims the sum on disk
//! ([`ClaimedSum`]), and then checks the tag ([`Proven`]). Only a proven sum becomes [`Opened`], and only [`Opened`]
//! has
//! values. A failure that may leak key bits closes the key.
//!
//! A library call ([`Decryptor::decrypt`]) and the offload engine ([`Decryption`]) use the same types.

mod decryption;
mod encryption;
mod pieces;
mod prekeys;
mod receiving;
mod sending;

pub use crate::frame_digest::FrameDigest;
pub use decryption::{Covered, Decryption, Decryptor, Form};
pub(crate) use decryption::{DecryptKernel, PieceDecryptor, open_pieces};
pub use encryption::{CarriedResidual, Encryption, Encryptor};
pub(crate) use encryption::{EncryptKernel, PieceEncryptor};
pub use pieces::Piece;
pub use prekeys::Prekeys;
pub(crate) use receiving::CheckedHead;
pub use receiving::{ClaimedSum, Opened, Proven, Receiver};
pub use sending::{ClaimedRound, Sender};
