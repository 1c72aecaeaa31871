//! How much updates count in a sum.

use crate::number;

/// How much one client's update counts in a sum, in units that all clients share: often its number of examples.
///
/// From 1 to the scheme's largest weight, which is at most `2^32`. An unchecked head may have any number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u64);

number!(Weight, u64);

impl Weight {
    /// The weight of a client whose update counts once.
    pub const ONE: Self = Self::new(1);
}

/// The total weight of all updates in a sum, in the units of [`Weight`].
///
/// Sums stop at `u64::MAX` and do not wrap. A checked sum is far below: at most `2^20` clients of weight `2^32`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TotalWeight(u64);

number!(TotalWeight, u64);

impl TotalWeight {
    /// Of these weights.
    #[must_use]
    pub fn of(weights: impl IntoIterator<Item = Weight>) -> Self {
        weights.into_iter().fold(Self::default(), Self::with)
    }

    /// Of so many clients with the same weight.
    #[must_use]
    pub const fn of_equal(clients: u64, weight: Weight) -> Self {
        Self::new(clients.saturating_mul(weight.get()))
    }

    /// With one more weight in it.
    #[must_use]
    pub const fn with(self, weight: Weight) -> Self {
        Self::new(self.0.saturating_add(weight.get()))
    }

    /// The weight without `other`; zero if `other` weighs more.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self::new(self.0.saturating_sub(other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_add_up_and_do_not_wrap() {
        let weights = [2, 3, 5].map(Weight::new);
        assert_eq!(TotalWeight::of(weights).get(), 10);
        assert_eq!(TotalWeight::of_equal(4, Weight::new(5)).get(), 20);
        assert_eq!(TotalWeight::of([Weight::new(u64::MAX), Weight::ONE]).get(), u64::MAX);
        assert_eq!(TotalWeight::of_equal(3, Weight::new(u64::MAX)).get(), u64::MAX);
        assert_eq!(TotalWeight::new(3).without(TotalWeight::new(5)), TotalWeight::default());
    }
}
