//! The model: configuration → weights → cache → forward pass, and the engine that drives it.
//!
//! Read in this order:
//!
//! | file | what it holds |
//! |---|---|
//! | `model.rs` | [`Model`]: the configuration and every weight, as three plain structs |
//! | `weights/` | [`Matrix`]: packed words or bf16; how a checkpoint is checked and read |
//! | `cache.rs` | [`Cache`]: keys and values of the positions seen so far |
//! | `forward.rs`, `attention.rs`, `experts.rs` | the pass, stage by stage |
//! | `arithmetic.rs` | how the pass multiplies: [`Plain`] loops in f32 or f64, or the kernels |
//! | `device/` | [`Device`], the narrow border, and the CPU behind it |
//! | `engine.rs`, `generation.rs` | [`Engine`]: one request in, its tokens out |
//! | `speculation/` | tokens guessed ahead and checked in one pass |
//! | `traffic.rs`, `bench/` | bytes that a step reads, and how fast |
//! | `scheduler/` | [`Scheduler`]: many answers at once on one engine |
//! | `sampling/`, `generation_config.rs` | how a token is chosen, and the checkpoint's defaults |
//! | `constraint.rs` | [`Constraint`]: what holds an answer to a form |
//! | `chat/` | text to ids and back: tokenizer, template, stream, parser |

mod answer;
pub mod arithmetic;
mod attention;
pub mod bench;
pub mod cache;
pub mod chat;
pub mod constraint;
pub mod device;
pub mod engine;
mod error;
mod experts;
pub mod forward;
mod generation;
pub mod generation_config;
pub mod logits_file;
pub mod model;
pub mod number;
pub mod sampling;
pub mod scheduler;
pub mod server;
pub mod speculation;
pub mod traffic;
pub mod weights;

pub use arithmetic::{Arithmetic, Plain};
pub use cache::Cache;
pub use constraint::{Allowed, Constraint};
pub use device::{Device, Slot, Wanted, Work};
pub use engine::{Engine, EngineOptions, KeptAs};
pub use error::{Result, RuntimeError};
pub use generation::{FinishReason, Generation, Request};
pub use generation_config::GenerationDefaults;
pub use model::{LayerWeights, MemoryPlan, Model, Weights};
pub use number::{Kept, Number};
pub use sampling::{Adjustments, Chosen, Sampler, Sampling};
pub use scheduler::Scheduler;
pub use speculation::Speculation;
pub use traffic::Traffic;
pub use weights::{LoadOptions, LoadProgress, Matrix, WeightValues};
