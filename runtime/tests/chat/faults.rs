//! Templates that are broken, foreign or old, and where a template is found.

use serde_json::{Value, json};
use w4pack_runtime::chat::{ChatError, ChatTemplate, RenderRequest, TemplateWarning};

use crate::references::{google_template, reference_folder};

const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                      {% endfor %}{{ tools | tojson if tools }}";

fn load(text: &str) -> Result<ChatTemplate, ChatError> {
    ChatTemplate::load(Some(text), None, &[]).map(|template| template.expect("there is a template"))
}

fn render(template: &ChatTemplate, messages: &[Value]) -> String {
    let request =
        RenderRequest { messages, add_generation_prompt: true, ..RenderRequest::default() };
    template.render(&request).expect("a prompt")
}

fn called_with_text() -> Vec<Value> {
    vec![
        json!({"role": "user", "content": "w?"}),
        json!({"role": "assistant", "content": "Let me look.", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"city\": \"Paris\"}"}}]}),
        json!({"role": "tool", "tool_call_id": "1", "content": "21 C"}),
    ]
}

/// Field case 7: the template in a file of its own, in the configuration as a text, as a list, or
/// nowhere.
#[test]
fn field_case_07_the_template_is_found_where_it_stands() {
    let user = [json!({"role": "user", "content": "hi"})];
    let tools = [json!({"type": "function"})];
    let config = |template: Value| json!({"chat_template": template}).to_string().into_bytes();
    let from = |file, config: &[u8]| ChatTemplate::load(file, Some(config), &[]);

    let one = config(json!("one {{ messages[0].content }}"));
    let template = from(None, &one).expect("loads").expect("is there");
    assert_eq!(render(&template, &user), "one hi");
    let template =
        from(Some("two {{ messages[0].content }}"), &one).expect("loads").expect("is there");
    assert_eq!(render(&template, &user), "two hi");

    let several = config(json!([
        {"name": "default", "template": "three {{ messages[0].content }}"},
        {"name": "tool_use", "template": "four {{ messages[0].content }}"},
    ]));
    let template = from(None, &several).expect("loads").expect("is there");
    assert_eq!(render(&template, &user), "three hi");
    let request = RenderRequest { messages: &user, tools: &tools, ..RenderRequest::default() };
    assert_eq!(template.render(&request).expect("a prompt"), "four hi");

    assert!(from(None, b"{}").expect("no template is no error").is_none());
    let error = from(None, &config(json!(3))).expect_err("a number is no template");
    assert!(error.to_string().contains("tokenizer_config.json"), "{error}");
}

