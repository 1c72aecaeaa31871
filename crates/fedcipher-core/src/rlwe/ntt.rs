//! The number-theoretic transform, behind one small type, so that the crate that computes it can be exchanged.
//!
//! The default feature is `ntt-tfhe` (BSD-3-Clause-Clear, AVX-512 at run time). The alternative is `ntt-fhe-math` (MIT).

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

    /// Transforms coefficients. The order of the transformed values depends on the backend.
    pub fn forward(&self, a: &mut [u64]) {
        self.0.forward(a);
    }

    /// Replaces `a` by the coefficients of the product of `a` and `b`, which are both transformed.
    pub fn inverse_product(&self, a: &mut [u64], b: &[u64]) {
        self.0.inverse_product(a, b);
    }
}
