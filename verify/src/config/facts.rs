//! What the tensors of a result show.

use w4pack_format::names::{NameLayout, Role};
use w4pack_format::quantization::ModuleClass;
use w4pack_format::scale::ScaleDtype;

/// A matrix of the text model: all but routers could be packed.
#[derive(Debug, Clone)]
pub struct Module {
    /// Full name in the result.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Whether the result holds it in 4 bits.
    pub packed: bool,
}

impl Module {
    /// The class by which targets may name it.
    pub fn class(&self) -> ModuleClass {
        match self.role {
            Role::EmbedTokens | Role::EmbedTokensPerLayer => ModuleClass::Embedding,
            Role::Linear | Role::Router | Role::Vector => ModuleClass::Linear,
        }
    }
}

/// What the tensors and files of a result show, whatever its configuration says.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The names' layout.
    pub layout: NameLayout,
    /// The matrices, in the order of the model.
    pub modules: Vec<Module>,
    /// Whether the file holds a head of its own, and whether that is packed.
    pub has_head: bool,
    /// Only meaningful with a head.
    pub head_packed: bool,
    /// Whether the file holds the towers.
    pub towers: bool,
    /// The scales' dtypes, each once.
    pub scale_dtypes: Vec<ScaleDtype>,
    /// Whether the result carries what only w4pack writes, the folder `w4pack/`: then its
    /// configuration must be w4pack's to the letter.
    pub ours: bool,
}

impl Facts {
    /// Whether every scale is bf16.
    pub fn all_scales_bf16(&self) -> bool {
        self.scale_dtypes.iter().all(|dtype| *dtype == ScaleDtype::BF16)
    }

    /// Whether a vocabulary table is packed.
    pub fn has_packed_table(&self) -> bool {
        self.modules.iter().any(|module| module.packed && module.class() == ModuleClass::Embedding)
    }
}
