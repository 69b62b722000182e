//! What a model may write, sound or broken, whole or in pieces.

use proptest::prelude::*;
use w4pack_runtime::chat::{Output, OutputParser, ToolCall, parse_output};

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
