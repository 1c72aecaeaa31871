//! The client's side. The offline phase computes `a s + e` for all ciphertexts of an update. The online phase quantises,
//! packs, does one scaled addition and writes the bits.

use super::accelerator::{MaskJob, Session};
use super::params::{Block, Derived, Modulus, Part};
use super::ring::{Ring, SecretNtt};
use crate::bits::{BitWriter, check_stream, pack_first, packed_len, unpack_wide};
use crate::codec::{Layout, Update};
use crate::keys::ClientKey;
use crate::mac::hash::Hasher;
use crate::mac::{PolyEval, TagMaker};
use crate::prf::{Stream, random_bytes};
use crate::protocol::{ClaimedRound, EncryptKernel, Encryption, Piece, PieceEncryptor, Sender};
use crate::scheme::Terms;
use crate::shown::shown;
use crate::threads::Threads;
use crate::{Error, Result, RoundId};
use multiversion::multiversion;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use zeroize::Zeroizing;

/// Coefficients that are computed at once: one block of the tag's polynomial.
const RUN: usize = 512;

/// Precomputed `a s + e` under one fresh seed, for a single update.
struct Offline {
    seed: [u8; 32],
    masks: Vec<Mask>,
    /// The process that made this. A forked process must not use it again.
    process: u32,
}

pub struct BfvEncryptor {
    derived: Arc<Derived>,
    sender: Sender,
    secret: Arc<SecretNtt>,
    session: Option<Arc<Session>>,
    ready: Option<Offline>,
}

/// The mask `a s + e` of one ciphertext (empty if a device keeps it), and e, which the tag covers.
pub(crate) struct Mask {
    sum: Zeroizing<Vec<u128>>,
    errors: Zeroizing<Vec<i8>>,
}

/// A fresh seed of public polynomials. The seed is public: the frame carries it.
fn fresh_seed() -> Result<[u8; 32]> {
    Ok(shown(*random_bytes::<32>()?))
}

/// The public polynomial of ciphertext `index`.
fn public(d: &Derived, seed: &[u8; 32], index: usize) -> Result<Vec<Zeroizing<Vec<u64>>>> {
    let mut a = d.ring.zero();
    d.ring.accumulate_a(seed, index as u64, 1, &mut a)?;
    Ok(a)
}

/// The mask of ciphertext `index`, with these errors or with fresh ones.
fn mask(
    d: &Derived,
    secret: &SecretNtt,
    seed: &[u8; 32],
    index: usize,
    block: &Block,
    errors: Option<&[i8]>,
) -> Result<Mask> {
    let ring = &d.ring;
    let mut sum = ring.times_secret(public(d, seed, index)?, secret, block.used());
    let errors = match errors {
        Some(errors) => Zeroizing::new(errors.to_vec()),
        None => d.error.draws(&mut Stream::from_os()?, block.used()),
    };
    for (c, e) in sum.iter_mut().zip(errors.iter()) {
        *c = ring.add(*c, ring.lift(*e));
    }
    Ok(Mask { sum, errors })
}

impl BfvEncryptor {
    pub fn new(
        derived: Arc<Derived>,
        key: &ClientKey,
        state: Option<&Path>,
        session: Option<Arc<Session>>,
    ) -> Result<Self> {
        let secret = Arc::new(derived.ring.secret_ntt(&key.secret)?);
        let sender = Sender::new(key, derived.params.rules(), state)?;
        Ok(BfvEncryptor { derived, sender, secret, session, ready: None })
    }

    fn begin(&mut self, terms: &Terms<'_>) -> Result<CipherEncryptor> {
        let d = Arc::clone(&self.derived);
        let blocks = d.shape(terms.layout)?;
        let claimed = self.sender.claim(terms, terms.layout)?;
        let fits = |o: &Offline| {
            o.process == std::process::id()
                && o.masks.len() == blocks.len()
                && o.masks.iter().zip(&blocks).all(|(m, b)| m.errors.len() == b.used())
        };
        let (seed, masks) = match self.ready.take().filter(fits) {
            Some(ready) => (ready.seed, ready.masks.into_iter().map(|mask| Mutex::new(Some(mask))).collect()),
            None => (fresh_seed()?, Vec::new()),
        };
        let (secret, session, prefix) = (Arc::clone(&self.secret), self.session.clone(), seed.to_vec());
        let pieces = cut(&blocks, prefix.len(), Block::up_bytes);
        Ok(CipherEncryptor { derived: d, secret, session, claimed, seed, prefix, masks, blocks, pieces })
    }
}

