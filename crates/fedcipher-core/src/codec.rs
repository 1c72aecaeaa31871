//! Float tensors to unsigned integers and back: clip to [-alpha, alpha], quantise to L + 1 values.
//!
//! `q = round((clip(x) + alpha) * L / (2 alpha))`, ties to even. L is even, so zero is exactly `L / 2`; it is at least
//! the `2^b - 2` of b bits ([`Levels`]).
//! Clipping and quantisation follow FLASHE, section 5.2: Executor Details, and FedBit, section V: FEDBIT FRAMEWORK.

use crate::bounds::Levels;
use crate::memory::{SHARED, check_runs, runs, zeros};
use crate::prf::Prf;
use crate::shown::shown;
use crate::threads::Threads;
use crate::wire::Reader;
use crate::{Error, Result, TotalWeight};
use multiversion::multiversion;
use rayon::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The smallest and the largest number of bits of a quantised value.
pub const BITS: std::ops::RangeInclusive<u32> = 2..=24;
/// The element type of whole numbers beside an update. The codec interprets no other type. Whole numbers are always
/// rounded to the nearest. Opening returns their sum instead of their mean, so the sum is exact
/// ([`crate::bounds::LaneBits`]).
pub const WHOLE: u8 = 12;
const MAX_DIMS: usize = 8;
/// 32 GiB of float32. The list of an update's pieces, which is made before the data arrive, then stays under 100 MB.
const MAX_ELEMENTS: usize = 1 << 33;

/// The shape and the quantisation of one tensor of an update.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// The host's code of the element type. It is restored unread.
    pub dtype: u8,
    pub bits: u32,
    pub alpha: f32,
    pub shape: Vec<u32>,
}

impl Tensor {
    /// Number of elements; `Layout::new` has checked that it fits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.iter().map(|d| *d as usize).product()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A run of consecutive tensors quantised to the same number of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub bits: u32,
    pub start: usize,
    pub len: usize,
}

/// The public shape of an update. Every frame of a round carries the same one.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    tensors: Vec<Tensor>,
    starts: Vec<usize>,
    elements: usize,
}

impl Layout {
    pub fn new(tensors: Vec<Tensor>) -> Result<Self> {
        if tensors.is_empty() || tensors.len() > usize::from(u16::MAX) {
            return Err(Error::layout(format!("{} tensors, expected 1 to 65535", tensors.len())));
        }
        let mut starts = Vec::with_capacity(tensors.len());
        let mut elements = 0usize;
        for (i, t) in tensors.iter().enumerate() {
            if !BITS.contains(&t.bits) {
                return Err(Error::layout(format!("tensor {i}: {} bits is outside 2..=24", t.bits)));
            }
            if !(t.alpha.is_finite() && t.alpha > 0.0) {
                return Err(Error::layout(format!("tensor {i}: clip range {} is not a positive number", t.alpha)));
            }
            if t.shape.len() > MAX_DIMS {
                return Err(Error::layout(format!("tensor {i}: {} dimensions, at most {MAX_DIMS}", t.shape.len())));
            }
            let len = t.shape.iter().try_fold(1u64, |n, d| n.checked_mul(u64::from(*d)));
            starts.push(elements);
            elements = len
                .and_then(|n| usize::try_from(n).ok())
                .and_then(|n| elements.checked_add(n))
                .filter(|n| *n <= MAX_ELEMENTS)
                .ok_or_else(|| Error::layout(format!("tensor {i} makes the update larger than 2^33 elements")))?;
        }
        Ok(Layout { tensors, starts, elements })
    }

    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The number of elements of all tensors.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// The update as runs of equal bit width, in order, without empty ones.
    #[must_use]
    pub fn segments(&self) -> Vec<Segment> {
        let mut out: Vec<Segment> = Vec::new();
        for (t, start) in self.tensors.iter().zip(&self.starts).filter(|(t, _)| !t.is_empty()) {
            match out.last_mut() {
                Some(last) if last.bits == t.bits => last.len += t.len(),
                _ => out.push(Segment { bits: t.bits, start: *start, len: t.len() }),
            }
        }
        out
    }

