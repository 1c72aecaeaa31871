#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("messages"), |data: &[u8]| entries::messages(data));
