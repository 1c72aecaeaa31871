use fedcipher_core::Result;
use fedcipher_core::protocol::{ClaimedSum, Proven};

fn tried(sum: ClaimedSum, guesses: [&[u64]; 2]) -> Result<Proven> {
    sum.verify_sums(guesses[0]).or_else(|_| sum.verify_sums(guesses[1]))
}

fn main() {}
