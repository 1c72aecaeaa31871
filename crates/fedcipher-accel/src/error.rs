//! Errors of a device.

use crate::registers::Code;

/// Each says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("the device refused {what}: {code}")]
    Refused { what: &'static str, code: Code },

    #[error("the device broke off: {0}")]
    Failed(Code),

    #[error("the device did not answer within {cycles} cycles; reset it")]
    Hangs { cycles: u64 },

    #[error("this is not a FedBit accelerator of version 1: its identification is {found:#x}")]
    Unknown { found: u32 },

    #[error("the device is made for {device}, the scheme needs {scheme}; use the preset fedbit-paper")]
    Unfit { device: String, scheme: String },

    #[error("the device sent {found} bytes where {expected} were due")]
    Length { found: usize, expected: usize },

    #[error("no simulated device in {path}: {reason}; build it with `make hardware-sim`")]
    Library { path: String, reason: String },
}

pub type Result<T> = std::result::Result<T, Error>;

impl From<Error> for fedcipher_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Failed(Code::Plaintext) => {
                fedcipher_core::Error::Decrypt { reason: "a coefficient lies outside the plaintext space".into() }
            }
            other => fedcipher_core::Error::Device { reason: other.to_string() },
        }
    }
}
