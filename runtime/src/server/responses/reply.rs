//! The answer as one object, and the items of its output.

use serde_json::{Value, json};

use crate::chat::ToolCall;
use crate::sampling::Sampling;
use crate::server::answer::Finish;
use crate::server::ask::Answers;
use crate::server::error::ApiError;
use crate::server::shared::{fresh_name, unix_time};
use crate::server::wire::TokenLogprob;
use crate::server::wire::chat::{ResponseFormat, ToolChoice};
use crate::server::wire::responses::{ResponsesReply, ResponsesRequest, ResponsesUsage};

/// The object before anything has come.
pub fn begun(request: &ResponsesRequest, model: String, sampling: &Sampling) -> ResponsesReply {
    let format = match &request.text {
        ResponseFormat::Text => json!({"type": "text"}),
        ResponseFormat::JsonObject => json!({"type": "json_object"}),
        ResponseFormat::JsonSchema(schema) => {
            json!({"type": "json_schema", "name": "schema", "schema": schema, "strict": true})
        }
    };
    let tool_choice = match &request.tool_choice {
        ToolChoice::None => "none".into(),
        ToolChoice::Auto => "auto".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Named(name) => json!({"type": "function", "name": name}),
    };
    // In this API a tool is flat.
    let flat = |tool: &Value| {
        let mut tool = tool["function"].clone();
        tool["type"] = "function".into();
        tool
    };
    ResponsesReply {
        id: fresh_name("resp_"),
        object: "response",
        created_at: unix_time(),
        status: "in_progress",
        error: None,
        incomplete_details: None,
        instructions: request.instructions.clone(),
        max_output_tokens: request.max_output_tokens,
        metadata: request.metadata.clone(),
        model,
        output: Vec::new(),
        parallel_tool_calls: request.parallel_tool_calls,
        previous_response_id: None,
        reasoning: json!({"effort": request.reasoning, "summary": null}),
        store: false,
        temperature: sampling.temperature,
        text: json!({"format": format}),
        tool_choice,
        tools: request.tools.iter().map(flat).collect(),
        top_p: sampling.top_p,
        truncation: "disabled",
        usage: None,
    }
}

/// The object at the end.
pub fn ended(reply: &mut ResponsesReply, finish: Finish, output: Vec<Value>, answers: &Answers) {
    reply.output = output;
    reply.status = "completed";
    if finish == Finish::Length {
        reply.status = "incomplete";
        reply.incomplete_details = Some(json!({"reason": "max_output_tokens"}));
    }
    let usage = answers.usage();
    reply.usage = Some(ResponsesUsage {
        input_tokens: usage.prompt_tokens,
        input_tokens_details: usage.prompt_tokens_details,
        output_tokens: usage.completion_tokens,
        output_tokens_details: usage.completion_tokens_details,
        total_tokens: usage.total_tokens,
    });
}

/// The object of an answer that cannot go on.
pub fn failed(reply: &mut ResponsesReply, output: Vec<Value>, error: &ApiError) {
    reply.output = output;
    reply.status = "failed";
    let message = error.body()["error"]["message"].clone();
    reply.error = Some(json!({"code": "server_error", "message": message}));
}

/// A thought.
pub fn reasoning(id: &str, text: Option<&str>, status: &str) -> Value {
    let content: Vec<Value> = text.map(reasoning_part).into_iter().collect();
    json!({"id": id, "type": "reasoning", "summary": [], "content": content, "status": status})
}

/// Its text.
pub fn reasoning_part(text: &str) -> Value {
    json!({"type": "reasoning_text", "text": text})
}

/// A text.
pub fn message(id: &str, part: Option<Value>, status: &str) -> Value {
    let content: Vec<Value> = part.into_iter().collect();
    json!({"id": id, "type": "message", "role": "assistant", "status": status, "content": content})
}

/// Its only part.
pub fn text_part(text: &str, logprobs: &[TokenLogprob]) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
}

/// A call.
pub fn call(id: &str, call_id: &str, call: &ToolCall, arguments: &str, status: &str) -> Value {
    json!({
        "id": id, "type": "function_call", "call_id": call_id, "name": call.name,
        "arguments": arguments, "status": status,
    })
}
