//! Any bytes as a safetensors file: a named error or a header whose tensors lie inside.
#![no_main]

use libfuzzer_sys::fuzz_target;
use w4pack_format::header::Header;

fuzz_target!(|data: &[u8]| {
    let header = Header::parse("fuzz", data.len() as u64, &mut |offset, buffer| {
        let begin = offset as usize;
        buffer.copy_from_slice(&data[begin..begin + buffer.len()]);
        Ok(())
    });
    match header {
        Ok(header) => {
            assert_eq!(header.file_bytes(), data.len() as u64);
            assert_eq!(header.prefix(), data[..header.data_start() as usize]);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
