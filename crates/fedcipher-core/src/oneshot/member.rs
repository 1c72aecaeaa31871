//! A committee member: it adds the shares of a set of clients. It answers for each client once a round, in sets that
//! keep the rule of their memory.

use super::agree::{Agreement, Certificate, read_sets};
use super::answer::{Accused, Answer, Complaint};
use super::prekeys::Prekeys;
use super::sealed_share::SealedShare;
use super::sealing::HpkeSecretKey;
use super::sharing::{Share, Shares};
use super::statement::{RoundContext, share_info};
use super::{OneshotParams, RosterSeat, Setting};
use crate::admission::check_weight;
use crate::committee::Member;
use crate::keys::{ClientKey, KeyTag};
use crate::ledger::{OpenedLedger, Sum};
use crate::mac::{TAG_LEN, Tag};
use crate::sign::Purpose;
use crate::sign::hybrid::{SIGNATURE_LEN, Signed, refused};
use crate::wire::{self, Contribution, Frame, Header, Kind, Reader};
use crate::{ClientId, Error, Result, RoundId};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub struct CommitteeMember {
    setting: Arc<Setting>,
    place: RosterSeat,
    tag: KeyTag,
    own: ClientId,
    /// The member's index in the committee.
    index: usize,
    answered: OpenedLedger,
    prekeys: Prekeys,
}

/// The sum of the shares and the combination of each; or the clients with invalid shares.
type Added = std::result::Result<(Shares, Vec<u8>), Vec<Accused>>;

/// A request whose client signatures are verified.
struct Checked<'a> {
    context: RoundContext,
    agreed: Certificate,
    given: Vec<Given<'a>>,
}

/// One client in a request.
struct Asked<'a> {
    of: Contribution,
    signature: [u8; SIGNATURE_LEN],
    tag: Tag,
    /// The digest of its ciphertexts, then one of each member's share.
    signed: &'a [u8],
}

/// A client, and its encrypted share for this member.
struct Given<'a> {
    asked: Asked<'a>,
    share: SealedShare<'a>,
}

impl<'a> Asked<'a> {
    /// Reads the content that a client has signed.
    fn read(of: Contribution, members: usize, r: &mut Reader<'a>) -> Result<Self> {
        let (signature, tag) = (r.array()?, Tag::parse(r.array::<TAG_LEN>()?)?);
        Ok(Asked { of, signature, tag, signed: r.bytes(32 * (1 + members))? })
    }
}

/// The tag and the signed content of each client.
fn signed<'a>(given: &'a [Given<'a>]) -> impl Iterator<Item = (Tag, &'a [u8])> {
    given.iter().map(|given| (given.asked.tag, given.asked.signed))
}

impl CommitteeMember {
    pub fn new(setting: Arc<Setting>, place: RosterSeat, key: &ClientKey, state: Option<&Path>) -> Result<Self> {
        place.check_role(key.client, "member", |roles| roles.member)?;
        let index = place.roster.members().take_while(|member| member.id != key.client).count();
        let answered = place.as_holder(key, &setting, |holder| OpenedLedger::of_answers(holder, state))?;
        let prekeys = Prekeys::open(key, setting.params.life, state)?;
        Ok(CommitteeMember { setting, place, tag: key.tag.clone(), own: key.client, index, answered, prekeys })
    }

    fn check_header(&self, header: &Header) -> Result<()> {
        let bounds = self.setting.params.bounds;
        self.tag.check(header)?;
        bounds.check_contributions(header.contributions.len())?;
        if header.contributions.len() as u64 > bounds.clients || !header.layout.is_empty() {
            return Err(Error::frame(format!("{} clients are more than the bound", header.contributions.len())));
        }
        Ok(())
    }

