//! The number-theoretic transform, behind one small type so that the crate can be exchanged.
//!
//! Default `ntt-tfhe` (BSD-3-Clause-Clear, AVX-512 at run time); `ntt-fhe-math` (MIT) otherwise.

use crate::{Error, Result};

#[cfg(feature = "ntt-tfhe")]
mod backend {
    pub struct Plan(tfhe_ntt::prime64::Plan);

    impl Plan {
        pub fn new(n: usize, prime: u64) -> Option<Self> {
            tfhe_ntt::prime64::Plan::try_new(n, prime).map(Plan)
        }

        pub fn forward(&self, a: &mut [u64]) {
            self.0.fwd(a);
        }

        pub fn inverse_product(&self, a: &mut [u64], b: &[u64]) {
            self.0.mul_assign_normalize(a, b);
            self.0.inv(a);
        }
    }
}

#[cfg(not(feature = "ntt-tfhe"))]
mod backend {
    use fhe_math::{ntt::NttOperator, zq::Modulus};

    pub struct Plan(NttOperator, Modulus);

    impl Plan {
        pub fn new(n: usize, prime: u64) -> Option<Self> {
            let modulus = Modulus::new(prime).ok()?;
            NttOperator::new(&modulus, n).map(|op| Plan(op, modulus))
        }

        pub fn forward(&self, a: &mut [u64]) {
            self.0.forward(a);
        }

        pub fn inverse_product(&self, a: &mut [u64], b: &[u64]) {
            self.1.mul_vec(a, b);
            self.0.backward(a);
        }
    }
}

/// Name of the crate that does the transforms.
pub const BACKEND: &str = if cfg!(feature = "ntt-tfhe") { "tfhe-ntt" } else { "fhe-math" };

/// Negacyclic transforms of size n modulo one prime p = 1 mod 2n.
pub struct Ntt(backend::Plan);

impl Ntt {
    pub fn new(n: usize, prime: u64) -> Result<Self> {
        backend::Plan::new(n, prime).map(Ntt).ok_or_else(|| Error::Parameter {
            name: "q",
            reason: format!("{prime} is not a prime with a root of order {}", 2 * n),
        })
    }

    /// Coefficients to the transform domain; the order there is the backend's own.
    pub fn forward(&self, a: &mut [u64]) {
        self.0.forward(a);
    }

    /// `a = inverse(a * b)` with both in the transform domain: the coefficients of the product.
    pub fn inverse_product(&self, a: &mut [u64], b: &[u64]) {
        self.0.inverse_product(a, b);
    }
}
