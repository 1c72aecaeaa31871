//! The number of bits of a sum: `clients * max_weight * (2^b - 2) < 2^w`, checked before any round. Also the levels of
//! a value: as many as these bits have room for.

use crate::canonical::{Canonical, Fields};
use crate::{Error, Result, TotalWeight, Weight};

/// A field of a sum never exceeds this many bits, so that every sum is a non-negative `i64`.
pub const MAX_FIELD_BITS: u32 = 63;

/// States that clients add noise to their updates. The host decides how; the core holds what all parties must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Privacy {
    /// The digest of all privacy parameters.
    pub digest: [u8; 32],
    /// The digest in the form of builds before 0.1.0.
    pub former: [u8; 16],
    /// The largest number of updates that a client sends under one key set.
    pub rounds: u64,
}

/// The limits of one sum: clients and weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The largest number of clients in one round.
    pub clients: u64,
    /// Largest weight of one client.
    pub max_weight: Weight,
    /// The smallest number of clients whose sum is opened.
    pub min_contributions: u64,
    pub privacy: Option<Privacy>,
}

impl Canonical for Bounds {
    const DOMAIN: &'static str = "fedcipher bounds";

    fn fields(&self, to: &mut Fields) {
        to.number(1, self.clients);
        to.number(2, self.max_weight.get());
        to.number(3, self.min_contributions);
        if let Some(privacy) = self.privacy {
            to.bytes(4, &privacy.digest);
        }
    }
}

/// The default of `min_contributions`. In a sum of two, each client knows the other's update.
const DEFAULT_MINIMUM: u64 = 3;
/// Tolerance of a share when clients are counted: a share such as 0.1 is not exact as a float.
const SHARE_SLACK: f64 = 1e-6;

impl Bounds {
    /// If `min_contributions` is `None`, it is 3, or 2 for rounds of two and three clients. A sum of one client is that
    /// client's update, so 1 must be chosen explicitly.
    pub fn new(clients: u64, max_weight: Weight, min_contributions: Option<u64>) -> Result<Self> {
        if !(1..=1 << 20).contains(&clients) {
            return Err(Error::parameter("clients", format!("{clients} is outside 1..=1048576")));
        }
        if !(1..=1 << 32).contains(&max_weight.get()) {
            return Err(Error::parameter("max_weight", format!("{max_weight} is outside 1..=4294967296")));
        }
        let min_contributions = match min_contributions {
            Some(chosen) if (1..=clients).contains(&chosen) => chosen,
            Some(chosen) => {
                return Err(Error::parameter(
                    "min_contributions",
                    format!("{chosen} is outside 1..={clients}, the clients of a round"),
                ));
            }
            None if clients == 1 => {
                return Err(Error::parameter(
                    "min_contributions",
                    "the sum of a round of one client is that client's update; choose min_contributions=1 if that is \
                     meant, or more clients",
                ));
            }
            None if clients <= DEFAULT_MINIMUM => 2,
            None => DEFAULT_MINIMUM,
        };
        Ok(Bounds { clients, max_weight, min_contributions, privacy: None })
    }

    /// Like [`Self::new`], if up to `corrupt` clients may collude with the server. If `min_contributions` is `None`, it
    /// is the largest of 3, `corrupt + 2` and a tenth of the clients; at most all clients.
    pub fn among(clients: u64, max_weight: Weight, min_contributions: Option<u64>, corrupt: u64) -> Result<Self> {
        let usual = clients.div_ceil(10).max(DEFAULT_MINIMUM).max(corrupt.saturating_add(2)).min(clients);
        Self::new(clients, max_weight, min_contributions.or((clients > 1).then_some(usual)))
    }

    /// The number of clients in a `share` of `clients`, rounded up, for use as `min_contributions`.
    pub fn share(clients: u64, share: f64) -> Result<u64> {
        if !(share > 0.0 && share < 1.0) {
            return Err(Error::parameter(
                "min_contributions",
                format!("{share} is neither a count from 1 on nor a share of the clients between 0 and 1"),
            ));
        }
        let count = (share * clients as f64 - SHARE_SLACK).ceil() as u64;
        if count < 2 {
            return Err(Error::parameter(
                "min_contributions",
                format!(
                    "{share} of {clients} clients is {} client, whose sum is its update; choose a larger share, or the \
                     count 1 if that is meant",
                    count.max(1)
                ),
            ));
        }
        Ok(count)
    }

    /// The same bounds for sums with noise.
    pub fn with_privacy(self, privacy: Option<Privacy>) -> Result<Self> {
        if privacy.is_some() && self.max_weight > Weight::ONE {
            return Err(Error::parameter(
                "max_weight",
                format!(
                    "{} with privacy: a weight multiplies what one client changes of the sum, and says how many \
                     examples it has; weigh all clients the same (max_weight=1, keygen --equal)",
                    self.max_weight
                ),
            ));
        }
        Ok(Bounds { privacy, ..self })
    }

    /// Name and value of each figure, for people.
    #[must_use]
    pub fn describe(&self) -> Vec<(String, String)> {
        [("clients", self.clients), ("least contributions", self.min_contributions)]
            .map(|(name, value)| (name.into(), value.to_string()))
            .into()
    }