    /// Checks everything about a request that needs neither a secret nor the memory.
    fn check<'a>(&self, header: &Header, payload: &'a [u8]) -> Result<Checked<'a>> {
        self.check_header(header)?;
        let mut r = Reader::new(payload);
        let context = RoundContext::given(self.place.digest, header, r.array()?);
        let members = self.setting.params.members;
        let agreed = Certificate::read(&mut r, members)?;
        let share = self.setting.sharing.share_bytes(self.index);
        let mut given = Vec::with_capacity(header.contributions.len());
        for of in &header.contributions {
            let asked = Asked::read(*of, members, &mut r)?;
            given.push(Given { asked, share: SealedShare::read(&mut r, share)? });
        }
        r.finish()?;
        given.par_iter().try_for_each(|given| self.check_client(given))?;
        self.check_signatures(&context, given.iter().map(|given| &given.asked))?;
        Ok(Checked { context, agreed, given })
    }

    /// Fails if enough members have not agreed on the set of a memory.
    fn check_agreed(&self, sum: &Sum, context: &RoundContext, agreed: &Certificate) -> Result<()> {
        if !sum.has_memory() {
            return Ok(());
        }
        let needed = self.setting.sharing.needed();
        let groups = self.answered.agreed(sum)?.ok_or(Error::Committee { answers: 0, needed })?;
        agreed.check(&self.place.roster, context, &groups, needed)
    }

    /// The answer to a proposal. Some of its clients must have signed an update of this round and memory, so that at
    /// least one of them is honest. Otherwise a holder of the root could fill the store with unused memories.
    fn agree(&self, header: &Header, payload: &[u8]) -> Result<Vec<u8>> {
        self.check_header(header)?;
        let mut r = Reader::new(payload);
        let context = RoundContext::given(self.place.digest, header, r.array()?);
        let OneshotParams { members, corrupt_clients, .. } = self.setting.params;
        let some = header.contributions.iter().take(corrupt_clients + 1);
        let signed = some.map(|of| Asked::read(*of, members, &mut r)).collect::<Result<Vec<_>>>()?;
        let others = read_sets(&mut r)?;
        r.finish()?;
        self.check_signatures(&context, signed.iter())?;
        let sum = self.answered.sum(header)?;
        if !sum.has_memory() {
            return Err(Error::frame("a proposal for a sum that counts in no memory"));
        }
        let groups = self.answered.agree(&sum, others)?;
        let sign = |message: &[u8]| self.place.identity.sign(Purpose::Sets, message);
        let minimum = self.setting.params.bounds.min_contributions;
        let said = Agreement::make(self.own, &context, &groups, minimum, sign)?;
        Ok(Header { kind: Kind::Agreement, ..header.clone() }.frame(&said.to_bytes()))
    }

    fn check_client(&self, Given { asked, share }: &Given<'_>) -> Result<()> {
        let client = asked.of.client;
        check_weight(client, asked.of.weight, self.setting.params.bounds.max_weight)?;
        let own = &asked.signed[32 * (1 + self.index)..32 * (2 + self.index)];
        if own == share.digest() { Ok(()) } else { Err(Error::Signature { party: client }) }
    }

    /// Checks all clients' signatures in parallel.
    fn check_signatures<'a>(
        &self,
        context: &RoundContext,
        asked: impl Iterator<Item = &'a Asked<'a>> + Clone,
    ) -> Result<()> {
        let messages: Vec<_> = asked.clone().map(|asked| context.update(asked.of, asked.tag, asked.signed)).collect();
        let mut all = Vec::with_capacity(messages.len());
        for (asked, message) in asked.zip(&messages) {
            let party = asked.of.client;
            let found = self.place.roster.get(party).filter(|found| found.roles.client);
            let key = &found.ok_or(Error::UnknownClient { client: party })?.signing;
            all.push(Signed { party, key, purpose: Purpose::Update, message, signature: &asked.signature });
        }
        match refused(&all)?.first() {
            Some(party) => Err(Error::Signature { party: *party }),
            None => Ok(()),
        }
    }

    /// The secrets of the prekeys that the clients used. Fails if a client's share is encrypted to no prekey.
    fn secrets(&self, round: RoundId, given: &[Given<'_>]) -> Result<BTreeMap<u64, HpkeSecretKey>> {
        let secrets = self.prekeys.serve(round, &given.iter().map(|given| given.share.number).collect())?;
        let gone = given.iter().filter(|given| !secrets.contains_key(&given.share.number));
        let gone: Vec<ClientId> = gone.map(|given| given.asked.of.client).collect();
        if gone.is_empty() { Ok(secrets) } else { Err(Error::PrekeyGone { round, clients: gone }) }
    }

    /// Opens a client's share; or the accusation, with its proof.
    fn opened(
        &self,
        (context, round): (&RoundContext, RoundId),
        secrets: &BTreeMap<u64, HpkeSecretKey>,
        Given { asked, share }: &Given<'_>,
    ) -> std::result::Result<Share, Accused> {
        let client = asked.of.client;
        let info = share_info(&self.place.digest, round, client, self.own, share.number);
        let x = secrets.get(&share.number).and_then(|secret| share.exported(secret, &info));
        let Some(x) = x else { return Err(Accused { client, shown: None }) };
        let ciphertexts = asked.signed.first_chunk().copied().unwrap_or_default();
        let opened = share.open(&x, &context.share_data(asked.of, asked.tag, &ciphertexts));
        match opened.map(|share| self.setting.sharing.share(self.index, &share)) {
            Some(Ok(share)) => Ok(share),
            _ => Err(Accused { client, shown: Some(x) }),
        }
    }

    /// The sum of the shares and the combination of each; or the clients that have signed an invalid share.
    fn sum(&self, header: &Header, context: &RoundContext, given: &[Given<'_>]) -> Result<Added> {
        let (sharing, secrets) = (&self.setting.sharing, self.secrets(header.round, given)?);
        let empty = || (sharing.none(), Vec::new());
        let add = |(mut sum, mut said): (Shares, Vec<_>), given: &Given<'_>| {
            let Asked { of, tag, signed, .. } = given.asked;
            let coefficients = sharing.coefficients(&context.combination_seed(of, tag, signed))?;
            said.push(self.opened((context, header.round), &secrets, given).map(|share| {
                sharing.add(&mut sum, &share);
                sharing.combination_to_bytes(&sharing.combine(&share, &coefficients))
            }));
            Ok((sum, said))
        };
        let join = |(mut a, mut said): (Shares, Vec<_>), (b, more): (Shares, Vec<_>)| {
            sharing.merge(&mut a, &b);
            said.extend(more);
            Ok((a, said))
        };
        let (sum, said) = given.par_iter().try_fold(empty, add).try_reduce(empty, join)?;
        let (combined, wrong): (Vec<_>, Vec<_>) = said.into_iter().partition(std::result::Result::is_ok);
        let wrong: Vec<Accused> = wrong.into_iter().filter_map(std::result::Result::err).collect();
        Ok(if wrong.is_empty() { Ok((sum, combined.into_iter().flatten().flatten().collect())) } else { Err(wrong) })
    }
}

