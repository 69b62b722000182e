//! Every release of the line, as a small model with its features: converted, proved, run, and held
//! against transformers' own classes where `W4PACK_PYTHON` is set.

use crate::support::*;
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What runs: the shapes of Gemma 4.
const RUN: [&str; 5] = ["tiny", "tiny-e4b", "tiny-12b", "tiny-31b", "tiny-26b-a4b"];

const GENERATED: usize = 8;

/// More tokens than the sliding layers see at a time.
fn prompt() -> String {
    let ids = (0..48).map(|number| (120 + 37 * number % 1900).to_string());
    ["2".to_string()].into_iter().chain(ids).collect::<Vec<_>>().join(",")
}

/// A fixture and its conversion.
fn converted(shape: &str, folder: &Path, flags: &[&str]) -> (PathBuf, PathBuf) {
    let (source, packed) = (folder.join(shape), folder.join(format!("{shape}-packed")));
    succeed(&["fixture", shape, "--out", text(&source), "--quiet"]);
    let convert = ["convert", text(&source), "--out", text(&packed), "--quiet"];
    succeed(&[&convert[..], flags].concat());
    (source, packed)
}

/// Logits of every position and the ids chosen.
fn run(model: &Path, logits: &Path, flags: &[&str]) -> (Vec<f32>, Vec<u64>) {
    let (tokens, generated) = (prompt(), GENERATED.to_string());
    let arguments = [
        "run",
        "--model",
        text(model),
        "--tokens",
        &tokens,
        "--max-tokens",
        &generated,
        "--temperature",
        "0",
        "--ignore-eos",
        "--logits",
        text(logits),
        "--json",
    ];
    let output = stdout_json(&succeed(&[&arguments[..], flags].concat()));
    let ids = output["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap());
    (floats(logits, "logits"), ids.collect())
}

/// `SHA256 SIZE PATH` of every file.
fn hashes(source: &Path) -> String {
    let line = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let content = std::fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        format!("{} {} {name}\n", w4pack_format::digest::sha256(&content), content.len())
    };
    std::fs::read_dir(source).unwrap().map(line).collect()
}

#[test]
fn every_release_converts_and_is_proved() {
    for shape in [&RUN[..], &["tiny-gemma3"]].concat() {
        let folder = tempfile::tempdir().unwrap();
        let (source, packed) = converted(shape, folder.path(), &[]);
        let verify = ["verify", text(&packed), "--source", text(&source), "--json"];
        let report = stdout_json(&succeed(&verify));
        assert_eq!(report["verdict"], "proved", "{shape}");
        assert_eq!(report["unaccounted"], 0, "{shape}");
        assert_eq!(report["whole"]["int4_codes_disagreeing"], 0, "{shape}");
        // The same by hashes alone, from the pack turned round.
        let list = folder.path().join("list");
        std::fs::write(&list, hashes(&source)).unwrap();
        let by_hashes = ["verify", text(&packed), "--hashes", text(&list), "--json"];
        let report = w4pack(&[&by_hashes[..], &["--towers-from", text(&source)]].concat());
        let report = stdout_json(&report);
        assert_eq!(report["verdict"], "proved", "{shape}: {}", report["faults"]);
        let alone = stdout_json(&w4pack(&["verify", text(&packed), "--json"]));
        assert_eq!(alone["verdict"], "self-consistent", "{shape}: {}", alone["faults"]);
    }
}

/// Stacks of experts too, which are packed matrix by matrix.
#[test]
fn every_release_comes_back_byte_for_byte() {
    for shape in [&RUN[..], &["tiny-gemma3"]].concat() {
        let folder = tempfile::tempdir().unwrap();
        let (source, packed) = converted(shape, folder.path(), &[]);
        let back = folder.path().join("back");
        let restore = ["restore", text(&packed), "--out", text(&back), "--json"];
        let towers = ["--towers-from", text(&source)];
        let report = stdout_json(&succeed(&[&restore[..], &towers].concat()));
        assert_eq!(report["complete"], true, "{shape}: {report}");
        for entry in std::fs::read_dir(&source).unwrap() {
            let name = entry.unwrap().file_name();
            let [one, other] =
                [&source, &back].map(|root| std::fs::read(root.join(&name)).unwrap());
            assert!(one == other, "{shape}: {name:?}");
        }
    }
}

