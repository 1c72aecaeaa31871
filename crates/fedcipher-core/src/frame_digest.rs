//! A digest of a frame's bytes, in parts.

use crate::threads::Threads;

/// BLAKE3 of a frame's bytes. It decides whether a frame is the same one again, and signatures cover it.
#[derive(Default)]
pub struct FrameDigest(blake3::Hasher);

impl FrameDigest {
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of `bytes`, computed with as many threads as their length justifies.
    #[must_use]
    pub fn of(bytes: &[u8]) -> [u8; 32] {
        let mut digest = FrameDigest::default();
        digest.update_by_many(bytes);
        digest.finish()
    }

    /// Like [`Self::update`], with as many threads as the length of `bytes` justifies.
    pub fn update_by_many(&mut self, bytes: &[u8]) {
        match Threads::for_bytes(bytes.len()) {
            Threads::One => self.update(bytes),
            Threads::All => self.update_by_all(bytes),
        }
    }

    /// Like [`Self::update`], with all rayon threads.
    pub fn update_by_all(&mut self, bytes: &[u8]) {
        self.0.update_rayon(bytes);
    }

    #[must_use]
    pub fn finish(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}
