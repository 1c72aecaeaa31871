#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("keys"), |data: &[u8]| entries::keys(data));
