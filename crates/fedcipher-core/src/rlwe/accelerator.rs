//! The interface of a device that does the arithmetic of `bfv`, ciphertext by ciphertext.
//!
//! The host keeps the inputs of the tag: it draws e, quantises, packs and unpacks. The device computes `a s + e` and adds
//! `delta m`; for decryption it removes both. Its results equal the core's to the bit. `fedcipher-accel` has the devices.

use crate::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// The constants of one scheme, with which a device is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arithmetic {
    pub n: usize,
    pub primes: Vec<u64>,
    pub q: u128,
    pub t: u128,
    pub delta: u128,
    /// Bits of a coefficient below q.
    pub bits: u32,
}

/// The inputs of one mask.
pub struct MaskJob {
    /// Residues of a: N for each prime.
    pub a: Vec<Zeroizing<Vec<u64>>>,
    /// The errors, one for each coefficient that the ciphertext uses.
    pub e: Zeroizing<Vec<i8>>,
}

/// One sum of ciphertexts.
pub struct SumJob {
    pub a: Vec<Zeroizing<Vec<u64>>>,
    /// The coefficients mod q that the ciphertext uses.
    pub c0: Vec<u128>,
}

/// Plaintext and noise of each coefficient.
pub type Decoded = Zeroizing<Vec<(u128, i128)>>;

/// The work of a device since it was opened. Cycles are the device's own. Seconds on the link follow from bytes, at the
/// rate that `link` states. Neither includes the other.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Usage {
    pub prepare_cycles: u64,
    pub encrypt_cycles: u64,
    pub decrypt_cycles: u64,
    pub key_cycles: u64,
    pub ciphertexts: u64,
    pub bytes_to: u64,
    pub bytes_from: u64,
    pub link_seconds: f64,
    /// Seconds of the host's own work on pieces: a and e, quantising, tags, packing for the device and for the wire.
    pub host_seconds: f64,
    /// Seconds that the host waited for commands. For a simulated device these are seconds of the simulation, which do
    /// not measure the design.
    pub wait_seconds: f64,
    /// Ciphertexts that the core computed instead of the device.
    pub fallbacks: u64,
}

/// A device that holds one key.
pub trait Accelerator: Send {
    /// Computes masks `a s + e` and keeps them, in this order.
    fn prepare(&mut self, jobs: &[MaskJob]) -> Result<()>;

    /// Adds `delta m` to the next masks, and deletes these masks. Returns c0 of each ciphertext, packed with
    /// `Arithmetic::bits` bits a coefficient.
    fn encrypt(&mut self, plaintexts: &[Zeroizing<Vec<u128>>]) -> Result<Vec<Vec<u8>>>;

    /// Subtracts `a s` from each sum and divides by delta.
    fn decrypt(&mut self, jobs: &[SumJob]) -> Result<Vec<Decoded>>;

    /// Deletes all masks, and clears any error.
    fn discard(&mut self) -> Result<()>;

    fn usage(&self) -> Usage;
}

/// Opens a device for each key.
pub trait Accelerators: Send + Sync {
    /// Opens a device with this key. `secret` holds ternary coefficients, in the format of key files.
    fn open(&self, arithmetic: &Arithmetic, secret: &[u8]) -> Result<Box<dyn Accelerator>>;

    /// True if the core takes over when a device fails; the result is the same to the bit. If false, the caller gets the
    /// error.
    fn fall_back(&self) -> bool;

    /// Receives the work of one device since the last call.
    fn done(&self, _usage: &Usage) {}
}

/// The device of one key, and the masks that the device keeps.
pub(crate) struct Session {
    device: Mutex<Held>,
    all: std::sync::Arc<dyn Accelerators>,
    /// Nanoseconds of the host's own work.
    host: AtomicU64,
}

struct Held {
    accelerator: Box<dyn Accelerator>,
    /// The seed of the masks in the device, then the index of the next ciphertext, and the number of masks.
    seed: [u8; 32],
    next: usize,
    waiting: usize,
    fallbacks: u64,
    told: Usage,
}

