//! From a body to a checked [`CompletionRequest`].

use serde_json::{Map, Value};

use crate::server::error::ApiError;
use crate::server::fields::{Field, Fields};
use crate::server::known::{self, Endpoint};
use crate::server::settings;
use crate::server::wire::completions::{CompletionPrompt, CompletionRequest};

/// Most prompts of a request.
const MOST_PROMPTS: usize = 64;
/// Longest answer when nobody says otherwise: OpenAI's.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Reads a request. Returns it with the names of all fields there are.
pub fn read(
    body: &Map<String, Value>,
    vocabulary: usize,
) -> Result<(CompletionRequest, Vec<&'static str>), ApiError> {
    let mut fields = Fields::of_body(body);
    let model = fields.text("model")?.map(str::to_owned);
    let prompt = prompts(&fields.need("prompt")?, vocabulary)?;
    let max_tokens = settings::token_limit(&mut fields, "max_tokens")?;
    let stop = settings::stops(&mut fields)?;
    let n = settings::choices(&mut fields)?;
    let best_of = settings::token_limit(&mut fields, "best_of")?;
    if best_of.is_some_and(|best_of| best_of != n) {
        let message = "`best_of` other than `n` is not supported: every answer is returned";
        return Err(ApiError::unsupported("best_of", message));
    }
    let sampling = settings::sampling(&mut fields, vocabulary)?;
    let logprobs = settings::logprob_count(&mut fields, "logprobs")?;
    let (stream, stream_options) = settings::stream(&mut fields)?;
    known::take(&mut fields, Endpoint::Completions)?;
    let names = fields.finish()?;
    let request = CompletionRequest {
        model,
        prompt,
        max_tokens: max_tokens.unwrap_or(DEFAULT_MAX_TOKENS),
        stop,
        n,
        best_of,
        sampling,
        logprobs,
        stream,
        stream_options,
    };
    Ok((request, names))
}

/// A text, several texts, token ids, or several lists of them.
fn prompts(field: &Field<'_>, vocabulary: usize) -> Result<Vec<CompletionPrompt>, ApiError> {
    let expected = "a string, a list of strings, a list of token ids, or a list of such lists";
    let items = match field.value {
        Value::String(text) => return Ok(vec![CompletionPrompt::Text(text.clone())]),
        Value::Array(_) => field.list()?,
        _ => return Err(field.wrong(expected)),
    };
    let Some(first) = items.first() else { return Err(field.wrong("at least one prompt")) };
    if first.value.is_number() {
        return Ok(vec![CompletionPrompt::Ids(ids(&items, vocabulary)?)]);
    }
    if items.len() > MOST_PROMPTS {
        let message = format!("`prompt` holds {} prompts: at most {MOST_PROMPTS}", items.len());
        return Err(ApiError::conflict("prompt", message));
    }
    let prompt = |item: &Field<'_>| match item.value {
        Value::String(text) => Ok(CompletionPrompt::Text(text.clone())),
        Value::Array(_) => Ok(CompletionPrompt::Ids(ids(&item.list()?, vocabulary)?)),
        _ => Err(item.wrong("a string or a list of token ids")),
    };
    items.iter().map(prompt).collect()
}

/// Token ids, each one that the model has.
pub fn ids(items: &[Field<'_>], vocabulary: usize) -> Result<Vec<u32>, ApiError> {
    let largest = vocabulary as i64 - 1;
    items.iter().map(|item| Ok(item.integer(0..=largest)? as u32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(body: Value) -> Result<CompletionRequest, ApiError> {
        read(body.as_object().expect("an object"), 100).map(|(request, _)| request)
    }

    #[test]
    fn four_forms_of_prompts() {
        use CompletionPrompt::{Ids, Text};
        for (form, expected) in [
            (json!("a"), vec![Text("a".into())]),
            (json!(["a", "b"]), vec![Text("a".into()), Text("b".into())]),
            (json!([1, 99]), vec![Ids(vec![1, 99])]),
            (json!([[1], [2, 3]]), vec![Ids(vec![1]), Ids(vec![2, 3])]),
        ] {
            let read = request(json!({"prompt": form})).expect("it is sound");
            assert_eq!(read.prompt, expected);
            assert_eq!((read.max_tokens, read.n), (16, 1));
        }
        for faulty in
            [json!([]), json!(3), json!([100]), json!([1, "a"]), json!([[1], 2]), json!([-1])]
        {
            let error = request(json!({"prompt": faulty})).expect_err("it is faulty");
            assert!(error.body().to_string().contains("prompt"));
        }
    }

    #[test]
    fn what_is_not_done_is_refused_by_name() {
        for (name, value) in [("echo", json!(true)), ("suffix", json!("x")), ("best_of", json!(2))]
        {
            let mut body = json!({"prompt": "x"});
            body[name] = value;
            let error = request(body).expect_err("not done").body();
            assert_eq!(error["error"]["param"], name);
        }
        let body = json!({"prompt": "x", "echo": false, "suffix": "", "best_of": 1, "user": "u"});
        assert!(request(body).is_ok());
    }
}
