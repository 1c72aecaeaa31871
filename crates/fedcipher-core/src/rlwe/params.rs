//! Parameters of the additive BFV scheme: the user's choices, and the values derived from them.

use super::accelerator::Arithmetic;
use super::divide::Divisor;
use super::ring::{Binomial, Ring};
use crate::bits::{down, packed_len, up};
use crate::bounds::{Bounds, LaneBits};
use crate::codec::Layout;
use crate::mac::hash::GROUP;
use crate::packing::Fields;
use crate::{Error, Result};
use std::sync::Arc;

/// N = 4096, log q = 106: the largest primes = 1 mod 8192 of 53 bits. The HE standard would allow 109 bits;
/// `max_log_q` gives the reason for fewer.
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
    /// N = 2048, one 53-bit prime, otherwise like `Compact`.
    Fast,
    /// N = 4096, t = 2281701377, no bits dropped. FedBit does not state q; here q has 106 bits, like in all presets with
    /// this N. FedBit sends c1; here clients derive c1, like in all presets.
    FedbitPaper,
}

impl Preset {
    /// The number in encodings. A number keeps its meaning in all versions.
    #[must_use]
    pub fn number(self) -> u64 {
        match self {
            Preset::Compact => 1,
            Preset::Fast => 2,
            Preset::FedbitPaper => 3,
        }
    }
}

/// The parameters that the cohort must agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BfvParams {
    pub bounds: Bounds,
    pub preset: Preset,
    /// Bits of the values: one entry, or one for each kind of layer, or all widths among which a run may choose.
    pub bits: Vec<u32>,
    /// The server multiplies by the weights instead of the clients. Then the noise grows by the weight.
    pub server_weights: bool,
}

/// Everything that follows from [`BfvParams`].
pub struct Derived {
    pub params: BfvParams,
    pub ring: Ring,
    /// The distribution of errors.
    pub error: Binomial,
    /// The modulus for the middle one of the cohort's widths. A device is configured with this modulus.
    pub values: Modulus,
    pub lanes: LaneBits,
    packings: Vec<Arc<Packing>>,
}

/// A plaintext modulus, and the form of its coefficients on the wire. Coefficients of one ciphertext may have different
/// moduli.
///
/// Correctness. A fresh ciphertext's c0 is `a s + e + delta M` with |e| <= B, where B is 21 for `bfv`. Dropping `up_drop`
/// low bits with rounding adds at most `2^(up_drop-1)`. Let S be the number of clients, or the total weight if the server
/// multiplies. Then the sum carries noise of at most `S (B + 2^(up_drop-1))`. The constructor makes this less than
/// `delta / 2`, and `sum M < t` with `delta t <= q`. So rounding recovers the sum exactly: the error distribution is
/// bounded, and the failure probability is zero. The broadcast drops no bits, because tags cover the noise to its last
/// bit ([`crate::mac`]).
///
/// Security equals that of the undropped ciphertext, because dropping bits is public post-processing.
#[derive(Debug, Clone, Copy)]
pub struct Modulus {
    pub t: u128,
    pub delta: u128,
    /// The bits of a coefficient that carry fields: floor(log2 t).
    pub capacity: u32,
    pub up_drop: u32,
    /// Bits of a c0 coefficient as a client sends it.
    pub up_bits: u32,
    /// Bits of a broadcast sum of c0. The sum is sent in units of `2^up_drop` if that takes fewer bits than q, else mod q.
    /// Both forms are exact, to the last bit of the noise.
    pub down_bits: u32,
    /// The most noise of one fresh ciphertext on the wire.
    pub fresh_noise: u128,
    q: u128,
    log_q: u32,
    by_delta: Divisor,
    by_q: Divisor,
}

/// The packing of values with `bits` bits into coefficients.
#[derive(Debug, Clone, Copy)]
pub struct Packing {
    pub bits: u32,
    pub fields: Fields,
    pub modulus: Modulus,
}

/// The most bits to drop. The noise of a fresh ciphertext must fit in a tag's word of 32 bits.
const MAX_DROP: u32 = 30;

fn rounding_error(drop: u32) -> u128 {
    if drop == 0 { 0 } else { 1 << (drop - 1) }
}

