//! Held answers: whatever a model chooses among the allowed tokens, the answer is of the form that was
//! asked for.

mod schemas;
mod walk;

use proptest::prelude::*;
use serde_json::{Value, json};
use w4pack_runtime::chat::{
    CallRules, ChatText, Choice, GrammarError, Output, SpecialTokens, ToolDeclaration, parse_output,
};
use w4pack_runtime::constraint::{Allowed, Constraint};

use crate::prompts::own_template;
use walk::{Ending, Walker};

const PROMPT: &str = "<bos><|turn>user\nx<turn|>\n<|turn>model\n";
const THINKING: &str =
    "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nx<turn|>\n<|turn>model\n";
const OPEN: &str =
    "<|turn>model\n<|tool_response>response:f{value:1}<tool_response|><|channel>thought\n";

thread_local! {
    /// One vocabulary for all cases.
    static TEXT: ChatText = own_template();
}

fn with_text<T>(run: impl FnOnce(&ChatText) -> T) -> T {
    TEXT.with(|text| run(text))
}

fn rules<'r>(tools: &'r [ToolDeclaration<'r>], choice: Choice<'r>) -> CallRules<'r> {
    CallRules { tools, choice, parallel: true, after_prompt: PROMPT }
}

fn tool<'r>(name: &'r str, parameters: &'r Value) -> ToolDeclaration<'r> {
    ToolDeclaration { name, parameters: Some(parameters), strict: true }
}

fn constraint(text: &ChatText, rules: &CallRules<'_>) -> Box<dyn Constraint> {
    let grammars = text.grammars().expect("grammars");
    grammars.calls(rules).expect("a grammar").expect("a constraint")
}

fn answer(text: &ChatText, prompt: &str, ids: &[u32]) -> (String, Output) {
    let written = text.tokenizer().decode(ids, SpecialTokens::Show).expect("text");
    let output = parse_output(prompt, &written);
    (written, output)
}

