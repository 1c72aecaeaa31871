#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("answer"), |data: &[u8]| entries::answer(data));
