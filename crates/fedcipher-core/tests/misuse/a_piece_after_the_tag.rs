use fedcipher_core::Result;
use fedcipher_core::codec::Update;
use fedcipher_core::protocol::Encryption;

fn sealed(mut frame: Encryption, piece: &Update<'_>) -> Result<Vec<u8>> {
    let end = frame.finish()?;
    frame.push(piece, &mut Vec::new())?;
    Ok(end)
}

fn main() {}