    /// Fails if a sum has too few clients, since it would reveal too much about each.
    pub fn check_contributions(&self, found: usize) -> Result<()> {
        if found as u64 >= self.min_contributions {
            return Ok(());
        }
        Err(Error::TooFew { found, minimum: self.min_contributions })
    }

    /// The largest total weight of a round.
    #[must_use]
    pub fn total_weight(&self) -> TotalWeight {
        TotalWeight::of_equal(self.clients, self.max_weight)
    }

    /// The levels that fill the fields of these sums. With privacy, the levels of the bits alone, which the noise is
    /// made for.
    #[must_use]
    pub fn levels(&self) -> Levels {
        if self.privacy.is_some() {
            Levels::default()
        } else {
            Levels { total_weight: self.total_weight(), below: None }
        }
    }

    /// The largest field of a sum of `bits`-bit values with the levels of their bits alone.
    #[must_use]
    pub fn max_sum(&self, bits: u32) -> u128 {
        u128::from(self.total_weight().get()) * u128::from(max_level(bits))
    }

    /// Bits of a field that holds the sum of `bits`-bit values (FedBit theorem 1: beta + delta).
    #[must_use]
    pub fn field_bits(&self, bits: u32) -> u32 {
        128 - self.max_sum(bits).leading_zeros()
    }

    /// Like [`Self::field_bits`]; fails above `limit` with the parameters that would fit.
    pub fn checked_field_bits(&self, bits: u32, limit: u32) -> Result<u32> {
        let needed = self.field_bits(bits);
        if needed <= limit {
            return Ok(needed);
        }
        let fits_bits = (2..bits).rev().find(|b| self.field_bits(*b) <= limit);
        let fits_weight = ((1u128 << limit) - 1) / u128::from(max_level(bits)) / u128::from(self.clients);
        let fix = match (fits_bits, fits_weight) {
            (Some(b), w) if w >= 1 => format!("bits={b}, or max_weight={w}, or a modulus of {needed} bits"),
            (Some(b), _) => format!("bits={b}, or a modulus of {needed} bits"),
            (None, w) if w >= 1 => format!("max_weight={w}, or a modulus of {needed} bits"),
            (None, _) => format!("a modulus of {needed} bits, or fewer clients"),
        };
        Err(Error::Bound {
            clients: self.clients,
            max_weight: self.max_weight,
            bits,
            needed_bits: needed,
            modulus_bits: limit,
            fix,
        })
    }
}

/// The number of levels of a value beside zero: at least the `2^b - 2` of its bits, and as many as a field holds sums
/// of.
///
/// A field has whole bits. So the sum of `2^b - 2` levels can leave up to half of it empty, although all of it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    total_weight: TotalWeight,
    /// Sums stay below this number, if the field is that of a prime.
    below: Option<u64>,
}

/// The levels of the bits alone: a single value fills its bits.
impl Default for Levels {
    fn default() -> Self {
        Levels { total_weight: TotalWeight::new(1), below: None }
    }
}

impl Levels {
    /// Levels for sums below `prime`.
    #[must_use]
    pub fn below(self, prime: u64) -> Self {
        Levels { below: Some(prime), ..self }
    }

    /// The largest value of `bits` bits: the largest even number whose sum has room in the field of such values.
    #[must_use]
    pub fn of(self, bits: u32) -> u64 {
        let (weight, least) = (u128::from(self.total_weight.get()), u128::from(max_level(bits)));
        let field = 1u128 << (128 - (weight * least).leading_zeros());
        let sums = self.below.map_or(field, |prime| field.min(u128::from(prime)));
        // If the field cannot hold these bits, `checked_field_bits` reports it.
        (2 * ((sums - 1) / (2 * weight))).max(least) as u64
    }
}

/// Bits of the lanes of whole numbers that travel beside an update, whatever bits its values have.
///
/// Counts are 0 or 1 a client: fields hold the fewest bits that there are. Larger numbers travel as digits of up to 16
/// bits, so that in cohorts of hundreds four carry 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneBits {
    pub count: u32,
    pub digit: u32,
}

/// The largest magnitude of a sum of whole numbers. Float32 holds every whole number up to it.
const MAX_EXACT: u128 = 1 << 24;

impl LaneBits {
    /// The widest digits whose sums over all clients are exact. `fits` says which bits have fields.
    #[must_use]
    pub fn widest(bounds: Bounds, levels: Levels, fits: impl Fn(u32) -> bool) -> Self {
        let exact = |bits: u32| u128::from(bounds.clients) * u128::from(levels.of(bits) / 2) <= MAX_EXACT;
        let digit = (2..=16).rev().find(|bits| fits(*bits) && exact(*bits));
        LaneBits { count: 2, digit: digit.unwrap_or(2) }
    }
}

/// The largest value of `bits` bits if a field holds one value. It is even, so that zero is exactly half of it.
#[must_use]
pub fn max_level(bits: u32) -> u64 {
    (1u64 << bits) - 2
}
