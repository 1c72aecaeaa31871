#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("open_bfv"), |data: &[u8]| entries::open("bfv", data));