impl Derived {
    pub fn new(params: BfvParams, error: Binomial) -> Result<Self> {
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
        // S in the proof at `Modulus`.
        let terms = u128::from(if params.server_weights { bounds.total_weight().get() } else { bounds.clients });
        let (paper, room) = (params.preset == Preset::FedbitPaper, || noise_error(&params));
        let max_bits =
            if paper { FEDBIT_T.ilog2() } else { most_capacity(&ring, terms * error.bound()).ok_or_else(room)? };
        // Each width has a modulus of its own, because a modulus that suits many small fields wastes bits of larger ones.
        let packing = |bits: u32| -> Result<Arc<Packing>> {
            let split = if paper { (FEDBIT_T, ring.q / FEDBIT_T) } else { trimmed(&ring, bounds, bits, max_bits)? };
            let modulus = Modulus::new(&ring, split, terms, error, !paper).ok_or_else(room)?;
            Ok(Arc::new(Packing { bits, fields: Fields::new(bounds, bits, modulus.capacity)?, modulus }))
        };
        let mut packings = params.bits.iter().map(|bits| packing(*bits)).collect::<Result<Vec<_>>>()?;
        let values = packings[packings.len() / 2].modulus;
        let lanes = LaneBits::widest(bounds, bounds.levels(), |bits| Fields::new(bounds, bits, max_bits).is_ok());
        for bits in [lanes.count, lanes.digit] {
            if packings.iter().all(|p| p.bits != bits) {
                packings.push(packing(bits)?);
            }
        }
        Ok(Derived { params, ring, error, values, lanes, packings })
    }

    /// The packing of `bits`-bit values.
    pub fn packing(&self, bits: u32) -> Result<&Arc<Packing>> {
        self.packings.iter().find(|p| p.bits == bits).ok_or_else(|| {
            Error::parameter(
                "bits",
                format!("a layer has {bits} bits but the scheme was made for {:?}; list all widths", self.params.bits),
            )
        })
    }

    /// The parameters as pairs of name and value, for display and for the proofs of `tools/prove.py`.
    #[must_use]
    pub fn describe(&self) -> Vec<(String, String)> {
        let (ring, values) = (&self.ring, &self.values);
        let mut out = vec![
            ("preset".into(), format!("{:?}", self.params.preset)),
            ("N".into(), ring.n.to_string()),
            ("q".into(), ring.q.to_string()),
            ("log q".into(), ring.log_q().to_string()),
            ("t".into(), values.t.to_string()),
            ("log t".into(), values.capacity.to_string()),
            ("delta".into(), values.delta.to_string()),
            ("largest error".into(), self.error.bound().to_string()),
            ("bits dropped".into(), values.up_drop.to_string()),
            ("wire bits up".into(), values.up_bits.to_string()),
            ("wire bits down".into(), values.down_bits.to_string()),
        ];
        for bits in &self.params.bits {
            if let Ok(f) = self.packing(*bits).map(|packing| packing.fields) {
                out.push((format!("fields of {bits} bits"), format!("{} x {} bits", f.count, f.width)));
            }
        }
        out
    }

    /// The constants with which a device is configured.
    #[must_use]
    pub fn arithmetic(&self) -> Arithmetic {
        let (ring, Modulus { t, delta, .. }) = (&self.ring, self.values);
        let (primes, bits) = (ring.primes.clone(), ring.log_q());
        Arithmetic { n: ring.n, primes, q: ring.q, t, delta, bits }
    }

    /// True if a device with the constants of [`Self::arithmetic`] can work on this ciphertext.
    #[must_use]
    pub fn fits_device(&self, block: &Block) -> bool {
        block.parts.iter().all(|part| part.packing.modulus.t == self.values.t)
    }

    /// Splits a layout into ciphertexts. A segment begins in the coefficient behind the segment before it.
    pub fn shape(&self, layout: &Layout) -> Result<Vec<Block>> {
        let (n, segments) = (self.ring.n, layout.segments());
        // The blocks are counted first. A vector that grows by doubling would hold the list of a large model three times.
        let counts = segments.iter().map(|s| Ok(s.len.div_ceil(self.packing(s.bits)?.fields.count * n)));
        let mut blocks = Vec::with_capacity(counts.sum::<Result<usize>>()?);
        let mut block = Block::default();
        for segment in segments {
            let packing = self.packing(segment.bits)?;
            let (mut start, end) = (segment.start, segment.start + segment.len);
            while start < end {
                let first = block.used();
                let len = packing.run(n - first, end - start);
                if len == 0 {
                    blocks.push(std::mem::take(&mut block));
                    continue;
                }
                let used = packing.fields.coefficients(len);
                block.parts.push(Part { start, len, first, used, packing: Arc::clone(packing) });
                start += len;
            }
        }
        if !block.parts.is_empty() {
            blocks.push(block);
        }
        Ok(blocks)
    }
}

