use fedcipher_core::Result;
use fedcipher_core::protocol::Decryption;

fn early(opening: &mut Decryption, bytes: &[u8]) -> Result<Vec<f32>> {
    opening.push(bytes)?.values().to_vec()
}

fn key(opening: Decryption) -> Vec<u8> {
    opening.cover.into_key().to_vec()
}

fn main() {}
