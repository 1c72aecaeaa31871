//! One framed, versioned byte format for updates, aggregates and keys.
//!
//! All integers little-endian:
//! `"FEDC" | version u8 | kind u8 | 0 u16 | scheme [16] | params [16] | key_id [16] | epoch u64 |
//! round u64 | elements u64 | model [16] | memory [16] | clients u32 | layout_len u32 | payload_len u64 |
//! clients x (id u32, weight u64) | layout | payload | crc64-nvme u64`.
//!
//! The payload of an update ends with `tag 16 | signature 64` (of `oneshot`: 3373), that of an aggregate with `tag 16`. The tag
//! ([`crate::mac`]) finds forgery, and binds the header. The signature ([`crate::statement`]) proves which client sent the
//! update. The checksum finds damage, and needs no key.

use crate::memory::zeros;
use crate::shown::shown;
use crate::{ClientId, Epoch, Error, Result, RoundId, TotalWeight, Weight};

const MAGIC: [u8; 4] = *b"FEDC";
const VERSION: u8 = 5;
const FIXED: usize = 128;
/// A scheme id: its ASCII name padded with zeros.
pub type SchemeId = [u8; 16];
/// A keyed tag of the global model that an update was trained from; zeros in keys.
pub type ModelTag = [u8; 16];
/// A keyed tag of the memory of the rule of sets that a sum counts in; zeros where there is none, and in keys.
pub type MemoryTag = [u8; 16];
const PER_CLIENT: usize = 12;
const CRC: usize = 8;
const CRC_64: crc_fast::CrcAlgorithm = crc_fast::CrcAlgorithm::Crc64Nvme;

/// The content of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Update = 1,
    Aggregate = 2,
    ClientKey = 3,
    ServerKey = 4,
    /// Sent to a committee member, and answered by it.
    Request = 5,
    Answer = 6,
    Complaint = 7,
    /// Sent to a committee member, and answered by it: a set to agree on.
    Proposal = 8,
    Agreement = 9,
    /// Sent by a committee member to the clients.
    Prekey = 10,
}

impl Kind {
    fn parse(byte: u8) -> Result<Self> {
        match byte {
            1 => Ok(Kind::Update),
            2 => Ok(Kind::Aggregate),
            3 => Ok(Kind::ClientKey),
            4 => Ok(Kind::ServerKey),
            5 => Ok(Kind::Request),
            6 => Ok(Kind::Answer),
            7 => Ok(Kind::Complaint),
            8 => Ok(Kind::Proposal),
            9 => Ok(Kind::Agreement),
            10 => Ok(Kind::Prekey),
            other => Err(Error::frame(format!("unknown frame kind {other}"))),
        }
    }
}

/// A client and its integer weight in the sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contribution {
    pub client: ClientId,
    pub weight: Weight,
}

impl Contribution {
    /// The bytes of a contribution in a head.
    #[must_use]
    pub fn to_bytes(self) -> [u8; PER_CLIENT] {
        let mut out = [0; PER_CLIENT];
        out[..4].copy_from_slice(&self.client.to_le_bytes());
        out[4..].copy_from_slice(&self.weight.to_le_bytes());
        out
    }
}

/// A frame without its payload. `scheme` is an ASCII name padded with zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    pub scheme: SchemeId,
    pub params: [u8; 16],
    pub key_id: [u8; 16],
    pub epoch: Epoch,
    pub round: RoundId,
    pub elements: u64,
    pub model: ModelTag,
    pub memory: MemoryTag,
    /// Strictly increasing by client id.
    pub contributions: Vec<Contribution>,
    pub layout: Vec<u8>,
}

/// A parsed frame that borrows its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame<'a> {
    pub header: Header,
    pub payload: &'a [u8],
}

/// Pads a scheme name to the sixteen bytes of the wire.
pub fn scheme_id(name: &str) -> Result<SchemeId> {
    let mut id = [0u8; 16];
    if name.is_empty() || name.len() > id.len() || !name.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Error::parameter("scheme", format!("{name:?} is not 1 to 16 printable ASCII characters")));
    }
    for (slot, byte) in id.iter_mut().zip(name.bytes()) {
        *slot = byte;
    }
    Ok(id)
}

/// The name in a padded scheme id, for messages.
#[must_use]
pub fn scheme_name(id: &SchemeId) -> String {
    id.iter().take_while(|b| **b != 0).flat_map(|b| std::ascii::escape_default(*b)).map(char::from).collect()
}

