#![no_main]

use fedcipher_fuzz::entries;

libfuzzer_sys::fuzz_target!(init: entries::begin("ledger"), |data: &[u8]| entries::ledger(data));
