//! The parameters of FLASHE.

use super::mask::{self, Masking};
use crate::admission::Rules;
use crate::bounds::{Bounds, MAX_FIELD_BITS};
use crate::canonical::{Canonical, Fields};
use crate::codec::Layout;
use crate::lanes::Lanes;
use crate::mac::Weighting;
use crate::mac::coordinates::MAX_SUM_BITS;
use crate::sparse::tensor_count;
use crate::{Error, Result};

/// Which masking a cohort uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    Fixed(Masking),
    /// Before each round the aggregator counts masks and tells the clients which masking needs fewer.
    Adaptive,
}

/// The parameters that the cohort must agree on.
#[derive(Debug, Clone, PartialEq)]
pub struct FlasheParams {
    pub bounds: Bounds,
    pub policy: Policy,
    /// AES key size: 128 or 256.
    pub key_bits: u32,
    /// Fraction of each layer that a client sends. Each client chooses its own coordinates. `None` sends everything.
    pub per_client_top: Option<f64>,
}

impl FlasheParams {
    /// The rules for admitting updates.
    pub(super) fn rules(&self) -> Rules {
        Rules { density: self.per_client_top.unwrap_or(1.0), ..Rules::dense(self.bounds, Weighting::Client) }
    }

    /// The rules for opening aggregates. Any part of a sparse aggregate may be missing, so its size proves nothing about
    /// the layout. Density 0 has the tag checked before memory of the layout's size is allocated.
    pub(super) fn opening_rules(&self) -> Rules {
        let rules = self.rules();
        if self.per_client_top.is_some() { Rules { density: 0.0, ..rules } } else { rules }
    }

    /// Lane width of `bits`-bit values: w = b + ceil(log2 of the total weight).
    pub(super) fn width(&self, bits: u32) -> Result<u32> {
        self.bounds.checked_field_bits(bits, MAX_FIELD_BITS)
    }

    pub(super) fn lanes(&self, layout: &Layout) -> Result<Lanes> {
        let lanes = Lanes::of(layout, |b| self.width(b))?;
        let blocks: usize = lanes.segments.iter().map(|(s, w, _)| s.len.div_ceil(mask::per_block(*w))).sum();
        if u32::try_from(blocks).is_err() {
            return Err(Error::layout(format!("{blocks} mask blocks exceed the 2^32 of one round and client")));
        }
        Ok(lanes)
    }

    /// The number of coordinates in a sparse update of `layout`: the top fraction of each layer.
    pub(super) fn sparse_count(&self, layout: &Layout) -> usize {
        let top = self.per_client_top.unwrap_or(1.0);
        layout.tensors().iter().map(|t| tensor_count(t.len(), top)).sum()
    }

    /// Refuses a sparse update that carries any other number of coordinates.
    pub(super) fn check_sparse(&self, layout: &Layout, found: usize) -> Result<()> {
        let expected = self.sparse_count(layout);
        if found == expected {
            return Ok(());
        }
        Err(Error::Frame { reason: format!("it carries {found} coordinates where this layout has {expected}") })
    }

    /// Sparse updates use one lane width: coordinates of all layers are permuted together.
    pub(super) fn sparse_width(&self, layout: &Layout) -> Result<u32> {
        let bits = layout.tensors().iter().map(|t| t.bits).max().unwrap_or(8);
        if u32::try_from(layout.elements()).is_err() {
            return Err(Error::layout("sparse updates have at most 2^32 elements"));
        }
        self.bounds.checked_field_bits(bits, MAX_SUM_BITS)
    }
}

impl Canonical for FlasheParams {
    const DOMAIN: &'static str = "fedcipher scheme flashe";

    fn fields(&self, to: &mut Fields) {
        to.part(1, &self.bounds);
        to.number(
            2,
            match self.policy {
                Policy::Adaptive => 0,
                Policy::Fixed(Masking::Single) => 1,
                Policy::Fixed(Masking::Double) => 2,
            },
        );
        to.number(3, u64::from(self.key_bits));
        if let Some(top) = self.per_client_top {
            to.real(4, top);
            // The version of the permutation. Frames made under another version must not open.
            to.number(5, 2);
        }
    }
}
