//! Runs that do not come to their end, however they are ended: never a partial file under a final
//! name, and the next run succeeds.
//!
//! `W4PACK_KILLS` says how often (10 without it), `W4PACK_KILL_SOURCE` names another source than the
//! tiny one; `.ci/long` sets both.

use crate::support::*;
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What lies beside the output: names that begin with a dot.
fn leftovers(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('.')).collect()
}

fn start(arguments: &[&str]) -> Child {
    Command::new(assert_cmd::cargo::cargo_bin!("w4pack"))
        .args(arguments)
        .arg("--quiet")
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn signal(child: &Child, name: &str) {
    let number = child.id().to_string();
    // It may be gone already, which the caller sees.
    Command::new("kill").args(["-s", name, &number]).stderr(Stdio::null()).status().unwrap();
}

/// Whether two outputs hold the same bytes, a MiB at a time.
fn same(one: &Path, other: &Path) -> bool {
    let equal = |file: &str| {
        let mut files = [one, other].map(|folder| fs::File::open(folder.join(file)).unwrap());
        let lengths = files.each_ref().map(|file| file.metadata().unwrap().len());
        let mut buffers = [vec![0; 1 << 20], vec![0; 1 << 20]];
        let mut left = lengths[0];
        while lengths[0] == lengths[1] && left > 0 {
            let length = left.min(1 << 20) as usize;
            for (file, buffer) in files.iter_mut().zip(&mut buffers) {
                file.read_exact(&mut buffer[..length]).unwrap();
            }
            if buffers[0][..length] != buffers[1][..length] {
                return false;
            }
            left -= length as u64;
        }
        left == 0
    };
    ["model.safetensors", "config.json", "w4pack/exact.safetensors"].into_iter().all(equal)
}

/// The next of a row of numbers without pattern, in 0..1.
fn random(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as f64 / (1_u64 << 31) as f64
}

#[test]
fn field_case_09_killed_at_random_moments() {
    let kills = std::env::var("W4PACK_KILLS").map_or(10, |kills| kills.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let source = match std::env::var_os("W4PACK_KILL_SOURCE") {
        Some(source) => source.into(),
        None => {
            let source = folder.path().join("source");
            succeed(&["fixture", "tiny", "--out", text(&source), "--quiet"]);
            source
        }
    };
    let place = folder.path().join("place");
    fs::create_dir(&place).unwrap();
    let (whole, out) = (folder.path().join("whole"), place.join("out"));
    let began = Instant::now();
    succeed(&["convert", text(&source), "--out", text(&whole), "--quiet"]);
    // How long a run may take at most before it is killed. A machine gets faster and slower as its
    // other work ends and begins, so each round says what the next one may wait.
    let mut longest = began.elapsed();
    let (mut state, mut cut_short, mut round) = (1, 0, 0);
    while cut_short < kills {
        assert!(round < 100 + 10 * kills, "{cut_short} of {round} runs were killed in time");
        // Two of five rounds have an older output in place, three have none.
        if round % 5 == 2 && out.exists() {
            fs::remove_dir_all(&out).unwrap();
        }
        let older = out.exists();
        let wait = longest.mul_f64(random(&mut state));
        let mut child = start(&["convert", text(&source), "--out", text(&out)]);
        std::thread::sleep(wait);
        child.kill().unwrap();
        let killed = child.wait().unwrap().signal() == Some(9);
        cut_short += u32::from(killed);
        longest = if killed { longest.mul_f64(1.05) } else { wait };
        // An older output, or a new one that was complete a moment before.
        assert!(out.exists() || (killed && !older), "round {round}");
        assert!(!out.exists() || same(&out, &whole), "round {round}");
        // Each run removes what the one before it left, so there is one leftover at most.
        assert!(leftovers(&place).len() <= 1, "round {round}: {:?}", leftovers(&place));
        if round % 5 == 4 {
            succeed(&["convert", text(&source), "--out", text(&out), "--quiet"]);
            assert_eq!(leftovers(&place), [""; 0], "round {round}");
            assert!(same(&out, &whole), "round {round}");
        }
        round += 1;
    }
    println!("{cut_short} of {round} runs were killed before their end");
}

#[test]
fn ctrl_c_and_sigterm_leave_nothing_behind_and_end_as_asked() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    succeed(&["fixture", "tiny", "--out", text(&source), "--quiet"]);
    let place = folder.path().join("place");
    for (name, number) in [("INT", 2), ("TERM", 15)] {
        // A fast machine may be done before the signal comes; then once more.
        let stopped = (0..50).any(|_| {
            let _ = fs::remove_dir_all(&place);
            let mut child = start(&["convert", text(&source), "--out", text(&place.join("out"))]);
            let begun = Instant::now();
            while !place.exists() && begun.elapsed() < Duration::from_secs(20) {
                std::thread::yield_now();
            }
            signal(&child, name);
            let status = child.wait().unwrap();
            assert!(status.success() || status.signal() == Some(number), "{status}");
            status.signal() == Some(number)
        });
        assert!(stopped, "SIG{name} never came in time");
        assert!(
            !place.exists(),
            "SIG{name}: {:?}",
            fs::read_dir(&place).unwrap().collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_fixture_that_is_broken_off_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("place");
    for flags in [&[][..], &["--packed"]] {
        let stopped = (0..50).any(|_| {
            let _ = fs::remove_dir_all(&place);
            let command = ["fixture", "tiny", "--threads", "1", "--out", text(&place)];
            let child = start(&[&command[..], flags].concat());
            let begun = Instant::now();
            // The folder itself, or the one in the making beside it.
            let begins = || place.exists() || !leftovers(folder.path()).is_empty();
            while !begins() && begun.elapsed() < Duration::from_secs(20) {
                std::thread::yield_now();
            }
            signal(&child, "INT");
            let mut child = child;
            let status = child.wait().unwrap();
            assert!(status.success() || status.signal() == Some(2), "{status}");
            status.signal() == Some(2)
        });
        assert!(stopped, "{flags:?}: SIGINT never came in time");
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert!(left.is_empty(), "{flags:?}: {left:?}");
    }
}

/// Mounts a small memory disk for the life of the value; `None`, with a line that says so, where
/// this user may not mount.
struct Disk<'a>(&'a Path);

impl<'a> Disk<'a> {
    fn mount(place: &'a Path, options: &str) -> Option<Disk<'a>> {
        fs::create_dir_all(place).unwrap();
        let mount = ["-t", "tmpfs", "-o", options, "tmpfs", text(place)];
        let mounted = Command::new("mount").args(mount).stderr(Stdio::null()).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Disk(place));
        }
        println!("skipped: this user may not mount a small disk");
        None
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

/// The numbers of a message, in order.
fn numbers(message: &str) -> Vec<u64> {
    message.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

#[test]
fn field_case_09_a_full_disk_is_named_with_bytes_needed_and_free() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    succeed(&["fixture", "tiny", "--signed-zeros", "random", "--out", text(&source)]);
    let place = folder.path().join("disk");
    let out = place.join("out");
    let convert = ["convert", text(&source), "--out", text(&out), "--quiet"];
    let needed = {
        let Some(_disk) = Disk::mount(&place, "size=64k") else { return };
        let talk = refuse(1, &convert);
        assert!(talk.contains("too little room") && talk.contains("hint:"), "{talk}");
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
        let first = talk.lines().next().unwrap().to_string();
        let stated = first.split("at least").nth(1).unwrap();
        assert_eq!(numbers(stated)[1], 64 << 10, "{talk}");
        numbers(stated)[0]
    };
    {
        // Room for what is known before, none for sidecar and manifest.
        let pages = needed.div_ceil(4096) + 12;
        let Some(_disk) = Disk::mount(&place, &format!("size={}", pages * 4096)) else { return };
        let talk = refuse(1, &convert);
        assert!(talk.contains("is full") && talk.contains(&needed.to_string()), "{talk}");
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0, "{talk}");
    }
    succeed(&convert);
    succeed(&["verify", text(&out), "--source", text(&source), "--quiet"]);
}

#[test]
fn a_limit_for_files_is_an_error_and_not_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    succeed(&["fixture", "tiny", "--out", text(&source), "--quiet"]);
    let program = assert_cmd::cargo::cargo_bin!("w4pack");
    let out = folder.path().join("out");
    let output = Command::new("sh")
        .args(["-c", "ulimit -f 200; exec \"$@\"", "sh"])
        .args([text(program), "convert", text(&source), "--out", text(&out)])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("model.safetensors"), "{}", stderr(&output));
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn an_output_that_may_not_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    succeed(&["fixture", "tiny", "--out", text(&source), "--quiet"]);
    let place = folder.path().join("disk");
    let Some(_disk) = Disk::mount(&place, "ro") else { return };
    for out in [place.join("out"), place.join("deep/out")] {
        let talk = refuse(1, &["convert", text(&source), "--out", text(&out)]);
        assert!(talk.contains("could not create") && talk.contains(text(&place)), "{talk}");
        assert!(talk.contains("Read-only"), "{talk}");
    }
}
