//! The server's side: adds c0, keeps the encrypted shares for their members, and collects the committee's answers. It
//! has no secret key.

use super::agree::{Agreement, Agreements, Certificate, write_sets};
use super::answer::{Accused, Answer, Complaint, read_all, write_all};
use super::prekeys::Published;
use super::roster::{Roster, RosterEntry};
use super::sealed_share::{NO_SHARE, SealedShare};
use super::sharing::Combination;
use super::statement::RoundContext;
use super::{OneshotParams, Reveal, Setting, signed};
use crate::admission::{Admission, Claim};
use crate::codec::Layout;
use crate::committee::CommitteeRound;
use crate::keys::{KeyTag, ServerKey};
use crate::mac::Tag;
use crate::protocol::FrameDigest;
use crate::rlwe::aggregate::CipherSum;
use crate::rlwe::params::Block;
use crate::scheme::{Aggregator, Progress};
use crate::sign::Purpose;
use crate::sign::hybrid::{SIGNATURE_LEN, Signed};
use crate::statement::sha256;
use crate::wire::{self, Contribution, FrameBuffer, Header, Kind, Reader};
use crate::{ClientId, Error, Result, RoundId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zeroize::Zeroizing;

pub struct OneshotAggregator {
    setting: Arc<Setting>,
    tag: KeyTag,
    roster: Roster,
    digest: [u8; 32],
    admission: Admission,
    /// The number of the prekey that clients were given, by member; `None` if this is unknown.
    given: Option<BTreeMap<ClientId, u64>>,
    sum: CipherSum,
    /// The shares by client.
    shares: BTreeMap<ClientId, Kept>,
    /// The header of the requests once the committee was asked. No client joins the sum after that.
    asked: Option<Header>,
    agreements: Agreements,
    /// The agreements of enough members, once there are enough.
    agreed: Certificate,
    /// Whether members were asked for their sums.
    requested: bool,
    /// The answers by member, with the combination of each client's share.
    answers: BTreeMap<ClientId, (Answer, Vec<Combination>)>,
    /// The result of the combinations so far.
    judged: Judged,
    /// The members that accuse each client without proof.
    accused: BTreeMap<ClientId, BTreeSet<ClientId>>,
    /// Clients with an invalid share, as a member has proven.
    proven: BTreeSet<ClientId>,
}

/// The tag of a header whose sum counts in no memory.
const NO_MEMORY: [u8; 16] = [0; 16];

/// The part of one update that members need.
struct Kept {
    own: Contribution,
    signature: [u8; SIGNATURE_LEN],
    tag: Tag,
    /// The digests that the signature covers.
    signed: Vec<u8>,
    sealed: Vec<Vec<u8>>,
}

impl Kept {
    /// The content that a client has signed of its update, and the signature.
    fn statement(&self) -> Vec<u8> {
        [self.signature.as_slice(), &self.tag.to_bytes(), &self.signed].concat()
    }
}

/// The findings from the combinations of shares.
#[derive(Debug, Default)]
struct Judged {
    /// Clients whose shares are consistent for too few members, whichever members lie.
    liars: BTreeSet<ClientId>,
    /// Members whose shares of some client are inconsistent with the others'. The client or the member may be at fault.
    odd: BTreeSet<ClientId>,
    /// Whether some client's shares are consistent for no member.
    spoilt: bool,
}

/// An update's payload without tag and signature.
struct Body<'a> {
    ciphertexts: &'a [u8],
    /// One share per member.
    sealed: Vec<SealedShare<'a>>,
    /// The digests that the client signs.
    signed: Vec<u8>,
}

impl<'a> Body<'a> {
    fn parse(setting: &Setting, layout: &Layout, body: &'a [u8]) -> Result<Self> {
        let mut r = Reader::new(body);
        let ciphertexts = r.bytes(setting.derived.shape(layout)?.iter().map(Block::up_bytes).sum())?;
        let share = |m| SealedShare::read(&mut r, setting.sharing.share_bytes(m));
        let sealed = (0..setting.params.members).map(share).collect::<Result<Vec<_>>>()?;
        r.finish()?;
        let digests: Vec<u8> = sealed.iter().flat_map(SealedShare::digest).collect();
        let signed = signed(&FrameDigest::of(ciphertexts), &digests);
        Ok(Body { ciphertexts, sealed, signed })
    }
}

