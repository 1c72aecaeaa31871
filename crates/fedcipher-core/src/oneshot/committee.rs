//! The committees that a server cannot split.
//!
//! A server may ask some honest members for one set of clients, and other honest members for another set. Corrupt
//! members
//! give it their shares of both. Fewer than `threshold` shares of a sum reveal nothing. From `threshold` on they count
//! as
//! the whole sum, whatever `pack` is: they are equations in the packed coefficients, which are small
//! (`threshold_shares_of_a_packed_sum_can_tell_it`). So no two sets may reach `threshold`.

use crate::{Error, Result};

/// The largest number of members of a committee.
const MAX_MEMBERS: usize = 64;

/// Whether a committee can answer, can never answer for two sets with a client in common, and has corrupt members that
/// alone reveal nothing. `tools/prove.py` reads this expression and proves these properties, so Python must be able to
/// evaluate it too.
#[must_use]
pub fn holds(members: usize, threshold: usize, corrupt_members: usize, pack: usize) -> bool {
    (1 <= pack) & (threshold + pack <= members + 1) & (members + corrupt_members < 2 * threshold)
}

/// The nearest sound committee: with another threshold, then with a smaller `pack`, then with more members.
fn nearest(members: usize, corrupt: usize, pack: usize) -> Option<(usize, usize, usize)> {
    let packs = |m| (1..=pack.clamp(1, m)).rev().map(move |p| (m, p));
    let all = (members.max(1)..=MAX_MEMBERS).flat_map(packs).flat_map(|(m, p)| (1..=m).map(move |t| (m, t, p)));
    all.into_iter().find(|(m, t, p)| holds(*m, *t, corrupt, *p))
}

