//! Decryption of an aggregate: by a reader with the committee's answers, or by the server if these are in the clear.

use super::answer::{behind_answers, read_all};
use super::roster::Roster;
use super::statement::RoundContext;
use super::{RosterSeat, Setting};
use crate::codec::SumSink;
use crate::keys::{ClientKey, ServerKey};
use crate::mac::Tag;
use crate::protocol::{
    CheckedHead, ClaimedSum, DecryptKernel, FrameDigest, PieceDecryptor, Proven, Receiver, open_pieces,
};
use crate::rlwe::decrypt::CipherDecryptor;
use crate::wire::Header;
use crate::{ClientId, Error, Result};
use std::path::Path;
use std::sync::Arc;

/// A reader of the roster.
pub struct OneshotDecryptor {
    setting: Arc<Setting>,
    place: RosterSeat,
    own: ClientId,
    receiver: Arc<Receiver>,
}

impl OneshotDecryptor {
    pub fn new(setting: Arc<Setting>, place: RosterSeat, key: &ClientKey, state: Option<&Path>) -> Result<Self> {
        place.check_role(key.client, "reader", |roles| roles.reader)?;
        let receiver = place.as_holder(key, &setting, |holder| Receiver::of(holder, setting.params.rules(), state))?;
        Ok(OneshotDecryptor { setting, place, own: key.client, receiver: Arc::new(receiver) })
    }
}

/// The piece decryptor of an aggregate, from the answers before its ciphertexts in `payload`. Also the sum of its
/// clients' pads, if `own` has the key that hides it, and the members whose answers are false.
fn opener(
    setting: &Setting,
    (roster, digest): (&Roster, [u8; 32]),
    own: Option<(&RosterSeat, ClientId)>,
    checked: &CheckedHead,
    payload: &[u8],
) -> Result<(CipherDecryptor, Vec<ClientId>)> {
    let header = checked.header();
    let (answers, prefix) = read_all(setting, payload)?;
    let context = RoundContext::of(digest, header);
    let mut sums = Vec::with_capacity(answers.len());
    // An unreadable answer counts as false. The other answers may be enough.
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
    let mut opener = CipherDecryptor::new(d, secret, checked, vec![(context.seed(), 1)], terms, prefix)?;
    opener.pads = Some(joined.pads);
    let named =
        roster.members().enumerate().filter(|(place, _)| joined.wrong.contains(place) || unread.contains(place));
    Ok((opener, named.map(|(_, member)| member.id).collect()))
}

impl DecryptKernel for OneshotDecryptor {
    fn receiver(&self) -> &Arc<Receiver> {
        &self.receiver
    }

    fn opener(&self, _checked: &CheckedHead, _prefix: &[u8]) -> Result<Option<Box<dyn PieceDecryptor>>> {
        Ok(None)
    }

    /// The digest leaves out the readers' keys: each reader is sent its own keys only.
    fn digest(&self, _frame: &[u8], header: &Header, payload: &[u8], tag: Tag) -> Result<[u8; 32]> {
        let mut digest = FrameDigest::default();
        digest.update(&header.head(0));
        digest.update_by_many(behind_answers(payload)?);
        digest.update(&tag.to_bytes());
        Ok(digest.finish())
    }

    fn open_whole(&self, sum: ClaimedSum, payload: &[u8], sink: &mut dyn SumSink) -> Result<Proven> {
        let place = (&self.place.roster, self.place.digest);
        let (opener, false_members) =
            opener(&self.setting, place, Some((&self.place, self.own)), sum.checked(), payload)?;
        Ok(open_pieces(sum, &opener, payload, sink)?.with_false_members(false_members))
    }
}

/// The server with `reveal="server"`. It has added the ciphertexts itself and has no MAC key, so it checks no tag.
pub struct ServerDecryptor {
    setting: Arc<Setting>,
    roster: Roster,
    digest: [u8; 32],
    receiver: Arc<Receiver>,
}

impl ServerDecryptor {
    pub fn new(setting: Arc<Setting>, roster: Roster, digest: [u8; 32], key: &ServerKey) -> Self {
        let receiver = Arc::new(Receiver::of_own_sums(key, setting.params.rules()));
        ServerDecryptor { setting, roster, digest, receiver }
    }
}

impl DecryptKernel for ServerDecryptor {
    fn receiver(&self) -> &Arc<Receiver> {
        &self.receiver
    }

    fn opener(&self, _checked: &CheckedHead, _prefix: &[u8]) -> Result<Option<Box<dyn PieceDecryptor>>> {
        Ok(None)
    }

    fn open_whole(&self, sum: ClaimedSum, payload: &[u8], sink: &mut dyn SumSink) -> Result<Proven> {
        let place = (&self.roster, self.digest);
        let (opener, false_members) = opener(&self.setting, place, None, sum.checked(), payload)?;
        Ok(open_pieces(sum, &opener, payload, sink)?.with_false_members(false_members))
    }
}
