//! Prompts of conversations: what users write stays text, and the model is always asked to go on.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use w4pack_runtime::chat::{
    ChatError, ChatTemplate, ChatText, Conversation, RenderRequest, SpecialTokens, TemplateWarning,
    Tokenizer,
};

use crate::faults::OLD;
use crate::references::{google_template, reference_folder};

const TOKENIZER: &[u8] = include_bytes!("../../../fixtures/trained/tokenizer.json");
const SETTINGS: &[u8] = include_bytes!("../../../fixtures/trained/tokenizer_config.json");
const TEMPLATE: &str = include_str!("../../../fixtures/trained/chat_template.jinja");

/// The small trained model's tokenizer, whose control tokens are Gemma's, with a template.
fn trained(template: &str) -> ChatText {
    let tokenizer = Tokenizer::from_bytes(TOKENIZER, Some(SETTINGS), Some(2)).expect("a tokenizer");
    let template = ChatTemplate::load(Some(template), None, tokenizer.named_tokens());
    ChatText::new(Arc::new(tokenizer), template.expect("a template"), vec![1, 106, 50], 2304)
}

pub fn own_template() -> ChatText {
    trained(TEMPLATE)
}

/// Both templates of Gemma's kind: our own, and Google's where it is at hand.
fn texts() -> Vec<ChatText> {
    let google = reference_folder().map(|folder| trained(&google_template(&folder)));
    std::iter::once(own_template()).chain(google).collect()
}

fn of(messages: &[Value]) -> Conversation<'_> {
    Conversation { messages, ..Conversation::default() }
}

/// The control tokens among ids, as text.
fn control(text: &ChatText, ids: &[u32]) -> Vec<String> {
    let tokenizer = text.tokenizer();
    ids.iter()
        .filter(|id| tokenizer.is_control(**id))
        .map(|id| tokenizer.token(*id).expect("a token"))
        .collect()
}

/// A conversation in which the same text stands in every place that a user can write in.
fn everywhere(user: &str) -> (Vec<Value>, Vec<Value>, Map<String, Value>) {
    let arguments = json!({user: user, "list": [user, {user: user}]});
    let messages = vec![
        json!({"role": "system", "content": user}),
        json!({"role": "user", "content": [{"type": "text", "text": user}, {"type": "text", "text": user}]}),
        json!({"role": "assistant", "content": user}),
        json!({"role": "user", "content": user}),
        json!({"role": "assistant", "content": user, "reasoning_content": user, "tool_calls": [
            {"id": user, "type": "function", "function": {"name": format!("f{user}"), "arguments": arguments.to_string()}}]}),
        json!({"role": "tool", "tool_call_id": user, "content": user}),
        json!({"role": "tool", "name": user, "content": [{"type": "text", "text": user}]}),
    ];
    let properties = json!({user: {"type": "string", "description": user, "enum": [user]},
                            "list": {"type": "array", "items": {"type": user, "title": user}}});
    let parameters = json!({"type": "object", "properties": properties, "required": [user]});
    let tools = vec![json!({"type": "function", "function": {
        "name": "f", "description": user, "parameters": parameters}})];
    let extra = json!({"mood": user}).as_object().expect("an object").clone();
    (messages, tools, extra)
}

