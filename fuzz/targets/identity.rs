#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("identity"), |data: &[u8]| entries::identity(data));
