//! PASTA (ePrint 2021/731), the HE-friendly stream cipher of hybrid homomorphic encryption.

pub mod cipher;
pub mod field;
#[cfg(feature = "hhe")]
pub mod scheme;
#[cfg(feature = "hhe")]
pub mod transcipher;
