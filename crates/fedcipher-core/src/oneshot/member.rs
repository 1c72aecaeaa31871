//! A member of the committee: adds the shares of a set of clients, and answers for each client once a round, in sets that
//! keep to the rule of their memory.

use super::agree::{Agreement, Certificate, read_sets};
use super::answer::{Answer, Complaint};
use super::sealing::OVERHEAD;
use super::sharing::Shares;
use super::statement::{RoundContext, share_info};
use super::{Params, Place, Setting};
use crate::admission::check_weight;
use crate::client::Digest;
use crate::keys::{ClientKey, KeyTag};
use crate::ledger::{Openings, Sum};
use crate::mac::{TAG_LEN, Tag};
use crate::scheme::Member;
use crate::sign::{Purpose, SIGNATURE_LEN, Signed, refused};
use crate::statement::sha256;
use crate::wire::{self, Contribution, Frame, Header, Kind, Reader};
use crate::{Error, Result};
use rayon::prelude::*;
use std::path::Path;
use std::sync::Arc;

pub struct CommitteeMember {
    setting: Arc<Setting>,
    place: Place,
    tag: KeyTag,
    own: u32,
    /// Own place in the committee.
    index: usize,
    answered: Openings,
}

/// A request whose clients have signed what it says of them.
struct Checked<'a> {
    context: RoundContext,
    agreed: Certificate,
    asked: Vec<Asked<'a>>,
}

/// One client in a request.
struct Asked<'a> {
    of: Contribution,
    signature: [u8; SIGNATURE_LEN],
    tag: Tag,
    /// The digest of its ciphertexts, then one of each member's share.
    signed: &'a [u8],
    sealed: &'a [u8],
}

impl<'a> Asked<'a> {
    /// What a client has signed; its share, which a proposal lacks, comes behind.
    fn read(of: Contribution, members: usize, r: &mut Reader<'a>) -> Result<Self> {
        let (signature, tag) = (r.array()?, Tag::parse(r.array::<TAG_LEN>()?)?);
        Ok(Asked { of, signature, tag, signed: r.bytes(32 * (1 + members))?, sealed: &[] })
    }
}

