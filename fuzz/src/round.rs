//! An honest round of three clients, and the checks on every aggregate that opens after a fuzzer changed frames.

use fedcipher_core::codec::{Layout, Rounding, Sums, Tensor, Update};
use fedcipher_core::committee::Member;
use fedcipher_core::keys::{KeySet, KeyTag};
use fedcipher_core::protocol::FrameDigest;
use fedcipher_core::registry::{self, every_scheme};
use fedcipher_core::scheme::{Aggregator, Expect, Request, Scheme, Variant};
use fedcipher_core::sign::SIGNATURE_LEN;
use fedcipher_core::statement::{RoundContext, Signer, split};
use fedcipher_core::wire::{self, FIXED_LEN};
use fedcipher_core::{ClientId, Epoch, RoundId, Weight};
use std::sync::{Arc, OnceLock};

pub(crate) const NUMBER: RoundId = RoundId::new(9);
const MODEL: &[u8] = b"model";
const COHORT: [u32; 4] = [0, 1, 2, 3];

/// Three of the cohort's four clients have sent an update.
pub struct Round {
    pub scheme: Arc<dyn Scheme>,
    pub layout: Layout,
    pub keys: KeySet,
    pub updates: Vec<Vec<u8>>,
    /// Each client's weight and integers.
    ints: Vec<(Weight, Vec<u32>)>,
    pub aggregate: Vec<u8>,
    /// For schemes in which clients choose coordinates: the sums and counts of the honest aggregate.
    sparse: OnceLock<(Vec<u64>, Vec<u32>)>,
    /// The request to the first member of the committee, if there is a committee; `answer` is the member's answer.
    pub request: Option<(ClientId, Vec<u8>)>,
    pub answer: Option<Vec<u8>>,
    /// The committee's members; `prekeys` holds the prekey of each.
    members: Vec<Box<dyn Member>>,
    pub prekeys: Vec<Vec<u8>>,
}

/// The memory in which sums of the round [`AGREED`] count. The requests of this round are proposals, and it has no
/// aggregate.
const MEMORY: &[u8] = b"\x01memory";

/// The round whose updates count in a memory. Its scheme is the one of [`COMMITTEE`].
pub(crate) const AGREED: &str = "agreed";
/// The variant with a committee from which the targets of members start.
pub(crate) const COMMITTEE: &str = "oneshot-fast";
/// The variant whose clients choose their coordinates.
pub(crate) const SPARSE: &str = "flashe-own-choice";

/// The scheme's specification in key files of the round `name`, which is a variant of the registry or [`AGREED`].
pub fn spec(name: &str) -> String {
    let wanted = if name == AGREED { COMMITTEE } else { name };
    let Some(variant) = every_scheme().find(|variant| variant.name == wanted) else {
        panic!("no variant {name}: see `every_scheme` in the core's registry");
    };
    variant.spec(4, Weight::new(3), None, &[8, 12])
}

/// The round `name`, made once in a process.
pub fn of(name: &str) -> &'static Round {
    type Places = Vec<(&'static str, OnceLock<Round>)>;
    static MADE: OnceLock<Places> = OnceLock::new();
    let names = || every_scheme().map(|variant| variant.name).chain([AGREED]);
    let made = MADE.get_or_init(|| names().map(|name| (name, OnceLock::new())).collect());
    let (_, place) = made.iter().find(|(known, _)| *known == name).unwrap();
    place.get_or_init(|| Round::new(name))
}

/// The rounds of all variants whose sums are additions. A round of the other variants takes seconds, and a server's key
/// has megabytes.
pub fn quick() -> impl Iterator<Item = &'static Round> {
    let adds = |variant: &&Variant| registry::make(&spec(variant.name)).unwrap().workers().is_none();
    every_scheme().filter(adds).map(|variant| of(variant.name))
}

impl Round {
    fn new(name: &str) -> Self {
        let scheme = registry::make(&spec(name)).unwrap();
        let tensor = |(bits, len)| Tensor { dtype: 1, bits, alpha: 1.0, shape: vec![len] };
        let layout = Layout::new(vec![tensor((12, 33)), tensor((8, 50)), tensor((12, 7))]).unwrap();
        let keys = scheme.keygen(&ClientId::list(COHORT), Epoch::new(1)).unwrap();
        let memory = if name == AGREED { MEMORY } else { &[] };
        let members: Vec<_> = keys
            .clients
            .iter()
            .take(scheme.members())
            .map(|key| scheme.require_committee().unwrap().member(key, None).unwrap())
            .collect();
        let prekeys: Vec<Vec<u8>> = members.iter().map(|member| member.prekey().unwrap()).collect();
        let given: Vec<&[u8]> = prekeys.iter().map(Vec::as_slice).collect();
        let (mut updates, mut ints) = (Vec::new(), Vec::new());
        for client in 0..3u32 {
            let values: Vec<f32> =
                (0..layout.elements()).map(|k| ((k as u32 * 7 + client * 13) % 31) as f32 / 15.0 - 1.0).collect();
            let update = Update::new(&layout, layout.split(&values).unwrap(), Rounding::Nearest).unwrap();
            let mut own = vec![0; layout.elements()];
            update.quantise(scheme.values().levels, 0, &mut own).unwrap();
            let weight = Weight::new(u64::from(client) + 1);
            let request = Request {
                round: NUMBER,
                weight,
                update: &update,
                round_plan: &[],
                model: MODEL,
                memory,
                associated_data: &[],
            };
            let mut encryptor = scheme.encryptor(&keys.clients[client as usize], None).unwrap();
            assert!(encryptor.take_prekeys(&given).unwrap().is_empty());
            updates.push(encryptor.encrypt(&request).unwrap());
            ints.push((weight, own));
        }
        let (request, answer, aggregate) = (None, None, Vec::new());
        let sparse = OnceLock::new();
        let mut round =
            Round { scheme, layout, keys, updates, ints, aggregate, sparse, request, answer, members, prekeys };
        // This takes seconds for a scheme that transciphers, but the targets that open aggregates need one.
        let mut aggregator = round.added();
        let requests = aggregator.requests().unwrap();
        for (member, request) in &requests {
            let answer = round.answers(member.get(), request).unwrap();
            aggregator.require_committee().unwrap().answer(&answer).unwrap();
            round.request.get_or_insert((*member, request.clone()));
            round.answer.get_or_insert(answer);
        }
        if aggregator.agreeing() {
            return round;
        }
        round.aggregate = aggregator.finish().unwrap();
        assert!(round.opens(&round.aggregate), "an honest aggregate opens");
        round
    }

