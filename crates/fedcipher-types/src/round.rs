//! How rounds are numbered.

use crate::number;

/// Numbers from here on are dated. Below are 12 days of 1970, which no clock in use shows: plain counters.
const DATED: u64 = 1 << 40;

/// The number of a round. Under one key every round has a greater number than the round before.
///
/// Any 64-bit number. From `2^40` on a number is *dated*: `unix seconds << 20 | index`. A server reserves a block of `2^20`
/// numbers for a run, which begins with the second in which the run starts, and counts in it. So two runs share no number,
/// and numbers increase even where nothing was kept of an earlier run. A smaller number is a plain counter.
///
/// This type alone knows that structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoundId(u64);

number!(RoundId, u64);

impl RoundId {
    /// Bits of a number that count rounds, below the bits of its date.
    pub const INDEX_BITS: u32 = 20;

    /// Number 0, in the heads of frames that belong to no round, such as keys.
    pub const NONE: Self = Self::new(0);

    /// The greatest number. A ledger that is closed for good has it as its last round.
    pub const LAST: Self = Self::new(u64::MAX);

    /// The first round of a run that starts at `second`, unix time. None from the year 559,444 on, which has no number.
    #[must_use]
    pub const fn first_at(second: u64) -> Option<Self> {
        if second > u64::MAX >> Self::INDEX_BITS { None } else { Some(Self::new(second << Self::INDEX_BITS)) }
    }

    /// The clock's second that the number carries, unix time. None for a plain counter.
    #[must_use]
    pub const fn date(self) -> Option<u64> {
        if self.0 >= DATED { Some(self.0 >> Self::INDEX_BITS) } else { None }
    }

    /// The first number of the block of `2^20` numbers that this one is in: it names the run.
    ///
    /// A run that starts while the block of its second is partly taken begins inside of that block, and reaches into the
    /// next. The server's own record of the run, not this function, says where such a run begins.
    #[must_use]
    pub const fn run(self) -> Self {
        Self::new(self.0 >> Self::INDEX_BITS << Self::INDEX_BITS)
    }

    /// The place in that block, from 0 to `2^20 - 1`.
    #[must_use]
    pub const fn index(self) -> u32 {
        (self.0 & ((1 << Self::INDEX_BITS) - 1)) as u32
    }

    /// The number `count` later; [`Self::LAST`] at most.
    #[must_use]
    pub const fn later_by(self, count: u64) -> Self {
        Self::new(self.0.saturating_add(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dated_number_is_its_run_and_its_index() {
        let second = 1_700_000_000;
        let first = RoundId::first_at(second).unwrap_or(RoundId::NONE);
        let round = first.later_by(7);
        assert_eq!(round.get(), second << 20 | 7);
        assert_eq!((round.date(), round.run(), round.index()), (Some(second), first, 7));
        let next = RoundId::first_at(second + 1).unwrap_or(RoundId::NONE);
        assert_eq!(next.get() - first.get(), 1 << RoundId::INDEX_BITS);
        assert_eq!(first.later_by((1 << RoundId::INDEX_BITS) - 1).run(), first);
    }

    #[test]
    fn a_small_number_is_a_plain_counter() {
        assert_eq!((RoundId::new(7).date(), RoundId::new(7).run(), RoundId::new(7).index()), (None, RoundId::NONE, 7));
        assert_eq!(RoundId::new(DATED - 1).date(), None);
        assert_eq!(RoundId::new(DATED).date(), Some(1 << 20));
    }

    #[test]
    fn nothing_wraps() {
        assert_eq!(RoundId::LAST.later_by(1), RoundId::LAST);
        assert_eq!(RoundId::first_at(u64::MAX >> 20).map(RoundId::run), Some(RoundId::LAST.run()));
        assert_eq!(RoundId::first_at((u64::MAX >> 20) + 1), None);
    }
}
