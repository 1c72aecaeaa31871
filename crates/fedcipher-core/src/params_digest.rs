//! The digests that name a scheme with its parameters, in keys and frames.

use crate::canonical::{self, Canonical};
use sha2::{Digest, Sha256};

/// The digests that name a scheme with its parameters: the digest of this version, and the digest of builds before
/// 0.1.0 ([`crate::former`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamsDigest {
    now: [u8; 32],
    former: [u8; 32],
}

impl ParamsDigest {
    /// The digest of a scheme that no build before 0.1.0 had.
    #[must_use]
    pub fn new<T: Canonical>(params: &T) -> Self {
        let now = canonical::digest(params);
        ParamsDigest { now, former: now }
    }

    /// The digest of a scheme that builds before 0.1.0 had, which named these parameters by the text `former`.
    #[must_use]
    pub fn of<T: Canonical>(params: &T, former: &str) -> Self {
        ParamsDigest { now: canonical::digest(params), former: Sha256::digest(former.as_bytes()).into() }
    }

    /// The digest in keys and frames that this version makes.
    #[must_use]
    pub fn short(&self) -> [u8; 16] {
        short(&self.now)
    }

    /// The full digest that begins with `params`, which a key carries.
    #[must_use]
    pub fn whole(&self, params: [u8; 16]) -> Option<[u8; 32]> {
        [self.now, self.former].into_iter().find(|whole| short(whole) == params)
    }
}

/// The first half of a digest.
#[must_use]
pub fn short(whole: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|k| whole[k])
}
