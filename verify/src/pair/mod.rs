//! Which tensor of the result stands for which tensor of the source.
//!
//! The source's configuration alone says what must be there; the result's own configuration is
//! held against it elsewhere and decides nothing here.

mod module;
mod rest;

use std::collections::BTreeMap;

use w4pack_format::checkpoint::Checkpoint;
use w4pack_format::config::TextConfig;
use w4pack_format::dtype::Dtype;
use w4pack_format::names::{NameLayout, Role, TextTensor, text_tensors};
use w4pack_format::scale::ScaleDtype;

use crate::findings::Findings;
use crate::ledger::{Class, Side};
use crate::report::{Fault, FaultClass};

pub use module::parts_of;

/// A packed tensor and the source tensor whose values it must give.
#[derive(Debug, Clone)]
pub struct PackedPair {
    /// Module name in the result.
    pub module: String,
    /// Full tensor name in the source.
    pub source: String,
    /// Where the values begin in that tensor, in rows: not 0 for experts, which the source stacks.
    pub source_first_row: u64,
    /// What it is for.
    pub role: Role,
    /// Rows and columns.
    pub shape: [usize; 2],
    /// Element type of its scales.
    pub scale_dtype: ScaleDtype,
}

/// Two tensors, or a tensor and its second copy, that must be equal byte for byte.
#[derive(Debug, Clone)]
pub struct EqualPair {
    /// Name in the result.
    pub result: String,
    /// Name in the source, or of the first copy in the result.
    pub other: String,
    /// Whether the layout packs it, so that only a group off the grid excuses the copy.
    pub is_kept: bool,
    /// Where the copy begins in the other tensor, in bytes.
    pub other_begin: u64,
}

/// How the tensors of both sides belong together.
#[derive(Debug, Clone)]
pub struct Pairing {
    /// Name layout of the result.
    pub layout: NameLayout,
    /// Packed text tensors in the order of the model.
    pub packed: Vec<PackedPair>,
    /// Modules that are packed in the result, but not as they must be.
    pub broken: Vec<String>,
    /// Matrices (without prefix) that the result keeps in bf16: routers, and whatever else its
    /// maker did not pack.
    pub dense: Vec<TextTensor>,
    /// Copied tensors.
    pub copies: Vec<EqualPair>,
    /// Tensors of a second head and the table's tensors that they must equal.
    pub head: Vec<EqualPair>,
    /// Source tensors that are left out.
    pub left_out: Vec<String>,
    /// Packed modules whose `weight_shape` holds 32-bit numbers.
    pub narrow_shapes: usize,
    /// Whether the result holds the towers.
    pub towers: bool,
}

/// The layout that a checkpoint's names follow.
pub fn layout_of(checkpoint: &Checkpoint) -> NameLayout {
    NameLayout::of_names(checkpoint.names())
}

/// Notes packed modules whose `weight_shape` holds 32-bit numbers.
pub fn note_narrow_shapes(modules: usize, findings: &mut Findings) {
    if modules > 0 {
        findings.note(format!(
            "the weight_shape of {modules} packed modules is I32, all known writers write I64"
        ));
    }
}

/// Pairs all tensors, enters faults for those without a partner and claims the bytes of the rest.
pub fn pair(
    source: &Checkpoint,
    result: &Checkpoint,
    config: &TextConfig,
    findings: &mut Findings,
) -> Pairing {
    let mut pairing = Pairing {
        layout: layout_of(result),
        packed: Vec::new(),
        broken: Vec::new(),
        dense: Vec::new(),
        copies: Vec::new(),
        head: Vec::new(),
        left_out: Vec::new(),
        narrow_shapes: 0,
        towers: false,
    };
    let source_layout = layout_of(source);
    // A stack holds many matrices and is looked at once.
    let mut sound: BTreeMap<String, bool> = BTreeMap::new();
    for tensor in text_tensors(config) {
        let name = source_layout.full_name(tensor.dense_name());
        let is_sound = *sound.entry(name.clone()).or_insert_with(|| {
            let fault = source_fault(source, &name, &tensor);
            let is_sound = fault.is_none();
            findings.faults.extend(fault);
            is_sound
        });
        if is_sound {
            pair_text_tensor(&mut pairing, result, name, tensor, findings);
        }
    }
    claim_sources(&pairing, source, findings);
    rest::pair_head(&mut pairing, source, result, findings);
    rest::pair_others(&mut pairing, source, result, config, findings);
    pairing
}

/// Claims the source tensors of all pairs. A stack of experts belongs to several of them; if one is
/// packed it counts as codes.
fn claim_sources(pairing: &Pairing, source: &Checkpoint, findings: &mut Findings) {
    let copies = pairing.copies.iter().map(|copy| (copy.other.as_str(), Class::TensorCopied));
    let packed = pairing.packed.iter().map(|pair| (pair.source.as_str(), Class::Codes));
    let classes: BTreeMap<&str, Class> = copies.chain(packed).collect();
    for (name, class) in classes {
        findings.ledger.claim_tensor(Side::Source, source, name, class);
    }
}

