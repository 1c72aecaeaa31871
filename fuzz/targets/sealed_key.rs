#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("sealed_key"), |data: &[u8]| entries::sealed_key(data));
