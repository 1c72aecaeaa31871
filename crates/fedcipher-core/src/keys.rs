//! The keys that the authority makes: a secret key per client, and a public key for the server.

use crate::codec::Layout;
use crate::mac::MacKey;
use crate::params_digest::ParamsDigest;
use crate::prf::random_bytes;
use crate::shown::shown;
use crate::sign::{SEED_LEN, SigningKey, VERIFY_LEN, is_key};
use crate::wire::{self, Contribution, Frame, Header, Kind, MemoryTag, ModelTag, Reader, SchemeId};
use crate::{ClientId, Epoch, Error, Result, RoundId, Weight};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zeroize::Zeroizing;

/// The public name of a key set: scheme, parameters, a random id and the epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyTag {
    pub scheme: SchemeId,
    pub params: [u8; 16],
    pub key_id: [u8; 16],
    pub epoch: Epoch,
}

impl KeyTag {
    /// A new key set of `epoch`, with a fresh random id.
    pub fn fresh(scheme: &str, params: [u8; 16], epoch: Epoch) -> Result<Self> {
        let key_id = shown(*random_bytes::<16>()?);
        Ok(KeyTag { scheme: wire::scheme_id(scheme)?, params, key_id, epoch })
    }

    /// The header of a frame under this key set.
    #[must_use]
    pub fn header(&self, kind: Kind, round: RoundId, contributions: Vec<Contribution>) -> Header {
        Header {
            kind,
            scheme: self.scheme,
            params: self.params,
            key_id: self.key_id,
            epoch: self.epoch,
            round,
            elements: 0,
            model: ModelTag::default(),
            memory: MemoryTag::default(),
            contributions,
            layout: Vec::new(),
        }
    }

    /// The header of an update or an aggregate of `layout` under this key set, trained from `model`, in a sum that counts in
    /// `memory`.
    #[must_use]
    pub fn round_header(
        &self,
        kind: Kind,
        round: RoundId,
        contributions: Vec<Contribution>,
        layout: &Layout,
        model: ModelTag,
        memory: MemoryTag,
    ) -> Header {
        Header {
            elements: layout.elements() as u64,
            model,
            memory,
            layout: layout.encode(),
            ..self.header(kind, round, contributions)
        }
    }

    fn of(header: &Header) -> Self {
        KeyTag { scheme: header.scheme, params: header.params, key_id: header.key_id, epoch: header.epoch }
    }

    /// Fails with the first field of `header` that does not belong to this key set.
    pub fn check(&self, header: &Header) -> Result<()> {
        if header.scheme != self.scheme {
            return Err(Error::Scheme {
                found: wire::scheme_name(&header.scheme),
                expected: wire::scheme_name(&self.scheme),
            });
        }
        self.check_params(header.params)?;
        if header.epoch != self.epoch {
            return Err(Error::Epoch { found: header.epoch, expected: self.epoch });
        }
        if header.key_id != self.key_id {
            return Err(Error::KeySet { epoch: self.epoch });
        }
        Ok(())
    }

    fn check_params(&self, found: [u8; 16]) -> Result<()> {
        if found == self.params {
            return Ok(());
        }
        Err(Error::Parameters { found: wire::hex(&found), expected: wire::hex(&self.params) })
    }

    /// Fails unless this key set was made for `scheme` with parameters of this digest, in the form of this version or
    /// of builds before 0.1.0.
    pub fn check_scheme(&self, scheme: &str, digest: ParamsDigest) -> Result<()> {
        if self.scheme != wire::scheme_id(scheme)? {
            return Err(Error::Scheme { found: wire::scheme_name(&self.scheme), expected: scheme.to_owned() });
        }
        match digest.whole(self.params) {
            Some(_) => Ok(()),
            None => Err(Error::Parameters { found: wire::hex(&self.params), expected: wire::hex(&digest.short()) }),
        }
    }
}

/// Bytes of the cohort's common secret.
const ROOT_LEN: usize = 32;

/// A client's secret key. Its bytes are zeroised when dropped and never printed.
#[derive(Clone)]
pub struct ClientKey {
    pub tag: KeyTag,
    pub client: ClientId,
    /// The cohort's secret for tags. It is independent of the scheme's key.
    pub root: Zeroizing<[u8; ROOT_LEN]>,
    /// The client's signing key. No other party has a copy.
    pub sign: SigningKey,
    /// The scheme's key material.
    pub secret: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "ClientKey({}, client {}, epoch {})",
            wire::scheme_name(&self.tag.scheme),
            self.client,
            self.tag.epoch
        )
    }
}

/// The parts of a key's frame. An error speaks of a file, because keys do not travel as frames do.
fn parse_key(bytes: &[u8], kind: Kind) -> Result<Frame<'_>> {
    wire::parse_kind(bytes, kind).map_err(unreadable)
}

fn unreadable(error: Error) -> Error {
    let reason = match error {
        Error::Frame { reason } => format!("{reason}; get it again from its maker"),
        other => other.to_string(),
    };
    Error::Key { reason }
}

