//! The sharing of a secret polynomial with a committee: Shamir (CACM 1979), or several coefficients in one polynomial
//! (Franklin and Yung, "Communication complexity of secure computation", STOC 1992).
//!
//! `pack` coefficients are the values at the points 0, -1, -2, ..., and member j's share is the value at j + 1.
//! `threshold - 1` members draw their shares from a seed of 32 bytes. These and the shared coefficients fix the
//! polynomial,
//! and the other shares follow. So `threshold - 1` shares reveal nothing (shares from seeds: under AES-256 as a PRG),
//! and
//! `threshold + pack - 1` reveal everything. Numbers of shares in between give equations in small numbers, and count as
//! if
//! they revealed everything ([`super::committee`]). Shares add up: the members' sums are shares of the sum. Beside each
//! share is one of the pad of the client's tag ([`super::pads`]).
//!
//! Each member also sends a random combination of its share of the secret and of the pad. The combinations of all
//! members
//! lie on a polynomial, as the shares do. So inconsistent shares are found before the sum is opened. The combination
//! depends only on the content that this client has signed. So all members send the same combination of an honest
//! client's
//! shares, whatever set of clients each of them was asked for. A mask of the client is added to each combination and
//! shared
//! in the same way. So the combinations are uniform to an observer.

use super::decode::{Numbers, Tags, off};
use super::field::Field;
use super::pads::{Pads, point};
use crate::bits::{BitWriter, check_stream, packed_len, read_bits};
use crate::mac::TAG_LEN;
use crate::mac::field::Element;
use crate::prf::{Stream, random_bytes};
use crate::shown::shown;
use crate::{Error, Result};
use std::collections::BTreeSet;
use zeroize::Zeroizing;

/// Bytes of the seed of a drawn share.
const SEED: usize = 32;
/// An inconsistent share passes with a probability of at most 2^-80.
const SOUND_BITS: u32 = 80;
/// The number of sets of answers that are tried to find the false ones.
const MAX_SETS: usize = 4096;

/// The sharing of secrets with `n` coefficients.
#[derive(Debug, Clone)]
pub struct Sharing {
    pub field: Field,
    n: usize,
    members: usize,
    threshold: usize,
    pack: usize,
    /// The weights of the shared coefficients, then of the seeds' shares, in the share of each other member.
    rows: Vec<Vec<u64>>,
    pads: Pads,
    /// The number of combinations of the secret's shares.
    masks: usize,
}

/// A member's share.
pub struct Share {
    secrets: Zeroizing<Vec<u64>>,
    masks: Zeroizing<Vec<u64>>,
    pad: Zeroizing<Element>,
    pad_mask: Zeroizing<Element>,
}

/// The coefficients of the combinations of a client's shares; the same for all members.
pub struct Coefficients {
    /// All rows concatenated; each row has a number for each element of a share.
    rows: Vec<u32>,
    pad: Element,
}

/// A member's combination of one client's share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Combination {
    pub values: Vec<u64>,
    pub pad: Element,
}

/// The sums that a member adds up.
pub struct Shares {
    pub secrets: Zeroizing<Vec<u64>>,
    pub pads: Zeroizing<Element>,
}

/// The result of the committee's answers.
#[derive(Debug)]
pub struct Joined {
    pub sum: Zeroizing<Vec<i32>>,
    pub pads: Zeroizing<Element>,
    /// Members whose answers are inconsistent with the others'.
    pub wrong: Vec<usize>,
}

fn split_pad(bytes: &[u8]) -> Result<(&[u8], Zeroizing<Element>)> {
    let (secrets, pad) = bytes.split_last_chunk().ok_or_else(|| Error::frame("a share ends before its pad"))?;
    let pad = Element::from_wire(*pad).ok_or_else(|| Error::frame("a share of a pad is not a field element"))?;
    Ok((secrets, Zeroizing::new(pad)))
}

fn pads<'a>(of: &[&'a (usize, Shares)]) -> Vec<(usize, &'a Element)> {
    of.iter().map(|(member, sum)| (*member, &*sum.pads)).collect()
}

