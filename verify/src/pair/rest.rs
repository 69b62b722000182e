//! What is not a demanded text tensor: a second head, the towers, keys and values nobody reads,
//! and whatever else lies in either checkpoint.

use std::collections::BTreeSet;

use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::TextConfig;
use w4pack_format::names::{
    TextTensor, dense_tensors, is_tower, is_unused_shared_kv, text_tensors,
};

use super::{EqualPair, Pairing, layout_of};
use crate::findings::Findings;
use crate::ledger::{Class, Side};
use crate::report::{Fault, FaultClass};

/// The head's tensors, behind either layout's names.
const HEAD: &str = "lm_head.";

/// Pairs a second head in the result with the table that it must equal.
pub fn pair_head(
    pairing: &mut Pairing,
    source: &Checkpoint,
    result: &Checkpoint,
    findings: &mut Findings,
) {
    let table = pairing.layout.full_name("embed_tokens.");
    for name in result.names().filter(|name| name.starts_with(HEAD)) {
        let twin = format!("{table}{}", &name[HEAD.len()..]);
        let (Some(head), Some(first)) = (result.tensor(name), result.tensor(&twin)) else {
            let detail = format!("the head has this tensor, but the table has no `{twin}`");
            let file = result.tensor(name).map_or("", |found| &found.shard.path);
            findings.faults.push(Fault::of_tensor(FaultClass::Tie, file, name, detail));
            continue;
        };
        findings.ledger.claim_tensor(Side::Result, result, name, Class::TensorCopied);
        if (head.info.dtype, &head.info.shape) != (first.info.dtype, &first.info.shape) {
            let detail = format!(
                "it is {} {:?}, the table's `{twin}` is {} {:?}",
                head.info.dtype, head.info.shape, first.info.dtype, first.info.shape
            );
            findings.faults.push(Fault::of_tensor(FaultClass::Tie, &head.shard.path, name, detail));
            continue;
        }
        pairing.head.push(EqualPair {
            result: name.into(),
            other: twin,
            other_begin: 0,
            is_kept: false,
        });
    }
    // A source with a head of its own is Google's only if that is the table once more.
    let head = "lm_head.weight";
    if source.tensor(head).is_some() {
        let table = layout_of(source).full_name("embed_tokens.weight");
        match equal_tensors(source, head, &table) {
            Ok(true) => {
                findings.ledger.claim_tensor(Side::Source, source, head, Class::LeftOut);
                pairing.left_out.push(head.into());
            }
            Ok(false) => findings.faults.push(Fault::of_tensor(
                FaultClass::Tie,
                source.source().label(),
                head,
                "the source's head is not its embed_tokens; w4pack knows no layout for that",
            )),
            Err(error) => findings.faults.push(Fault::of_tensor(
                FaultClass::SourceChanged,
                source.source().label(),
                head,
                error.to_string(),
            )),
        }
    }
}

fn equal_tensors(checkpoint: &Checkpoint, one: &str, other: &str) -> w4pack_format::Result<bool> {
    let (Some(one), Some(other)) = (checkpoint.tensor(one), checkpoint.tensor(other)) else {
        return Ok(false);
    };
    if one.info.dtype != other.info.dtype || one.info.shape != other.info.shape {
        return Ok(false);
    }
    let range = |found| crate::ranges::Range::of_tensor(checkpoint, found);
    Ok(range(one).compare(&range(other), &())?.differences.bytes == 0)
}

/// Pairs the towers, sorts out what may be left out, and names what belongs nowhere.
pub fn pair_others(
    pairing: &mut Pairing,
    source: &Checkpoint,
    result: &Checkpoint,
    config: &TextConfig,
    findings: &mut Findings,
) {
    pairing.towers = result.names().any(is_tower);
    let source_prefix = layout_of(source).prefix();
    let demanded = text_tensors(config);
    let in_source: BTreeSet<String> = dense_tensors(config)
        .iter()
        .map(|tensor| format!("{source_prefix}{}", tensor.name))
        .collect();
    for name in source.names().filter(|name| !in_source.contains(*name)) {
        let Some(found) = source.tensor(name) else { continue };
        let text_name = name.strip_prefix(source_prefix).unwrap_or(name);
        if is_tower(name) && pairing.towers {
            pair_tower(pairing, source, result, name, findings);
        } else if is_tower(name) || is_unused_shared_kv(config, text_name) {
            findings.ledger.claim_tensor(Side::Source, source, name, Class::LeftOut);
            pairing.left_out.push(name.into());
        } else if name != "lm_head.weight" {
            findings.faults.push(Fault::of_tensor(
                FaultClass::TensorExtra,
                &found.shard.path,
                name,
                "the source holds this tensor; it is neither the text model's nor a tower's",
            ));
        }
    }
    let known = known_result_names(pairing, result, &demanded);
    for name in result.names().filter(|name| !known.contains(*name)) {
        let file = result.tensor(name).map_or("", |found| &found.shard.path);
        let detail = "nothing in the source's model demands this tensor";
        findings.faults.push(Fault::of_tensor(FaultClass::TensorExtra, file, name, detail));
    }
}

fn pair_tower(
    pairing: &mut Pairing,
    source: &Checkpoint,
    result: &Checkpoint,
    name: &str,
    findings: &mut Findings,
) {
    let (Some(theirs), Some(ours)) = (source.tensor(name), result.tensor(name)) else {
        let file = result.shards().first().map_or("", |shard| &shard.path);
        let detail = "the result keeps the towers, but not this tensor of theirs";
        findings.faults.push(Fault::of_tensor(FaultClass::TensorMissing, file, name, detail));
        return;
    };
    if (theirs.info.dtype, &theirs.info.shape) != (ours.info.dtype, &ours.info.shape) {
        let detail = format!(
            "the result holds {} {:?}, the source {} {:?}",
            ours.info.dtype, ours.info.shape, theirs.info.dtype, theirs.info.shape
        );
        let path = &ours.shard.path;
        findings.faults.push(Fault::of_tensor(FaultClass::Header, path, name, detail));
        return;
    }
    findings.ledger.claim_tensor(Side::Source, source, name, Class::TensorCopied);
    findings.ledger.claim_tensor(Side::Result, result, name, Class::TensorCopied);
    pairing.copies.push(EqualPair {
        result: name.into(),
        other: name.into(),
        other_begin: 0,
        is_kept: false,
    });
}

/// Names that the source's model allows in the result, whatever is wrong with them otherwise.
fn known_result_names(
    pairing: &Pairing,
    result: &Checkpoint,
    demanded: &[TextTensor],
) -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    for tensor in demanded {
        known.insert(pairing.layout.full_name(&tensor.name));
        known.insert(pairing.layout.full_name(tensor.dense_name()));
        if tensor.is_matrix() {
            let module = pairing.layout.full_name(tensor.module());
            for suffix in ["weight_packed", "weight_scale", "weight_shape"] {
                known.insert(format!("{module}.{suffix}"));
            }
        }
    }
    known.extend(pairing.copies.iter().map(|copy| copy.result.clone()));
    known.extend(result.names().filter(|name| name.starts_with(HEAD)).map(String::from));
    known
}