#[test]
fn every_gemma_4_runs_as_transformers_class_for_it_does() {
    let Some(python) = std::env::var_os("W4PACK_PYTHON") else {
        eprintln!("skipped: W4PACK_PYTHON is not set, transformers' classes are not asked");
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../oracle/dequantized_model.py");
    for shape in RUN {
        let folder = tempfile::tempdir().unwrap();
        let (_, packed) = converted(shape, folder.path(), &[]);
        let theirs = folder.path().join("theirs.safetensors");
        let output = Command::new(&python)
            .arg(&script)
            .arg(&packed)
            .args(["--tokens", &prompt(), "--generate", &GENERATED.to_string(), "--out"])
            .arg(&theirs)
            .env("HF_HUB_OFFLINE", "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{shape}: {}", stderr(&output));
        let ours = folder.path().join("ours.safetensors");
        let (logits, ids) = run(&packed, &ours, &["--kv", "f32"]);
        let expected = floats(&theirs, "logits");
        let (far, allowed) = (distance(&logits, &expected), in_sixteen_bits(&expected));
        eprintln!("{shape}: largest difference of {} logits {far:e}", logits.len());
        assert!(far <= allowed, "{shape}: {far}, {allowed}");
        let bytes = std::fs::read(&theirs).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let chosen = tensors.tensor("ids").unwrap();
        let chosen = chosen.data().chunks_exact(8);
        let chosen: Vec<u64> =
            chosen.map(|id| u64::from_le_bytes(id.try_into().unwrap())).collect();
        assert_eq!(ids, chosen, "{shape}");
    }
}

/// The bf16 source holds all experts of a layer in one tensor, the result each by itself.
#[test]
fn stacked_and_packed_experts_give_the_same_logits() {
    let folder = tempfile::tempdir().unwrap();
    let (source, packed) = converted("tiny-26b-a4b", folder.path(), &["--scale-dtype", "f32"]);
    let file = folder.path().join("logits.safetensors");
    let (of_source, source_ids) = run(&source, &file, &[]);
    let (of_packed, packed_ids) = run(&packed, &file, &["--weights", "bf16"]);
    let far = distance(&of_source, &of_packed);
    assert!(far <= 1e-4, "{far}");
    assert_eq!(source_ids, packed_ids);
}

/// A maker that packs linears only leaves the stacks of experts as they are.
#[test]
fn a_pack_with_whole_stacks_is_proved_and_run() {
    let folder = tempfile::tempdir().unwrap();
    let (source, packed) = converted("tiny-26b-a4b", folder.path(), &["--scale-dtype", "f32"]);
    let file = folder.path().join("logits.safetensors");
    let (before, _) = run(&packed, &file, &["--weights", "bf16"]);
    std::fs::remove_dir_all(packed.join("w4pack")).unwrap();
    let weights = packed.join("model.safetensors");
    let ours = std::fs::read(&weights).unwrap();
    let theirs = std::fs::read(source.join("model.safetensors")).unwrap();
    let ours = SafeTensors::deserialize(&ours).unwrap();
    let theirs = SafeTensors::deserialize(&theirs).unwrap();
    let stacks = theirs.tensors().into_iter().filter(|(name, _)| name.contains(".experts."));
    let stacks = stacks.map(|(name, view)| (name.replace("model.language_model.", "model."), view));
    let others = ours.tensors().into_iter().filter(|(name, _)| !name.contains(".experts."));
    let metadata = [("format".to_string(), "pt".to_string())].into();
    safetensors::serialize_to_file(others.chain(stacks), Some(metadata), &weights).unwrap();

    let verify = ["verify", text(&packed), "--source", text(&source), "--json"];
    let report = stdout_json(&succeed(&verify));
    assert_eq!((&report["verdict"], &report["unaccounted"]), (&"proved".into(), &0.into()));
    let alone = stdout_json(&w4pack(&["verify", text(&packed), "--json"]));
    assert_eq!(alone["verdict"], "self-consistent", "{}", alone["faults"]);
    let (after, _) = run(&packed, &file, &["--weights", "bf16"]);
    assert!(distance(&before, &after) <= 1e-4);

    // Every byte of a stack is compared.
    damage(&weights, "model.layers.4.experts.down_proj", 2 * (7 * 128 + 127) * 64 + 126);
    let output = w4pack(&verify);
    assert_eq!(output.status.code(), Some(1));
    let fault = stdout_json(&output)["faults"][0].clone();
    assert_eq!(fault["class"], "tensor-bytes");
    assert_eq!(fault["tensor"], "model.layers.4.experts.down_proj");
}

/// An expert that is off the grid stays in bf16 by itself; the rest of its stack is packed.
#[test]
fn one_expert_off_the_grid_is_named_and_kept_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("out"));
    succeed(&["fixture", "tiny-26b-a4b", "--out", text(&source), "--quiet"]);
    // Expert 3's up_proj begins in row (2 * 3 + 1) * 64 of the stack; its second row, third group.
    let stack = "model.language_model.layers.2.experts.gate_up_proj";
    damage(&source.join("model.safetensors"), stack, 2 * ((449 * 128) + 64 + 5));
    let arguments = ["convert", text(&source), "--out", text(&out), "--quiet"];
    let talk = refuse(1, &arguments);
    assert!(talk.contains(stack) && talk.contains("row 449") && talk.contains("group 2"), "{talk}");

    let allowed = [&arguments[..], &["--allow-off-grid", "--json"]].concat();
    let report = stdout_json(&succeed(&allowed));
    let module = "model.layers.2.experts.3.up_proj";
    assert_eq!(report["off_grid"][0]["module"], module);
    assert_eq!(report["off_grid"][0]["source_name"], stack);
    assert_eq!(report["off_grid"][0]["row"], 449);
    assert_eq!(report["off_grid"].as_array().unwrap().len(), 1);
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("model.layers.2.experts` are packed"), "{warnings}");
    let verify = ["verify", text(&out), "--source", text(&source), "--json"];
    assert_eq!(stdout_json(&succeed(&verify))["verdict"], "proved");
    let file = folder.path().join("logits.safetensors");
    let (kept, _) = run(&out, &file, &["--weights", "bf16"]);
    let (of_source, _) = run(&source, &file, &[]);
    // f16 steps: not every value is the source's.
    assert!(distance(&kept, &of_source) < 0.1);
}