impl OneshotAggregator {
    pub fn new(
        setting: Arc<Setting>,
        roster: Roster,
        digest: [u8; 32],
        key: &ServerKey,
        round: Option<RoundId>,
    ) -> Self {
        let admission = Admission::new(key, setting.params.rules(), round).of_roster(digest);
        let sum = CipherSum::new(Arc::clone(&setting.derived));
        OneshotAggregator {
            setting,
            tag: key.tag.clone(),
            roster,
            digest,
            admission,
            given: None,
            sum,
            shares: BTreeMap::new(),
            asked: None,
            agreements: Agreements::default(),
            agreed: Certificate::default(),
            requested: false,
            answers: BTreeMap::new(),
            judged: Judged::default(),
            accused: BTreeMap::new(),
            proven: BTreeSet::new(),
        }
    }

    fn member(&self, id: ClientId) -> Result<&RosterEntry> {
        let party = self.roster.get(id).filter(|party| party.roles.member);
        party.ok_or_else(|| Error::frame(format!("party {id} is not a member of the committee")))
    }

    fn proposals(&mut self, header: &Header, common: &[u8]) -> Vec<(ClientId, Vec<u8>)> {
        let OneshotParams { corrupt_clients, corrupt_members, .. } = self.setting.params;
        let mut payload = common.to_vec();
        self.shares.values().take(corrupt_clients + 1).for_each(|kept| payload.extend(kept.statement()));
        payload.extend(write_sets(self.agreements.again(corrupt_members)));
        let frame = Header { kind: Kind::Proposal, ..header.clone() }.frame(&payload);
        self.roster.members().map(|member| (member.id, frame.clone())).collect()
    }

    /// Takes a member's agreement to a proposal.
    fn agree(&mut self, context: &RoundContext, said: Agreement) -> Result<ClientId> {
        let (party, member) = (self.member(said.member)?, said.member);
        let message = context.sets(member, &said.digest);
        let (key, signature) = (&party.signing, &said.signature);
        Signed { party: member, key, purpose: Purpose::Sets, message: &message, signature }.check()?;
        self.agreements.keep(said);
        let found = self.agreements.certificate();
        // Members are asked for their sums under one certificate. After that, further agreements are too late.
        if !self.requested && found.0.len() >= self.setting.sharing.needed() {
            self.agreed = found;
        }
        Ok(member)
    }

    /// Records a member's accusation without proof: see [`Aggregator::accused`].
    fn complained(&mut self, context: &RoundContext, complaint: &Complaint) -> Error {
        let Complaint { member, clients, .. } = complaint;
        match self.member(*member) {
            Err(error) => error,
            Ok(party) if !complaint.is_of(party, context) => Error::Signature { party: *member },
            Ok(_) if !clients.is_sorted_by(|a, b| a.client < b.client) => {
                Error::frame(format!("member {member} accuses a client twice, or out of order"))
            }
            Ok(_) => {
                match clients.iter().map(|accused| self.judge(context, *member, accused)).collect::<Result<Vec<_>>>() {
                    Err(error) => error,
                    Ok(proven) => {
                        for (Accused { client, .. }, proven) in clients.iter().zip(proven) {
                            self.accused.entry(*client).or_default().insert(*member);
                            self.proven.extend(proven.then_some(*client));
                        }
                        Error::FalseShare { member: *member, clients: clients.iter().map(|a| a.client).collect() }
                    }
                }
            }
        }
    }

    /// Whether `member` proves that a client sent it an invalid share. Fails if the share is valid; the revealed secret
    /// lets anyone check this.
    fn judge(&self, context: &RoundContext, member: ClientId, accused: &Accused) -> Result<bool> {
        let of = |(place, party): (usize, &RosterEntry)| (party.id == member).then_some(place);
        let place = self.roster.members().enumerate().find_map(of);
        let (Some(place), Some(kept)) = (place, self.shares.get(&accused.client)) else {
            return Err(Error::frame(format!("member {member} accuses whom it was not asked about")));
        };
        let share = SealedShare::read(&mut Reader::new(&kept.sealed[place]), self.setting.sharing.share_bytes(place))?;
        let Some(x) = accused.shown.as_ref().filter(|x| share.is_of(x)) else { return Ok(false) };
        let ciphertexts = kept.signed.first_chunk().copied().unwrap_or_default();
        let opened = share.open(x, &context.share_data(kept.own, kept.tag, &ciphertexts));
        let good = |share: &Zeroizing<Vec<u8>>| self.setting.sharing.share(place, share).is_ok();
        if opened.as_ref().is_some_and(good) {
            return Err(Error::frame(format!("member {member} accuses client {} of a good share", accused.client)));
        }
        Ok(true)
    }

