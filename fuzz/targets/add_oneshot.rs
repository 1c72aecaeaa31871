#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("add_oneshot"), |data: &[u8]| entries::add("oneshot", data));
