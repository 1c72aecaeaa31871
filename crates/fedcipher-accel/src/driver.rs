//! The device as an [`Accelerator`]: commands in batches, bytes on the link counted, errors by code.

use crate::bus::{Bus, Packet, Port};
use crate::error::{Error, Result};
use crate::link::Link;
use crate::registers::{self as reg, Code, Command};
use crate::{Accelerator, Arithmetic, Decoded, MaskJob, SumJob, Usage};
use fedcipher_core::bits::packed_len;
use std::time::Instant;
use zeroize::Zeroizing;

const BEAT: usize = 16;
/// The plaintext modulus that the device divides by without being told.
const PAPER_T: u128 = 2_281_701_377;
/// Largest number of ciphertexts in one command: the range of the COUNT register.
const MAX_RUN: usize = 0xffff;
/// Cycles that nothing in the device takes: a megabyte of coefficients at one a hundred cycles.
const PATIENCE: u64 = 1 << 33;

/// The setting of the device.
#[derive(Debug, Clone, Copy)]
enum Delta {
    /// fedbit-paper's constant.
    Paper,
    /// 2^shift.
    Shift(u32),
}

/// A device behind `bus`, with one key.
pub struct Driver<B> {
    bus: B,
    link: Link,
    bits: u32,
    delta: Delta,
    /// `used` of the masks that wait, in order.
    waiting: std::collections::VecDeque<usize>,
    usage: Usage,
}

/// A whole number of beats.
fn beats(bytes: usize) -> usize {
    bytes.next_multiple_of(BEAT)
}

/// Coefficients in `bits` bits each, filled up to whole beats.
fn pack(values: &[u128], bits: u32) -> Zeroizing<Vec<u8>> {
    let len = packed_len(values.len(), bits);
    let mut out = Zeroizing::new(vec![0u8; beats(len)]);
    let mut writer = fedcipher_core::bits::BitWriter::new(&mut out[..len]);
    values.iter().for_each(|v| writer.push(*v, bits));
    writer.finish();
    out
}

/// A coefficient a beat.
fn wide(values: &[u128]) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

/// Both residues of a coefficient a beat.
fn residues(a: &[Zeroizing<Vec<u64>>]) -> Zeroizing<Vec<u8>> {
    let pairs = a[0].iter().zip(a[1].iter());
    Zeroizing::new(pairs.flat_map(|(x, y)| (u128::from(*x) | u128::from(*y) << 64).to_le_bytes()).collect())
}

impl<B: Bus> Driver<B> {
    /// Checks that it is such a device, sets it to the scheme's constants, and gives it the key.
    pub fn open(bus: B, link: Link, arithmetic: &Arithmetic, secret: &[u8]) -> Result<Self> {
        let mut this = Driver {
            bus,
            link,
            bits: arithmetic.bits,
            delta: Self::delta(arithmetic)?,
            waiting: std::collections::VecDeque::new(),
            usage: Usage::default(),
        };
        let found = this.read("its identification", reg::ID)?;
        if found != reg::IDENTIFICATION {
            return Err(Error::Unknown { found });
        }
        let log_n = this.read("its configuration", reg::CONFIG)? & 0xff;
        let (bits, primes) = (arithmetic.bits, &arithmetic.primes);
        if 1 << log_n != arithmetic.n || bits != 106 || primes[..] != [9_007_199_254_429_697, 9_007_199_254_364_161] {
            return Err(Error::Unfit {
                device: format!("N = {}, two primes of 53 bits", 1 << log_n),
                scheme: format!("N = {}, primes {primes:?}", arithmetic.n),
            });
        }
        this.settle()?;
        this.command("to take a key", Command::Key)?;
        for part in secret.chunks(16) {
            let coded = part.iter().rev().fold(0, |word, c| word << 2 | u32::from(*c & 3));
            this.write("a part of the key", reg::KEY, coded)?;
        }
        this.bus.wait(PATIENCE);
        this.ended()?;
        this.usage.key_cycles += this.cycles()?;
        this.settle()?;
        Ok(this)
    }

    fn delta(arithmetic: &Arithmetic) -> Result<Delta> {
        if arithmetic.t == PAPER_T && arithmetic.delta == arithmetic.q / PAPER_T {
            return Ok(Delta::Paper);
        }
        let shift = arithmetic.delta.trailing_zeros();
        if arithmetic.delta == 1 << shift && shift >= 1 && arithmetic.t == 1 << (arithmetic.bits - 1 - shift) {
            return Ok(Delta::Shift(shift));
        }
        Err(Error::Unfit {
            device: "t = 2281701377, or delta a power of two".into(),
            scheme: format!("t = {}, delta = {}", arithmetic.t, arithmetic.delta),
        })
    }