    /// The body of an update whose signature and shares are checked.
    fn checked<'a>(
        &self,
        claim: &Claim<'a, SIGNATURE_LEN>,
        layout: &Layout,
    ) -> Result<(Body<'a>, [u8; SIGNATURE_LEN])> {
        let body = Body::parse(&self.setting, layout, claim.body)?;
        let message = claim.context.update(claim.own, claim.tag, &body.signed);
        let (party, signature) = (claim.own.client, claim.signature);
        let key = &self.roster.get(party).ok_or(Error::UnknownClient { client: party })?.signing;
        Signed { party, key, purpose: Purpose::Update, message: &message, signature }.check()?;
        self.check_given(party, &body.sealed)?;
        Ok((body, *signature))
    }

    fn combinations(&self, bytes: &[u8]) -> Result<Vec<Combination>> {
        let (sharing, count) = (&self.setting.sharing, self.shares.len());
        if bytes.len() != count * sharing.combination_bytes() {
            return Err(Error::frame(format!("combinations of other shares than those of {count} clients")));
        }
        bytes.chunks(sharing.combination_bytes()).map(|bytes| sharing.parse_combination(bytes)).collect()
    }

    /// Finds inconsistent shares, once so many members have answered that the possible liars can be found. With fewer
    /// answers it finds nothing.
    fn judge_shares(&self) -> Judged {
        let (sharing, most) = (&self.setting.sharing, self.setting.params.corrupt_members);
        let mut judged = Judged::default();
        let found = self.answers.len().saturating_sub(sharing.needed()) / 2;
        if found < most {
            return judged;
        }
        let there = |(_, member): &(usize, &RosterEntry)| self.answers.contains_key(&member.id);
        let (places, ids): (Vec<usize>, Vec<ClientId>) =
            self.roster.members().enumerate().filter(there).map(|(place, member)| (place, member.id)).unzip();
        for (k, client) in self.shares.keys().enumerate() {
            let said: Vec<&Combination> = ids.iter().map(|id| &self.answers[id].1[k]).collect();
            let odd = sharing.disagreeing_shares(&places, &said, found);
            // At most `most` members lie. If more shares are inconsistent, the client gave an honest member a wrong
            // share.
            if odd.as_ref().is_none_or(|odd| odd.len() > most) {
                judged.liars.insert(*client);
            }
            judged.spoilt |= odd.is_none();
            let id = |place: &usize| places.iter().position(|other| other == place).map(|at| ids[at]);
            judged.odd.extend(odd.iter().flatten().filter_map(id));
        }
        judged
    }

    /// The number of consistent answers, as far as combinations show.
    fn fitting(&self) -> usize {
        if self.judged.spoilt {
            return 0;
        }
        self.answers.keys().filter(|member| !self.judged.odd.contains(member)).count()
    }

    /// Fails for shares that were encrypted to other prekeys than clients were given.
    fn check_given(&self, client: ClientId, sealed: &[SealedShare<'_>]) -> Result<()> {
        let Some(given) = &self.given else { return Ok(()) };
        let other = |(member, share): &(&RosterEntry, &SealedShare<'_>)| {
            given.get(&member.id).copied().unwrap_or_default() != share.number
        };
        match self.roster.members().zip(sealed).find(other) {
            Some((member, share)) => Err(Error::frame(format!(
                "client {client} has sealed its share to prekey {} of member {}, which is not the one that it was given",
                share.number, member.id
            ))),
            None => Ok(()),
        }
    }
}

impl Aggregator for OneshotAggregator {
    fn add(&mut self, frame: &[u8]) -> Result<Contribution> {
        if let Some(asked) = &self.asked {
            return Err(Error::Asked { round: asked.round });
        }
        let (admitted, (body, signature)) =
            self.admission.check_as(frame, |claim, layout| self.checked(claim, layout))?;
        self.sum.add(&admitted.layout, Reader::new(body.ciphertexts), admitted.factor)?;
        let sealed = body.sealed.iter().map(|share| share.bytes.to_vec()).collect();
        let kept = Kept { own: admitted.contribution, signature, tag: admitted.tag, signed: body.signed, sealed };
        self.shares.insert(admitted.contribution.client, kept);
        Ok(self.admission.commit(admitted))
    }

    fn committee(&mut self) -> Option<&mut dyn CommitteeRound> {
        Some(self)
    }

