//! A model in this process.

use crate::answerer::{Answer, AnswerError, Answerer, Asked, Call, Reply};
use serde_json::Value;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use w4pack_runtime::chat::{
    ChatTemplate, RenderRequest, SpecialTokens, StreamDecoder, Tokenizer, parse_output,
};
use w4pack_runtime::{Engine, Request};

/// An engine with its tokenizer and chat template; it answers one request after another.
pub struct LocalAnswerer {
    engine: Mutex<Engine>,
    context: usize,
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    stop_ids: Vec<u32>,
    identity: Value,
}

impl LocalAnswerer {
    /// `stop_ids` end an answer; `identity` says which model this is, see [`Answerer::identity`].
    pub fn new(
        engine: Engine,
        tokenizer: Arc<Tokenizer>,
        template: ChatTemplate,
        stop_ids: Vec<u32>,
        identity: Value,
    ) -> Self {
        let context = engine.context();
        Self { engine: Mutex::new(engine), context, tokenizer, template, stop_ids, identity }
    }
}

impl Answerer for LocalAnswerer {
    fn identity(&self) -> Value {
        self.identity.clone()
    }

    fn concurrency(&self) -> usize {
        1
    }

    fn answer(&self, asked: &Asked<'_>) -> Result<Reply, AnswerError> {
        let prompt = self.template.render(&RenderRequest {
            messages: asked.messages,
            tools: asked.tools,
            enable_thinking: asked.thinking,
            add_generation_prompt: true,
            extra: None,
        })?;
        let ids = self.tokenizer.encode_prompt(&prompt)?;
        // As servers do: an answer may be cut by the end of the context, a prompt may not.
        let room = self.context.saturating_sub(ids.len()).max(1);
        let request = Request {
            max_tokens: Some(asked.max_tokens.min(room)),
            prompt: ids,
            stop_ids: self.stop_ids.clone(),
            ignore_eos: false,
            sampling: asked.sampling,
            logits: false,
        };
        let mut engine = self.engine.lock().map_err(|_| AnswerError::Broken)?;
        let generation = engine.generate(&request, &mut |_| ControlFlow::Continue(()))?;
        let output = parse_output(&prompt, &self.text(&generation.tokens));
        let calls = output.calls.into_iter();
        let answer = Answer {
            reasoning: output.reasoning,
            content: output.content,
            calls: calls.map(|call| Call::from_text(call.name, &call.arguments)).collect(),
            finish_reason: Some(generation.finish_reason.name().to_owned()),
        };
        Ok(Reply {
            answer,
            prompt_tokens: Some(generation.prompt_tokens as u64),
            completion_tokens: Some(generation.tokens.len() as u64),
        })
    }
}

impl LocalAnswerer {
    /// The text of an answer, control tokens shown. An id that tokenizer.json has no text for
    /// (random weights choose such) becomes U+FFFD, so that it stays visible in the record.
    fn text(&self, ids: &[u32]) -> String {
        let mut decoder = StreamDecoder::new(self.tokenizer.clone(), SpecialTokens::Show);
        let mut text = String::new();
        for &id in ids {
            let piece = decoder.push(id);
            text.push_str(&piece.unwrap_or_else(|_| char::REPLACEMENT_CHARACTER.to_string()));
        }
        text + &decoder.finish()
    }
}
