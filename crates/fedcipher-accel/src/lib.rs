//! FedBit's accelerator (hardware/rtl) from the host's side.
//!
//! [`driver`] speaks to a device through a [`bus::Bus`]: registers, packets, completion. [`sim`] is the bus of the
//! simulated device, a board's would be another. [`software`] does the same work with the core, as what a device is
//! compared with. docs/explanation/accelerator.md is the programmer's page.

pub mod bus;
pub mod driver;
pub mod error;
pub mod link;
pub mod registers;
#[cfg(feature = "sim")]
pub mod sim;
pub mod software;

pub use error::{Error, Result};
pub use fedcipher_core::rlwe::accelerator::{Accelerator, Accelerators, Arithmetic, Decoded, MaskJob, SumJob, Usage};
