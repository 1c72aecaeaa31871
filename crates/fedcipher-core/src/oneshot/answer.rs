//! A member's answer: its sum of shares, for the readers or in the clear, and its signature, which proves a false sum.
//! The sum of pads is never in the clear, because the server could compute the MAC key from it.

use super::roster::RosterEntry;
use super::sealed_share::Exported;
use super::sealing::OVERHEAD;
use super::sharing::Shares;
use super::statement::RoundContext;
use super::{Reveal, RosterSeat, Setting};
use crate::mac::TAG_LEN;
use crate::mac::field::Element;
use crate::prf::KeyStream;
use crate::sign::Purpose;
use crate::sign::hybrid::{SIGNATURE_LEN, Signed};
use crate::statement::sha256;
use crate::wire::{Contribution, Reader};
use crate::{ClientId, Error, Result};
use rayon::prelude::*;
use zeroize::Zeroizing;

/// Bytes of the key that encrypts a sum, and of that key encrypted to a reader with the reader's number.
const KEY_LEN: usize = 32;
const WRAP_LEN: usize = 4 + KEY_LEN + OVERHEAD;

/// A member's answer on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub member: ClientId,
    sum: Vec<u8>,
    /// The digest of the combinations of each client's share. Only the server receives the combinations.
    pub combined: [u8; 32],
    signature: [u8; SIGNATURE_LEN],
    /// The sum's key for each reader; empty if the sum is in the clear.
    wraps: Vec<(ClientId, Vec<u8>)>,
}

impl Answer {
    /// The answer of `member`, whose place this is, with the `sum` of the clients in `of`.
    pub fn make(
        setting: &Setting,
        place: &RosterSeat,
        member: ClientId,
        context: &RoundContext,
        of: &[Contribution],
        sum: &Shares,
        combinations: &[u8],
    ) -> Result<Self> {
        let secrets = setting.sharing.packed(sum.secrets.len(), sum.secrets.iter().copied());
        let pads = *sum.pads + veil(place, context, of, member, &secrets);
        let mut sum = [secrets.as_slice(), &pads.to_wire()].concat();
        let mut wraps = Vec::new();
        if setting.params.reveal == Reveal::Clients {
            // The signature covers the ciphertext, so the stream needs no tag of its own. Its key is used once.
            let mut stream = KeyStream::from_os()?;
            stream.apply(&mut sum);
            let key = stream.into_key();
            let wrap = |reader: &RosterEntry| {
                Ok((reader.id, reader.sealing()?.hpke_seal(&context.key_info(member, reader.id), key.as_slice())?))
            };
            wraps = place.roster.readers().collect::<Vec<_>>().into_par_iter().map(wrap).collect::<Result<_>>()?;
        }
        let combined = sha256(&[combinations]);
        let signature = place.identity.sign(Purpose::Answer, &signed(context, of, member, &sum, &combined))?;
        Ok(Answer { member, sum, combined, signature, wraps })
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.member.to_le_bytes());
        out.extend_from_slice(&self.sum);
        out.extend_from_slice(&self.combined);
        out.extend_from_slice(&self.signature);
        out.extend_from_slice(&(self.wraps.len() as u32).to_le_bytes());
        for (reader, key) in &self.wraps {
            out.extend_from_slice(&reader.to_le_bytes());
            out.extend_from_slice(key);
        }
    }

    pub fn read(setting: &Setting, r: &mut Reader<'_>) -> Result<Self> {
        let member = r.client()?;
        let sum = r.bytes(setting.sharing.sum_bytes())?.to_vec();
        let (combined, signature) = (r.array()?, r.array()?);
        let count = r.u32()? as usize;
        let mut wraps = Vec::new();
        for bytes in r.bytes(count.saturating_mul(WRAP_LEN))?.chunks(WRAP_LEN) {
            let mut wrap = Reader::new(bytes);
            wraps.push((wrap.client()?, wrap.rest().to_vec()));
        }
        Ok(Answer { member, sum, combined, signature, wraps })
    }

    /// Whether the committee member `party` has signed the answer for these clients.
    #[must_use]
    pub fn is_of(&self, party: &RosterEntry, context: &RoundContext, of: &[Contribution]) -> bool {
        let message = signed(context, of, self.member, &self.sum, &self.combined);
        let signed = Signed {
            party: self.member,
            key: &party.signing,
            purpose: Purpose::Answer,
            message: &message,
            signature: &self.signature,
        };
        party.id == self.member && party.roles.member && signed.holds()
    }

    /// Decrypts the sum for the reader whose place this is. If the sum is in the clear, anyone can read it, without the
    /// pads.
    pub fn open(
        &self,
        setting: &Setting,
        context: &RoundContext,
        of: &[Contribution],
        own: Option<(&RosterSeat, ClientId)>,
    ) -> Result<Shares> {
        let mut sum = Zeroizing::new(self.sum.clone());
        if let Some((place, reader)) = own.filter(|_| setting.params.reveal == Reveal::Clients) {
            let closed = || Error::Decrypt { reason: format!("member {} has not answered this reader", self.member) };
            let (_, sealed) = self.wraps.iter().find(|(id, _)| *id == reader).ok_or_else(closed)?;
            let key = place.identity.secret.open(&context.key_info(self.member, reader), sealed).ok_or_else(closed)?;
            let key = <[u8; KEY_LEN]>::try_from(key.as_slice()).map_err(|_| closed())?;
            KeyStream::new(Zeroizing::new(key))?.apply(&mut sum);
        }
        let mut shares = setting.sharing.parse(&sum)?;
        *shares.pads = match own {
            Some((place, _)) => *shares.pads - veil(place, context, of, self.member, &sum[..sum.len() - TAG_LEN]),
            None => Element::default(),
        };
        Ok(shares)
    }

    /// The answer without the keys of other readers.
    #[must_use]
    pub fn for_reader(mut self, reader: ClientId) -> Self {
        self.wraps.retain(|(id, _)| *id == reader);
        self
    }
}

