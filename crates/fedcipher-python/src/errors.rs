//! Errors of the core as exceptions of `fedcipher.errors`.

use fedcipher_core::Error;
use pyo3::prelude::*;

/// Converts an error to the class of `fedcipher.errors` that the core names.
pub fn raise(error: Error) -> PyErr {
    raise_as(error.class(), &error.to_string())
}

pub fn raise_as(class: &str, message: &str) -> PyErr {
    Python::attach(|py| {
        let made = py
            .import("fedcipher.errors")
            .and_then(|module| module.getattr(class))
            .and_then(|class| class.call1((message,)));
        match made {
            Ok(instance) => PyErr::from_value(instance),
            Err(import) => import,
        }
    })
}

#[allow(clippy::needless_pass_by_value, reason = "it maps results")]
pub fn in_words(errors: Vec<Error>) -> Vec<String> {
    errors.iter().map(Error::to_string).collect()
}
