//! safetensors headers: agreement with the reference crate, and distrust.

#[path = "../../testing/in_time.rs"]
mod in_time;

use in_time::in_time;
use proptest::prelude::*;
use std::time::Duration;
use w4pack_format::dtype::Dtype;
use w4pack_format::header::Header;
use w4pack_format::{FormatError, HeaderFault};

fn parse(bytes: &[u8]) -> Result<Header, FormatError> {
    Header::parse("test.safetensors", bytes.len() as u64, &mut |offset, buffer| {
        let offset = offset as usize;
        buffer.copy_from_slice(&bytes[offset..offset + buffer.len()]);
        Ok(())
    })
}

fn file(json: &str, data: usize) -> Vec<u8> {
    file_of(json.as_bytes(), data)
}

fn file_of(json: &[u8], data: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json);
    bytes.extend(std::iter::repeat_n(0, data));
    bytes
}

fn fault(bytes: &[u8]) -> HeaderFault {
    match parse(bytes) {
        Err(FormatError::Header { fault, .. }) => fault,
        other => panic!("expected a header fault, got {other:?}"),
    }
}

const GOOD: &str = r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"U8","shape":[4],"data_offsets":[16,20]}}"#;

#[test]
fn a_sound_file_is_read() {
    let header = parse(&file(GOOD, 20)).unwrap();
    assert_eq!(header.tensors.len(), 2);
    assert_eq!((header.tensors[0].elements(), header.tensors[1].bytes()), (4, 4));
    assert_eq!(header.file_bytes(), 8 + GOOD.len() as u64 + 20);
}

/// Every mutation is refused under its own name, within a second.
#[test]
fn field_case_10_hostile_headers_are_refused_by_name() {
    let with = |from: &str, to: &str| file(&GOOD.replace(from, to), 20);
    let with_length = |length: u64| {
        let mut bytes = file(GOOD, 20);
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        bytes
    };
    let bytes = file(GOOD, 20).len() as u64;
    type Check = fn(&HeaderFault) -> bool;
    let cases: Vec<(&str, Vec<u8>, Check)> = vec![
        ("length 0", with_length(0), |f| matches!(f, HeaderFault::Empty)),
        ("length 2^63", with_length(1 << 63), |f| matches!(f, HeaderFault::TooLong { .. })),
        ("length 2^40", with_length(1 << 40), |f| matches!(f, HeaderFault::TooLong { .. })),
        ("one past the end", with_length(bytes - 7), |f| matches!(f, HeaderFault::PastEnd { .. })),
        ("seven bytes", vec![0; 7], |f| matches!(f, HeaderFault::TooShort { .. })),
        ("offsets []", with("[16,20]", "[]"), |f| {
            matches!(f, HeaderFault::OffsetCount { count: 0, .. })
        }),
        ("offsets [5]", with("[16,20]", "[5]"), |f| {
            matches!(f, HeaderFault::OffsetCount { count: 1, .. })
        }),
        ("offsets [9,3]", with("[16,20]", "[9,3]"), |f| matches!(f, HeaderFault::Inverted { .. })),
        ("negative", with("[16,20]", "[-4,0]"), |f| matches!(f, HeaderFault::Entry { .. })),
        ("overlap", with("[16,20]", "[15,19]"), |f| matches!(f, HeaderFault::Overlap { .. })),
        ("gap", with("[16,20]", "[17,21]"), |f| matches!(f, HeaderFault::Gap { bytes: 1, .. })),
        ("wrong size", with("[4]", "[5]"), |f| matches!(f, HeaderFault::Size { .. })),
        ("overflow", with("[2,2]", "[4294967296,4294967296]"), |f| {
            matches!(f, HeaderFault::Overflow { .. })
        }),
        (
            "duplicate",
            with(r#""b":{"#, r#""a":{"#),
            |f| matches!(f, HeaderFault::Duplicate { name } if name == "a"),
        ),
        ("not UTF-8", file_of(b"{\"\xff\":1}", 0), |f| {
            matches!(f, HeaderFault::NotUtf8 { offset: 2 })
        }),
        ("not JSON", file("{\"a\":", 20), |f| matches!(f, HeaderFault::NotJson { .. })),
        ("an array", file("[]", 0), |f| matches!(f, HeaderFault::NotJson { .. })),
        ("unknown dtype", with("\"U8\"", "\"U9\""), |f| matches!(f, HeaderFault::Dtype { .. })),
        ("unknown key", with("\"shape\":[4]", "\"shape\":[4],\"x\":1"), |f| {
            matches!(f, HeaderFault::Entry { .. })
        }),
        (
            "control characters",
            with("\"b\":", "\"b\\u001b[2J\":"),
            |f| matches!(f, HeaderFault::Entry { tensor, .. } if !tensor.contains('\u{1b}')),
        ),
        (
            "long shape",
            with("[4]", &format!("[{}4]", "1,".repeat(9))),
            |f| matches!(f, HeaderFault::Entry { problem, .. } if problem.contains("short list")),
        ),
        ("metadata", file(r#"{"__metadata__":{"a":1}}"#, 0), |f| {
            matches!(f, HeaderFault::Metadata { .. })
        }),
        ("trailing bytes", file(GOOD, 21), |f| matches!(f, HeaderFault::Trailing { bytes: 1 })),
        (
            "cut",
            file(GOOD, 19),
            |f| matches!(f, HeaderFault::Truncated { tensor, .. } if tensor == "b"),
        ),
    ];
    let mut messages = std::collections::BTreeSet::new();
    for (name, bytes, expected) in &cases {
        let found = in_time(name, Duration::from_secs(1), || fault(bytes));
        assert!(expected(&found), "{name}: {found:?}");
        messages.insert(found.to_string());
    }
    assert_eq!(messages.len(), cases.len(), "each has a message of its own");
}

#[test]
fn field_case_10_deep_nesting_is_an_error_and_no_crash() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(matches!(fault(&file(&deep, 0)), HeaderFault::NotJson { .. }));
}

