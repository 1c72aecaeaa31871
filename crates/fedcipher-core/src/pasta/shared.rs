//! Parameters and state that the three sides of `pasta-bfv` share.

use super::context::Context;
use crate::admission::Rules;
use crate::bounds::Bounds;
use crate::codec::Layout;
use crate::mac::Weighting;
use crate::{Error, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bits of noise that must stay unused.
const MARGIN: u32 = 3;
/// Noise bits of a fold, which multiplies by a row mask: log2 of N times p, rounded up generously.
const FOLD_NOISE_17: u32 = 27;
const FOLD_NOISE_33: u32 = 44;

/// The parameters that the cohort must agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastaParams {
    pub bounds: Bounds,
    /// 3 or 4.
    pub variant: u32,
    /// 65537 or 8088322049.
    pub prime: u64,
}

impl PastaParams {
    /// The server multiplies the transciphered words by the weights.
    pub fn rules(&self) -> Rules {
        let rules = Rules::dense(self.bounds, Weighting::Server);
        // A sum must be below p, however many bits its values have.
        Rules { closes: true, levels: rules.levels.below(self.prime), ..rules }
    }
}

/// The state that the three sides share. It contains no key.
pub struct Shared {
    pub params: PastaParams,
    pub context: Arc<Context>,
}

pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a parser of the HE library. The parsers panic on some malformed inputs; the caller gets an error for a malformed
/// frame instead.
pub fn parsed<T>(what: &str, parse: impl FnOnce() -> fhe::Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(parse))
        .map_err(|_| Error::frame(format!("{what} is malformed")))?
        .map_err(|e| Error::frame(format!("{what} is malformed: {e}")))
}

impl Shared {
    pub fn spare_bits(&self, folded: bool) -> i64 {
        let c = &self.context;
        // Noise must stay below q / 2p.
        let q = c.log_q(c.plan.end());
        let weight = 64 - self.params.bounds.total_weight().get().leading_zeros();
        let fold = if c.field.bits() <= 17 { FOLD_NOISE_17 } else { FOLD_NOISE_33 };
        let used = c.plan.noise + c.field.bits() + 1 + weight + MARGIN;
        i64::from(q) - i64::from(used) - if folded { i64::from(fold) } else { 0 }
    }

    pub fn fits(&self, bits: u32) -> bool {
        self.params.bounds.max_sum(bits) < u128::from(self.context.field.p())
    }

    pub fn check_layout(&self, layout: &Layout) -> Result<()> {
        let bounds = self.params.bounds;
        for segment in layout.segments() {
            if !self.fits(segment.bits) {
                // The check against the largest power of two below p gives an error that names bits that would fit.
                bounds.checked_field_bits(segment.bits, self.context.field.bits() - 1)?;
            }
        }
        Ok(())
    }

    /// The number of values of an update, rounded up to whole blocks. The padding is encrypted zeros.
    pub fn padded(&self, elements: usize) -> usize {
        elements.next_multiple_of(self.context.variant.t)
    }

    pub fn chunks(&self, elements: usize) -> usize {
        elements.div_ceil(self.context.capacity())
    }
}
