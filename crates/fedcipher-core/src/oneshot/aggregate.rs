//! The server's side: c0 added, sealed shares kept for their members, the committee's answers collected. No key.

use super::agree::{Agreement, Agreements, Certificate, write_sets};
use super::answer::{Answer, Complaint, read_all, write_all};
use super::roster::{Party, Roster};
use super::sealing::OVERHEAD;
use super::statement::RoundContext;
use super::{Params, Reveal, Setting, signed};
use crate::admission::Admission;
use crate::client::Digest;
use crate::keys::ServerKey;
use crate::mac::Tag;
use crate::rlwe::aggregate::CipherSum;
use crate::scheme::{Aggregator, Progress};
use crate::sign::{Purpose, SIGNATURE_LEN, Signed};
use crate::statement::sha256;
use crate::wire::{self, Contribution, Header, Kind, Place, Reader};
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub struct OneshotAggregator {
    setting: Arc<Setting>,
    roster: Roster,
    digest: [u8; 32],
    admission: Admission,
    sum: CipherSum,
    /// By client.
    shares: BTreeMap<u32, Kept>,
    /// Set when the committee was asked: nobody joins the sum after that.
    asked: Option<Header>,
    agreements: Agreements,
    /// Of enough members, once there are so many.
    agreed: Certificate,
    /// Whether members were asked for their sums.
    requested: bool,
    answers: BTreeMap<u32, Answer>,
    /// Clients, and the members that accuse them.
    accused: BTreeMap<u32, BTreeSet<u32>>,
}

/// The tag of a header whose sum counts in no memory.
const NO_MEMORY: [u8; 16] = [0; 16];

/// What members need of one update.
struct Kept {
    signature: [u8; SIGNATURE_LEN],
    tag: Tag,
    /// The digests that the signature covers.
    signed: Vec<u8>,
    sealed: Vec<Vec<u8>>,
}

impl Kept {
    /// What a client has signed of its update, and its signature.
    fn statement(&self) -> Vec<u8> {
        [self.signature.as_slice(), &self.tag.to_bytes(), &self.signed].concat()
    }
}

/// An update's payload without its end.
struct Body<'a> {
    /// A share a member.
    sealed: Vec<&'a [u8]>,
    ciphertexts: &'a [u8],
}

impl<'a> Body<'a> {
    fn parse(setting: &Setting, body: &'a [u8]) -> Result<Self> {
        let mut r = Reader::new(body);
        let lengths = (0..setting.params.members).map(|m| setting.sharing.share_bytes(m) + OVERHEAD);
        let sealed = lengths.map(|n| r.bytes(n)).collect::<Result<_>>()?;
        Ok(Body { sealed, ciphertexts: r.rest() })
    }

    /// The digests that a client signs.
    fn signed(&self) -> Vec<u8> {
        let digests: Vec<u8> = self.sealed.iter().flat_map(|share| sha256(&[share])).collect();
        signed(&Digest::of(self.ciphertexts), &digests)
    }
}

impl OneshotAggregator {
    pub fn new(setting: Arc<Setting>, roster: Roster, digest: [u8; 32], key: &ServerKey, round: Option<u64>) -> Self {
        let admission = Admission::new(key, setting.params.rules(), round).of_roster(digest);
        let sum = CipherSum::new(Arc::clone(&setting.derived));
        OneshotAggregator {
            setting,
            roster,
            digest,
            admission,
            sum,
            shares: BTreeMap::new(),
            asked: None,
            agreements: Agreements::default(),
            agreed: Certificate::default(),
            requested: false,
            answers: BTreeMap::new(),
            accused: BTreeMap::new(),
        }
    }

    fn member(&self, id: u32) -> Result<&Party> {
        let party = self.roster.get(id).filter(|party| party.roles.member);
        party.ok_or_else(|| Error::frame(format!("party {id} is no member of the committee")))
    }

    fn proposals(&mut self, header: &Header, common: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let Params { corrupt_clients, corrupt_members, .. } = self.setting.params;
        let mut payload = common.to_vec();
        self.shares.values().take(corrupt_clients + 1).for_each(|kept| payload.extend(kept.statement()));
        payload.extend(write_sets(self.agreements.again(corrupt_members)));
        let frame = Header { kind: Kind::Proposal, ..header.clone() }.frame(&payload);
        self.roster.members().map(|member| (member.id, frame.clone())).collect()
    }

    /// Keeps what a member says of a proposal.
    fn agree(&mut self, context: &RoundContext, said: Agreement) -> Result<u32> {
        let (party, member) = (self.member(said.member)?, said.member);
        let message = context.sets(member, &said.digest);
        let (key, signature) = (&party.verify, &said.signature);
        Signed { party: member, key, purpose: Purpose::Sets, message: &message, signature }.check()?;
        self.agreements.keep(said);
        let found = self.agreements.certificate();
        // Once members are asked for their sums, under one certificate, it is too late.
        if !self.requested && found.0.len() >= self.setting.sharing.needed() {
            self.agreed = found;
        }
        Ok(member)
    }

    /// Keeps whom a member accuses, which no proof comes with: see [`Aggregator::accused`].
    fn complained(&mut self, context: &RoundContext, complaint: &Complaint) -> Error {
        let Complaint { member, clients, .. } = complaint;
        match self.member(*member) {
            Err(error) => error,
            Ok(party) if !complaint.is_of(party, context) => Error::Signature { party: *member },
            Ok(_) if !clients.is_sorted_by(|a, b| a < b) || !clients.iter().all(|c| self.shares.contains_key(c)) => {
                Error::frame(format!("member {member} accuses whom it was not asked about"))
            }
            Ok(_) => {
                for client in clients {
                    self.accused.entry(*client).or_default().insert(*member);
                }
                Error::FalseShare { member: *member, clients: clients.clone() }
            }
        }
    }
}

