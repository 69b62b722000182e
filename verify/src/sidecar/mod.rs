//! Reading `w4pack/exact.safetensors`, with a decoder of the verifier's own.
//!
//! The schema is in [`w4pack_format::exact`]. The proof never trusts a list: for every group it
//! knows from the source what the sidecar must say, and walks the lists alongside.

mod gaps;
mod module;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use w4pack_format::Result;
use w4pack_format::dtype::Dtype;
use w4pack_format::exact::{EXACT_FILE, Part};
use w4pack_format::header::Header;
use w4pack_format::source::Source;

use crate::report::{Fault, FaultClass, class_of};
pub use gaps::{Listed, group_numbers};
pub use module::{Evidence, ModuleSidecar};

/// The sidecar file, its header read and checked.
pub struct Sidecar {
    source: Arc<dyn Source>,
    header: Header,
    /// Positions in the header, by name: models with experts have tens of thousands of entries.
    positions: HashMap<String, usize>,
}

impl Sidecar {
    /// Opens the sidecar of a result; `None` if there is none.
    pub fn open(source: &Arc<dyn Source>) -> Option<Result<Sidecar, Fault>> {
        let bytes = source.size(EXACT_FILE)?;
        let header = Header::parse(EXACT_FILE, bytes, &mut |offset, buffer| {
            source.read_at(EXACT_FILE, offset, buffer)
        });
        Some(match header {
            Ok(header) => {
                let names = header.tensors.iter().map(|tensor| tensor.name.clone());
                let positions = names.enumerate().map(|(position, name)| (name, position));
                Ok(Sidecar { source: source.clone(), positions: positions.collect(), header })
            }
            Err(error) => {
                let class = match class_of(&error) {
                    FaultClass::SourceChanged => FaultClass::SourceChanged,
                    _ => FaultClass::Sidecar,
                };
                Err(Fault::of_file(class, EXACT_FILE, error.to_string()))
            }
        })
    }

    /// The file's header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Tensors that belong to no module of `modules`, or are none of the schema's.
    pub fn strangers(&self, modules: &[&str]) -> Vec<Fault> {
        let modules: HashSet<&str> = modules.iter().copied().collect();
        let names = self.header.tensors.iter().map(|tensor| tensor.name.as_str());
        names
            .filter(|name| {
                !Part::of_tensor(name).is_some_and(|(module, _)| modules.contains(module))
            })
            .map(|name| {
                let detail = "no packed tensor of the result has this entry";
                Fault::of_tensor(FaultClass::Sidecar, EXACT_FILE, name, detail)
            })
            .collect()
    }

    /// What the sidecar says about a module. Its lists are read whole: they are a small part of
    /// the module's own bytes (at most one bit for each zero).
    pub fn module(&self, module: &str) -> Result<ModuleSidecar, Fault> {
        let read = |part: Part, dtype: Dtype| -> Result<Option<Vec<u8>>, Fault> {
            let name = part.tensor_name(module);
            let Some(&position) = self.positions.get(&name) else { return Ok(None) };
            let info = &self.header.tensors[position];
            let fail = |class, detail| Fault::of_tensor(class, EXACT_FILE, &name, detail);
            let wanted_rank = if part == Part::VerbatimValues { 2 } else { 1 };
            if info.dtype != dtype || info.shape.len() != wanted_rank || info.bytes() == 0 {
                let detail = format!(
                    "it is {} {:?}, the schema demands {dtype} with {wanted_rank} dimensions and entries",
                    info.dtype, info.shape
                );
                return Err(fail(FaultClass::Sidecar, detail));
            }
            let mut bytes = vec![0; info.bytes() as usize];
            self.source
                .read_at(EXACT_FILE, self.header.data_start() + info.begin, &mut bytes)
                .map_err(|error| fail(class_of(&error), error.to_string()))?;
            Ok(Some(bytes))
        };
        let parts = module::Parts {
            step_gaps: read(Part::StepGaps, Dtype::U8)?,
            step_values: read(Part::StepValues, Dtype::F32)?,
            verbatim_gaps: read(Part::VerbatimGaps, Dtype::U8)?,
            verbatim_values: read(Part::VerbatimValues, Dtype::BF16)?,
            zero_rule: read(Part::ZeroRule, Dtype::U8)?,
            zero_gaps: read(Part::ZeroGaps, Dtype::U8)?,
            zero_masks: read(Part::ZeroMasks, Dtype::U32)?,
            zero_bits: read(Part::ZeroBits, Dtype::U8)?,
        };
        ModuleSidecar::new(parts)
            .map_err(|detail| Fault::of_tensor(FaultClass::Sidecar, EXACT_FILE, module, detail))
    }
}
