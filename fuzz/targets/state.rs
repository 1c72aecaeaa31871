#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("state"), |data: &[u8]| entries::state(data));
