//! `pasta-bfv`: clients encrypt with PASTA, the server transciphers into BFV and adds (hybrid HE).
//!
//! Upload: one field element a value, 17 or 33 bits. A client's PASTA key travels once a key epoch,
//! encrypted under the cohort's BFV key. Download: BFV ciphertexts switched to one or two primes.
//! Withstands an honest-but-curious server; the BFV secret is shared, so one client that colludes with the
//! server opens every update.

use super::cipher::{PASTA_3, PASTA_4, Pasta, Variant};
use super::field::Field;
use super::transcipher::{Context, Diagonals, EvaluationKeys, Transcipher, he};
use crate::admission::{Admission, check_sums, check_weight, open_aggregate};
use crate::bits::{BitWriter, check_stream, packed_len, read_bits};
use crate::bounds::Bounds;
use crate::codec::{Layout, SumSink};
use crate::keys::{ClientKey, KeySet, KeyTag, ServerKey};
use crate::ledger::Ledger;
use crate::scheme::{self, Aggregator, Decryptor, Encryptor, Progress, Request, Scheme, Summary};
use crate::wire::{self, Contribution, Kind, Place, Reader};
use crate::{Error, Result};
use fhe::bfv::{Ciphertext, Encoding, EvaluationKey, Plaintext, RelinearizationKey, SecretKey};
use fhe_traits::{DeserializeParametrized, FheEncoder, Serialize};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zeroize::{Zeroize, Zeroizing};

const NAME: &str = "pasta-bfv";
/// Bits of noise that must stay unused.
const MARGIN: u32 = 3;
/// Folding multiplies by a row mask: log2 of N times p, generously.
const FOLD_NOISE_17: u32 = 27;
const FOLD_NOISE_33: u32 = 44;

/// What the cohort must agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    pub bounds: Bounds,
    /// 3 or 4.
    pub variant: u32,
    /// 65537 or 8088322049.
    pub prime: u64,
}

type KeyCache = HashMap<([u8; 16], u32), Arc<Ciphertext>>;

/// What all objects of one scheme share: parameters, and on a server the keys it has parsed.
struct Shared {
    params: Params,
    context: Arc<Context>,
    evaluation: Mutex<Option<([u8; 16], Arc<EvaluationKeys>)>>,
    client_keys: Mutex<KeyCache>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The HE library's parsers assert on some malformed inputs; to a caller that is a malformed frame.
fn parsed<T>(what: &str, parse: impl FnOnce() -> fhe::Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(parse))
        .map_err(|_| Error::frame(format!("{what} is malformed")))?
        .map_err(|e| Error::frame(format!("{what} is malformed: {e}")))
}

/// Most noise bits of a transciphered ciphertext, from `docs/hybrid.md`; a test holds them to measurement.
#[must_use]
pub fn predicted_noise(variant: Variant, field: Field) -> u32 {
    match (variant.t, field.bits()) {
        (32, 17) => 316,
        (_, 17) => 266,
        (32, _) => 504,
        _ => 410,
    }
}

/// PASTA + BFV with validated parameters.
#[derive(Clone)]
pub struct PastaBfv(Arc<Shared>);

impl PastaBfv {
    pub fn new(params: Params) -> Result<Self> {
        let variant = match params.variant {
            3 => PASTA_3,
            4 => PASTA_4,
            other => return Err(Error::parameter("variant", format!("PASTA-{other} is not PASTA-3 or PASTA-4"))),
        };
        let field = Field::new(params.prime)?;
        let context = Context::shared(variant, field)?;
        let shared = Shared { params, context, evaluation: Mutex::new(None), client_keys: Mutex::new(HashMap::new()) };
        let spare = shared.spare_bits(true);
        if spare < 0 {
            return Err(Error::parameter(
                "max_weight",
                format!(
                    "the noise of a total weight of {} exceeds the budget by {} bits; use a smaller max_weight, fewer \
                     clients, or the 33-bit prime",
                    shared.params.bounds.total_weight(),
                    -spare
                ),
            ));
        }
        Ok(PastaBfv(Arc::new(shared)))
    }

    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Noise bits left after transciphering, the weighted sum and, with `folded`, the fold.
    #[must_use]
    pub fn spare_bits(&self, folded: bool) -> i64 {
        self.0.spare_bits(folded)
    }
}

