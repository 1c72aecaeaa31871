#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("roster"), |data: &[u8]| entries::roster_bytes(data));
