//! The Merkle tree of RFC 6962 over the lines of a site's log, with SHA-256.
//!
//! A head is the number of lines and the tree's root. A proof of inclusion shows that a head covers one line. A proof of
//! consistency shows that an earlier head covers the first lines of a later one. A proof does not fix the sizes of its
//! trees, so a signature must cover the size beside the root.

use crate::{Error, Result};
use ct_merkle::mem_backed_tree::MemoryBackedTree;
use ct_merkle::{ConsistencyProof, InclusionProof, RootHash};
use sha2::Sha256;

/// Bytes of a root, and of each hash of a proof.
pub const ROOT_LEN: usize = 32;

/// The root of a tree, with its number of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub size: u64,
    pub root: [u8; ROOT_LEN],
}

impl Head {
    fn hash(&self) -> RootHash<Sha256> {
        RootHash::new(self.root.into(), self.size)
    }

    /// True if `proof` shows that line `index` (from 0) of this head's tree is `line`.
    #[must_use]
    pub fn includes(&self, index: u64, line: &[u8], proof: &[u8]) -> bool {
        let proof = InclusionProof::<Sha256>::try_from_bytes(proof.to_vec());
        proof.is_ok_and(|proof| self.hash().verify_inclusion(&line, index, &proof).is_ok())
    }

    /// True if `proof` shows that the tree of `earlier` is the beginning of this head's tree.
    #[must_use]
    pub fn continues(&self, earlier: &Head, proof: &[u8]) -> bool {
        let proof = ConsistencyProof::<Sha256>::try_from_bytes(proof.to_vec());
        proof.is_ok_and(|proof| self.hash().verify_consistency(&earlier.hash(), &proof).is_ok())
    }
}

/// All lines of a log, with the hashes of their tree.
#[derive(Debug, Clone, Default)]
pub struct LogTree(MemoryBackedTree<Sha256, Vec<u8>>);

impl LogTree {
    pub fn push(&mut self, line: Vec<u8>) {
        self.0.push(line);
    }

    #[must_use]
    pub fn head(&self) -> Head {
        Head { size: self.0.len(), root: (*self.0.root().as_bytes()).into() }
    }

    /// The proof that [`Head::includes`] takes for line `index` of the present head. Fails for a line that the tree does
    /// not have.
    pub fn inclusion(&self, index: u64) -> Result<Vec<u8>> {
        self.check("line", index, index < self.0.len())?;
        Ok(self.0.prove_inclusion(index as usize).as_bytes().to_vec())
    }

    /// The proof that [`Head::continues`] takes for the head of the first `size` lines. Fails for a size that the tree
    /// never had, and for 0.
    pub fn consistency(&self, size: u64) -> Result<Vec<u8>> {
        self.check("size", size, (1..=self.0.len()).contains(&size))?;
        Ok(self.0.prove_consistency((self.0.len() - size) as usize).as_bytes().to_vec())
    }

    fn check(&self, what: &'static str, given: u64, holds: bool) -> Result<()> {
        if holds {
            return Ok(());
        }
        Err(Error::parameter(what, format!("is {given}, and the log has {} lines", self.0.len())))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use sha2::Digest;

    /// The tree's hash by its definition in RFC 6962 ("Merkle Hash Trees").
    fn root_of(lines: &[Vec<u8>]) -> [u8; ROOT_LEN] {
        match lines {
            [] => Sha256::digest(b"").into(),
            [line] => Sha256::digest([&[0], line.as_slice()].concat()).into(),
            _ => {
                let (left, right) = lines.split_at(lines.len().next_power_of_two() / 2);
                Sha256::digest([&[1], root_of(left).as_slice(), &root_of(right)].concat()).into()
            }
        }
    }

    fn lines(count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|k| format!("line {k}").into_bytes()).collect()
    }

    fn tree(lines: &[Vec<u8>]) -> LogTree {
        let mut made = LogTree::default();
        lines.iter().for_each(|line| made.push(line.clone()));
        made
    }

    #[test]
    fn roots_are_those_of_the_rfc() {
        for count in 0..40 {
            let lines = lines(count);
            assert_eq!(tree(&lines).head(), Head { size: count as u64, root: root_of(&lines) });
        }
    }

    #[test]
    fn a_line_is_shown_in_its_place_only() {
        let lines = lines(11);
        let made = tree(&lines);
        for (index, line) in lines.iter().enumerate() {
            let proof = made.inclusion(index as u64).unwrap();
            for other in 0..13 {
                assert_eq!(made.head().includes(other, line, &proof), other == index as u64);
            }
            assert!(!made.head().includes(index as u64, b"another", &proof));
            assert!(!made.head().includes(index as u64, line, &proof[1..]));
        }
        assert!(made.inclusion(11).is_err());
    }

    #[test]
    fn a_log_continues_its_own_past_only() {
        let lines = lines(13);
        let made = tree(&lines);
        for size in 1..=13 {
            let proof = made.consistency(size).unwrap();
            let earlier = tree(&lines[..size as usize]).head();
            assert!(made.head().continues(&earlier, &proof));
            assert!(!made.head().continues(&Head { root: [7; ROOT_LEN], ..earlier }, &proof));
        }
        assert!(made.consistency(0).is_err() && made.consistency(14).is_err());
    }
}
