//! Folders, shards and indexes.

#[path = "../../testing/conformance.rs"]
mod conformance;

use conformance::conformance;
use std::fs;
use std::path::Path;
use w4pack_format::FormatError;
use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::dtype::Dtype;
use w4pack_format::header::Header;
use w4pack_format::source::{FolderSource, Source};

fn write_shard(folder: &Path, file: &str, names: &[&str]) {
    let tensors: Vec<_> = names.iter().map(|n| (n.to_string(), Dtype::U8, vec![4])).collect();
    let header = Header::lay_out(&tensors).unwrap();
    let mut bytes = header.prefix();
    for name in names {
        bytes.extend_from_slice(&[name.as_bytes()[0]; 4]);
    }
    fs::write(folder.join(file), bytes).unwrap();
}

fn write_index(folder: &Path, entries: &str) {
    let text = format!(r#"{{"metadata":{{"total_size":12}},"weight_map":{{{entries}}}}}"#);
    fs::write(folder.join("model.safetensors.index.json"), text).unwrap();
}

fn sharded() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_shard(folder.path(), "one.safetensors", &["a", "b"]);
    write_shard(folder.path(), "two.safetensors", &["c"]);
    write_index(
        folder.path(),
        r#""a":"one.safetensors","b":"one.safetensors","c":"two.safetensors""#,
    );
    folder
}

