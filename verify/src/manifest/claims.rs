//! What a manifest claims besides hashes: options, version, time, names.

use std::collections::BTreeSet;

use w4pack_format::manifest::Manifest;
use w4pack_format::names::Role;
use w4pack_format::scale::ScaleDtype;
use w4pack_format::source::Source;

use super::fault;
use crate::config::{Facts, Layout};
use crate::findings::Findings;
use crate::spelling::shortened;

/// Holds the options against what the result shows, and the version and the time against their
/// spelling; names what nothing here can check.
pub fn check(manifest: &Manifest, facts: &Facts, findings: &mut Findings) {
    let options = &manifest.options;
    let mut fail = |detail: String| findings.faults.push(fault(detail));
    match ScaleDtype::ALL.into_iter().find(|dtype| dtype.name() == options.scale_dtype) {
        None => fail(format!("its options.scale_dtype is `{}`", shortened(&options.scale_dtype))),
        Some(asked) => {
            // A tensor whose steps the dtype cannot hold falls back to f32.
            let others = |dtype: &&ScaleDtype| **dtype != asked && **dtype != ScaleDtype::F32;
            if let Some(other) = facts.scale_dtypes.iter().find(others) {
                fail(format!("its options.scale_dtype is `{asked}`, a tensor has {other} scales"));
            }
        }
    }
    let towers = if facts.towers { "keep" } else { "drop" };
    if options.towers != towers {
        let said = shortened(&options.towers);
        fail(format!("its options.towers is `{said}`, the result shows `{towers}`"));
    }
    let possible = Layout::possible(facts);
    // A table off the grid serves as the head itself, so that there is nothing to untie.
    let keeps_table =
        facts.modules.iter().any(|module| module.role == Role::EmbedTokens && !module.packed);
    let untied_in_name_only = options.layout == Layout::Emb4Untied.name()
        && keeps_table
        && !facts.has_head
        && options.allow_off_grid;
    let said = if untied_in_name_only { Layout::Emb4.name() } else { &*options.layout };
    match possible.iter().find(|layout| layout.name() == said) {
        None => {
            let shown: Vec<&str> = possible.iter().map(|layout| layout.name()).collect();
            let (said, shown) = (shortened(&options.layout), shown.join(" or "));
            fail(format!("its options.layout is `{said}`, the tensors show {shown}"));
        }
        Some(layout) => {
            let kept = layout.kept(facts).next();
            match (kept, options.allow_off_grid) {
                (Some(kept), false) => fail(format!(
                    "its options.allow_off_grid is false, but `{}` is kept in bf16",
                    kept.name
                )),
                (None, true) => findings.note(
                    "the manifest says that tensors off the grid might stay in bf16; none did",
                ),
                _ => {}
            }
        }
    }
    let mut fail = |detail: String| findings.faults.push(fault(detail));
    if !is_version(&manifest.w4pack_version) {
        let version = shortened(&manifest.w4pack_version);
        fail(format!("its w4pack_version `{version}` is not a version number"));
    }
    if !is_time(&manifest.created) {
        let created = shortened(&manifest.created);
        fail(format!("its `created` is `{created}`, not a time like 2026-01-31T12:00:00Z"));
    }
    findings.note(format!(
        "nothing here can check what the manifest says about its making: w4pack {}, {}",
        shortened(&manifest.w4pack_version),
        shortened(&manifest.created)
    ));
}

/// Compares where the source is said to come from.
pub fn check_origin(manifest: &Manifest, source: &dyn Source, findings: &mut Findings) {
    let record = &manifest.source;
    match (record.revision.as_deref(), source.revision()) {
        (Some(said), Some(is)) if said != is => {
            let said = shortened(said);
            let detail = format!(
                "its source revision is {said}, the source at hand has {is}: name that commit after \
                 an @ to check against it"
            );
            findings.faults.push(fault(detail));
        }
        // As from a folder that was downloaded by other means. No claim is no false one.
        (None, Some(is)) => findings.note(format!(
            "the manifest names no source revision; the source at hand is revision {is}"
        )),
        (Some(said), None) => findings.note(format!(
            "the manifest's source revision {} cannot be checked: the source at hand names none",
            shortened(said)
        )),
        _ => {}
    }
    if record.name != source.name() {
        // A folder may be copied and renamed; the hashes say whether it is the same source.
        findings.note(format!(
            "the manifest's source name is {}, which cannot be checked: the source at hand is {}",
            shortened(&record.name),
            source.name()
        ));
    }
}

/// `1.2.3`, with letters, digits, dots and hyphens behind a hyphen or a plus.
fn is_version(text: &str) -> bool {
    let end = text.find(['-', '+']).unwrap_or(text.len());
    let (numbers, rest) = text.split_at(end);
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-+".contains(c);
    numbers.split('.').count() == 3
        && numbers.split('.').all(is_number)
        && rest.len() != 1
        && rest.chars().all(plain)
}

/// RFC 3339 in UTC, as far as digits and their places go.
fn is_time(text: &str) -> bool {
    let Some(text) = text.strip_suffix('Z') else { return false };
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let fits = |(byte, shape): (u8, u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        other => byte == other,
    };
    let shape = b"0000-00-00T00:00:00";
    seconds.len() == shape.len()
        && seconds.bytes().zip(*shape).all(fits)
        && !fraction.is_empty()
        && fraction.bytes().all(|byte| byte.is_ascii_digit())
}

/// What stands twice in a list.
pub fn repeated<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    names.filter(|name| !seen.insert(*name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_times_are_told_from_other_texts() {
        for text in ["0.1.0", "1.22.333", "1.0.0-rc.1", "1.0.0+build"] {
            assert!(is_version(text), "{text}");
        }
        for text in ["", "1.0", "1.0.0x", "1.0.0.0", "1..0", "1.0.0-", "1.0.0- evil"] {
            assert!(!is_version(text), "{text}");
        }
        for text in ["2026-11-29T23:24:45Z", "2026-11-29T23:24:45.123456Z"] {
            assert!(is_time(text), "{text}");
        }
        for text in
            ["", "Z", "2026-11-29T23:24:45z", "2026-11-29 23:24:45Z", "2026-11-29T23:24:45.Z"]
        {
            assert!(!is_time(text), "{text}");
        }
    }
}
