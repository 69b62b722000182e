//! The model card: what it is, how it is run, what was tested, what was proved.

use super::proof::Proof;
use crate::args::publish::PublishArguments;
use crate::message::Usage;
use anyhow::Result;
use serde_json::Value;
use std::fmt;
use w4pack_format::manifest::{CARD_MARK, Manifest, STATEMENT_FILE};
use w4pack_format::source::Source;
use w4pack_hub::RepositoryName;

/// What the card says.
pub struct Card {
    name: String,
    /// `owner/name` of the source.
    pub base_model: String,
    /// The source with its commit, as `--source` takes it.
    source: String,
    license: String,
    layout: String,
    scale_dtype: String,
    towers: bool,
    w4pack_version: String,
    files: Vec<(String, u64)>,
    predicate: Value,
}

impl Card {
    /// Errors: neither the source nor a flag says what the licence and the base model are.
    pub fn new(
        arguments: &PublishArguments,
        name: &RepositoryName,
        packed: &dyn Source,
        manifest: &Manifest,
        proof: &Proof,
    ) -> Result<Card> {
        let recorded = &manifest.source;
        let base_model = match &arguments.base_model {
            Some(base_model) => base_model.parse::<RepositoryName>()?.to_string(),
            None => recorded.name.parse::<RepositoryName>().map(|name| name.to_string()).map_err(|_| {
                let message = format!(
                    "the manifest calls the source `{}`, which is no name on the Hub for the card",
                    recorded.name
                );
                Usage::new(message).hint("give --base-model owner/name")
            })?,
        };
        let license =
            arguments.license.clone().or_else(|| proof.license.clone()).ok_or_else(|| {
                let message = "nothing at hand says under which licence this may be published";
                Usage::new(message)
                    .hint("give --license, with the source's licence as the Hub spells it")
            })?;
        if let Some(wrong) = [&license].into_iter().find(|text| !is_plain(text)) {
            let message = format!("`{wrong}` is no licence as the Hub spells them");
            return Err(Usage::new(message).hint("such as apache-2.0, gemma, other").into());
        }
        let revision = recorded.revision.as_ref().map_or_else(String::new, |at| format!("@{at}"));
        let weights = packed.files().iter().filter(|file| {
            [".safetensors", ".gguf"].iter().any(|ending| file.path.ends_with(ending))
        });
        Ok(Card {
            name: name.to_string(),
            source: format!("{base_model}{revision}"),
            base_model,
            license,
            layout: manifest.options.layout.clone(),
            scale_dtype: manifest.options.scale_dtype.clone(),
            towers: manifest.options.towers == "keep",
            w4pack_version: manifest.w4pack_version.clone(),
            files: weights.map(|file| (file.path.clone(), file.bytes)).collect(),
            predicate: proof.statement["predicate"].clone(),
        })
    }

    fn count(&self, path: &str) -> u64 {
        self.predicate.pointer(path).and_then(Value::as_u64).unwrap_or_default()
    }

    fn metadata(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let library = if self.layout == "gguf" { "gguf" } else { "transformers" };
        let task = if self.towers { "image-text-to-text" } else { "text-generation" };
        writeln!(out, "---\nlicense: {}\nbase_model: {}", self.license, self.base_model)?;
        writeln!(
            out,
            "base_model_relation: quantized\nlibrary_name: {library}\npipeline_tag: {task}"
        )?;
        writeln!(out, "tags:\n- w4pack\n- w4a16\n- 4-bit")?;
        let format = if self.layout == "gguf" { "- gguf" } else { "- compressed-tensors" };
        writeln!(out, "{format}\n---")
    }

