//! GGUF headers: what is written comes back, and what is hostile is refused by name.

use w4pack_format::gguf::file::HEADER_LIMIT;
use w4pack_format::gguf::{Array, Gguf, GgufFault, Kind, TensorType, Value, names};
use w4pack_format::names::{TextTensor, text_tensors};
use w4pack_format::{FormatError, Result, config::Config};

fn parse(bytes: &[u8]) -> Result<Gguf> {
    Gguf::parse("model.gguf", bytes.len() as u64, &mut |offset, buffer| {
        buffer.copy_from_slice(&bytes[offset as usize..][..buffer.len()]);
        Ok(())
    })
}

fn fault(bytes: &[u8]) -> GgufFault {
    match parse(bytes) {
        Err(error @ FormatError::Gguf { .. }) => {
            assert!(error.to_string().contains("`model.gguf`"), "{error}");
            match error {
                FormatError::Gguf { fault, .. } => fault,
                _ => unreachable!(),
            }
        }
        other => panic!("{other:?}"),
    }
}

fn every_kind() -> Vec<(String, Value)> {
    let texts = Array::of_texts(["<pad>", "", "ü", "▁a"]);
    let numbers = Array::of_values(Kind::I32, [1, -3].map(Value::I32));
    let booleans = Array::of_values(Kind::Bool, [true, false].map(Value::Bool));
    [
        ("a.u8", Value::U8(200)),
        ("a.i8", Value::I8(-100)),
        ("a.u16", Value::U16(60_000)),
        ("a.i16", Value::I16(-30_000)),
        ("a.u32", Value::U32(4_000_000_000)),
        ("a.i32", Value::I32(-2_000_000_000)),
        ("a.f32", Value::F32(1e-6)),
        ("a.bool", Value::Bool(true)),
        ("a.text", Value::String("gemma4".into())),
        ("a.u64", Value::U64(u64::MAX)),
        ("a.i64", Value::I64(i64::MIN)),
        ("a.f64", Value::F64(0.1)),
        ("a.texts", Value::Array(texts)),
        ("a.numbers", Value::Array(numbers)),
        ("a.booleans", Value::Array(booleans)),
        ("a.nothing", Value::Array(Array::of_texts([]))),
    ]
    .map(|(key, value)| (key.to_string(), value))
    .into()
}

fn three_tensors() -> [(String, TensorType, Vec<usize>); 3] {
    [
        ("token_embd.weight".into(), TensorType::Q4_0, vec![3, 64]),
        ("output_norm.weight".into(), TensorType::F32, vec![5]),
        ("table".into(), TensorType::Q6_K, vec![2, 1, 256]),
    ]
}

/// A sound file, data and all.
fn sound() -> Vec<u8> {
    let gguf = Gguf::lay_out(every_kind(), &three_tensors()).unwrap();
    let mut bytes = gguf.prefix();
    bytes.resize(gguf.file_bytes() as usize, 0);
    bytes
}

#[test]
fn metadata_of_every_kind_and_tensors_come_back() {
    let laid_out = Gguf::lay_out(every_kind(), &three_tensors()).unwrap();
    let read = parse(&sound()).unwrap();
    assert_eq!(read, laid_out);
    assert_eq!(read.metadata, every_kind());
    let bytes: Vec<u64> = read.tensors.iter().map(|tensor| tensor.bytes).collect();
    assert_eq!(bytes, [3 * 2 * 18, 5 * 4, 2 * 210]);
    let begins: Vec<u64> = read.tensors.iter().map(|tensor| tensor.begin).collect();
    assert_eq!(begins, [0, 128, 160]);
    assert_eq!(read.tensor("table").unwrap().shape, [2, 1, 256]);
    assert!(read.tensor("none").is_none() && read.value("a.none").is_none());
    assert_eq!(read.value("a.i8").unwrap().as_u64(), None);
    assert_eq!(read.value("a.u16").unwrap().as_u64(), Some(60_000));
    assert_eq!(read.value("a.f32").unwrap().as_f64(), Some(f64::from(1e-6_f32)));
    assert_eq!(read.value("a.bool").unwrap().as_bool(), Some(true));
    let array = |key: &str| read.value(key).unwrap().as_array().unwrap();
    assert_eq!(array("a.texts").texts().unwrap().collect::<Vec<_>>(), ["<pad>", "", "ü", "▁a"]);
    assert_eq!(array("a.texts").len(), 4);
    assert!(array("a.texts").values().is_none() && array("a.numbers").texts().is_none());
    let numbers: Vec<Value> = array("a.numbers").values().unwrap().collect();
    assert_eq!(numbers, [Value::I32(1), Value::I32(-3)]);
    assert!(array("a.nothing").is_empty());
}

