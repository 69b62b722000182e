//! Tests of the conversion as a whole, and of recovery against its definition.

mod conformance;
mod end_to_end;
mod field_cases;
mod gguf;
mod interrupted;
mod layouts;
mod other_packs;
mod output_folder;
mod recover_oracle;
mod restoring;
mod support;