impl Modulus {
    /// Returns `None` if the noise of `terms` ciphertexts does not fit.
    fn new(ring: &Ring, (t, delta): (u128, u128), terms: u128, error: Binomial, drops: bool) -> Option<Self> {
        let (q, log_q, half) = (ring.q, ring.log_q(), delta / 2);
        if terms * error.bound() >= half {
            return None;
        }
        let up_drop = if drops { best_drop(terms, error, half, log_q) } else { 0 };
        let up_bits = 128 - compress(q - 1, up_drop).leading_zeros();
        Some(Modulus {
            t,
            delta,
            capacity: 127 - t.leading_zeros(),
            up_drop,
            up_bits,
            down_bits: (up_bits + (128 - terms.leading_zeros())).min(log_q),
            fresh_noise: error.bound() + rounding_error(up_drop),
            q,
            log_q,
            by_delta: Divisor::new(delta),
            by_q: Divisor::new(q),
        })
    }

    /// Drops the low bits of a coefficient that are not sent, with rounding.
    #[must_use]
    pub fn compress(&self, x: u128) -> u128 {
        compress(x, self.up_drop)
    }

    /// True if sums are sent in units of `2^up_drop`, and false if they are sent mod q.
    #[must_use]
    pub fn sums_whole(&self) -> bool {
        self.down_bits < self.log_q
    }

    /// Converts a broadcast sum to a coefficient mod q.
    pub fn expand_sum(&self, value: u128) -> Result<u128> {
        if self.sums_whole() {
            let (mut x, mut left) = (value, self.up_drop);
            while left > 0 {
                // The dividend has at most 127 bits.
                let by = left.min(127 - self.log_q);
                (x, left) = (self.by_q.divide(x << by).1, left - by);
            }
            return Ok(x);
        }
        if value >= self.q {
            return Err(Error::Frame { reason: "a sum's coefficient is not below q".into() });
        }
        Ok(value)
    }

    /// The largest value that a coefficient can have on the wire.
    #[must_use]
    pub fn most_sent(&self) -> u128 {
        self.compress(self.q - 1)
    }

    /// Converts a received coefficient back to one mod q.
    #[must_use]
    pub fn expand(&self, sent: u128) -> u128 {
        let x = up(sent, self.up_drop);
        if x >= self.q { x - self.q } else { x }
    }

    /// Splits `x = delta M + noise mod q` into plaintext and noise. The third result is all ones if x has no such form,
    /// else zero. The function has no branches, because branches would reveal plaintext and noise.
    #[must_use]
    pub fn decode(&self, x: u128) -> (u128, i128, u128) {
        let half = self.delta / 2;
        let (m, rest) = self.by_delta.divide(x + half);
        let negative = |x: u128| (x as i128 >> 127) as u128;
        // For a plaintext of zero with negative noise, x lies just below q.
        let wrapped = !negative(m.wrapping_sub(self.t));
        let noise = (rest.wrapping_sub(half) & !wrapped) | (x.wrapping_sub(self.q) & wrapped);
        (m & !wrapped, noise as i128, wrapped & negative(x.wrapping_sub(self.q - half)))
    }
}

impl Packing {
    /// The number of values, out of `left`, that go into a ciphertext with `room` free coefficients. If not all fit, the
    /// number is a whole number of groups of a tag's words.
    fn run(&self, room: usize, left: usize) -> usize {
        if left <= self.fields.count * room { left } else { self.fields.count * (room - room % GROUP) }
    }
}

/// One ciphertext.
#[derive(Debug, Clone, Default)]
pub struct Block {
    /// Parts in the order of their elements and of their coefficients. Blocks of a [`Derived::shape`] are never empty.
    pub parts: Vec<Part>,
}

/// Elements `start..start + len`, with one packing, in `used` coefficients of a ciphertext from number `first` on. In a
/// stream each part begins on a byte.
#[derive(Debug, Clone)]
pub struct Part {
    pub start: usize,
    pub len: usize,
    pub first: usize,
    pub used: usize,
    pub packing: Arc<Packing>,
}