    fn read(&mut self, what: &'static str, address: u8) -> Result<u32> {
        match self.bus.read(address) {
            None => Err(Error::Hangs { cycles: 4096 }),
            Some(Err(_)) => Err(self.refused(what)),
            Some(Ok(value)) => Ok(value),
        }
    }

    fn write(&mut self, what: &'static str, address: u8, value: u32) -> Result<()> {
        match self.bus.write(address, value) {
            None => Err(Error::Hangs { cycles: 4096 }),
            Some(Err(_)) => Err(self.refused(what)),
            Some(Ok(())) => Ok(()),
        }
    }

    fn refused(&mut self, what: &'static str) -> Error {
        let code = self.bus.read(reg::ERROR).and_then(std::result::Result::ok).map_or(Code::Unknown, Code::from);
        Error::Refused { what, code }
    }

    fn command(&mut self, what: &'static str, command: Command) -> Result<()> {
        self.write(what, reg::COMMAND, command as u32)
    }

    /// Waits while memories are wiped.
    fn settle(&mut self) -> Result<()> {
        for _ in 0..64 {
            if self.read("its status", reg::STATUS)? & reg::BUSY == 0 {
                return Ok(());
            }
            self.bus.idle(256);
        }
        Err(Error::Hangs { cycles: 64 * 256 })
    }

    /// That the command has ended, and well.
    fn ended(&mut self) -> Result<()> {
        let status = self.read("its status", reg::STATUS)?;
        if status & reg::FAILED != 0 {
            return Err(Error::Failed(Code::from(self.read("its error", reg::ERROR)?)));
        }
        if status & reg::DONE == 0 {
            return Err(Error::Hangs { cycles: PATIENCE });
        }
        Ok(())
    }

    fn cycles(&mut self) -> Result<u64> {
        let low = self.read("its cycles", reg::CYCLES)?;
        Ok(u64::from(self.read("its cycles", reg::CYCLES_HIGH)?) << 32 | u64::from(low))
    }

    /// One command over ciphertexts that use so many coefficients each, all alike but the last.
    fn run(&mut self, command: Command, used: &[usize], packets: &[(Port, Zeroizing<Vec<u8>>)]) -> Result<u64> {
        let (first, last) = (used[0], used[used.len() - 1]);
        let (mode, what) = match self.delta {
            Delta::Paper => (1 << 8, "a delta"),
            Delta::Shift(shift) => (shift << 8 | 1, "a delta of this shift"),
        };
        self.write("a count", reg::COUNT, used.len() as u32)?;
        self.write("a number of coefficients", reg::USED, first as u32)?;
        self.write("a number of coefficients", reg::USED_LAST, last as u32)?;
        self.write(what, reg::MODE, mode)?;
        self.write("a format", reg::FORMAT, self.bits << 8)?;
        for (port, beats) in packets {
            self.bus.send(*port, beats);
            self.usage.bytes_to += beats.len() as u64;
        }
        let began = Instant::now();
        self.command("a command", command)?;
        self.bus.wait(PATIENCE);
        self.usage.wait_seconds += began.elapsed().as_secs_f64();
        self.ended()?;
        self.cycles()
    }

    /// A packet of exactly so many bytes.
    fn packet(&mut self, expected: usize) -> Result<Zeroizing<Vec<u8>>> {
        match self.bus.receive() {
            Some(Packet { bytes, aborted: false }) if bytes.len() == expected => Ok(bytes),
            Some(Packet { bytes, .. }) => Err(Error::Length { found: bytes.len(), expected }),
            None => Err(Error::Length { found: 0, expected }),
        }
    }

    /// Runs of equal `used` that one command takes: the last may differ.
    fn batches(used: &[usize]) -> Vec<std::ops::Range<usize>> {
        let mut out = Vec::new();
        let mut start = 0;
        while start < used.len() {
            let mut end = start + 1;
            while end < used.len() && end - start < MAX_RUN {
                end += 1;
                if used[end - 1] != used[start] {
                    break;
                }
            }
            out.push(start..end);
            start = end;
        }
        out
    }

    fn result_of(&self, word: u128) -> (u128, i128) {
        match self.delta {
            Delta::Paper => (word & 0xffff_ffff, (word as i128) >> 32),
            Delta::Shift(shift) => {
                let noise = (word & ((1 << shift) - 1)) as i128 - (1i128 << (shift - 1));
                (word >> shift, noise)
            }
        }
    }

