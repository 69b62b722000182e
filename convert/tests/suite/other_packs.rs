//! Checkpoints that are packed already as sources: laid out anew without touching a code or a step.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use half::f16;
use serde_json::json;
use w4pack_convert::{ConvertError, GGUF_FILE, Layout, Options, Reason, Report};
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::Config;
use w4pack_format::dtype::Dtype;
use w4pack_format::gguf::block::{Q4_0_BYTES, q4_0_to_codes};
use w4pack_format::gguf::{Gguf, names::to_gguf};
use w4pack_format::names::{NameLayout, Role, text_tensors};
use w4pack_format::scale::ScaleDtype;

use crate::layouts::assert_config_tells_the_truth;
use crate::support::restore::{Packed, packed};
use crate::support::small::{Small, Tensor};
use crate::support::{names_in, open, options, reference, run};

const PARTS: [&str; 3] = ["weight_packed", "weight_scale", "weight_shape"];

/// A conversion of the small model, to be tampered with.
fn pack(layout: Layout, scale_dtype: ScaleDtype) -> Small {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("out"));
    Small::google(50).write(&source, 1);
    run(&source, &out, &Options { layout, ..options(scale_dtype) }).unwrap();
    let output = open(&out);
    let tensor = |name: &str| {
        let info = output.tensor(name).unwrap().info;
        let bytes = output.read(name).unwrap();
        (name.to_string(), Tensor { dtype: info.dtype, shape: info.shape.clone(), bytes })
    };
    Small {
        config: Config::load(&**output.source()).unwrap().raw,
        tensors: output.names().map(tensor).collect(),
        files: BTreeMap::new(),
        layout: NameLayout::TextOnly,
    }
}

/// What other makers did: bf16 scales in linears with f16 in tables, a second head, Google's names
/// under a text-only configuration, negative steps, 32-bit shapes.
fn another_makers() -> Small {
    let mut small = pack(Layout::Emb4, ScaleDtype::BF16);
    let f16 = pack(Layout::Emb4, ScaleDtype::F16);
    for table in ["model.embed_tokens", "model.embed_tokens_per_layer"] {
        for part in PARTS {
            let name = format!("{table}.{part}");
            small.tensors.insert(name.clone(), f16.tensors[&name].clone());
        }
    }
    for part in PARTS {
        let table = small.tensors[&format!("model.embed_tokens.{part}")].clone();
        small.tensors.insert(format!("lm_head.{part}"), table);
    }
    for (name, tensor) in &mut small.tensors {
        if name.ends_with("o_proj.weight_scale") {
            tensor.bytes.iter_mut().skip(1).step_by(2).for_each(|byte| *byte ^= 0x80);
        }
        if name.ends_with("v_proj.weight_shape") {
            tensor.dtype = Dtype::I32;
            tensor.bytes =
                tensor.bytes.chunks(8).flat_map(|number| &number[..4]).copied().collect();
        }
    }
    let renamed = small.tensors.into_iter().map(|(name, tensor)| {
        let name = name
            .strip_prefix("model.")
            .map(|rest| format!("model.language_model.{rest}"))
            .unwrap_or(name);
        (name, tensor)
    });
    Small { tensors: renamed.collect(), ..small }
}

/// Codes, steps and their dtype of every packed module, by name without prefix.
fn modules(checkpoint: &Checkpoint) -> BTreeMap<String, Packed> {
    let found = checkpoint.names().filter_map(|name| name.strip_suffix(".weight_packed"));
    found
        .map(|module| {
            let text_name = module
                .strip_prefix("model.language_model.")
                .or(module.strip_prefix("model."))
                .unwrap_or(module);
            let stored = checkpoint.tensor(&format!("{module}.weight_shape")).unwrap();
            assert!(matches!(stored.info.dtype, Dtype::I64 | Dtype::I32));
            (text_name.to_string(), as_packed(checkpoint, module))
        })
        .collect()
}

/// [`packed`], for shapes of 32 bits too.
fn as_packed(checkpoint: &Checkpoint, module: &str) -> Packed {
    match checkpoint.tensor(&format!("{module}.weight_shape")).unwrap().info.dtype {
        Dtype::I64 => packed(checkpoint, module),
        _ => {
            // Everything but the shape is read the same way.
            let folder = tempfile::tempdir().unwrap();
            let mut small = Small::text_only(0);
            small.tensors.clear();
            for part in PARTS {
                let name = format!("{module}.{part}");
                let info = checkpoint.tensor(&name).unwrap().info;
                let mut bytes = checkpoint.read(&name).unwrap();
                let mut dtype = info.dtype;
                if part == "weight_shape" {
                    bytes = bytes.chunks(4).flat_map(|n| [n, &[0; 4]].concat()).collect();
                    dtype = Dtype::I64;
                }
                small.tensors.insert(name, Tensor { dtype, shape: info.shape.clone(), bytes });
            }
            small.write(folder.path(), 1);
            packed(&open(folder.path()), module)
        }
    }
}

