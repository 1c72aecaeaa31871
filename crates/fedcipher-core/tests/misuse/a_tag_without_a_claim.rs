use fedcipher_core::mac::Stamp;
use fedcipher_core::protocol::ClaimedRound;
use fedcipher_core::wire::Header;

fn claimed(header: Header, stamp: Stamp) -> ClaimedRound {
    ClaimedRound { header, stamp }
}

fn main() {}