    fn prepare_all(&mut self, jobs: &[MaskJob]) -> Result<()> {
        let used: Vec<usize> = jobs.iter().map(|job| job.e.len()).collect();
        for range in Self::batches(&used) {
            let mut packets = Vec::with_capacity(2 * range.len());
            for job in &jobs[range.clone()] {
                packets.push((Port::A, residues(&job.a)));
                let mut e = Zeroizing::new(job.e.iter().map(|e| *e as u8).collect::<Vec<_>>());
                let len = beats(e.len());
                e.resize(len, 0);
                packets.push((Port::B, e));
            }
            let before = self.usage.bytes_to;
            self.usage.prepare_cycles += self.run(Command::Prepare, &used[range.clone()], &packets)?;
            self.usage.link_seconds += self.link.seconds(self.usage.bytes_to - before, 0);
            self.waiting.extend(&used[range]);
        }
        Ok(())
    }

    fn encrypt_all(&mut self, plaintexts: &[Zeroizing<Vec<u128>>]) -> Result<Vec<Vec<u8>>> {
        let used: Vec<usize> = plaintexts.iter().map(|m| m.len()).collect();
        if !self.waiting.iter().zip(&used).all(|(mask, m)| mask == m) || self.waiting.len() < used.len() {
            return Err(Error::Refused { what: "plaintexts of other lengths than their masks", code: Code::NoMask });
        }
        let mut out = Vec::with_capacity(used.len());
        for range in Self::batches(&used) {
            let packets: Vec<_> = plaintexts[range.clone()].iter().map(|m| (Port::B, wide(m))).collect();
            let before = self.usage.bytes_to;
            self.usage.encrypt_cycles += self.run(Command::Encrypt, &used[range.clone()], &packets)?;
            self.waiting.drain(..range.len());
            let mut back = 0;
            for k in range.clone() {
                let bytes = self.packet(packed_len(used[k], self.bits))?;
                back += bytes.len() as u64;
                out.push(bytes.to_vec());
            }
            self.usage.ciphertexts += range.len() as u64;
            self.usage.bytes_from += back;
            self.usage.link_seconds += self.link.seconds(self.usage.bytes_to - before, back);
        }
        Ok(out)
    }

    fn decrypt_all(&mut self, jobs: &[SumJob]) -> Result<Vec<Decoded>> {
        let used: Vec<usize> = jobs.iter().map(|job| job.c0.len()).collect();
        let mut out = Vec::with_capacity(used.len());
        for range in Self::batches(&used) {
            let mut packets = Vec::with_capacity(2 * range.len());
            for job in &jobs[range.clone()] {
                packets.push((Port::A, residues(&job.a)));
                packets.push((Port::B, pack(&job.c0, self.bits)));
            }
            let before = self.usage.bytes_to;
            self.usage.decrypt_cycles += self.run(Command::Decrypt, &used[range.clone()], &packets)?;
            let mut back = 0;
            for k in range.clone() {
                let bytes = self.packet(BEAT * used[k])?;
                back += bytes.len() as u64;
                let words = bytes.as_chunks::<BEAT>().0.iter().map(|word| u128::from_le_bytes(*word));
                out.push(Zeroizing::new(words.map(|word| self.result_of(word)).collect()));
            }
            self.usage.ciphertexts += range.len() as u64;
            self.usage.bytes_from += back;
            self.usage.link_seconds += self.link.seconds(self.usage.bytes_to - before, back);
        }
        Ok(out)
    }

    fn clear(&mut self) -> Result<()> {
        self.waiting.clear();
        self.bus.drop_packets();
        let began = Instant::now();
        self.command("to clear", Command::Clear)?;
        self.settle()?;
        self.usage.wait_seconds += began.elapsed().as_secs_f64();
        self.bus.drop_packets();
        Ok(())
    }

    /// The bus, for tests that bypass the driver.
    pub fn bus(&mut self) -> &mut B {
        &mut self.bus
    }
}

impl<B: Bus> Accelerator for Driver<B> {
    fn prepare(&mut self, jobs: &[MaskJob]) -> fedcipher_core::Result<()> {
        Ok(self.prepare_all(jobs)?)
    }

    fn encrypt(&mut self, plaintexts: &[Zeroizing<Vec<u128>>]) -> fedcipher_core::Result<Vec<Vec<u8>>> {
        Ok(self.encrypt_all(plaintexts)?)
    }

    fn decrypt(&mut self, jobs: &[SumJob]) -> fedcipher_core::Result<Vec<Decoded>> {
        let decoded = self.decrypt_all(jobs);
        if matches!(decoded, Err(Error::Failed(Code::Plaintext))) {
            // A sum that does not open reveals nothing about the device, so the device stays in use.
            self.clear()?;
        }
        Ok(decoded?)
    }

    fn discard(&mut self) -> fedcipher_core::Result<()> {
        Ok(self.clear()?)
    }

    fn usage(&self) -> Usage {
        self.usage.clone()
    }
}
