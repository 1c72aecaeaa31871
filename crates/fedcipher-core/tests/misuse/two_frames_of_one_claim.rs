use fedcipher_core::protocol::SealingFrame;

fn both(frame: SealingFrame) -> [SealingFrame; 2] {
    [frame.clone(), frame]
}

fn main() {}
