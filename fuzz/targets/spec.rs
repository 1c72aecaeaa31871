#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("spec"), |data: &[u8]| entries::spec(data));
