//! Conversions that do not come to their end: nothing under the final name, nothing beside it, and
//! the next one succeeds.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use w4pack_convert::{ConvertError, Progress, Stage, convert, restore};
use w4pack_format::FormatError;
use w4pack_format::scale::ScaleDtype;
use w4pack_format::source::{FolderSource, Source};

use crate::support::small::Small;
use crate::support::{names_in, options, run};

/// Does something at the report with this number, and may stop there.
struct At<F> {
    report: u64,
    count: AtomicU64,
    then: F,
    stop: bool,
}

impl<F: Fn()> At<F> {
    fn new(report: u64, stop: bool, then: F) -> Self {
        At { report, count: AtomicU64::new(0), then, stop }
    }
}

impl<F: Fn() + Sync> Progress for At<F> {
    fn report(&self, _stage: Stage, _done: u64, _total: u64) {
        if self.count.fetch_add(1, Ordering::Relaxed) == self.report {
            (self.then)();
        }
    }

    fn cancelled(&self) -> bool {
        self.stop && self.count.load(Ordering::Relaxed) > self.report
    }
}

fn opened(folder: &Path) -> Arc<dyn Source> {
    Arc::new(FolderSource::open(folder).unwrap())
}

#[test]
fn whoever_stops_it_anywhere_finds_nothing_left() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("deep/er/out"));
    Small::google(1).write(&source, 2);
    let mut stopped = 0;
    for report in 0.. {
        let progress = At::new(report, true, || {});
        match convert(opened(&source), &out, &options(ScaleDtype::F16), &progress) {
            Ok(_) => break,
            Err(error) => assert!(matches!(error, ConvertError::Cancelled), "{error}"),
        }
        assert_eq!(names_in(folder.path()), ["source"], "after report {report}");
        stopped += 1;
    }
    assert!(stopped > 50, "{stopped}");

    // The way back the same.
    let back = folder.path().join("back");
    let progress = At::new(7, true, || {});
    let error = restore(opened(&out), None, &back, 2, &progress).unwrap_err();
    assert!(matches!(error, ConvertError::Cancelled), "{error}");
    assert_eq!(names_in(folder.path()), ["deep", "source"]);
}

#[test]
fn a_source_cut_while_it_is_read_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (folder.path().join("source"), folder.path().join("out"));
    let small = Small::google(2);
    small.write(&source, 1);
    let weights = source.join("model.safetensors");
    let cut = || {
        let file = fs::File::options().write(true).open(&weights).unwrap();
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    };
    let error = convert(opened(&source), &out, &options(ScaleDtype::F16), &At::new(3, false, cut))
        .unwrap_err();
    assert!(matches!(error, ConvertError::Format(FormatError::Shrunk { .. })), "{error}");
    assert!(error.to_string().contains(weights.to_str().unwrap()), "{error}");
    assert_eq!(names_in(folder.path()), ["source"]);
    small.write(&source, 1);
    run(&source, &out, &options(ScaleDtype::F16)).unwrap();
}
