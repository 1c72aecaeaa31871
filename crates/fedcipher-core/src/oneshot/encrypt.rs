//! A client's encryption: a fresh secret and a fresh pad, the update under both, their shares encrypted to the
//! committee's prekeys, and a signature over everything.

use super::prekeys::{Met, Published};
use super::sealed_share::{Envelope, NO_SHARE, OVERHEAD};
use super::statement::share_info;
use super::{RosterSeat, Setting, signed};
use crate::codec::{Layout, Update};
use crate::keys::{ClientKey, KeyTag};
use crate::mac::field::Element;
use crate::mac::{PolyEval, TAG_LEN};
use crate::prf::Stream;
use crate::protocol::{ClaimedRound, EncryptKernel, Encryption, Piece, PieceEncryptor, Prekeys, Sender};
use crate::rlwe::encrypt::{CipherEncryptor, cut};
use crate::rlwe::params::Block;
use crate::rlwe::ring::SecretNtt;
use crate::scheme::Terms;
use crate::sign::Purpose;
use crate::sign::hybrid::{SIGNATURE_LEN, SigningKey};
use crate::statement::sha256;
use crate::{ClientId, Error, Result, RoundId};
use rayon::prelude::*;
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

pub struct OneshotEncryptor {
    setting: Arc<Setting>,
    place: RosterSeat,
    tag: KeyTag,
    /// The members' numbers, in the order of shares.
    members: Vec<ClientId>,
    met: Met,
    sender: Sender,
    ready: Option<Fresh>,
}

type Shares = Vec<Zeroizing<Vec<u8>>>;

/// A secret and a pad for one update, with the shares of both and the envelopes for these.
struct Fresh {
    round: RoundId,
    secret: Arc<SecretNtt>,
    pad: Zeroizing<Element>,
    shares: Shares,
    /// One envelope per member; `None` for a member without a published prekey.
    envelopes: Vec<Option<Envelope>>,
    /// The process that made this. A forked process must not use it again.
    process: u32,
}

impl OneshotEncryptor {
    pub fn new(setting: Arc<Setting>, place: RosterSeat, key: &ClientKey, state: Option<&Path>) -> Result<Self> {
        place.check_role(key.client, "client", |roles| roles.client)?;
        place.joined.iter().try_for_each(|joined| joined.check(&place.roster, setting.params.corrupt_clients))?;
        let sender = Sender::new(key, setting.params.rules(), state)?.of_roster(place.digest);
        let members: Vec<ClientId> = place.roster.members().map(|member| member.id).collect();
        let met = Met::open(key, members.len(), state)?;
        Ok(OneshotEncryptor { setting, place, tag: key.tag.clone(), members, met, sender, ready: None })
    }

    fn fresh(&self, round: RoundId) -> Result<Fresh> {
        let d = &self.setting.derived;
        let mut draws = Stream::from_os()?;
        let secret = d.error.draws(&mut draws, d.ring.n);
        let pad = Zeroizing::new(Element::draw(&mut draws));
        let wide = Zeroizing::new(secret.iter().map(|c| i32::from(*c)).collect::<Vec<_>>());
        let shares = self.setting.sharing.split(&secret, &pad)?;
        let (secret, envelopes) = (Arc::new(d.ring.transformed(&wide)), self.envelopes(round)?);
        Ok(Fresh { round, secret, pad, shares, envelopes, process: std::process::id() })
    }

    fn known(&self) -> impl Iterator<Item = Option<&Published>> {
        self.members.iter().map(|member| self.met.of(*member))
    }

    fn envelopes(&self, round: RoundId) -> Result<Vec<Option<Envelope>>> {
        let (roster, client) = (&self.place.digest, self.sender.client());
        let to = |prekey: Option<&Published>| {
            let to = |Published { member, number, public }: &Published| {
                Envelope::to(*number, public, &share_info(roster, round, client, *member, *number))
            };
            prekey.map(to).transpose()
        };
        self.known().collect::<Vec<_>>().into_par_iter().map(to).collect()
    }

    /// Fails if fewer members have a prekey than must answer. `refused` are the errors of rejected prekeys.
    fn check_prekeys(&self, refused: &[Error]) -> Result<()> {
        let (known, needed) = (self.known().flatten().count(), self.setting.sharing.needed());
        if known >= needed {
            return Ok(());
        }
        let refused = refused.iter().map(|error| format!("; refused: {error}")).collect();
        Err(Error::NoPrekeys { known, needed, refused })
    }

    /// Whether the envelopes are for the newest prekeys.
    fn is_current(&self, fresh: &Fresh) -> bool {
        let to = fresh.envelopes.iter().map(|envelope| envelope.as_ref().map(|e| e.number));
        to.eq(self.known().map(|prekey| prekey.map(|p| p.number)))
    }

