//! The masks that remain in a sum over a set of clients, and their cost.

use super::mask::{Masking, Term};
use crate::ClientId;

/// The masks left in a sum over `clients` (increasing). Double masking leaves one pair for each maximal run of
/// consecutive ids (FLASHE, section 3.4: Cost Analysis). Single masking leaves one mask for each client.
#[must_use]
pub fn residual(clients: &[ClientId], masking: Masking) -> Vec<Term> {
    let single = clients.iter().map(|c| Term { client: *c, negative: false });
    if masking == Masking::Single {
        return single.collect();
    }
    let present = |id: Option<ClientId>| id.is_some_and(|id| clients.binary_search(&id).is_ok());
    let starts = single.filter(|t| !present(t.client.previous()));
    let ends = clients.iter().filter_map(|c| c.next()).filter(|c| !present(Some(*c)));
    let ends = ends.map(|client| Term { client, negative: true });
    starts.chain(ends).collect()
}

/// Masks per coordinate that one client computes in a dense round: its own and those of the sum.
#[must_use]
pub fn dense_cost(clients: &[ClientId], masking: Masking) -> usize {
    masking as usize + residual(clients, masking).len()
}

/// The masking with fewer masks for a round of `sampled` clients.
#[must_use]
pub fn cheaper_dense(sampled: &[ClientId]) -> Masking {
    let mut ids = sampled.to_vec();
    ids.sort_unstable();
    cheaper(dense_cost(&ids, Masking::Single), dense_cost(&ids, Masking::Double))
}

/// The masking with fewer masks on average, for a round of `sampled` clients that each choose and send the share `top`.
/// The sets are unknown before they are sent. So two neighbours are assumed to share what two independent choices
/// share: `top` of each one's coordinates. Per coordinate sent, single masking costs the client's own mask and one per
/// client of the sum. Double masking costs twice that, less the masks that neighbours share.
#[must_use]
pub fn cheaper_sparse(sampled: &[ClientId], top: f64) -> Masking {
    let mut ids = sampled.to_vec();
    ids.sort_unstable();
    let neighbours = ids.windows(2).filter(|w| w[0].next() == Some(w[1])).count() as f64;
    let clients = ids.len() as f64;
    cheaper(1.0 + clients, 2.0 + 2.0 * (clients - top * neighbours))
}

fn cheaper<T: PartialOrd>(single: T, double: T) -> Masking {
    if single < double { Masking::Single } else { Masking::Double }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(ids: impl IntoIterator<Item = u32>) -> Vec<ClientId> {
        ClientId::list(ids)
    }

    #[test]
    fn runs_cancel() {
        let term = |client, negative| Term { client: ClientId::new(client), negative };
        let (plus, minus) = (|client| term(client, false), |client| term(client, true));
        assert_eq!(residual(&clients([0, 1, 2]), Masking::Double), [plus(0), minus(3)]);
        assert_eq!(
            residual(&clients([0, 2, 3, 7]), Masking::Double),
            [plus(0), plus(2), plus(7), minus(1), minus(4), minus(8)]
        );
        assert_eq!(residual(&clients([4, 9]), Masking::Single), [plus(4), plus(9)]);
    }

    #[test]
    fn adaptive_counts_masks() {
        assert_eq!(cheaper_dense(&clients(0..10)), Masking::Double);
        assert_eq!(cheaper_dense(&clients([1, 5, 9, 20])), Masking::Single);
        // Whole updates cost as much as dense ones. With a tenth of each, neighbours share too little for double masking.
        for ids in [&[0, 1, 2, 3, 4, 5][..], &[1, 5, 9, 20], &[3, 2], &[7, 8, 9, 11]] {
            let ids = clients(ids.iter().copied());
            assert_eq!(cheaper_sparse(&ids, 1.0), cheaper_dense(&ids));
            assert_eq!(cheaper_sparse(&ids, 0.1), Masking::Single);
        }
        assert_eq!(cheaper_sparse(&clients(0..10), 0.7), Masking::Double);
        assert_eq!(cheaper_sparse(&clients((0..10).step_by(2)), 0.7), Masking::Single);
    }
}
