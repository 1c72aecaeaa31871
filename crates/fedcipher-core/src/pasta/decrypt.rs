//! The client's side: BFV decryption of the folded sums.

use super::ring::wire::alone;
use super::scheme::{Shared, parsed};
use super::secret::Secret;
use crate::admission::check_sums;
use crate::client::Receiver;
use crate::codec::SumSink;
use crate::ledger::Openings;
use crate::scheme::{Decryptor, Expect, Opening, Summary};
use crate::wire::{Head, Reader};
use crate::{Error, Result};
use fhe::bfv::Ciphertext;
use fhe_traits::DeserializeParametrized;
use std::sync::Arc;
use zeroize::Zeroizing;

pub struct PastaDecryptor {
    shared: Arc<Shared>,
    receiver: Receiver,
    secret: Secret,
}

impl PastaDecryptor {
    pub fn new(shared: Arc<Shared>, receiver: Receiver, secret: Secret) -> Self {
        PastaDecryptor { shared, receiver, secret }
    }
}

impl Decryptor for PastaDecryptor {
    fn decrypt(&self, frame: &[u8], expect: &Expect<'_>, sink: &mut dyn SumSink) -> Result<Summary> {
        self.receiver.settled(self.open(frame, expect, sink))
    }

    fn opener(&self, head: &Head, expect: &Expect<'_>, _prefix: &[u8]) -> Result<Option<Opening>> {
        self.receiver.check(head, expect)?;
        Ok(None)
    }

    fn openings(&self) -> &Openings {
        self.receiver.openings()
    }
}

impl PastaDecryptor {
    fn open(&self, frame: &[u8], expect: &Expect<'_>, sink: &mut dyn SumSink) -> Result<Summary> {
        let shared = &self.shared;
        let c = &shared.context;
        let (Head { header, .. }, layout, payload, tag) = self.receiver.admit(frame, expect)?;
        shared.check_layout(&layout)?;
        let elements = layout.elements();
        let padded = shared.padded(elements);
        let count = shared.chunks(padded).div_ceil(2);
        let (par, secret) = (c.reader()?, self.secret.bfv(c)?);
        let mut r = Reader::new(payload);
        let mut sums: Zeroizing<Vec<u64>> = Zeroizing::new(Vec::new());
        for _ in 0..count {
            let length = r.length()?;
            let bytes = r.bytes(length)?;
            let bytes = alone("aggregate", bytes, c.moduli.len() - c.final_primes())?;
            let ciphertext = parsed("aggregate", || Ciphertext::from_bytes(&bytes, par))?;
            let [row0, row1] = c.decrypt(&ciphertext, &secret)?;
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
        let (weight, levels) = (header.total_weight(), shared.params.rules().levels);
        for segment in layout.segments() {
            check_sums(&sums[segment.start..segment.start + segment.len], weight, levels.of(segment.bits))?;
        }
        let verifier = self.receiver.verifier(&header, &layout, expect.bound);
        verifier.check(verifier.mac.hash_sums(&sums[..elements]), tag)?;
        sink.begin(&layout, levels, weight)?;
        sink.put(0, &sums[..elements])?;
        Ok(Summary::of(header, layout))
    }
}
