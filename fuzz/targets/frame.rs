#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("frame"), |data: &[u8]| entries::frame(data));
