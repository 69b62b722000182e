//! The self-test on a pack of the tests' own packer: every damage is found in its place.

use crate::support::{packer, synthetic};
use w4pack_format::scale::ScaleDtype;
use w4pack_verify::Options;
use w4pack_verify::self_test::self_test;

#[test]
fn three_hundred_damages_are_found_where_they_are() {
    let source = synthetic::source(60);
    let shared = source.source();
    let pack = packer::emb4(&source.tensors, &source.files, ScaleDtype::F16);
    let pack = pack.with_manifest(&shared, "f16").source();
    let found = self_test(&pack, &shared, 324, 1, &Options::default(), &()).unwrap();
    assert!(found.is_right(), "{found}");
    assert!(found.rows.len() > 50 && found.rows.iter().all(|row| row.right > 0), "{found}");
}

/// Where the checkpoint is damaged from the start there is nothing to test.
#[test]
fn a_checkpoint_that_is_not_proved_is_not_damaged() {
    let source = synthetic::source(61);
    let mut pack = packer::emb4(&source.tensors, &source.files, ScaleDtype::F16);
    pack.bytes_mut("model.norm.weight")[0] ^= 1;
    let found = self_test(&pack.source(), &source.source(), 10, 1, &Options::default(), &());
    let found = found.unwrap();
    assert!(!found.is_right() && found.trials == 0);
    assert!(found.to_string().contains("no damage was tried"), "{found}");
}
