//! `w4pack/exact.safetensors`.

use w4pack_format::exact::EXACT_FILE;
use w4pack_format::header::Header;

use crate::report::FaultClass::Sidecar;
use crate::self_test::Expected;
use crate::self_test::checkpoint::Pack;
use crate::self_test::edits::of_tensor;
use crate::self_test::random::Random;

/// An entry of the sidecar whose name ends so: its module, and its place in the file.
fn entry(
    pack: &Pack,
    random: &mut Random,
    endings: &[&str],
) -> Option<(String, String, std::ops::Range<usize>)> {
    let content = pack.file(EXACT_FILE)?;
    let header = Header::parse(EXACT_FILE, content.len() as u64, &mut |offset, buffer| {
        let begin = offset as usize;
        buffer.copy_from_slice(&content[begin..begin + buffer.len()]);
        Ok(())
    })
    .ok()?;
    let entries: Vec<_> = header
        .tensors
        .iter()
        .filter(|tensor| endings.iter().any(|ending| tensor.name.ends_with(ending)))
        .collect();
    let entry = random.one_of(&entries)?;
    let begin = header.data_start() as usize;
    let module = entry.name.split('|').next()?.to_string();
    let place = begin + entry.begin as usize..begin + entry.end as usize;
    Some((module, entry.name.clone(), place))
}

pub(super) fn step(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let (module, _, place) = entry(pack, random, &["|step.values"])?;
    let at = place.start + random.below(place.len());
    pack.file_mut(EXACT_FILE)?[at] ^= 1 << random.below(8);
    of_tensor(Sidecar, EXACT_FILE, &module)
}

pub(super) fn gaps(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let (module, _, place) = entry(pack, random, &["|step.gaps"])?;
    let at = place.start + random.below(place.len());
    let byte = &mut pack.file_mut(EXACT_FILE)?[at];
    *byte = if *byte == 0 { 1 } else { *byte - 1 };
    of_tensor(Sidecar, EXACT_FILE, &module)
}

pub(super) fn entry_missing(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    // Renamed within the module to what the schema does not know: the entry itself is the fault.
    let (_, name, _) = entry(pack, random, &["|step.values", "|step.gaps"])?;
    let other = name.replace("|step.", "|stop.");
    let length = u64::from_le_bytes(pack.file(EXACT_FILE)?.get(..8)?.try_into().ok()?) as usize;
    let content = pack.file_mut(EXACT_FILE)?;
    let header = String::from_utf8(content[8..8 + length].to_vec()).ok()?;
    let renamed = header.replace(&format!("\"{name}\""), &format!("\"{other}\""));
    content[8..8 + length].copy_from_slice(renamed.as_bytes());
    of_tensor(Sidecar, EXACT_FILE, &other)
}