/// Fails if a key's header has more content than its tag and its client. One reader could ignore such content and
/// another one use it.
fn check_bare(tag: &KeyTag, header: &Header) -> Result<()> {
    let holders = header.contributions.iter().map(|c| Contribution { weight: Weight::ONE, ..*c }).collect();
    if *header == tag.header(header.kind, RoundId::NONE, holders) {
        return Ok(());
    }
    Err(Error::Key { reason: "it contains more than a key; get it again from its maker".into() })
}

impl ClientKey {
    /// The cohort's MAC keys.
    pub fn mac(&self) -> Result<MacKey> {
        MacKey::new(&self.root)
    }

    /// Serialised form; it holds the secret. Payload: `root 32 | seed of the signing key 32 | the scheme's`.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let holder = vec![Contribution { client: self.client, weight: Weight::ONE }];
        let secret =
            Zeroizing::new([self.root.as_slice(), self.sign.seed().as_slice(), self.secret.as_slice()].concat());
        Zeroizing::new(self.tag.header(Kind::ClientKey, RoundId::NONE, holder).frame(&secret))
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let frame = parse_key(bytes, Kind::ClientKey)?;
        let short = || Error::Key { reason: "it is shorter than any client key".into() };
        let (root, secret) = frame.payload.split_first_chunk::<ROOT_LEN>().ok_or_else(short)?;
        let (seed, secret) = secret.split_first_chunk::<SEED_LEN>().ok_or_else(short)?;
        let tag = KeyTag::of(&frame.header);
        check_bare(&tag, &frame.header)?;
        match frame.header.contributions.as_slice() {
            [holder] => Ok(ClientKey {
                tag,
                client: holder.client,
                root: Zeroizing::new(*root),
                sign: SigningKey::from_seed(seed),
                secret: Zeroizing::new(secret.to_vec()),
            }),
            other => Err(Error::Key { reason: format!("a client key names one client, this one {}", other.len()) }),
        }
    }
}

/// The number of each client, and the public key that checks its signatures.
pub type Cohort = BTreeMap<ClientId, [u8; VERIFY_LEN]>;

/// The aggregator's key: the cohort and public material, no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerKey {
    pub tag: KeyTag,
    /// The clients, each with its verification key.
    pub cohort: Arc<Cohort>,
    pub public: Vec<u8>,
}

impl ServerKey {
    /// Payload: `each client's key to check signatures with 32 | the scheme's`.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let cohort = self.cohort.keys().map(|client| Contribution { client: *client, weight: Weight::ONE }).collect();
        let keys: Vec<u8> = self.cohort.values().flatten().copied().collect();
        self.tag.header(Kind::ServerKey, RoundId::NONE, cohort).frame(&[keys.as_slice(), &self.public].concat())
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let frame = parse_key(bytes, Kind::ServerKey)?;
        let tag = KeyTag::of(&frame.header);
        check_bare(&tag, &frame.header)?;
        let mut r = Reader::new(frame.payload);
        let mut seen = BTreeSet::new();
        let key = |c: &Contribution| {
            let key = r.array()?;
            // Two clients with one verification key would be one client that counts twice.
            if is_key(&key) && seen.insert(key) {
                Ok((c.client, key))
            } else {
                Err(Error::frame(format!("client {} has no key of its own to check signatures with", c.client)))
            }
        };
        let cohort = frame.header.contributions.iter().map(key).collect::<Result<Cohort>>().map_err(unreadable)?;
        Ok(ServerKey { tag, cohort: Arc::new(cohort), public: r.rest().to_vec() })
    }
}

/// The result of one key generation.
#[derive(Debug)]
pub struct KeySet {
    pub clients: Vec<ClientKey>,
    pub server: ServerKey,
}

impl KeySet {
    /// One key set for `cohort`, with a signing key a client; `secret` is called once per client.
    pub fn build(
        tag: KeyTag,
        cohort: &[ClientId],
        public: Vec<u8>,
        mut secret: impl FnMut(ClientId) -> Result<Zeroizing<Vec<u8>>>,
    ) -> Result<Self> {
        if cohort.is_empty() {
            return Err(Error::EmptyCohort);
        }
        let mut ids = cohort.to_vec();
        ids.sort_unstable();
        ids.dedup();
        if ids.len() != cohort.len() {
            return Err(Error::parameter("cohort", "names a client twice"));
        }
        let root = random_bytes()?;
        let client = |client: &ClientId| {
            let (sign, secret) = (SigningKey::generate()?, secret(*client)?);
            Ok(ClientKey { tag: tag.clone(), client: *client, root: root.clone(), sign, secret })
        };
        let clients = ids.iter().map(client).collect::<Result<Vec<_>>>()?;
        let cohort = Arc::new(clients.iter().map(|key| (key.client, key.sign.verify_key())).collect());
        Ok(KeySet { clients, server: ServerKey { tag, cohort, public } })
    }
}