/// Field case 17 with Google's template of 2026-07-09: the prompt is what Jinja2 makes of it, and
/// its fault is named.
#[test]
fn field_case_17_text_and_calls_before_a_tools_result() {
    let Some(folder) = reference_folder() else { return };
    let named = [("bos_token".to_owned(), "<bos>".to_owned())];
    let template = ChatTemplate::load(Some(&google_template(&folder)), None, &named)
        .expect("Google's template loads")
        .expect("there is a template");
    let prompt = "<bos><|turn>user\nw?<turn|>\n<|turn>model\n<|tool_call>call:f{city:<|\"|>Paris<|\"|>}<tool_call|>\
                  <|tool_response>response:f{value:<|\"|>21 C<|\"|>}<tool_response|>Let me look.<turn|>\n";
    assert_eq!(render(&template, &called_with_text()), prompt);
    let mut without_text = called_with_text();
    without_text[1]["content"] = Value::Null;
    assert!(render(&template, &without_text).ends_with("<tool_response|>"));
    // Only histories with text before the result are at fault, however that result is given.
    let faults: Vec<&str> = template
        .warnings()
        .iter()
        .map(|warning| match warning {
            TemplateWarning::NoModelTurnAfterTool { when, .. } => *when,
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(
        faults,
        [
            "after an assistant message with text and tool calls",
            "after an assistant message with text and tool_responses",
        ]
    );
}

/// A template of the older kind: results only as `tool_responses`, the turn closed behind them.
pub const OLD: &str = r#"{%- set ns = namespace(last=none) -%}
{{- bos_token -}}
{%- for message in messages -%}
    {%- set ns.last = none -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{- '<|turn>' + role + '\n' -}}
    {%- for call in message.get('tool_calls') or [] -%}
        {{- '<|tool_call>call:' + call['function']['name'] + '{}<tool_call|>' -}}
    {%- endfor -%}
    {%- for response in message.get('tool_responses') or [] -%}
        {{- '<|tool_response>response:' + response['name'] | default('') + '{}<tool_response|>' -}}
        {%- set ns.last = 'tool_response' -%}
    {%- endfor -%}
    {%- if message['content'] is string -%}{{- message['content'] | trim -}}{%- endif -%}
    {{- '<turn|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt and ns.last != 'tool_response' -%}{{- '<|turn>model\n' -}}{%- endif -%}
"#;

#[test]
fn field_case_17_an_old_template_gets_a_warning_that_names_the_fault() {
    let template = load(OLD).expect("loads");
    let named = template.warnings().iter().any(|warning| {
        matches!(warning, TemplateWarning::NoModelTurnAfterTool { .. })
            && warning.to_string().contains("closes the turn after the tool's result")
    });
    assert!(named, "{:?}", template.warnings());
}

#[test]
fn an_unknown_filter_is_found_at_load_with_its_line() {
    let only_after_tools = format!(
        "{CHATML}\n{{%- for message in messages if message.role == 'tool' %}}\n\
         {{{{ message.content | fromjson }}}}{{% endfor %}}"
    );
    let error = load(&only_after_tools).expect_err("the filter does not exist");
    let text = error.to_string();
    assert!(text.contains("chat_template.jinja, line 5") && text.contains("fromjson"), "{text}");
    assert!(error.hint().is_some());
    let syntax = load("{% if %}").expect_err("no template").to_string();
    assert!(syntax.contains("line 1"), "{syntax}");
    assert!(load("nothing of the messages").is_err());
}

#[test]
fn a_template_that_refuses_tools_loads_with_a_warning() {
    let text = format!(
        "{CHATML}{{% for message in messages if message.role == 'tool' %}}\
         {{{{ raise_exception('no tools here') }}}}{{% endfor %}}"
    );
    let template = load(&text).expect("loads");
    let warning = template.warnings().first().expect("a warning").to_string();
    assert!(warning.contains("no tools here") && warning.contains("line 3"), "{warning}");
    let request = RenderRequest { messages: &called_with_text(), ..RenderRequest::default() };
    match template.render(&request) {
        Err(ChatError::Refused { message, .. }) => assert_eq!(message, "no tools here"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn lost_tools_and_results_are_told() {
    let text =
        "{% for message in messages if message.role != 'tool' %}{{ message.content }}{% endfor %}";
    let template = load(text).expect("loads");
    let lost = |wanted: &TemplateWarning| template.warnings().contains(wanted);
    assert!(lost(&TemplateWarning::DropsTools { file: "chat_template.jinja".to_owned() }));
    assert!(lost(&TemplateWarning::DropsToolResults { file: "chat_template.jinja".to_owned() }));
}

#[test]
fn extra_values_reach_the_template_but_replace_nothing() {
    let template = load("{{ messages[0].content }} {{ mood }}").expect("loads");
    let messages = [json!({"role": "user", "content": "hi"})];
    let with = |extra: &Value| {
        let extra = extra.as_object().expect("an object");
        let request =
            RenderRequest { messages: &messages, extra: Some(extra), ..RenderRequest::default() };
        template.render(&request)
    };
    assert_eq!(with(&json!({"mood": "good"})).expect("a prompt"), "hi good");
    for name in ["messages", "tools", "enable_thinking", "raise_exception"] {
        let error = with(&json!({name: 1})).expect_err("not to be replaced").to_string();
        assert!(error.contains(name), "{error}");
    }
}
