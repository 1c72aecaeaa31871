//! Parameters of the additive BFV scheme: what the user picks, and what follows from it.

use super::accelerator::Arithmetic;
use super::divide::Divisor;
use super::ring::{Binomial, Ring};
use crate::bits::{down, up};
use crate::bounds::Bounds;
use crate::codec::Layout;
use crate::packing::Fields;
use crate::{Error, Result};

/// N = 4096, log q = 106: the largest primes = 1 mod 8192 of 53 bits. The HE standard would allow 109 bits;
/// `max_log_q` says why not.
pub const PRIMES_4096: [u64; 2] = [9_007_199_254_429_697, 9_007_199_254_364_161];
/// N = 2048, log q = 53. Largest prime = 1 mod 4096.
const PRIMES_2048: [u64; 1] = [9_007_199_254_614_017];
/// The plaintext modulus of FedBit's evaluation.
const FEDBIT_T: u128 = 2_281_701_377;
/// A named parameter set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// N = 4096, t as large as the noise of the cohort allows, low bits of c0 dropped.
    Compact,
    /// N = 2048, one 53-bit prime, otherwise as compact.
    Fast,
    /// N = 4096, t = 2281701377, nothing dropped. FedBit does not state q. Here it has 106 bits as everywhere at this
    /// N; and sends c1, here as everywhere clients derive it.
    FedbitPaper,
}

/// What the cohort must agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    pub bounds: Bounds,
    pub preset: Preset,
    /// Bits of the values, one entry or one for each kind of layer; the fields of t are cut for these.
    pub bits: Vec<u32>,
    /// Let the server multiply by the weights instead of the clients: noise grows by the weight.
    pub server_weights: bool,
}

/// Everything that follows from [`Params`].
///
/// Correctness. A fresh ciphertext's c0 is `a s + e + delta M` with |e| <= B, 21 for `bfv`; dropping `up_drop`
/// low bits with rounding adds at most `2^(up_drop-1)`. With S = the number of clients, or the
/// total weight when the server multiplies, the sum carries at most `S (B + 2^(up_drop-1))`. The
/// constructor makes this less than `delta / 2`, and `sum M < t` with `delta t <= q`, so rounding
/// recovers the sum exactly: with a bounded error distribution the failure probability is zero.
/// Nothing more is dropped on the way down: tags cover the noise too ([`crate::mac`]), to its last bit.
/// Security is that of the undropped ciphertext: dropping bits is public post-processing.
pub struct Derived {
    pub params: Params,
    pub ring: Ring,
    /// What errors are drawn from.
    pub error: Binomial,
    pub t: u128,
    pub delta: u128,
    /// floor(log2 t): bits of a coefficient that carry fields.
    pub capacity: u32,
    pub up_drop: u32,
    /// Bits of a sum of c0 as it is broadcast: of whole numbers of `2^up_drop` where that is less than of q. Either
    /// way exact, to the last bit of the noise.
    pub down_bits: u32,
    fields: Vec<(u32, Fields)>,
    by_delta: Divisor,
    by_q: Divisor,
}

/// A fresh ciphertext's noise fits a tag's word of 32 bits.
const MAX_DROP: u32 = 30;

fn rounding_error(drop: u32) -> u128 {
    if drop == 0 { 0 } else { 1 << (drop - 1) }
}

impl Derived {
    pub fn new(params: Params, error: Binomial) -> Result<Self> {
        let mut params = params;
        params.bits.sort_unstable();
        params.bits.dedup();
        if params.bits.is_empty() || params.bits.iter().any(|b| !crate::codec::BITS.contains(b)) {
            return Err(Error::parameter("bits", format!("{:?} are not widths of 2..=24", params.bits)));
        }
        let ring = match params.preset {
            Preset::Fast => Ring::new(2048, &PRIMES_2048)?,
            Preset::Compact | Preset::FedbitPaper => Ring::new(4096, &PRIMES_4096)?,
        };
        let bounds = params.bounds;
        // S of the proof above.
        let terms = u128::from(if params.server_weights { bounds.total_weight() } else { bounds.clients });
        let (t, delta) = if params.preset == Preset::FedbitPaper {
            (FEDBIT_T, ring.q / FEDBIT_T)
        } else {
            largest_t(&ring, &params, terms * error.bound())?
        };
        let capacity = 127 - t.leading_zeros();
        let half = delta / 2;
        if terms * error.bound() >= half {
            return Err(noise_error(&params));
        }
        let fields =
            params.bits.iter().map(|b| Ok((*b, Fields::new(bounds, *b, capacity)?))).collect::<Result<Vec<_>>>()?;
        let up_drop =
            if params.preset == Preset::FedbitPaper { 0 } else { best_drop(terms, error, half, ring.log_q()) };
        let q = ring.q;
        let mut made = Derived {
            params,
            ring,
            error,
            t,
            delta,
            capacity,
            up_drop,
            down_bits: 0,
            fields,
            by_delta: Divisor::new(delta),
            by_q: Divisor::new(q),
        };
        let whole = made.wire_bits(up_drop) + (128 - terms.leading_zeros());
        made.down_bits = whole.min(made.ring.log_q());
        Ok(made)
    }

    /// The packing of `bits`-bit values.
    pub fn fields(&self, bits: u32) -> Result<Fields> {
        self.fields.iter().find(|(b, _)| *b == bits).map(|(_, f)| *f).ok_or_else(|| {
            Error::parameter(
                "bits",
                format!("a layer has {bits} bits but the scheme was made for {:?}; list all widths", self.params.bits),
            )
        })
    }

