//! The client's side: BFV decryption of the folded sums.

use super::ring::wire::alone;
use super::secret::Secret;
use super::shared::{Shared, parsed};
use crate::admission::check_sums;
use crate::codec::SumSink;
use crate::protocol::{CheckedHead, ClaimedSum, DecryptKernel, PieceDecryptor, Proven, Receiver};
use crate::wire::Reader;
use crate::{Error, Result};
use fhe::bfv::Ciphertext;
use fhe_traits::DeserializeParametrized;
use std::sync::Arc;
use zeroize::Zeroizing;

pub struct PastaDecryptor {
    shared: Arc<Shared>,
    receiver: Arc<Receiver>,
    secret: Secret,
}

impl PastaDecryptor {
    pub fn new(shared: Arc<Shared>, receiver: Receiver, secret: Secret) -> Self {
        PastaDecryptor { shared, receiver: Arc::new(receiver), secret }
    }
}

impl DecryptKernel for PastaDecryptor {
    fn receiver(&self) -> &Arc<Receiver> {
        &self.receiver
    }

    fn opener(&self, _checked: &CheckedHead, _prefix: &[u8]) -> Result<Option<Box<dyn PieceDecryptor>>> {
        Ok(None)
    }

    fn open_whole(&self, sum: ClaimedSum, payload: &[u8], sink: &mut dyn SumSink) -> Result<Proven> {
        let shared = &self.shared;
        let c = &shared.context;
        let layout = sum.layout();
        shared.check_layout(layout)?;
        let elements = layout.elements();
        let padded = shared.padded(elements);
        let count = shared.chunks(padded).div_ceil(2);
        let (par, secret) = (c.reader()?, self.secret.bfv(c)?);
        let mut r = Reader::new(payload);
        let mut sums: Zeroizing<Vec<u64>> = Zeroizing::new(Vec::new());
        for _ in 0..count {
            let length = r.length()?;
            let bytes = r.bytes(length)?;
            let bytes = alone("aggregate", bytes, c.moduli.len() - c.final_primes(), c.degree)?;
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
        let (weight, levels) = (sum.header().total_weight(), sum.levels());
        for segment in layout.segments() {
            check_sums(&sums[segment.start..segment.start + segment.len], weight, levels.of(segment.bits))?;
        }
        let proven = sum.verify_sums(&sums[..elements])?;
        sink.begin(proven.sum().layout(), levels, weight)?;
        sink.put(0, &sums[..elements])?;
        Ok(proven)
    }
}
