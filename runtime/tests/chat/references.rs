//! The tiny checkpoints' `chat.json`: rendered prompts, parsed answers and encoded texts from
//! transformers.

#[path = "../../../testing/conformance.rs"]
mod conformance_path;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use w4pack_runtime::chat::{
    ChatTemplate, Most, RenderRequest, SpecialTokens, StreamDecoder, Tokenizer, parse_output,
};

/// The folder of reference data, or `None` after saying that the test is skipped.
pub fn reference_folder() -> Option<PathBuf> {
    conformance_path::conformance("")
}

/// A file that must be there once the folder is named.
pub fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn google_template(folder: &Path) -> String {
    let bytes = read(&folder.join("data/gemma4-chat/chat_template.jinja"));
    String::from_utf8(bytes).expect("the template is text")
}

struct Set {
    tokenizer: std::sync::Arc<Tokenizer>,
    chat: Value,
}

fn sets(folder: &Path) -> Vec<Set> {
    ["tiny-a", "tiny-c"]
        .map(|name| {
            let set = folder.join("conformance").join(name);
            let json = read(&set.join("google/tokenizer.json"));
            let config = read(&set.join("google/tokenizer_config.json"));
            let tokenizer =
                Tokenizer::from_bytes(&json, Some(&config), Some(2)).expect("a tokenizer");
            let chat =
                serde_json::from_slice(&read(&set.join("reference/chat.json"))).expect("JSON");
            Set { tokenizer: tokenizer.into(), chat }
        })
        .into()
}

fn entries<'c>(chat: &'c Value, kind: &str) -> &'c Vec<Value> {
    chat[kind].as_array().expect("a list of entries")
}

fn text<'e>(entry: &'e Value, field: &str) -> &'e str {
    entry[field].as_str().expect("a text")
}

fn ids(entry: &Value) -> Vec<u32> {
    serde_json::from_value(entry["ids"].clone()).expect("ids")
}

/// Renders what a chat.json entry's `input` says.
fn render(template: &ChatTemplate, input: &Value) -> String {
    let empty = Vec::new();
    let mut extra = input.as_object().expect("an object").clone();
    for own in ["messages", "tools", "add_generation_prompt", "enable_thinking"] {
        extra.remove(own);
    }
    let request = RenderRequest {
        messages: input["messages"].as_array().expect("messages"),
        tools: input["tools"].as_array().unwrap_or(&empty),
        enable_thinking: input["enable_thinking"].as_bool(),
        add_generation_prompt: input["add_generation_prompt"].as_bool().unwrap_or(false),
        extra: Some(&extra),
    };
    template.render(&request).expect("the template renders")
}

#[test]
fn small_models_prompts_are_equal_in_text_and_ids() {
    let Some(folder) = reference_folder() else { return };
    for set in sets(&folder) {
        let named = set.tokenizer.named_tokens();
        let template = ChatTemplate::load(Some(&google_template(&folder)), None, named)
            .expect("Google's template loads")
            .expect("there is a template");
        let small = entries(&set.chat, "render").iter().filter(|entry| entry["family"] == "small");
        let mut count = 0;
        for entry in small {
            let prompt = render(&template, &entry["input"]);
            assert_eq!(prompt, text(entry, "text"), "{}", entry["name"]);
            let encoded = set.tokenizer.encode_prompt(&prompt).expect("ids");
            assert_eq!(encoded, ids(entry), "{}", entry["name"]);
            count += 1;
        }
        assert_eq!(count, 25);
    }
}

#[test]
fn large_models_prompts_encode_to_the_stored_ids() {
    let Some(folder) = reference_folder() else { return };
    for set in sets(&folder) {
        let large = entries(&set.chat, "render").iter().filter(|entry| entry["family"] == "large");
        let mut count = 0;
        for entry in large {
            let encoded = set.tokenizer.encode_prompt(text(entry, "text")).expect("ids");
            assert_eq!(encoded, ids(entry), "{}", entry["name"]);
            count += 1;
        }
        assert_eq!(count, 25);
    }
}

