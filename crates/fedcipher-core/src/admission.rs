//! Which frames may enter a sum: the checks every aggregator and decryptor makes before arithmetic.

use crate::bounds::Bounds;
use crate::codec::Layout;
use crate::keys::{KeyTag, ServerKey};
use crate::wire::{self, Contribution, Frame, Header, Kind};
use crate::{Error, Result};
use std::collections::BTreeMap;

/// The state of one round's admission. [`Self::check`] changes nothing, [`Self::commit`] counts.
#[derive(Debug)]
pub struct Admission {
    tag: KeyTag,
    cohort: Vec<u32>,
    bounds: Bounds,
    round: Option<u64>,
    layout: Option<Layout>,
    weights: BTreeMap<u32, u64>,
}

/// A frame that has passed: add its payload, then [`Admission::commit`] it.
#[derive(Debug)]
pub struct Admitted<'a> {
    pub contribution: Contribution,
    pub layout: Layout,
    pub payload: &'a [u8],
    round: u64,
}

impl Admission {
    #[must_use]
    pub fn new(key: &ServerKey, bounds: Bounds, round: Option<u64>) -> Self {
        Admission {
            tag: key.tag.clone(),
            cohort: key.cohort.clone(),
            bounds,
            round,
            layout: None,
            weights: BTreeMap::new(),
        }
    }

    /// Every field of an update's header against this round.
    pub fn check<'a>(&self, bytes: &'a [u8], scale: u64) -> Result<Admitted<'a>> {
        let Frame { header, payload } = wire::parse_kind(bytes, Kind::Update)?;
        self.tag.check(&header)?;
        let round = self.round.unwrap_or(header.round);
        if header.round != round {
            return Err(Error::Round { found: header.round, expected: round });
        }
        let &[Contribution { client, weight }] = header.contributions.as_slice() else {
            return Err(Error::frame(format!("an update names one client, this one {}", header.contributions.len())));
        };
        if self.cohort.binary_search(&client).is_err() {
            return Err(Error::UnknownClient { client });
        }
        if self.weights.contains_key(&client) {
            return Err(Error::DuplicateClient { client, round });
        }
        if self.weights.len() as u64 >= self.bounds.clients {
            return Err(Error::parameter(
                "clients",
                format!("this round already has the {} clients its modulus was chosen for", self.bounds.clients),
            ));
        }
        let scaled = weight.saturating_mul(scale);
        check_weight(client, scaled, self.bounds.max_weight)?;
        let layout = layout_of(&header)?;
        if let Some(expected) = &self.layout
            && *expected != layout
        {
            return Err(Error::layout(format!(
                "client {client} sent {}; all clients of a round must agree",
                expected.difference(&layout)
            )));
        }
        Ok(Admitted { contribution: Contribution { client, weight: scaled }, layout, payload, round })
    }

    /// Counts a frame whose payload has been added.
    pub fn commit(&mut self, admitted: Admitted<'_>) -> Contribution {
        let Contribution { client, weight } = admitted.contribution;
        self.round = Some(admitted.round);
        self.weights.insert(client, weight);
        self.layout.get_or_insert(admitted.layout);
        admitted.contribution
    }

    /// The header of the sum of everything committed.
    pub fn aggregate_header(&self) -> Result<Header> {
        let (Some(round), Some(layout)) = (self.round, &self.layout) else {
            return Err(Error::EmptyCohort);
        };
        let contributions =
            self.weights.iter().map(|(client, weight)| Contribution { client: *client, weight: *weight }).collect();
        Ok(self.tag.round_header(Kind::Aggregate, round, contributions, layout))
    }

    /// The layout all committed frames share.
    pub fn layout(&self) -> Result<&Layout> {
        self.layout.as_ref().ok_or(Error::EmptyCohort)
    }
}

/// A client's weight against the bound.
pub fn check_weight(client: u32, weight: u64, max_weight: u64) -> Result<()> {
    if (1..=max_weight).contains(&weight) {
        return Ok(());
    }
    Err(Error::Weight { client, weight, max_weight, divisor: weight.div_ceil(max_weight).max(1) })
}

fn layout_of(header: &Header) -> Result<Layout> {
    let layout = Layout::decode(&header.layout)?;
    if layout.elements() as u64 != header.elements {
        return Err(Error::frame(format!(
            "it announces {} elements but its layout has {}",
            header.elements,
            layout.elements()
        )));
    }
    Ok(layout)
}

/// The checks of a decryptor: the aggregate must be of this key, this round and within bounds.
pub fn open_aggregate<'a>(
    tag: &KeyTag,
    bounds: Bounds,
    bytes: &'a [u8],
    round: Option<u64>,
) -> Result<(Header, Layout, &'a [u8])> {
    let Frame { header, payload } = wire::parse_kind(bytes, Kind::Aggregate)?;
    let layout = check_aggregate(tag, bounds, &header, round)?;
    Ok((header, layout, payload))
}

/// [`open_aggregate`] where only the header is here yet.
pub fn check_aggregate(tag: &KeyTag, bounds: Bounds, header: &Header, round: Option<u64>) -> Result<Layout> {
    tag.check(header)?;
    if let Some(expected) = round
        && header.round != expected
    {
        return Err(Error::Round { found: header.round, expected });
    }
    if header.contributions.is_empty() {
        return Err(Error::EmptyCohort);
    }
    if header.contributions.len() as u64 > bounds.clients {
        return Err(Error::frame(format!(
            "{} contributions where the bound allows {}",
            header.contributions.len(),
            bounds.clients
        )));
    }
    for c in &header.contributions {
        check_weight(c.client, c.weight, bounds.max_weight)?;
    }
    layout_of(header)
}

/// No decrypted sum may exceed what its clients can have sent: a wrong key or damage shows here.
pub fn check_sums(sums: &[u64], total_weight: u64, bits: u32) -> Result<()> {
    let most = total_weight.saturating_mul(crate::bounds::max_level(bits));
    match sums.iter().position(|s| *s > most) {
        None => Ok(()),
        Some(k) => Err(Error::Decrypt {
            reason: format!("a sum of {} exceeds the largest possible {most} for total weight {total_weight}", sums[k]),
        }),
    }
}
