//! The known ways to damage a checkpoint: the table, and a file for each part that is damaged.

mod codes;
mod companions;
mod config;
mod copies;
mod headers;
mod index;
mod manifest;
mod sidecar;
mod steps;
mod tensors;

use super::Expected;
use super::checkpoint::Pack;
use super::random::Random;
use crate::report::FaultClass;

/// What a kind of damage needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Any checkpoint.
    Files,
    /// A checkpoint in two shards.
    Index,
    /// A manifest.
    Manifest,
}

/// Does the damage and says what must be found; `None` when there is no place for it.
type Apply = fn(&mut Pack, &mut Random) -> Option<Expected>;

/// A way to damage a checkpoint.
pub struct Damage {
    /// What is done.
    pub name: &'static str,
    /// What it needs.
    pub subject: Subject,
    /// The class that must name it.
    pub class: FaultClass,
    /// Does it.
    pub apply: Apply,
}

const fn files(name: &'static str, class: FaultClass, apply: Apply) -> Damage {
    Damage { name, subject: Subject::Files, class, apply }
}

const fn index(name: &'static str, class: FaultClass, apply: Apply) -> Damage {
    Damage { name, subject: Subject::Index, class, apply }
}

const fn manifest(name: &'static str, apply: Apply) -> Damage {
    Damage { name, subject: Subject::Manifest, class: FaultClass::Manifest, apply }
}

use FaultClass::{
    Code, CompanionFile, Config, Header as HeaderClass, Index, Scale, Sidecar, Size, TensorBytes,
    TensorExtra, TensorMissing, Tie,
};

/// All of them.
pub const DAMAGES: &[Damage] = &[
    files("one nibble changed", Code, codes::one_nibble),
    files("two nibbles of a group swapped", Code, codes::swapped_nibbles),
    files("two packed words of a row swapped", Code, codes::swapped_words),
    files("two rows of codes swapped", Code, codes::swapped_rows),
    files("a group's codes and step turned", Code, codes::turned_group),
    files("codes halved, step doubled, or the other way", Code, codes::other_factor),
    files("two equal-shaped packed tensors renamed", Code, codes::renamed_modules),
    files("one step by one last place", Scale, steps::step_by_one_place),
    files("the sign of a step", Scale, steps::step_sign),
    files("a step that is not a number", Scale, |pack, random| {
        steps::bad_step(pack, random, f32::NAN)
    }),
    files("an infinite step", Scale, |pack, random| steps::bad_step(pack, random, f32::INFINITY)),
    files("a step of zero", Scale, |pack, random| steps::bad_step(pack, random, 0.0)),
    files("two steps of a row swapped", Scale, steps::swapped_steps),
    files("one value of a norm", TensorBytes, copies::norm_value),
    files("a layer scalar", TensorBytes, copies::layer_scalar),
    files("two equal-shaped norms renamed", TensorBytes, copies::renamed_norms),
    files("a stored shape", HeaderClass, headers::stored_shape),
    files("the element type of a norm", HeaderClass, headers::norm_dtype),
    files("the dimensions of packed words", HeaderClass, headers::dimensions),
    files("a header offset", HeaderClass, headers::header_offset),
    files("words in a header's metadata", HeaderClass, headers::metadata),
    files("an extra tensor", TensorExtra, tensors::extra_tensor),
    files("a missing tensor", TensorMissing, tensors::missing_tensor),
    files("weights truncated by 1 byte", Size, |pack, random| tensors::truncated(pack, random, 1)),
    files("weights truncated by 4096 bytes", Size, |pack, random| {
        tensors::truncated(pack, random, 4096)
    }),
    files("a byte behind the weights", Size, tensors::trailing_byte),
    files("one number of the configuration", Config, config::number),
    files("a key of the configuration missing", Config, config::key_missing),
    files("a key of the configuration twice", Config, config::key_twice),
    files("a key of the configuration added", Config, config::key_added),
    files("the tie flag", Tie, config::tie_flag),
    files("a target pattern without $", Config, config::target_without_end),
    files("the packed format's group size", Config, config::group_size),
    files("dequantize taken out", Config, config::dequantize),
    files("a byte of the tokenizer", CompanionFile, |pack, random| {
        companions::byte(pack, random, "tokenizer.json")
    }),
    files("a byte of the chat template", CompanionFile, |pack, random| {
        companions::byte(pack, random, "chat_template.jinja")
    }),
    files("a stop id", CompanionFile, companions::stop_id),
    files("a companion file missing", CompanionFile, companions::missing),
    files("a file that nobody knows", CompanionFile, companions::unknown_file),
    files("a second weights file", TensorExtra, tensors::second_weights),
    files("a finer step in the sidecar", Sidecar, sidecar::step),
    files("the list of the sidecar's groups", Sidecar, sidecar::gaps),
    files("an entry of the sidecar missing", Sidecar, sidecar::entry_missing),
    index("an index entry in the other shard", Index, index::entry),
    index("an index entry missing", Index, index::entry_missing),
    index("an index entry that leads outside", Index, index::outside),
    index("the index's total size", Index, index::total),
    manifest("a manifest of another source", manifest::source_hash),
    manifest("a manifest with a source tensor's other hash", manifest::tensor_hash),
    manifest("a manifest with a tensor's other fate", manifest::fate),
    manifest("a manifest with another source header", manifest::header),
    manifest("a manifest without one of the result's files", manifest::file_missing),
    manifest("a manifest with another step type", manifest::scale_dtype),
    manifest("a manifest of another schema", manifest::schema),
];