/// Damage to one packed expert is found where it is.
#[test]
fn a_changed_code_of_an_expert_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let (source, packed) = converted("tiny-26b-a4b", folder.path(), &[]);
    let module = "model.layers.1.experts.7.down_proj";
    damage(&packed.join("model.safetensors"), &format!("{module}.weight_packed"), 40 * 32 + 17);
    let output = w4pack(&["verify", text(&packed), "--source", text(&source), "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let faults = stdout_json(&output)["faults"].clone();
    let faults = faults.as_array().unwrap();
    let code = faults.iter().find(|fault| fault["class"] == "code").unwrap();
    assert_eq!(code["tensor"], format!("{module}.weight_packed"));
    assert_eq!((&code["row"], &code["group"]), (&40.into(), &1.into()));
}

#[test]
fn gemma_3_is_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let (source, packed) = converted("tiny-gemma3", folder.path(), &[]);
    for model in [source, packed] {
        let talk = refuse(2, &["run", "--model", text(&model), "--tokens", "2,5"]);
        assert!(talk.contains("is a Gemma 3") && talk.contains("runs Gemma 4"), "{talk}");
    }
}

/// What a form cannot hold is refused before anything is written.
#[test]
fn forms_that_a_release_has_no_room_for_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for (shape, flag, value, words) in [
        ("tiny-12b", "--layout", "gguf", "not for gemma4_unified"),
        ("tiny-gemma3", "--layout", "gguf", "not for gemma3"),
        ("tiny-31b", "--layout", "gguf", "v_proj"),
        ("tiny-26b-a4b", "--layout", "gguf", "experts"),
        ("tiny-12b", "--towers", "keep", "encoder models only"),
        ("tiny-gemma3", "--towers", "keep", "encoder models only"),
    ] {
        let (source, out) = (folder.path().join(shape), folder.path().join("out"));
        if !source.exists() {
            succeed(&["fixture", shape, "--out", text(&source), "--quiet"]);
        }
        let talk = refuse(2, &["convert", text(&source), "--out", text(&out), flag, value]);
        assert!(talk.contains(words), "{talk}");
        assert!(!out.exists());
    }
}

/// Changes the byte of a tensor's data with this number.
fn damage(file: &Path, tensor: &str, byte: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    let (header, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let begin = metadata.info(tensor).unwrap().data_offsets.0;
    bytes[8 + header + begin + byte] ^= 0x15;
    std::fs::write(file, bytes).unwrap();
}
