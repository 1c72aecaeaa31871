//! The client's side: `round((c0 + c1 s) / delta)`, with c1 derived from the cohort's seeds.

use super::accelerator::{Decoded, Session, SumJob};
use super::aggregate::{prefix_len, seeds};
use super::encrypt::cut;
use super::params::{Block, Derived};
use super::ring::SecretNtt;
use crate::admission::check_sums;
use crate::bits::{check_stream, packed_len, unpack_wide};
use crate::client::Receiver;
use crate::codec::{Layout, SumSink};
use crate::keys::ClientKey;
use crate::ledger::Openings;
use crate::mac::{Hash, RoundMac};
use crate::scheme::{Decryptor, Expect, Opening, Summary};
use crate::stream::{self, Opener, Piece, Threads};
use crate::wire::{Head, Header};
use crate::{Error, Result};
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

pub struct BfvDecryptor {
    derived: Arc<Derived>,
    receiver: Receiver,
    secret: Arc<SecretNtt>,
    session: Option<Arc<Session>>,
}

/// An aggregate: a piece is one ciphertext.
pub(crate) struct CipherOpener {
    derived: Arc<Derived>,
    secret: Arc<SecretNtt>,
    /// A device that has the secret.
    session: Option<Arc<Session>>,
    blocks: Vec<Block>,
    pieces: Vec<Piece>,
    /// None for who has no key for tags.
    mac: Option<RoundMac>,
    /// What c1 is made of, and how often each counts.
    seeds: Vec<([u8; 32], u64)>,
    prefix: usize,
    weight: u64,
    /// Most noise of the sum.
    offset: u128,
}

impl BfvDecryptor {
    pub fn new(
        derived: Arc<Derived>,
        key: &ClientKey,
        state: Option<&Path>,
        session: Option<Arc<Session>>,
    ) -> Result<Self> {
        let secret = Arc::new(derived.ring.secret_ntt(&key.secret)?);
        let receiver = Receiver::new(key, derived.params.rules(), state)?;
        Ok(BfvDecryptor { derived, receiver, secret, session })
    }

    fn start(&self, head: &Head, layout: Layout, prefix: &[u8], expect: &Expect<'_>) -> Result<Opening> {
        let (d, header) = (&self.derived, &head.header);
        let seeds = seeds(d.params.rules().weighting, &header.contributions, prefix)?;
        let terms: u128 = seeds.iter().map(|(_, scale)| u128::from(*scale)).sum();
        let prefix = prefix_len(seeds.len());
        let verifier = self.receiver.verifier(header, &layout, expect.bound);
        let secret = Arc::clone(&self.secret);
        let mac = Some(verifier.mac.clone());
        let mut opener = CipherOpener::new(d, secret, header, &layout, mac, seeds, terms, prefix)?;
        opener.session = self.session.clone();
        Ok(Opening { layout, opener: Box::new(opener), verifier })
    }
}

impl CipherOpener {
    /// For a sum of `terms` ciphertexts that begins `prefix` bytes behind the payload's beginning.
    #[allow(clippy::too_many_arguments, reason = "each is another thing")]
    pub fn new(
        derived: &Arc<Derived>,
        secret: Arc<SecretNtt>,
        header: &Header,
        layout: &Layout,
        mac: Option<RoundMac>,
        seeds: Vec<([u8; 32], u64)>,
        terms: u128,
        prefix: usize,
    ) -> Result<Self> {
        let blocks = derived.shape(layout)?;
        let pieces = cut(&blocks, prefix, |block| packed_len(block.used, derived.down_bits));
        let (weight, offset) = (header.total_weight(), terms * derived.fresh_noise());
        let derived = Arc::clone(derived);
        Ok(CipherOpener { derived, secret, session: None, blocks, pieces, mac, seeds, prefix, weight, offset })
    }

    /// Plaintext and noise of ciphertext `index`, by coefficient.
    fn decode(&self, index: usize, c0: &[u8]) -> Result<Decoded> {
        let (d, block) = (&self.derived, &self.blocks[index]);
        let bits = d.down_bits;
        check_stream(c0, block.used, bits)?;
        let mut sums = vec![0; block.used];
        unpack_wide(c0, bits, &mut sums);
        let public = || -> Result<_> {
            let mut a = d.ring.zero();
            for (seed, scale) in &self.seeds {
                d.ring.accumulate_a(seed, index as u64, *scale, &mut a)?;
            }
            Ok(a)
        };
        if let Some(session) = &self.session {
            let c0 = || sums.iter().map(|sum| d.expand_sum(*sum)).collect::<Result<_>>();
            let job = || -> Result<_> { Ok(SumJob { a: public()?, c0: c0()? }) };
            if let Some(decoded) = session.decrypt(session.host(job)?)? {
                return Ok(decoded);
            }
        }
        let a = public()?;
        let product = d.ring.times_secret(a, &self.secret, block.used);
        let coefficient = |(a_s, sum): (&u128, &u128)| d.decode(d.ring.sub(d.expand_sum(*sum)?, *a_s));
        Ok(Zeroizing::new(product.iter().zip(&sums).map(coefficient).collect::<Result<_>>()?))
    }

    /// The noise's part of the tag. Without it, whether a changed aggregate opens would tell how large its noise is.
    fn noise(&self, index: usize, decoded: &[(u128, i128)]) -> Result<Hash> {
        let too_large =
            || Error::Decrypt { reason: "a coefficient carries more noise than its clients' together".into() };
        let word = |(_, noise): &(u128, i128)| {
            let shifted = u128::try_from(*noise + self.offset as i128).ok().filter(|n| *n <= 2 * self.offset);
            shifted.and_then(|n| u64::try_from(n).ok()).ok_or_else(too_large)
        };
        let words = Zeroizing::new(decoded.iter().map(word).collect::<Result<Vec<u64>>>()?);
        let Some(mac) = &self.mac else { return Ok(Hash::default()) };
        let mut hasher = mac.noise_hasher(index * self.derived.ring.n);
        hasher.sums(&words);
        Ok(hasher.hash())
    }
}

impl Opener for CipherOpener {
    fn prefix(&self) -> usize {
        self.prefix
    }

    fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    fn open(&self, index: usize, bytes: &[u8], sums: &mut [u64]) -> Result<Hash> {
        let block = &self.blocks[index];
        let decoded = self.decode(index, bytes)?;
        for ((m, _), fields) in decoded.iter().zip(sums.chunks_mut(block.fields.count)) {
            block.fields.check(*m)?;
            block.fields.unpack(*m, fields);
        }
        check_sums(sums, self.weight, self.derived.params.bounds.levels().of(block.bits))?;
        self.noise(index, &decoded)
    }
}

impl Decryptor for BfvDecryptor {
    fn decrypt(&self, frame: &[u8], expect: &Expect<'_>, sink: &mut dyn SumSink) -> Result<Summary> {
        let (head, layout, payload, tag) = self.receiver.admit(frame, expect)?;
        let opening = self.start(&head, layout, payload, expect)?;
        stream::open_all(&opening, head.header.total_weight(), payload, tag, sink, Threads::All)?;
        Ok(Summary::of(head.header, opening.layout))
    }

    fn prefix_len(&self, contributions: usize) -> usize {
        prefix_len(contributions)
    }

    fn opener(&self, head: &Head, expect: &Expect<'_>, prefix: &[u8]) -> Result<Option<Opening>> {
        let layout = self.receiver.check(head, expect)?;
        self.start(head, layout, prefix, expect).map(Some)
    }

    fn openings(&self) -> &Openings {
        self.receiver.openings()
    }
}
