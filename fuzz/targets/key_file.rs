#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("key_file"), |data: &[u8]| entries::key_file(data));
