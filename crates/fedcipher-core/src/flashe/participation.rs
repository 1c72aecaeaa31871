//! Which masks remain in a sum over a set of clients, and what they cost.

use super::mask::{Masking, Term};
use super::positions;
use crate::Result;
use crate::wire::{self, Kind};

/// The masks left in a sum over `clients` (increasing): for double masking one pair for each
/// maximal run of consecutive ids (FLASHE section 4.2), for single masking one a client.
#[must_use]
pub fn residual(clients: &[u32], masking: Masking) -> Vec<Term> {
    let single = clients.iter().map(|c| Term { client: *c, negative: false });
    if masking == Masking::Single {
        return single.collect();
    }
    let present = |id: u32| clients.binary_search(&id).is_ok();
    let starts = single.filter(|t| t.client == 0 || !present(t.client - 1));
    let ends = clients.iter().map(|c| c + 1).filter(|c| !present(*c)).map(|client| Term { client, negative: true });
    starts.chain(ends).collect()
}

/// Masks per coordinate that one client computes in a dense round: its own and those of the sum.
#[must_use]
pub fn dense_cost(clients: &[u32], masking: Masking) -> usize {
    masking as usize + residual(clients, masking).len()
}

/// The masking with fewer masks for a round of `sampled` clients.
#[must_use]
pub fn cheaper_dense(sampled: &[u32]) -> Masking {
    let mut ids = sampled.to_vec();
    ids.sort_unstable();
    cheaper(dense_cost(&ids, Masking::Single) as u64, dense_cost(&ids, Masking::Double) as u64)
}

/// The masking that would have been cheaper for the sparse aggregate `last`, masks counted exactly:
/// a client encrypts its own coordinates and removes what is left of everybody's.
pub fn cheaper_sparse(last: &[u8]) -> Result<Masking> {
    let frame = wire::parse_kind(last, Kind::Aggregate)?;
    let sets = positions::aggregate_positions(&frame.header, frame.payload)?;
    let sent: u64 = sets.sets.iter().map(|s| s.len() as u64).sum();
    let own = sent.div_ceil((sets.sets.len() as u64).max(1));
    let neighbours = frame.header.contributions.windows(2).zip(sets.sets.windows(2));
    let cancelled: u64 = neighbours
        .filter(|(c, _)| c[0].client + 1 == c[1].client)
        .map(|(_, s)| positions::intersection(&s[0], &s[1]) as u64)
        .sum();
    Ok(cheaper(own + sent, 2 * own + 2 * (sent - cancelled)))
}

fn cheaper(single: u64, double: u64) -> Masking {
    if single < double { Masking::Single } else { Masking::Double }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cancel() {
        let plus = |client| Term { client, negative: false };
        let minus = |client| Term { client, negative: true };
        assert_eq!(residual(&[0, 1, 2], Masking::Double), [plus(0), minus(3)]);
        assert_eq!(residual(&[0, 2, 3, 7], Masking::Double), [plus(0), plus(2), plus(7), minus(1), minus(4), minus(8)]);
        assert_eq!(residual(&[4, 9], Masking::Single), [plus(4), plus(9)]);
    }

    #[test]
    fn adaptive_counts_masks() {
        assert_eq!(cheaper_dense(&(0..10).collect::<Vec<_>>()), Masking::Double);
        assert_eq!(cheaper_dense(&[1, 5, 9, 20]), Masking::Single);
    }
}