fn same(one: &Packed, other: &Packed) -> bool {
    let bits = |packed: &Packed| packed.steps.iter().map(|step| step.to_bits()).collect::<Vec<_>>();
    one.codes == other.codes
        && bits(one) == bits(other)
        && one.scale_dtype == other.scale_dtype
        && one.shape == other.shape
}

/// Lays a pack out anew; every module that was packed before is the same after.
fn relaid(source: &Path, out: &Path, layout: Layout) -> Result<Report, ConvertError> {
    let report = run(source, out, &Options { layout, ..options(ScaleDtype::F16) })?;
    let (before, after) = (open(source), open(out));
    let (theirs, ours) = (modules(&before), modules(&after));
    for (name, module) in &theirs {
        if name == "lm_head" && layout != Layout::Emb4Untied {
            assert!(!ours.contains_key(name));
            continue;
        }
        assert!(same(module, &ours[name]), "{name}");
    }
    assert_config_tells_the_truth(&after);
    // It is another maker's: no manifest, no sidecar, only the list of what was written.
    assert_eq!(names_in(&out.join("w4pack")), ["laid-out.json"]);
    let relayed = report.packed.iter().filter(|packed| packed.relayed);
    assert_eq!(relayed.count(), theirs.len() - usize::from(theirs.contains_key("lm_head")));
    Ok(report)
}

#[test]
fn another_makers_pack_is_laid_out_anew_as_it_is() {
    let small = another_makers();
    for layout in [Layout::Emb4, Layout::Emb4Untied] {
        let folder = tempfile::tempdir().unwrap();
        let (source, out) = (folder.path().join("source"), folder.path().join("out"));
        small.write(&source, 2);
        let report = relaid(&source, &out, layout).unwrap();
        let output = open(&out);
        assert!(output.names().all(|name| !name.contains("language_model")));
        let copies = report.left_out.iter().filter(|left| left.reason == Reason::TiedCopy);
        assert_eq!(copies.count(), 3);
        assert!(report.total.negative > 0);
        assert!(report.warnings.iter().any(|warning| warning.contains("bf16 steps")));
        let up = packed(&output, "model.layers.0.mlp.up_proj");
        let table = packed(&output, "model.embed_tokens");
        assert_eq!((up.scale_dtype, table.scale_dtype), (ScaleDtype::BF16, ScaleDtype::F16));
    }
}

#[test]
fn packs_by_the_official_library_are_laid_out_anew() {
    for name in ["linear", "linear-ple4", "emb4-untied", "emb4-tied"] {
        let Some(source) = reference(&format!("ct-official/{name}")) else { return };
        for layout in [Layout::Emb4, Layout::Emb4Untied, Layout::Linear, Layout::LinearPle4] {
            let folder = tempfile::tempdir().unwrap();
            let out = folder.path().join("out");
            let unpacks = match layout {
                Layout::Linear => name != "linear",
                Layout::LinearPle4 => name.starts_with("emb4"),
                _ => false,
            };
            match relaid(&source, &out, layout) {
                Ok(_) => assert!(!unpacks, "{name} as {layout}"),
                Err(error) => {
                    assert!(unpacks, "{name} as {layout}: {error}");
                    assert!(error.to_string().contains("unpacking would round"), "{error}");
                    assert!(!out.exists());
                    continue;
                }
            }
            // Tables that were plain are recovered; theirs are the same grid.
            let Some(whole) = reference("ct-official/emb4-untied") else { return };
            let (ours, official) = (modules(&open(&out)), modules(&open(&whole)));
            for (module, packed) in ours {
                assert!(packed.codes == official[&module].codes, "{module} of {name} as {layout}");
            }
        }
    }
}

/// What was laid out anew is known again: the next run takes its place, unless somebody put something
/// of theirs into it.
#[test]
fn a_pack_laid_out_anew_is_replaced_by_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("out"));
    another_makers().write(&source, 1);
    for layout in [Layout::Emb4, Layout::Emb4Untied, Layout::Emb4] {
        relaid(&source, &out, layout).unwrap();
    }
    fs::write(out.join("notes.txt"), "mine").unwrap();
    let error = relaid(&source, &out, Layout::Emb4).unwrap_err();
    assert!(error.to_string().contains("notes.txt"), "{error}");
    fs::remove_file(out.join("notes.txt")).unwrap();
    fs::write(out.join("w4pack/laid-out.json"), "{}").unwrap();
    let error = relaid(&source, &out, Layout::Emb4).unwrap_err();
    assert!(error.to_string().contains("not an output of w4pack"), "{error}");
}

