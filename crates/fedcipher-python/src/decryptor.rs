//! A decryptor.

use crate::errors::raise;
use crate::forked::at_work;
use crate::frames::{Contributions, contributions};
use crate::layout::Layout;
use crate::numbers::{Int, ints};
use fedcipher_core::codec::{Means, Sums};
use fedcipher_core::protocol;
use fedcipher_core::scheme::Expect;
use fedcipher_core::{ClientId, RoundId};
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;

#[pyclass(frozen, module = "fedcipher._native")]
pub struct Decryptor(pub protocol::Decryptor);

/// Layout, round, contributions, flat means, counts of a sparse round, and members whose answers are false.
pub type Opened<'py> = (
    Layout,
    Int<RoundId>,
    Contributions,
    Bound<'py, PyArray1<f32>>,
    Option<Bound<'py, PyArray1<u32>>>,
    Vec<Int<ClientId>>,
);

#[pymethods]
impl Decryptor {
    /// Weighted means: (layout, round, contributions, flat float32 values, counts or None, false
    /// members).
    #[pyo3(signature = (frame, round = None, model = None, memory = None, associated_data = None))]
    fn decrypt<'py>(
        &self,
        py: Python<'py>,
        frame: &[u8],
        round: Option<Int<RoundId>>,
        model: Option<&[u8]>,
        memory: Option<&[u8]>,
        associated_data: Option<&[u8]>,
    ) -> PyResult<Opened<'py>> {
        let expect = Expect {
            round: round.map(|round| round.0),
            model,
            memory,
            associated_data: associated_data.unwrap_or_default(),
        };
        let opened = at_work(py, || self.0.decrypt(frame, &expect, Means::default())).map_err(raise)?;
        let (summary, means) = opened.into_parts();
        let added = contributions(&summary.header.contributions);
        let counts = summary.counts.map(|c| c.into_pyarray(py));
        let (values, wrong) = (means.values.into_pyarray(py), ints(summary.false_members));
        Ok((Layout(summary.layout), Int(summary.header.round), added, values, counts, wrong))
    }

    /// The integer sums before division: (contributions, flat uint64 sums).
    #[pyo3(signature = (frame, memory = None, associated_data = None))]
    fn decrypt_sums<'py>(
        &self,
        py: Python<'py>,
        frame: &[u8],
        memory: Option<&[u8]>,
        associated_data: Option<&[u8]>,
    ) -> PyResult<(Contributions, Bound<'py, PyArray1<u64>>)> {
        let expect = Expect { memory, associated_data: associated_data.unwrap_or_default(), ..Expect::default() };
        let opened = at_work(py, || self.0.decrypt(frame, &expect, Sums::default())).map_err(raise)?;
        let (summary, sums) = opened.into_parts();
        Ok((contributions(&summary.header.contributions), sums.0.into_pyarray(py)))
    }
}
