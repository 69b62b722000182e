//! `w4pack publish`: nothing without a proof, and the proof beside what it proves.

use super::*;
use std::fs;
use w4pack_fake_hub::{FaultKind, Port, Transfer};

const NAME: &str = "somebody/packed";

#[test]
fn what_is_published_can_be_proved_run_and_published_again() {
    let scene = Scene::new();
    scene.fake.takes_by(Transfer::Multipart(1_000_000));
    let packed = scene.packed();
    let publish = ["publish", text(&packed), NAME, "--json"];
    let said = stdout_json(&scene.succeed_as_owner(&publish));
    assert_eq!(said["proof"]["verdict"], "proved");
    let published: Vec<_> = scene.fake.files(NAME, "main");
    let mut local: Vec<_> = files(&packed)
        .into_iter()
        .map(|(path, content)| {
            let sha256 = w4pack_format::digest::sha256(&content);
            (path, content.len() as u64, sha256)
        })
        .collect();
    local.sort();
    let others = published.iter().filter(|(path, ..)| path != ".gitattributes").cloned();
    assert_eq!(others.collect::<Vec<_>>(), local);

    // A stranger checks it again, statement and all.
    fs::remove_dir_all(scene.path("huggingface")).ok();
    let at = format!("{SOURCE}@{}", scene.commit);
    let verified = scene.succeed(&["verify", NAME, "--source", &at, "--json"]);
    let report = stdout_json(&verified);
    assert_eq!((&report["verdict"], &report["faults"]), (&"proved".into(), &serde_json::json!([])));
    let statement = packed.join("w4pack/statement.json");
    let check = ["verify", NAME, "--source", &at, "--statement", text(&statement)];
    assert!(words(&scene.succeed(&check)).contains("PROVED"));
    // A statement that says otherwise is a fault, wherever it lies.
    let lie = fs::read_to_string(&statement).unwrap();
    let lie = lie.replace("\"unaccounted\": 0", "\"unaccounted\": 1");
    fs::write(&statement, lie).unwrap();
    let output = scene.run(&["verify", text(&packed), "--source", &at]);
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    assert!(words(&output).contains("predicate.unaccounted"), "{}", words(&output));
    scene.succeed(&["audit", NAME, "--source", &at, "--samples", "20"]);
    let ask = ["run", "--model", NAME, "--prompt", "hello", "--max-tokens", "3", "--device", "cpu"];
    scene.succeed(&ask);

    // Nothing has changed, so that nothing is sent; and a conversion may take its place.
    let head = said["published"]["commit"].clone();
    let again = stdout_json(&scene.succeed_as_owner(&publish));
    assert_eq!(again["published"]["sent"], serde_json::json!([]));
    assert_eq!(again["published"]["commit"], head);
    scene.packed();
}

#[test]
fn the_card_says_what_was_proved_and_how_to_check_it() {
    let scene = Scene::new();
    let packed = scene.packed();
    let publish = ["publish", text(&packed), NAME, "--dry-run"];
    let talk = words(&scene.succeed(&publish));
    let card = fs::read_to_string(packed.join("README.md")).unwrap();
    let commit = &scene.commit;
    let statement = fs::read_to_string(packed.join("w4pack/statement.json")).unwrap();
    let statement: serde_json::Value = serde_json::from_str(&statement).unwrap();
    let predicate = &statement["predicate"];
    for wanted in [
        "license: apache-2.0\nbase_model: google/small\nbase_model_relation: quantized\n"
            .to_string(),
        format!("| codes compared | {} |", predicate["whole"]["elements"]),
        format!("| groups of 32 | {} |", predicate["groups"]["all"]),
        "| codes that are not the source's | 0 |".into(),
        "| bytes unaccounted for | 0 |".into(),
        format!("w4pack verify {NAME} --source google/small@{commit}"),
        format!("w4pack audit {NAME} --source google/small@{commit}"),
        format!("w4pack run --model {NAME} "),
        "(tested: run)".into(),
        "vLLM** 0.33 refuses".into(),
    ] {
        assert!(card.contains(&wanted), "{wanted}\n{card}");
    }
    let weights = fs::metadata(packed.join("model.safetensors")).unwrap().len();
    assert!(card.contains(&format!("| `model.safetensors` | {weights} |")), "{card}");
    for path in ["README.md", "w4pack/statement.json", "w4pack/manifest.json", "model.safetensors"]
    {
        assert!(talk.contains(path), "{talk}");
    }
    let hash = w4pack_format::digest::sha256(card.as_bytes());
    assert!(talk.contains(&hash) && talk.contains("nothing was sent"), "{talk}");
    assert!(talk.contains(&format!("hf upload {NAME} ")), "{talk}");
    let posts = scene.fake.requests(Port::Api).iter().any(|l| l.request.method != "GET");
    assert!(!posts && scene.fake.files(NAME, "main").is_empty());

    // A card of one's own stays.
    fs::write(packed.join("README.md"), "my own words\n").unwrap();
    assert!(words(&scene.succeed(&publish)).contains("published as it is"));
    assert_eq!(fs::read_to_string(packed.join("README.md")).unwrap(), "my own words\n");
}