fn refusal(folder: &Path) -> String {
    match Checkpoint::open_folder(folder) {
        Ok(_) => panic!("a faulty checkpoint was opened"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn shards_are_one_set_of_tensors() {
    let folder = sharded();
    let checkpoint = Checkpoint::open_folder(folder.path()).unwrap();
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(checkpoint.read("c").unwrap(), b"cccc");
    assert_eq!(checkpoint.tensor("b").unwrap().shard.path, "one.safetensors");
    assert_eq!(checkpoint.index_total_size(), Some((12, 12)));
    let mut two = [0; 2];
    checkpoint.read_range("b", 2, &mut two).unwrap();
    assert_eq!(&two, b"bb");
    let past = checkpoint.read_range("b", 3, &mut two).unwrap_err().to_string();
    assert!(past.contains("`b`") && past.contains("it has 4"), "{past}");
    assert!(checkpoint.read("d").unwrap_err().to_string().contains("`d`"));
}

#[test]
fn an_index_must_say_exactly_what_the_shards_hold() {
    let folder = sharded();
    write_index(folder.path(), r#""a":"one.safetensors","c":"two.safetensors""#);
    assert!(refusal(folder.path()).contains("does not name the tensor `b`"));
    write_index(
        folder.path(),
        r#""a":"two.safetensors","b":"one.safetensors","c":"two.safetensors""#,
    );
    assert!(refusal(folder.path()).contains("places `a` in `two.safetensors`"));
    write_index(
        folder.path(),
        r#""a":"one.safetensors","b":"one.safetensors","c":"two.safetensors","d":"two.safetensors""#,
    );
    assert!(refusal(folder.path()).contains("`d`"));
    write_index(folder.path(), r#""a":"one.safetensors","c":"three.safetensors""#);
    assert!(refusal(folder.path()).contains("`three.safetensors`, which is not there"));
    write_index(folder.path(), r#""a":"one.safetensors","a":"two.safetensors""#);
    assert!(refusal(folder.path()).contains("duplicate key `a`"));
}

#[test]
fn one_name_in_two_shards_is_refused() {
    let folder = sharded();
    write_shard(folder.path(), "two.safetensors", &["c", "a"]);
    assert!(refusal(folder.path()).contains("holds a tensor of the same name"));
}

#[test]
fn leftover_shards_are_reported() {
    let folder = sharded();
    write_shard(folder.path(), "old.safetensors", &["z"]);
    let checkpoint = Checkpoint::open_folder(folder.path()).unwrap();
    assert_eq!(checkpoint.strays(), ["old.safetensors"]);
}

#[test]
fn field_case_12_index_entries_cannot_leave_the_folder() {
    let folder = sharded();
    for bad in ["../../x.safetensors", "/etc/passwd", r"..\\x", "sub/x.safetensors", "..", ""] {
        write_index(folder.path(), &format!(r#""a":"{bad}""#));
        let message = refusal(folder.path());
        assert!(message.contains("entry `a`"), "{bad}: {message}");
    }
}

#[test]
fn field_case_12_a_link_that_leads_outside_is_refused() {
    let outside = tempfile::tempdir().unwrap();
    write_shard(outside.path(), "secret.safetensors", &["a"]);
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("model.safetensors");
    std::os::unix::fs::symlink(outside.path().join("secret.safetensors"), link).unwrap();
    assert!(refusal(folder.path()).contains("outside this folder"));
}

#[test]
fn field_case_12_a_hub_cache_may_link_to_its_own_blobs() {
    let cache = tempfile::tempdir().unwrap();
    let repository = cache.path().join("models--google--some-model");
    let snapshot = repository.join("snapshots").join("0123abcd");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(repository.join("blobs")).unwrap();
    write_shard(&repository.join("blobs"), "blob", &["a"]);
    std::os::unix::fs::symlink("../../blobs/blob", snapshot.join("model.safetensors")).unwrap();
    let source = FolderSource::open(&snapshot).unwrap();
    assert_eq!((source.name(), source.revision()), ("google/some-model", Some("0123abcd")));
    let checkpoint = Checkpoint::open_folder(&snapshot).unwrap();
    assert_eq!(checkpoint.read("a").unwrap(), b"aaaa");
    // The same link out of a folder that is no cache entry is refused.
    fs::rename(repository.join("snapshots"), repository.join("other")).unwrap();
    assert!(refusal(&repository.join("other/0123abcd")).contains("outside this folder"));
}

#[test]
fn field_case_11_a_cut_shard_is_refused_before_weights_are_touched() {
    for cut in [1, 4] {
        let folder = sharded();
        let path = folder.path().join("two.safetensors");
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - cut]).unwrap();
        let message = refusal(folder.path());
        assert!(message.contains("two.safetensors") && message.contains("truncated"), "{message}");
    }
}

#[test]
fn field_case_11_a_file_cut_while_it_is_read_is_an_error() {
    let folder = sharded();
    let checkpoint = Checkpoint::open_folder(folder.path()).unwrap();
    let path = folder.path().join("two.safetensors");
    let bytes = fs::metadata(&path).unwrap().len();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes - 1).unwrap();
    assert!(matches!(checkpoint.read("c"), Err(FormatError::Shrunk { .. })));
}

#[test]
fn files_of_subfolders_are_seen_and_hidden_folders_are_not() {
    let folder = sharded();
    for path in ["w4pack/manifest.json", "original/model.safetensors", ".git/config"] {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }
    let source = FolderSource::open(folder.path()).unwrap();
    let below: Vec<_> =
        source.files().iter().map(|f| f.path.as_str()).filter(|p| p.contains('/')).collect();
    assert_eq!(below, ["original/model.safetensors", "w4pack/manifest.json"]);
    assert!(Checkpoint::open_folder(folder.path()).unwrap().strays().is_empty());
}

#[test]
fn field_case_12_a_linked_folder_is_refused() {
    let folder = sharded();
    std::os::unix::fs::symlink("/", folder.path().join("elsewhere")).unwrap();
    assert!(refusal(folder.path()).contains("`elsewhere`"));
}

#[test]
fn a_folder_without_a_checkpoint_says_what_it_holds() {
    let folder = tempfile::tempdir().unwrap();
    assert!(refusal(folder.path()).contains("neither `model.safetensors`"));
    write_shard(folder.path(), "weights.safetensors", &["a"]);
    assert!(refusal(folder.path()).contains("only weights.safetensors"));
    assert!(refusal(&folder.path().join("nowhere")).contains("could not open"));
}

#[test]
fn a_weights_file_stands_for_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    write_shard(folder.path(), "model.safetensors", &["a"]);
    let checkpoint = Checkpoint::open_folder(&folder.path().join("model.safetensors")).unwrap();
    assert_eq!(checkpoint.read("a").unwrap(), b"aaaa");
}

#[test]
fn a_cut_weights_file_that_was_given_by_itself_is_named_by_its_own_path() {
    let folder = tempfile::tempdir().unwrap();
    write_shard(folder.path(), "model.safetensors", &["a"]);
    let path = folder.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let message = refusal(&path);
    assert!(message.contains(&format!("`{}`", path.display())), "{message}");
}

#[test]
fn the_reference_sets_open() {
    let sets =
        ["tiny-a/google", "tiny-a/text", "tiny-c/google", "tiny-c/text", "ct-official/emb4-tied"];
    for set in sets {
        let Some(folder) = conformance(&format!("conformance/{set}")) else { return };
        let checkpoint = Checkpoint::open_folder(&folder).unwrap();
        let reference: usize = checkpoint
            .shards()
            .iter()
            .map(|shard| fs::read(folder.join(&shard.path)).unwrap())
            .map(|bytes| safetensors::SafeTensors::deserialize(&bytes).unwrap().len())
            .sum();
        assert_eq!(checkpoint.names().count(), reference, "{set}");
    }
}
