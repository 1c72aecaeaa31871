use fedcipher_core::protocol::Opened;
use fedcipher_core::scheme::Summary;

fn opened(summary: Summary, values: Vec<f32>) -> Opened<Vec<f32>> {
    Opened { summary, values }
}

fn main() {}
