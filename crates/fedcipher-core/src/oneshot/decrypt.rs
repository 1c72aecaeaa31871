//! Who opens an aggregate: a reader with the committee's answers, or the server where these are in the clear.

use super::answer::{Answer, read_all};
use super::roster::Roster;
use super::statement::RoundContext;
use super::{Place, Setting};
use crate::client::{Digest, Receiver, check_aggregate};
use crate::codec::SumSink;
use crate::keys::{ClientKey, ServerKey};
use crate::ledger::Openings;
use crate::mac::RoundMac;
use crate::mac::field::Element;
use crate::rlwe::decrypt::CipherOpener;
use crate::scheme::{Decryptor, Expect, Opening, Summary};
use crate::stream::{self, Opener, Threads};
use crate::wire::{self, Frame, Head, Header};
use crate::{Error, Result};
use crate::{codec::Layout, mac::Tag};
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

/// A reader of the roster.
pub struct OneshotDecryptor {
    setting: Arc<Setting>,
    place: Place,
    own: u32,
    receiver: Receiver,
}

impl OneshotDecryptor {
    pub fn new(setting: Arc<Setting>, place: Place, key: &ClientKey, state: Option<&Path>) -> Result<Self> {
        place.check_role(key.client, "reader", |roles| roles.reader)?;
        let receiver = place.as_holder(key, &setting, |holder| Receiver::of(holder, setting.params.rules(), state))?;
        Ok(OneshotDecryptor { setting, place, own: key.client, receiver })
    }
}

/// The opener of an aggregate from its answers, whose bytes precede its ciphertexts; the sum of its clients' pads, where
/// `own` place has the key that hides it; and whose answers are false.
fn opener(
    setting: &Setting,
    (roster, digest): (&Roster, [u8; 32]),
    own: Option<(&Place, u32)>,
    (header, layout): (&Header, &Layout),
    (answers, prefix): (&[Answer], usize),
    mac: Option<RoundMac>,
) -> Result<(CipherOpener, Zeroizing<Element>, Vec<u32>)> {
    let context = RoundContext::of(digest, header);
    let mut sums = Vec::with_capacity(answers.len());
    // What cannot be read is as false as what does not agree: the others may be enough.
    let (mut unread, mut why) = (Vec::new(), None);
    for (place, member) in roster.members().enumerate() {
        let Some(answer) = answers.iter().find(|answer| answer.member == member.id) else { continue };
        if !answer.is_of(member, &context, &header.contributions) {
            return Err(Error::Signature { party: member.id });
        }
        match answer.open(setting, &context, &header.contributions, own) {
            Ok(sum) => sums.push((place, sum)),
            Err(error) => {
                unread.push(place);
                why.get_or_insert(error);
            }
        }
    }
    let joined = setting.sharing.join(&sums).map_err(|error| match error {
        Error::Committee { .. } => why.unwrap_or(error),
        other => other,
    })?;
    let d = &setting.derived;
    let secret = Arc::new(d.ring.transformed(&joined.sum));
    let terms = header.contributions.len() as u128;
    let opener = CipherOpener::new(d, secret, header, layout, mac, vec![(context.seed(), 1)], terms, prefix)?;
    let named =
        roster.members().enumerate().filter(|(place, _)| joined.wrong.contains(place) || unread.contains(place));
    Ok((opener, joined.pads, named.map(|(_, member)| member.id).collect()))
}

impl Decryptor for OneshotDecryptor {
    fn decrypt(&self, frame: &[u8], expect: &Expect<'_>, sink: &mut dyn SumSink) -> Result<Summary> {
        let Frame { header, payload } = wire::parse(frame)?;
        let head = Head { header, payload_len: payload.len() };
        let layout = self.receiver.check(&head, expect)?;
        let (payload, tag) = Tag::split(payload)?;
        let (answers, prefix) = read_all(&self.setting, payload)?;
        let header = &head.header;
        // Readers are sent their own keys only, so what "the same aggregate" is does not depend on these.
        let mut digest = Digest::default();
        digest.update(&header.head(0));
        digest.update_by_many(&payload[prefix..]);
        digest.update(&tag.to_bytes());
        let openings = self.receiver.openings();
        openings.claim(&openings.sum(header)?, &digest.finish())?;
        let mut verifier = self.receiver.verifier(header, &layout, expect.bound);
        let place = (&self.place.roster, self.place.digest);
        let own = Some((&self.place, self.own));
        let mac = Some(verifier.mac.clone());
        let (opener, pads, false_members) =
            opener(&self.setting, place, own, (header, &layout), (&answers, prefix), mac)?;
        verifier.pad = pads;
        let opening = Opening { layout, opener: Box::new(opener), verifier };
        stream::open_all(&opening, header.total_weight(), payload, tag, sink, Threads::All)?;
        Ok(Summary { false_members, ..Summary::of(head.header, opening.layout) })
    }

    fn opener(&self, _head: &Head, _expect: &Expect<'_>, _prefix: &[u8]) -> Result<Option<Opening>> {
        Ok(None)
    }

    fn openings(&self) -> &Openings {
        self.receiver.openings()
    }
}

/// The server of `reveal="server"`. It has added the ciphertexts itself and has no key for tags, so it checks none.
pub struct ServerDecryptor {
    setting: Arc<Setting>,
    roster: Roster,
    digest: [u8; 32],
    key: ServerKey,
    openings: Openings,
}

impl ServerDecryptor {
    pub fn new(setting: Arc<Setting>, roster: Roster, digest: [u8; 32], key: &ServerKey) -> Self {
        ServerDecryptor { setting, roster, digest, key: key.clone(), openings: Openings::default() }
    }
}

impl Decryptor for ServerDecryptor {
    fn decrypt(&self, frame: &[u8], expect: &Expect<'_>, sink: &mut dyn SumSink) -> Result<Summary> {
        let Frame { header, payload } = wire::parse(frame)?;
        let head = Head { header, payload_len: payload.len() };
        let layout = check_aggregate(&head, &self.key.tag, &self.setting.params.rules(), expect.round)?;
        let (payload, _) = Tag::split(payload)?;
        let (answers, prefix) = read_all(&self.setting, payload)?;
        let header = head.header;
        let place = (&self.roster, self.digest);
        let (opener, _, false_members) =
            opener(&self.setting, place, None, (&header, &layout), (&answers, prefix), None)?;
        opener.check_len(payload.len() + crate::mac::TAG_LEN)?;
        sink.begin(&layout, self.setting.params.rules().levels, header.total_weight())?;
        for (index, piece) in opener.pieces().iter().enumerate() {
            let mut sums = vec![0; piece.len];
            opener.open(index, &payload[piece.at..piece.at + piece.bytes], &mut sums)?;
            sink.put(piece.start, &sums)?;
        }
        Ok(Summary { false_members, ..Summary::of(header, layout) })
    }

    fn opener(&self, _head: &Head, _expect: &Expect<'_>, _prefix: &[u8]) -> Result<Option<Opening>> {
        Ok(None)
    }

    fn openings(&self) -> &Openings {
        &self.openings
    }
}
