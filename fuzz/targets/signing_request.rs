#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("signing_request"), |data: &[u8]| entries::signing_request(data));
