#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("plan"), |data: &[u8]| entries::plan(data));