impl Shared {
    fn spare_bits(&self, folded: bool) -> i64 {
        let c = &self.context;
        let sizes = c.par.moduli_sizes();
        // The last prime is the special prime; noise must stay below q / 2p.
        let q: usize = sizes[..sizes.len() - 1].iter().sum();
        let weight = 64 - self.params.bounds.total_weight().leading_zeros();
        let fold = if c.field.bits() <= 17 { FOLD_NOISE_17 } else { FOLD_NOISE_33 };
        let used = predicted_noise(c.variant, c.field) + c.field.bits() + 1 + weight + MARGIN;
        q as i64 - i64::from(used) - if folded { i64::from(fold) } else { 0 }
    }

    /// Primes left after the switch before broadcast.
    fn final_primes(&self) -> usize {
        if self.context.field.bits() <= 17 { 1 } else { 2 }
    }

    fn check_layout(&self, layout: &Layout) -> Result<()> {
        let (bounds, p) = (self.params.bounds, self.context.field.p());
        for segment in layout.segments() {
            if bounds.max_sum(segment.bits) >= u128::from(p) {
                // The largest power of two below p fits always; name what would.
                bounds.checked_field_bits(segment.bits, self.context.field.bits() - 1)?;
            }
        }
        Ok(())
    }

    /// Values of an update rounded up to whole blocks: the padding is encrypted zeros.
    fn padded(&self, elements: usize) -> usize {
        elements.next_multiple_of(self.context.variant.t)
    }

    fn chunks(&self, elements: usize) -> usize {
        elements.div_ceil(self.context.capacity())
    }

    fn evaluation_keys(&self, key: &ServerKey) -> Result<Arc<EvaluationKeys>> {
        let mut cached = locked(&self.evaluation);
        if let Some((id, keys)) = cached.as_ref()
            && *id == key.tag.key_id
        {
            return Ok(Arc::clone(keys));
        }
        let mut r = Reader::new(&key.public);
        r.bytes(key.cohort.len() * 32)?;
        let length = r.length()?;
        let galois = r.bytes(length)?;
        let relinearisation = r.rest();
        let par = &self.context.par;
        let missing = |e: Error| Error::Key { reason: format!("evaluation keys: {e}; load the server key again") };
        let keys = Arc::new(EvaluationKeys {
            galois: parsed("Galois key", || EvaluationKey::from_bytes(galois, par)).map_err(missing)?,
            relinearisation: parsed("relinearisation key", || RelinearizationKey::from_bytes(relinearisation, par))
                .map_err(missing)?,
        });
        // A new epoch: nobody needs the keys of the old one.
        locked(&self.client_keys).retain(|(id, _), _| *id == key.tag.key_id);
        *cached = Some((key.tag.key_id, Arc::clone(&keys)));
        Ok(keys)
    }
}

/// The parts of a client's secret: BFV secret key, PASTA key, and its encryption to send once.
struct Secret {
    bfv: SecretKey,
    pasta: Pasta,
    encrypted_key: Vec<u8>,
}

impl Shared {
    fn secret(&self, key: &ClientKey, digest: [u8; 16]) -> Result<Secret> {
        key.tag.check_scheme(NAME, digest)?;
        let c = &self.context;
        let bad = |_| Error::Key { reason: "a pasta-bfv client key is malformed".into() };
        let mut r = Reader::new(&key.secret);
        let mut words = Zeroizing::new(Vec::with_capacity(2 * c.variant.t));
        for _ in 0..2 * c.variant.t {
            words.push(r.u64().map_err(bad)?);
        }
        let length = r.length().map_err(bad)?;
        let encrypted_key = r.bytes(length).map_err(bad)?.to_vec();
        let bfv = parsed("BFV secret key", || SecretKey::from_bytes(r.rest(), &c.par)).map_err(bad)?;
        Ok(Secret { bfv, pasta: Pasta::new(c.variant, c.field, &words)?, encrypted_key })
    }
}

