//! What a model may write, sound or broken, whole or in pieces.

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::Value;
use w4pack_runtime::chat::{
    Output, OutputEvent, OutputParser, SpecialTokens, StreamDecoder, ToolCall, parse_output,
};

use crate::prompts::own_template;

const PROMPT: &str = "<bos><|turn>user\nx<turn|>\n<|turn>model\n";

fn call(name: &str, arguments: &str) -> ToolCall {
    ToolCall { name: name.to_owned(), arguments: arguments.to_owned() }
}

fn content(text: &str) -> Output {
    Output { content: Some(text.to_owned()), ..Output::default() }
}

/// Feeds `text` in pieces of these many characters, taken in turn.
fn in_pieces(prompt: &str, text: &str, sizes: &[usize]) -> Output {
    let mut parser = OutputParser::after_prompt(prompt);
    let mut output = Output::default();
    let mut characters = text.chars().peekable();
    let mut sizes = sizes.iter().cycle();
    while characters.peek().is_some() {
        let size = *sizes.next().expect("a cycle has no end");
        let piece: String = characters.by_ref().take(size).collect();
        output.extend(parser.push(&piece));
    }
    output.extend(parser.finish());
    output
}

#[test]
fn field_case_18_hyphens_braces_and_quotes_in_calls() {
    let text = "<|tool_call>call:manim-video{code:<|\"|>def f() { return \"}\" }<|\"|>,o:{a:[{b:1}],c:null}}<tool_call|>";
    let arguments = r#"{"code":"def f() { return \"}\" }","o":{"a":[{"b":1}],"c":null}}"#;
    let expected = Output { calls: vec![call("manim-video", arguments)], ..Output::default() };
    assert_eq!(parse_output(PROMPT, text), expected);
    assert_eq!(in_pieces(PROMPT, text, &[1]), expected);
}

#[test]
fn field_case_18_broken_markup_comes_back_as_content() {
    for broken in [
        "<|tool_call>call:f{a:<|\"|>x<tool_call|>",
        "<|tool_call>call:f{a:1",
        "<|tool_call>call:{a:1}<tool_call|>",
        "<|tool_call>f{}<tool_call|>",
        "<|tool_call>",
        "<|tool_call>call:f{a:1}}<tool_call|> and text",
        "<|channel>final\nx<channel|>",
        "<|channel>thou",
        "a <channel|> b",
    ] {
        assert_eq!(parse_output(PROMPT, broken), content(broken), "{broken}");
        assert_eq!(in_pieces(PROMPT, broken, &[1]), content(broken), "{broken}");
    }
}

#[test]
fn a_sound_call_behind_a_broken_one_is_kept() {
    let text = "<|tool_call>call:f{a:<|\"|>x}<tool_call|><|tool_call>call:g.h{}<tool_call|><turn|>";
    let expected = Output {
        content: Some("<|tool_call>call:f{a:<|\"|>x}<tool_call|>".to_owned()),
        calls: vec![call("g.h", "{}")],
        ..Output::default()
    };
    assert_eq!(parse_output(PROMPT, text), expected);
    let restarted = "<|tool_call>call:f{a:<|tool_call>call:g{}<tool_call|>";
    assert_eq!(parse_output(PROMPT, restarted).calls, [call("g", "{}")]);
}