    fn sizes(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "| file | bytes | GiB |\n|---|---:|---:|")?;
        for (path, bytes) in &self.files {
            writeln!(out, "| `{path}` | {bytes} | {:.2} |", *bytes as f64 / f64::from(1 << 30))?;
        }
        Ok(())
    }

    /// How each reader takes it, marked by what was tested of the line.
    fn running(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        writeln!(
            out,
            "## How to run it\n\n\
             What \"tested\" means is said with each: the lines were tried with a small model of the \
             same layout, not with this one.\n\n\
             **w4pack** (tested: run)\n\n\
             ```sh\nw4pack run --model {name} --prompt \"Why is the sky blue?\"\n\
             w4pack serve --model {name}\n```\n"
        )?;
        if self.layout == "gguf" {
            return writeln!(
                out,
                "**llama.cpp** (tested: run, its engine through xllamacpp 2026.10.11549; this command \
                 itself was not)\n\n```sh\nllama-cli -m model-Q4_0.gguf -p \"Why is the sky blue?\"\n```"
            );
        }
        writeln!(
            out,
            "**transformers** 5.23 or newer with compressed-tensors (tested: run, transformers 5.24.0, \
             compressed-tensors 0.20.1, on a CPU)\n\n```python\n{}```\n",
            transformers_lines(name)
        )?;
        match self.layout.as_str() {
            "emb4" => writeln!(
                out,
                "**vLLM** 0.33 refuses a packed table that is the head too: for it, convert with \
                 `--layout emb4-untied`.\n"
            )?,
            _ => writeln!(
                out,
                "**vLLM** 0.33 (tested: loader only, its loading code on a CPU; nothing was generated; \
                 on cards without bf16 add `--dtype half`)\n\n```sh\nvllm serve {name}\n```\n"
            )?,
        }
        writeln!(
            out,
            "**llama.cpp** does not read this format; `w4pack convert {} --layout gguf` writes the same \
             codes as Q4_0.",
            self.source
        )
    }

    fn proof(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = self.predicate["verdict"].as_str().unwrap_or_default();
        writeln!(
            out,
            "## What was proved\n\n\
             `w4pack verify`, with arithmetic of its own, held every code, step and copied byte against \
             [`{base}`](https://huggingface.co/{base}){at}: **{verdict}**.\n\n| | |\n|---|---:|",
            base = self.base_model,
            at = self.predicate["source"]["revision"]
                .as_str()
                .map_or_else(String::new, |at| format!(" at commit `{at}`")),
        )?;
        let rows = [
            ("codes compared", self.count("/whole/elements")),
            ("codes that are not the source's", self.count("/whole/int4_codes_disagreeing")),
            ("groups of 32", self.count("/groups/all")),
            ("steps that are the best their dtype has", self.count("/groups/steps_canonical")),
            ("groups that give back all 32 values", self.count("/groups/steps_inside")),
            ("values that differ from the source's bf16", self.count("/whole/elements_differing")),
            ("bytes unaccounted for", self.count("/unaccounted")),
        ];
        for (what, number) in rows {
            writeln!(out, "| {what} | {number} |")?;
        }
        let worst = &self.predicate["whole"]["worst_diff_in_units_of_group_step"];
        writeln!(out, "| largest difference, in steps | {worst} |\n")?;
        writeln!(
            out,
            "`{STATEMENT_FILE}` is that proof as an in-toto statement, with the SHA-256 of every file; \
             `w4pack/manifest.json` has those of the source. To check it again:\n\n```sh\n\
             w4pack verify {name} --source {source}\n\
             w4pack audit {name} --source {source} --samples 10000   # a sample, nothing downloaded\n```",
            name = self.name,
            source = self.source,
        )
    }
}

/// The lines of the card for transformers; a test runs them.
fn transformers_lines(name: &str) -> String {
    format!(
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n\
         name = \"{name}\"\n\
         tokenizer = AutoTokenizer.from_pretrained(name)\n\
         model = AutoModelForCausalLM.from_pretrained(name, dtype=\"auto\")\n\
         chat = [{{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}}]\n\
         inputs = tokenizer.apply_chat_template(\n    \
             chat, add_generation_prompt=True, return_dict=True, return_tensors=\"pt\"\n)\n\
         answer = model.generate(**inputs, max_new_tokens=200, do_sample=False)\n\
         print(tokenizer.decode(answer[0, inputs[\"input_ids\"].shape[1]:], skip_special_tokens=True))\n"
    )
}

/// A word for YAML that needs no quotes.
fn is_plain(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    !text.is_empty() && text.chars().all(allowed)
}

impl fmt::Display for Card {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.metadata(out)?;
        let short = self.name.split('/').next_back().unwrap_or(&self.name);
        let what = match self.layout.as_str() {
            "gguf" => "one GGUF file of Q4_0 blocks".to_string(),
            _ => format!("compressed-tensors W4A16, groups of 32, {} steps", self.scale_dtype),
        };
        writeln!(
            out,
            "{CARD_MARK}\n\n# {short}\n\n\
             [`{base}`](https://huggingface.co/{base}), whose bf16 weights lie on a 4-bit grid, with \
             that grid recovered: {what} (layout `{layout}`{towers}). Nothing was quantized anew: the \
             codes are the ones it was trained with. Made by w4pack {version}.\n",
            base = self.base_model,
            layout = self.layout,
            towers = if self.towers { ", with the vision and audio towers" } else { ", text only" },
            version = self.w4pack_version,
        )?;
        self.sizes(out)?;
        writeln!(out)?;
        self.running(out)?;
        writeln!(out)?;
        self.proof(out)
    }
}