impl Sharing {
    /// `values` is the number of different values of a coefficient of a sum.
    pub fn new(n: usize, values: u64, members: usize, threshold: usize, pack: usize) -> Result<Self> {
        let field = Field::holding(values)?;
        let mut made = Sharing {
            field,
            n,
            members,
            threshold,
            pack,
            rows: Vec::new(),
            pads: Pads::new(members, threshold + pack - 1),
            masks: SOUND_BITS.div_ceil(field.bits() - 1) as usize,
        };
        let nodes = made.nodes();
        made.rows = (threshold - 1..members).map(|j| field.lagrange(&nodes, point(j))).collect();
        Ok(made)
    }

    /// The points of the shared coefficients and of the seeds' shares.
    fn nodes(&self) -> Vec<u64> {
        self.secrets().chain((0..self.threshold - 1).map(point)).collect()
    }

    fn secrets(&self) -> impl Iterator<Item = u64> {
        (0..self.pack as u64).map(|i| self.field.neg(i))
    }

    /// The weights of the shared coefficients, then of the seeds' shares, in the share of `member`.
    #[cfg(test)]
    pub fn row(&self, member: usize) -> Vec<u64> {
        self.field.lagrange(&self.nodes(), point(member))
    }

    /// The number of members that must answer.
    #[must_use]
    pub fn needed(&self) -> usize {
        self.threshold + self.pack - 1
    }