/// Encrypts the pieces of an update. A piece is the c0 of one ciphertext.
pub(crate) struct CipherEncryptor {
    pub derived: Arc<Derived>,
    pub secret: Arc<SecretNtt>,
    /// A device that has the secret.
    pub session: Option<Arc<Session>>,
    pub claimed: ClaimedRound,
    /// The seed of the public polynomials a.
    pub seed: [u8; 32],
    pub prefix: Vec<u8>,
    /// The masks of the offline phase, if any. The encryption of a piece takes its mask and wipes it in the same thread.
    /// So all threads share the wiping, and the mask is still in their caches.
    pub masks: Vec<Mutex<Option<Mask>>>,
    pub blocks: Vec<Block>,
    pub pieces: Vec<Piece>,
}

impl PieceEncryptor for CipherEncryptor {
    fn claimed(&self) -> &ClaimedRound {
        &self.claimed
    }

    fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// A device encrypts one piece at a time.
    fn threads(&self) -> Threads {
        if self.session.is_some() { Threads::One } else { Threads::All }
    }

    fn encrypt_piece(&self, index: usize, update: &Update<'_>, out: &mut [u8]) -> Result<PolyEval> {
        let (d, block) = (&self.derived, &self.blocks[index]);
        if let Some(session) = device(self.session.as_ref(), d, block) {
            return self.encrypt_on_device(session, index, update, out);
        }
        let mask = match self.ready(index)? {
            Some(mask) => mask,
            None => mask(d, &self.secret, &self.seed, index, block, None)?,
        };
        let mut noises = self.noises(index);
        let (mut fields, mut rest) = (PolyEval::default(), out);
        for part in &block.parts {
            let (own, behind) = rest.split_at_mut(part.up_bytes());
            fields += self.encrypt_part(part, &mask, update, &mut noises, own)?;
            rest = behind;
        }
        Ok(self.hash(fields, noises.hash()))
    }
}

/// Computes c0 from packed fields and their mask, drops its low bits, and computes the noise that the tag covers.
#[multiversion(targets("x86_64+bmi1+bmi2+adx"))]
fn cover(
    (ring, modulus): (&Ring, &Modulus),
    packed: &[u128],
    (sums, errors): (&[u128], &[i8]),
    noise: &mut [u32],
    wire: &mut [[u8; 16]],
) {
    let (delta, drop) = (modulus.delta, modulus.up_drop);
    // Dropping bits adds half a unit less the dropped bits. The sum is shifted so that it is never negative.
    let half = (1u32 << drop) >> 1;
    let (low, max) = ((1u32 << drop) - 1, modulus.fresh_noise as u32 + half);
    for ((((m, sum), error), noise), wire) in packed.iter().zip(sums).zip(errors).zip(noise).zip(wire) {
        let c0 = ring.add(*sum, delta.wrapping_mul(*m));
        let gone = (c0 as u32).wrapping_add(half) & low;
        *noise = max.wrapping_add_signed(i32::from(*error)).wrapping_sub(gone);
        *wire = modulus.compress(c0).to_le_bytes();
    }
}

impl CipherEncryptor {
    fn tag_maker(&self) -> &TagMaker {
        self.claimed.tag_maker()
    }

