#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ptero_fuzz::requests(input));
