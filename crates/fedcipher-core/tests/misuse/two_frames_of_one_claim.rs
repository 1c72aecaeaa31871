use fedcipher_core::protocol::Encryption;

fn both(frame: Encryption) -> [Encryption; 2] {
    [frame.clone(), frame]
}

fn main() {}
