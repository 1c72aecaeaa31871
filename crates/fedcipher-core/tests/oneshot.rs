//! `oneshot` as its parties run it, and what each of them may try.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Client, expected, floats, layout, update};
use fedcipher_core::bounds::Bounds;
use fedcipher_core::codec::{Layout, Sums};
use fedcipher_core::committee::{Committee, Member};
use fedcipher_core::keys::KeySet;
use fedcipher_core::mac::TAG_LEN;
use fedcipher_core::mac::field::Element;
use fedcipher_core::oneshot::identity::Identity;
use fedcipher_core::oneshot::pads::Pads;
use fedcipher_core::oneshot::prekeys::Life;
use fedcipher_core::oneshot::roster::{Card, Roles, Roster};
use fedcipher_core::oneshot::sealed_share::{Envelope, OVERHEAD, SealedShare};
use fedcipher_core::oneshot::sealing::{self, HpkePublicKey, HpkeSecretKey, SECRET_LEN};
use fedcipher_core::oneshot::statement::share_info;
use fedcipher_core::oneshot::{Oneshot, OneshotParams, Reveal};
use fedcipher_core::protocol::Encryptor;
use fedcipher_core::rlwe::params::Preset;
use fedcipher_core::scheme::{Aggregator, Expect, Request, Scheme};
use fedcipher_core::sign::Purpose;
use fedcipher_core::sign::hybrid::SIGNATURE_LEN;
use fedcipher_core::statement::{RoundContext, split};
use fedcipher_core::wire::{self, Contribution, Header, Kind, Reader};
use fedcipher_core::{ClientId, Epoch, Error, RoundId, Weight};
use proptest::prelude::*;
use proptest::sample::subsequence;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use tempfile::TempDir;
use zeroize::Zeroizing;

const ROUND: u64 = 9;
/// Bytes of N = 2048 field elements, of 8 clients' sums.
const FIELD: usize = 2048 * 10 / 8;
/// Bytes by which nine more make that longer: combinations of more than 80 bits.
const MASKS: usize = 12;

fn params(clients: u64) -> OneshotParams {
    OneshotParams {
        bounds: Bounds::new(clients, Weight::new(3), Some(3)).unwrap(),
        preset: Preset::Fast,
        bits: vec![8, 12],
        members: 5,
        threshold: 4,
        corrupt_clients: 1,
        corrupt_members: 1,
        pack: 1,
        reveal: Reveal::Clients,
        life: Life { rounds: 1, hours: 24 },
    }
}

fn clients(layout: &Layout, ids: &[u32]) -> Vec<Client> {
    ids.iter().map(|id| (*id, u64::from(id % 3) + 1, floats(layout, u64::from(*id)))).collect()
}

fn opened(scheme: &Oneshot, keys: &KeySet, reader: usize, frame: &[u8]) -> Result<Vec<u64>, Error> {
    let decryptor = scheme.decryptor(&keys.clients[reader], None).unwrap();
    let expect = Expect { round: Some(RoundId::new(ROUND)), ..Expect::default() };
    decryptor.decrypt(frame, &expect, Sums::default()).map(|opened| opened.into_parts().1.0)
}

struct Round {
    scheme: Oneshot,
    keys: KeySet,
    layout: Layout,
    clients: Vec<Client>,
    updates: Vec<Vec<u8>>,
    /// The members' files.
    state: TempDir,
    params: OneshotParams,
}

fn round(params: OneshotParams, ids: &[u32]) -> Round {
    round_of(params, ids, &layout(&[(700, 8), (5000, 12)]))
}

fn round_of(params: OneshotParams, ids: &[u32], layout: &Layout) -> Round {
    let scheme = Oneshot::new(params.clone()).unwrap();
    let keys = scheme.keygen(&ClientId::list(0..8), Epoch::new(1)).unwrap();
    let clients = clients(layout, ids);
    let state = tempfile::tempdir().unwrap();
    let mut round = Round { scheme, keys, layout: layout.clone(), clients, updates: Vec::new(), state, params };
    round.updates = round.updates_of(ROUND);
    round
}

impl Round {
    /// As in a process of its own: what it knows is in its files.
    fn member(&self, id: u32) -> Box<dyn Member> {
        self.scheme.member(&self.keys.clients[id as usize], Some(self.state.path())).unwrap()
    }

    fn prekeys(&self) -> Vec<Vec<u8>> {
        (0..self.scheme.members() as u32).map(|id| self.member(id).prekey().unwrap()).collect()
    }

