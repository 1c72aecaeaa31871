//! Benchmarks of the core alone, each on one thread.

use crate::errors::raise;
use fedcipher_core::flashe::{Masking, mask};
use fedcipher_core::mac::{field::Element, hash};
use fedcipher_core::rlwe::{ntt::Ntt, params::PRIMES_4096};
use fedcipher_core::{ClientId, RoundId, bits, prf};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::time::Instant;

/// Runs the raw FLASHE kernel on one thread, with or without its two masks and the tag's polynomial. Returns seconds
/// per call.
#[pyfunction]
#[pyo3(signature = (values, width, repeats, tagged = false, masked = true))]
pub fn bench_flashe(
    py: Python<'_>,
    values: PyReadonlyArray1<'_, u32>,
    width: u32,
    repeats: u32,
    tagged: bool,
    masked: bool,
) -> PyResult<f64> {
    let values = values.as_slice()?;
    if width == 0 || width > 63 || repeats == 0 {
        return Err(PyValueError::new_err("width is 1..=63 and repeats at least 1"));
    }
    py.detach(|| {
        let key = prf::random_bytes::<16>()?;
        let prf = prf::Prf::new(key.as_slice())?;
        let mut out = vec![0u8; bits::packed_len(values.len(), width)];
        let terms = if masked { Masking::Double.terms(ClientId::new(3)) } else { Vec::new() };
        let start = std::time::Instant::now();
        for round in 0..repeats {
            let mut maker = mask::MaskMaker::new(&prf, RoundId::new(u64::from(round)), width);
            let powers = hash::Powers::new(Element::from_random(*prf::random_bytes::<16>()?));
            let mut hasher = hash::Hasher::new(&powers, width, 0);
            let source = |d: usize, ints: &mut [u32]| {
                ints.copy_from_slice(&values[d..d + ints.len()]);
                if tagged {
                    hasher.fields(ints);
                }
                Ok(())
            };
            mask::encrypt_run(&mut maker, &terms, 0, values.len(), 1, source, &mut out)?;
            std::hint::black_box(hasher.finish());
        }
        std::hint::black_box(&out);
        Ok(start.elapsed().as_secs_f64() / f64::from(repeats))
    })
    .map_err(raise)
}

/// Bytes per second of AES in counter mode: with 128 bits, as for FLASHE's masks, or 256, as for BFV's polynomials.
#[pyfunction]
pub fn bench_aes(py: Python<'_>, megabytes: u32, wide: bool) -> PyResult<f64> {
    const CHUNKS: u32 = (1 << 20) / (16 * prf::CHUNK_BLOCKS as u32);
    py.detach(|| {
        let key = prf::random_bytes::<32>()?;
        let prf = prf::Prf::new(if wide { &key[..] } else { &key[..16] })?;
        let mut blocks = [[0u8; 16]; prf::CHUNK_BLOCKS];
        let start = Instant::now();
        for chunk in 0..megabytes.saturating_mul(CHUNKS) {
            prf.blocks([0; 12], chunk.wrapping_mul(prf::CHUNK_BLOCKS as u32), &mut blocks);
            std::hint::black_box(&blocks);
        }
        Ok(f64::from(megabytes) * f64::from(1 << 20) / start.elapsed().as_secs_f64())
    })
    .map_err(raise)
}

/// Seconds of (a forward transform, a product with its inverse transform) for N = 4096 and `prime`.
#[pyfunction]
#[pyo3(signature = (repeats, prime = PRIMES_4096[0]))]
pub fn bench_ntt(py: Python<'_>, repeats: u32, prime: u64) -> PyResult<(f64, f64)> {
    py.detach(|| {
        let ntt = Ntt::new(4096, prime)?;
        let mut a: Vec<u64> = (0..4096).collect();
        let b = a.clone();
        let start = Instant::now();
        (0..repeats).for_each(|_| ntt.forward(std::hint::black_box(&mut a)));
        let forward = start.elapsed().as_secs_f64();
        let start = Instant::now();
        (0..repeats).for_each(|_| ntt.inverse_product(std::hint::black_box(&mut a), &b));
        let inverse = start.elapsed().as_secs_f64();
        Ok((forward / f64::from(repeats), inverse / f64::from(repeats)))
    })
    .map_err(raise)
}
