//! `w4pack audit`: a sample of two repositories that are not downloaded.

use super::*;
use std::fs;
use w4pack_fake_hub::Port;

#[test]
fn a_sample_of_both_sides_is_read_and_what_it_can_miss_is_said() {
    let scene = Scene::new();
    let packed = scene.packed();
    scene.fake.publish("somebody/packed", &packed, Access::Public);
    scene.fake.forget();
    let audit = ["audit", "somebody/packed", "--source", SOURCE, "--samples", "300"];
    let report = stdout_json(&scene.succeed(&[&audit[..], &["--json", "--seed", "1"]].concat()));
    assert_eq!((&report["samples"], &report["faults"]), (&300.into(), &serde_json::json!([])));
    assert_eq!(report["elements"], 300 * 32);
    assert_eq!(report["groups"]["steps_canonical"], 300);
    assert_eq!(report["source_revision"], *scene.commit);
    let missed = &report["missed"][2];
    assert_eq!(missed["share"], 0.01);
    let probability = missed["probability"].as_f64().unwrap();
    assert!((probability - 0.99f64.powi(300)).abs() < 1e-12);

    // Far less than a download: groups, headers, config.json.
    let weights: Vec<usize> = scene.fake.requests(Port::Storage).iter().map(|l| l.sent).collect();
    let all = fs::metadata(scene.source().join("model.safetensors")).unwrap().len();
    assert!(weights.iter().sum::<usize>() as u64 * 10 < all, "{} requests", weights.len());
    assert!(!scene.path("huggingface").exists(), "nothing is stored");

    let talk = words(&scene.succeed(&audit));
    assert!(talk.contains("That is no proof") && talk.contains("95 % certainty"), "{talk}");
    let again = [&audit[..], &["--json", "--seed", "1"]].concat();
    assert_eq!(stdout_json(&scene.succeed(&again)), report, "a seed draws the same groups");
}

#[test]
fn tampering_that_is_not_rare_is_drawn() {
    let scene = Scene::new();
    let packed = scene.packed();
    let path = packed.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let (mut groups, mut changed) = (0, 0);
    for (name, entry) in header.as_object().unwrap() {
        let offset = |at: usize| entry["data_offsets"][at].as_u64().unwrap() as usize + 8 + length;
        if name.ends_with("weight_packed") {
            for begin in (offset(0)..offset(1)).step_by(16) {
                groups += 1;
                if groups % 10 == 0 {
                    bytes[begin] ^= 0x11;
                    changed += 1;
                }
            }
        }
    }
    assert!(changed * 10 <= groups);
    fs::write(&path, bytes).unwrap();
    scene.fake.publish("somebody/packed", &packed, Access::Public);
    // One in ten: 400 draws miss all of them once in 10^18 times.
    let audit = ["audit", "somebody/packed", "--source", SOURCE, "--samples", "400", "--json"];
    let output = scene.run(&audit);
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    let report = stdout_json(&output);
    let faults = report["faults"].as_array().unwrap();
    assert!(faults.iter().any(|fault| fault["class"] == "code" && fault["row"].is_u64()));
    assert!(report["largest_unseen_share"].is_null());
}

#[test]
fn folders_are_audited_too_and_a_packed_source_is_none() {
    let scene = Scene::new();
    let (packed, source) = (scene.packed(), scene.source());
    let audit = ["audit", text(&packed), "--source", text(&source), "--samples", "50"];
    scene.succeed(&audit);
    let wrong = ["audit", text(&packed), "--source", text(&packed), "--samples", "50"];
    let output = scene.run(&wrong);
    assert_eq!(output.status.code(), Some(2));
    assert!(words(&output).contains("packed itself"), "{}", words(&output));
}
