//! A digest of a frame's bytes, in parts.

use crate::threads::Threads;

/// What "the same bytes again" means, and what a signature covers: BLAKE3.
#[derive(Default)]
pub struct FrameDigest(blake3::Hasher);

impl FrameDigest {
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Of `bytes`, by as many threads as their number is worth.
    #[must_use]
    pub fn of(bytes: &[u8]) -> [u8; 32] {
        let mut digest = FrameDigest::default();
        digest.update_by_many(bytes);
        digest.finish()
    }

    /// [`Self::update`] by as many threads as the number of `bytes` is worth.
    pub fn update_by_many(&mut self, bytes: &[u8]) {
        match Threads::for_bytes(bytes.len()) {
            Threads::One => self.update(bytes),
            Threads::All => self.update_by_all(bytes),
        }
    }

    /// [`Self::update`] by all of rayon's threads.
    pub fn update_by_all(&mut self, bytes: &[u8]) {
        self.0.update_rayon(bytes);
    }

    #[must_use]
    pub fn finish(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}