    /// The wire form: `count u16 | count x (dtype u8, bits u8, dims u8, alpha f32, dims x u32)`.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(2 + self.tensors.len() * 16);
        out.extend_from_slice(&(self.tensors.len() as u16).to_le_bytes());
        for t in &self.tensors {
            out.extend_from_slice(&[t.dtype, t.bits as u8, t.shape.len() as u8]);
            out.extend_from_slice(&t.alpha.to_le_bytes());
            for d in &t.shape {
                out.extend_from_slice(&d.to_le_bytes());
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let count = r.u16()?;
        let mut tensors = Vec::new();
        for _ in 0..count {
            let (dtype, bits, dims) = (r.u8()?, r.u8()?, r.u8()?);
            let alpha = f32::from_le_bytes(r.array()?);
            let shape = (0..dims).map(|_| r.u32()).collect::<Result<Vec<_>>>()?;
            tensors.push(Tensor { dtype, bits: u32::from(bits), alpha, shape });
        }
        r.finish()?;
        Layout::new(tensors)
    }

    /// Splits the values of all tensors, in a row, into tensors.
    pub fn split<'a>(&self, flat: &'a [f32]) -> Result<Vec<&'a [f32]>> {
        if flat.len() != self.elements {
            return Err(Error::layout(format!("{} elements instead of {}", flat.len(), self.elements)));
        }
        Ok(self.tensors.iter().zip(&self.starts).map(|(t, start)| &flat[*start..*start + t.len()]).collect())
    }

    /// The difference of two layouts, for error messages.
    #[must_use]
    pub fn difference(&self, other: &Layout) -> String {
        if self.tensors.len() != other.tensors.len() {
            return format!("{} tensors instead of {}", other.tensors.len(), self.tensors.len());
        }
        self.tensors.iter().zip(&other.tensors).enumerate().find(|(_, (a, b))| a != b).map_or_else(
            || "nothing".into(),
            |(i, (a, b))| {
                format!(
                    "tensor {i} is {:?} with {} bits, clip {}, dtype {} instead of {:?} with {} bits, clip {}, dtype {}",
                    b.shape, b.bits, b.alpha, b.dtype, a.shape, a.bits, a.alpha, a.dtype
                )
            },
        )
    }

    /// The pieces of tensors that make up elements `start..start + len`: (tensor, offset, length).
    pub(crate) fn pieces(&self, start: usize, len: usize) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        let first = self.starts.partition_point(|s| *s <= start).saturating_sub(1);
        let end = start + len;
        (first..self.tensors.len()).take_while(move |i| self.starts[*i] < end).filter_map(move |i| {
            let (from, to) = (self.starts[i].max(start), (self.starts[i] + self.tensors[i].len()).min(end));
            (from < to).then(|| (i, from - self.starts[i], to - from))
        })
    }
}

/// How a real number is rounded to one of its two neighbouring integers.
#[derive(Debug, Clone)]
pub enum Rounding {
    Nearest,
    /// Rounds up with a probability equal to the fraction, so rounding is unbiased. The random stream need not be
    /// secret.
    Stochastic(Arc<Prf>),
}

impl Rounding {
    /// Stochastic rounding with randomness from the operating system.
    pub fn stochastic() -> Result<Self> {
        let prf = Prf::new(crate::prf::random_bytes::<16>()?.as_slice())?;
        Ok(Rounding::Stochastic(Arc::new(prf)))
    }
}

/// The memory that holds the floats of an update.
#[derive(Debug)]
enum Values<'a> {
    /// All of them, tensor by tensor.
    Tensors(Vec<&'a [f32]>),
    /// Elements `first..first + flat.len()` of all tensors in a row.
    Window { first: usize, flat: &'a [f32] },
}

/// One client's float tensors with the layout that says how to quantise them.
#[derive(Debug)]
pub struct Update<'a> {
    layout: &'a Layout,
    values: Values<'a>,
    rounding: Rounding,
    clipped: Vec<AtomicU64>,
    nanos: AtomicU64,
}

impl<'a> Update<'a> {
    pub fn new(layout: &'a Layout, tensors: Vec<&'a [f32]>, rounding: Rounding) -> Result<Self> {
        if tensors.len() != layout.tensors.len() {
            return Err(Error::layout(format!("{} tensors instead of {}", tensors.len(), layout.tensors.len())));
        }
        for (i, (t, x)) in layout.tensors.iter().zip(&tensors).enumerate() {
            if t.len() != x.len() {
                return Err(Error::layout(format!("tensor {i} has {} elements instead of {}", x.len(), t.len())));
            }
        }
        Ok(Self::of(layout, Values::Tensors(tensors), rounding))
    }