/// Fails if a committee is unsound. The error names a sound one.
pub fn check(members: usize, threshold: usize, corrupt: usize, pack: usize) -> Result<()> {
    let most = members.max(threshold).max(corrupt).max(pack);
    if most <= MAX_MEMBERS && holds(members, threshold, corrupt, pack) {
        return Ok(());
    }
    let near = |members| if corrupt < MAX_MEMBERS { nearest(members, corrupt, pack) } else { None };
    let Some((m, t, p)) = near(members).or_else(|| near(1)) else {
        let reason =
            format!("no {MAX_MEMBERS} members withstand {corrupt} of their own; take {} at most", MAX_MEMBERS - 1);
        return Err(Error::parameter("corrupt_members", reason));
    };
    let why = if threshold.saturating_add(pack) > members + 1 {
        "needs more answers than there are members"
    } else {
        "could answer for two different sets of clients, or open one client's share"
    };
    Err(Error::parameter(
        "threshold",
        format!(
            "{threshold} of {members} members with corrupt_members={corrupt} and pack={pack} {why}; take members={m}, \
             threshold={t}, pack={p}"
        ),
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::super::sharing::Sharing;
    use super::*;
    use crate::mac::field::Element;
    use crate::prf::Stream;
    use crate::rlwe::ring::Binomial;
    use proptest::prelude::*;
    use proptest::sample::Index;

    const CLIENTS: usize = 8;

    /// The disjoint sets that each member is asked for. The first members are corrupt and reveal every client's share.
    type Asked = Vec<Vec<Vec<usize>>>;

    /// Everything that the members' answers reveal about secrets: rows of linear forms in each client's packed
    /// coefficients.
    fn leaks(sharing: &Sharing, pack: usize, asked: &Asked) -> Vec<Vec<u64>> {
        let f = sharing.field;
        let known = sharing.needed();
        // Per client: first the drawn values, then the shared values.
        let drawn = (known - pack) * CLIENTS;
        let column = |client: usize, k: usize| {
            if k < pack { drawn + client * pack + k } else { client * (known - pack) + k - pack }
        };
        let mut rows = Vec::new();
        for (member, sets) in asked.iter().enumerate() {
            let share = sharing.row(member);
            for set in sets {
                let mut row = vec![0; known * CLIENTS];
                set.iter().for_each(|client| (0..known).for_each(|k| row[column(*client, k)] = share[k]));
                rows.push(row);
            }
        }
        // Gaussian elimination. The remaining rows are free of drawn values.
        let mut done = 0;
        for at in 0..known * CLIENTS {
            let Some(pivot) = (done..rows.len()).find(|r| rows[*r][at] != 0) else { continue };
            rows.swap(done, pivot);
            let (above, below) = rows.split_at_mut(done + 1);
            let first = f.inverse(above[done][at]);
            for row in below.iter_mut().filter(|row| row[at] != 0) {
                let by = f.neg(f.mul(row[at], first));
                row.iter_mut().zip(&above[done]).for_each(|(v, p)| *v = f.add(*v, f.mul(*p, by)));
            }
            done += 1;
        }
        let none_drawn = rows.iter().filter(|row| row[..drawn].iter().all(|v| *v == 0));
        none_drawn.map(|row| row[drawn..].to_vec()).filter(|row| row.iter().any(|v| *v != 0)).collect()
    }

    /// The smallest number of clients that no leak distinguishes, among clients in any leak.
    fn fewest_alike(leaks: &[Vec<u64>], pack: usize) -> Option<usize> {
        let of = |client: usize| leaks.iter().map(|row| &row[client * pack..(client + 1) * pack]).collect::<Vec<_>>();
        let about = (0..CLIENTS).filter(|u| of(*u).iter().any(|v| v.iter().any(|x| *x != 0)));
        about.map(|u| (0..CLIENTS).filter(|v| of(*v) == of(u)).count()).min()
    }

    fn sharing(members: usize, threshold: usize, pack: usize) -> Sharing {
        Sharing::new(pack, 84 * 12 + 1, members, threshold, pack).unwrap()
    }

    /// The shares that members are asked for: corrupt members give each client's, the others as `list` says.
    fn asked(members: usize, corrupt: usize, list: impl Fn(usize) -> Vec<Vec<usize>>) -> Asked {
        let each: Vec<_> = (0..CLIENTS).map(|u| vec![u]).collect();
        (0..members).map(|m| if m < corrupt { each.clone() } else { list(m) }).collect()
    }

    fn committees(most: usize) -> impl Iterator<Item = (usize, usize, usize, usize)> {
        (1..=most).flat_map(move |m| {
            (1..=m).flat_map(move |t| (0..t).flat_map(move |c| (1..=m + 1 - t).map(move |p| (m, t, c, p))))
        })
    }

    /// Half of the honest members are asked for all clients, the other half for all but the last.
    fn halves(members: usize, corrupt: usize) -> Asked {
        let all: Vec<usize> = (0..CLIENTS).collect();
        asked(members, corrupt, |m| vec![all[..CLIENTS - (m - corrupt) % 2].to_vec()])
    }

    #[test]
    fn a_committee_is_split_just_where_it_is_refused() {
        for (m, t, c, p) in committees(7) {
            let alike = fewest_alike(&leaks(&sharing(m, t, p), p, &halves(m, c)), p);
            assert_eq!(alike.is_none_or(|alike| alike >= CLIENTS - 1), holds(m, t, c, p), "{t} of {m}, {c}, {p}");
        }
    }

    proptest! {
        /// Without a memory each honest member answers for one set, whichever it is. All answers together reveal
        /// nothing about fewer than `corrupt + 2` clients.
        #[test]
        fn one_set_a_member_splits_no_committee(
            at: Index, sets in prop::collection::vec(prop::collection::vec(any::<bool>(), CLIENTS), 1..4),
            victim in 0..CLIENTS, choice in prop::collection::vec(any::<Index>(), 7),
        ) {
            let (m, t, c, p) = *at.get(&safe());
            let set = |chosen: &Vec<bool>| (0..CLIENTS).filter(|u| chosen[*u]).collect::<Vec<_>>();
            let mut sets: Vec<_> = sets.iter().map(set).filter(|set| set.len() >= c + 2).collect();
            sets.push((0..CLIENTS).collect());
            sets.push((0..CLIENTS).filter(|u| *u != victim).collect());
            let said = asked(m, c, |m| vec![choice[m].get(&sets).clone()]);
            let alike = fewest_alike(&leaks(&sharing(m, t, p), p, &said), p);
            prop_assert!(alike.is_none_or(|alike| alike >= c + 2), "{t} of {m}, {c}, {p}: {said:?}");
        }

        /// With a memory each honest member answers for any disjoint unions of groups of the division that members have
        /// agreed on.
        #[test]
        fn sets_of_one_division_split_no_committee(
            at: Index, division in prop::collection::vec(0usize..4, CLIENTS),
            unions in prop::collection::vec(prop::collection::vec(0usize..3, 4), 1..4),
            choice in prop::collection::vec(any::<Index>(), 7),
        ) {
            let (m, t, c, p) = *at.get(&safe());
            let group = |g: usize| (0..CLIENTS).filter(|u| division[*u] == g).collect::<Vec<_>>();
            let groups: Vec<_> = (0..4).map(group).filter(|group| group.len() >= c + 2).collect();
            let list = |union: &Vec<usize>| {
                let of = |set: usize| (0..groups.len()).filter(|g| union[*g] == set).flat_map(|g| groups[g].clone()).collect();
                (0..3).map(of).filter(|set: &Vec<usize>| !set.is_empty()).collect::<Vec<_>>()
            };
            let lists: Vec<_> = unions.iter().map(list).collect();
            let said = asked(m, c, |m| choice[m].get(&lists).clone());
            let alike = fewest_alike(&leaks(&sharing(m, t, p), p, &said), p);
            prop_assert!(alike.is_none_or(|alike| alike >= c + 2), "{t} of {m}, {c}, {p}: {said:?}");
        }
    }

    /// All sound committees of up to seven members for which this test has enough clients.
    fn safe() -> Vec<(usize, usize, usize, usize)> {
        committees(7).filter(|(m, t, c, p)| holds(*m, *t, *c, *p) && 2 * (c + 2) <= CLIENTS).collect()
    }

    /// Arbitrary lists of disjoint sets would be unsafe. No two sets get `threshold` answers each, but the sums of
    /// three lists together reveal one client. So members agree on a division before they answer for several sets.
    #[test]
    fn lists_of_sets_that_no_division_has_split_a_committee() {
        let a = vec![vec![1, 2, 5, 6, 7], vec![3, 4]];
        let b = vec![vec![1, 3, 4, 5], vec![0, 7], vec![2, 6]];
        let c = vec![vec![0, 2, 3], vec![4, 6], vec![1, 5]];
        let lists = [&a, &a, &b, &b, &a, &b, &c];
        let said = asked(7, 0, |m| lists[m].clone());
        assert!(holds(7, 4, 0, 1));
        assert_eq!(fewest_alike(&leaks(&sharing(7, 4, 1), 1, &said), 1), Some(1));
    }

    #[test]
    fn every_committee_that_an_error_names_is_taken() {
        let mut refused = 0;
        for (m, t) in (0..=12).flat_map(|m| (0..=13).map(move |t| (m, t))).chain([(64, 3), (65, 40), (64, usize::MAX)])
        {
            for (c, p) in (0..=9).chain([63]).flat_map(|c| (0..=9).chain([usize::MAX]).map(move |p| (c, p))) {
                let Err(error) = check(m, t, c, p) else { continue };
                let said = error.to_string();
                let take = said.split("take ").nth(1).unwrap();
                let named: Vec<usize> =
                    take.split(", ").map(|of| of.split_once('=').unwrap().1.parse().unwrap()).collect();
                check(named[0], named[1], c, named[2]).unwrap();
                refused += 1;
            }
        }
        assert!(refused > 1000 && check(64, 64, 64, 1).is_err() && check(64, 64, 63, 1).is_ok());
    }

    /// Ten members, threshold 5 and pack 2; six must answer. Five members are asked for eight clients, the others for
    /// all but one of these. Five shares give one equation for each two coefficients. In a field for a thousand clients
    /// only one pair of small numbers solves the equation. So both sums are revealed, and with them the secret of the
    /// one client.
    #[test]
    fn threshold_shares_of_a_packed_sum_can_tell_it() {
        let n = 400;
        let sharing = Sharing::new(n, 84 * 1000 + 1, 10, 5, 2).unwrap();
        let f = sharing.field;
        let mut stream = Stream::new(&[3; 32], [0; 12]).unwrap();
        let secrets: Vec<_> = (0..CLIENTS).map(|_| Binomial::SUMMED.draws(&mut stream, n)).collect();
        let pad = Element::default();
        let shares: Vec<_> = secrets.iter().map(|secret| sharing.split(secret, &pad).unwrap()).collect();
        let read = |clients: usize, members: [usize; 5]| {
            // The second coefficient as a function of the first and of the shares.
            let nodes = [vec![0], members.map(|m| m as u64 + 1).to_vec()].concat();
            let counts = f.lagrange(&nodes, f.neg(1));
            let sums = members.map(|m| {
                let mut sum = sharing.none();
                shares[..clients].iter().for_each(|of| sharing.add(&mut sum, &sharing.share(m, &of[m]).unwrap()));
                sum.secrets
            });
            let pair = |g: usize| {
                let shared = (0..5).fold(0, |all, j| f.add(all, f.mul(counts[j + 1], sums[j][g])));
                let other = |x: i64| f.centred(f.add(shared, f.mul(counts[0], f.lift(x))));
                let (x, y) = (-90..=90).map(|x| (x, other(x))).min_by_key(|(x, y)| x * x + y * y).unwrap();
                [x, y]
            };
            (0..n / 2).flat_map(pair).collect::<Vec<i64>>()
        };
        let (all, but_one) = (read(CLIENTS, [1, 3, 5, 7, 9]), read(CLIENTS - 1, [0, 2, 4, 6, 8]));
        let victim = all.iter().zip(&but_one).map(|(a, b)| a - b);
        assert!(victim.eq(secrets[CLIENTS - 1].iter().map(|s| i64::from(*s))));
        assert!(!holds(10, 5, 0, 2));
    }
}