impl Scheme for PastaBfv {
    fn name(&self) -> &'static str {
        NAME
    }

    fn digest(&self) -> [u8; 16] {
        scheme::digest(&format!("{NAME}|{:?}", self.0.params))
    }

    fn check_layout(&self, layout: &Layout) -> Result<()> {
        self.0.check_layout(layout)
    }

    fn keygen(&self, cohort: &[u32], epoch: u64) -> Result<KeySet> {
        let c = &self.0.context;
        // Not the thread's generator: since rand 0.9 it goes on in a process forked off where its parent's does.
        let mut rng = StdRng::try_from_os_rng().map_err(|e| Error::Rng(e.to_string()))?;
        let secret = SecretKey::random(&c.par, &mut rng);
        let evaluation = EvaluationKeys::new(c, &secret, &mut rng)?;
        let secret_bytes = Zeroizing::new(secret.to_bytes());
        let mut ids = cohort.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let mut secrets = BTreeMap::new();
        let mut public = Vec::new();
        for id in &ids {
            let words = Pasta::random_key(c.variant, c.field)?;
            let encrypted = c.encrypt_key(&words, &secret, &mut rng)?.to_bytes();
            // The server accepts no other key from this client.
            public.extend_from_slice(&Sha256::digest(&encrypted));
            let mut own =
                Zeroizing::new(Vec::with_capacity(16 * c.variant.t + 8 + encrypted.len() + secret_bytes.len()));
            words.iter().for_each(|w| own.extend_from_slice(&w.to_le_bytes()));
            own.extend_from_slice(&(encrypted.len() as u64).to_le_bytes());
            own.extend_from_slice(&encrypted);
            own.extend_from_slice(&secret_bytes);
            secrets.insert(*id, own);
        }
        let galois = evaluation.galois.to_bytes();
        public.extend_from_slice(&(galois.len() as u64).to_le_bytes());
        public.extend_from_slice(&galois);
        public.extend_from_slice(&evaluation.relinearisation.to_bytes());
        let tag = KeyTag::fresh(NAME, self.digest(), epoch)?;
        KeySet::build(tag, cohort, public, |id| secrets.remove(&id).ok_or(Error::UnknownClient { client: id }))
    }

    fn encryptor(&self, key: &ClientKey, state: Option<&Path>) -> Result<Box<dyn Encryptor>> {
        let secret = self.0.secret(key, self.digest())?;
        Ok(Box::new(PastaEncryptor {
            shared: Arc::clone(&self.0),
            tag: key.tag.clone(),
            client: key.client,
            pasta: secret.pasta,
            encrypted_key: secret.encrypted_key,
            ledger: Ledger::open(key, state)?,
            setup_bytes: 0,
        }))
    }

    fn aggregator(&self, key: &ServerKey, round: Option<u64>) -> Result<Box<dyn Aggregator>> {
        key.tag.check_scheme(NAME, self.digest())?;
        let mut digests = BTreeMap::new();
        let mut r = Reader::new(&key.public);
        for client in &key.cohort {
            digests.insert(*client, r.array()?);
        }
        Ok(Box::new(PastaAggregator {
            keys: self.0.evaluation_keys(key)?,
            shared: Arc::clone(&self.0),
            key_id: key.tag.key_id,
            admission: Admission::new(key, self.0.params.bounds, round),
            digests,
            updates: Vec::new(),
        }))
    }

    fn decryptor(&self, key: &ClientKey) -> Result<Box<dyn Decryptor>> {
        let secret = self.0.secret(key, self.digest())?;
        Ok(Box::new(PastaDecryptor { shared: Arc::clone(&self.0), tag: key.tag.clone(), secret: secret.bfv }))
    }

    /// The sampled clients whose PASTA key the server already has, as u32 each: they need not send it.
    fn plan(&self, key: &ServerKey, sampled: &[u32], _last: Option<&[u8]>) -> Result<Vec<u8>> {
        let cached = locked(&self.0.client_keys);
        let of_this_epoch = cached.keys().filter(|(id, _)| *id == key.tag.key_id);
        let known: BTreeSet<u32> = of_this_epoch.map(|(_, client)| *client).collect();
        Ok(sampled.iter().filter(|c| known.contains(c)).flat_map(|c| c.to_le_bytes()).collect())
    }

    fn describe(&self) -> Vec<(String, String)> {
        let c = &self.0.context;
        let sizes = c.par.moduli_sizes();
        vec![
            ("variant".into(), format!("PASTA-{}", self.0.params.variant)),
            ("p".into(), c.field.p().to_string()),
            ("N".into(), c.par.degree().to_string()),
            ("log q".into(), sizes[..sizes.len() - 1].iter().sum::<usize>().to_string()),
            ("log special prime".into(), sizes.last().map_or(0, |s| *s).to_string()),
            ("values per ciphertext up".into(), c.capacity().to_string()),
            ("values per ciphertext down".into(), (2 * c.capacity()).to_string()),
            ("noise bits to spare".into(), self.0.spare_bits(true).to_string()),
        ]
    }
}