    /// Elements `first..first + flat.len()` only; [`Self::quantise`] must not ask for others.
    pub fn window(layout: &'a Layout, first: usize, flat: &'a [f32], rounding: Rounding) -> Result<Self> {
        if first.checked_add(flat.len()).is_none_or(|end| end > layout.elements()) {
            return Err(Error::layout(format!("{} elements from {first} on exceed the update", flat.len())));
        }
        Ok(Self::of(layout, Values::Window { first, flat }, rounding))
    }

    fn of(layout: &'a Layout, values: Values<'a>, rounding: Rounding) -> Self {
        let clipped = layout.tensors.iter().map(|_| AtomicU64::new(0)).collect();
        Update { layout, values, rounding, clipped, nanos: AtomicU64::new(0) }
    }

    #[must_use]
    pub fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// The range of elements that this update holds.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<usize> {
        match &self.values {
            Values::Tensors(_) => 0..self.layout.elements(),
            Values::Window { first, flat } => *first..first + flat.len(),
        }
    }

    /// The tensors of the update. A window has no tensors and fails.
    pub fn tensors(&self) -> Result<&[&'a [f32]]> {
        match &self.values {
            Values::Tensors(tensors) => Ok(tensors),
            Values::Window { .. } => Err(Error::layout("a part of an update where all of it is needed")),
        }
    }

    /// Values `offset..offset + len` of tensor `i`.
    fn piece(&self, i: usize, offset: usize, len: usize) -> Result<&'a [f32]> {
        let (from, all) = match &self.values {
            Values::Tensors(tensors) => (Some(offset), tensors[i]),
            Values::Window { first, flat } => ((self.layout.starts[i] + offset).checked_sub(*first), *flat),
        };
        from.and_then(|from| all.get(from..from + len))
            .ok_or_else(|| Error::layout(format!("{len} elements at {offset} of tensor {i} are not in this window")))
    }

    /// The number of values beyond the clip range in each tensor, among those quantised so far.
    #[must_use]
    pub fn clipped(&self) -> Vec<u64> {
        self.clipped.iter().map(|n| n.load(Ordering::Relaxed)).collect()
    }

    /// Seconds spent quantising so far, summed over threads.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.nanos.load(Ordering::Relaxed) as f64 / 1e9
    }

    /// Quantises elements `start..start + out.len()` to `levels`.
    pub fn quantise(&self, levels: Levels, start: usize, out: &mut [u32]) -> Result<()> {
        let began = std::time::Instant::now();
        let mut done = 0;
        for (i, offset, len) in self.layout.pieces(start, out.len()) {
            let tensor = &self.layout.tensors[i];
            let x = self.piece(i, offset, len)?;
            let slot = &mut out[done..done + len];
            let alpha = tensor.alpha;
            let scale = levels.of(tensor.bits) as f64 / (2.0 * f64::from(alpha));
            let (clipped, finite) = match &self.rounding {
                _ if tensor.dtype == WHOLE => quantise_nearest(x, alpha, scale, slot),
                Rounding::Nearest => quantise_nearest(x, alpha, scale, slot),
                Rounding::Stochastic(prf) => quantise_stochastic(x, alpha, scale, prf, start + done, slot),
            };
            // The error reveals as much.
            if !shown(finite) {
                let found = x.iter().enumerate().find(|(_, v)| !v.is_finite());
                let (index, value) = found.map_or((offset, f32::NAN), |(k, v)| (offset + k, *v));
                return Err(Error::NotFinite { tensor: i, index, value });
            }
            self.clipped[i].fetch_add(clipped, Ordering::Relaxed);
            done += len;
        }
        self.nanos.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// The level nearest to `x + shift` levels, |shift| <= 1/2: adding 1.5 * 2^52 leaves the rounded
/// integer in the low bits of the double (also for a sum just below zero), which vectorises where a
/// saturating conversion does not.
#[inline(always)]
fn level(x: f32, alpha: f32, scale: f64, shift: f64) -> u32 {
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let x = if x > alpha { alpha } else { x };
    let x = if x < -alpha { -alpha } else { x };
    ((f64::from(x) + f64::from(alpha)) * scale + shift + ROUND).to_bits() as u32
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2+fma"))]
fn quantise_nearest(x: &[f32], alpha: f32, scale: f64, out: &mut [u32]) -> (u64, bool) {
    let (mut clipped, mut finite) = (0u64, true);
    for (group, out) in x.chunks(1024).zip(out.chunks_mut(1024)) {
        let (mut beyond, mut bad) = (0u32, 0u32);
        for (x, slot) in group.iter().zip(out) {
            beyond += u32::from(x.abs() > alpha);
            bad |= u32::from(!x.is_finite());
            *slot = level(*x, alpha, scale, 0.0);
        }
        clipped += u64::from(beyond);
        finite &= bad == 0;
    }
    (clipped, finite)
}

/// Element d takes lane `d % 4` of block `d / 4`, so the result does not depend on chunking.
fn quantise_stochastic(x: &[f32], alpha: f32, scale: f64, prf: &Prf, start: usize, out: &mut [u32]) -> (u64, bool) {
    const LANES: usize = 1024;
    let mut blocks = [[0u8; 16]; LANES / 4 + 1];
    let (mut clipped, mut finite, mut at) = (0u64, true, start);
    for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
        let mut prefix = [0u8; 12];
        prefix[4..].copy_from_slice(&((at / 4) as u64 >> 32).to_be_bytes());
        prf.blocks(prefix, (at / 4) as u32, &mut blocks);
        let draws = blocks.as_flattened().as_chunks::<4>().0.iter().skip(at % 4);
        for ((x, slot), draw) in x.iter().zip(out).zip(draws) {
            clipped += u64::from(x.abs() > alpha);
            finite &= x.is_finite();
            // The draw over 2^32 lies in [0, 1), so the shift is below 1/2 and the top level is the last.
            *slot = level(*x, alpha, scale, f64::from(u32::from_le_bytes(*draw)) / 4_294_967_296.0 - 0.5);
        }
        at += LANES;
    }
    (clipped, finite)
}

/// Takes the sums of one run of elements, on the thread that has opened them.
pub type TakeSums<'a> = Box<dyn FnOnce(&[u64]) + Send + 'a>;

/// Takes the decrypted sums of one round, in order.
pub trait SumSink {
    /// Called once before the sums: the round's layout, its values' levels, and the total weight.
    fn begin(&mut self, layout: &Layout, levels: Levels, total_weight: TotalWeight) -> Result<()>;
    /// Sums of elements `start..start + sums.len()`.
    fn put(&mut self, start: usize, sums: &[u64]) -> Result<()>;
    /// One taker for each run of elements, for several threads at once. The runs have these `lengths` and follow each
    /// other from element 0 on.
    fn split(&mut self, lengths: &mut dyn Iterator<Item = usize>) -> Result<Vec<TakeSums<'_>>>;
    /// Like [`Self::put`], for sparse updates. Clients of total weight `sent[k]` sent element `start + k`. The other
    /// clients count as zero in its sum.
    fn put_sent(&mut self, start: usize, sums: &[u64], _sent: &[TotalWeight]) -> Result<()> {
        self.put(start, sums)
    }
}

/// Keeps the sums themselves.
#[derive(Debug, Default)]
pub struct Sums(pub Vec<u64>);

impl SumSink for Sums {
    fn begin(&mut self, layout: &Layout, _levels: Levels, _total_weight: TotalWeight) -> Result<()> {
        self.0 = zeros(layout.elements());
        Ok(())
    }

    fn put(&mut self, start: usize, sums: &[u64]) -> Result<()> {
        self.0[start..start + sums.len()].copy_from_slice(sums);
        Ok(())
    }

    fn split(&mut self, lengths: &mut dyn Iterator<Item = usize>) -> Result<Vec<TakeSums<'_>>> {
        let take = |own| -> TakeSums<'_> { Box::new(move |sums| <[u64]>::copy_from_slice(own, sums)) };
        Ok(runs(&mut self.0, lengths).map(take).collect())
    }
}