proptest! {
    /// What we lay out, the reference crate reads, and we read again.
    #[test]
    fn laid_out_files_agree_with_the_reference_crate(
        shapes in proptest::collection::vec(proptest::collection::vec(0usize..5, 0..3), 1..6)
    ) {
        let dtypes = [Dtype::BF16, Dtype::I32, Dtype::F16, Dtype::I64, Dtype::U8];
        let tensors: Vec<_> = shapes
            .iter()
            .enumerate()
            .map(|(i, shape)| (format!("tensor \"{i}\" ü"), dtypes[i % 5], shape.clone()))
            .collect();
        let header = Header::lay_out(&tensors).unwrap();
        let mut bytes = header.prefix();
        bytes.resize(header.file_bytes() as usize, 7);
        let again = parse(&bytes).unwrap();
        prop_assert_eq!(again.metadata.get("format").map(String::as_str), Some("pt"));
        // Misaligned tensors are legal for us and refused by some readers: compare aligned ones.
        if let Ok(reference) = safetensors::SafeTensors::deserialize(&bytes) {
            prop_assert_eq!(reference.len(), tensors.len());
            for info in &again.tensors {
                let view = reference.tensor(&info.name).unwrap();
                prop_assert_eq!(view.shape(), &info.shape[..]);
                prop_assert_eq!(view.data().len() as u64, info.bytes());
            }
        } else {
            prop_assert!(false, "the reference crate refuses our file");
        }
    }

    /// No byte soup makes the parser panic.
    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes);
        if bytes.len() >= 8 {
            let length = bytes.len() as u64 - 8;
            bytes[..8].copy_from_slice(&length.to_le_bytes());
            let _ = parse(&bytes);
        }
    }

    /// One changed byte of a good header is refused or still a sound description of the file.
    #[test]
    fn one_changed_byte_never_opens_a_hole(position in 8usize..100, byte in any::<u8>()) {
        let mut bytes = file(GOOD, 20);
        bytes[position] = byte;
        if let Ok(header) = parse(&bytes) {
            prop_assert_eq!(header.file_bytes(), bytes.len() as u64);
            prop_assert_eq!(header.tensors.iter().map(|t| t.bytes()).sum::<u64>(), 20);
        }
    }
}

/// SplitMix64, so that every run mutates alike.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// What the reference crate refuses is refused here, on ten thousand mutated files; and enough of
/// them are sound that this says something.
#[test]
fn ten_thousand_mutated_headers_are_never_taken_more_laxly() {
    let pieces = [
        "0",
        "16",
        "20",
        "-1",
        "1e3",
        "null",
        "\"F16\"",
        "[]",
        "[2,2]",
        "{}",
        "9999999999999999999",
    ];
    let mut state = 1;
    let (mut taken, mut refused_by_reference) = (0, 0);
    for number in 0..10_000 {
        let mut json = GOOD.as_bytes().to_vec();
        let mut random = |bound: usize| (next(&mut state) % bound as u64) as usize;
        let mut data = 20;
        for _ in 0..=random(2) {
            let at = random(json.len());
            match random(6) {
                0 => json[at] ^= 1 << random(8),
                1 => drop(json.remove(at)),
                2 => json.insert(at, b" \"{}[]:,0129az"[random(14)]),
                3 => {
                    // A number, a word or a list in the place of a number.
                    let digits: Vec<usize> =
                        (0..json.len()).filter(|&at| json[at].is_ascii_digit()).collect();
                    if let Some(&at) = digits.get(random(digits.len().max(1))) {
                        json.splice(at..=at, pieces[random(pieces.len())].bytes());
                    }
                }
                4 => json.extend_from_slice(&b"        "[..random(8)]),
                _ => data = [0, 16, 19, 20, 21, 40][random(6)],
            }
        }
        let mut bytes = file_of(&json, data);
        if random(10) == 0 {
            let place = random(bytes.len());
            bytes[place] ^= 1 << random(8);
        }
        let ours = parse(&bytes);
        let reference = safetensors::SafeTensors::deserialize(&bytes);
        taken += usize::from(ours.is_ok());
        refused_by_reference += usize::from(reference.is_err());
        let shown = String::from_utf8_lossy(&json).into_owned();
        assert!(ours.is_err() || reference.is_ok(), "{number}: {shown}: {:?}", reference.err());
    }
    assert!(taken > 300 && refused_by_reference > 3000, "{taken}, {refused_by_reference}");
}