impl Block {
    #[must_use]
    pub fn start(&self) -> usize {
        self.parts.first().map_or(0, |part| part.start)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.len).sum()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of coefficients that the ciphertext uses, from the first on.
    #[must_use]
    pub fn used(&self) -> usize {
        self.parts.last().map_or(0, |part| part.first + part.used)
    }

    /// Bytes of c0 as a client sends it.
    #[must_use]
    pub fn up_bytes(&self) -> usize {
        self.parts.iter().map(Part::up_bytes).sum()
    }

    /// Bytes of a broadcast sum of c0.
    #[must_use]
    pub fn down_bytes(&self) -> usize {
        self.parts.iter().map(Part::down_bytes).sum()
    }
}

impl Part {
    /// Bytes of the part in c0 as a client sends it.
    #[must_use]
    pub fn up_bytes(&self) -> usize {
        packed_len(self.used, self.packing.modulus.up_bits)
    }

    /// Bytes of the part in a broadcast sum of c0.
    #[must_use]
    pub fn down_bytes(&self) -> usize {
        packed_len(self.used, self.packing.modulus.down_bits)
    }
}

/// `round(x / 2^drop)`.
fn compress(x: u128, drop: u32) -> u128 {
    down(x + rounding_error(drop), drop)
}

fn noise_error(params: &BfvParams) -> Error {
    Error::parameter(
        "clients",
        format!(
            "the noise of {} clients of weight {} leaves no room for the plaintext; use a larger preset, client-side \
             weights, or fewer clients",
            params.bounds.clients, params.bounds.max_weight
        ),
    )
}

/// The most plaintext bits that leave room for `noise`; `None` if fewer than 8 are left.
fn most_capacity(ring: &Ring, noise: u128) -> Option<u32> {
    let noise_bits = 128 - (2 * (noise + 1)).leading_zeros();
    (ring.log_q() - 1).checked_sub(noise_bits).filter(|capacity| *capacity >= 8)
}

/// The largest power of two t that holds whole fields in at most `max_bits` bits, and its delta.
fn trimmed(ring: &Ring, bounds: Bounds, bits: u32, max_bits: u32) -> Result<(u128, u128)> {
    let fields = Fields::new(bounds, bits, max_bits)?;
    let used = fields.width * fields.count as u32;
    Ok((1 << used, 1 << (ring.log_q() - 1 - used)))
}

/// The number of low bits that clients drop from c0: as many as leave the noise correct and within a tag's word.
fn best_drop(terms: u128, error: Binomial, half: u128, log_q: u32) -> u32 {
    // The noise of a decoded coefficient, shifted so that it is not negative, must fit in a word of 64 bits.
    let fits = |up: &u32| {
        let noise = terms * (error.bound() + rounding_error(*up));
        noise < half && 2 * noise <= u128::from(u64::MAX)
    };
    (0..(log_q / 2).min(MAX_DROP + 1)).rev().find(fits).unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use crate::Weight;
    use proptest::prelude::*;

    /// Decodes with a division and comparisons.
    fn plainly(of: &Modulus, x: u128) -> Option<(u128, i128)> {
        let half = of.delta / 2;
        let m = (x + half) / of.delta;
        if m < of.t {
            return Some((m, x as i128 - (m * of.delta) as i128));
        }
        (x >= of.q - half).then_some((0, x as i128 - of.q as i128))
    }

    proptest! {
        #[test]
        fn a_coefficient_without_branches_is_what_it_is_with_them(
            preset in prop::sample::select(vec![Preset::Compact, Preset::Fast, Preset::FedbitPaper]),
            place in 0..5usize, x: u128, near in -2i128..=2,
        ) {
            let bounds = Bounds::new(10, Weight::ONE, None).unwrap();
            let params = BfvParams { bounds, preset, bits: vec![12], server_weights: false };
            let of = Derived::new(params, Binomial::ERROR).unwrap().values;
            let half = of.delta / 2;
            // Values anywhere, and around the points at which the answer changes.
            let about = [x % of.q, 0, half, of.t * of.delta - half, of.q - half][place];
            let x = about.saturating_add_signed(near).min(of.q - 1);
            let (m, noise, outside) = of.decode(x);
            prop_assert_eq!((outside == 0).then_some((m, noise)), plainly(&of, x));
            prop_assert!(outside == 0 || outside == u128::MAX);
        }
    }
}