    /// Encrypts the elements of `part` with their coefficients of `mask`. Returns their part of the tag.
    fn encrypt_part(
        &self,
        part: &Part,
        mask: &Mask,
        update: &Update<'_>,
        noises: &mut Hasher<'_>,
        out: &mut [u8],
    ) -> Result<PolyEval> {
        let (fields, modulus) = (part.packing.fields, &part.packing.modulus);
        let (weight, wire_bits, step) = (self.tag_maker().factor(), modulus.up_bits, fields.count * RUN);
        let mut hasher = self.tag_maker().mac.hasher(part.start);
        let mut ints = Zeroizing::new(vec![0u32; step.min(part.len)]);
        let mut packed = Zeroizing::new([0u128; RUN]);
        let mut noise = Zeroizing::new([0u32; RUN]);
        let mut wire = [[0u8; 16]; RUN];
        let (mut done, mut made) = (0, 0);
        while done < part.len {
            let n = step.min(part.len - done);
            let ints = &mut ints[..n];
            update.quantise(self.tag_maker().levels, part.start + done, ints)?;
            hasher.fields(ints);
            fields.pack(ints, weight, &mut *packed);
            let run = &packed[..fields.coefficients(n)];
            let own = part.first + made;
            let under = (&mask.sum[own..], &mask.errors[own..]);
            cover((&self.derived.ring, modulus), run, under, &mut *noise, &mut wire);
            noises.fields(&noise[..run.len()]);
            // A run begins on a byte.
            let end = packed_len(made + run.len(), wire_bits);
            pack_first(&wire[..run.len()], wire_bits, &mut out[packed_len(made, wire_bits)..end]);
            done += n;
            made += run.len();
        }
        Ok(hasher.hash())
    }

    /// Takes the precomputed mask of a piece. Returns `None` if no masks were precomputed.
    fn ready(&self, index: usize) -> Result<Option<Mask>> {
        let Some(place) = self.masks.get(index) else { return Ok(None) };
        let mask = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A fresh mask would be the second one under the same public polynomial, so this is an error.
        mask.map(Some).ok_or_else(|| Error::layout(format!("piece {index} has been encrypted already")))
    }

    /// A hasher for the noise of a piece.
    fn noises(&self, index: usize) -> Hasher<'_> {
        self.tag_maker().mac.noise_hasher(index * self.derived.ring.n)
    }

    /// The tag's part for a piece, from its fields and its noise.
    fn hash(&self, fields: PolyEval, noise: PolyEval) -> PolyEval {
        let mut hash = self.tag_maker().scale_by_weight(fields);
        hash += noise;
        hash
    }

    /// Like [`PieceEncryptor::encrypt_piece`], with the ring's arithmetic on a device. If the device fails and fall-back
    /// is allowed, the core computes the piece.
    fn encrypt_on_device(
        &self,
        session: &Session,
        index: usize,
        update: &Update<'_>,
        out: &mut [u8],
    ) -> Result<PolyEval> {
        let (d, block) = (&self.derived, &self.blocks[index]);
        let plaintext = || -> Result<_> {
            let errors = match self.ready(index)? {
                Some(mask) => mask.errors,
                None => d.error.draws(&mut Stream::from_os()?, block.used()),
            };
            let mut fields = PolyEval::default();
            let mut plain = Zeroizing::new(vec![0; block.used()]);
            for part in &block.parts {
                let mut hasher = self.tag_maker().mac.hasher(part.start);
                let mut ints = Zeroizing::new(vec![0u32; part.len]);
                update.quantise(self.tag_maker().levels, part.start, &mut ints)?;
                hasher.fields(&ints);
                part.packing.fields.pack(&ints, self.tag_maker().factor(), &mut plain[part.first..]);
                fields += hasher.hash();
            }
            Ok((errors, fields, plain))
        };
        let (errors, fields, plain) = session.host(plaintext)?;

        let job = || Ok(MaskJob { a: public(d, &self.seed, index)?, e: errors.clone() });
        let made = session.encrypt(&self.seed, index, plain.clone(), job)?;
        let noise = session.host(|| self.write_sums(made, index, &errors, &plain, out))?;
        let mut noises = self.noises(index);
        noises.fields(&noise);
        Ok(self.hash(fields, noises.hash()))
    }

    /// Writes c0 from a device, or computes it in the core if the device returned nothing. Returns the noise that the tag
    /// covers.
    fn write_sums(
        &self,
        made: Option<Vec<u8>>,
        index: usize,
        errors: &[i8],
        plain: &[u128],
        mut out: &mut [u8],
    ) -> Result<Zeroizing<Vec<u32>>> {
        let (d, block, modulus) = (&self.derived, &self.blocks[index], &self.derived.values);
        let bits = d.ring.log_q();
        let sums: Vec<u128> = match made {
            Some(bytes) => {
                check_stream(&bytes, block.used(), bits)?;
                let mut sums = vec![0; block.used()];
                unpack_wide(&bytes, bits, &mut sums);
                sums
            }
            None => {
                let mask = mask(d, &self.secret, &self.seed, index, block, Some(errors))?;
                mask.sum.iter().zip(plain.iter()).map(|(a, m)| d.ring.add(*a, modulus.delta.wrapping_mul(*m))).collect()
            }
        };
        if sums.iter().any(|c0| *c0 >= d.ring.q) {
            return Err(Error::Device { reason: "a coefficient that came back is not below q".into() });
        }
        let half = (1u32 << modulus.up_drop) >> 1;
        let (low, max) = ((1u32 << modulus.up_drop) - 1, modulus.fresh_noise as u32 + half);
        let noise = |(c0, error): (&u128, &i8)| {
            let gone = (*c0 as u32).wrapping_add(half) & low;
            max.wrapping_add_signed(i32::from(*error)).wrapping_sub(gone)
        };
        for part in &block.parts {
            let (own, behind) = out.split_at_mut(part.up_bytes());
            let mut writer = BitWriter::new(own);
            let sent = &sums[part.first..part.first + part.used];
            sent.iter().for_each(|c0| writer.push(modulus.compress(*c0), modulus.up_bits));
            writer.finish();
            out = behind;
        }
        Ok(Zeroizing::new(sums.iter().zip(errors).map(noise).collect()))
    }
}