impl Aggregator for OneshotAggregator {
    fn add(&mut self, frame: &[u8]) -> Result<Contribution> {
        if let Some(asked) = &self.asked {
            return Err(Error::Asked { round: asked.round });
        }
        let admitted = self.admission.check_as(frame, |body| Ok(Body::parse(&self.setting, body)?.signed()))?;
        let body = Body::parse(&self.setting, admitted.payload)?;
        self.sum.add(&admitted.layout, Reader::new(body.ciphertexts), admitted.factor)?;
        let sealed = body.sealed.iter().map(|share| share.to_vec()).collect();
        let kept = Kept { signature: *admitted.signature, tag: admitted.tag, signed: admitted.signed.clone(), sealed };
        self.shares.insert(admitted.contribution.client, kept);
        Ok(self.admission.commit(admitted))
    }

    fn requests(&mut self) -> Result<Vec<(u32, Vec<u8>)>> {
        let aggregate = self.admission.aggregate_header()?;
        let common = sha256(&[&aggregate.common()]);
        let header = Header { kind: Kind::Request, layout: Vec::new(), ..aggregate.clone() };
        self.asked = Some(aggregate);
        if header.memory != NO_MEMORY && self.agreed.0.is_empty() {
            return Ok(self.proposals(&header, &common));
        }
        self.requested = true;
        let agreed = self.agreed.write();
        let request = |(place, member): (usize, &Party)| {
            let mut payload = [common.as_slice(), &agreed].concat();
            for kept in self.shares.values() {
                payload.extend(kept.statement());
                payload.extend_from_slice(&kept.sealed[place]);
            }
            (member.id, header.frame(&payload))
        };
        // Who has not agreed does not answer.
        let asked = |member: &Party| self.agreed.0.is_empty() || self.agreed.0.contains_key(&member.id);
        Ok(self.roster.members().enumerate().filter(|(_, member)| asked(member)).map(request).collect())
    }

    fn answer(&mut self, frame: &[u8]) -> Result<u32> {
        let asked = self.asked.as_ref().ok_or_else(|| Error::frame("an answer to what nobody has asked"))?;
        let found = wire::parse(frame)?;
        let kind = found.header.kind;
        if found.header != (Header { kind, layout: Vec::new(), ..asked.clone() }) {
            return Err(Error::frame("it answers for another round, model or set of clients"));
        }
        let context = RoundContext::of(self.digest, asked);
        if kind == Kind::Complaint {
            return Err(self.complained(&context, &Complaint::parse(found.payload)?));
        }
        if kind == Kind::Agreement {
            return self.agree(&context, Agreement::parse(found.payload)?);
        }
        found.header.check_kind(Kind::Answer)?;
        let mut r = Reader::new(found.payload);
        let answer = Answer::read(&self.setting, &mut r)?;
        r.finish()?;
        let party = self.member(answer.member)?;
        if !answer.is_of(party, &context, &asked.contributions) {
            return Err(Error::Signature { party: answer.member });
        }
        let member = answer.member;
        // The first answer stands; a second one of the same sum differs in its randomness only.
        self.answers.entry(member).or_insert(answer);
        Ok(member)
    }

    fn accused(&self) -> Vec<u32> {
        let sure = |members: &BTreeSet<u32>| members.len() > self.setting.params.corrupt_members;
        self.accused.iter().filter(|(_, members)| sure(members)).map(|(client, _)| *client).collect()
    }

    fn agreeing(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.memory != NO_MEMORY) && !self.requested
    }

    fn missing(&self) -> usize {
        if self.agreeing() {
            return self.setting.sharing.needed().saturating_sub(self.agreements.certificate().0.len());
        }
        self.setting.sharing.needed().saturating_sub(self.answers.len())
    }

    fn finish_into(&mut self, place: &mut dyn Place, _progress: &mut Progress<'_>) -> Result<()> {
        let header = self.admission.aggregate_header()?;
        if self.agreeing() || self.missing() > 0 {
            return Err(Error::Committee { answers: self.answers.len(), needed: self.setting.sharing.needed() });
        }
        let answers: Vec<Answer> = std::mem::take(&mut self.answers).into_values().collect();
        let (keys, sum, tag) = (write_all(&answers), self.sum.take()?, self.admission.close().to_bytes());
        let parts: Vec<&[u8]> =
            [&keys[..]].into_iter().chain(sum.iter().map(Vec::as_slice)).chain([&tag[..]]).collect();
        header.build_from(&parts, place)
    }
}

/// `frame`, an aggregate, with the keys for `reader` only: what each of many readers needs.
pub(super) fn addressed(setting: &Setting, frame: &[u8], reader: u32) -> Result<Vec<u8>> {
    let found = wire::parse_kind(frame, Kind::Aggregate)?;
    if setting.params.reveal == Reveal::Server {
        return Ok(frame.to_vec());
    }
    let (payload, tag) = Tag::split(found.payload)?;
    let (answers, length) = read_all(setting, payload)?;
    let answers: Vec<Answer> = answers.into_iter().map(|answer| answer.addressed(reader)).collect();
    let mut out = write_all(&answers);
    out.extend_from_slice(&payload[length..]);
    out.extend_from_slice(&tag.to_bytes());
    Ok(found.header.frame(&out))
}