/// Converts sums to weighted means: `(S - W L / 2) * 2 alpha / (L W)`; for tensors of [`WHOLE`] to `(S - W L / 2) * 2
/// alpha / L`.
#[derive(Debug, Default)]
pub struct Means {
    layout: Option<(Layout, Levels)>,
    weight: TotalWeight,
    pub values: Vec<f32>,
}

impl SumSink for Means {
    fn begin(&mut self, layout: &Layout, levels: Levels, total_weight: TotalWeight) -> Result<()> {
        self.values = zeros(layout.elements());
        self.layout = Some((layout.clone(), levels));
        self.weight = total_weight;
        Ok(())
    }

    fn put(&mut self, start: usize, sums: &[u64]) -> Result<()> {
        let Some((layout, levels)) = &self.layout else {
            return Err(Error::layout("sums arrived before their layout"));
        };
        means(layout, *levels, self.weight, start, sums, &mut self.values[start..start + sums.len()]);
        Ok(())
    }

    fn split(&mut self, lengths: &mut dyn Iterator<Item = usize>) -> Result<Vec<TakeSums<'_>>> {
        let Some((layout, levels)) = &self.layout else {
            return Err(Error::layout("sums arrived before their layout"));
        };
        let (weight, mut end) = (self.weight, 0);
        let takers = runs(&mut self.values, lengths).map(|own| {
            let start = end;
            end += own.len();
            Box::new(move |sums: &[u64]| means(layout, *levels, weight, start, sums, own)) as TakeSums<'_>
        });
        Ok(takers.collect())
    }

    /// The mean over the clients that sent an element (FLASHE algorithm 1, line 25); zero if no client sent it.
    fn put_sent(&mut self, start: usize, sums: &[u64], sent: &[TotalWeight]) -> Result<()> {
        self.put(start, sums)?;
        let Some((layout, _)) = &self.layout else { return Ok(()) };
        let mut done = 0;
        for (i, _, len) in layout.pieces(start, sums.len()) {
            let (values, sent) = (&mut self.values[start + done..start + done + len], &sent[done..done + len]);
            done += len;
            if layout.tensors[i].dtype == WHOLE {
                continue;
            }
            for (value, sent) in values.iter_mut().zip(sent) {
                let mean = || (f64::from(*value) * (self.weight.get() as f64 / sent.get() as f64)) as f32;
                *value = if sent.get() == 0 { 0.0 } else { mean() };
            }
        }
        Ok(())
    }
}