/// The bytes that a member signs of its answer.
fn signed(context: &RoundContext, of: &[Contribution], member: ClientId, sum: &[u8], combined: &[u8; 32]) -> Vec<u8> {
    [context.answer(of, member, sum).as_slice(), combined].concat()
}

/// Hides the sum of pads from the server. A member answers for a client once a round, so the mask hides nothing else.
fn veil(place: &RosterSeat, context: &RoundContext, of: &[Contribution], member: ClientId, secrets: &[u8]) -> Element {
    place.mac.veil(&context.answer(of, member, secrets))
}

/// A client that has sent a member an invalid share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accused {
    pub client: ClientId,
    /// The secret of the share, as proof; `None` if the client has signed another secret.
    pub shown: Option<Exported>,
}

impl Accused {
    /// `client u32 | whether there is proof u8 | secret 32`.
    fn to_bytes(&self) -> Vec<u8> {
        let secret = self.shown.as_deref().copied().unwrap_or_default();
        [&self.client.to_le_bytes()[..], &[u8::from(self.shown.is_some())], &secret].concat()
    }

    fn read(r: &mut Reader<'_>) -> Result<Self> {
        let (client, shown, secret) = (r.client()?, r.u8()?, Zeroizing::new(r.array()?));
        match shown {
            0 if secret.iter().all(|byte| *byte == 0) => Ok(Accused { client, shown: None }),
            1 => Ok(Accused { client, shown: Some(secret) }),
            _ => Err(Error::frame("a complaint that neither shows a secret nor leaves it out")),
        }
    }
}

/// A member's reply in place of an answer, if clients have sent it invalid shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    pub member: ClientId,
    pub clients: Vec<Accused>,
    pub signature: [u8; SIGNATURE_LEN],
}

impl Complaint {
    /// The complaint of `member`, whose place this is.
    pub fn make(place: &RosterSeat, member: ClientId, context: &RoundContext, clients: Vec<Accused>) -> Result<Self> {
        let signature = place.identity.sign(Purpose::Complaint, &context.complaint(member, &listed(&clients)))?;
        Ok(Complaint { member, clients, signature })
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        [&self.member.to_le_bytes()[..], &self.signature, &listed(&self.clients)].concat()
    }

    /// Whether `party` has signed the complaint.
    #[must_use]
    pub fn is_of(&self, party: &RosterEntry, context: &RoundContext) -> bool {
        let message = context.complaint(self.member, &listed(&self.clients));
        let Complaint { member, signature, .. } = self;
        Signed { party: *member, key: &party.signing, purpose: Purpose::Complaint, message: &message, signature }
            .holds()
    }

    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let (member, signature) = (r.client()?, r.array()?);
        let mut clients = Vec::new();
        while clients.is_empty() || !r.clone().rest().is_empty() {
            clients.push(Accused::read(&mut r)?);
        }
        Ok(Complaint { member, clients, signature })
    }
}

fn listed(clients: &[Accused]) -> Vec<u8> {
    clients.iter().flat_map(Accused::to_bytes).collect()
}

/// All answers of an aggregate, after their length. They begin the payload.
pub fn write_all(answers: &[Answer]) -> Vec<u8> {
    let mut body = (answers.len() as u32).to_le_bytes().to_vec();
    answers.iter().for_each(|answer| answer.write(&mut body));
    let mut out = (body.len() as u32).to_le_bytes().to_vec();
    out.append(&mut body);
    out
}

/// The part of an aggregate's payload after the answers.
pub fn behind_answers(payload: &[u8]) -> Result<&[u8]> {
    let mut r = Reader::new(payload);
    let length = r.u32()? as usize;
    r.bytes(length)?;
    Ok(&payload[length + 4..])
}

/// Reads answers from the front of a payload: (answers, bytes read).
pub fn read_all(setting: &Setting, payload: &[u8]) -> Result<(Vec<Answer>, usize)> {
    let mut r = Reader::new(payload);
    let length = r.u32()? as usize;
    let mut body = Reader::new(r.bytes(length)?);
    let count = body.u32()? as usize;
    if count > setting.params.members {
        return Err(Error::frame(format!("{count} answers of {} members", setting.params.members)));
    }
    let answers = (0..count).map(|_| Answer::read(setting, &mut body)).collect::<Result<Vec<_>>>()?;
    body.finish()?;
    if answers.windows(2).any(|pair| pair[0].member >= pair[1].member) {
        return Err(Error::frame("a member has answered twice, or out of order"));
    }
    Ok((answers, length + 4))
}
