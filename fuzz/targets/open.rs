#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("open"), |data: &[u8]| entries::open(data));
