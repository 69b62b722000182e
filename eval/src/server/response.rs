//! What a server sends back.

use crate::answerer::{Answer, AnswerError, Call, Reply};
use serde_json::Value;

/// Takes a chat completion apart. Errors name the field.
pub fn parse(url: &str, text: &str) -> Result<Reply, AnswerError> {
    let wrong = |finding: String| AnswerError::Reply { url: url.to_owned(), finding };
    let reply: Value =
        serde_json::from_str(text).map_err(|error| wrong(format!("not JSON ({error})")))?;
    let choice = reply.pointer("/choices/0").ok_or_else(|| wrong("no choices[0]".into()))?;
    let message = choice
        .get("message")
        .filter(|message| message.is_object())
        .ok_or_else(|| wrong("no choices[0].message".into()))?;
    let count = |name| reply.pointer("/usage").and_then(|usage| usage.get(name)?.as_u64());
    // vLLM and llama-server say `reasoning_content`, newer ones `reasoning`.
    let reasoning = ["reasoning_content", "reasoning"]
        .iter()
        .find_map(|name| message.get(*name)?.as_str())
        .filter(|text| !text.is_empty());
    let answer = Answer {
        reasoning: reasoning.map(str::to_owned),
        content: content(message.get("content")).map_err(wrong)?,
        calls: calls(message.get("tool_calls")).map_err(wrong)?,
        finish_reason: choice.get("finish_reason").and_then(Value::as_str).map(str::to_owned),
    };
    Ok(Reply {
        answer,
        prompt_tokens: count("prompt_tokens"),
        completion_tokens: count("completion_tokens"),
    })
}

/// Text, or a list of parts of which each is a text.
fn content(value: Option<&Value>) -> Result<Option<String>, String> {
    let text = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts
            .iter()
            .map(|part| part.get("text").and_then(Value::as_str))
            .collect::<Option<String>>()
            .ok_or("a part of message.content is no text")?,
        Some(other) => return Err(format!("message.content is {other}")),
    };
    Ok(Some(text).filter(|text| !text.is_empty()))
}

fn calls(value: Option<&Value>) -> Result<Vec<Call>, String> {
    let list = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(format!("message.tool_calls is {other}")),
    };
    let call = |call: &Value| {
        let name = call.pointer("/function/name").and_then(Value::as_str);
        let name = name.ok_or_else(|| format!("a tool call without a name: {call}"))?.to_owned();
        Ok(match call.pointer("/function/arguments") {
            Some(Value::String(text)) => Call::from_text(name, text),
            // Some servers send the object itself.
            Some(arguments) => Call { name, arguments: arguments.clone() },
            None => Call { name, arguments: Value::Null },
        })
    };
    list.iter().map(call).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(message: Value) -> Result<Answer, AnswerError> {
        let reply = json!({"choices": [{"message": message, "finish_reason": "stop"}]});
        parse("u", &reply.to_string()).map(|reply| reply.answer)
    }

    #[test]
    fn content_reasoning_and_calls() {
        let got = answer(json!({"content": [{"type": "text", "text": "a"}, {"text": "b"}],
            "reasoning": "because", "tool_calls": [
                {"function": {"name": "f", "arguments": "{\"x\": 1}"}},
                {"function": {"name": "g", "arguments": {"y": 2}}},
                {"function": {"name": "h", "arguments": "{x: 1"}}]}))
        .expect("it is sound");
        assert_eq!(got.content.as_deref(), Some("ab"));
        assert_eq!(got.reasoning.as_deref(), Some("because"));
        let arguments: Vec<_> = got.calls.iter().map(|call| call.arguments.clone()).collect();
        assert_eq!(arguments, [json!({"x": 1}), json!({"y": 2}), json!("{x: 1")]);
        assert_eq!(answer(json!({"content": null})).expect("it is sound").content, None);
    }

    #[test]
    fn faults_are_named() {
        for (message, word) in [
            (json!({"content": 3}), "content"),
            (json!({"content": [{"image": 1}]}), "content"),
            (json!({"tool_calls": {}}), "tool_calls"),
            (json!({"tool_calls": [{}]}), "name"),
            (json!("text"), "message"),
        ] {
            let error = answer(message).expect_err("it is faulty").to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(parse("u", "<html>").expect_err("no JSON").to_string().contains("not JSON"));
    }
}