/// The weighted means of elements `start..start + sums.len()`; for tensors of [`WHOLE`], the sums.
pub fn means(layout: &Layout, levels: Levels, total_weight: TotalWeight, start: usize, sums: &[u64], out: &mut [f32]) {
    let mut done = 0;
    for (i, _, len) in layout.pieces(start, sums.len()) {
        let tensor = &layout.tensors[i];
        let levels = levels.of(tensor.bits);
        let zero = total_weight.get().wrapping_mul(levels / 2);
        let divisor = if tensor.dtype == WHOLE { 1.0 } else { total_weight.get() as f64 };
        let step = 2.0 * f64::from(tensor.alpha) / (levels as f64 * divisor);
        dequantise(&sums[done..done + len], zero, step, &mut out[done..done + len]);
        done += len;
    }
}

/// Multiplies `values` by `factor`, and then each run of these `lengths` by its range.
pub fn scale(values: &mut [f32], factor: f32, lengths: &[usize], ranges: &[f64]) -> Result<()> {
    check_runs(values.len(), lengths, ranges.len())?;
    for (own, range) in runs(values, lengths.iter().copied()).zip(ranges) {
        let multiply = |some: &mut [f32]| some.iter_mut().for_each(|value| *value = *value * factor * *range as f32);
        match Threads::for_bytes(size_of_val(own)) {
            Threads::One => multiply(own),
            Threads::All => own.par_chunks_mut(SHARED).for_each(multiply),
        }
    }
    Ok(())
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2+fma"))]
fn dequantise(sums: &[u64], zero: u64, step: f64, out: &mut [f32]) {
    for (s, slot) in sums.iter().zip(out) {
        *slot = (s.wrapping_sub(zero) as i64 as f64 * step) as f32;
    }
}