#[test]
fn nothing_is_published_without_a_proof_of_these_bytes() {
    let scene = Scene::new();
    let packed = scene.packed();
    let statement = scene.path("statement.json");
    let at = format!("{SOURCE}@{}", scene.commit);
    let write = ["verify", text(&packed), "--source", &at, "--write-statement", text(&statement)];
    scene.succeed(&write);
    let by_statement = ["publish", text(&packed), NAME, "--statement", text(&statement)];
    let by_statement = [&by_statement[..], &["--license", "apache-2.0"]].concat();

    let weights = packed.join("model.safetensors");
    let right = fs::read(&weights).unwrap();
    let mut wrong = right.clone();
    let last = wrong.len() - 1;
    wrong[last] ^= 1;
    fs::write(&weights, wrong).unwrap();
    for arguments in [&["publish", text(&packed), NAME][..], &by_statement] {
        let output = scene.run_with(arguments, &[("HF_TOKEN", TOKEN)]);
        let talk = words(&output);
        assert_eq!(output.status.code(), Some(1), "{talk}");
        assert!(talk.contains("was not proved, and is not published"), "{talk}");
        assert!(talk.contains("DISPROVED"), "{talk}");
    }
    assert!(scene.fake.files(NAME, "main").is_empty());
    fs::write(&weights, right).unwrap();
    scene.succeed_as_owner(&by_statement);
    assert!(scene.fake.files(NAME, "main").len() > 5);
}

#[test]
fn what_cannot_be_proved_against_anything_is_refused_with_the_next_step() {
    let scene = Scene::new();
    let (packed, source) = (scene.path("from-folder"), scene.source());
    scene.succeed(&["convert", text(&source), "--out", text(&packed), "--quiet"]);
    let refuse = |arguments: &[&str], said: &str| {
        let publish = ["publish", text(&packed), NAME, "--dry-run"];
        let output = scene.run(&[&publish[..], arguments].concat());
        let talk = words(&output);
        assert_eq!(output.status.code(), Some(2), "{talk}");
        assert!(talk.contains(said) && talk.contains("hint:"), "{talk}");
    };
    refuse(&[], "names no commit of the Hub");
    refuse(&["--source", text(&source)], "no name on the Hub for the card");
    let base = ["--source", text(&source), "--base-model", "google/small"];
    let publish = [&["publish", text(&packed), NAME, "--dry-run"][..], &base].concat();
    scene.succeed(&publish);
    fs::remove_file(source.join("README.md")).unwrap();
    refuse(&base, "under which licence");
    refuse(&[&base[..], &["--license", "a\nb: c"]].concat(), "no licence as the Hub spells them");
    // Somebody else's folder.
    let output = scene.run(&["publish", text(&source), NAME, "--dry-run"]);
    assert!(words(&output).contains("not of w4pack's making"), "{}", words(&output));
}

#[test]
fn a_gguf_file_is_published_with_its_comparison() {
    let scene = Scene::new();
    let packed = scene.path("gguf");
    let convert = ["convert", SOURCE, "--stream", "--layout", "gguf", "--out", text(&packed)];
    scene.succeed(&convert);
    scene.succeed_as_owner(&["publish", text(&packed), "somebody/small-gguf"]);
    let card = fs::read_to_string(packed.join("README.md")).unwrap();
    assert!(card.contains("library_name: gguf") && card.contains("**codes-proved**"), "{card}");
    let published = scene.fake.files("somebody/small-gguf", "main");
    assert!(published.iter().any(|(path, ..)| path == "model-Q4_0.gguf"));
}

#[test]
fn faults_on_the_way_say_what_to_do() {
    let scene = Scene::new();
    let packed = scene.packed();
    let publish = ["publish", text(&packed), NAME];
    let output = scene.run(&publish);
    assert_eq!(output.status.code(), Some(2));
    assert!(words(&output).contains("no token to publish"), "{}", words(&output));
    scene.succeed_as_owner(&publish);
    scene.fake.fail("POST", "/commit/", 1, FaultKind::Overtaken(NAME.into()));
    fs::write(packed.join("README.md"), "my own words\n").unwrap();
    let output = scene.run_with(&publish, &[("HF_TOKEN", TOKEN)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(words(&output).contains("nothing was committed"), "{}", words(&output));
    assert!(!words(&output).contains(TOKEN));
}
