#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("layout"), |data: &[u8]| entries::layout(data));