/// A last tensor need not be padded; version 2 is read too; another alignment moves the data.
#[test]
fn what_other_writers_do_is_read() {
    let mut bytes = sound();
    let end = bytes.len() - 28;
    bytes.truncate(end);
    bytes[4] = 2;
    assert_eq!(parse(&bytes).unwrap().version, 2);
    let mut metadata = every_kind();
    metadata.push(("general.alignment".into(), Value::U32(128)));
    let gguf = Gguf::lay_out(metadata, &three_tensors()).unwrap();
    let mut bytes = gguf.prefix();
    bytes.resize(gguf.file_bytes() as usize, 0);
    let read = parse(&bytes).unwrap();
    assert_eq!((read.alignment, read.data_start % 128), (128, 0));
    assert_eq!(read.tensors[2].begin, 256);
    assert_eq!(read, gguf);
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = sound();
    let last = bytes.len() - 28;
    for end in 0..last {
        match fault(&bytes[..end]) {
            GgufFault::Ends { .. } | GgufFault::Count { .. } | GgufFault::Truncated { .. } => {}
            other => panic!("cut at {end}: {other}"),
        }
    }
    assert!(parse(&bytes[..last]).is_ok());
    let error = parse(&bytes[..last - 1]).unwrap_err();
    assert!(error.to_string().contains("`table` is cut"), "{error}");
    assert!(error.hint().is_some());
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(fault(&longer), GgufFault::Trailing { bytes: 1 });
}

/// No single damaged byte makes the reader panic or ask for much memory.
#[test]
fn damaged_bytes_are_refused_or_read_but_never_fatal() {
    let bytes = sound();
    let header = Gguf::lay_out(every_kind(), &three_tensors()).unwrap().data_start as usize;
    for at in 0..header {
        for value in [0x00, 0x01, 0x7f, 0x80, 0xff, bytes[at] ^ 0x10] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            if let Err(error) = parse(&damaged) {
                assert!(matches!(error, FormatError::Gguf { .. }), "byte {at}: {error}");
            }
        }
    }
}

/// A header put together by hand: metadata and tensor infos as bytes.
fn by_hand(metadata: &[&[u8]], tensors: &[&[u8]]) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((metadata.len() as u64).to_le_bytes());
    bytes.extend([metadata.concat(), tensors.concat()].concat());
    bytes.resize(bytes.len().next_multiple_of(32) + 4096, 0);
    bytes
}

fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

fn entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [text(key.as_bytes()), kind.to_le_bytes().to_vec(), value.to_vec()].concat()
}

fn info(name: &str, dimensions: &[u64], tensor_type: u32, begin: u64) -> Vec<u8> {
    let mut bytes = text(name.as_bytes());
    bytes.extend((dimensions.len() as u32).to_le_bytes());
    dimensions.iter().for_each(|size| bytes.extend(size.to_le_bytes()));
    bytes.extend(tensor_type.to_le_bytes());
    bytes.extend(begin.to_le_bytes());
    bytes
}

