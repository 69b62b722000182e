//! Gemma 4's real vocabulary. It takes a second and 400 MB to load, so one test does all that needs
//! it.

use std::io::Read;

use serde_json::json;
use w4pack_runtime::chat::{ChatTemplate, RenderRequest, SpecialTokens, Tokenizer};

use crate::references::{google_template, read, reference_folder};

#[test]
fn field_case_16_the_real_vocabulary() {
    let Some(folder) = reference_folder() else { return };
    let data = folder.join("data/gemma4-chat");
    let mut json = Vec::new();
    flate2::read::GzDecoder::new(read(&data.join("tokenizer.json.gz")).as_slice())
        .read_to_end(&mut json)
        .expect("a gzip file");
    let config = br#"{"bos_token": "<bos>", "add_bos_token": false}"#;
    let tokenizer = Tokenizer::from_bytes(&json, Some(config), Some(2)).expect("a tokenizer");

    // llama.cpp's vectors for this vocabulary.
    let inputs = String::from_utf8(read(&data.join("vectors.inp"))).expect("text");
    let outputs = String::from_utf8(read(&data.join("vectors.out"))).expect("text");
    let inputs: Vec<&str> = inputs.split("\n__ggml_vocab_test__\n").collect();
    let outputs: Vec<&str> = outputs.lines().collect();
    assert_eq!((inputs.len(), outputs.len()), (46, 46));
    for (text, line) in inputs.iter().zip(&outputs) {
        let expected: Vec<u32> =
            line.split_whitespace().map(|id| id.parse().expect("an id")).collect();
        let ids = tokenizer.encode_prompt(text).expect("ids");
        assert_eq!(ids, expected, "{text:?}");
        assert_eq!(tokenizer.decode(&ids, SpecialTokens::Show).expect("text"), *text);
    }

    // Long texts are cut before they are encoded, and give the ids that the whole gives.
    let whole = tokenizers::Tokenizer::from_bytes(&json).expect("a tokenizer");
    drop(json);
    let long = inputs.concat().replace('<', "‹").repeat(100);
    assert!(long.len() > 40_000);
    let expected = whole.encode_fast(long.as_str(), false).expect("ids");
    assert_eq!(tokenizer.encode_text(&long).expect("ids"), expected.get_ids());
    drop(whole);

    // Merges whose product is not in the vocabulary must not be applied.
    let names: [(&str, &[u32]); 3] =
        [(" Linus", &[9684, 605]), (" Hannes", &[640, 29109]), (" Schröder", &[204443])];
    for (name, ids) in names {
        assert_eq!(tokenizer.encode_prompt(name).expect("ids"), ids, "{name}");
    }

    // Control tokens of which tokenizer.json flags some special and some not; and HTML's tags, which
    // are text.
    let controls =
        ["<|turn>", "<turn|>", "<|tool_call>", "<|\"|>", "<|channel>", "<unused99>", "<|image|>"];
    for control in controls {
        let id = tokenizer.id(control).expect("a token");
        assert!(tokenizer.is_control(id), "{control}");
        assert_eq!(tokenizer.encode_prompt(control).expect("ids"), [id]);
        let typed = tokenizer.encode_text(control).expect("ids");
        assert!(!typed.iter().any(|id| tokenizer.is_control(*id)), "{control}: {typed:?}");
        assert_eq!(tokenizer.decode(&typed, SpecialTokens::Show).expect("text"), control);
    }
    for text in ["<table>", "</h1>", "\n\n", "  "] {
        let ids = tokenizer.encode_text(text).expect("ids");
        assert_eq!(ids.len(), 1, "{text}");
        assert!(!tokenizer.is_control(ids[0]), "{text}");
    }

    let template =
        ChatTemplate::load(Some(&google_template(&folder)), None, tokenizer.named_tokens())
            .expect("Google's template loads")
            .expect("there is a template");
    let messages = [json!({"role": "user", "content": "What is the weather in Paris right now?"})];
    let tools = [json!({"type": "function", "function": {
        "name": "get_weather", "description": "Current weather for a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }})];
    let request = RenderRequest {
        messages: &messages,
        tools: &tools,
        add_generation_prompt: true,
        ..RenderRequest::default()
    };
    let prompt = template.render(&request).expect("a prompt");
    let ids = tokenizer.encode_prompt(&prompt).expect("ids");
    assert_eq!(ids.len(), 65, "{prompt}");
    assert_eq!(ids.first().copied(), tokenizer.bos());
    let hidden = tokenizer.decode(&ids, SpecialTokens::Hide).expect("text");
    assert!(!hidden.contains("<|turn>") && hidden.contains("What is the weather"), "{hidden}");
}