#[test]
fn a_string_may_hold_any_marker_but_its_own() {
    let text = "<|tool_call>call:f{a:<|\"|><tool_call|><turn|><eos><|\"|>}<tool_call|>";
    assert_eq!(
        parse_output(PROMPT, text).calls,
        [call("f", r#"{"a":"<tool_call|><turn|><eos>"}"#)]
    );
}

#[test]
fn thought_text_and_calls_are_told_apart_and_stripped() {
    let text = "<|channel>thought\n Hm. \n<channel|>\nLet me look.\n<|tool_call>call:a{}<tool_call|>\n\
                <|tool_call>call:a{}<tool_call|><|tool_response>ignored";
    let expected = Output {
        reasoning: Some("Hm.".to_owned()),
        content: Some("Let me look.".to_owned()),
        calls: vec![call("a", "{}"), call("a", "{}")],
    };
    assert_eq!(parse_output(PROMPT, text), expected);
}

#[test]
fn a_thought_that_the_template_has_opened_goes_on() {
    let opened =
        "<|turn>model\n<|tool_response>response:f{value:1}<tool_response|><|channel>thought\n";
    let expected = Output {
        reasoning: Some("Hm.".to_owned()),
        content: Some("Yes.".to_owned()),
        ..Output::default()
    };
    assert_eq!(parse_output(opened, "Hm.\n<channel|>Yes.<turn|>"), expected);
    let closed = "<|turn>model\n<|channel>thought\n<channel|>";
    assert_eq!(parse_output(closed, "Yes."), content("Yes."));
}

#[test]
fn a_thought_that_is_cut_off_stays_a_thought() {
    let output = parse_output(PROMPT, "<|channel>thought\nI wonder <chan");
    assert_eq!(output.reasoning.as_deref(), Some("I wonder <chan"));
    assert_eq!(output.content, None);
}

#[test]
fn field_case_19_two_calls_of_one_function_stay_two() {
    let text = "<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>}<tool_call|>\
                <|tool_call>call:get_weather{city:<|\"|>Rome<|\"|>}<tool_call|><|tool_response>";
    let expected =
        [call("get_weather", r#"{"city":"Paris"}"#), call("get_weather", r#"{"city":"Rome"}"#)];
    assert_eq!(parse_output(PROMPT, text).calls, expected);
    assert_eq!(in_pieces(PROMPT, text, &[1]).calls, expected);
}

/// Field case 23 from ids to events: emoji of several code points, an accent, and a byte that never
/// becomes a character, in a thought, in a call and in the text.
#[test]
fn field_case_23_characters_that_come_byte_by_byte_stay_whole() {
    let tokenizer = own_template().tokenizer().clone();
    let byte = |byte: u8| tokenizer.id(&format!("<0x{byte:02X}>")).expect("a byte token");
    let emoji: Vec<u32> = "👩‍👩‍👧é".bytes().map(byte).collect();
    let encode = |text: &str| tokenizer.encode_prompt(text).expect("ids");
    let ids = [
        encode("<|channel>thought\n"),
        emoji.clone(),
        encode("\n<channel|>"),
        emoji.clone(),
        encode("<|tool_call>call:f{a:<|\"|>"),
        emoji.clone(),
        encode("<|\"|>}<tool_call|>"),
        emoji,
        vec![byte(0xF0)],
    ]
    .concat();
    let mut decoder = StreamDecoder::new(tokenizer.clone(), SpecialTokens::Show);
    let mut parser = OutputParser::after_prompt(PROMPT);
    let mut events: Vec<OutputEvent> =
        ids.iter().flat_map(|&id| parser.push(&decoder.push(id).expect("text"))).collect();
    assert!(events.iter().all(|event| !format!("{event:?}").contains('\u{FFFD}')), "{events:?}");
    events.extend(parser.push(&decoder.finish()));
    events.extend(parser.finish());
    let mut output = Output::default();
    output.extend(events);
    let expected = Output {
        reasoning: Some("👩‍👩‍👧é".to_owned()),
        content: Some("👩‍👩‍👧é👩‍👩‍👧é\u{FFFD}".to_owned()),
        calls: vec![call("f", r#"{"a":"👩‍👩‍👧é"}"#)],
    };
    assert_eq!(output, expected);
    let whole = tokenizer.decode(&ids, SpecialTokens::Show).expect("text");
    assert_eq!(parse_output(PROMPT, &whole), expected);
}

/// Ten thousand texts of random bytes, many of them those that markers are made of: no panic, the
/// same answer in one piece and character by character, and arguments that are JSON.
#[test]
fn random_bytes_are_survived_and_read_alike_in_any_pieces() {
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let likely = b"<|>{}[]:,\" \ncalltoourn_nsepeosh01-";
    let prompts = [PROMPT, "<|turn>model\n<|channel>thought\n", ""];
    let (mut called, mut begun) = (0, 0);
    for case in 0..10_000 {
        let length = random.next_u32() as usize % 120;
        let mut bytes: Vec<u8> = Vec::with_capacity(length + 32);
        while bytes.len() < length {
            match random.next_u32() % 16 {
                0 => bytes.push(random.next_u32() as u8),
                1 => bytes.extend(b"<|tool_call>call:f{a:"),
                2 => bytes.extend(b"}<tool_call|>"),
                3 => bytes.extend(b"<|\"|>"),
                4 => bytes.extend(b"<|channel>thought\n"),
                5 => bytes.extend(b"<channel|>"),
                6 => bytes.extend(b"<|tool_call>call:f{a:1}<tool_call|>"),
                _ => bytes.push(likely[random.next_u32() as usize % likely.len()]),
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        let prompt = prompts[case % prompts.len()];
        let output = parse_output(prompt, &text);
        assert_eq!(in_pieces(prompt, &text, &[1]), output, "{text:?}");
        for call in &output.calls {
            let arguments: Value = serde_json::from_str(&call.arguments).expect("JSON");
            assert!(arguments.is_object());
        }
        called += output.calls.len();
        begun += usize::from(text.contains("<|tool_call>call:"));
    }
    assert!(called > 50 && begun > 1000, "{called} calls, {begun} begun: the texts are too tame");
}

/// A value as Gemma writes it.
fn written(value: &Value) -> String {
    let list = |items: Vec<String>| items.join(",");
    match value {
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        Value::Array(items) => format!("[{}]", list(items.iter().map(written).collect())),
        Value::Object(fields) => {
            let pair = |(key, value): (&String, &Value)| format!("{key}:{}", written(value));
            format!("{{{}}}", list(fields.iter().map(pair).collect()))
        }
        other => other.to_string(),
    }
}

/// Any value whose strings hold whatever is not the quotation token.
fn value() -> impl Strategy<Value = Value> {
    let text = proptest::sample::select(vec![
        "",
        "x",
        "}",
        "{a:1}",
        "<tool_call|>",
        "<turn|>",
        "<eos>",
        "\"",
        "\\",
        "\n",
        "a,b:[c]",
        "é👩",
        "<|\"|",
        "|>",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        proptest::collection::vec(text, 0..4)
            .prop_map(|pieces| pieces.concat())
            .prop_filter("no quotation token", |text| !text.contains("<|\"|>"))
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            object(inner),
        ]
    })
}

fn object(values: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    proptest::collection::btree_map("[a-z][a-z_.-]{0,5}", values, 0..4)
        .prop_map(|fields| Value::Object(fields.into_iter().collect()))
}

/// A part of an answer.
#[derive(Debug, Clone)]
enum Part {
    Text(String),
    Call(String, Value),
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        "[a-z .,{}:\n|>é]{0,12}".prop_map(Part::Text),
        ("[a-zA-Z_][a-zA-Z0-9_.-]{0,8}", object(value()))
            .prop_map(|(name, value)| Part::Call(name, value)),
    ]
}

/// Tokens that meet in answers, and some that should not.
fn soup() -> impl Strategy<Value = String> {
    let token = proptest::sample::select(vec![
        "<|channel>",
        "thought\n",
        "<channel|>",
        "<|tool_call>",
        "call:",
        "get-x.y",
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "<|\"|>",
        "\"",
        "a",
        "1",
        "-",
        "true",
        " ",
        "\n",
        "é",
        "👩",
        "<",
        "<|",
        "|>",
        "<tool_call|>",
        "<|tool_call>call:f{",
        "}<tool_call|>",
        "<|turn>model\n",
    ]);
    let end = proptest::sample::select(vec!["", "", "<turn|>", "<|tool_response>", "<eos>", "<eo"]);
    (proptest::collection::vec(token, 0..60), end).prop_map(|(tokens, end)| tokens.concat() + end)
}

proptest! {
    /// Nothing leaks from one part of an answer into another, however it is cut.
    #[test]
    fn an_answer_comes_apart_as_it_was_put_together(
        thought in proptest::option::of("[a-z <|{}é]{0,12}"), parts in proptest::collection::vec(part(), 0..6),
        end in proptest::sample::select(vec!["", "<turn|>", "<|tool_response>", "<eos>"]),
        sizes in proptest::collection::vec(1usize..9, 1..4),
    ) {
        let stripped = |text: String| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let (mut text, mut content, mut calls) = (String::new(), String::new(), Vec::new());
        if let Some(thought) = &thought {
            text += &format!("<|channel>thought\n{thought}\n<channel|>");
        }
        for part in parts {
            match part {
                Part::Text(plain) => {
                    text += &plain;
                    content += &plain;
                }
                Part::Call(name, arguments) => {
                    text += &format!("<|tool_call>call:{name}{}<tool_call|>", written(&arguments));
                    calls.push(call(&name, &arguments.to_string()));
                }
            }
        }
        text += end;
        let expected = Output { reasoning: thought.and_then(stripped), content: stripped(content), calls };
        prop_assert_eq!(&parse_output(PROMPT, &text), &expected, "{}", text);
        prop_assert_eq!(&in_pieces(PROMPT, &text, &sizes), &expected);
        prop_assert_eq!(&in_pieces(PROMPT, &text, &[1]), &expected);
    }

    #[test]
    fn any_pieces_give_the_same_answer(text in soup(), sizes in proptest::collection::vec(1usize..9, 1..6)) {
        prop_assert_eq!(in_pieces(PROMPT, &text, &sizes), parse_output(PROMPT, &text));
    }

    #[test]
    fn arguments_are_always_an_object(text in soup()) {
        for call in parse_output(PROMPT, &text).calls {
            let arguments: serde_json::Value = serde_json::from_str(&call.arguments).expect("JSON");
            prop_assert!(arguments.is_object());
            prop_assert!(!call.name.is_empty());
        }
    }

    /// Without a thought and calls, an answer is its stripped text up to the end marker.
    #[test]
    fn plain_text_passes_through(text in "[a-z<|> \n]{0,40}") {
        prop_assume!(!text.contains("<eos>"));
        let expected = Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let output = parse_output(PROMPT, &(text + "<turn|> rest"));
        prop_assert_eq!(output.content, expected);
        prop_assert!(output.calls.is_empty());
    }

    #[test]
    fn any_bytes_in_any_prompt_are_survived(prompt: String, text: String) {
        parse_output(&prompt, &text);
    }
}