impl Session {
    pub fn open(
        all: &std::sync::Arc<dyn Accelerators>,
        arithmetic: &Arithmetic,
        secret: &[u8],
    ) -> Result<Option<std::sync::Arc<Self>>> {
        match all.open(arithmetic, secret) {
            Ok(accelerator) => {
                let held =
                    Held { accelerator, seed: [0; 32], next: 0, waiting: 0, fallbacks: 0, told: Usage::default() };
                let (device, host) = (Mutex::new(held), AtomicU64::new(0));
                Ok(Some(std::sync::Arc::new(Session { device, all: std::sync::Arc::clone(all), host })))
            }
            Err(_) if all.fall_back() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Runs `work` and counts its time as the host's own work.
    pub fn host<T>(&self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = work();
        self.spent(began.elapsed());
        done
    }

    fn spent(&self, time: Duration) {
        self.host.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(0), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the device. Returns `None` if the device failed and the core takes over.
    fn with<T>(&self, work: impl FnOnce(&mut Held) -> Result<T>) -> Result<Option<T>> {
        let mut held = self.lock();
        let (began, waited) = (Instant::now(), held.accelerator.usage().wait_seconds);
        let result = work(&mut held);
        // Counts the time of the driver's packing and unpacking. Time spent waiting for the device is not work.
        let waiting = Duration::try_from_secs_f64(held.accelerator.usage().wait_seconds - waited).unwrap_or_default();
        self.spent(began.elapsed().saturating_sub(waiting));
        let result = match result {
            Ok(value) => Ok(Some(value)),
            // Input that is wrong for the device is wrong for the core too.
            Err(error @ Error::Decrypt { .. }) => Err(error),
            Err(error) => {
                held.waiting = 0;
                held.fallbacks += 1;
                // An error here is ignored: the next piece uses the device again, and gets the error then.
                let _ = held.accelerator.discard();
                if self.all.fall_back() { Ok(None) } else { Err(error) }
            }
        };
        let host_seconds = Duration::from_nanos(self.host.load(Ordering::Relaxed)).as_secs_f64();
        let usage = Usage { fallbacks: held.fallbacks, host_seconds, ..held.accelerator.usage() };
        self.all.done(&usage.since(&held.told));
        held.told = usage;
        result
    }

    /// Has the device compute the masks of a whole update, starting with ciphertext 0.
    pub fn prepare(&self, seed: &[u8; 32], jobs: &[MaskJob]) -> Result<Option<()>> {
        self.with(|held| {
            if held.waiting > 0 {
                held.accelerator.discard()?;
            }
            held.waiting = 0;
            held.accelerator.prepare(jobs)?;
            (held.seed, held.next, held.waiting) = (*seed, 0, jobs.len());
            Ok(())
        })
    }

    /// Computes c0 of ciphertext `index` with the mask that the device keeps for it. Without such a mask, the device makes
    /// one from `job` now.
    pub fn encrypt(
        &self,
        seed: &[u8; 32],
        index: usize,
        plaintext: Zeroizing<Vec<u128>>,
        job: impl FnOnce() -> Result<MaskJob>,
    ) -> Result<Option<Vec<u8>>> {
        self.with(|held| {
            if held.waiting == 0 || held.next != index || held.seed != *seed {
                // The device uses masks in order. A mask that was skipped is deleted and made again, so each is still
                // used once.
                if held.waiting > 0 {
                    held.accelerator.discard()?;
                    held.waiting = 0;
                }
                held.accelerator.prepare(&[job()?])?;
                held.waiting = 1;
            }
            held.waiting -= 1;
            held.next = index + 1;
            let c0 = held.accelerator.encrypt(&[plaintext])?.pop();
            c0.ok_or_else(|| Error::Device { reason: "no ciphertext came back".into() })
        })
    }

    pub fn decrypt(&self, job: SumJob) -> Result<Option<Decoded>> {
        self.with(|held| {
            // A device keeps its masks when it decrypts between a preparation and the encryption.
            let decoded = held.accelerator.decrypt(&[job])?.pop();
            decoded.ok_or_else(|| Error::Device { reason: "no plaintext came back".into() })
        })
    }
}

impl Usage {
    #[must_use]
    pub fn plus(&self, more: &Usage) -> Usage {
        Usage {
            prepare_cycles: self.prepare_cycles + more.prepare_cycles,
            encrypt_cycles: self.encrypt_cycles + more.encrypt_cycles,
            decrypt_cycles: self.decrypt_cycles + more.decrypt_cycles,
            key_cycles: self.key_cycles + more.key_cycles,
            ciphertexts: self.ciphertexts + more.ciphertexts,
            bytes_to: self.bytes_to + more.bytes_to,
            bytes_from: self.bytes_from + more.bytes_from,
            link_seconds: self.link_seconds + more.link_seconds,
            host_seconds: self.host_seconds + more.host_seconds,
            wait_seconds: self.wait_seconds + more.wait_seconds,
            fallbacks: self.fallbacks + more.fallbacks,
        }
    }

    /// The work done since `before`.
    #[must_use]
    pub fn since(&self, before: &Usage) -> Usage {
        Usage {
            prepare_cycles: self.prepare_cycles - before.prepare_cycles,
            encrypt_cycles: self.encrypt_cycles - before.encrypt_cycles,
            decrypt_cycles: self.decrypt_cycles - before.decrypt_cycles,
            key_cycles: self.key_cycles - before.key_cycles,
            ciphertexts: self.ciphertexts - before.ciphertexts,
            bytes_to: self.bytes_to - before.bytes_to,
            bytes_from: self.bytes_from - before.bytes_from,
            link_seconds: self.link_seconds - before.link_seconds,
            host_seconds: self.host_seconds - before.host_seconds,
            wait_seconds: self.wait_seconds - before.wait_seconds,
            fallbacks: self.fallbacks - before.fallbacks,
        }
    }
}
