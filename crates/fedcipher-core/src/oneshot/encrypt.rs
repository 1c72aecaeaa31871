//! The client's side: a fresh secret and a fresh pad, their shares sealed to the committee, the update under both, and a
//! signature over all.

use super::sealing::Public;
use super::statement::share_info;
use super::{Place, Setting, signed};
use crate::Result;
use crate::client::{Digest, Sender};
use crate::codec::{Layout, Update};
use crate::keys::ClientKey;
use crate::mac::field::Element;
use crate::mac::{Hash, Stamp};
use crate::prf::Stream;
use crate::rlwe::encrypt::{CipherSealer, cut};
use crate::rlwe::params::Block;
use crate::rlwe::ring::SecretNtt;
use crate::scheme::{Encryptor, Request, Terms};
use crate::statement::{END_LEN, sha256};
use crate::stream::{self, Piece, Sealer, Sealing, Threads};
use crate::wire::Header;
use crate::wire::Place as Memory;
use rayon::prelude::*;
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

pub struct OneshotEncryptor {
    setting: Arc<Setting>,
    place: Place,
    /// Number and key of each member.
    members: Vec<(u32, Public)>,
    sender: Sender,
    ready: Option<Fresh>,
}

/// A secret and a pad for one update, and their sealed shares in a row.
struct Fresh {
    round: u64,
    secret: Arc<SecretNtt>,
    pad: Zeroizing<Element>,
    shares: Vec<u8>,
    /// A digest a share.
    digests: Vec<u8>,
    /// Whose it is: a process forked off must not use it again.
    process: u32,
}

impl OneshotEncryptor {
    pub fn new(setting: Arc<Setting>, place: Place, key: &ClientKey, state: Option<&Path>) -> Result<Self> {
        place.check_role(key.client, "client", |roles| roles.client)?;
        place.joined.iter().try_for_each(|joined| joined.check(&place.roster, setting.params.corrupt_clients))?;
        let sender = Sender::new(key, setting.params.rules(), state)?.of_roster(place.digest);
        let members = place.roster.members().map(|m| Ok((m.id, m.sealing()?))).collect::<Result<_>>()?;
        Ok(OneshotEncryptor { setting, place, members, sender, ready: None })
    }

    fn fresh(&self, round: u64) -> Result<Fresh> {
        let d = &self.setting.derived;
        let mut draws = Stream::from_os()?;
        let secret = d.error.draws(&mut draws, d.ring.n);
        let pad = Zeroizing::new(Element::draw(&mut draws));
        let wide = Zeroizing::new(secret.iter().map(|c| i32::from(*c)).collect::<Vec<_>>());
        let shares = self.setting.sharing.split(&secret, &pad)?;
        let seal = |((member, key), share): (&(u32, Public), &Zeroizing<Vec<u8>>)| {
            let info = share_info(&self.place.digest, round, self.sender.client(), *member);
            key.seal(&info, share)
        };
        let sealed = self.members.par_iter().zip(&shares).map(seal).collect::<Result<Vec<_>>>()?;
        let digests = sealed.iter().flat_map(|share| sha256(&[share])).collect();
        Ok(Fresh {
            round,
            secret: Arc::new(d.ring.transformed(&wide)),
            pad,
            shares: sealed.concat(),
            digests,
            process: std::process::id(),
        })
    }
}

impl OneshotEncryptor {
    fn start(&mut self, terms: &Terms<'_>) -> Result<OneshotSealer> {
        let d = Arc::clone(&self.setting.derived);
        let blocks = d.shape(terms.layout)?;
        let (header, mut stamp) = self.sender.start(terms, terms.layout)?;
        let ready = self.ready.take().filter(|f| f.round == terms.round && f.process == std::process::id());
        let Fresh { secret, pad, shares, digests, .. } = match ready {
            Some(ready) => ready,
            None => self.fresh(terms.round)?,
        };
        stamp.pad = pad;
        let pieces = cut(&blocks, shares.len(), Block::up_bytes);
        let seed = stamp.signer.context.seed();
        let (prefix, masks) = (shares, Vec::new());
        let inner =
            CipherSealer { derived: d, secret, session: None, header, stamp, seed, prefix, masks, blocks, pieces };
        Ok(OneshotSealer { inner, digests })
    }
}

impl Encryptor for OneshotEncryptor {
    fn encrypt_into(&mut self, request: &Request<'_>, memory: &mut dyn Memory) -> Result<()> {
        let sealer = self.start(&request.terms())?;
        stream::seal_all(&sealer, request.update, memory, Threads::All)
    }

    fn sealer(&mut self, terms: &Terms<'_>) -> Result<Option<Sealing>> {
        Ok(Some(Sealing::new(self.start(terms)?)))
    }

    /// The secret, the pad and their sealed shares.
    fn precompute(&mut self, round: u64, _layout: &Layout, _plan: &[u8]) -> Result<()> {
        self.sender.reserve(round)?;
        self.ready = Some(self.fresh(round)?);
        Ok(())
    }
}

struct OneshotSealer {
    inner: CipherSealer,
    /// A digest a share.
    digests: Vec<u8>,
}

impl Sealer for OneshotSealer {
    fn header(&self) -> &Header {
        self.inner.header()
    }

    fn prefix(&self) -> &[u8] {
        self.inner.prefix()
    }

    fn pieces(&self) -> &[Piece] {
        self.inner.pieces()
    }

    fn seal(&self, index: usize, update: &Update<'_>, out: &mut [u8]) -> Result<Hash> {
        self.inner.seal(index, update, out)
    }

    fn stamp(&self) -> &Stamp {
        self.inner.stamp()
    }

    /// Of the ciphertexts only: a member is shown their digest, and of the shares its own and the others' digests.
    fn digest(&self) -> Digest {
        Digest::default()
    }

    fn end(&self, hash: Hash, ciphertexts: &[u8; 32]) -> [u8; END_LEN] {
        self.inner.stamp().end(hash, &signed(ciphertexts, &self.digests))
    }
}