    fn begin(&mut self, terms: &Terms<'_>) -> Result<OneshotPieces> {
        self.check_prekeys(&[])?;
        let d = Arc::clone(&self.setting.derived);
        let blocks = d.shape(terms.layout)?;
        let claimed = self.sender.claim(terms, terms.layout)?;
        let ready = self.ready.take().filter(|f| f.round == terms.round && f.process == std::process::id());
        let fresh = match ready {
            Some(ready) if self.is_current(&ready) => ready,
            Some(ready) => Fresh { envelopes: self.envelopes(terms.round)?, ..ready },
            None => self.fresh(terms.round)?,
        };
        let Fresh { secret, pad, shares, envelopes, .. } = fresh;
        let claimed = claimed.with_pad(pad);
        let pieces = cut(&blocks, 0, Block::up_bytes);
        let seed = claimed.tag_maker().signer.context.seed();
        let (prefix, masks) = (Vec::new(), Vec::new());
        let inner = CipherEncryptor { derived: d, secret, session: None, claimed, seed, prefix, masks, blocks, pieces };
        Ok(OneshotPieces { inner, shares, envelopes, signing: self.place.identity.signer() })
    }
}

impl EncryptKernel for OneshotEncryptor {
    fn start(&mut self, terms: &Terms<'_>) -> Result<Option<Encryption>> {
        Ok(Some(Encryption::new(self.begin(terms)?)))
    }

    /// Makes the secret, the pad, their shares and the envelopes.
    fn precompute(&mut self, round: RoundId, _layout: &Layout, _plan: &[u8]) -> Result<()> {
        self.sender.reserve(round)?;
        self.ready = Some(self.fresh(round)?);
        Ok(())
    }

    fn prekeys(&mut self) -> Option<&mut dyn Prekeys> {
        Some(self)
    }
}

impl Prekeys for OneshotEncryptor {
    fn take_prekeys(&mut self, frames: &[&[u8]]) -> Result<Vec<Error>> {
        self.met.renew();
        let read = Published::read_all(frames, &self.tag, &self.place.roster, &self.place.digest);
        let taken = read.into_iter().map(|read| read.and_then(|prekey| self.met.take(prekey)));
        let refused: Vec<Error> = taken.filter_map(Result::err).collect();
        self.met.remember()?;
        self.check_prekeys(&refused)?;
        Ok(refused)
    }
}

struct OneshotPieces {
    inner: CipherEncryptor,
    shares: Shares,
    envelopes: Vec<Option<Envelope>>,
    signing: SigningKey,
}

impl PieceEncryptor for OneshotPieces {
    fn claimed(&self) -> &ClaimedRound {
        self.inner.claimed()
    }

    fn prefix(&self) -> &[u8] {
        self.inner.prefix()
    }

    fn pieces(&self) -> &[Piece] {
        self.inner.pieces()
    }

    fn encrypt_piece(&self, index: usize, update: &Update<'_>, out: &mut [u8]) -> Result<PolyEval> {
        self.inner.encrypt_piece(index, update, out)
    }

    /// Writes the encrypted shares, the tag and the signature. A member sees only the digest of the ciphertexts and of
    /// other members' shares.
    fn end(&self, hash: PolyEval, ciphertexts: &[u8; 32]) -> Result<Vec<u8>> {
        let tag_maker = self.claimed().tag_maker();
        let data = tag_maker.signer.context.share_data(tag_maker.own, tag_maker.tag(hash), ciphertexts);
        let seal = |(envelope, share): (&Option<Envelope>, &Zeroizing<Vec<u8>>)| match envelope {
            Some(envelope) => envelope.encrypt_share(&data, share),
            None => Ok(NO_SHARE.to_vec()),
        };
        let sealed = self.envelopes.iter().zip(&self.shares).map(seal).collect::<Result<Vec<_>>>()?;
        let digests: Vec<u8> = sealed.iter().flat_map(|share| sha256(&[share])).collect();
        let tag = tag_maker.tag(hash);
        let message = tag_maker.signer.context.update(tag_maker.own, tag, &signed(ciphertexts, &digests));
        let signature = self.signing.sign(Purpose::Update, &message)?;
        Ok([sealed.concat().as_slice(), &tag.to_bytes(), &signature].concat())
    }

    fn end_len(&self) -> usize {
        let len = |(envelope, share): (&Option<Envelope>, &Zeroizing<Vec<u8>>)| {
            if envelope.is_some() { share.len() + OVERHEAD } else { NO_SHARE.len() }
        };
        self.envelopes.iter().zip(&self.shares).map(len).sum::<usize>() + TAG_LEN + SIGNATURE_LEN
    }
}
