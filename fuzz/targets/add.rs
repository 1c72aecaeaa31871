#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("add"), |data: &[u8]| entries::add(data));
