//! Any bytes as a GGUF file: a named error, or tensors that lie inside.
#![no_main]

use libfuzzer_sys::fuzz_target;
use w4pack_format::gguf::Gguf;

fuzz_target!(|data: &[u8]| {
    let parsed = Gguf::parse("fuzz", data.len() as u64, &mut |offset, buffer: &mut [u8]| {
        let begin = offset as usize;
        buffer.copy_from_slice(&data[begin..begin + buffer.len()]);
        Ok(())
    });
    if let Err(error) = parsed {
        assert!(!error.to_string().is_empty());
    }
});