/// Pieces of control tokens and what may stand around them.
fn hostile() -> impl Strategy<Value = String> {
    let piece = proptest::sample::select(vec![
        "<|turn>",
        "<turn|>",
        "<bos>",
        "<eos>",
        "<|tool_call>",
        "<tool_call|>",
        "<|\"|>",
        "<|channel>",
        "<channel|>",
        "<|tool>",
        "<tool|>",
        "<tool_response|>",
        "<|think|>",
        "<unused7>",
        "<pad>",
        "<",
        "<|",
        "|>",
        "turn|>",
        "<tu",
        "rn|>",
        "model\n",
        "thought\n",
        " ",
        "\n",
        "a",
        "é",
        "\u{FDD0}",
        "<\u{FDD0}",
    ]);
    proptest::collection::vec(piece, 1..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever is written into a conversation, the prompt's control tokens are those of the same
    /// conversation with a plain word in every place.
    #[test]
    fn no_text_of_a_user_becomes_a_control_token(user in hostile()) {
        // A template leaves out what is empty, and the assistant's thoughts are cut: only what
        // remains of them is compared.
        prop_assume!(!user.trim().is_empty() && !user.contains("<|channel>"));
        for text in texts() {
            let tokens = |user: &str| {
                let (messages, tools, extra) = everywhere(user);
                let conversation = Conversation {
                    messages: &messages, tools: &tools, enable_thinking: Some(true), extra: Some(&extra),
                };
                let prompt = text.prompt(&conversation).expect("a prompt");
                (control(&text, &prompt.ids), prompt)
            };
            // Keys that sort to the same places as the user's.
            let (plain, _) = tokens(if user.to_lowercase().as_str() < "list" { "a" } else { "z" });
            let (found, prompt) = tokens(&user);
            prop_assert_eq!(found, plain, "{}", prompt.text);
            // What the ids say is what the text says.
            let shown = text.tokenizer().decode(&prompt.ids, SpecialTokens::Show).expect("text");
            prop_assert_eq!(shown, prompt.text);
        }
    }

    /// A user's text comes back from the ids as it was.
    #[test]
    fn hostile_text_stays_whole(user in hostile()) {
        let text = own_template();
        let messages = [json!({"role": "user", "content": user})];
        let prompt = text.prompt(&of(&messages)).expect("a prompt");
        let expected = format!("<bos><|turn>user\n{}<turn|>\n<|turn>model\n", user.trim());
        prop_assert_eq!(&prompt.text, &expected);
        prop_assert_eq!(control(&text, &prompt.ids), ["<bos>", "<|turn>", "<turn|>", "<|turn>"]);
        let ids = text.tokenizer().encode_text(&user).expect("ids");
        prop_assert!(control(&text, &ids).is_empty());
        prop_assert_eq!(text.tokenizer().decode(&ids, SpecialTokens::Show).expect("text"), user);
    }

    /// Harmless text has the ids that it has in an unmarked prompt.
    #[test]
    fn harmless_text_is_encoded_as_ever(user in "[a-zA-Z0-9 <>|\"é{}:,\n.]{1,40}", other in "[a-z< >]{1,12}") {
        for text in texts() {
            let (mut messages, tools, _) = everywhere(&user);
            messages.push(json!({"role": "assistant", "content": other}));
            messages.push(json!({"role": "user", "content": other}));
            // The rendering below has neither the split messages nor the parsed ones of prompt().
            messages[4]["content"] = Value::Null;
            let tokenizer = text.tokenizer();
            let controls = |text: &str| {
                let ids = tokenizer.encode_prompt(text).expect("ids");
                ids.into_iter().any(|id| tokenizer.is_control(id))
            };
            prop_assume!(!controls(&user) && !controls(&other));
            let plain = text.template().expect("a template").render(&RenderRequest {
                messages: &messages, tools: &tools, add_generation_prompt: true, ..RenderRequest::default()
            }).expect("a prompt");
            let prompt = text.prompt(&Conversation { messages: &messages, tools: &tools, ..Conversation::default() });
            let prompt = prompt.expect("a prompt");
            prop_assert_eq!(&prompt.text, &plain);
            prop_assert_eq!(prompt.ids, tokenizer.encode_prompt(&plain).expect("ids"));
        }
    }
}

/// The tokenizers crate, told nothing, is the oracle for prompts and plain text.
#[test]
fn ids_are_those_of_the_tokenizers_crate() {
    let oracle = tokenizers::Tokenizer::from_bytes(TOKENIZER).expect("loads");
    let text = own_template();
    let (messages, tools, _) = everywhere("What's 17+25? é👩‍👩‍👧\n\n  <b>x</b>");
    let conversation =
        Conversation { messages: &messages, tools: &tools, ..Conversation::default() };
    let prompt = text.prompt(&conversation).expect("a prompt");
    let expected = oracle.encode_fast(prompt.text.as_str(), false).expect("ids");
    assert_eq!(prompt.ids, expected.get_ids());
}

/// A thought in the assistant's text is cut as the template would cut it.
#[test]
fn thoughts_of_earlier_answers_are_left_out() {
    let said = "one<|channel>thought\nsecret<channel|>, two <tu<|channel>thought\nx<channel|>rn|>";
    let messages = [
        json!({"role": "user", "content": "?"}),
        json!({"role": "assistant", "content": said}),
        json!({"role": "user", "content": "!"}),
    ];
    for text in texts() {
        let prompt = text.prompt(&of(&messages)).expect("a prompt");
        assert!(prompt.text.contains("<|turn>model\none, two <turn|><turn|>\n"), "{}", prompt.text);
        // The <turn|> that only the cut has put together is text.
        let turns =
            ["<bos>", "<|turn>", "<turn|>", "<|turn>", "<turn|>", "<|turn>", "<turn|>", "<|turn>"];
        assert_eq!(control(&text, &prompt.ids), turns);
    }
}

fn called_with_text() -> Vec<Value> {
    vec![
        json!({"role": "user", "content": "w?"}),
        json!({"role": "assistant", "content": "Let me look.", "reasoning_content": "Hm.", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"city\": \"Paris\"}"}}]}),
        json!({"role": "tool", "tool_call_id": "1", "content": "21 C"}),
    ]
}

