#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("prekey"), |data: &[u8]| entries::prekey(data));