#[test]
fn each_way_to_be_wrong_has_its_own_message() {
    let deep: Vec<u8> = [9u32, 1, 0].iter().flat_map(|n| n.to_le_bytes()).collect();
    let deep = [&deep.repeat(5)[..], &[0; 12]].concat();
    let array = |of: u32, count: u64| [&of.to_le_bytes()[..], &count.to_le_bytes()].concat();
    let two = |one: &[u8]| [one, one].map(<[u8]>::to_vec);
    let twice = two(&entry("a", 0, &[1]));
    let same_tensor = [info("t", &[8], 0, 0), info("t", &[8], 0, 32)];
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"PK\x03\x04".repeat(20), "does not begin with"),
        (b"GGUF\0\0\0\x03".repeat(10), "big-endian"),
        (b"GGUF\x01\0\0\0".repeat(10), "version is 1"),
        ([b"GGUF\x03\0\0\0".to_vec(), vec![0xff; 16]].concat(), "more than its 24 bytes"),
        (by_hand(&[&text(&[0xff, 0xfe])], &[]), "a metadata key is not UTF-8"),
        (by_hand(&[&entry("a", 8, &text(&[0xc0, 0x80]))], &[]), "the value of `a` is not UTF-8"),
        (by_hand(&[&entry("", 0, &[1])], &[]), "is empty, too long"),
        (by_hand(&[&entry("a\u{1b}[2J", 0, &[1])], &[]), r"a\u{1b}[2J"),
        (by_hand(&[&entry("a", 13, &[1])], &[]), "`a` has the unknown value type 13"),
        (by_hand(&[&entry("a", 7, &[2])], &[]), "boolean that is 2"),
        (
            by_hand(&[&entry("a", 9, &[&array(7, 2)[..], &[1, 3]].concat())], &[]),
            "boolean that is 3",
        ),
        (by_hand(&[&entry("a", 9, &array(13, 0))], &[]), "unknown value type 13"),
        (by_hand(&[&entry("a", 9, &array(0, 1 << 40))], &[]), "array elements"),
        (by_hand(&[&entry("a", 9, &array(12, u64::MAX))], &[]), "array elements"),
        (by_hand(&[&entry("a", 9, &deep)], &[]), "nests arrays more than 4 deep"),
        (by_hand(&[&entry("a", 8, &u64::MAX.to_le_bytes())], &[]), "ends inside the value of `a`"),
        (by_hand(&[&twice[0], &twice[1]], &[]), "metadata key `a` appears twice"),
        (by_hand(&[&entry("general.alignment", 4, &12u32.to_le_bytes())], &[]), "is 12,"),
        (by_hand(&[&entry("general.alignment", 4, &0u32.to_le_bytes())], &[]), "power of two"),
        (by_hand(&[&entry("general.alignment", 8, &text(b"32"))], &[]), "a text, not a power"),
        (by_hand(&[], &[&info("t", &[], 0, 0)]), "has the dimensions []"),
        (by_hand(&[], &[&info("t", &[1, 1, 1, 1, 1], 0, 0)]), "1 to 4 are possible"),
        (by_hand(&[], &[&info("t", &[4, 0], 0, 0)]), "none of them 0"),
        (by_hand(&[], &[&info("t", &[8], 4, 0)]), "`t` has the unknown tensor type 4"),
        (by_hand(&[], &[&info("t", &[33], 2, 0)]), "33 elements are no multiple of 32"),
        (by_hand(&[], &[&info("t", &[1 << 32, 1 << 32], 0, 0)]), "overflows 64 bits"),
        (by_hand(&[], &[&info("t", &[1 << 60], 0, 0)]), "overflows 64 bits"),
        (by_hand(&[], &[&info("t", &[8], 0, 32)]), "begins at byte 32 of the data, 0 expected"),
        (by_hand(&[], &[&same_tensor[0], &same_tensor[1]]), "tensor `t` appears twice"),
        (by_hand(&[], &[&info("t", &[1 << 20], 0, 0)]), "truncated"),
        (by_hand(&[], &[]), "follow behind the last tensor"),
    ];
    for (bytes, words) in cases {
        let error = fault(&bytes).to_string();
        assert!(error.contains(words), "`{words}` is not in: {error}");
    }
}

/// A text as long as the header may be is refused before it is read.
#[test]
fn a_header_beyond_the_limit_is_not_read() {
    let start = by_hand(&[&entry("a", 8, &(HEADER_LIMIT + 1).to_le_bytes())], &[]);
    let mut most = 0;
    let error = Gguf::parse("model.gguf", 1 << 40, &mut |offset, buffer| {
        most = most.max(buffer.len());
        buffer.fill(0);
        let end = start.len().min(offset as usize + buffer.len());
        let here = &start[(offset as usize).min(end)..end];
        buffer[..here.len()].copy_from_slice(here);
        Ok(())
    });
    assert!(error.unwrap_err().to_string().contains("exceeds the limit"));
    assert!(most < 1 << 20);
}

#[test]
fn layouts_that_cannot_be_read_are_not_made() {
    let tensor = |name: &str, shape: &[usize]| (name.into(), TensorType::Q4_0, shape.to_vec());
    for tensors in [
        vec![tensor("a", &[2, 33])],
        vec![tensor("a", &[0, 32])],
        vec![tensor("a", &[])],
        vec![tensor("a", &[32]), tensor("a", &[32])],
        vec![tensor("", &[32])],
    ] {
        assert!(Gguf::lay_out(Vec::new(), &tensors).is_err(), "{tensors:?}");
    }
    let twice = [("a".into(), Value::U8(1)), ("a".into(), Value::U8(1))];
    assert!(Gguf::lay_out(twice.into(), &[]).is_err());
}

/// Every tensor of the model has a name there, and the name leads back.
#[test]
fn text_tensors_have_names_in_gguf() {
    let config = br#"{"model_type": "gemma4_text", "num_hidden_layers": 12,
        "num_kv_shared_layers": 4, "hidden_size_per_layer_input": 32}"#;
    let config = Config::parse("config.json", config).unwrap();
    let tensors = text_tensors(&config.text);
    let mut seen = std::collections::HashSet::new();
    for TextTensor { name, .. } in &tensors {
        let theirs = names::to_gguf(name).unwrap_or_else(|| panic!("{name}"));
        assert!(theirs.len() < 64, "ggml's limit: {theirs}");
        assert_eq!(names::from_gguf(&theirs).as_ref(), Some(name));
        assert!(seen.insert(theirs));
    }
    assert_eq!(names::to_gguf("layers.3.mlp.up_proj.weight").unwrap(), "blk.3.ffn_up.weight");
    assert_eq!(names::to_gguf("layers.3.mlp.sideways.weight"), None);
    assert_eq!(names::from_gguf("output.weight"), None);
}
