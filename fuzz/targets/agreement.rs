#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("agreement"), |data: &[u8]| entries::agreement(data));