    fn finish_into(&mut self, place: &mut dyn FrameBuffer, _progress: &mut Progress<'_>) -> Result<()> {
        let header = self.admission.aggregate_header()?;
        if self.agreeing() || self.missing() > 0 {
            return Err(Error::Committee { answers: self.fitting(), needed: self.setting.sharing.needed() });
        }
        let odd = std::mem::take(&mut self.judged.odd);
        let fits = |(member, (answer, _)): (ClientId, (Answer, _))| (!odd.contains(&member)).then_some(answer);
        let answers: Vec<Answer> = std::mem::take(&mut self.answers).into_iter().filter_map(fits).collect();
        let (keys, sum, tag) = (write_all(&answers), self.sum.take()?, self.admission.close().to_bytes());
        let parts: Vec<&[u8]> =
            [&keys[..]].into_iter().chain(sum.iter().map(Vec::as_slice)).chain([&tag[..]]).collect();
        header.build_from(&parts, place)
    }
}

impl CommitteeRound for OneshotAggregator {
    fn requests(&mut self) -> Result<Vec<(ClientId, Vec<u8>)>> {
        let aggregate = self.admission.aggregate_header()?;
        let common = sha256(&[&aggregate.common()]);
        let header = Header { kind: Kind::Request, layout: Vec::new(), ..aggregate.clone() };
        self.asked = Some(aggregate);
        if header.memory != NO_MEMORY && self.agreed.0.is_empty() {
            return Ok(self.proposals(&header, &common));
        }
        self.requested = true;
        let agreed = self.agreed.write();
        let request = |(place, member): (usize, &RosterEntry)| {
            let mut payload = [common.as_slice(), &agreed].concat();
            for kept in self.shares.values() {
                payload.extend(kept.statement());
                payload.extend_from_slice(&kept.sealed[place]);
            }
            (member.id, header.frame(&payload))
        };
        // Members that have not agreed do not answer, and members without a share cannot.
        let asked = |(place, member): &(usize, &RosterEntry)| {
            (self.agreed.0.is_empty() || self.agreed.0.contains_key(&member.id))
                && self.shares.values().all(|kept| kept.sealed[*place].len() > NO_SHARE.len())
        };
        Ok(self.roster.members().enumerate().filter(asked).map(request).collect())
    }

    fn answer(&mut self, frame: &[u8]) -> Result<ClientId> {
        let asked = self.asked.as_ref().ok_or_else(|| Error::frame("an answer without a request"))?;
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
        let combined = r.rest();
        if sha256(&[combined]) != answer.combined {
            return Err(Error::frame("the combinations of shares are not those that the member has signed"));
        }
        let party = self.member(answer.member)?;
        if !answer.is_of(party, &context, &asked.contributions) {
            return Err(Error::Signature { party: answer.member });
        }
        let combined = self.combinations(combined)?;
        let member = answer.member;
        // The first answer stands. A second one for the same sum differs only in its randomness.
        self.answers.entry(member).or_insert((answer, combined));
        self.judged = self.judge_shares();
        Ok(member)
    }

    fn accused(&self) -> Vec<ClientId> {
        let sure = |members: &BTreeSet<ClientId>| members.len() > self.setting.params.corrupt_members;
        let many = self.accused.iter().filter(|(_, members)| sure(members)).map(|(client, _)| *client);
        many.chain(self.proven.union(&self.judged.liars).copied()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn take_prekeys(&mut self, frames: &[&[u8]]) -> Result<Vec<Error>> {
        let (mut given, mut refused) = (BTreeMap::new(), Vec::new());
        for read in Published::read_all(frames, &self.tag, &self.roster, &self.digest) {
            match read {
                Ok(Published { member, number, .. }) => {
                    given.insert(member, number);
                }
                Err(error) => refused.push(error),
            }
        }
        self.given = Some(given);
        Ok(refused)
    }

    fn agreeing(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.memory != NO_MEMORY) && !self.requested
    }

    fn missing(&self) -> usize {
        if self.agreeing() {
            return self.setting.sharing.needed().saturating_sub(self.agreements.certificate().0.len());
        }
        self.setting.sharing.needed().saturating_sub(self.fitting())
    }
}

/// The aggregate `frame`, with only the keys that `reader` needs.
pub(super) fn for_reader(setting: &Setting, frame: &[u8], reader: ClientId) -> Result<Vec<u8>> {
    let found = wire::parse_kind(frame, Kind::Aggregate)?;
    if setting.params.reveal == Reveal::Server {
        return Ok(frame.to_vec());
    }
    let (payload, tag) = Tag::split(found.payload)?;
    let (answers, length) = read_all(setting, payload)?;
    let answers: Vec<Answer> = answers.into_iter().map(|answer| answer.for_reader(reader)).collect();
    let mut out = write_all(&answers);
    out.extend_from_slice(&payload[length..]);
    out.extend_from_slice(&tag.to_bytes());
    Ok(found.header.frame(&out))
}
