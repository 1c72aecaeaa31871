//! One encoding of the parameters that parties must agree on. Digests are made of this encoding. Renaming a field, or printing
//! a number otherwise, changes no digest.
//!
//! An encoding is `length u16 | domain`, then for each field `tag u16 | length u32 | value`. Tags ascend. Numbers are
//! little-endian. A tag keeps its meaning in all versions. A field that is added later gets a new tag. The field is left out where
//! its value is the one that all earlier encodings stood for.

use sha2::{Digest, Sha256};

/// A type with one encoding.
pub trait Canonical {
    /// Values of two kinds have never the same encoding.
    const DOMAIN: &'static str;

    /// Writes the fields of this value, by ascending tags.
    fn fields(&self, to: &mut Fields);
}

/// The fields of a value, as they are written.
#[derive(Debug, Default)]
pub struct Fields {
    written: Vec<u8>,
    last: u16,
}

impl Fields {
    /// A field of bytes. Every other kind is written as this one.
    pub fn bytes(&mut self, tag: u16, value: &[u8]) {
        debug_assert!(tag > self.last, "tags ascend, and each is there once");
        self.last = tag;
        self.written.extend_from_slice(&tag.to_le_bytes());
        self.written.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.written.extend_from_slice(value);
    }

    /// A whole number, in 8 bytes.
    pub fn number(&mut self, tag: u16, value: u64) {
        self.bytes(tag, &value.to_le_bytes());
    }

    /// A real number, in the 8 bytes of IEEE 754.
    pub fn real(&mut self, tag: u16, value: f64) {
        self.bytes(tag, &value.to_le_bytes());
    }

    /// A text, in UTF-8.
    pub fn text(&mut self, tag: u16, value: &str) {
        self.bytes(tag, value.as_bytes());
    }

    /// Whole numbers in a row, in 8 bytes each.
    pub fn numbers(&mut self, tag: u16, values: impl IntoIterator<Item = u64>) {
        let bytes: Vec<u8> = values.into_iter().flat_map(u64::to_le_bytes).collect();
        self.bytes(tag, &bytes);
    }

    /// Several values, each with its length before it.
    pub fn parts<'a, T: Canonical + 'a>(&mut self, tag: u16, values: impl IntoIterator<Item = &'a T>) {
        let mut bytes = Vec::new();
        for value in values {
            let value = encoded(value);
            bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&value);
        }
        self.bytes(tag, &bytes);
    }

    /// A value that has an encoding itself.
    pub fn part<T: Canonical>(&mut self, tag: u16, value: &T) {
        self.bytes(tag, &encoded(value));
    }
}

/// The encoding of `value`.
#[must_use]
pub fn encoded<T: Canonical>(value: &T) -> Vec<u8> {
    let mut fields = Fields::default();
    value.fields(&mut fields);
    [&(T::DOMAIN.len() as u16).to_le_bytes(), T::DOMAIN.as_bytes(), &fields.written].concat()
}

/// SHA-256 of the encoding.
#[must_use]
pub fn digest<T: Canonical>(value: &T) -> [u8; 32] {
    Sha256::digest(encoded(value)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Both(u64, Option<f64>);

    impl Canonical for Both {
        const DOMAIN: &'static str = "both";

        fn fields(&self, to: &mut Fields) {
            to.number(1, self.0);
            if let Some(real) = self.1 {
                to.real(3, real);
            }
        }
    }

    /// Written by hand.
    #[test]
    fn a_value_is_its_domain_and_its_fields() {
        let domain = [4, 0, b'b', b'o', b't', b'h'];
        let number = [1, 0, 8, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(encoded(&Both(7, None)), [&domain[..], &number].concat());
        let real = [3, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xe0, 0x3f];
        assert_eq!(encoded(&Both(7, Some(0.5))), [&domain[..], &number, &real].concat());
    }

    #[test]
    #[should_panic(expected = "tags ascend")]
    fn a_tag_that_does_not_ascend_is_a_mistake() {
        let mut fields = Fields::default();
        fields.number(2, 1);
        fields.number(2, 1);
    }
}