#[test]
fn answers_parse_as_transformers_parses_them() {
    let Some(folder) = reference_folder() else { return };
    for set in sets(&folder) {
        for entry in entries(&set.chat, "parse") {
            let output = parse_output(text(entry, "prompt_tail"), text(entry, "raw"));
            let mut message = Map::new();
            message.insert("role".to_owned(), "assistant".into());
            if let Some(reasoning) = output.reasoning {
                message.insert("reasoning_content".to_owned(), reasoning.into());
            }
            if let Some(content) = output.content {
                message.insert("content".to_owned(), content.into());
            }
            let calls: Vec<Value> = output
                .calls
                .iter()
                .map(|call| {
                    let arguments: Value = serde_json::from_str(&call.arguments).expect("JSON");
                    serde_json::json!({"type": "function",
                        "function": {"name": call.name, "arguments": arguments}})
                })
                .collect();
            if !calls.is_empty() {
                message.insert("tool_calls".to_owned(), calls.into());
            }
            assert_eq!(Value::Object(message), entry["expected"], "{}", entry["name"]);
        }
        assert_eq!(entries(&set.chat, "parse").len(), 7);
    }
}

#[test]
fn texts_become_ids_and_come_back_whole_or_streamed() {
    let Some(folder) = reference_folder() else { return };
    for set in sets(&folder) {
        for entry in entries(&set.chat, "tokenize") {
            let encoded = set.tokenizer.encode_prompt(text(entry, "text")).expect("ids");
            assert_eq!(encoded, ids(entry), "{}", entry["text"]);
            let decoded = set.tokenizer.decode(&encoded, SpecialTokens::Show).expect("text");
            assert_eq!(decoded, text(entry, "decoded"));
            let mut decoder = StreamDecoder::new(set.tokenizer.clone(), SpecialTokens::Show);
            let mut streamed: String =
                encoded.iter().map(|&id| decoder.push(id).expect("text")).collect();
            streamed += &decoder.finish();
            assert_eq!(streamed, decoded);
        }
        assert_eq!(entries(&set.chat, "tokenize").len(), 13);
        for (token, id) in set.chat["special_ids"].as_object().expect("an object") {
            assert_eq!(set.tokenizer.id(token).map(u64::from), id.as_u64(), "{token}");
        }
        assert_eq!(set.tokenizer.bos(), set.tokenizer.id("<bos>"));
        let raw = set.tokenizer.encode_raw("Hello.", Most::ANY).expect("ids");
        assert_eq!(raw, set.tokenizer.encode_prompt("<bos>Hello.").expect("ids"));
    }
}

/// Field case 23: emoji of several code points, an accent, and a byte that never becomes a
/// character.
#[test]
fn field_case_23_no_replacement_character_but_at_the_end() {
    let Some(folder) = reference_folder() else { return };
    for set in sets(&folder) {
        let byte = |byte: u8| set.tokenizer.id(&format!("<0x{byte:02X}>")).expect("a byte token");
        let mut tokens: Vec<u32> = "👩‍👩‍👧é".bytes().map(byte).collect();
        tokens.push(byte(0xF0));
        let mut decoder = StreamDecoder::new(set.tokenizer.clone(), SpecialTokens::Show);
        let mut pieces: Vec<String> =
            tokens.iter().map(|&id| decoder.push(id).expect("text")).collect();
        assert!(pieces.iter().all(|piece| !piece.contains('\u{FFFD}')), "{pieces:?}");
        pieces.push(decoder.finish());
        assert_eq!(pieces.concat(), "👩‍👩‍👧é\u{FFFD}");
        let whole = set.tokenizer.decode(&tokens, SpecialTokens::Show).expect("text");
        assert_eq!(pieces.concat(), whole);
    }
}