struct PastaEncryptor {
    shared: Arc<Shared>,
    tag: KeyTag,
    client: u32,
    pasta: Pasta,
    encrypted_key: Vec<u8>,
    ledger: Ledger,
    setup_bytes: usize,
}

impl Encryptor for PastaEncryptor {
    /// Payload: `key length u64 | encrypted key | packed words`.
    fn encrypt_into(&mut self, request: &Request<'_>, place: &mut dyn Place) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        check_weight(self.client, request.weight, shared.params.bounds.max_weight)?;
        let layout = request.update.layout();
        shared.check_layout(layout)?;
        self.ledger.claim(request.round)?;
        let known = request.plan.as_chunks::<4>().0.iter().any(|id| u32::from_le_bytes(*id) == self.client);
        let key: &[u8] = if known { &[] } else { &self.encrypted_key };
        self.setup_bytes = key.len();

        let mut ints = vec![0u32; layout.elements()];
        request.update.quantise(0, &mut ints)?;
        let mut words: Zeroizing<Vec<u64>> = Zeroizing::new(ints.iter().map(|v| u64::from(*v)).collect());
        ints.zeroize();
        words.resize(shared.padded(layout.elements()), 0);
        self.pasta.encrypt(request.round, &mut words);

        let own = vec![Contribution { client: self.client, weight: request.weight }];
        let header = self.tag.round_header(Kind::Update, request.round, own, layout);
        let bits = shared.context.field.bits();
        header.build(8 + key.len() + packed_len(words.len(), bits), place, |payload| {
            let (head, packed) = payload.split_at_mut(8 + key.len());
            head[..8].copy_from_slice(&(key.len() as u64).to_le_bytes());
            head[8..].copy_from_slice(key);
            let mut writer = BitWriter::new(packed);
            words.iter().for_each(|w| writer.push(u128::from(*w), bits));
            writer.finish();
            Ok(())
        })
    }

    fn setup_bytes(&self) -> usize {
        self.setup_bytes
    }
}

/// Holds the small PASTA ciphertexts until [`Aggregator::finish`], which does the work chunk by chunk:
/// its memory is one chunk's diagonals and one BFV sum a chunk.
struct PastaAggregator {
    shared: Arc<Shared>,
    keys: Arc<EvaluationKeys>,
    key_id: [u8; 16],
    admission: Admission,
    digests: BTreeMap<u32, [u8; 32]>,
    updates: Vec<Update>,
}

