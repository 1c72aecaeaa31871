#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("certificate"), |data: &[u8]| entries::certificate(data));
