//! Tags: field elements that end aggregates and updates.

use super::field::Element;
use crate::{Error, Result};

/// Bytes of a tag. A tag ends every aggregate, and precedes the signature of every update.
pub const TAG_LEN: usize = 16;

/// A tag, or a sum of tags. Tags are public.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Tag(pub(super) Element);

impl std::fmt::Debug for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tag")
    }
}

impl Tag {
    /// Splits a payload into the tag and the bytes before it.
    pub fn split(payload: &[u8]) -> Result<(&[u8], Tag)> {
        let (rest, tag) = payload.split_last_chunk().ok_or_else(|| Error::frame("it ends before its tag"))?;
        Ok((rest, Tag::parse(*tag)?))
    }

    pub fn parse(bytes: [u8; TAG_LEN]) -> Result<Self> {
        Element::from_wire(bytes).map(Tag).ok_or_else(|| Error::frame("its tag is not a field element"))
    }

    #[must_use]
    pub fn to_bytes(self) -> [u8; TAG_LEN] {
        self.0.to_wire()
    }

    /// Adds `factor` times another tag.
    pub fn add(&mut self, other: Tag, factor: u64) {
        self.0 += other.0 * Element::new(u128::from(factor));
    }
}
