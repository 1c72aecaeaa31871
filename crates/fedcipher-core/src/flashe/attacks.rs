//! Attacks on sparse rounds in which every client chooses its coordinates: what the broadcast reveals about single
//! clients, and what a server can do with it.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::mask::Masking;
use super::positions::{self, SparseSum};
use super::{Flashe, FlasheParams, Policy};
use crate::bits;
use crate::bounds::Bounds;
use crate::codec::{Layout, Means, Rounding, Sums, Tensor, Update};
use crate::keys::KeySet;
use crate::mac::{TAG_LEN, coordinates};
use crate::prf::Stream;
use crate::scheme::{Aggregator, Expect, Request, Scheme};
use crate::wire::{self, Header};
use crate::{ClientId, Epoch, Error, RoundId, Weight};
use proptest::prelude::*;

const CLIENTS: u32 = 5;

fn layout(len: usize) -> Layout {
    Layout::new(vec![Tensor { dtype: 1, bits: 12, alpha: 1.0, shape: vec![len as u32] }]).unwrap()
}

fn scheme(minimum: u64, masking: Masking) -> Flashe {
    let bounds = Bounds::new(u64::from(CLIENTS), Weight::new(3), Some(minimum)).unwrap();
    Flashe::new(FlasheParams { bounds, policy: Policy::Fixed(masking), key_bits: 128, per_client_top: Some(0.2) })
        .unwrap()
}

/// The update of client `id`: partly common to all clients, partly its own.
fn values(len: usize, id: u32, seed: u64) -> Vec<f32> {
    let mut own = Stream::new(&[id as u8 + 1; 16], [seed as u8; 12]).unwrap();
    let mut common = Stream::new(&[0; 16], [seed as u8; 12]).unwrap();
    let draw = |s: &mut Stream| s.below(2001) as f32 / 1000.0 - 1.0;
    (0..len).map(|_| 0.8 * draw(&mut common) + 0.2 * draw(&mut own)).collect()
}

fn weight(id: u32) -> u64 {
    u64::from(id % 3 + 1)
}

fn round(scheme: &Flashe, keys: &KeySet, layout: &Layout, seed: u64) -> Vec<u8> {
    let mut aggregator = scheme.aggregator(&keys.server, Some(RoundId::new(9))).unwrap();
    for key in &keys.clients {
        let flat = values(layout.elements(), key.client.get(), seed);
        let update = Update::new(layout, vec![&flat], Rounding::Nearest).unwrap();
        let weight = weight(key.client.get());
        let request = Request {
            round: RoundId::new(9),
            weight: Weight::new(weight),
            update: &update,
            round_plan: &[],
            model: b"model",
            memory: &[],
            associated_data: &[],
        };
        aggregator.add(&scheme.encryptor(key, None).unwrap().encrypt(&request).unwrap()).unwrap();
    }
    aggregator.finish().unwrap()
}

/// An aggregate in parts that can be changed.
struct Parts {
    header: Header,
    width: u32,
    sum: SparseSum,
    tag: Vec<u8>,
}

impl Parts {
    fn of(scheme: &Flashe, frame: &[u8], layout: &Layout) -> Self {
        let parsed = wire::parse(frame).unwrap();
        let (rest, tag) = parsed.payload.split_at(parsed.payload.len() - TAG_LEN);
        let width = scheme.params.sparse_width(layout).unwrap();
        let sum = SparseSum::parse(&parsed.header, rest, width, layout.elements()).unwrap();
        Parts { width, sum, tag: tag.to_vec(), header: parsed.header }
    }

    fn frame(&self) -> Vec<u8> {
        let universe = self.header.elements as usize;
        let mut payload = vec![self.sum.masking];
        self.sum.senders.iter().for_each(|(_, set)| positions::encode(set, universe, &mut payload));
        let at = payload.len();
        payload.resize(at + bits::packed_len(self.sum.lanes.len(), self.width), 0);
        bits::pack(&self.sum.lanes, self.width, &mut payload[at..]);
        coordinates::write(&self.sum.tags, &mut payload);
        payload.extend_from_slice(&self.tag);
        self.header.frame(&payload)
    }
}

