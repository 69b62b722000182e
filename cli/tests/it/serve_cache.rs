//! `w4pack serve --cache-dir`: prompts that survive a restart.

use crate::served::{Served, packed};
use crate::support::*;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A prompt of some hundred tokens, the last of them chosen by `number`.
fn body(number: usize) -> Value {
    let story = "The captain wrote the number of every door in her book. ".repeat(12);
    let content = format!("{story} What's {number}+25?");
    json!({"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 20})
}

/// The answer, and how many tokens of its prompt came from the cache.
fn ask(served: &Served, number: usize) -> (Value, u64) {
    let (status, reply) = served.chat(&body(number));
    assert_eq!(status, 200, "{reply}");
    let reply: Value = serde_json::from_str(&reply).unwrap();
    let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (reply["choices"][0]["message"].clone(), cached)
}

fn stop(served: Served) {
    served.signal("TERM");
    assert_eq!(served.end().0, Some(0));
}

fn prompts(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut prompts: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "w4prompt")).collect();
    prompts.sort();
    prompts
}

#[test]
fn a_prompt_is_found_after_a_restart_and_never_believed_when_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    let cache = folder.path().join("prompts");
    let start = |cache: &Path| Served::start(&["--model", &model, "--cache-dir", text(cache)], &[]);
    let served = start(&cache);
    let (first, cached) = ask(&served, 17);
    assert_eq!(cached, 0, "nothing is known yet");
    stop(served);
    assert_eq!(prompts(&cache).len(), 1);

    let served = start(&cache);
    let (again, cached) = ask(&served, 17);
    assert_eq!(again, first);
    assert!(cached > 100, "{cached}");
    stop(served);

    // Torn, with a bit flipped, and of another name: each in a folder of its own.
    let kept = prompts(&cache);
    let (name, whole) = (kept[0].file_name().unwrap(), fs::read(&kept[0]).unwrap());
    let half = whole[..whole.len() / 2].to_vec();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let other_name = format!("{}.w4prompt", "0".repeat(64));
    for (number, (bytes, name)) in
        [(half, name), (flipped, name), (whole.clone(), other_name.as_ref())]
            .into_iter()
            .enumerate()
    {
        let damaged = folder.path().join(format!("damaged-{number}"));
        fs::create_dir(&damaged).unwrap();
        fs::write(damaged.join(name), bytes).unwrap();
        let served = start(&damaged);
        assert_eq!(ask(&served, 17), (first.clone(), 0), "case {number}");
    }
}

#[test]
fn the_folder_keeps_within_its_limit_and_must_be_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let model = packed(folder.path());
    let cache = folder.path().join("prompts");
    let arguments = ["--model", &model, "--cache-dir", text(&cache), "--cache-limit", "1"];
    let mut kept = Vec::new();
    for number in 0..6 {
        let served = Served::start(&[&arguments[..], &["--slots", "1"]].concat(), &[]);
        ask(&served, 10 + number);
        stop(served);
        let bytes: u64 = prompts(&cache).iter().map(|file| file.metadata().unwrap().len()).sum();
        assert!(bytes <= 1 << 20, "{bytes} bytes");
        kept.push(bytes);
    }
    assert!(kept.iter().any(|bytes| *bytes > 0), "{kept:?}");

    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    for place in [file.clone(), file.join("below"), PathBuf::from("/proc/w4pack")] {
        let talk =
            refuse(2, &["serve", "--port", "0", "--model", &model, "--cache-dir", text(&place)]);
        assert!(talk.contains(text(&place)), "{talk}");
    }
}