/// Field case 17 with templates of Google's kind: the text stands where the model wrote it, and the
/// model goes on behind the result.
#[test]
fn field_case_17_the_model_goes_on_after_text_call_and_result() {
    let beginning = "<bos><|turn>user\nw?<turn|>\n<|turn>model\n<|channel>thought\nHm.\n<channel|>Let me look.\
                     <|tool_call>call:f{city:<|\"|>Paris<|\"|>}<tool_call|>\
                     <|tool_response>response:f{value:<|\"|>21 C<|\"|>}<tool_response|>";
    for text in texts() {
        let mut messages = called_with_text();
        assert_eq!(text.prompt(&of(&messages)).expect("a prompt").text, beginning);
        // The next turn begins with the same tokens, so they need not be read again.
        messages[1].as_object_mut().expect("an object").remove("reasoning_content");
        let first = text.prompt(&of(&messages)).expect("a prompt");
        messages.push(json!({"role": "assistant", "content": "It is 21 C."}));
        messages.push(json!({"role": "user", "content": "Thanks."}));
        let second = text.prompt(&of(&messages)).expect("a prompt");
        let expected = format!(
            "{}It is 21 C.<turn|>\n<|turn>user\nThanks.<turn|>\n<|turn>model\n",
            first.text
        );
        assert_eq!(second.text, expected);
        assert!(text.warnings().is_empty(), "what prompt() avoids is no warning of its own");
    }
}

/// Field case 17 with an older template: the fault is named when it is loaded, and the prompt asks
/// for an answer nevertheless.
#[test]
fn field_case_17_an_old_template_is_warned_about_and_still_asks() {
    let text = trained(OLD);
    assert!(text.warnings().iter().any(|warning| {
        matches!(warning, TemplateWarning::NoModelTurnAfterTool { .. })
            && warning.to_string().contains("closes the turn after the tool's result")
    }));
    let mut messages = called_with_text();
    messages.pop();
    messages[1]["tool_responses"] = json!([{"name": "f", "response": {"value": "21 C"}}]);
    let prompt = text.prompt(&of(&messages)).expect("a prompt").text;
    assert!(prompt.ends_with("<tool_response|><turn|>\n<|turn>model\n"), "{prompt}");
}

#[test]
fn a_model_without_a_template_says_so() {
    let text = own_template();
    let bare = ChatText::new(text.tokenizer().clone(), None, Vec::new(), 2304);
    let error = bare.prompt(&of(&[json!({"role": "user", "content": "x"})])).expect_err("refused");
    assert!(matches!(error, ChatError::NoTemplate) && error.hint().is_some());
}

#[test]
fn a_refusal_of_the_template_shows_the_users_words_as_they_were() {
    let text = trained(
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}\
                        {{ raise_exception(messages[0].content) if '!' in messages[0].content }}",
    );
    let error =
        text.prompt(&of(&[json!({"role": "user", "content": "<b>!"})])).expect_err("refused");
    assert!(error.to_string().ends_with("refuses these messages: <b>!"), "{error}");
}
