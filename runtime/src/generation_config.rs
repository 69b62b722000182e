//! `generation_config.json`: how the checkpoint wants its tokens chosen, and where answers end.

use crate::error::{Result, RuntimeError};
use crate::sampling::Sampling;
use serde_json::Value;
use w4pack_format::config::Config;
use w4pack_format::source::Source;
use w4pack_format::{FormatError, json};

/// The file.
pub const GENERATION_CONFIG_FILE: &str = "generation_config.json";

/// What the checkpoint asks for where a request says nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationDefaults {
    /// Greedy when the file says `do_sample: false` or is missing.
    pub sampling: Sampling,
    /// Ids that end an answer: the file's `eos_token_id`, else config.json's.
    pub stop_ids: Vec<u32>,
    /// Keys of the file that w4pack does not know.
    pub unknown: Vec<String>,
}

impl GenerationDefaults {
    /// Reads the file of a checkpoint, if there is one.
    pub fn load(source: &dyn Source, config: &Config) -> Result<Self> {
        match source.size(GENERATION_CONFIG_FILE) {
            Some(_) => Self::parse(&source.read_file(GENERATION_CONFIG_FILE)?, config),
            None => Ok(Self {
                sampling: Sampling::GREEDY,
                stop_ids: config.eos_token_ids.clone(),
                unknown: Vec::new(),
            }),
        }
    }

    /// Parses the bytes of the file. Errors name the field.
    pub fn parse(bytes: &[u8], config: &Config) -> Result<Self> {
        let value = json::parse(GENERATION_CONFIG_FILE, bytes)?;
        let fields = value.as_object().ok_or_else(|| fault("", "the file is no object".into()))?;
        let mut defaults = Self {
            sampling: Sampling { temperature: 1.0, ..Sampling::GREEDY },
            stop_ids: config.eos_token_ids.clone(),
            unknown: Vec::new(),
        };
        let mut do_sample = false;
        for (key, value) in fields {
            let sampling = &mut defaults.sampling;
            match key.as_str() {
                _ if value.is_null() => {}
                "do_sample" => do_sample = value.as_bool().ok_or_else(|| wrong(key, value))?,
                "temperature" => sampling.temperature = number(key, value)?,
                "top_k" => sampling.top_k = id(key, value)? as usize,
                "top_p" => sampling.top_p = number(key, value)?,
                "min_p" => sampling.min_p = number(key, value)?,
                "eos_token_id" => defaults.stop_ids = ids(key, value)?,
                // What the tokenizer and the writer have to say changes nothing here.
                "bos_token_id" | "pad_token_id" | "transformers_version" | "_from_model_config" => {
                }
                _ => defaults.unknown.push(key.clone()),
            }
        }
        defaults.sampling.check().map_err(|error| match error {
            RuntimeError::Setting { name, value, expected } => {
                fault(name, format!("{value}: {expected}"))
            }
            other => other,
        })?;
        if !do_sample {
            defaults.sampling = Sampling::GREEDY;
        }
        Ok(defaults)
    }
}

fn number(key: &str, value: &Value) -> Result<f64> {
    value.as_f64().ok_or_else(|| wrong(key, value))
}

fn id(key: &str, value: &Value) -> Result<u32> {
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
    id.ok_or_else(|| wrong(key, value))
}

fn ids(key: &str, value: &Value) -> Result<Vec<u32>> {
    match value {
        Value::Array(values) => values.iter().map(|value| id(key, value)).collect(),
        _ => Ok(vec![id(key, value)?]),
    }
}

fn wrong(key: &str, value: &Value) -> RuntimeError {
    fault(key, format!("{value} is not what this field holds"))
}

fn fault(field: &str, problem: String) -> RuntimeError {
    let file = GENERATION_CONFIG_FILE.into();
    FormatError::Field { file, field: field.into(), problem }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let json = br#"{"model_type": "gemma4_text", "eos_token_id": [1, 106]}"#;
        Config::parse("config.json", json).expect("the defaults make a sound config")
    }

    fn parse(text: &str) -> Result<GenerationDefaults> {
        GenerationDefaults::parse(text.as_bytes(), &config())
    }

    #[test]
    fn googles_file() {
        let defaults = parse(
            r#"{"bos_token_id": 2, "do_sample": true, "eos_token_id": [1, 106, 50],
                "pad_token_id": 0, "temperature": 1.0, "top_k": 64, "top_p": 0.95,
                "transformers_version": "5.5.0"}"#,
        )
        .expect("it is sound");
        let sampling =
            Sampling { temperature: 1.0, top_k: 64, top_p: 0.95, min_p: 0.0, seed: None };
        assert_eq!(
            defaults,
            GenerationDefaults { sampling, stop_ids: vec![1, 106, 50], unknown: Vec::new() }
        );
    }

    #[test]
    fn what_the_file_does_not_say() {
        let defaults = parse(r#"{"temperature": 0.5, "top_k": null, "novelty": 3}"#);
        let defaults = defaults.expect("it is sound");
        assert_eq!(defaults.sampling, Sampling::GREEDY, "nobody asked for sampling");
        assert_eq!(defaults.stop_ids, [1, 106], "config.json's");
        assert_eq!(defaults.unknown, ["novelty"]);
        assert_eq!(parse(r#"{"eos_token_id": 7}"#).expect("it is sound").stop_ids, [7]);
    }

    #[test]
    fn faults_name_their_field() {
        for (text, field) in [
            (r#"{"top_p": "all"}"#, "top_p"),
            (r#"{"top_p": 1.5}"#, "top_p"),
            (r#"{"top_k": -1}"#, "top_k"),
            (r#"{"do_sample": 1}"#, "do_sample"),
            (r#"{"eos_token_id": [1, 1.5]}"#, "eos_token_id"),
            (r#"{"temperature": 1, "temperature": 2}"#, "temperature"),
        ] {
            let error = parse(text).expect_err("it is faulty").to_string();
            assert!(error.contains(field) && error.contains("generation_config.json"), "{error}");
        }
    }
}
