//! The client's side: `round((c0 + c1 s) / delta)`, with c1 derived from the cohort's seeds or received.

use super::aggregate::Second;
use super::encrypt::cut;
use super::params::{Block, Derived};
use super::ring::SecretNtt;
use crate::admission::check_sums;
use crate::bits::{check_stream, read_bits};
use crate::client::Receiver;
use crate::codec::{Layout, SumSink};
use crate::keys::ClientKey;
use crate::ledger::Openings;
use crate::scheme::{Decryptor, Expect, Opening, Summary};
use crate::stream::{self, Opener, Piece, Threads};
use crate::wire::Head;
use crate::{Error, Result};
use std::path::Path;
use std::sync::Arc;

pub struct BfvDecryptor {
    derived: Arc<Derived>,
    receiver: Receiver,
    secret: Arc<SecretNtt>,
}

/// An aggregate: a piece is one ciphertext.
struct BfvOpener {
    derived: Arc<Derived>,
    secret: Arc<SecretNtt>,
    blocks: Vec<Block>,
    pieces: Vec<Piece>,
    c1: Second,
    prefix: usize,
    weight: u64,
}

impl BfvDecryptor {
    pub fn new(derived: Arc<Derived>, key: &ClientKey, state: Option<&Path>) -> Result<Self> {
        let secret = Arc::new(derived.ring.secret_ntt(&key.secret)?);
        let receiver = Receiver::new(key, derived.params.rules(), state)?;
        Ok(BfvDecryptor { derived, receiver, secret })
    }

    fn start(&self, head: &Head, layout: Layout, prefix: &[u8], expect: &Expect<'_>) -> Result<Opening> {
        let (d, header) = (&self.derived, &head.header);
        let blocks = d.shape(&layout)?;
        let (c1, prefix) = Second::parse(d, &header.contributions, prefix)?;
        let pieces = cut(&blocks, prefix, |block| c1.lens(d, block).iter().sum());
        let (derived, secret, weight) = (Arc::clone(d), Arc::clone(&self.secret), header.total_weight());
        let verifier = self.receiver.verifier(header, &layout, expect.bound);
        let opener = Box::new(BfvOpener { derived, secret, blocks, pieces, c1, prefix, weight });
        Ok(Opening { layout, opener, verifier })
    }
}

impl BfvOpener {
    /// The plaintext coefficients of ciphertext `index`.
    fn plaintext(&self, index: usize, bytes: &[u8]) -> Result<Vec<u128>> {
        let (d, block) = (&self.derived, &self.blocks[index]);
        let [first, second] = self.c1.lens(d, block);
        let (c0, c1) = bytes.split_at_checked(first).filter(|(_, c1)| c1.len() == second).ok_or_else(|| {
            Error::Frame { reason: format!("a ciphertext has {} bytes instead of {}", bytes.len(), first + second) }
        })?;
        let bits = self.c1.bits(d);
        check_stream(c0, block.used, bits)?;
        match &self.c1 {
            Second::Derive(seeds) => {
                let mut a = d.ring.zero();
                for (seed, scale) in seeds {
                    d.ring.accumulate_a(seed, index as u64, *scale, &mut a)?;
                }
                let product = d.ring.times_secret(a, &self.secret, block.used);
                let coefficient = |(k, a_s): (usize, &u128)| {
                    let c0 = d.expand(read_bits(c0, k * bits as usize, bits), d.down_drop)?;
                    d.decode(d.ring.sub(c0, *a_s))
                };
                product.iter().enumerate().map(coefficient).collect()
            }
            Second::Sent { switched } => {
                let small = d.small_ring.as_ref().filter(|_| *switched);
                let ring = small.unwrap_or(&d.ring);
                check_stream(c1, ring.n, bits)?;
                let coefficient = |bytes: &[u8], k: usize| {
                    Some(read_bits(bytes, k * bits as usize, bits))
                        .filter(|x| *x < ring.q)
                        .ok_or_else(|| Error::Frame { reason: "a ciphertext coefficient is not below q".into() })
                };
                let c1 = (0..ring.n).map(|k| coefficient(c1, k)).collect::<Result<Vec<_>>>()?;
                let first;
                let secret = if small.is_some() {
                    first = self.secret.first();
                    &first
                } else {
                    &*self.secret
                };
                let product = ring.times_secret(ring.residues(&c1), secret, block.used);
                let plaintext = |(k, c1_s): (usize, &u128)| {
                    let x = ring.add(coefficient(c0, k)?, *c1_s);
                    if small.is_some() { Ok(d.decode_switched(x, ring.q)) } else { d.decode(x) }
                };
                product.iter().enumerate().map(plaintext).collect()
            }
        }
    }
}

impl Opener for BfvOpener {
    fn prefix(&self) -> usize {
        self.prefix
    }

    fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    fn open(&self, index: usize, bytes: &[u8], sums: &mut [u64]) -> Result<()> {
        let block = &self.blocks[index];
        let plaintext = self.plaintext(index, bytes)?;
        for (m, fields) in plaintext.iter().zip(sums.chunks_mut(block.fields.count)) {
            block.fields.check(*m)?;
            block.fields.unpack(*m, fields);
        }
        check_sums(sums, self.weight, block.bits)
    }
}

impl Decryptor for BfvDecryptor {
    fn decrypt(&self, frame: &[u8], expect: &Expect<'_>, sink: &mut dyn SumSink) -> Result<Summary> {
        let (head, layout, payload, tag) = self.receiver.admit(frame, expect)?;
        let opening = self.start(&head, layout, payload, expect)?;
        stream::open_all(&opening, head.header.total_weight(), payload, tag, sink, Threads::All)?;
        Ok(Summary { header: head.header, layout: opening.layout, counts: None })
    }

    fn prefix_len(&self, contributions: usize) -> usize {
        Second::prefix_len(contributions)
    }

    fn opener(&self, head: &Head, expect: &Expect<'_>, prefix: &[u8]) -> Result<Option<Opening>> {
        let layout = self.receiver.check(head, expect)?;
        self.start(head, layout, prefix, expect).map(Some)
    }

    fn openings(&self) -> &Openings {
        self.receiver.openings()
    }
}
