//! The device's work, done by the core. Devices are compared with it, and it serves where there is no device.

use crate::{Accelerator, Accelerators, Arithmetic, Decoded, MaskJob, SumJob, Usage};
use fedcipher_core::bits::{BitWriter, packed_len};
use fedcipher_core::rlwe::ring::{Ring, SecretNtt};
use fedcipher_core::{Error, Result};
use std::collections::VecDeque;
use zeroize::Zeroizing;

pub struct Software {
    ring: Ring,
    secret: SecretNtt,
    arithmetic: Arithmetic,
    masks: VecDeque<Zeroizing<Vec<u128>>>,
    ciphertexts: u64,
}

impl Software {
    pub fn new(arithmetic: &Arithmetic, secret: &[u8]) -> Result<Self> {
        let ring = Ring::new(arithmetic.n, &arithmetic.primes)?;
        let secret = ring.secret_ntt(secret)?;
        Ok(Software { ring, secret, arithmetic: arithmetic.clone(), masks: VecDeque::new(), ciphertexts: 0 })
    }

    /// Plaintext and noise behind `delta m + noise mod q`.
    fn decode(&self, x: u128) -> Result<(u128, i128)> {
        let Arithmetic { q, t, delta, .. } = self.arithmetic;
        let m = (x + delta / 2) / delta;
        if m < t {
            Ok((m, x as i128 - (m * delta) as i128))
        } else if x >= q - delta / 2 {
            Ok((0, x as i128 - q as i128))
        } else {
            Err(Error::Decrypt { reason: "a coefficient lies outside the plaintext space".into() })
        }
    }
}

impl Accelerator for Software {
    fn prepare(&mut self, jobs: &[MaskJob]) -> Result<()> {
        for job in jobs {
            let mut sum = self.ring.times_secret(job.a.clone(), &self.secret, job.e.len());
            sum.iter_mut().zip(job.e.iter()).for_each(|(c, e)| *c = self.ring.add(*c, self.ring.lift(*e)));
            self.masks.push_back(sum);
        }
        Ok(())
    }

    fn encrypt(&mut self, plaintexts: &[Zeroizing<Vec<u128>>]) -> Result<Vec<Vec<u8>>> {
        let bits = self.arithmetic.bits;
        let one = |m: &Zeroizing<Vec<u128>>| {
            let mask = self.masks.pop_front().filter(|mask| mask.len() == m.len());
            let mask = mask.ok_or_else(|| Error::Device { reason: "no mask of this length is prepared".into() })?;
            let mut out = vec![0u8; packed_len(m.len(), bits)];
            let mut writer = BitWriter::new(&mut out);
            for (mask, m) in mask.iter().zip(m.iter()) {
                writer.push(self.ring.add(*mask, self.arithmetic.delta.wrapping_mul(*m)), bits);
            }
            writer.finish();
            self.ciphertexts += 1;
            Ok(out)
        };
        plaintexts.iter().map(one).collect()
    }

    fn decrypt(&mut self, jobs: &[SumJob]) -> Result<Vec<Decoded>> {
        let one = |job: &SumJob| {
            let product = self.ring.times_secret(job.a.clone(), &self.secret, job.c0.len());
            let pairs = job.c0.iter().zip(product.iter());
            let decoded = pairs.map(|(c0, a_s)| self.decode(self.ring.sub(*c0, *a_s))).collect::<Result<_>>()?;
            Ok(Zeroizing::new(decoded))
        };
        let decoded = jobs.iter().map(one).collect::<Result<Vec<_>>>()?;
        self.ciphertexts += jobs.len() as u64;
        Ok(decoded)
    }

    fn discard(&mut self) -> Result<()> {
        self.masks.clear();
        Ok(())
    }

    fn usage(&self) -> Usage {
        Usage { ciphertexts: self.ciphertexts, ..Usage::default() }
    }
}

/// The core for every key.
pub struct SoftwareAccelerators;

impl Accelerators for SoftwareAccelerators {
    fn open(&self, arithmetic: &Arithmetic, secret: &[u8]) -> Result<Box<dyn Accelerator>> {
        Ok(Box::new(Software::new(arithmetic, secret)?))
    }

    fn fall_back(&self) -> bool {
        false
    }
}