struct Update {
    client: u32,
    weight: u64,
    packed: Vec<u8>,
}

impl PastaAggregator {
    /// Takes up a client's encrypted PASTA key, if it is the one the authority made for it.
    fn learn_key(&self, client: u32, bytes: &[u8]) -> Result<()> {
        let digest: [u8; 32] = Sha256::digest(bytes).into();
        if self.digests.get(&client) != Some(&digest) {
            return Err(Error::Key {
                reason: format!("client {client} sent a PASTA key that is not the one issued to it in this epoch"),
            });
        }
        let ciphertext = parsed("encrypted PASTA key", || Ciphertext::from_bytes(bytes, &self.shared.context.par))?;
        locked(&self.shared.client_keys).insert((self.key_id, client), Arc::new(ciphertext));
        Ok(())
    }

    fn key_of(&self, client: u32) -> Result<Arc<Ciphertext>> {
        locked(&self.shared.client_keys).get(&(self.key_id, client)).cloned().ok_or_else(|| Error::Key {
            reason: format!(
                "client {client} has not sent its encrypted PASTA key in this epoch; it must send it again"
            ),
        })
    }

    /// The weighted sum of one chunk over all clients.
    fn chunk(
        &self,
        nonce: u64,
        chunk: usize,
        padded: usize,
        step: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Ciphertext> {
        let c = &self.shared.context;
        let values = c.capacity().min(padded - chunk * c.capacity());
        let diagonals = Diagonals::new(c, nonce, chunk, values / c.variant.t)?;
        let transcipher = Transcipher::new(c, &self.keys)?;
        let bits = c.field.bits();
        let mut sum: Option<Ciphertext> = None;
        // As many clients side by side as there are cores: their sequential parts overlap.
        for group in self.updates.chunks(rayon::current_num_threads()) {
            let done = group
                .par_iter()
                .map(|update| {
                    let first = chunk * c.capacity();
                    let words: Vec<u64> = (first..first + values)
                        .map(|k| read_bits(&update.packed, k * bits as usize, bits) as u64)
                        .collect();
                    let result = transcipher.decipher(&words, &*self.key_of(update.client)?, &diagonals)?;
                    if update.weight == 1 {
                        return Ok(result);
                    }
                    let scalar =
                        Plaintext::try_encode(&[update.weight], Encoding::poly_at_level(1), &c.par).map_err(he)?;
                    Ok(&result * &scalar)
                })
                .collect::<Result<Vec<_>>>()?;
            let count = done.len();
            for part in done {
                match &mut sum {
                    None => sum = Some(part),
                    Some(sum) => *sum += &part,
                }
            }
            step(count)?;
        }
        sum.ok_or(Error::EmptyCohort)
    }
}

impl Aggregator for PastaAggregator {
    fn add(&mut self, frame: &[u8], scale: u64) -> Result<Contribution> {
        let admitted = self.admission.check(frame, scale)?;
        self.shared.check_layout(&admitted.layout)?;
        let field = self.shared.context.field;
        let mut r = Reader::new(admitted.payload);
        let length = r.length()?;
        let key = r.bytes(length)?;
        let packed = r.rest();
        let words = self.shared.padded(admitted.layout.elements());
        check_stream(packed, words, field.bits())?;
        let bits = field.bits();
        if (0..words).any(|k| read_bits(packed, k * bits as usize, bits) >= u128::from(field.p())) {
            return Err(Error::frame("a ciphertext word is not below p"));
        }
        let Contribution { client, weight } = admitted.contribution;
        if !key.is_empty() {
            self.learn_key(client, key)?;
        }
        self.key_of(client)?;
        self.updates.push(Update { client, weight, packed: packed.to_vec() });
        Ok(self.admission.commit(admitted))
    }

