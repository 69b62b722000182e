//! What each text tensor becomes in the output: packed with which scales, or kept in bf16.
//!
//! Whether a tensor's steps fit the dtype asked for, and whether all its groups are on the grid, is
//! known only after its last group, and both change the place of everything behind it. So the first
//! reading of the source assumes that all is well, as on the real release, and writes at once. Only
//! if a tensor turned out otherwise is the source read a second time, with decisions that are then
//! final. Nothing is kept in memory or spooled, and recovery stays one function.

use w4pack_format::dtype::Dtype;
use w4pack_format::names::Role;
use w4pack_format::scale::ScaleDtype;

use super::pass::Found;
use crate::pack::{Contents, CopiedTensor, Module};
use crate::plan::Plan;

/// Where a tensor goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Position in [`Contents::modules`].
    Packed(usize),
    /// Position in [`Contents::copied`].
    Copied(usize),
}

/// The output's contents, and where each tensor of the plan stands in them.
pub(crate) struct Decisions {
    pub contents: Contents,
    /// By position in [`Plan::text`].
    pub destinations: Vec<Destination>,
    /// Where the kept towers begin in [`Contents::copied`].
    towers: usize,
}

impl Decisions {
    /// Where a text tensor goes, by its position in [`Plan::text`].
    pub(crate) fn text(&self, position: usize) -> Destination {
        self.destinations[position]
    }

    /// Where a tensor of the vision and audio side goes, by its position in [`Plan::towers`].
    pub(crate) fn tower(&self, tower: usize) -> Destination {
        Destination::Copied(self.towers + tower)
    }

    /// Everything packed with the dtype asked for.
    pub(crate) fn first(plan: &Plan) -> Self {
        Self::with(plan, |_| Some(plan.scale_dtype))
    }

    /// With f32 scales, or bf16 weights, where a reading under earlier decisions found the need.
    pub(super) fn again(&self, plan: &Plan, found: &[Found]) -> Self {
        Self::with(plan, |position| match self.destinations[position] {
            Destination::Packed(module) if found[module].off_grid.is_some() => None,
            Destination::Packed(module) if found[module].fell_back.is_some() => {
                // Q4_0 blocks know no wider step.
                plan.gguf.is_none().then_some(ScaleDtype::F32)
            }
            _ => Some(plan.scale_dtype),
        })
    }

    /// `scales` says for a matrix which dtype its steps get; `None` keeps it in bf16.
    fn with(plan: &Plan, scales: impl Fn(usize) -> Option<ScaleDtype>) -> Self {
        let mut contents = Contents { gguf: plan.gguf.clone(), ..Contents::default() };
        let mut destinations = Vec::with_capacity(plan.text.len());
        for (position, tensor) in plan.text.iter().enumerate() {
            let scale_dtype = match plan.relayed[position] {
                Some(_) if plan.gguf.is_some() => Some(ScaleDtype::F16),
                Some(as_it_is) => Some(as_it_is),
                None if plan.layout.packs(tensor.role) => scales(position),
                None => None,
            };
            match (scale_dtype, &tensor.shape[..]) {
                (Some(scale_dtype), &[rows, columns]) => {
                    let module = contents.modules.len();
                    destinations.push(Destination::Packed(module));
                    if tensor.role == Role::EmbedTokens && plan.layout.has_own_head() {
                        contents.head = Some(module);
                    }
                    let name = plan.output_module(position);
                    contents.modules.push(Module { name, rows, columns, scale_dtype });
                }
                (_, shape) => {
                    destinations.push(Destination::Copied(contents.copied.len()));
                    let name = plan.output_name(position);
                    let shape = shape.to_vec();
                    contents.copied.push(CopiedTensor { name, dtype: Dtype::BF16, shape });
                }
            }
        }
        let towers = contents.copied.len();
        contents.copied.extend(plan.towers.iter().map(|tower| CopiedTensor {
            name: tower.name.clone(),
            dtype: tower.dtype,
            shape: tower.shape.clone(),
        }));
        Decisions { contents, destinations, towers }
    }
}
