//! The client's side: encrypts quantised words with the PASTA key stream, and sends the encrypted key once an epoch.

use super::cipher::Pasta;
use super::secret::Secret;
use super::shared::Shared;
use crate::bits::{BitWriter, packed_len};
use crate::codec::Layout;
use crate::protocol::{EncryptKernel, Encryption, FrameDigest, Sender};
use crate::scheme::{Request, Terms};
use crate::statement::END_LEN;
use crate::wire::FrameBuffer;
use crate::{ClientId, Result, RoundId};
use std::sync::Arc;
use zeroize::{Zeroize, Zeroizing};

pub struct PastaEncryptor {
    shared: Arc<Shared>,
    sender: Sender,
    pasta: Pasta,
    encrypted_key: Vec<u8>,
    setup_bytes: usize,
}

impl PastaEncryptor {
    pub fn new(shared: Arc<Shared>, sender: Sender, secret: Secret) -> Self {
        let Secret { pasta, encrypted_key, .. } = secret;
        PastaEncryptor { shared, sender, pasta, encrypted_key, setup_bytes: 0 }
    }
}

impl EncryptKernel for PastaEncryptor {
    fn start(&mut self, _terms: &Terms<'_>) -> Result<Option<Encryption>> {
        Ok(None)
    }

    /// Payload: `key length u64 | encrypted key | packed words | tag | signature`.
    fn encrypt_whole(&mut self, request: &Request<'_>, place: &mut dyn FrameBuffer) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let layout = request.update.layout();
        shared.check_layout(layout)?;
        let claimed = self.sender.claim(&request.terms(), layout)?;
        let tag_maker = claimed.tag_maker();
        let client = self.sender.client();
        let known = request.round_plan.as_chunks::<4>().0.iter().any(|id| ClientId::from_le_bytes(*id) == client);
        let key: &[u8] = if known { &[] } else { &self.encrypted_key };
        self.setup_bytes = key.len();

        let mut ints = vec![0u32; layout.elements()];
        request.update.quantise(tag_maker.levels, 0, &mut ints)?;
        let hash = tag_maker.scale_by_weight(tag_maker.mac.hash_fields(&ints));
        let mut words: Zeroizing<Vec<u64>> = Zeroizing::new(ints.iter().map(|v| u64::from(*v)).collect());
        ints.zeroize();
        words.resize(shared.padded(layout.elements()), 0);
        self.pasta.encrypt(request.round.get(), &mut words);

        let bits = shared.context.field.bits();
        claimed.header().build(8 + key.len() + packed_len(words.len(), bits) + END_LEN, place, |payload| {
            let (body, end) = payload.split_at_mut(payload.len() - END_LEN);
            let (head, packed) = body.split_at_mut(8 + key.len());
            head[..8].copy_from_slice(&(key.len() as u64).to_le_bytes());
            head[8..].copy_from_slice(key);
            let mut writer = BitWriter::new(packed);
            words.iter().for_each(|w| writer.push(u128::from(*w), bits));
            writer.finish();
            end.copy_from_slice(&tag_maker.end(hash, &FrameDigest::of(body)));
            Ok(())
        })
    }

    fn precompute(&mut self, round: RoundId, _layout: &Layout, _plan: &[u8]) -> Result<()> {
        self.sender.reserve(round)
    }

    fn setup_bytes(&self) -> usize {
        self.setup_bytes
    }
}
