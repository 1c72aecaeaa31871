use fedcipher_core::mac::TagMaker;
use fedcipher_core::protocol::ClaimedRound;
use fedcipher_core::wire::Header;

fn claimed(header: Header, tag_maker: TagMaker) -> ClaimedRound {
    ClaimedRound { header, tag_maker }
}

fn main() {}
