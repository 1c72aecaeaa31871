//! Frames as Python `bytes`, and their headers.

use crate::errors::raise;
use crate::layout::Layout;
use crate::numbers::Int;
use fedcipher_core::codec;
use fedcipher_core::{ClientId, Epoch, Error, RoundId, Weight, memory, wire};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rayon::prelude::*;
use std::mem::MaybeUninit;

pub type Contributions = Vec<(Int<ClientId>, Int<Weight>)>;

pub fn contributions(of: &[wire::Contribution]) -> Contributions {
    of.iter().map(|c| (Int(c.client), Int(c.weight))).collect()
}

/// Memory of a new Python `bytes` object, in which a frame is made without a copy.
pub struct PythonFrame(pub Option<Py<PyBytes>>);

impl PythonFrame {
    pub fn frame(self, py: Python<'_>) -> PyResult<Bound<'_, PyBytes>> {
        let frame = self.0.ok_or_else(|| PyValueError::new_err("no frame was made"))?;
        Ok(frame.into_bound(py))
    }
}

impl wire::FrameBuffer for PythonFrame {
    #[expect(unsafe_code, reason = "PyBytes::new_with would touch every page in one thread first")]
    fn reserve(&mut self, len: usize) -> fedcipher_core::Result<&mut [u8]> {
        let failed = |e: PyErr| Error::Layout { reason: format!("no memory for a frame of {len} bytes: {e}") };
        Python::attach(|py| {
            let size = isize::try_from(len).map_err(|e| failed(PyValueError::new_err(e.to_string())))?;
            // SAFETY: the object is new and referenced only here, so its buffer of `len` bytes may be
            // written; it stays in place while `self.0` owns it, which the returned borrow does not
            // outlive. All bytes are written as `MaybeUninit` before a slice of `u8` exists.
            unsafe {
                let object = pyo3::ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
                let bytes = Bound::from_owned_ptr_or_err(py, object).map_err(failed)?;
                let buffer = pyo3::ffi::PyBytes_AsString(object).cast::<MaybeUninit<u8>>();
                let fresh = std::slice::from_raw_parts_mut(buffer, len);
                memory::huge_pages(fresh);
                // Without the GIL: another thread of the pool may wait for it with what this one waits for.
                py.detach(|| fresh.par_chunks_mut(1 << 20).for_each(|part| part.fill(MaybeUninit::new(0))));
                self.0 = Some(bytes.cast_into_unchecked::<PyBytes>().unbind());
                Ok(fresh.assume_init_mut())
            }
        })
    }
}

pub fn borrowed(frames: &[Vec<u8>]) -> Vec<&[u8]> {
    frames.iter().map(Vec::as_slice).collect()
}

/// The public header of any frame: (kind, scheme, epoch, round, contributions, elements, payload bytes,
/// keyed tag of the memory that its sum counts in).
#[pyfunction]
#[allow(clippy::type_complexity, reason = "one tuple for one thin call")]
pub fn inspect<'py>(
    py: Python<'py>,
    frame: &[u8],
) -> PyResult<(u8, String, Int<Epoch>, Int<RoundId>, Contributions, u64, usize, Bound<'py, PyBytes>)> {
    let frame = wire::parse(frame).map_err(raise)?;
    let h = frame.header;
    Ok((
        h.kind as u8,
        wire::scheme_name(&h.scheme),
        Int(h.epoch),
        Int(h.round),
        contributions(&h.contributions),
        h.elements,
        frame.payload.len(),
        PyBytes::new(py, &h.memory),
    ))
}

/// The layout in a frame's header, which describes its arrays.
#[pyfunction]
pub fn layout_of(frame: &[u8]) -> PyResult<Layout> {
    let frame = wire::parse(frame).map_err(raise)?;
    codec::Layout::decode(&frame.header.layout).map(Layout).map_err(raise)
}
