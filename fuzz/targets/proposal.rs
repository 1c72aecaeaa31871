#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("proposal"), |data: &[u8]| entries::proposal(data));