    /// What a device has to be set to.
    #[must_use]
    pub fn arithmetic(&self) -> Arithmetic {
        let ring = &self.ring;
        let (primes, bits) = (ring.primes.clone(), ring.log_q());
        Arithmetic { n: ring.n, primes, q: ring.q, t: self.t, delta: self.delta, bits }
    }

    /// Bits of a c0 coefficient on the wire after dropping `drop` low bits.
    #[must_use]
    pub fn wire_bits(&self, drop: u32) -> u32 {
        128 - self.compress(self.ring.q - 1, drop).leading_zeros()
    }

    /// `round(x / 2^drop)`.
    #[must_use]
    pub fn compress(&self, x: u128, drop: u32) -> u128 {
        down(x + rounding_error(drop), drop)
    }

    /// Whether sums travel as whole numbers of `2^up_drop`, below q, and not mod q.
    #[must_use]
    pub fn sums_whole(&self) -> bool {
        self.down_bits < self.ring.log_q()
    }

    /// A broadcast sum as a coefficient mod q.
    pub fn expand_sum(&self, value: u128) -> Result<u128> {
        if self.sums_whole() {
            let (mut x, mut left) = (value, self.up_drop);
            while left > 0 {
                // What is divided has 127 bits at most.
                let by = left.min(127 - self.ring.log_q());
                (x, left) = (self.by_q.divide(x << by).1, left - by);
            }
            return Ok(x);
        }
        if value >= self.ring.q {
            return Err(Error::Frame { reason: "a sum's coefficient is not below q".into() });
        }
        Ok(value)
    }

    /// The most that a sender can have made of a coefficient.
    #[must_use]
    pub fn most_sent(&self) -> u128 {
        self.compress(self.ring.q - 1, self.up_drop)
    }

    /// What a sender can have made of a coefficient, back to one mod q.
    #[must_use]
    pub fn expand(&self, sent: u128) -> u128 {
        let x = up(sent, self.up_drop);
        if x >= self.ring.q { x - self.ring.q } else { x }
    }

    /// Most noise of one fresh ciphertext as it travels.
    #[must_use]
    pub fn fresh_noise(&self) -> u128 {
        self.error.bound() + rounding_error(self.up_drop)
    }

    /// The plaintext and the noise behind `delta M + noise mod q`.
    pub fn decode(&self, x: u128) -> Result<(u128, i128)> {
        let half = self.delta / 2;
        let (m, noise) = self.by_delta.divide(x + half);
        if m < self.t {
            Ok((m, noise as i128 - half as i128))
        } else if x >= self.ring.q - half {
            Ok((0, x as i128 - self.ring.q as i128))
        } else {
            Err(Error::Decrypt { reason: "a coefficient lies outside the plaintext space".into() })
        }
    }

    /// How a layout falls into ciphertexts.
    pub fn shape(&self, layout: &Layout) -> Result<Vec<Block>> {
        // Counted first: growing by doubling would hold the list of a large model three times over.
        let count = layout.segments().into_iter().map(|s| Ok(s.len.div_ceil(self.fields(s.bits)?.count * self.ring.n)));
        let mut blocks = Vec::with_capacity(count.sum::<Result<usize>>()?);
        for segment in layout.segments() {
            let fields = self.fields(segment.bits)?;
            let per = fields.count * self.ring.n;
            let mut start = segment.start;
            let end = segment.start + segment.len;
            while start < end {
                let len = per.min(end - start);
                blocks.push(Block { start, len, bits: segment.bits, fields, used: fields.coefficients(len) });
                start += len;
            }
        }
        Ok(blocks)
    }
}

/// One ciphertext: elements `start..start + len`, in the first `used` coefficients.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    pub start: usize,
    pub len: usize,
    pub bits: u32,
    pub fields: Fields,
    pub used: usize,
}

fn noise_error(params: &Params) -> Error {
    Error::parameter(
        "clients",
        format!(
            "the noise of {} clients of weight {} leaves no room for the plaintext; use a larger preset, client-side \
             weights, or fewer clients",
            params.bounds.clients, params.bounds.max_weight
        ),
    )
}

/// The largest power of two t, trimmed to whole fields, with room for the noise of the cohort.
fn largest_t(ring: &Ring, params: &Params, noise: u128) -> Result<(u128, u128)> {
    let log = ring.log_q() - 1;
    let noise_bits = 128 - (2 * (noise + 1)).leading_zeros();
    let capacity = log.checked_sub(noise_bits).filter(|c| *c >= 8).ok_or_else(|| noise_error(params))?;
    let mut used = 0;
    for bits in &params.bits {
        let fields = Fields::new(params.bounds, *bits, capacity)?;
        used = used.max(fields.width * fields.count as u32);
    }
    Ok((1 << used, 1 << (log - used)))
}

/// The low bits of c0 to drop on the way up: as many as the noise leaves room for, and a tag's word.
fn best_drop(terms: u128, error: Binomial, half: u128, log_q: u32) -> u32 {
    // A decoded coefficient's noise, shifted to be no less than zero, is a word of 64 bits.
    let fits = |up: &u32| {
        let noise = terms * (error.bound() + rounding_error(*up));
        noise < half && 2 * noise <= u128::from(u64::MAX)
    };
    (0..(log_q / 2).min(MAX_DROP + 1)).rev().find(fits).unwrap_or(0)
}
