//! Names on the Hub, from the command line to a Hub on loopback and back.

mod audit;
mod broken_off;
mod errors;
mod hashes;
mod names;
mod offline;
mod publish;
mod python;
mod stream;

use crate::support::*;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;
use w4pack_fake_hub::repository::Access;
use w4pack_fake_hub::{FakeHub, TOKEN};

pub const SOURCE: &str = "google/small";

/// A Hub with the small trained model under Google's name, and a user's own folders.
pub struct Scene {
    pub fake: FakeHub,
    pub commit: String,
    pub folder: TempDir,
}

impl Scene {
    /// With the trained model.
    pub fn new() -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        w4pack_fixtures::trained::write(&source).unwrap();
        Scene::of(folder)
    }

    /// With a synthetic model in three files, towers and all.
    pub fn sharded() -> Scene {
        Scene::synthetic(&[])
    }

    /// The same with groups of every difficult kind, some of whose steps are beyond f16.
    pub fn hard() -> Scene {
        Scene::synthetic(&["--hard"])
    }

    fn synthetic(flags: &[&str]) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        let signs = ["--signed-zeros", "random", "--quiet"];
        let fixture = ["fixture", "tiny", "--shards", "3", "--out", text(&source)];
        succeed(&[&fixture[..], &signs, flags].concat());
        Scene::of(folder)
    }

    fn of(folder: TempDir) -> Scene {
        let card = "---\nlicense: apache-2.0\n---\nWhat Google says.\n";
        std::fs::write(folder.path().join("source/README.md"), card).unwrap();
        let fake = FakeHub::start();
        let commit = fake.publish(SOURCE, &folder.path().join("source"), Access::Public);
        Scene { fake, commit, folder }
    }

    pub fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    /// A path of the user's that need not be there.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs w4pack as a user of this Hub, whose caches stay.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.run_with(arguments, &[])
    }

    pub fn run_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = self.command(assert_cmd::cargo::cargo_bin!("w4pack"));
        command.args(arguments).envs(variables.iter().copied()).output().unwrap()
    }

    /// A program with the environment of a user of this Hub.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("W4PACK_HOME", self.path("home"))
            .env("HF_HOME", self.path("huggingface"))
            .env("HF_ENDPOINT", self.fake.endpoint());
        let others = ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HF_HUB_OFFLINE"];
        for name in others {
            command.env_remove(name);
        }
        command
    }

    /// Runs it and expects exit code 0.
    pub fn succeed(&self, arguments: &[&str]) -> Output {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", words(&output));
        output
    }

    /// Runs it with the right token, and expects exit code 0.
    pub fn succeed_as_owner(&self, arguments: &[&str]) -> Output {
        let output = self.run_with(arguments, &[("HF_TOKEN", TOKEN)]);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", words(&output));
        assert!(!words(&output).contains(TOKEN), "{}", words(&output));
        output
    }

    /// The trained model converted from the folder on the disk, as if it came from the Hub.
    pub fn packed(&self) -> PathBuf {
        let out = self.path("packed");
        self.succeed(&["convert", SOURCE, "--stream", "--out", text(&out), "--quiet"]);
        out
    }
}

/// All that was said.
pub fn words(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(output))
}

/// Every file of a folder, by its path below it.
pub fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut pending = vec![folder.to_path_buf()];
    while let Some(next) = pending.pop() {
        for entry in std::fs::read_dir(next).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                pending.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_string();
                found.push((name, std::fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}
