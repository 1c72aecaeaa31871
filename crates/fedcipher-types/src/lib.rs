//! Types that all parts of Fedcipher share: the numbers [`RoundId`], [`Epoch`], [`ClientId`], [`Weight`] and
//! [`TotalWeight`], each with a type of its own, and the one encoding of parameters ([`canonical`]).
//!
//! On the wire, in a ledger and in Python these numbers are plain integers. A program makes the type where it reads such
//! an integer, and calls `get` where it writes one. Between the two, the compiler refuses a round where an epoch belongs.
//! So none of the types converts or computes silently: there is no `From<u64>`, no `Deref` and no arithmetic operator.

#![warn(missing_docs)]

pub mod canonical;
mod round;
mod weight;

pub use round::RoundId;
pub use weight::{TotalWeight, Weight};

/// `new`, `get`, the bytes of a frame, and a text that is the bare number.
macro_rules! number {
    ($name:ident, $inner:ty) => {
        impl $name {
            /// The type with this number. Every value is accepted: the type says what a number means, not whether it is
            /// allowed.
            #[must_use]
            pub const fn new(number: $inner) -> Self {
                $name(number)
            }

            /// The number.
            #[must_use]
            pub const fn get(self) -> $inner {
                self.0
            }

            /// Each of these numbers as this type, in the same order.
            #[must_use]
            pub fn list(numbers: impl IntoIterator<Item = $inner>) -> Vec<Self> {
                numbers.into_iter().map(Self::new).collect()
            }

            /// The number as frames and files have it: little-endian.
            #[must_use]
            pub const fn to_le_bytes(self) -> [u8; size_of::<$inner>()] {
                self.0.to_le_bytes()
            }

            /// From the bytes of [`Self::to_le_bytes`].
            #[must_use]
            pub const fn from_le_bytes(bytes: [u8; size_of::<$inner>()]) -> Self {
                Self::new(<$inner>::from_le_bytes(bytes))
            }
        }

        impl std::fmt::Display for $name {
            /// The bare number.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}
pub(crate) use number;

/// A key epoch: the number of one key generation, which the maker of the keys chooses.
///
/// Any 64-bit number; keys of a later generation have a greater one. Keys and frames of two epochs do not go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

number!(Epoch, u64);

/// The number of a party in a key set: of a client, and of the committee members and readers that a roster lists beside
/// clients.
///
/// Any 32-bit number. It means nothing outside of its key set: another one may give the number to another party.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u32);

number!(ClientId, u32);

impl ClientId {
    /// The party with the next number. The largest number has none.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self::new)
    }

    /// The party with the number before. Number 0 has none.
    #[must_use]
    pub fn previous(self) -> Option<Self> {
        self.0.checked_sub(1).map(Self::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Error texts and ledgers hold bare numbers.
    #[test]
    fn a_text_is_the_bare_number() {
        let texts = [RoundId::new(7).to_string(), Epoch::new(7).to_string(), ClientId::new(7).to_string()];
        assert_eq!([&texts[..], &[Weight::new(7).to_string()]].concat(), ["7"; 4]);
        assert_eq!(format!("{:>3}", ClientId::new(7)), "  7");
    }

    #[test]
    fn bytes_are_those_of_the_number() {
        assert_eq!(RoundId::new(0x0102).to_le_bytes(), [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ClientId::from_le_bytes([2, 1, 0, 0]), ClientId::new(0x0102));
    }

    #[test]
    fn the_ends_have_no_neighbours() {
        assert_eq!(
            ClientId::list([0, u32::MAX]).into_iter().filter_map(ClientId::next).collect::<Vec<_>>(),
            [ClientId::new(1)]
        );
        assert_eq!(ClientId::new(0).previous(), None);
        assert_eq!(ClientId::new(4).previous(), Some(ClientId::new(3)));
    }
}