/// Bytes in hexadecimal, for messages.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl Header {
    /// Refuses a frame of another kind.
    pub fn check_kind(&self, kind: Kind) -> Result<()> {
        if self.kind == kind {
            return Ok(());
        }
        Err(Error::Kind { found: self.kind as u8, expected: kind as u8 })
    }

    /// The sum of the weights of all contributions. Each caller checks it against its own bound.
    #[must_use]
    pub fn total_weight(&self) -> TotalWeight {
        TotalWeight::of(self.contributions.iter().map(|c| c.weight))
    }

    /// The bytes that all updates of a round share with their aggregate.
    #[must_use]
    pub fn common(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIXED + self.layout.len());
        for part in [&self.scheme, &self.params, &self.key_id, &self.model, &self.memory] {
            out.extend_from_slice(part);
        }
        for part in [self.epoch.get(), self.round.get(), self.elements, self.layout.len() as u64] {
            out.extend_from_slice(&part.to_le_bytes());
        }
        out.extend_from_slice(&self.layout);
        out
    }

    /// The length in bytes of a frame with a payload of this size.
    #[must_use]
    pub fn frame_len(&self, payload_len: usize) -> usize {
        FIXED + self.contributions.len() * PER_CLIENT + self.layout.len() + payload_len + CRC
    }

    /// Builds a frame in `place`, which gives memory of the requested length. `fill` writes the payload to its final
    /// address, so a large ciphertext is not copied between buffers.
    pub fn build(
        &self,
        payload_len: usize,
        place: &mut dyn FrameBuffer,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let out = place.reserve(self.frame_len(payload_len))?;
        let head = self.head(payload_len);
        let (start, rest) = out.split_at_mut(head.len());
        start.copy_from_slice(&head);
        fill(&mut rest[..payload_len])?;
        let end = head.len() + payload_len;
        let crc = checksum(&out[..end]);
        out[end..].copy_from_slice(&crc.to_le_bytes());
        Ok(())
    }

    /// Everything before the payload, as bytes.
    #[must_use]
    pub fn head(&self, payload_len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.frame_len(0));
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, self.kind as u8, 0, 0]);
        out.extend_from_slice(&self.scheme);
        out.extend_from_slice(&self.params);
        out.extend_from_slice(&self.key_id);
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.round.to_le_bytes());
        out.extend_from_slice(&self.elements.to_le_bytes());
        out.extend_from_slice(&self.model);
        out.extend_from_slice(&self.memory);
        out.extend_from_slice(&(self.contributions.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.layout.len() as u32).to_le_bytes());
        out.extend_from_slice(&(payload_len as u64).to_le_bytes());
        for c in &self.contributions {
            out.extend_from_slice(&c.to_bytes());
        }
        out.extend_from_slice(&self.layout);
        out
    }

    /// Builds a frame in `place` from a payload in parts. Each part is copied once.
    pub fn build_from(&self, parts: &[&[u8]], place: &mut dyn FrameBuffer) -> Result<()> {
        self.build(parts.iter().map(|part| part.len()).sum(), place, |payload| {
            let mut rest = payload;
            for part in parts {
                let (start, end) = rest.split_at_mut(part.len());
                start.copy_from_slice(part);
                rest = end;
            }
            Ok(())
        })
    }

    /// A whole frame with a copy of `payload`.
    #[must_use]
    pub fn frame(&self, payload: &[u8]) -> Vec<u8> {
        let mut out = self.head(payload.len());
        out.extend_from_slice(payload);
        append_checksum(out)
    }
}

/// Allocates the memory of one frame.
pub trait FrameBuffer {
    /// Exactly `len` zero bytes.
    fn reserve(&mut self, len: usize) -> Result<&mut [u8]>;
}

impl FrameBuffer for Vec<u8> {
    fn reserve(&mut self, len: usize) -> Result<&mut [u8]> {
        *self = zeros(len);
        Ok(self)
    }
}

/// Appends the checksum of all bytes.
#[must_use]
pub fn append_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = checksum(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

// Uses one thread: the caller may be a forked process, which has no rayon threads.
fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CRC_64, bytes)
}

/// Reads fixed-size fields off the front of a byte slice; every read is checked.
#[derive(Clone)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }

    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, tail) =
            self.0.split_at_checked(n).ok_or_else(|| Error::frame(format!("ends {} bytes early", n - self.0.len())))?;
        self.0 = tail;
        Ok(head)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0u8; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// The number of a round.
    pub fn round(&mut self) -> Result<RoundId> {
        self.array().map(RoundId::from_le_bytes)
    }

    /// The number of a key epoch.
    pub fn epoch(&mut self) -> Result<Epoch> {
        self.array().map(Epoch::from_le_bytes)
    }

    /// The number of a client, or of another party.
    pub fn client(&mut self) -> Result<ClientId> {
        self.array().map(ClientId::from_le_bytes)
    }

    /// A client's weight. The caller must check it against a bound.
    pub fn weight(&mut self) -> Result<Weight> {
        self.array().map(Weight::from_le_bytes)
    }

    /// A 64-bit length that must fit the address space.
    pub fn length(&mut self) -> Result<usize> {
        let n = self.u64()?;
        usize::try_from(n).map_err(|_| Error::frame(format!("length {n} exceeds the address space")))
    }

    #[must_use]
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    pub fn finish(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::frame(format!("{} bytes too many", self.0.len()))) }
    }
}

/// Bytes of the part of a head that has a fixed length. [`head_len`] reads them.
pub const FIXED_LEN: usize = FIXED;
/// Bytes after the payload.
pub const CRC_LEN: usize = CRC;

