//! The sharing of the pad of a client's tag with the committee, in the tag's field (Shamir, CACM 1979). Each member's
//! share is one element.
//!
//! The pad is the value at point 0 of a polynomial, and member j's share is the value at j + 1. `needed` of these
//! values fix
//! the polynomial. The first `needed - 1` members' shares are drawn, and the others follow from them. So to a holder of
//! `needed - 1` shares the pad is uniform, and so is a tag under it. Shares add up: the members' sums are shares of the
//! sum of pads.

use crate::Result;
use crate::mac::field::Element;
use crate::prf::Stream;
use zeroize::Zeroizing;

/// The point of a member's share, in the polynomials of secrets and of pads.
pub(super) fn point(member: usize) -> u64 {
    member as u64 + 1
}

/// How pads are shared.
#[derive(Debug, Clone)]
pub struct Pads {
    needed: usize,
    /// The weights of the pad and of the drawn shares in the share of each other member.
    rows: Vec<Vec<Element>>,
}

/// The weight of the value at each of `nodes` in the value at `at`, on the polynomial through all of them.
fn lagrange(nodes: &[u64], at: u64) -> Vec<Element> {
    let factor = |x: u64, but: u64| {
        let others = nodes.iter().filter(|other| **other != but);
        others.fold(Element::ONE, |product, other| product * (Element::new(x.into()) - Element::new((*other).into())))
    };
    nodes.iter().map(|node| factor(at, *node) * factor(*node, *node).inverse()).collect()
}

fn combined<'a>(row: &[Element], values: impl Iterator<Item = &'a Element>) -> Element {
    row.iter().zip(values).map(|(l, value)| *l * *value).sum()
}

impl Pads {
    #[must_use]
    pub fn new(members: usize, needed: usize) -> Self {
        let nodes: Vec<u64> = (0..needed as u64).collect();
        Pads { needed, rows: (needed - 1..members).map(|j| lagrange(&nodes, point(j))).collect() }
    }

    /// A share of `pad` for each member.
    pub fn split(&self, pad: &Element) -> Result<Zeroizing<Vec<Element>>> {
        let mut stream = Stream::from_os()?;
        let members = self.needed - 1 + self.rows.len();
        let mut values = Zeroizing::new(Vec::with_capacity(1 + members));
        values.push(*pad);
        values.extend((1..self.needed).map(|_| Element::draw(&mut stream)));
        for row in &self.rows {
            let share = combined(row, values.iter());
            values.push(share);
        }
        values.remove(0);
        Ok(values)
    }

    /// The pad, computed from the shares `base` of exactly as many members as are needed.
    #[must_use]
    pub fn joined(base: &[(usize, &Element)]) -> Element {
        Pads::at(base, 0)
    }

    /// Whether the share of `member` lies on the polynomial through `base`, which has exactly as many shares as are
    /// needed.
    #[must_use]
    pub fn agrees(base: &[(usize, &Element)], member: usize, share: &Element) -> bool {
        Pads::at(base, point(member)) == *share
    }

    fn at(base: &[(usize, &Element)], at: u64) -> Element {
        let nodes: Vec<u64> = base.iter().map(|(member, _)| point(*member)).collect();
        combined(&lagrange(&nodes, at), base.iter().map(|(_, share)| *share))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::subsequence;

    /// A committee, the number of members needed, and that many of its members.
    fn committees() -> impl Strategy<Value = (usize, usize, Vec<usize>)> {
        (1usize..9).prop_flat_map(|members| {
            (1..=members).prop_flat_map(move |needed| {
                (Just(members), Just(needed), subsequence((0..members).collect::<Vec<_>>(), needed))
            })
        })
    }

    fn of<'a>(members: &[usize], shares: &'a [Element]) -> Vec<(usize, &'a Element)> {
        members.iter().map(|m| (*m, &shares[*m])).collect()
    }

    proptest! {
        #[test]
        fn enough_members_have_the_sum_of_pads((members, needed, few) in committees(), pads: Vec<u128>) {
            let pads: Vec<Element> = pads.into_iter().map(Element::new).collect();
            let sharing = Pads::new(members, needed);
            let mut sums = vec![Element::default(); members];
            for pad in &pads {
                let shares = sharing.split(pad).unwrap();
                assert_eq!(shares.len(), members);
                sums.iter_mut().zip(shares.iter()).for_each(|(sum, share)| *sum += *share);
            }
            let base = of(&few, &sums);
            prop_assert_eq!(Pads::joined(&base), pads.into_iter().sum());
            prop_assert!((0..members).all(|m| Pads::agrees(&base, m, &sums[m])));
            let other = sums[0] + Element::ONE;
            prop_assert_eq!(Pads::agrees(&base, 0, &other), false);
        }

        /// One share fewer than needed is consistent with every other pad, in exactly one way: one choice of draws
        /// makes `split` produce these shares of it. The draws are uniform, so the pad is uniform to a holder of these
        /// shares.
        #[test]
        fn too_few_shares_fit_every_pad_once((members, needed, few) in committees(), pad: u128, other: u128) {
            let sharing = Pads::new(members, needed);
            let shares = sharing.split(&Element::new(pad)).unwrap();
            let (held, other) = (&few[1..], Element::new(other));
            // The polynomial through the other pad and the held shares.
            let nodes: Vec<u64> = [0].into_iter().chain(held.iter().map(|m| point(*m))).collect();
            let values: Vec<Element> = [other].into_iter().chain(held.iter().map(|m| shares[*m])).collect();
            let through = |at: u64| combined(&lagrange(&nodes, at), values.iter());
            let drawn: Vec<Element> = (0..needed as u64).map(through).collect();
            prop_assert_eq!(drawn[0], other);
            for m in held {
                let made = drawn.get(1 + m).copied().unwrap_or_else(|| combined(&sharing.rows[m + 1 - needed], drawn.iter()));
                prop_assert_eq!(made, shares[*m]);
            }
        }
    }

    #[test]
    fn what_is_drawn_differs_every_time() {
        let sharing = Pads::new(5, 4);
        let all: std::collections::BTreeSet<[u8; 16]> = (0..50)
            .flat_map(|_| sharing.split(&Element::ONE).unwrap().iter().map(|s| s.to_wire()).collect::<Vec<_>>())
            .collect();
        assert_eq!(all.len(), 250);
    }
}