    fn update(&self, client: &Client, round: u64, prekeys: &[Vec<u8>]) -> Vec<u8> {
        let mut encryptor = self.scheme.encryptor(&self.keys.clients[client.0 as usize], None).unwrap();
        let refused = encryptor.take_prekeys(&prekeys.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        assert!(refused.is_empty(), "{refused:?}");
        let (update, weight) = (update(&self.layout, &client.2), client.1);
        let (round_plan, model, memory, associated_data) = (&[], b"model", &[], &[]);
        encryptor
            .encrypt(&Request {
                round: RoundId::new(round),
                weight: Weight::new(weight),
                update: &update,
                round_plan,
                model,
                memory,
                associated_data,
            })
            .unwrap()
    }

    fn updates_of(&self, round: u64) -> Vec<Vec<u8>> {
        let prekeys = self.prekeys();
        self.clients.iter().map(|client| self.update(client, round, &prekeys)).collect()
    }

    /// Adds the answers of all members but `dead`.
    fn ask(&self, aggregator: &mut dyn Aggregator, dead: &[u32]) {
        for (member, request) in aggregator.requests().unwrap() {
            if !dead.contains(&member.get()) {
                let answer = self.member(member.get()).answer(&request).unwrap();
                assert_eq!(aggregator.require_committee().unwrap().answer(&answer).unwrap(), member);
            }
        }
    }

    /// The secrets of a member's prekeys, by number, as a holder of its files reads them.
    fn secrets(&self, member: u32) -> BTreeMap<u64, HpkeSecretKey> {
        let name = format!("{}-{member}.prekeys", wire::hex(&self.keys.server.tag.key_id));
        let bytes = std::fs::read(self.state.path().join(name)).unwrap();
        let word = |record: &[u8]| u64::from_le_bytes(*record.first_chunk().unwrap());
        let found = bytes.chunks(128).filter(|record| record[32..64] != [0; 32]);
        found.map(|record| (word(record), HpkeSecretKey::parse(&record[32..64]).unwrap())).collect()
    }

    /// Bytes of each member's sealed share: one of a seed or of field elements, of a pad and of the pad's mask.
    fn lengths(&self) -> Vec<usize> {
        let OneshotParams { members, threshold, .. } = self.params;
        let length = |member| if member + 1 < threshold { 32 } else { FIELD + MASKS };
        (0..members).map(|member| length(member) + 2 * TAG_LEN + OVERHEAD).collect()
    }

    /// Bytes of all of them.
    fn shares(&self) -> usize {
        self.lengths().iter().sum()
    }

    /// Where the share of a member lies behind the ciphertexts.
    fn share_at(&self, member: usize) -> std::ops::Range<usize> {
        let lengths = self.lengths();
        let at = lengths[..member].iter().sum();
        at..at + lengths[member]
    }

    /// A client's share for a member in an update, opened with these secrets.
    fn opened_share(
        &self,
        frame: &[u8],
        member: u32,
        secrets: &BTreeMap<u64, HpkeSecretKey>,
    ) -> Option<Zeroizing<Vec<u8>>> {
        let parsed = wire::parse(frame).unwrap();
        let (body, tag, _) = split::<SIGNATURE_LEN>(parsed.payload).unwrap();
        let (ciphertexts, shares) = body.split_at(body.len() - self.shares());
        let share = &shares[self.share_at(member as usize)];
        let share = SealedShare::read(&mut Reader::new(share), share.len() - OVERHEAD).unwrap();
        let own = parsed.header.contributions[0];
        let info =
            share_info(&self.roster_digest(), parsed.header.round, own.client, ClientId::new(member), share.number);
        let x = secrets.get(&share.number).and_then(|secret| share.exported(secret, &info))?;
        let context = RoundContext::of(self.roster_digest(), &parsed.header);
        share.open(&x, &context.share_data(own, tag, blake3::hash(ciphertexts).as_bytes()))
    }

    fn identity(&self, id: usize) -> Identity {
        let key = &self.keys.clients[id];
        Identity::of(&key.sign, &key.secret[..SECRET_LEN]).unwrap()
    }

    fn roster(&self) -> Roster {
        Roster::parse(&self.keys.clients[0].secret[SECRET_LEN..]).unwrap()
    }

    fn roster_digest(&self) -> [u8; 32] {
        self.roster().digest(self.scheme.digest().short(), Epoch::new(1))
    }

    fn added(&self) -> Box<dyn Aggregator> {
        let mut aggregator = self.scheme.aggregator(&self.keys.server, Some(RoundId::new(ROUND))).unwrap();
        self.updates.iter().for_each(|update| aggregator.add(update).map(drop).unwrap());
        aggregator
    }

    fn aggregate(&self, dead: &[u32]) -> Vec<u8> {
        let mut aggregator = self.added();
        self.ask(aggregator.as_mut(), dead);
        aggregator.finish().unwrap()
    }

    fn sums(&self) -> Vec<u64> {
        expected(self.scheme.values().levels, &self.layout, &self.clients)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn any_clients_and_enough_members_make_the_sum(
        ids in subsequence((0..8).collect::<Vec<u32>>(), 3..=8),
        dead in subsequence((0..5).collect::<Vec<u32>>(), 0..=1),
        pack in 1usize..=2,
        fast: bool,
    ) {
        let preset = if fast { Preset::Fast } else { Preset::Compact };
        let dead = if pack == 2 { Vec::new() } else { dead };
        let round = round(OneshotParams { pack, preset, ..params(8) }, &ids);
        let frame = round.aggregate(&dead);
        prop_assert_eq!(opened(&round.scheme, &round.keys, 7, &frame).unwrap(), round.sums());
    }
}

#[test]
fn readers_open_what_is_addressed_to_them_and_nobody_elses() {
    let round = round(params(8), &[0, 2, 5, 6]);
    let frame = round.aggregate(&[]);
    let mine = round.scheme.for_reader(&frame, ClientId::new(6)).unwrap();
    assert!(mine.len() < frame.len() - 5 * 7 * 1000);
    assert_eq!(opened(&round.scheme, &round.keys, 6, &mine).unwrap(), round.sums());
    assert!(matches!(opened(&round.scheme, &round.keys, 3, &mine), Err(Error::Decrypt { .. })));
}

#[test]
fn the_same_aggregate_opens_again_however_it_is_addressed() {
    let round = round(params(8), &[0, 2, 5, 6]);
    let frame = round.aggregate(&[]);
    let decryptor = round.scheme.decryptor(&round.keys.clients[6], None).unwrap();
    for frame in [&frame, &round.scheme.for_reader(&frame, ClientId::new(6)).unwrap(), &frame] {
        let opened = decryptor.decrypt(frame, &Expect::default(), Sums::default()).unwrap();
        assert_eq!(opened.values().0, round.sums());
    }
}

#[test]
fn a_server_opens_only_where_that_was_agreed() {
    let blind = round(params(8), &[0, 1, 2]);
    assert!(matches!(blind.scheme.server_decryptor(&blind.keys.server), Err(Error::Unsupported { .. })));
    let round = round(OneshotParams { reveal: Reveal::Server, ..params(8) }, &[0, 1, 2, 7]);
    let frame = round.aggregate(&[3]);
    let server = round.scheme.server_decryptor(&round.keys.server).unwrap();
    let own = server.decrypt(&frame, &Expect::default(), Sums::default()).unwrap();
    assert_eq!(own.values().0, round.sums());
    assert_eq!(opened(&round.scheme, &round.keys, 4, &frame).unwrap(), round.sums());
}

#[test]
fn too_few_answers_are_no_aggregate_and_can_still_come() {
    let round = round(params(8), &[0, 1, 2]);
    let mut aggregator = round.added();
    round.ask(aggregator.as_mut(), &[1, 3]);
    assert_eq!(aggregator.require_committee().unwrap().missing(), 1);
    assert!(matches!(aggregator.finish(), Err(Error::Committee { answers: 3, needed: 4 })));
    round.ask(aggregator.as_mut(), &[0, 2, 3, 4]);
    let frame = aggregator.finish().unwrap();
    assert_eq!(opened(&round.scheme, &round.keys, 0, &frame).unwrap(), round.sums());
}

#[test]
fn who_comes_after_the_committee_was_asked_is_refused() {
    let round = round(params(8), &[0, 1, 2, 3]);
    let mut aggregator = round.scheme.aggregator(&round.keys.server, Some(RoundId::new(ROUND))).unwrap();
    round.updates[..3].iter().for_each(|update| aggregator.add(update).map(drop).unwrap());
    aggregator.requests().unwrap();
    assert!(matches!(aggregator.add(&round.updates[3]), Err(Error::Asked { round }) if round.get() == ROUND));
}

/// Two halves of the committee, each asked for another set: the difference of the two sums is one client's update.
#[test]
fn a_member_answers_for_one_set_a_round() {
    for pack in 1..=2 {
        let round = round(OneshotParams { pack, ..params(8) }, &[0, 1, 2, 3]);
        let member = round.member(0);
        let mut all = round.added();
        let mut fewer = round.scheme.aggregator(&round.keys.server, Some(RoundId::new(ROUND))).unwrap();
        round.updates[..3].iter().for_each(|update| fewer.add(update).map(drop).unwrap());
        let (first, second) = (all.requests().unwrap().swap_remove(0).1, fewer.requests().unwrap().swap_remove(0).1);
        member.answer(&first).unwrap();
        assert!(matches!(member.answer(&second), Err(Error::Opened { round, .. }) if round.get() == ROUND));
        member.answer(&first).unwrap();
    }
}

#[test]
fn a_members_ledger_outlives_it() {
    let round = round(params(8), &[0, 1, 2, 3]);
    let (mut all, mut fewer) =
        (round.added(), round.scheme.aggregator(&round.keys.server, Some(RoundId::new(ROUND))).unwrap());
    round.updates[1..].iter().for_each(|update| fewer.add(update).map(drop).unwrap());
    let (first, second) = (all.requests().unwrap().swap_remove(2).1, fewer.requests().unwrap().swap_remove(2).1);
    round.member(2).answer(&first).unwrap();
    assert!(matches!(round.member(2).answer(&second), Err(Error::Opened { .. })));
    for entry in std::fs::read_dir(round.state.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "answered") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let member = round.scheme.member(&round.keys.clients[2], Some(round.state.path()));
    assert!(matches!(member, Err(Error::Ledger { .. })));
}

/// The header and payload of a request to member 0, to be changed.
fn request(round: &Round) -> (Header, Vec<u8>) {
    let (_, frame) = round.added().requests().unwrap().swap_remove(0);
    let parsed = wire::parse(&frame).unwrap();
    (parsed.header.clone(), parsed.payload.to_vec())
}

#[test]
fn what_a_server_changes_in_a_request_is_refused() {
    let round = round(params(8), &[0, 1, 2, 3]);
    let member = || round.member(0);
    let (header, payload) = request(&round);
    let per_client = (payload.len() - 32) / 4;
    let heavier = |c: &Contribution| Contribution { weight: Weight::new(c.weight.get() % 3 + 1), ..*c };
    let changed = [
        ("fewer than the minimum", Header { contributions: header.contributions[..2].to_vec(), ..header.clone() }, 2),
        (
            "another weight",
            Header { contributions: header.contributions.iter().map(heavier).collect(), ..header.clone() },
            4,
        ),
        ("another round", Header { round: RoundId::new(ROUND + 1), ..header.clone() }, 4),
        ("another model", Header { model: [1; 16], ..header.clone() }, 4),
        ("another epoch", Header { epoch: Epoch::new(2), ..header.clone() }, 4),
        ("another roster", Header { key_id: [7; 16], ..header.clone() }, 4),
    ];
    for (what, header, clients) in changed {
        let payload = &payload[..32 + clients * per_client];
        assert!(member().answer(&header.frame(payload)).is_err(), "{what}");
    }
    let mut invented = header.clone();
    invented.contributions[3].client = ClientId::new(7);
    assert!(matches!(member().answer(&invented.frame(&payload)), Err(Error::Signature { party }) if party.get() == 7));
    invented.contributions[3].client = ClientId::new(70);
    assert!(
        matches!(member().answer(&invented.frame(&payload)), Err(Error::UnknownClient { client }) if client.get() == 70)
    );
    for at in 0..payload.len().min(32 + per_client) {
        if at % 97 == 0 {
            let mut damaged = payload.clone();
            damaged[at] ^= 4;
            assert!(matches!(member().answer(&header.frame(&damaged)), Err(Error::Signature { .. })), "byte {at}");
        }
    }
    member().answer(&header.frame(&payload)).unwrap();
}

#[test]
fn shares_of_an_older_round_are_no_shares_of_this() {
    let round = round(params(8), &[0, 1, 2]);
    let (header, old) = request(&round);
    let updates = round.updates_of(ROUND + 1);
    let mut aggregator = round.scheme.aggregator(&round.keys.server, None).unwrap();
    updates.iter().for_each(|update| aggregator.add(update).map(drop).unwrap());
    let (_, now) = aggregator.requests().unwrap().swap_remove(0);
    let now = wire::parse(&now).unwrap();
    let each = (old.len() - 32) / 3;
    let mixed = [&now.payload[..32 + each], &old[32 + each..]].concat();
    let member = round.member(0);
    assert!(matches!(member.answer(&now.header.frame(&mixed)), Err(Error::Signature { .. })));
    member.answer(&header.frame(&old)).unwrap();
}

#[test]
fn an_update_that_its_client_did_not_sign_is_not_added() {
    let round = round(params(8), &[0, 1, 2]);
    let mut aggregator = round.scheme.aggregator(&round.keys.server, Some(RoundId::new(ROUND))).unwrap();
    let parsed = wire::parse(&round.updates[0]).unwrap();
    let heavier = Header {
        contributions: vec![Contribution { client: ClientId::new(0), weight: Weight::new(3) }],
        ..parsed.header.clone()
    };
    let other = Header {
        contributions: vec![Contribution { client: ClientId::new(4), weight: Weight::ONE }],
        ..parsed.header.clone()
    };
    for header in [heavier, other] {
        assert!(matches!(aggregator.add(&header.frame(parsed.payload)), Err(Error::Signature { .. })));
    }
    for at in (0..parsed.payload.len()).step_by(1009) {
        let mut payload = parsed.payload.to_vec();
        payload[at] ^= 1;
        assert!(matches!(aggregator.add(&parsed.header.frame(&payload)), Err(Error::Signature { .. })), "byte {at}");
    }
    aggregator.add(&round.updates[0]).unwrap();
}

#[test]
fn a_changed_aggregate_does_not_open() {
    let round = round(params(8), &[0, 1, 2]);
    let frame = round.aggregate(&[4]);
    let parsed = wire::parse(&frame).unwrap();
    let fewer = Header { contributions: parsed.header.contributions[..2].to_vec(), ..parsed.header.clone() };
    assert!(opened(&round.scheme, &round.keys, 0, &fewer.frame(parsed.payload)).is_err());
    let length = parsed.payload.len();
    for at in (0..length).step_by(641).chain(length - 16..length) {
        let mut payload = parsed.payload.to_vec();
        payload[at] ^= 1;
        // Other readers' keys are nothing to this one.
        if let Ok(sums) = opened(&round.scheme, &round.keys, 0, &parsed.header.frame(&payload)) {
            assert_eq!(sums, round.sums(), "byte {at}");
        }
    }
}

/// Also by less than half a step, which changes no sum: whether such an aggregate opens would tell how large the noise is.
#[test]
fn an_aggregate_with_any_bit_of_any_coefficient_changed_is_refused() {
    for preset in [Preset::Fast, Preset::Compact] {
        let round = round_of(OneshotParams { preset, ..params(8) }, &[0, 1, 2], &layout(&[(3, 8), (20, 12)]));
        let frame = round.aggregate(&[]);
        let parsed = wire::parse(&frame).unwrap();
        let answers = 4 + u32::from_le_bytes(*parsed.payload.first_chunk().unwrap()) as usize;
        for bit in 8 * answers..8 * parsed.payload.len() {
            let mut payload = parsed.payload.to_vec();
            payload[bit / 8] ^= 1 << (bit % 8);
            assert!(opened(&round.scheme, &round.keys, 0, &parsed.header.frame(&payload)).is_err(), "bit {bit}");
        }
        assert_eq!(opened(&round.scheme, &round.keys, 0, &frame).unwrap(), round.sums());
    }
}

/// With it a server that sees sums, by `reveal="server"` or from a reader, could compute the key of tags.
#[test]
fn the_server_gets_no_sum_of_pads() {
    for reveal in [Reveal::Server, Reveal::Clients] {
        let round = round(OneshotParams { reveal, ..params(8) }, &[0, 2, 5]);
        let digest = round.roster_digest();
        let (mut sums, mut shown) = (Vec::new(), Vec::new());
        for (member, request) in round.added().requests().unwrap() {
            let secrets = round.secrets(member.get());
            let mut sum = Element::default();
            for update in &round.updates {
                let share = round.opened_share(update, member.get(), &secrets).unwrap();
                sum += Element::from_wire(*share[..share.len() - TAG_LEN].last_chunk().unwrap()).unwrap();
            }
            sums.push(sum);
            let answer = round.member(member.get()).answer(&request).unwrap();
            let answer = wire::parse(&answer).unwrap();
            let (secrets, rest) = answer.payload[4..].split_at(FIELD);
            let context = RoundContext::of(digest, &wire::parse(&round.updates[0]).unwrap().header);
            let veil = round.keys.clients[7].mac().unwrap().veil(&context.answer(
                &answer.header.contributions,
                member,
                secrets,
            ));
            // Every party that has the server's frames can compute this veil.
            assert_eq!((sum + veil).to_wire() == rest[..TAG_LEN], reveal == Reveal::Server);
            assert_ne!(sum.to_wire(), rest[..TAG_LEN]);
            shown.push(Element::new(u128::from_le_bytes(*rest.first_chunk().unwrap())));
        }
        let joined = |all: &[Element], by: [usize; 4]| Pads::joined(&by.map(|member| (member, &all[member])));
        assert_ne!(joined(&sums, [0, 1, 2, 3]), Element::default());
        for by in [[0, 1, 2, 3], [1, 2, 3, 4]] {
            assert_eq!(joined(&sums, by), joined(&sums, [0, 1, 3, 4]));
            assert_ne!(joined(&shown, by), joined(&sums, by));
        }
    }
}

/// Adversary C: the server's frames and corrupt parties' keys.
#[test]
fn members_below_the_threshold_open_nothing_and_one_more_opens_the_sum() {
    for pack in 1..=2 {
        let round = round(OneshotParams { pack, ..params(8) }, &[0, 1, 2, 5]);
        let needed = 3 + pack;
        for count in 0..=5usize {
            let mut aggregator = round.added();
            let dead: Vec<u32> = (count as u32..5).collect();
            round.ask(aggregator.as_mut(), &dead);
            match aggregator.finish() {
                Ok(frame) => {
                    assert!(count >= needed);
                    assert_eq!(opened(&round.scheme, &round.keys, 5, &frame).unwrap(), round.sums());
                }
                Err(error) => assert!(count < needed && matches!(error, Error::Committee { .. })),
            }
        }
    }
}

#[test]
fn committees_that_could_be_split_are_refused_with_the_fix() {
    let refused = |params: OneshotParams, fix: &str| {
        let said = Oneshot::new(params).map_or_else(|error| error.to_string(), |_| "accepted".into());
        assert!(said.contains(fix), "{said}, where {fix} is wanted");
    };
    refused(OneshotParams { threshold: 3, ..params(8) }, "take members=5, threshold=4, pack=1");
    refused(OneshotParams { threshold: 4, corrupt_members: 3, ..params(8) }, "take members=5, threshold=5, pack=1");
    refused(OneshotParams { threshold: 6, ..params(8) }, "take members=5, threshold=4, pack=1");
    refused(
        OneshotParams { members: 2, threshold: 2, corrupt_members: 2, ..params(8) },
        "take members=3, threshold=3, pack=1",
    );
    refused(OneshotParams { corrupt_clients: 2, ..params(8) }, "take 4");
    assert!(Oneshot::new(OneshotParams { corrupt_members: 2, ..params(8) }).is_ok());
    let few = Bounds::new(3, Weight::new(3), Some(3)).unwrap();
    refused(OneshotParams { corrupt_clients: 2, bounds: few, ..params(8) }, "take 4 with clients=4");
    refused(OneshotParams { pack: 3, ..params(8) }, "take members=5, threshold=4, pack=2");
    // Three members could open one set of clients, and as many others all but say another (attack 21).
    refused(
        OneshotParams { members: 6, threshold: 3, corrupt_members: 0, pack: 2, ..params(8) },
        "take members=6, threshold=4, pack=2",
    );
    refused(OneshotParams { pack: 0, ..params(8) }, "take members=5, threshold=4, pack=1");
    refused(OneshotParams { preset: Preset::FedbitPaper, ..params(8) }, "\"compact\"");
    let scheme = Oneshot::new(params(8)).unwrap();
    assert!(
        scheme.keygen(&ClientId::list([0, 1, 2]), Epoch::new(1)).unwrap_err().to_string().contains("committee of 5")
    );
}

/// A roster's maker that seals another secret to one party: that party would know memories of the rule of sets by other
/// names, and so no earlier sum.
#[test]
fn attack_32_a_secret_that_is_not_the_rosters_is_not_joined() {
    let identities: Vec<Identity> = (0..5).map(|_| Identity::generate().unwrap()).collect();
    let roles = Roles { client: true, member: true, reader: true };
    let make = || {
        let cards = identities
            .iter()
            .zip(0u32..)
            .map(|(own, id)| Card::of(own, ClientId::new(id), &format!("site-{id}"), roles));
        Roster::new(cards.collect()).unwrap().to_bytes().to_vec()
    };
    let (listed, other, sealed) = (make(), make(), 32 + sealing::OVERHEAD);
    let each = (listed.len() - 44) / 5;
    let scheme = Oneshot::new(params(8)).unwrap();
    for (party, own) in identities.iter().enumerate() {
        let join = |bytes: &[u8]| scheme.join(&Roster::parse(bytes).unwrap(), own, Epoch::new(1));
        let end = 44 + (party + 1) * each;
        let mut spliced = listed.clone();
        spliced[end - sealed..end].copy_from_slice(&other[end - sealed..end]);
        let refused = join(&spliced).unwrap_err().to_string();
        assert!(refused.contains("another secret") && refused.contains(&format!("site-{party}")), "{refused}");
        let mut digest = listed.clone();
        digest[8] ^= 1;
        assert!(join(&digest).unwrap_err().to_string().contains("another secret"));
        join(&listed).unwrap();
    }
}

/// Client `id`'s update with other sealed shares, changed by itself: its signature is that of what it sends.
fn resigned(round: &Round, id: usize, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let parsed = wire::parse(&round.updates[id]).unwrap();
    let (body, tag, _) = split::<SIGNATURE_LEN>(parsed.payload).unwrap();
    let (ciphertexts, shares) = body.split_at(body.len() - round.shares());
    let mut shares = shares.to_vec();
    change(&mut shares);
    let mut signed = blake3::hash(ciphertexts).as_bytes().to_vec();
    for member in 0..round.params.members {
        signed.extend_from_slice(&Sha256::digest(&shares[round.share_at(member)]));
    }
    let context = RoundContext::of(round.roster_digest(), &parsed.header);
    let signature =
        round.identity(id).sign(Purpose::Update, &context.update(parsed.header.contributions[0], tag, &signed));
    parsed.header.frame(&[ciphertexts, &shares, &tag.to_bytes(), &signature.unwrap()].concat())
}

/// The envelope that client `id` sends to a member beside its update when `share` is to be the member's share.
fn sealed_as(round: &Round, id: usize, member: u32, share: &[u8]) -> Vec<u8> {
    let parsed = wire::parse(&round.updates[id]).unwrap();
    let (body, tag, _) = split::<SIGNATURE_LEN>(parsed.payload).unwrap();
    let ciphertexts = blake3::hash(&body[..body.len() - round.shares()]);
    let (own, context) = (parsed.header.contributions[0], RoundContext::of(round.roster_digest(), &parsed.header));
    let (number, secret) = round.secrets(member).pop_last().unwrap();
    let info = share_info(&round.roster_digest(), RoundId::new(ROUND), own.client, ClientId::new(member), number);
    let envelope = Envelope::to(number, &HpkePublicKey::parse(&secret.public()).unwrap(), &info).unwrap();
    envelope.encrypt_share(&context.share_data(own, tag, ciphertexts.as_bytes()), share).unwrap()
}

/// A share that opens and is invalid: the client cannot be named, and the round does not open.
#[test]
fn a_false_share_spoils_the_round_and_opens_nothing() {
    let round = round(params(8), &[0, 1, 2, 3]);
    let false_share = sealed_as(&round, 3, 0, &[7; 32 + 2 * TAG_LEN]);
    let lie = resigned(&round, 3, |shares| shares[round.share_at(0)].copy_from_slice(&false_share));
    let mut aggregator = round.scheme.aggregator(&round.keys.server, Some(RoundId::new(ROUND))).unwrap();
    round.updates[..3].iter().for_each(|update| aggregator.add(update).map(drop).unwrap());
    aggregator.add(&lie).unwrap();
    round.ask(aggregator.as_mut(), &[4]);
    let frame = aggregator.finish().unwrap();
    assert!(matches!(opened(&round.scheme, &round.keys, 0, &frame), Err(Error::Decrypt { .. })));
}

/// Members' words about a client that has sealed no share count by how many members may lie, not by how many clients.
#[test]
fn a_client_is_accused_by_more_members_than_may_lie() {
    for (corrupt_clients, corrupt_members) in [(1, 0), (0, 1), (0, 2)] {
        let round = round(OneshotParams { corrupt_clients, corrupt_members, ..params(8) }, &[0, 1, 2, 3]);
        let lie = resigned(&round, 3, |shares| (0..3).for_each(|m| shares[round.share_at(m).start + 60] ^= 1));
        let mut aggregator = with_lie(&round, &lie);
        let requests = aggregator.requests().unwrap();
        for (said, (_, request)) in requests.iter().enumerate().take(corrupt_members + 1) {
            assert!(
                aggregator.require_committee().unwrap().accused().is_empty(),
                "{corrupt_members} members may lie, {said} have spoken"
            );
            let complaint = round.member(said as u32).answer(request).unwrap();
            assert!(matches!(
                aggregator.require_committee().unwrap().answer(&complaint),
                Err(Error::FalseShare { .. })
            ));
        }
        assert_eq!(aggregator.require_committee().unwrap().accused(), [ClientId::new(3)]);
    }
}

/// A client that seals garbage, under its own signature.
#[test]
fn a_member_names_who_sealed_no_share_and_spends_nothing() {
    let round = round(params(8), &[0, 1, 2, 3]);
    // Encapsulations of its first two shares: what comes out is another secret than it has signed, which proves nothing.
    let lie = resigned(&round, 3, |shares| [0, 1].iter().for_each(|m| shares[round.share_at(*m).start + 60] ^= 1));
    let mut aggregator = with_lie(&round, &lie);
    let requests = aggregator.requests().unwrap();
    let complaint = round.member(0).answer(&requests[0].1).unwrap();
    assert!(
        matches!(aggregator.require_committee().unwrap().answer(&complaint), Err(Error::FalseShare { member, clients }) if member.get() == 0 && clients == [ClientId::new(3)])
    );
    // One may be lying: a corrupt member is reckoned with.
    assert!(aggregator.require_committee().unwrap().accused().is_empty());
    let other = round.member(1).answer(&requests[1].1).unwrap();
    for _ in 0..2 {
        assert!(matches!(
            aggregator.require_committee().unwrap().answer(&other),
            Err(Error::FalseShare { member, .. }) if member.get() == 1
        ));
    }
    assert_eq!(aggregator.require_committee().unwrap().accused(), [ClientId::new(3)]);
    // It has not spoken for any set yet.
    let mut without = round.scheme.aggregator(&round.keys.server, Some(RoundId::new(ROUND))).unwrap();
    round.updates[..3].iter().for_each(|update| without.add(update).map(drop).unwrap());
    let requests = without.requests().unwrap();
    round.ask(without.as_mut(), &[]);
    assert!(without.finish().is_ok());
    round.member(0).answer(&requests[0].1).unwrap();
}

/// All updates but client 3's, and its lie.
fn with_lie(round: &Round, lie: &[u8]) -> Box<dyn Aggregator> {
    let mut aggregator = round.scheme.aggregator(&round.keys.server, Some(RoundId::new(ROUND))).unwrap();
    round.updates[..3].iter().for_each(|update| aggregator.add(update).map(drop).unwrap());
    aggregator.add(lie).unwrap();
    aggregator
}

/// A share that opens under the secret that the client has signed, and is invalid: one member's word is enough.
#[test]
fn a_share_that_is_none_is_proven_by_one_member() {
    let round = round(params(8), &[0, 1, 2, 3]);
    let mut no_field = [0; 32 + 2 * TAG_LEN];
    no_field[32..].fill(0xff);
    let sealed = sealed_as(&round, 3, 0, &no_field);
    // Not readable under its own secret either.
    let mut torn = sealed.clone();
    *torn.last_mut().unwrap() ^= 1;
    for lie in [sealed, torn] {
        let lie = resigned(&round, 3, |shares| shares[round.share_at(0)].copy_from_slice(&lie));
        let mut aggregator = with_lie(&round, &lie);
        let (_, request) = aggregator.requests().unwrap().swap_remove(0);
        let complaint = round.member(0).answer(&request).unwrap();
        assert!(matches!(
            aggregator.require_committee().unwrap().answer(&complaint),
            Err(Error::FalseShare { member, .. }) if member.get() == 0
        ));
        assert_eq!(aggregator.require_committee().unwrap().accused(), [ClientId::new(3)]);
    }
}

/// A member that accuses an honest client. The true secret shows the valid share to all parties; another secret shows
/// nothing.
#[test]
fn an_accusation_of_an_honest_client_proves_nothing() {
    let round = round(params(8), &[0, 1, 2, 3]);
    let digest = round.roster_digest();
    let (number, secret) = round.secrets(0).pop_last().unwrap();
    let parsed = wire::parse(&round.updates[3]).unwrap();
    let context = RoundContext::of(digest, &parsed.header);
    let (body, ..) = split::<SIGNATURE_LEN>(parsed.payload).unwrap();
    let sealed = &body[body.len() - round.shares()..][round.share_at(0)];
    let share = SealedShare::read(&mut Reader::new(sealed), sealed.len() - OVERHEAD).unwrap();
    let x = share
        .exported(&secret, &share_info(&digest, RoundId::new(ROUND), ClientId::new(3), ClientId::new(0), number))
        .unwrap();
    for (shown, good) in [(x.to_vec(), true), (vec![7; 32], false), (vec![0; 32], false)] {
        let mut aggregator = round.added();
        let (_, request) = aggregator.requests().unwrap().swap_remove(0);
        let header = Header { kind: Kind::Complaint, ..wire::parse(&request).unwrap().header };
        let listed = [&3u32.to_le_bytes()[..], &[1], &shown].concat();
        let signature =
            round.identity(0).sign(Purpose::Complaint, &context.complaint(ClientId::new(0), &listed)).unwrap();
        let frame = header.frame(&[&0u32.to_le_bytes()[..], &signature, &listed].concat());
        match aggregator.require_committee().unwrap().answer(&frame) {
            Err(Error::Frame { reason }) => assert!(good && reason.contains("good share"), "{reason}"),
            other => assert!(!good && matches!(other, Err(Error::FalseShare { .. }))),
        }
        assert!(aggregator.require_committee().unwrap().accused().is_empty());
    }
}

/// Signed by the client or not: a share opens beside the update that it was sealed for, and no other of its client's.
#[test]
fn a_share_under_another_statement_is_not_added() {
    let round = round(params(8), &[0, 1, 2, 3]);
    let client = (3, 2, floats(&round.layout, 77));
    let other = round.update(&client, ROUND, &round.prekeys());
    let other = wire::parse(&other).unwrap();
    let (body, ..) = split::<SIGNATURE_LEN>(other.payload).unwrap();
    let sealed = &body[body.len() - round.shares()..];
    let lie = resigned(&round, 3, |shares| shares.copy_from_slice(sealed));
    let mut aggregator = with_lie(&round, &lie);
    let (_, request) = aggregator.requests().unwrap().swap_remove(0);
    let complaint = round.member(0).answer(&request).unwrap();
    assert!(
        matches!(aggregator.require_committee().unwrap().answer(&complaint), Err(Error::FalseShare { clients, .. }) if clients == [ClientId::new(3)])
    );
}

/// Attack 22. All files of all members after the next round's request, and every recorded byte: also of an update that
/// was left out of the sum.
#[test]
fn attack_22_no_file_of_a_member_opens_what_was_recorded_before() {
    let round = round(params(8), &[0, 1, 2, 3, 4]);
    let opens = |update: &[u8]| (0..5).filter(|m| round.opened_share(update, *m, &round.secrets(*m)).is_some()).count();
    assert!(round.updates.iter().all(|update| opens(update) == 5));
    let mut aggregator = round.scheme.aggregator(&round.keys.server, Some(RoundId::new(ROUND))).unwrap();
    round.updates[..4].iter().for_each(|update| aggregator.add(update).map(drop).unwrap());
    round.ask(aggregator.as_mut(), &[]);
    // Within the round the other sets of the round are to be answered for.
    assert!(round.updates.iter().all(|update| opens(update) == 5));
    let next = round.updates_of(ROUND + 1);
    let mut aggregator = round.scheme.aggregator(&round.keys.server, Some(RoundId::new(ROUND + 1))).unwrap();
    next.iter().for_each(|update| aggregator.add(update).map(drop).unwrap());
    round.ask(aggregator.as_mut(), &[4]);
    // Member 4 was away: its file opens its own share, one of five where four are needed.
    assert!(round.updates.iter().all(|update| opens(update) == 1) && next.iter().all(|update| opens(update) == 5));
    // Nothing of them is anywhere in the files either.
    (0..5).for_each(|member| round.member(member).forget().unwrap());
    assert!(round.updates.iter().chain(&next).all(|update| opens(update) == 0));
    let mut requests = aggregator.requests().unwrap();
    round.member(0).answer(&requests[0].1).unwrap();
    let refused = round.member(4).answer(&requests.pop().unwrap().1).unwrap_err();
    assert!(matches!(refused, Error::PrekeyGone { round, .. } if round == RoundId::new(ROUND + 1)), "{refused}");
    // And it goes on.
    let later = round.updates_of(ROUND + 2);
    let mut aggregator = round.scheme.aggregator(&round.keys.server, Some(RoundId::new(ROUND + 2))).unwrap();
    later.iter().for_each(|update| aggregator.add(update).map(drop).unwrap());
    round.ask(aggregator.as_mut(), &[]);
    aggregator.finish().unwrap();
}

#[test]
fn a_client_seals_to_the_newest_prekeys_only_and_to_enough_of_them() {
    let round = round(params(8), &[0, 1, 2, 3]);
    let state = tempfile::tempdir().unwrap();
    let encryptor = || round.scheme.encryptor(&round.keys.clients[0], Some(state.path())).unwrap();
    let old = round.prekeys();
    round.aggregate(&[]);
    let new = round.prekeys();
    let frames = |of: &[Vec<u8>]| of.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(frames(&old), frames(&new));
    fn take(encryptor: &mut Encryptor, frames: &[Vec<u8>]) -> Result<Vec<Error>, Error> {
        encryptor.take_prekeys(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }
    let (layout, client) = (&round.layout, &round.clients[0]);
    let send = |encryptor: &mut Encryptor, round: u64| {
        let (update, weight) = (update(layout, &client.2), client.1);
        let (round_plan, model, memory, associated_data) = (&[], b"model", &[], &[]);
        encryptor.encrypt(&Request {
            round: RoundId::new(round),
            weight: Weight::new(weight),
            update: &update,
            round_plan,
            model,
            memory,
            associated_data,
        })
    };
    let mut first = encryptor();
    assert!(matches!(send(&mut first, 20), Err(Error::NoPrekeys { known: 0, needed: 4, .. })));
    assert!(matches!(take(&mut first, &new[..3]), Err(Error::NoPrekeys { known: 3, needed: 4, .. })));
    assert!(matches!(send(&mut first, 20), Err(Error::NoPrekeys { known: 3, needed: 4, .. })));
    // An absent member has no prekey. So the client leaves out its share, and the server does not ask the member.
    assert!(take(&mut first, &new[..4]).unwrap().is_empty());
    let lacking = send(&mut first, 20).unwrap();
    let mut aggregator = round.scheme.aggregator(&round.keys.server, Some(RoundId::new(20))).unwrap();
    aggregator.add(&lacking).unwrap();
    // Another process of the client's knows the numbers.
    for error in [take(&mut first, &old), take(&mut encryptor(), &old)].map(|taken| taken.unwrap_err().to_string()) {
        assert!(error.contains("1 members") && error.matches("it is old").count() == 4, "{error}");
    }
    // Damaged, or of others.
    let parsed = wire::parse(&new[0]).unwrap();
    let payload = |at: usize| {
        let mut payload = parsed.payload.to_vec();
        payload[at] ^= 1;
        payload
    };
    for at in [0, 8, parsed.payload.len() - 1] {
        let damaged = [&new[1..], &[parsed.header.frame(&payload(at))]].concat();
        let refused = take(&mut first, &damaged).unwrap();
        assert!(
            matches!(refused.as_slice(), [Error::Signature { party }] if party.get() == 0),
            "byte {at}: {refused:?}"
        );
    }
    for client in [1, 7, 70] {
        let header = Header {
            contributions: vec![Contribution { client: ClientId::new(client), weight: Weight::ONE }],
            ..parsed.header.clone()
        };
        let foreign = [&new[1..], &[header.frame(parsed.payload)]].concat();
        assert_eq!(take(&mut first, &foreign).unwrap().len(), 1);
    }
    // The server takes what was sealed to the prekeys that it gave.
    let given = |frames: &[Vec<u8>]| {
        let mut aggregator = round.scheme.aggregator(&round.keys.server, Some(RoundId::new(20))).unwrap();
        let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        assert!(aggregator.require_committee().unwrap().take_prekeys(&frames).unwrap().is_empty());
        aggregator.add(&lacking).map(drop)
    };
    given(&new[..4]).unwrap();
    assert!(given(&new).unwrap_err().to_string().contains("prekey 0 of member 4"));
    assert!(given(&old).is_err());
}

/// One half of a signature forged, never both: the adversary has all Ed25519 keys or all ML-DSA-65 keys.
#[test]
fn an_update_with_one_forged_half_is_added_by_no_server_and_no_member() {
    let round = round(params(8), &[0, 1, 2, 3]);
    let parsed = wire::parse(&round.updates[3]).unwrap();
    let at = parsed.payload.len() - SIGNATURE_LEN;
    let lattice = SIGNATURE_LEN - 64;
    let (header, request) = request(&round);
    // Another client's: under a key of its own that holds, in the place of one half.
    let own = round.identity(4).sign(Purpose::Update, b"another").unwrap();
    for half in [0..lattice, lattice..SIGNATURE_LEN] {
        let mut payload = parsed.payload.to_vec();
        payload[at..][half.clone()].copy_from_slice(&own[half.clone()]);
        let mut aggregator = round.scheme.aggregator(&round.keys.server, Some(RoundId::new(ROUND))).unwrap();
        let refused = aggregator.add(&parsed.header.frame(&payload)).unwrap_err();
        assert!(matches!(refused, Error::Signature { party } if party.get() == 3), "{refused}");
        let mut request = request.clone();
        let place =
            request.windows(64).position(|bytes| *bytes == parsed.payload[parsed.payload.len() - 64..]).unwrap();
        let place = place - lattice;
        request[place..][half.clone()].copy_from_slice(&own[half]);
        let refused = round.member(0).answer(&header.frame(&request)).unwrap_err();
        assert!(matches!(refused, Error::Signature { party } if party.get() == 3), "{refused}");
    }
    round.member(0).answer(&header.frame(&request)).unwrap();
}

/// Seven members, of whom five must answer and one may lie.
fn seven() -> OneshotParams {
    OneshotParams { members: 7, threshold: 5, ..params(8) }
}

/// Client `id`'s update with a share for each of `members` that is one of another polynomial.
fn misfitting(round: &Round, id: usize, members: &[u32]) -> Vec<u8> {
    let lies: Vec<(usize, Vec<u8>)> = members
        .iter()
        .map(|member| {
            let own = round.opened_share(&round.updates[id], *member, &round.secrets(*member)).unwrap();
            let mut share = own.to_vec();
            // The secret's, for some; and the pad's at random, or a few would often lie on another polynomial.
            share[0] ^= u8::from(member % 2 == 0);
            let pad = share.len() - 2 * TAG_LEN;
            share[pad..pad + 8].iter_mut().zip(rand::random::<[u8; 8]>()).for_each(|(byte, other)| *byte ^= other);
            (*member as usize, sealed_as(round, id, *member, &share))
        })
        .collect();
    resigned(round, id, |shares| lies.iter().for_each(|(m, lie)| shares[round.share_at(*m)].copy_from_slice(lie)))
}

/// The answer of `member` to `request` when the member lies about the combination of the `k`-th client's share.
fn lying(round: &Round, member: u32, request: &[u8], k: usize) -> Vec<u8> {
    let answer = round.member(member).answer(request).unwrap();
    let parsed = wire::parse(&answer).unwrap();
    let each = 12 + TAG_LEN;
    let (said, combined) = parsed.payload.split_at(parsed.payload.len() - each * parsed.header.contributions.len());
    let mut combined = combined.to_vec();
    combined[k * each + 12] ^= 1;
    // `member | sum | digest | signature | keys`.
    let sum = 4..4 + FIELD + TAG_LEN;
    let digest = Sha256::digest(&combined);
    let context = RoundContext::of(round.roster_digest(), &wire::parse(&round.updates[0]).unwrap().header);
    let of = context.answer(&parsed.header.contributions, ClientId::new(member), &said[sum.clone()]);
    let signature = round.identity(member as usize).sign(Purpose::Answer, &[of.as_slice(), &digest].concat()).unwrap();
    let rest = &said[sum.end + 32 + SIGNATURE_LEN..];
    parsed.header.frame(&[&said[..sum.end], &digest, &signature, rest, &combined].concat())
}

#[test]
fn a_client_whose_shares_do_not_fit_is_named_in_the_round() {
    let round = round(seven(), &[0, 1, 2, 3]);
    for (lies, named) in [(vec![], false), (vec![6], false), (vec![0], false), (vec![2, 5], true), (vec![4, 6], true)] {
        let state = tempfile::tempdir().unwrap();
        let mut aggregator = with_lie(&round, &misfitting(&round, 3, &lies));
        let requests = aggregator.requests().unwrap();
        for (k, (member, request)) in requests.iter().enumerate() {
            // A ledger of its own for each try, and the prekeys of all.
            let folder = state.path().join(member.to_string());
            std::fs::create_dir(&folder).unwrap();
            let name = format!("{}-{member}.prekeys", wire::hex(&round.keys.server.tag.key_id));
            std::fs::copy(round.state.path().join(&name), folder.join(&name)).unwrap();
            let member = round.scheme.member(&round.keys.clients[k], Some(&folder)).unwrap();
            aggregator.require_committee().unwrap().answer(&member.answer(request).unwrap()).unwrap();
            // With fewer than seven nothing is known.
            assert_eq!(aggregator.require_committee().unwrap().accused().is_empty(), k < 6 || !named, "{lies:?}, {k}");
        }
        match aggregator.finish() {
            Ok(frame) => assert_eq!(opened(&round.scheme, &round.keys, 0, &frame).unwrap(), round.sums(), "{lies:?}"),
            // Five shares of seven lie on a polynomial whichever they are.
            Err(error) => assert!(named && matches!(error, Error::Committee { answers: 0, needed: 5 }), "{error}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// One member lies, about whichever clients, and clients give false shares to whichever members.
    #[test]
    fn no_honest_client_is_named_whoever_lies(
        liar in 0u32..7, about in subsequence((0..4).collect::<Vec<usize>>(), 0..=1),
        first in subsequence((0..7).collect::<Vec<u32>>(), 0..=3), second in subsequence((0..7).collect::<Vec<u32>>(), 0..=3),
        dead in subsequence((0..7).collect::<Vec<u32>>(), 0..=2),
    ) {
        let round = round(seven(), &[0, 1, 2, 3]);
        let mut aggregator = round.scheme.aggregator(&round.keys.server, Some(RoundId::new(ROUND))).unwrap();
        let lies = [Vec::new(), Vec::new(), first, second];
        for (id, members) in lies.iter().enumerate() {
            aggregator.add(&misfitting(&round, id, members)).unwrap();
        }
        for (member, request) in aggregator.requests().unwrap().iter().filter(|(member, _)| !dead.contains(&member.get())) {
            let answer = match about.first() {
                Some(k) if member.get() == liar => lying(&round, member.get(), request, *k),
                _ => round.member(member.get()).answer(request).unwrap(),
            };
            aggregator.require_committee().unwrap().answer(&answer).unwrap();
        }
        let named = aggregator.require_committee().unwrap().accused();
        prop_assert!(named.iter().all(|client| !lies[client.get() as usize].is_empty()), "{named:?}");
        if dead.is_empty() {
            // More members than may lie, beside the one that does.
            let sure = (0..4u32).filter(|id| lies[*id as usize].iter().filter(|m| **m != liar).count() > 1);
            prop_assert!(sure.into_iter().all(|client| named.contains(&ClientId::new(client))), "{named:?}");
        }
        if let Ok(frame) = aggregator.finish()
            && dead.is_empty()
        {
            prop_assert_eq!(opened(&round.scheme, &round.keys, 0, &frame).unwrap(), round.sums());
        }
    }
}

/// A damaged record is not a prekey of any member. The next change wipes the rest of its secret.
#[test]
fn a_damaged_prekey_is_overwritten_too() {
    let round = round(params(8), &[0, 1, 2, 3]);
    let path = round.state.path().join(format!("{}-0.prekeys", wire::hex(&round.keys.server.tag.key_id)));
    let mut bytes = std::fs::read(&path).unwrap();
    let at = (0..bytes.len()).step_by(128).find(|at| bytes[at + 32..at + 64] != [0; 32]).unwrap();
    let secret = bytes[at + 32..at + 64].to_vec();
    bytes[at + 100] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    round.member(0).forget().unwrap();
    let after = std::fs::read(&path).unwrap();
    assert!(!after.windows(32).any(|window| window == secret));
}