fn validate(schema: &Value, value: &Value) -> Result<(), String> {
    let validator = jsonschema::options().should_validate_formats(true).build(schema);
    let validator = validator.map_err(|error| format!("{error} in {schema}"))?;
    validator.validate(value).map_err(|error| format!("{error}: {value} against {schema}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Calls of random tools: always at least one, each parses, and its arguments validate.
    #[test]
    fn required_calls_parse_and_validate(
        first in schemas::object(), second in schemas::object(), seed: u64, wander in 0usize..60,
        prompt in prop::sample::select(vec![PROMPT, THINKING, OPEN]), parallel: bool,
    ) {
        with_text(|text| {
            let tools = [tool("first", &first), tool("first-and.second", &second)];
            let rules = CallRules { after_prompt: prompt, parallel, ..rules(&tools, Choice::Required) };
            let mut constraint = constraint(text, &rules);
            let ids = Walker::new(text, seed, wander).walk(&mut *constraint);
            let (written, output) = answer(text, prompt, &ids.ended());
            prop_assert_eq!(&output.content, &None, "{}", written);
            prop_assert!(!output.calls.is_empty(), "{}", written);
            prop_assert!(parallel || output.calls.len() == 1, "{}", written);
            for call in output.calls {
                let schema = if call.name == "first" { &first } else { &second };
                let arguments: Value = serde_json::from_str(&call.arguments).expect("JSON");
                prop_assert_eq!(validate(schema, &arguments), Ok(()), "{}", written);
            }
            Ok(())
        })?;
    }

    /// JSON of random schemas validates, and holds no more white space than it may.
    #[test]
    fn json_validates(schema in schemas::any(3), seed: u64, wander in 0usize..60) {
        with_text(|text| {
            let grammars = text.grammars().expect("grammars");
            let mut constraint = grammars.json_schema(&schema, PROMPT).expect("a grammar");
            let ids = Walker::new(text, seed, wander).walk(&mut *constraint);
            let (written, output) = answer(text, PROMPT, &ids.ended());
            let content = output.content.unwrap_or_default();
            let value: Value = serde_json::from_str(&content).map_err(|error| {
                let finding = format!("{error}: {written}");
                // JSON's numbers have no largest one, but this reader's have.
                match finding.starts_with("number out of range") {
                    true => TestCaseError::reject(finding),
                    false => TestCaseError::fail(finding),
                }
            })?;
            prop_assert_eq!(validate(&schema, &value), Ok(()), "{}", written);
            Ok(())
        })?;
    }
}

/// JSON, or calls, and never anything else; a tool that is not strict takes other arguments.
#[test]
fn json_or_calls_is_one_of_the_two() {
    with_text(|text| {
        let grammars = text.grammars().expect("grammars");
        let city = json!({"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"], "additionalProperties": false});
        let loose = ToolDeclaration { strict: false, ..tool("loose", &city) };
        let tools = [tool("strict", &city), loose];
        let (mut calls, mut json) = (0, 0);
        for seed in 0..60 {
            let prompt = [PROMPT, THINKING, OPEN][seed as usize % 3];
            let rules = CallRules { after_prompt: prompt, ..rules(&tools, Choice::Auto) };
            let mut constraint = grammars.json_or_calls(Some(&city), &rules).expect("a grammar");
            let ids = Walker::new(text, seed, 20).walk(&mut *constraint).ended();
            let (written, output) = answer(text, prompt, &ids);
            assert_eq!(output.calls.is_empty(), output.content.is_some(), "{written}");
            for call in output.calls {
                calls += 1;
                let arguments: Value = serde_json::from_str(&call.arguments).expect("JSON");
                let fits = validate(&city, &arguments).is_ok();
                assert!(arguments.is_object() && (fits || call.name == "loose"), "{written}");
            }
            if let Some(content) = output.content {
                json += 1;
                let value = serde_json::from_str(&content).expect(&written);
                assert_eq!(validate(&city, &value), Ok(()), "{written}");
            }
        }
        assert!(calls > 5 && json > 5, "{calls} calls, {json} times JSON");
    });
}

#[test]
fn a_json_object_is_an_object() {
    with_text(|text| {
        let grammars = text.grammars().expect("grammars");
        for seed in 0..20 {
            let mut constraint = grammars.json_object(PROMPT).expect("a grammar");
            let ids = Walker::new(text, seed, 40).walk(&mut *constraint).ended();
            let (written, output) = answer(text, PROMPT, &ids);
            let value: Value =
                serde_json::from_str(&output.content.expect("content")).expect(&written);
            assert!(value.is_object(), "{written}");
        }
    });
}

/// Where the model may think, it may do so before a held answer, and a thought that is open must end.
#[test]
fn a_thought_may_come_first() {
    with_text(|text| {
        let grammars = text.grammars().expect("grammars");
        let id = |token: &str| text.tokenizer().id(token).expect("a token");
        let begins = |prompt: &str| {
            let mut constraint = grammars.json_object(prompt).expect("a grammar");
            walk::allowed(&mut *constraint, 2304)
        };
        let (channel, channel_end) = (id("<|channel>"), id("<channel|>"));
        assert!(!begins(PROMPT).contains(&channel));
        assert!(begins(THINKING).contains(&channel) && begins(THINKING).contains(&id("{")));
        assert!(begins(OPEN).contains(&channel_end) && !begins(OPEN).contains(&channel));

        let mut constraint = grammars.json_object(THINKING).expect("a grammar");
        let thought = text.tokenizer().encode_prompt("<|channel>thought\nHm {\"a\".\n<channel|>");
        for id in thought.expect("ids") {
            assert!(walk::allowed(&mut *constraint, 2304).contains(&id));
            constraint.accept(id).expect("allowed");
        }
        let ids = Walker::new(text, 1, 0).walk(&mut *constraint).ended();
        let (written, output) = answer(text, THINKING, &ids);
        assert!(output.content.is_some_and(|content| content.starts_with('{')), "{written}");
    });
}

/// Only `named` may be called if it is named, and one call is one call.
#[test]
fn named_and_single_calls() {
    with_text(|text| {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let tools = [tool("a", &schema), tool("b", &schema)];
        for seed in 0..10 {
            let rules = CallRules { parallel: false, ..rules(&tools, Choice::Named("b")) };
            let mut constraint = constraint(text, &rules);
            let ids = Walker::new(text, seed, 30).walk(&mut *constraint).ended();
            let names: Vec<String> =
                answer(text, PROMPT, &ids).1.calls.into_iter().map(|call| call.name).collect();
            assert_eq!(names, ["b"]);
        }
        let several = (0..40).any(|seed| {
            let mut constraint = constraint(text, &rules(&tools, Choice::Required));
            let walker = Walker::new(text, seed, 30).without_stopping_early();
            let ids = walker.walk(&mut *constraint).ended();
            answer(text, PROMPT, &ids).1.calls.len() > 1
        });
        assert!(several, "several calls may come");
    });
}

/// With `auto`, the answer is free until a call begins; strict tools are held then.
#[test]
fn auto_holds_calls_of_strict_tools() {
    with_text(|text| {
        let schema = json!({"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]});
        let loose = ToolDeclaration { strict: false, ..tool("loose", &schema) };
        let grammars = text.grammars().expect("grammars");
        let none = grammars.calls(&rules(&[loose], Choice::Auto)).expect("no fault");
        assert!(none.is_none(), "nothing to enforce");

        let tools = [tool("strict", &schema), loose];
        let begin = text.tokenizer().encode_prompt("Let me look.<|tool_call>").expect("ids");
        for seed in 0..40 {
            let mut constraint = constraint(text, &rules(&tools, Choice::Auto));
            for &id in &begin {
                assert_eq!(constraint.next().expect("no fault"), Allowed::Anything);
                constraint.accept(id).expect("free");
            }
            let end = text.tokenizer().id("<tool_call|>").expect("a token");
            let mut ids = begin.clone();
            let walker = Walker::new(text, seed, 20).until(end);
            ids.extend(walker.walk(&mut *constraint).ended());
            assert_eq!(constraint.next().expect("no fault"), Allowed::Anything, "free again");
            let (written, output) = answer(text, PROMPT, &ids);
            assert_eq!(output.content.as_deref(), Some("Let me look."), "{written}");
            let [call] = output.calls.as_slice() else { panic!("{written}") };
            let arguments: Value = serde_json::from_str(&call.arguments).expect("JSON");
            assert!(call.name == "loose" || arguments == json!({"city": "Paris"}), "{written}");
        }

        // One call alone: behind it the answer ends.
        let rules = CallRules { parallel: false, ..rules(&tools, Choice::Auto) };
        let mut constraint = constraint(text, &rules);
        let call = "<|tool_call>call:strict{city:<|\"|>Paris<|\"|>}<tool_call|>";
        for id in text.tokenizer().encode_prompt(call).expect("ids") {
            constraint.next().expect("no fault");
            constraint.accept(id).expect("allowed");
        }
        assert_eq!(walk::allowed(&mut *constraint, 2304), [1, 50, 106]);
    });
}

/// In a thought nothing is a call.
#[test]
fn auto_leaves_thoughts_alone() {
    with_text(|text| {
        let schema = json!({"type": "object", "properties": {}});
        let tools = [tool("f", &schema)];
        let rules = CallRules { after_prompt: OPEN, ..rules(&tools, Choice::Auto) };
        let mut constraint = constraint(text, &rules);
        for id in text.tokenizer().encode_prompt("Hm <|tool_call>.<channel|>").expect("ids") {
            assert_eq!(constraint.next().expect("no fault"), Allowed::Anything);
            constraint.accept(id).expect("free");
        }
        constraint.accept(text.tokenizer().id("<|tool_call>").expect("a token")).expect("free");
        assert!(matches!(constraint.next().expect("no fault"), Allowed::Only(_)));
    });
}

#[test]
fn what_cannot_be_enforced_is_named() {
    with_text(|text| {
        let grammars = text.grammars().expect("grammars");
        let schema = json!({"type": "object", "properties": {
            "a": {"type": "array", "items": {"type": "string"}, "uniqueItems": true},
            "b": {"not": {"type": "null"}}, "c": {"type": "string", "format": "iri"},
            "d": {"allOf": [{"type": "string"}, {"minLength": 1}]}, "e": {"$ref": "#/properties/e"}}});
        let error = grammars.json_schema(&schema, PROMPT).err().expect("refused");
        let keywords = ["/properties/a/uniqueItems", "/properties/b/not", "/properties/c/format"];
        let keywords = keywords.map(str::to_owned).to_vec();
        assert_eq!(error, GrammarError::Unsupported { keywords });

        let tools = [tool("f", &schema)];
        let error = grammars.calls(&rules(&tools, Choice::Required)).err().expect("refused");
        let keywords = [
            "f: /properties/a/uniqueItems",
            "f: /properties/b/not",
            "f: /properties/c/format",
            "f: /properties/d/allOf",
            "f: /properties/e/$ref",
        ];
        let keywords = keywords.map(str::to_owned).to_vec();
        assert_eq!(error, GrammarError::Unsupported { keywords });

        let unknown = grammars.calls(&rules(&tools, Choice::Named("g"))).err();
        assert_eq!(unknown, Some(GrammarError::UnknownTool { name: "g".to_owned() }));
        let nothing = grammars.calls(&rules(&[], Choice::Required)).err();
        assert_eq!(nothing, Some(GrammarError::NoTools));
        for never in [
            json!(false),
            json!({"type": "integer", "minimum": 2, "maximum": 1}),
            json!({"type": "nonsense"}),
        ] {
            let error = grammars.json_schema(&never, PROMPT).err();
            assert!(matches!(error, Some(GrammarError::Schema { .. })), "{error:?}");
        }
    });
}

/// A thousand properties that may all be missing, as a call and as JSON; four thousand are refused. What
/// compiles them goes deep: the server gives it a stack of this size.
#[test]
fn large_objects_are_held_or_refused() {
    let work = || {
        with_text(|text| {
            let object = |count: usize| {
                let property = |number: usize| (format!("p{number}"), json!({"type": "string"}));
                let properties: serde_json::Map<String, Value> = (0..count).map(property).collect();
                json!({"type": "object", "properties": properties, "additionalProperties": false})
            };
            let grammars = text.grammars().expect("grammars");
            let thousand = object(1_000);
            let tools = [tool("f", &thousand)];
            let mut call = constraint(text, &rules(&tools, Choice::Required));
            let ids = Walker::new(text, 1, 30).walk(&mut *call).ended();
            let (written, output) = answer(text, PROMPT, &ids);
            let arguments: Value = serde_json::from_str(&output.calls[0].arguments).expect("JSON");
            assert_eq!(validate(&thousand, &arguments), Ok(()), "{written}");
            let mut held = grammars.json_schema(&thousand, PROMPT).expect("a grammar");
            Walker::new(text, 1, 30).walk(&mut *held).ended();

            let large = object(4_000);
            let error = grammars.calls(&rules(&[tool("f", &large)], Choice::Required)).err();
            assert!(matches!(error, Some(GrammarError::Schema { .. })), "{error:?}");
        });
    };
    let thread = std::thread::Builder::new().stack_size(32 << 20).spawn(work);
    thread.expect("a thread").join().expect("no fault");
}

/// White space runs are short, so that a held answer cannot drift off into them.
#[test]
fn white_space_is_bounded() {
    with_text(|text| {
        let grammars = text.grammars().expect("grammars");
        let space = text.tokenizer().encode_text(" ").expect("ids")[0];
        let line = text.tokenizer().encode_text("\n").expect("ids")[0];
        for (blank, most) in [(space, 1), (line, 1)] {
            let mut constraint = grammars.json_object(PROMPT).expect("a grammar");
            constraint.next().expect("no fault");
            constraint.accept(text.tokenizer().id("{").expect("a token")).expect("allowed");
            let mut written = 0;
            while walk::allowed(&mut *constraint, 2304).contains(&blank) {
                constraint.accept(blank).expect("allowed");
                written += 1;
            }
            assert_eq!(written, most);
        }
    });
}

/// An answer that was cut ends nowhere; the walker says so, and the parser gives it back as text.
#[test]
fn a_call_that_is_cut_is_content() {
    with_text(|text| {
        let schema =
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]});
        let tools = [tool("f", &schema)];
        let mut constraint = constraint(text, &rules(&tools, Choice::Required));
        let Ending::Cut(ids, _) = Walker::new(text, 3, 1000).at_most(12).walk(&mut *constraint)
        else {
            panic!("twelve random tokens end no string")
        };
        let (written, output) = answer(text, PROMPT, &ids);
        assert_eq!(output.content.as_deref(), Some(written.trim()));
        assert!(output.calls.is_empty());
    });
}
