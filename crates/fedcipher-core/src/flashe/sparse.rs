//! The paper's top-s% sparsification, each client choosing for itself: error feedback, and the secret permutation of
//! coordinates (Algorithm 1; FLASHE, section 4.2: A Note on Security). The server sees how many coordinates were sent
//! and which clients sent the same ones, not which they are; whoever has the key sees, of what remains in a sum, who
//! sent it.

use crate::codec::Update;
use crate::prf::Stream;
use crate::sparse::tensor_count;
use crate::{Error, Result};
use zeroize::Zeroizing;

/// A permutation of `0..len` for `round`, from the cohort's shared secret (Fisher-Yates).
pub fn permutation(secret: &[u8; 32], round: u64, len: usize) -> Result<Zeroizing<Vec<u32>>> {
    let mut prefix = [0u8; 12];
    prefix[..8].copy_from_slice(&round.to_be_bytes());
    let mut stream = Stream::new(secret, prefix)?;
    let mut order = Zeroizing::new((0..len as u32).collect::<Vec<_>>());
    for i in (1..len).rev() {
        order.swap(i, stream.below(i as u64 + 1) as usize);
    }
    Ok(order)
}

/// What was not sent yet, added to the next update (error feedback).
#[derive(Debug, Default, Clone)]
pub struct Residual(Vec<f32>);

/// The coordinates to send, increasing, and the update to quantise: input plus residual.
pub struct Selection {
    pub chosen: Vec<u32>,
    pub values: Vec<f32>,
}

impl Residual {
    /// Picks the `top` fraction of each layer by magnitude; small layers whole.
    pub fn select(&self, update: &Update<'_>, top: f64) -> Result<Selection> {
        let mut values = Vec::with_capacity(update.layout().elements());
        let mut chosen = Vec::new();
        for (i, x) in update.tensors()?.iter().enumerate() {
            if let Some((index, value)) = x.iter().enumerate().find(|(_, v)| !v.is_finite()) {
                return Err(Error::NotFinite { tensor: i, index, value: *value });
            }
            let start = values.len();
            match self.0.get(start..start + x.len()) {
                Some(residual) => values.extend(x.iter().zip(residual).map(|(x, r)| x + r)),
                None => values.extend_from_slice(x),
            }
            let count = tensor_count(x.len(), top);
            if count == 0 {
                continue;
            }
            let mut order: Vec<u32> = (start as u32..(start + x.len()) as u32).collect();
            let by_magnitude =
                |a: &u32, b: &u32| values[*b as usize].abs().total_cmp(&values[*a as usize].abs()).then(a.cmp(b));
            order.select_nth_unstable_by(count - 1, by_magnitude);
            order.truncate(count);
            order.sort_unstable();
            chosen.extend(order);
        }
        Ok(Selection { chosen, values })
    }

    /// What the server will not have: everything unsent, and the quantisation error of what was.
    pub fn keep(&mut self, mut values: Vec<f32>, sent: impl Iterator<Item = (usize, f32)>) {
        for (d, sent) in sent {
            values[d] -= sent;
        }
        self.0 = values;
    }

    pub fn export(&self) -> Vec<u8> {
        self.0.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    pub fn import(&mut self, state: &[u8]) -> Result<()> {
        let (words, rest) = state.as_chunks::<4>();
        let values: Vec<f32> = words.iter().map(|w| f32::from_le_bytes(*w)).collect();
        if !rest.is_empty() || values.iter().any(|v| !v.is_finite()) {
            return Err(Error::frame("the stored error-feedback state is damaged; delete it to start from zero"));
        }
        self.0 = values;
        Ok(())
    }
}