#[test]
fn packed_words_become_blocks_of_a_gguf_file() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("out"));
    let mut small = another_makers();
    let tokenizer = json!({"model": {"byte_fallback": true, "vocab": {"a": 0}}});
    small.files.insert("tokenizer.json".into(), tokenizer.to_string().into_bytes());
    small.write(&source, 1);
    let gguf = Options { layout: Layout::Gguf, ..options(ScaleDtype::F16) };
    run(&source, &out, &gguf).unwrap();
    assert_eq!(names_in(&out), [GGUF_FILE, "w4pack"]);
    let bytes = fs::read(out.join(GGUF_FILE)).unwrap();
    let read = |offset: u64, buffer: &mut [u8]| {
        buffer.copy_from_slice(&bytes[offset as usize..][..buffer.len()]);
        Ok(())
    };
    let file = Gguf::parse(GGUF_FILE, bytes.len() as u64, &mut { read }).unwrap();
    let config = Config::load(&**open(&source).source()).unwrap();
    let theirs = modules(&open(&source));
    for tensor in text_tensors(&config.text).iter().filter(|tensor| tensor.role != Role::Vector) {
        let found = file.tensor(&to_gguf(&tensor.name).unwrap()).unwrap();
        let data = &bytes[(file.data_start + found.begin) as usize..][..found.bytes as usize];
        let packed = &theirs[tensor.module()];
        for (group, block) in data.as_chunks::<Q4_0_BYTES>().0.iter().enumerate() {
            let (codes, step) = q4_0_to_codes(block);
            assert_eq!(codes, packed.codes[group]);
            assert_eq!(step.to_f32(), packed.steps[group]);
        }
    }

    // A step that f16 does not have is not rounded.
    let wide = pack(Layout::Emb4, ScaleDtype::F32);
    let mut wide = Small { files: small.files.clone(), ..wide };
    wide.tensors.get_mut("model.embed_tokens.weight_scale").unwrap().bytes[..4]
        .copy_from_slice(&1.000_1_f32.to_le_bytes());
    let exact: Vec<u8> = wide.tensors["model.embed_tokens.weight_scale"].bytes[4..]
        .chunks(4)
        .flat_map(|step| {
            f16::from_f32(f32::from_le_bytes(step.try_into().unwrap())).to_f32().to_le_bytes()
        })
        .collect();
    wide.tensors.get_mut("model.embed_tokens.weight_scale").unwrap().bytes[4..]
        .copy_from_slice(&exact);
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    wide.write(&source, 1);
    let error = run(&source, &folder.path().join("out"), &gguf).unwrap_err().to_string();
    for words in ["weight_scale", "row 0, group 0", "1.0001", "f16 has no such number"] {
        assert!(error.contains(words), "`{words}` is not in: {error}");
    }
    assert_eq!(names_in(folder.path()), ["source"]);
}

#[test]
fn packs_that_cannot_be_read_are_refused_by_name() {
    const UP: &str = "model.layers.0.mlp.up_proj";
    type Change<'c> = &'c dyn Fn(&mut Small);
    fn part<'s>(small: &'s mut Small, part: &str) -> &'s mut Tensor {
        small.tensors.get_mut(&format!("{UP}.{part}")).unwrap()
    }
    let changes: [(Change<'_>, &[&str]); 9] = [
        (
            &|small| drop(small.tensors.remove(&format!("{UP}.weight_shape"))),
            &["up_proj.weight_shape", "no tensor"],
        ),
        (&|small| part(small, "weight_shape").bytes[0] = 63, &["up_proj.weight_shape", "[63, 64]"]),
        (
            &|small| part(small, "weight_scale").shape = vec![128, 1],
            &["up_proj.weight_scale", "[128, 1]", "[64, 2]"],
        ),
        (
            &|small| {
                let bytes = &mut part(small, "weight_scale").bytes;
                bytes[34..36].copy_from_slice(&f16::NAN.to_le_bytes());
            },
            &["up_proj.weight_scale", "row 8, group 1", "NaN"],
        ),
        (
            &|small| part(small, "weight_scale").bytes[..2].fill(0),
            &["up_proj.weight_scale", "row 0, group 0", "no number"],
        ),
        (
            &|small| {
                let shape = part(small, "weight_shape").clone();
                small.tensors.insert(format!("{UP}.weight_zero_point"), shape);
            },
            &["weight_zero_point", "account"],
        ),
        (
            &|small| {
                for part in PARTS {
                    let table = small.tensors[&format!("model.embed_tokens.{part}")].clone();
                    small.tensors.insert(format!("lm_head.{part}"), table);
                }
                small.tensors.get_mut("lm_head.weight_packed").unwrap().bytes[0] ^= 1;
            },
            &["lm_head.weight_packed", "differs", "row 0"],
        ),
        (
            &|small| {
                small.config["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] =
                    json!(8);
            },
            &["config_groups.group_0.weights.num_bits", "8"],
        ),
        (
            &|small| small.config["tie_word_embeddings"] = json!(false),
            &["lm_head.weight", "no tensor"],
        ),
    ];
    for (change, words) in changes {
        let mut small = pack(Layout::Emb4, ScaleDtype::F16);
        change(&mut small);
        let folder = tempfile::tempdir().unwrap();
        let (source, out) = (folder.path().join("source"), folder.path().join("out"));
        small.write(&source, 1);
        let error = run(&source, &out, &options(ScaleDtype::F16)).unwrap_err().to_string();
        for words in words {
            assert!(error.contains(words), "`{words}` is not in: {error}");
        }
        assert_eq!(names_in(folder.path()), ["source"]);
    }
}