impl Member for CommitteeMember {
    fn answer(&self, request: &[u8]) -> Result<Vec<u8>> {
        let Frame { header, payload } = wire::parse(request)?;
        if header.kind == Kind::Proposal {
            return self.agree(&header, payload);
        }
        header.check_kind(Kind::Request)?;
        let Checked { context, agreed, given } = self.check(&header, payload)?;
        // The digest covers the clients' signed content only: members' signatures under the same groups differ each
        // time.
        let (set, digest) = (self.answered.sum(&header)?, context.request(&header.contributions, signed(&given)));
        if let Some(answer) = self.answered.answered(&set, &digest)? {
            return Ok(answer);
        }
        self.check_agreed(&set, &context, &agreed)?;
        let (sum, combined) = match self.sum(&header, &context, &given)? {
            Ok(made) => made,
            Err(wrong) => {
                let complaint = Complaint::make(&self.place, self.own, &context, wrong)?;
                return Ok(Header { kind: Kind::Complaint, ..header }.frame(&complaint.to_bytes()));
            }
        };
        let of = &header.contributions;
        let answer = Answer::make(&self.setting, &self.place, self.own, &context, of, &sum, &combined)?;
        let mut out = Vec::new();
        answer.write(&mut out);
        out.extend(combined);
        // Recorded on disk before the answer leaves. The same request then gets the same bytes, and another request
        // with the same clients fails.
        self.answered.answer(&set, &digest, Header { kind: Kind::Answer, ..header }.frame(&out))
    }

    fn prekey(&self) -> Result<Vec<u8>> {
        self.prekeys.publish(&self.tag, &self.place.digest, self.own, &self.place.identity)
    }

    fn expire(&self) -> Result<()> {
        self.prekeys.expire()
    }

    fn forget(&self) -> Result<()> {
        self.prekeys.forget()
    }
}