/// The device, if it can encrypt this ciphertext. A device has only the plaintext modulus [`Derived::values`].
pub(crate) fn device<'a>(session: Option<&'a Arc<Session>>, d: &Derived, block: &Block) -> Option<&'a Arc<Session>> {
    session.filter(|_| d.fits_device(block))
}

/// Cuts a payload into one piece for each ciphertext. A piece has `bytes(block)` bytes, and the first begins behind
/// `prefix` bytes.
pub(crate) fn cut(blocks: &[Block], prefix: usize, bytes: impl Fn(&Block) -> usize) -> Vec<Piece> {
    let mut at = prefix;
    let piece = |block: &Block| {
        let piece = Piece { start: block.start(), len: block.len(), at, bytes: bytes(block) };
        at += piece.bytes;
        piece
    };
    blocks.iter().map(piece).collect()
}

impl EncryptKernel for BfvEncryptor {
    fn start(&mut self, terms: &Terms<'_>) -> Result<Option<Encryption>> {
        Ok(Some(Encryption::new(self.begin(terms)?)))
    }

    /// Runs the offline phase for the next update of this layout.
    fn precompute(&mut self, round: RoundId, layout: &Layout, _plan: &[u8]) -> Result<()> {
        let seed = fresh_seed()?;
        let blocks = self.derived.shape(layout)?;
        let (d, secret) = (&self.derived, &self.secret);
        let masks = match &self.session {
            None => self.sender.reserve_during(round, || {
                Threads::All.map(&blocks, |k, block| mask(d, secret, &seed, k, block, None))
            })?,
            Some(session) => {
                self.sender.reserve(round)?;
                let (mut masks, mut jobs) = (Vec::with_capacity(blocks.len()), Vec::new());
                for (k, block) in blocks.iter().enumerate() {
                    if !d.fits_device(block) {
                        masks.push(session.host(|| mask(d, secret, &seed, k, block, None))?);
                        continue;
                    }
                    let errors = d.error.draws(&mut Stream::from_os()?, block.used());
                    jobs.push(session.host(|| Ok::<_, Error>(MaskJob { a: public(d, &seed, k)?, e: errors.clone() }))?);
                    masks.push(Mask { sum: Zeroizing::default(), errors });
                }
                // If the device fails, the masks are computed when they are needed.
                session.prepare(&seed, &jobs)?;
                masks
            }
        };
        self.ready = Some(Offline { seed, masks, process: std::process::id() });
        Ok(())
    }
}