    /// Transciphers and adds; progress counts (client, chunk) pairs.
    fn finish_with(&mut self, progress: &mut Progress<'_>) -> Result<Vec<u8>> {
        let header = self.admission.aggregate_header()?;
        let shared = Arc::clone(&self.shared);
        let c = &shared.context;
        let padded = shared.padded(self.admission.layout()?.elements());
        let chunks = shared.chunks(padded);
        let (mut done, total) = (0, chunks * self.updates.len());
        let mut step = |count: usize| {
            done += count;
            if progress(done, total) { Ok(()) } else { Err(Error::Cancelled { done, total }) }
        };
        step(0)?;
        let mut payload = Vec::new();
        let mut pending: Option<Ciphertext> = None;
        for chunk in 0..chunks {
            let sum = self.chunk(header.round, chunk, padded, &mut step)?;
            match pending.take() {
                None if chunk + 1 < chunks => pending = Some(sum),
                None => append(&shared, sum, &mut payload)?,
                Some(first) => append(&shared, fold(c, &first, &sum)?, &mut payload)?,
            }
        }
        self.updates.clear();
        Ok(header.frame(&payload))
    }
}

/// Two results in one ciphertext: row 0 of the first, row 1 of the second (both rows of each are equal).
fn fold(c: &Context, first: &Ciphertext, second: &Ciphertext) -> Result<Ciphertext> {
    let half = c.capacity();
    let mask = |row: usize| -> Result<Plaintext> {
        let slots: Vec<u64> = (0..2 * half).map(|slot| u64::from(slot / half == row)).collect();
        Plaintext::try_encode(&slots, Encoding::simd_at_level(1), &c.par).map_err(he)
    };
    let mut folded = first * &mask(0)?;
    folded += &(second * &mask(1)?);
    Ok(folded)
}

/// Switches to the last primes and appends `length u64 | ciphertext`.
fn append(shared: &Shared, mut sum: Ciphertext, payload: &mut Vec<u8>) -> Result<()> {
    let level = shared.context.par.max_level() + 1 - shared.final_primes();
    sum.switch_to_level(level).map_err(he)?;
    let bytes = sum.to_bytes();
    payload.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    payload.extend_from_slice(&bytes);
    Ok(())
}

struct PastaDecryptor {
    shared: Arc<Shared>,
    tag: KeyTag,
    secret: SecretKey,
}

impl Decryptor for PastaDecryptor {
    fn decrypt(&self, frame: &[u8], round: Option<u64>, sink: &mut dyn SumSink) -> Result<Summary> {
        let shared = &self.shared;
        let c = &shared.context;
        let (header, layout, payload) = open_aggregate(&self.tag, shared.params.bounds, frame, round)?;
        shared.check_layout(&layout)?;
        let elements = layout.elements();
        let padded = shared.padded(elements);
        let count = shared.chunks(padded).div_ceil(2);
        let mut r = Reader::new(payload);
        let mut sums: Zeroizing<Vec<u64>> = Zeroizing::new(Vec::new());
        for _ in 0..count {
            let length = r.length()?;
            let bytes = r.bytes(length)?;
            let ciphertext = parsed("aggregate", || Ciphertext::from_bytes(bytes, &c.par))?;
            let [row0, row1] = c.decrypt(&ciphertext, &self.secret)?;
            sums.extend_from_slice(&row0);
            if sums.len() < padded {
                sums.extend_from_slice(&row1);
            }
        }
        r.finish()?;
        // Padding and absent blocks were encrypted as zeros.
        if sums[elements.min(sums.len())..].iter().any(|s| *s != 0) {
            return Err(Error::Decrypt { reason: "padding does not decrypt to zero".into() });
        }
        let weight = header.total_weight();
        for segment in layout.segments() {
            check_sums(&sums[segment.start..segment.start + segment.len], weight, segment.bits)?;
        }
        sink.begin(&layout, weight)?;
        sink.put(0, &sums[..elements])?;
        Ok(Summary { header, layout, counts: None })
    }
}

/// The scheme id must fit the wire.
const _: () = assert!(NAME.len() <= std::mem::size_of::<wire::SchemeId>());