/// What is wrong with a source tensor, if anything.
fn source_fault(source: &Checkpoint, name: &str, tensor: &TextTensor) -> Option<Fault> {
    let Some(found) = source.tensor(name) else {
        let file = source.source().label();
        let detail = "the source's configuration demands this tensor, the source lacks it";
        return Some(Fault::of_tensor(FaultClass::TensorMissing, file, name, detail));
    };
    let (dtype, shape) = (found.info.dtype, &found.info.shape);
    (dtype != Dtype::BF16 || *shape != tensor.dense_shape()).then(|| {
        let detail = format!(
            "the source holds {dtype} {shape:?}, its configuration demands BF16 {:?}",
            tensor.dense_shape()
        );
        Fault::of_tensor(FaultClass::Header, &found.shard.path, name, detail)
    })
}

fn pair_text_tensor(
    pairing: &mut Pairing,
    result: &Checkpoint,
    source_name: String,
    tensor: TextTensor,
    findings: &mut Findings,
) {
    let full_name = pairing.layout.full_name(&tensor.name);
    let module = pairing.layout.full_name(tensor.module());
    let parts = parts_of(result, &module);
    let dense = result.tensor(&full_name);
    if tensor.is_matrix() && parts.any() {
        let [rows, columns] = tensor.shape[..] else { return };
        if dense.is_some() {
            let detail = "the result holds this tensor both packed and unpacked";
            let file = parts.file(result);
            findings.faults.push(Fault::of_tensor(
                FaultClass::TensorExtra,
                &file,
                &full_name,
                detail,
            ));
        }
        match parts.check(result, &module, [rows, columns]) {
            Ok(scale_dtype) => {
                parts.claim(result, &module, &mut findings.ledger);
                pairing.narrow_shapes += usize::from(parts.has_narrow_shape());
                pairing.packed.push(PackedPair {
                    module,
                    source: source_name,
                    source_first_row: tensor.dense_first_row() as u64,
                    role: tensor.role,
                    shape: [rows, columns],
                    scale_dtype,
                });
            }
            Err(faults) => {
                findings.faults.extend(faults);
                pairing.broken.push(module);
            }
        }
        return;
    }
    if dense.is_none() && pair_whole_stack(pairing, result, &source_name, &tensor, findings) {
        return;
    }
    let Some(found) = dense else {
        let file = result.shards().first().map_or("", |shard| &shard.path);
        let detail = "the source holds this tensor, the result neither packed nor as it is";
        findings.faults.push(Fault::of_tensor(FaultClass::TensorMissing, file, &full_name, detail));
        return;
    };
    if found.info.dtype != Dtype::BF16 || found.info.shape != tensor.shape {
        let detail = format!(
            "the result holds {} {:?}, the source BF16 {:?}",
            found.info.dtype, found.info.shape, tensor.shape
        );
        let path = &found.shard.path;
        findings.faults.push(Fault::of_tensor(FaultClass::Header, path, &full_name, detail));
        return;
    }
    findings.ledger.claim_tensor(Side::Result, result, &full_name, Class::TensorCopied);
    let row: usize = tensor.shape.iter().skip(1).product();
    let other_begin = 2 * (tensor.dense_first_row() * row) as u64;
    let (result, other) = (full_name, source_name);
    pairing.copies.push(EqualPair { result, other, other_begin, is_kept: false });
    if tensor.is_matrix() || tensor.role == Role::Router {
        pairing.dense.push(tensor);
    }
}

/// Pairs a stack of experts that the result keeps in one piece, once for all its matrices. False if
/// the result has no such stack.
fn pair_whole_stack(
    pairing: &mut Pairing,
    result: &Checkpoint,
    source_name: &str,
    tensor: &TextTensor,
    findings: &mut Findings,
) -> bool {
    let Some(stack) = &tensor.stack else { return false };
    let full_name = pairing.layout.full_name(&stack.name);
    let Some(found) = result.tensor(&full_name) else { return false };
    if stack.first_row > 0 {
        return true;
    }
    if found.info.dtype != Dtype::BF16 || found.info.shape != stack.shape {
        let (dtype, shape) = (found.info.dtype, &found.info.shape);
        let detail =
            format!("the result holds {dtype} {shape:?}, the source BF16 {:?}", stack.shape);
        let path = &found.shard.path;
        findings.faults.push(Fault::of_tensor(FaultClass::Header, path, &full_name, detail));
        return true;
    }
    findings.ledger.claim_tensor(Side::Result, result, &full_name, Class::TensorCopied);
    let other = source_name.into();
    let result = full_name;
    pairing.copies.push(EqualPair { result, other, other_begin: 0, is_kept: false });
    true
}
