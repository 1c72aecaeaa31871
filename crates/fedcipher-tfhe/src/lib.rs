//! TFHE radix integers for `fedcipher`: a value is one integer of 2-bit blocks, and so is a sum.
//!
//! A fresh value travels seeded: a word a block and one seed. A sum cannot be: 16 KiB a block. The server
//! adds without bootstrapping while the carry space of every block allows, and propagates carries, one
//! programmable bootstrapping a block, when it does not, and once at the end.

use bincode::Options;
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rayon::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tfhe::conformance::ParameterSetConformant;
use tfhe::integer::ciphertext::{CompressedRadixCiphertext, RadixCiphertext};
use tfhe::integer::parameters::RadixCiphertextConformanceParams;
use tfhe::integer::{CompressedServerKey, RadixClientKey, ServerKey};
use tfhe::shortint::parameters::PARAM_MESSAGE_2_CARRY_2_KS_PBS as PARAMETERS;
use zeroize::Zeroizing;

/// Most 2-bit blocks of an integer.
const BLOCKS: usize = 32;

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("these bytes are no {what}: {reason}")]
    Bytes { what: &'static str, reason: String },
    #[error("the payload has {found} ciphertexts for {expected} values")]
    Count { found: usize, expected: usize },
    #[error("ciphertext {index} was made with other parameters or another number of blocks")]
    Parameters { index: usize },
    #[error("{0} blocks are not 1..={BLOCKS}")]
    Blocks(usize),
    #[error("the library refused this input")]
    Refused,
    #[error("the library does not decrypt this")]
    Undecrypted,
}

type Result<T> = std::result::Result<T, Error>;

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        // A failed decryption may depend on the key. The other errors follow from the bytes alone.
        if matches!(error, Error::Undecrypted) { PyRuntimeError::new_err(text) } else { PyValueError::new_err(text) }
    }
}

fn write<T: Serialize>(value: &T, what: &'static str) -> Result<Vec<u8>> {
    bincode::DefaultOptions::new().serialize(value).map_err(|e| Error::Bytes { what, reason: e.to_string() })
}

/// The whole of `bytes`, and no allocation beyond their number.
fn read<T: DeserializeOwned>(bytes: &[u8], what: &'static str) -> Result<T> {
    let options = bincode::DefaultOptions::new().with_limit(bytes.len() as u64);
    options.deserialize(bytes).map_err(|e| Error::Bytes { what, reason: e.to_string() })
}

/// The library asserts where it should report; no such assertion may end the process.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Error::Refused))
}

fn checked<T>(bytes: &[u8], elements: usize, blocks: usize) -> Result<Vec<T>>
where
    T: DeserializeOwned + ParameterSetConformant<ParameterSet = RadixCiphertextConformanceParams>,
{
    let found: Vec<T> = read(bytes, "ciphertexts")?;
    if found.len() != elements {
        return Err(Error::Count { found: found.len(), expected: elements });
    }
    let expected = RadixCiphertextConformanceParams::from_pbs_parameters(PARAMETERS, blocks);
    match found.iter().position(|c| !c.is_conformant(&expected)) {
        Some(index) => Err(Error::Parameters { index }),
        None => Ok(found),
    }
}

fn check_blocks(blocks: usize) -> Result<()> {
    if (1..=BLOCKS).contains(&blocks) { Ok(()) } else { Err(Error::Blocks(blocks)) }
}

/// A client's key, and the server's: seeded, without what decrypts.
#[pyfunction]
fn keygen<'py>(py: Python<'py>, blocks: usize) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    check_blocks(blocks)?;
    let (secret, public) = py.detach(|| {
        guarded(|| {
            let client = RadixClientKey::new(PARAMETERS, blocks);
            let server = CompressedServerKey::new_radix_compressed_server_key(client.as_ref());
            Ok((Zeroizing::new(write(&client, "client key")?), write(&server, "server key")?))
        })
    })?;
    Ok((PyBytes::new(py, &secret), PyBytes::new(py, &public)))
}

/// A client's side; never printed.
#[pyclass(frozen, module = "fedcipher_tfhe")]
struct Client {
    key: RadixClientKey,
    blocks: usize,
}

#[pymethods]
impl Client {
    #[new]
    fn new(secret: &[u8], blocks: usize) -> PyResult<Self> {
        check_blocks(blocks)?;
        Ok(Client { key: guarded(|| read(secret, "client key"))?, blocks })
    }

    fn encrypt<'py>(&self, py: Python<'py>, values: PyReadonlyArray1<'py, u64>) -> PyResult<Bound<'py, PyBytes>> {
        let values = values.as_slice()?;
        let payload = py.detach(|| {
            guarded(|| {
                let seal = |value: &u64| self.key.as_ref().encrypt_radix_compressed(*value, self.blocks);
                write(&values.par_iter().map(seal).collect::<Vec<CompressedRadixCiphertext>>(), "payload")
            })
        })?;
        Ok(PyBytes::new(py, &payload))
    }

    fn decrypt<'py>(&self, py: Python<'py>, payload: &[u8], elements: usize) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let sums = py.detach(|| {
            let found: Vec<RadixCiphertext> = guarded(|| checked(payload, elements, self.blocks))?;
            let open = || Ok(found.par_iter().map(|c| self.key.decrypt::<u64>(c)).collect::<Vec<u64>>());
            guarded(open).map_err(|_| Error::Undecrypted)
        })?;
        Ok(sums.into_pyarray(py))
    }
}

/// The server's side: one running sum.
#[pyclass(frozen, module = "fedcipher_tfhe")]
struct Sum {
    key: ServerKey,
    blocks: usize,
    sum: Mutex<Vec<RadixCiphertext>>,
}

impl Sum {
    fn sum(&self) -> MutexGuard<'_, Vec<RadixCiphertext>> {
        self.sum.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_add(&self, payload: &[u8], elements: usize) -> Result<()> {
        let fresh: Vec<CompressedRadixCiphertext> = checked(payload, elements, self.blocks)?;
        let mut sum = self.sum();
        let added = if sum.is_empty() {
            fresh.par_iter().map(CompressedRadixCiphertext::decompress).collect()
        } else {
            let pairs = sum.par_iter().zip(&fresh);
            pairs
                .map(|(sum, c)| {
                    let (mut sum, mut c) = (sum.clone(), c.decompress());
                    // Cores that have no value of their own help with the blocks of others.
                    self.key.smart_add_assign_parallelized(&mut sum, &mut c);
                    sum
                })
                .collect()
        };
        *sum = added;
        Ok(())
    }
}

#[pymethods]
impl Sum {
    #[new]
    fn new(py: Python<'_>, public: &[u8], blocks: usize) -> PyResult<Self> {
        check_blocks(blocks)?;
        let key = py.detach(|| guarded(|| Ok(read::<CompressedServerKey>(public, "server key")?.decompress())))?;
        Ok(Sum { key, blocks, sum: Mutex::new(Vec::new()) })
    }

    /// On any error the sum is as it was.
    fn add(&self, py: Python<'_>, payload: &[u8], elements: usize) -> PyResult<()> {
        Ok(py.detach(|| guarded(|| self.try_add(payload, elements)))?)
    }

    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let payload = py.detach(|| {
            guarded(|| {
                let mut sum = self.sum();
                sum.par_iter_mut().for_each(|c| self.key.full_propagate_parallelized(c));
                write(&*sum, "payload")
            })
        })?;
        Ok(PyBytes::new(py, &payload))
    }
}

#[pymodule]
fn _native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Client>()?;
    m.add_class::<Sum>()?;
    m.add_function(wrap_pyfunction!(keygen, m)?)
}
