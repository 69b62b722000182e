//! `w4pack doctor` on what w4pack writes: which loader takes which layout.

use crate::support::*;

#[test]
fn each_layout_is_for_the_loaders_that_it_names() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    w4pack_fixtures::trained::write(&source).unwrap();
    // transformers, vLLM, llama.cpp.
    for (layout, loads) in [
        ("emb4", [true, false, false]),
        ("emb4-untied", [true, true, false]),
        ("linear", [true, true, false]),
        ("linear-ple4", [true, true, false]),
        ("gguf", [false, false, true]),
    ] {
        let out = folder.path().join(layout);
        succeed(&["convert", text(&source), "--layout", layout, "--out", text(&out), "--quiet"]);
        for (loader, loads) in ["transformers", "vllm", "llama.cpp"].into_iter().zip(loads) {
            let asked = w4pack(&["doctor", text(&out), "--for", loader, "--json"]);
            let diagnosis = stdout_json(&asked);
            assert_eq!(diagnosis["loads"], loads, "{layout} {loader}: {diagnosis}");
            assert_eq!(asked.status.code(), Some(if loads { 0 } else { 1 }));
            assert_eq!(diagnosis["advice"].is_null(), loads);
        }
    }
    // The file itself will do, for the doctor and for the X-ray.
    let file = folder.path().join("gguf/model-Q4_0.gguf");
    succeed(&["doctor", text(&file), "--for", "llama.cpp"]);
    let xray = stdout_json(&succeed(&["inspect", text(&file), "--json"]));
    let kinds = xray["kinds"].as_array().unwrap();
    assert!(kinds.iter().any(|kind| kind["dtype"] == "Q4_0"), "{xray}");
    assert_eq!(xray["bytes"], std::fs::metadata(&file).unwrap().len());
    assert!(xray["packed"]["examined"].as_u64().unwrap() > 0);

    let emb4 = folder.path().join("emb4");
    let asked = w4pack(&["doctor", text(&emb4), "--for", "vllm"]);
    let said = String::from_utf8(asked.stdout).unwrap();
    for words in ["vLLM 0.33.0", "tied-packed-table", "hint:", "--layout emb4-untied"] {
        assert!(said.contains(words), "`{words}` is not in: {said}");
    }
    // The advice can be followed.
    let out = folder.path().join("followed");
    succeed(&["convert", text(&emb4), "--layout", "emb4-untied", "--out", text(&out), "--quiet"]);
    succeed(&["doctor", text(&out), "--for", "vllm", "--quiet"]);
    let run = ["run", "--model", text(&out), "--tokens", "2,105,300", "--max-tokens", "4"];
    succeed(&[&run[..], &["--temperature", "0"]].concat());
}

#[test]
fn a_checkpoint_and_a_loader_belong_together() {
    for arguments in [&["doctor", "x"][..], &["doctor", "--for", "vllm"]] {
        refuse(2, arguments);
    }
    assert!(refuse(2, &["doctor", "x", "--for", "ollama"]).contains("llama.cpp"));
}
