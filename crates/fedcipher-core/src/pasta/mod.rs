//! PASTA (ePrint 2021/731), the HE-friendly stream cipher of hybrid homomorphic encryption.

#[cfg(feature = "hhe")]
mod aggregate;
#[cfg(feature = "hhe")]
mod budget;
pub mod cipher;
#[cfg(feature = "hhe")]
pub mod context;
#[cfg(feature = "hhe")]
mod decrypt;
#[cfg(feature = "hhe")]
mod diagonals;
#[cfg(feature = "hhe")]
mod encrypt;
pub mod field;
#[cfg(feature = "hhe")]
mod known;
#[cfg(feature = "hhe")]
pub mod ring;
#[cfg(feature = "hhe")]
pub mod scheme;
#[cfg(feature = "hhe")]
mod secret;
#[cfg(feature = "hhe")]
mod shared;
#[cfg(feature = "hhe")]
pub mod transcipher;
#[cfg(feature = "hhe")]
mod work_item;