/// The part of a frame before the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub header: Header,
    pub payload_len: usize,
}

/// Checks magic and version. Returns a reader of the fields that follow.
fn preamble<'a>(bytes: &'a [u8]) -> Result<Reader<'a>> {
    let mut r = Reader::new(bytes);
    if r.array::<4>()? != MAGIC {
        return Err(Error::frame("it does not begin with FEDC"));
    }
    let version = r.u8()?;
    if version != VERSION {
        return Err(Error::frame(format!("version {version}, this build reads version {VERSION}")));
    }
    Ok(r)
}

/// (clients, layout bytes, payload bytes) of a head, from its first [`FIXED_LEN`] bytes.
fn lengths(fixed: &[u8]) -> Result<(usize, usize, usize)> {
    let mut r = preamble(fixed)?;
    r.bytes(FIXED - 5 - 16)?;
    Ok((r.u32()? as usize, r.u32()? as usize, r.length()?))
}

/// Bytes before the payload, from the first [`FIXED_LEN`] bytes of a frame.
pub fn head_len(fixed: &[u8]) -> Result<usize> {
    let (clients, layout_len, _) = lengths(fixed)?;
    clients
        .checked_mul(PER_CLIENT)
        .and_then(|n| n.checked_add(layout_len))
        .and_then(|n| n.checked_add(FIXED))
        .ok_or_else(|| Error::frame("the lengths in its header do not add up to its size"))
}

/// Parses [`head_len`] bytes. The checksum comes last in a frame. A caller that reads a frame as a stream must compute
/// a [`Checksum`], and discard all results if it differs.
pub fn parse_head(bytes: &[u8]) -> Result<Head> {
    let mut r = preamble(bytes)?;
    let kind = Kind::parse(r.u8()?)?;
    if r.u16()? != 0 {
        return Err(Error::frame("reserved bytes are not zero"));
    }
    let scheme = r.array()?;
    let params = r.array()?;
    let key_id = r.array()?;
    let epoch = r.epoch()?;
    let round = r.round()?;
    let elements = r.u64()?;
    let (model, memory) = (r.array()?, r.array()?);
    let (clients, layout_len) = (r.u32()? as usize, r.u32()? as usize);
    let payload_len = r.length()?;
    if head_len(bytes)? != bytes.len() {
        return Err(Error::frame("the lengths in its header do not add up to its size"));
    }
    let mut contributions = Vec::with_capacity(clients);
    for _ in 0..clients {
        let next = Contribution { client: r.client()?, weight: r.weight()? };
        if contributions.last().is_some_and(|last: &Contribution| last.client >= next.client) {
            return Err(Error::frame("client ids are not strictly increasing"));
        }
        contributions.push(next);
    }
    let layout = r.bytes(layout_len)?.to_vec();
    let header = Header { kind, scheme, params, key_id, epoch, round, elements, model, memory, contributions, layout };
    Ok(Head { header, payload_len })
}

/// The checksum of a frame that is read or written in parts.
pub struct Checksum(crc_fast::Digest);

impl Default for Checksum {
    fn default() -> Self {
        Checksum(crc_fast::Digest::new(CRC_64))
    }
}

impl Checksum {
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The last bytes of the frame.
    #[must_use]
    pub fn finish(&self) -> [u8; CRC] {
        self.0.finalize().to_le_bytes()
    }

    /// Fails if a frame ends with other bytes than these.
    pub fn check(&self, tail: &[u8]) -> Result<()> {
        if tail == self.finish() { Ok(()) } else { Err(damaged()) }
    }
}

fn damaged() -> Error {
    Error::frame("checksum mismatch, bytes were damaged or lost on the way")
}

/// Parses and checks a frame. Allocates memory only for contributions and a layout that the frame contains.
pub fn parse(bytes: &[u8]) -> Result<Frame<'_>> {
    let body_len = bytes
        .len()
        .checked_sub(CRC)
        .filter(|n| *n >= FIXED)
        .ok_or_else(|| Error::frame(format!("{} bytes is shorter than any frame", bytes.len())))?;
    let (body, crc) = bytes.split_at(body_len);
    preamble(body)?;
    // Damage to a key may be visible, too.
    if shown(Reader::new(crc).u64()? != checksum(body)) {
        return Err(damaged());
    }
    let (_, _, payload_len) = lengths(body)?;
    let head_len = head_len(body)?;
    if head_len.checked_add(payload_len) != Some(body.len()) {
        return Err(Error::frame("the lengths in its header do not add up to its size"));
    }
    let (head, payload) = body.split_at(head_len);
    Ok(Frame { header: parse_head(head)?.header, payload })
}

/// Like [`parse`], for a frame that must be of `kind`.
pub fn parse_kind(bytes: &[u8], kind: Kind) -> Result<Frame<'_>> {
    let frame = parse(bytes)?;
    frame.header.check_kind(kind)?;
    Ok(frame)
}