impl CommitteeMember {
    pub fn new(setting: Arc<Setting>, place: Place, key: &ClientKey, state: Option<&Path>) -> Result<Self> {
        place.check_role(key.client, "member", |roles| roles.member)?;
        let index = place.roster.members().take_while(|member| member.id != key.client).count();
        let answered = place.as_holder(key, &setting, |holder| Openings::of_answers(holder, state))?;
        Ok(CommitteeMember { setting, place, tag: key.tag.clone(), own: key.client, index, answered })
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

    /// Everything about a request that can be checked without a secret, and without what is remembered.
    fn check<'a>(&self, header: &Header, payload: &'a [u8]) -> Result<Checked<'a>> {
        self.check_header(header)?;
        let mut r = Reader::new(payload);
        let context = RoundContext::given(self.place.digest, header, r.array()?);
        let members = self.setting.params.members;
        let agreed = Certificate::read(&mut r, members)?;
        let share = self.setting.sharing.share_bytes(self.index) + OVERHEAD;
        let mut asked = Vec::with_capacity(header.contributions.len());
        for of in &header.contributions {
            let stated = Asked::read(*of, members, &mut r)?;
            asked.push(Asked { sealed: r.bytes(share)?, ..stated });
        }
        r.finish()?;
        asked.par_iter().try_for_each(|asked| self.check_client(asked))?;
        self.check_signatures(&context, &asked)?;
        Ok(Checked { context, agreed, asked })
    }

    /// Refuses a set of a memory that enough members have not agreed on.
    fn check_agreed(&self, sum: &Sum, context: &RoundContext, agreed: &Certificate) -> Result<()> {
        if !sum.has_memory() {
            return Ok(());
        }
        let needed = self.setting.sharing.needed();
        let groups = self.answered.agreed(sum)?.ok_or(Error::Committee { answers: 0, needed })?;
        agreed.check(&self.place.roster, context, &groups, needed)
    }

    /// The answer to a proposal. Some of its clients must have signed an update of this round and memory, one of them
    /// honest: else whoever knows the root could fill what is remembered with memories that nobody uses.
    fn agree(&self, header: &Header, payload: &[u8]) -> Result<Vec<u8>> {
        self.check_header(header)?;
        let mut r = Reader::new(payload);
        let context = RoundContext::given(self.place.digest, header, r.array()?);
        let Params { members, corrupt_clients, .. } = self.setting.params;
        let some = header.contributions.iter().take(corrupt_clients + 1);
        let signed = some.map(|of| Asked::read(*of, members, &mut r)).collect::<Result<Vec<_>>>()?;
        let others = read_sets(&mut r)?;
        r.finish()?;
        self.check_signatures(&context, &signed)?;
        let sum = self.answered.sum(header)?;
        if !sum.has_memory() {
            return Err(Error::frame("a proposal for a sum that counts in no memory"));
        }
        let groups = self.answered.agree(&sum, others)?;
        let sign = |message: &[u8]| self.place.identity.sign(Purpose::Sets, message);
        let minimum = self.setting.params.bounds.min_contributions;
        let said = Agreement::make(self.own, &context, &groups, minimum, sign);
        Ok(Header { kind: Kind::Agreement, ..header.clone() }.frame(&said.to_bytes()))
    }

    fn check_client(&self, asked: &Asked<'_>) -> Result<()> {
        let client = asked.of.client;
        check_weight(client, asked.of.weight, self.setting.params.bounds.max_weight)?;
        let own = &asked.signed[32 * (1 + self.index)..32 * (2 + self.index)];
        if own == sha256(&[asked.sealed]) { Ok(()) } else { Err(Error::Signature { party: client }) }
    }

    /// All clients' at once.
    fn check_signatures(&self, context: &RoundContext, asked: &[Asked<'_>]) -> Result<()> {
        let messages: Vec<_> = asked.iter().map(|asked| context.update(asked.of, asked.tag, asked.signed)).collect();
        let mut all = Vec::with_capacity(asked.len());
        for (asked, message) in asked.iter().zip(&messages) {
            let party = asked.of.client;
            let found = self.place.roster.get(party).filter(|found| found.roles.client);
            let key = &found.ok_or(Error::UnknownClient { client: party })?.verify;
            all.push(Signed { party, key, purpose: Purpose::Update, message, signature: &asked.signature });
        }
        match refused(&all)?.first() {
            Some(party) => Err(Error::Signature { party: *party }),
            None => Ok(()),
        }
    }

    /// The shares' sum; or which clients have sealed what is no share of theirs, under their signature.
    fn sum(&self, round: u64, asked: &[Asked<'_>]) -> std::result::Result<Shares, Vec<u32>> {
        let sharing = &self.setting.sharing;
        let empty = || (sharing.none(), Vec::new());
        let add = |(mut sum, mut wrong): (Shares, Vec<u32>), asked: &Asked<'_>| {
            let client = asked.of.client;
            let info = share_info(&self.place.digest, round, client, self.own);
            let opened = self.place.identity.secret.open(&info, asked.sealed);
            match opened.map(|share| sharing.add(&mut sum, self.index, &share)) {
                Some(Ok(())) => {}
                _ => wrong.push(client),
            }
            (sum, wrong)
        };
        let join = |(mut a, mut wrong): (Shares, Vec<u32>), (b, more): (Shares, Vec<u32>)| {
            sharing.merge(&mut a, &b);
            wrong.extend(more);
            (a, wrong)
        };
        let (sum, wrong) = asked.par_iter().fold(empty, add).reduce(empty, join);
        if wrong.is_empty() { Ok(sum) } else { Err(wrong) }
    }
}

impl Member for CommitteeMember {
    fn answer(&self, request: &[u8]) -> Result<Vec<u8>> {
        let Frame { header, payload } = wire::parse(request)?;
        if header.kind == Kind::Proposal {
            return self.agree(&header, payload);
        }
        header.check_kind(Kind::Request)?;
        let Checked { context, agreed, asked } = self.check(&header, payload)?;
        let (set, digest) = (self.answered.sum(&header)?, Digest::of(request));
        if let Some(answer) = self.answered.answered(&set, &digest)? {
            return Ok(answer);
        }
        self.check_agreed(&set, &context, &agreed)?;
        let sum = match self.sum(header.round, &asked) {
            Ok(sum) => sum,
            Err(wrong) => {
                let signature = self.place.identity.sign(Purpose::Complaint, &context.complaint(self.own, &wrong));
                let complaint = Complaint { member: self.own, clients: wrong, signature };
                return Ok(Header { kind: Kind::Complaint, ..header }.frame(&complaint.to_bytes()));
            }
        };
        let answer = Answer::make(&self.setting, &self.place, self.own, &context, &header.contributions, &sum)?;
        let mut out = Vec::new();
        answer.write(&mut out);
        // On disk before anything of the sum leaves: the same request again gets these bytes, another one of the same
        // clients nothing.
        self.answered.answer(&set, &digest, Header { kind: Kind::Answer, ..header }.frame(&out))
    }
}
