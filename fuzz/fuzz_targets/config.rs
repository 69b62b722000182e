//! Any bytes as a config.json: a named error, or tensors that can be counted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use w4pack_format::config::Config;
use w4pack_format::names::text_tensors;

fuzz_target!(|data: &[u8]| {
    if let Ok(config) = Config::parse("config.json", data) {
        assert!(!text_tensors(&config.text).is_empty());
    }
});
