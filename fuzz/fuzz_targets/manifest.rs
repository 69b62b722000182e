//! Any bytes as a manifest: a named error, or what is written back reads the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use w4pack_format::manifest::Manifest;

fuzz_target!(|data: &[u8]| {
    if let Ok(manifest) = Manifest::parse(data) {
        let again = Manifest::parse(&manifest.to_bytes()).expect("what was written is read");
        assert_eq!(again, manifest);
    }
});
