//! Converts numbers of rounds, epochs, clients and weights: ints in Python, distinct types in Rust.

use fedcipher_core::{ClientId, Epoch, RoundId, Weight};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

/// A number that is an int in Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Int<T>(pub T);

/// A type that wraps one number.
pub trait Number: Copy {
    type Bare;

    fn of(bare: Self::Bare) -> Self;

    fn bare(self) -> Self::Bare;
}

macro_rules! number {
    ($name:ident, $bare:ty) => {
        impl Number for $name {
            type Bare = $bare;

            fn of(bare: $bare) -> Self {
                $name::new(bare)
            }

            fn bare(self) -> $bare {
                self.get()
            }
        }
    };
}

number!(RoundId, u64);
number!(Epoch, u64);
number!(ClientId, u32);
number!(Weight, u64);

impl<'a, 'py, T: Number> FromPyObject<'a, 'py> for Int<T>
where
    T::Bare: FromPyObject<'a, 'py>,
{
    type Error = <T::Bare as FromPyObject<'a, 'py>>::Error;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> Result<Self, Self::Error> {
        T::Bare::extract(object).map(|bare| Int(T::of(bare)))
    }
}

impl<'py, T: Number> IntoPyObject<'py> for Int<T>
where
    T::Bare: IntoPyObject<'py>,
{
    type Target = <T::Bare as IntoPyObject<'py>>::Target;
    type Output = <T::Bare as IntoPyObject<'py>>::Output;
    type Error = <T::Bare as IntoPyObject<'py>>::Error;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Self::Error> {
        self.0.bare().into_pyobject(py)
    }
}

/// Converts a list to the core's types.
pub fn bare<T>(ints: Vec<Int<T>>) -> Vec<T> {
    ints.into_iter().map(|int| int.0).collect()
}

/// Converts a list to ints for Python.
pub fn ints<T>(numbers: impl IntoIterator<Item = T>) -> Vec<Int<T>> {
    numbers.into_iter().map(Int).collect()
}

/// The first round of a run that starts at this second of Unix time.
#[pyfunction]
pub fn first_round(second: u64) -> PyResult<Int<RoundId>> {
    RoundId::first_at(second)
        .map(Int)
        .ok_or_else(|| PyOverflowError::new_err(format!("no round is of second {second}")))
}

/// The second of Unix time in a round's number; None for a plain counter.
#[pyfunction]
pub fn round_date(round: Int<RoundId>) -> Option<u64> {
    round.0.date()
}