fn open(scheme: &Flashe, keys: &KeySet, frame: &[u8]) -> crate::Result<(Vec<u64>, Vec<u32>)> {
    let decryptor = scheme.decryptor(&keys.clients[0], None)?;
    let (summary, sums) = decryptor.decrypt(frame, &Expect::default(), Sums::default())?.into_parts();
    Ok((sums.0, summary.counts.unwrap()))
}

/// Attack 5: some values of a broadcast were sent by one client alone. A reader with the key could attribute each of
/// them to that client.
#[test]
fn sparse_broadcasts_attribute_no_value_to_one_client() {
    let layout = layout(2000);
    for (minimum, expected) in [(1, true), (3, false)] {
        let scheme = scheme(minimum, Masking::Double);
        let keys = scheme.keygen(&ClientId::list(0..CLIENTS), Epoch::new(1)).unwrap();
        let parts = Parts::of(&scheme, &round(&scheme, &keys, &layout, 1), &layout);
        let alone = parts.sum.counts.iter().filter(|n| **n == 1).count();
        assert_eq!(alone > 0, expected, "{alone} values of one client");
        assert!(parts.sum.counts.iter().all(|n| u64::from(*n) >= minimum));
        assert!(!parts.sum.union.is_empty());
    }
}

/// The remaining coordinates are exact. Each is the sum of the sent values, and the mean over the clients that sent the
/// coordinate.
#[test]
fn what_remains_is_the_mean_of_those_who_sent_it() {
    let layout = layout(2000);
    for masking in [Masking::Single, Masking::Double] {
        let scheme = scheme(3, masking);
        let keys = scheme.keygen(&ClientId::list(0..CLIENTS), Epoch::new(1)).unwrap();
        let frame = round(&scheme, &keys, &layout, 2);
        let (sums, counts) = open(&scheme, &keys, &frame).unwrap();
        let decryptor = scheme.decryptor(&keys.clients[1], None).unwrap();
        let (_, means) = decryptor.decrypt(&frame, &Expect::default(), Means::default()).unwrap().into_parts();
        // The senders by definition: the largest fifth by magnitude.
        let sent: Vec<Vec<f32>> = (0..CLIENTS)
            .map(|id| {
                let mut x = values(2000, id, 2);
                let mut order: Vec<usize> = (0..2000).collect();
                order.sort_by(|a, b| x[*b].abs().total_cmp(&x[*a].abs()).then(a.cmp(b)));
                order[400..].iter().for_each(|d| x[*d] = f32::NAN);
                x
            })
            .collect();
        let (mut seen, half) = (0, scheme.values().levels.of(12) / 2);
        for d in 0..2000 {
            let senders: Vec<u32> = (0..CLIENTS).filter(|id| !sent[*id as usize][d].is_nan()).collect();
            let total: u64 = (0..CLIENTS).map(weight).sum();
            if senders.len() < 3 {
                assert_eq!((counts[d], sums[d], means.values[d]), (0, total * half, 0.0));
                continue;
            }
            seen += 1;
            let own: u64 = senders.iter().map(|id| weight(*id)).sum();
            let q = |x: f32| u64::from(((f64::from(x) + 1.0) * half as f64).round_ties_even() as u32);
            let sum: u64 = senders.iter().map(|id| weight(*id) * q(sent[*id as usize][d])).sum();
            assert_eq!((counts[d] as usize, sums[d]), (senders.len(), sum + (total - own) * half));
            let mean: f64 = senders.iter().map(|id| weight(*id) as f64 * f64::from(sent[*id as usize][d])).sum();
            assert!((f64::from(means.values[d]) - mean / own as f64).abs() < 1.0 / 4094.0 + 1e-6);
        }
        assert!(seen > 100);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No changed aggregate opens: coordinates are forged, dropped for one client, moved, swapped or relabelled, or too
    /// few clients remain in a sum.
    #[test]
    fn altered_sparse_aggregates_are_refused(kind in 0usize..8, pick in any::<prop::sample::Index>(), noise in 1u64..1 << 40) {
        let layout = layout(600);
        let scheme = scheme(3, Masking::Double);
        let keys = scheme.keygen(&ClientId::list(0..CLIENTS), Epoch::new(1)).unwrap();
        let frame = round(&scheme, &keys, &layout, noise);
        prop_assert!(open(&scheme, &keys, &frame).is_ok());
        let mut parts = Parts::of(&scheme, &frame, &layout);
        prop_assert_eq!(&parts.frame(), &frame);
        let k = pick.index(parts.sum.union.len());
        let position = parts.sum.union[k];
        let of = |set: &Vec<u32>| set.binary_search(&position);
        let mask = bits::lane_mask(parts.width);
        let mut class = "ForgedAggregateError";
        match kind {
            // Another sum.
            0 => parts.sum.lanes[k] = parts.sum.lanes[k].wrapping_add(noise % mask + 1) & mask,
            // Another tag.
            1 => parts.sum.tags[k] = coordinates::add(parts.sum.tags[k], noise),
            // One client fewer than is in the sum.
            2 => {
                let (_, set) = parts.sum.senders.iter_mut().find(|(_, set)| of(set).is_ok()).unwrap();
                let at = of(set).unwrap();
                set.remove(at);
                if parts.sum.counts[k] == 3 { class = "TooFewContributionsError" }
            }
            // One client more.
            3 => {
                let Some((_, set)) = parts.sum.senders.iter_mut().find(|(_, set)| of(set).is_err()) else { return Ok(()) };
                let at = of(set).unwrap_err();
                set.insert(at, position);
                // No client may send more than its share.
                if set.len() > scheme.params.sparse_count(&layout) { class = "FrameError" }
            }
            // Credited to another client.
            4 => {
                let senders = &mut parts.sum.senders;
                let from = senders.iter().position(|(_, set)| of(set).is_ok()).unwrap();
                let Some(to) = senders.iter().position(|(_, set)| of(set).is_err()) else { return Ok(()) };
                let at = of(&senders[from].1).unwrap();
                senders[from].1.remove(at);
                let at = of(&senders[to].1).unwrap_err();
                senders[to].1.insert(at, position);
                if senders[to].1.len() > scheme.params.sparse_count(&layout) { class = "FrameError" }
            }
            // Two coordinates exchanged, sums and tags.
            5 => {
                let other = (k + 1) % parts.sum.union.len();
                parts.sum.lanes.swap(k, other);
                parts.sum.tags.swap(k, other);
            }
            // All positions moved.
            6 => {
                let moved = |p: &mut u32| *p += 1;
                if parts.sum.union.last() == Some(&599) { return Ok(()) }
                parts.sum.senders.iter_mut().for_each(|(_, set)| set.iter_mut().for_each(moved));
            }
            // Another layout: more elements than were sent.
            _ => {
                let larger = super::attacks::layout(601);
                (parts.header.layout, parts.header.elements) = (larger.encode(), 601);
            }
        }
        let error = open(&scheme, &keys, &parts.frame()).unwrap_err();
        prop_assert_eq!(error.class(), class, "kind {}: {}", kind, error);
    }
}

/// The server keeps coordinates that too few clients sent, with valid tags. The decryptor rejects them.
#[test]
fn sums_of_too_few_are_refused_also_where_the_server_keeps_them() {
    let layout = layout(2000);
    let strict = scheme(3, Masking::Double);
    let keys = strict.keygen(&ClientId::list(0..CLIENTS), Epoch::new(1)).unwrap();
    let mut server =
        super::aggregate::Sparse::new(scheme(1, Masking::Double).params, &keys.server, Some(RoundId::new(9)));
    for key in &keys.clients {
        let flat = values(2000, key.client.get(), 4);
        let update = Update::new(&layout, vec![&flat], Rounding::Nearest).unwrap();
        let request = Request {
            round: RoundId::new(9),
            weight: Weight::ONE,
            update: &update,
            round_plan: &[],
            model: b"model",
            memory: &[],
            associated_data: &[],
        };
        server.add(&strict.encryptor(key, None).unwrap().encrypt(&request).unwrap()).unwrap();
    }
    let error = open(&strict, &keys, &server.finish().unwrap()).unwrap_err();
    assert!(matches!(error, Error::TooFew { minimum: 3, .. }), "{error}");
}

/// A server that leaves out a coordinate for all clients (as it must below the minimum) only makes the coordinate
/// unsent.
#[test]
fn a_coordinate_left_out_for_all_is_unsent() {
    let layout = layout(600);
    let scheme = scheme(3, Masking::Double);
    let keys = scheme.keygen(&ClientId::list(0..CLIENTS), Epoch::new(1)).unwrap();
    let frame = round(&scheme, &keys, &layout, 3);
    let (before, counts) = open(&scheme, &keys, &frame).unwrap();
    let mut parts = Parts::of(&scheme, &frame, &layout);
    let gone = parts.sum.union.remove(5);
    parts.sum.lanes.remove(5);
    parts.sum.tags.remove(5);
    parts.sum.senders.iter_mut().for_each(|(_, set)| set.retain(|p| *p != gone));
    let (after, left) = open(&scheme, &keys, &parts.frame()).unwrap();
    let changed: Vec<usize> = (0..600).filter(|d| counts[*d] != left[*d]).collect();
    assert_eq!(changed.len(), 1);
    assert_eq!((left[changed[0]], after[changed[0]]), (0, 9 * scheme.values().levels.of(12) / 2));
    assert!((0..600).all(|d| d == changed[0] || before[d] == after[d]));
}

/// A payload of some bytes behind a header of 2^32 elements: refused before anything of that size is made.
#[test]
fn announced_elements_are_authenticated_before_memory_is_taken() {
    let layout = layout(600);
    let scheme = scheme(1, Masking::Double);
    let keys = scheme.keygen(&ClientId::list(0..CLIENTS), Epoch::new(1)).unwrap();
    let frame = round(&scheme, &keys, &layout, 3);
    let mut parts = Parts::of(&scheme, &frame, &layout);
    let huge = super::attacks::layout(u32::MAX as usize);
    (parts.header.layout, parts.header.elements) = (huge.encode(), huge.elements() as u64);
    parts.sum.senders.iter_mut().for_each(|(_, set)| set.clear());
    (parts.sum.lanes, parts.sum.tags) = (Vec::new(), Vec::new());
    let aggregate = parts.frame();
    assert!(aggregate.len() < 400);
    assert!(matches!(open(&scheme, &keys, &aggregate), Err(Error::Tag)));
    // An update that cannot carry its share is refused by its size.
    let flat = values(600, 0, 1);
    let update = Update::new(&layout, vec![&flat], Rounding::Nearest).unwrap();
    let request = Request {
        round: RoundId::new(9),
        weight: Weight::ONE,
        update: &update,
        round_plan: &[],
        model: b"model",
        memory: &[],
        associated_data: &[],
    };
    let sent = scheme.encryptor(&keys.clients[0], None).unwrap().encrypt(&request).unwrap();
    let parsed = wire::parse(&sent).unwrap();
    let header = Header { layout: huge.encode(), elements: huge.elements() as u64, ..parsed.header };
    let error = scheme.aggregator(&keys.server, None).unwrap().add(&header.frame(parsed.payload)).unwrap_err();
    assert_eq!(error.class(), "FrameError");
}
