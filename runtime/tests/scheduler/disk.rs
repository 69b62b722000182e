//! Prompts that survive a restart, and files that must not be believed.

use crate::hearing::*;
use crate::support::random;
use std::fs;
use std::path::{Path, PathBuf};
use w4pack_runtime::scheduler::{Job, PromptCache, SchedulerOptions};
use w4pack_runtime::{Chosen, Scheduler};

fn scheduler_with(folder: &Path, limit: u64, weights: u8) -> Scheduler {
    let cache = PromptCache { folder: folder.to_path_buf(), limit, weights: [weights; 32] };
    let options = SchedulerOptions { prompt_cache: Some(cache), ..SchedulerOptions::default() };
    Scheduler::start(engine(16), options).expect("it starts")
}

fn telling(prompt: Vec<u32>) -> Job {
    Job { logprobs: Some(20), ..job(prompt, 10) }
}

fn alone(prompt: &[u32]) -> Vec<Chosen> {
    ask(&scheduler(1, 4, 64), telling(prompt.to_vec())).tokens
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path());
    let mut files: Vec<PathBuf> = entries.collect();
    files.sort();
    files
}

/// A folder with one prompt of 80 tokens, the prompt that goes on behind it, and the answer that
/// has: what was kept and how the next prompt begins.
fn kept() -> (tempfile::TempDir, Vec<u32>) {
    let folder = tempfile::tempdir().expect("a folder");
    let scheduler = scheduler_with(folder.path(), 1 << 30, 1);
    let prompt = random::tokens(80, 1);
    let answer = ask(&scheduler, telling(prompt.clone()));
    scheduler.stop(LIMIT);
    assert_eq!(files(folder.path()).len(), 1);
    (folder, [prompt, answer.ids(), random::tokens(5, 2)].concat())
}

#[test]
fn a_prompt_survives_a_restart() {
    let (folder, longer) = kept();
    let scheduler = scheduler_with(folder.path(), 1 << 30, 1);
    let answer = ask(&scheduler, telling(longer.clone()));
    assert_eq!(answer.summary.cached_tokens, 80 + 9);
    assert_eq!(answer.tokens, alone(&longer));
    let gauges = scheduler.gauges();
    assert_eq!((gauges.disk_hits, gauges.cache_hits), (1, 1));
    assert!(gauges.disk_bytes > 0);
    // The longer conversation takes the place of the shorter one.
    scheduler.stop(LIMIT);
    assert_eq!(files(folder.path()).len(), 1);
    #[cfg(unix)]
    for file in files(folder.path()) {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(file).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o077, 0, "prompts are private");
    }
}

/// Cut or changed anywhere, of other weights, of another name: a miss, and the right answer.
#[test]
fn files_that_cannot_be_believed_are_misses() {
    let (folder, longer) = kept();
    let file = files(folder.path()).remove(0);
    let bytes = fs::read(&file).expect("it is there");
    let expected = alone(&longer);
    let other_name = file.with_file_name(format!("{}.w4prompt", "ab".repeat(32)));
    let mut faults: Vec<(String, PathBuf, Vec<u8>)> = Vec::new();
    // Every field of the head, tokens, keys and values, both checksums.
    let ends = [0, 1, 8, 12, 44, 52, 60, 64, 72, 88, 200, 500, bytes.len() / 2, bytes.len() - 1];
    for end in ends {
        faults.push((format!("cut to {end}"), file.clone(), bytes[..end].to_vec()));
        let mut changed = bytes.clone();
        changed[end] ^= 4;
        faults.push((format!("byte {end} changed"), file.clone(), changed));
    }
    faults.push(("another name".into(), other_name, bytes.clone()));
    for (fault, path, bytes) in faults {
        files(folder.path()).iter().for_each(|file| fs::remove_file(file).expect("it is there"));
        fs::write(&path, bytes).expect("it can be written");
        let scheduler = scheduler_with(folder.path(), 1 << 30, 1);
        let answer = ask(&scheduler, telling(longer.clone()));
        assert_eq!(answer.summary.cached_tokens, 0, "{fault}");
        assert_eq!(answer.tokens, expected, "{fault}");
    }
    files(folder.path()).iter().for_each(|file| fs::remove_file(file).expect("it is there"));
    fs::write(&file, &bytes).expect("it can be written");
    let others = scheduler_with(folder.path(), 1 << 30, 2);
    let answer = ask(&others, telling(longer.clone()));
    assert_eq!((answer.summary.cached_tokens, answer.tokens), (0, expected.clone()));
    drop(others);
    let own = scheduler_with(folder.path(), 1 << 30, 1);
    let answer = ask(&own, telling(longer));
    assert_eq!((answer.summary.cached_tokens, answer.tokens), (89, expected), "it was not touched");
}

/// A file that changes between the start and the hit.
#[test]
fn a_file_that_changes_under_a_running_scheduler_is_a_miss() {
    let (folder, longer) = kept();
    let file = files(folder.path()).remove(0);
    let scheduler = scheduler_with(folder.path(), 1 << 30, 1);
    let mut bytes = fs::read(&file).expect("it is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).expect("it can be written");
    let answer = ask(&scheduler, telling(longer.clone()));
    assert_eq!((answer.summary.cached_tokens, answer.tokens), (0, alone(&longer)));
    assert!(!file.exists(), "it is of no use");
}

#[test]
fn the_folder_stays_within_its_limit_and_strangers_files_are_left_alone() {
    let (folder, longer) = kept();
    let one = fs::metadata(&files(folder.path())[0]).expect("it is there").len();
    let stranger = folder.path().join("notes.w4prompt");
    fs::write(&stranger, "mine").expect("it can be written");
    let scheduler = scheduler_with(folder.path(), 2 * one + one / 2, 1);
    for seed in 10..15 {
        ask(&scheduler, telling(random::tokens(80, seed)));
    }
    scheduler.stop(LIMIT);
    let found = files(folder.path());
    let bytes: u64 = found
        .iter()
        .filter(|file| **file != stranger)
        .map(|file| fs::metadata(file).expect("it is there").len())
        .sum();
    assert!(bytes <= 2 * one + one / 2, "{bytes} of {one} each");
    assert_eq!(fs::read(&stranger).expect("it is there"), b"mine");
    // The first conversation was the one used least recently.
    let scheduler = scheduler_with(folder.path(), 1 << 30, 1);
    assert_eq!(ask(&scheduler, telling(longer)).summary.cached_tokens, 0);
    let last = [random::tokens(80, 14), vec![1]].concat();
    assert!(ask(&scheduler, telling(last)).summary.cached_tokens >= 79);
}

#[test]
fn a_folder_that_cannot_be_used_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("it can be written");
    let cache = PromptCache { folder: file.join("inside"), limit: 1, weights: [0; 32] };
    let options = SchedulerOptions { prompt_cache: Some(cache), ..SchedulerOptions::default() };
    let error = Scheduler::start(engine(16), options).err().expect("a file is no folder");
    assert!(error.to_string().contains("file/inside"), "{error}");
}