    /// An aggregator that has taken the honest updates.
    pub fn added(&self) -> Box<dyn Aggregator> {
        let mut aggregator = self.scheme.aggregator(&self.keys.server, Some(NUMBER)).unwrap();
        for update in &self.updates {
            aggregator.add(update).unwrap();
        }
        aggregator
    }

    /// Signs `frame` by its client if it is an update, because a fuzzer does not guess signatures. Behind that check is
    /// the code that one client of the cohort can reach. Frames of a scheme with a committee stay as they are: too little
    /// of their code is behind the check.
    pub fn signed(&self, frame: Vec<u8>) -> Vec<u8> {
        let Ok(found) = wire::parse_kind(&frame, wire::Kind::Update) else { return frame };
        let [own] = found.header.contributions.as_slice() else { return frame };
        let key = self.keys.clients.iter().find(|key| key.client == own.client);
        let (Some(key), Ok((body, tag, _)), 0) = (key, split::<SIGNATURE_LEN>(found.payload), self.scheme.members())
        else {
            return frame;
        };
        let signer = Signer { key: Arc::new(key.sign.clone()), context: RoundContext::of([0; 32], &found.header) };
        found.header.frame(&[body, &signer.end(*own, tag, &FrameDigest::of(body))].concat())
    }

    /// A member's answer to a request.
    pub fn answers(&self, member: u32, request: &[u8]) -> fedcipher_core::Result<Vec<u8>> {
        self.members[member as usize].answer(request)
    }

    /// True if a client that has opened nothing yet opens `aggregate`. Panics if the opened sum is not the sum of the
    /// complete updates of the clients that the aggregate names.
    pub fn opens(&self, aggregate: &[u8]) -> bool {
        let expect = Expect { round: Some(NUMBER), model: Some(MODEL), memory: None, associated_data: &[] };
        let decryptor = self.scheme.decryptor(&self.keys.clients[3], None).unwrap();
        let Ok(opened) = decryptor.decrypt(aggregate, &expect, Sums::default()) else { return false };
        let (summary, sums) = opened.into_parts();
        if let Some(counts) = summary.counts {
            assert_eq!(summary.header.contributions.len(), 3, "a sparse sum of other clients was opened");
            let opened = (sums.0, counts);
            assert_eq!(self.sparse.get_or_init(|| opened.clone()), &opened, "not the sum of these clients");
            return true;
        }
        let mut expected = vec![0u64; self.layout.elements()];
        for c in &summary.header.contributions {
            let (weight, ints) = &self.ints[c.client.get() as usize];
            assert_eq!(*weight, c.weight, "another weight than client {} has chosen", c.client);
            expected.iter_mut().zip(ints).for_each(|(sum, value)| *sum += weight.get() * u64::from(*value));
        }
        assert_eq!(sums.0, expected, "not the sum of the clients that it names");
        true
    }
}

/// Makes frames from a fuzzer's bytes. The bits of the first byte choose the fields that are filled in correctly.
pub struct Frames<'a> {
    tag: &'a KeyTag,
    model: [u8; 16],
}

/// Bits of the first byte: fill in the key's tag, the model's tag, the payload's length.
const TAG: u8 = 1;
const MODEL_TAG: u8 = 2;
const LENGTH: u8 = 4;
/// All bits, for seeds.
const ALL: u8 = TAG | MODEL_TAG | LENGTH;

impl<'a> Frames<'a> {
    pub fn of(round: &'a Round) -> Self {
        Frames { tag: &round.keys.server.tag, model: wire::parse(&round.updates[0]).unwrap().header.model }
    }

    /// The frame made from `data`, always with a right checksum.
    pub fn frame(&self, data: &[u8]) -> Vec<u8> {
        let Some((how, rest)) = data.split_first() else { return Vec::new() };
        let mut frame = rest.to_vec();
        if frame.len() >= FIXED_LEN {
            if how & TAG != 0 {
                frame[8..24].copy_from_slice(&self.tag.scheme);
                frame[24..40].copy_from_slice(&self.tag.params);
                frame[40..56].copy_from_slice(&self.tag.key_id);
                frame[56..64].copy_from_slice(&self.tag.epoch.to_le_bytes());
            }
            if how & MODEL_TAG != 0 {
                frame[80..96].copy_from_slice(&self.model);
            }
            if how & LENGTH != 0
                && let Ok(head) = wire::head_len(&frame)
            {
                let payload = frame.len().saturating_sub(head) as u64;
                frame[120..128].copy_from_slice(&payload.to_le_bytes());
            }
        }
        wire::append_checksum(frame)
    }

    /// `frame` as the bytes that [`Self::frame`] makes it of.
    pub fn seed(frame: &[u8]) -> Vec<u8> {
        [&[ALL], &frame[..frame.len() - wire::CRC_LEN]].concat()
    }
}