    /// Field elements of a share.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.n.div_ceil(self.pack)
    }

    /// Bytes of the share of `member`.
    #[must_use]
    pub fn share_bytes(&self, member: usize) -> usize {
        let secrets = if member + 1 < self.threshold { SEED } else { packed_len(self.columns(), self.field.bits()) };
        secrets + 2 * TAG_LEN
    }

    /// Field elements of a share with its masks.
    fn columns(&self) -> usize {
        self.elements() + self.masks
    }

    /// Bytes of a combination.
    #[must_use]
    pub fn combination_bytes(&self) -> usize {
        packed_len(self.masks, self.field.bits()) + TAG_LEN
    }

    /// Bytes of a sum of shares.
    #[must_use]
    pub fn sum_bytes(&self) -> usize {
        self.secret_bytes() + TAG_LEN
    }

    fn secret_bytes(&self) -> usize {
        packed_len(self.elements(), self.field.bits())
    }

    /// Splits a secret and a pad into one share per member.
    pub fn split(&self, secret: &[i8], pad: &Element) -> Result<Vec<Zeroizing<Vec<u8>>>> {
        let mut draws = Stream::from_os()?;
        let mut shares = Vec::with_capacity(self.members);
        let mut known = Vec::with_capacity(self.needed());
        for k in 0..self.pack {
            let coefficient = |g: usize| secret.get(g * self.pack + k).map_or(0, |c| self.field.lift(i64::from(*c)));
            let mut column = Zeroizing::new(Vec::with_capacity(self.columns()));
            column.extend((0..self.elements()).map(coefficient));
            column.extend((0..self.masks).map(|_| draws.below(self.field.p())));
            known.push(column);
        }
        for _ in 1..self.threshold {
            let seed = random_bytes::<SEED>()?;
            known.push(self.drawn(&seed)?);
            shares.push(Zeroizing::new(seed.to_vec()));
        }
        for row in &self.rows {
            // With fewer than 2^6 products below 2^62 / 2^6, no reduction is needed in between. There are few members.
            let value =
                |g: usize| row.iter().zip(&known).fold(0, |s, (l, v)| self.field.add(s, self.field.mul(*l, v[g])));
            shares.push(self.packed(self.columns(), (0..self.columns()).map(value)));
        }
        let pads = self.pads.split(pad)?;
        let masks = self.pads.split(&Zeroizing::new(Element::draw(&mut draws)))?;
        let with_pads = |(share, (pad, mask)): (&Zeroizing<Vec<u8>>, (&Element, &Element))| {
            Zeroizing::new([share.as_slice(), &pad.to_wire(), &mask.to_wire()].concat())
        };
        Ok(shares.iter().zip(pads.iter().zip(masks.iter())).map(with_pads).collect())
    }

    fn drawn(&self, seed: &[u8; SEED]) -> Result<Zeroizing<Vec<u64>>> {
        let mut stream = Stream::new(seed, [0; 12])?;
        Ok(Zeroizing::new((0..self.columns()).map(|_| stream.below(self.field.p())).collect()))
    }

    /// Field elements in the bits of the wire.
    #[must_use]
    pub fn packed(&self, count: usize, values: impl Iterator<Item = u64>) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(vec![0; packed_len(count, self.field.bits())]);
        let mut writer = BitWriter::new(&mut out);
        values.for_each(|v| writer.push(u128::from(v), self.field.bits()));
        writer.finish();
        out
    }

    /// Reads `count` field elements from the wire.
    fn unpacked(&self, bytes: &[u8], count: usize) -> Result<Zeroizing<Vec<u64>>> {
        let bits = self.field.bits();
        check_stream(bytes, count, bits)?;
        let values: Vec<u64> = (0..count).map(|k| read_bits(bytes, k * bits as usize, bits) as u64).collect();
        let values = Zeroizing::new(values);
        // The rejection is visible to others. A share is secret, so all values are examined.
        if shown(values.iter().fold(false, |beyond, v| beyond | (*v >= self.field.p()))) {
            return Err(Error::frame("a share has a value that is not a field element"));
        }
        Ok(values)
    }

    /// An empty sum of shares.
    #[must_use]
    pub fn none(&self) -> Shares {
        Shares { secrets: Zeroizing::new(vec![0; self.elements()]), pads: Zeroizing::default() }
    }

    /// Reads the share of `member` from the wire.
    pub fn share(&self, member: usize, bytes: &[u8]) -> Result<Share> {
        let (bytes, pad_mask) = split_pad(bytes)?;
        let (secrets, pad) = split_pad(bytes)?;
        let mut secrets = match <&[u8; SEED]>::try_from(secrets) {
            Ok(seed) if member + 1 < self.threshold => self.drawn(seed)?,
            _ => self.unpacked(secrets, self.columns())?,
        };
        let masks = Zeroizing::new(secrets.split_off(self.elements()));
        Ok(Share { secrets, masks, pad, pad_mask })
    }

    /// Adds a share to a sum.
    pub fn add(&self, sum: &mut Shares, share: &Share) {
        sum.secrets.iter_mut().zip(share.secrets.iter()).for_each(|(s, v)| *s = self.field.add(*s, *v));
        *sum.pads += *share.pad;
    }

    /// The combination coefficients of a client; `seed` is a digest of the content that it has signed. Each number has
    /// one bit less than p, so an inconsistent share passes each combination with a probability of at most 1 in that
    /// many.
    pub fn coefficients(&self, seed: &[u8; 32]) -> Result<Coefficients> {
        let mut stream = Stream::new(seed, [0; 12])?;
        let count = self.masks * self.elements();
        let mut words = vec![0; count.div_ceil(2)];
        stream.fill(&mut words);
        let most = (1 << (self.field.bits() - 1)) - 1;
        let numbers = words.iter().flat_map(|word| [*word as u32 & most, (*word >> 32) as u32 & most]);
        Ok(Coefficients { rows: numbers.take(count).collect(), pad: Element::draw(&mut stream) })
    }

    /// The combination that a member sends of a share, in addition to the sum.
    #[must_use]
    pub fn combine(&self, share: &Share, coefficients: &Coefficients) -> Combination {
        // The number of products that are added before a reduction: their sum stays below 2^62.
        let most = 1usize << (62 - 2 * self.field.bits()).min(12);
        let combined = |(mask, row): (&u64, &[u32])| {
            let parts = row.chunks(most).zip(share.secrets.chunks(most));
            parts.fold(*mask, |sum, (row, secrets)| {
                let part: u64 = row.iter().zip(secrets).map(|(c, v)| u64::from(*c) * v).sum();
                self.field.add(sum, self.field.reduce(part))
            })
        };
        let values = share.masks.iter().zip(coefficients.rows.chunks(self.elements())).map(combined).collect();
        Combination { values, pad: *share.pad_mask + coefficients.pad * *share.pad }
    }

    /// A combination in the bits of the wire.
    #[must_use]
    pub fn combination_to_bytes(&self, combination: &Combination) -> Vec<u8> {
        let values = self.packed(self.masks, combination.values.iter().copied());
        [values.as_slice(), &combination.pad.to_wire()].concat()
    }

    pub fn parse_combination(&self, bytes: &[u8]) -> Result<Combination> {
        let (values, pad) = split_pad(bytes)?;
        Ok(Combination { values: self.unpacked(values, self.masks)?.to_vec(), pad: *pad })
    }

    /// The `members` whose combination of one client's share is inconsistent with all but `most` of the others; `None`
    /// if fewer agree. There are at least [`Self::needed`] plus twice `most` members.
    #[must_use]
    pub fn disagreeing_shares(&self, members: &[usize], said: &[&Combination], most: usize) -> Option<BTreeSet<usize>> {
        let points: Vec<u64> = members.iter().map(|member| point(*member)).collect();
        let tags: Vec<Element> = points.iter().map(|x| Tags.of(*x)).collect();
        let pads: Vec<Element> = said.iter().map(|of| of.pad).collect();
        let mut places: BTreeSet<usize> = off(&Tags, &tags, &pads, self.needed(), most)?.into_iter().collect();
        for k in 0..self.masks {
            let values: Vec<u64> = said.iter().map(|of| of.values[k]).collect();
            places.extend(off(&self.field, &points, &values, self.needed(), most)?);
        }
        Some(places.into_iter().map(|place| members[place]).collect())
    }

    /// Adds one sum to another.
    pub fn merge(&self, sum: &mut Shares, other: &Shares) {
        sum.secrets.iter_mut().zip(other.secrets.iter()).for_each(|(s, v)| *s = self.field.add(*s, *v));
        *sum.pads += *other.pads;
    }

    /// Reads a sum from the wire: the sum of secrets, as [`Self::packed`] writes it, then the sum of pads.
    pub fn parse(&self, bytes: &[u8]) -> Result<Shares> {
        let (secrets, pads) = split_pad(bytes)?;
        Ok(Shares { secrets: self.unpacked(secrets, self.elements())?, pads })
    }

    /// The sum of secrets from at least [`Self::needed`] sums of shares, each with its member's number. Additional sums
    /// are checked against each other: one additional sum lets a false one be noticed, two let it be found.
    pub fn join(&self, answers: &[(usize, Shares)]) -> Result<Joined> {
        let spare = answers
            .len()
            .checked_sub(self.needed())
            .ok_or(Error::Committee { answers: answers.len(), needed: self.needed() })?;
        // Up to half of the additional answers. Beyond that, colluding liars could put the blame on an honest member.
        for wrong in 0..=spare / 2 {
            let Some(left_out) = self.disagreeing(answers, wrong) else { continue };
            let kept: Vec<_> = answers.iter().filter(|(m, _)| !left_out.contains(m)).collect();
            let base = &kept[..self.needed()];
            let pads = Zeroizing::new(Pads::joined(&pads(base)));
            return Ok(Joined { sum: self.interpolated(base), pads, wrong: left_out });
        }
        Err(Error::Decrypt { reason: "the committee's answers do not agree: one of them is false".into() })
    }

    /// A set of `count` members without whom all answers are consistent.
    fn disagreeing(&self, answers: &[(usize, Shares)], count: usize) -> Option<Vec<usize>> {
        let mut sets = vec![Vec::new()];
        for _ in 0..count {
            let longer = |set: &Vec<usize>| {
                let first = set.last().map_or(0, |last| last + 1);
                (first..answers.len()).map(|k| [set.as_slice(), &[k]].concat()).collect::<Vec<_>>()
            };
            sets = sets.iter().flat_map(longer).take(MAX_SETS).collect();
        }
        let agree = |set: &Vec<usize>| {
            let kept: Vec<_> = answers.iter().enumerate().filter(|(k, _)| !set.contains(k)).map(|(_, a)| a).collect();
            let (base, rest) = kept.split_at(self.needed());
            let nodes: Vec<u64> = base.iter().map(|(m, _)| point(*m)).collect();
            rest.iter().all(|(member, found)| {
                let row = self.field.lagrange(&nodes, point(*member));
                let mut secrets = found.secrets.iter().enumerate();
                // An inconsistency depends only on the errors that liars have added to their answers.
                shown(Pads::agrees(&pads(base), *member, &found.pads))
                    && secrets.all(|(g, found)| shown(self.combined(&row, base, g) == *found))
            })
        };
        sets.iter().find(|set| agree(set)).map(|set| set.iter().map(|k| answers[*k].0).collect())
    }

    fn combined(&self, row: &[u64], of: &[&(usize, Shares)], at: usize) -> u64 {
        row.iter().zip(of).fold(0, |sum, (l, (_, sums))| self.field.add(sum, self.field.mul(*l, sums.secrets[at])))
    }

    fn interpolated(&self, base: &[&(usize, Shares)]) -> Zeroizing<Vec<i32>> {
        let nodes: Vec<u64> = base.iter().map(|(m, _)| point(*m)).collect();
        let rows: Vec<_> = self.secrets().map(|at| self.field.lagrange(&nodes, at)).collect();
        let coefficient = |k: usize| self.combined(&rows[k % self.pack], base, k / self.pack);
        Zeroizing::new((0..self.n).map(|k| self.field.centred(coefficient(k)) as i32).collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::subsequence;

    const N: usize = 37;

    fn secrets(clients: usize, seed: u64) -> Vec<Vec<i8>> {
        let mut stream = Stream::new(&[seed as u8; 32], [0; 12]).unwrap();
        (0..clients).map(|_| (0..N).map(|_| stream.below(85) as i8 - 42).collect()).collect()
    }

    /// The sum that each member adds up.
    fn sums(sharing: &Sharing, secrets: &[Vec<i8>]) -> Vec<(usize, Shares)> {
        let mut sums: Vec<_> = (0..sharing.members).map(|m| (m, sharing.none())).collect();
        for (client, secret) in secrets.iter().enumerate() {
            for (member, share) in sharing.split(secret, &pad(client)).unwrap().iter().enumerate() {
                assert_eq!(share.len(), sharing.share_bytes(member));
                let share = sharing.share(member, share).unwrap();
                sharing.add(&mut sums[member].1, &share);
            }
        }
        sums
    }

    fn pad(client: usize) -> Element {
        Element::new(u128::MAX / (client as u128 + 2))
    }

    fn expected_pads(clients: usize) -> Element {
        (0..clients).map(pad).sum()
    }

    /// The combinations of all members, at the points of the secret, and the combination of the pad.
    fn seen(sharing: &Sharing, secret: &[i8], coefficients: &Coefficients) -> (Vec<u64>, Element) {
        let shares = sharing.split(secret, &pad(0)).unwrap();
        let combined = |m: usize| sharing.combine(&sharing.share(m, &shares[m]).unwrap(), coefficients);
        let said: Vec<Combination> = (0..sharing.needed()).map(combined).collect();
        let nodes: Vec<u64> = (0..sharing.needed()).map(point).collect();
        let at = |place: u64, k: usize| {
            let row = sharing.field.lagrange(&nodes, place);
            let parts = row.iter().zip(&said).map(|(l, of)| sharing.field.mul(*l, of.values[k]));
            parts.fold(0, |sum, part| sharing.field.add(sum, part))
        };
        let places = sharing.secrets().flat_map(|place| (0..sharing.masks).map(move |k| at(place, k))).collect();
        (places, Pads::joined(&said.iter().enumerate().map(|(m, of)| (m, &of.pad)).collect::<Vec<_>>()))
    }

    /// The combinations are consistent, and differ each time for one secret, because a mask hides each of them.
    #[test]
    fn combinations_fit_and_are_masked() {
        for (members, threshold, pack) in [(1, 1, 1), (5, 4, 1), (7, 3, 2), (9, 5, 4)] {
            let sharing = Sharing::new(N, 84 * 8 + 1, members, threshold, pack).unwrap();
            let secret = &secrets(1, 3)[0];
            let coefficients = sharing.coefficients(&[5; 32]).unwrap();
            let (one, other) = (seen(&sharing, secret, &coefficients), seen(&sharing, secret, &coefficients));
            assert_eq!(one.0.len(), pack * sharing.masks);
            assert!(sharing.masks as u32 * (sharing.field.bits() - 1) >= SOUND_BITS);
            let same = one.0.iter().zip(&other.0).filter(|(a, b)| a == b).count();
            assert!(same < one.0.len() / 2 && one.1 != other.1, "{same} of {}", one.0.len());
            let shares = sharing.split(secret, &pad(0)).unwrap();
            let combined = |m: usize| sharing.combine(&sharing.share(m, &shares[m]).unwrap(), &coefficients);
            let said: Vec<Combination> = (0..members).map(combined).collect();
            let all: Vec<usize> = (0..members).collect();
            for most in 0..=(members - sharing.needed()) / 2 {
                let found = sharing.disagreeing_shares(&all, &said.iter().collect::<Vec<_>>(), most);
                assert_eq!(found, Some(BTreeSet::new()));
            }
            let bytes = sharing.combination_to_bytes(&said[0]);
            assert_eq!(bytes.len(), sharing.combination_bytes());
            assert_eq!(sharing.parse_combination(&bytes).unwrap(), said[0]);
        }
    }

    fn expected(secrets: &[Vec<i8>]) -> Vec<i32> {
        (0..N).map(|k| secrets.iter().map(|s| i32::from(s[k])).sum()).collect()
    }

    /// (members, threshold, pack) with enough members left.
    fn shapes() -> impl Strategy<Value = (usize, usize, usize)> {
        (1usize..9).prop_flat_map(|members| {
            (Just(members), 1..=members).prop_flat_map(|(m, t)| (Just(m), Just(t), 1..=m - t + 1))
        })
    }

    proptest! {
        #[test]
        fn enough_members_have_the_sum((members, threshold, pack) in shapes(), clients in 1usize..12, seed: u64) {
            let sharing = Sharing::new(N, 84 * 12 + 1, members, threshold, pack).unwrap();
            let secrets = secrets(clients, seed);
            let all = sums(&sharing, &secrets);
            let joined = sharing.join(&all[members - sharing.needed()..]).unwrap();
            prop_assert_eq!(&*joined.sum, &expected(&secrets));
            prop_assert_eq!(*joined.pads, expected_pads(clients));
            prop_assert!(sharing.join(&all[..sharing.needed() - 1]).is_err());
            prop_assert!(sharing.join(&all).unwrap().wrong.is_empty());
        }

        #[test]
        fn false_sums_are_noticed_with_one_to_spare_and_found_with_two(
            spare in 1usize..5, liars in subsequence((0..7).collect::<Vec<_>>(), 1..3), of_pads: [bool; 2], seed: u64,
        ) {
            let sharing = Sharing::new(N, 84 * 12 + 1, 3 + spare, 3, 1).unwrap();
            let secrets = secrets(4, seed);
            let mut draws = Stream::new(&[seed as u8; 32], [1; 12]).unwrap();
            let mut all = sums(&sharing, &secrets);
            let liars: Vec<usize> = liars.into_iter().filter(|m| *m < all.len()).collect();
            for (liar, only_pads) in liars.iter().zip(of_pads) {
                let Shares { secrets, pads } = &mut all[*liar].1;
                if only_pads {
                    **pads += Element::draw(&mut draws);
                    continue;
                }
                // Errors in several elements: with one error each, two liars could by chance be consistent.
                secrets.iter_mut().for_each(|v| *v = sharing.field.add(*v, draws.below(sharing.field.p())));
            }
            prop_assume!(liars.len() <= spare);
            match sharing.join(&all) {
                Ok(joined) => {
                    prop_assert!(2 * liars.len() <= spare);
                    prop_assert_eq!(joined.wrong, liars);
                    prop_assert_eq!(&*joined.sum, &expected(&secrets));
                    prop_assert_eq!(*joined.pads, expected_pads(4));
                }
                Err(_) => prop_assert!(2 * liars.len() > spare),
            }
        }

        /// Any threshold - 1 shares are consistent with any other secret: a polynomial passes through both.
        #[test]
        fn too_few_shares_fit_every_secret((members, threshold, pack) in shapes(), other in -42i8..=42) {
            let sharing = Sharing::new(N, 84 * 12 + 1, members, threshold, pack).unwrap();
            let f = sharing.field;
            let shares = sums(&sharing, &secrets(1, 1));
            let few = &shares[members - (threshold - 1)..];
            let held: Vec<u64> = few.iter().map(|(m, _)| point(*m)).collect();
            let through = |nodes: &[u64], values: &[u64], at: u64| {
                f.lagrange(nodes, at).iter().zip(values).fold(0, |sum, (l, v)| f.add(sum, f.mul(*l, *v)))
            };
            // The same shares with another secret: some draws make `split` produce exactly these.
            let other = vec![f.lift(i64::from(other)); pack];
            let nodes: Vec<u64> = sharing.secrets().chain(held.iter().copied()).collect();
            let values = [other.clone(), few.iter().map(|(_, v)| v.secrets[0]).collect()].concat();
            let draws: Vec<u64> = (1..threshold).map(|j| through(&nodes, &values, j as u64)).collect();
            let known = [other, draws].concat();
            for (member, values) in few {
                prop_assert_eq!(through(&sharing.nodes(), &known, point(*member)), values.secrets[0]);
            }
        }
    }
}
