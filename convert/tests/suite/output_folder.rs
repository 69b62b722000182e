//! Where an output may appear, and that it appears whole.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use w4pack_format::scale::ScaleDtype;

use crate::support::small::Small;
use crate::support::{names_in, open, options, run};

#[test]
fn an_output_in_or_around_the_source_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("models/source");
    Small::text_only(1).write(&source, 1);
    let before = names_in(&source);
    for out in [source.clone(), source.join("out"), source.join("../source/deep/out")] {
        let error = run(&source, &out, &options(ScaleDtype::F16)).unwrap_err();
        assert!(error.to_string().contains("lies in the source"), "{error}");
    }
    let error = run(&source, &folder.path().join("models"), &options(ScaleDtype::F16));
    assert!(error.unwrap_err().to_string().contains("holds the source"));
    assert_eq!(names_in(&source), before);
}

#[test]
fn a_folder_with_other_things_in_it_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("out"));
    Small::text_only(1).write(&source, 1);
    fs::create_dir(&out).unwrap();
    fs::write(out.join("thesis.txt"), "years of work").unwrap();
    let error = run(&source, &out, &options(ScaleDtype::F16)).unwrap_err();
    assert!(error.to_string().contains("not an output of w4pack"), "{error}");
    assert_eq!(names_in(&out), ["thesis.txt"]);
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = run(&source, &file, &options(ScaleDtype::F16)).unwrap_err();
    assert!(error.to_string().contains("it is a file"), "{error}");
}

#[test]
fn an_older_output_is_replaced_only_by_a_complete_one() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("out"));
    fs::create_dir(&out).unwrap();
    let mut small = Small::text_only(1);
    small.write(&source, 1);
    run(&source, &out, &options(ScaleDtype::F16)).unwrap();
    let first = fs::read(out.join("model.safetensors")).unwrap();

    let mut broken = small.clone();
    broken.set_group(0, 0, &[0x7fc0; 32]);
    broken.write(&source, 1);
    run(&source, &out, &options(ScaleDtype::F16)).unwrap_err();
    assert!(fs::read(out.join("model.safetensors")).unwrap() == first);
    assert_eq!(names_in(folder.path()), ["out", "source"]);

    small = Small::text_only(2);
    small.write(&source, 1);
    run(&source, &out, &options(ScaleDtype::F16)).unwrap();
    assert!(fs::read(out.join("model.safetensors")).unwrap() != first);
    assert_eq!(names_in(folder.path()), ["out", "source"]);
}

#[test]
fn everybody_may_read_the_output() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("out"));
    Small::text_only(1).write(&source, 1);
    run(&source, &out, &options(ScaleDtype::F16)).unwrap();
    for file in open(&out).source().files() {
        let mode = fs::metadata(out.join(&file.path)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644, "{}", file.path);
    }
}
