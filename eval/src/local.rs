//! A model in this process.

use crate::answerer::{Answer, AnswerError, Answerer, Asked, Call, Reply};
use serde_json::Value;
use std::ops::ControlFlow;
use std::sync::Mutex;
use w4pack_runtime::chat::{ChatText, Conversation, SpecialTokens, StreamDecoder, parse_output};
use w4pack_runtime::{Engine, Request};

/// An engine with its tokenizer and chat template; it answers one request after another.
pub struct LocalAnswerer {
    engine: Mutex<Engine>,
    context: usize,
    text: ChatText,
    identity: Value,
}

impl LocalAnswerer {
    /// `identity` says which model this is, see [`Answerer::identity`].
    pub fn new(engine: Engine, text: ChatText, identity: Value) -> Self {
        let context = engine.context();
        Self { engine: Mutex::new(engine), context, text, identity }
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
        let prompt = self.text.prompt(&Conversation {
            messages: asked.messages,
            tools: asked.tools,
            enable_thinking: asked.thinking,
            extra: None,
        })?;
        // As servers do: an answer may be cut by the end of the context, a prompt may not.
        let room = self.context.saturating_sub(prompt.ids.len()).max(1);
        let request = Request {
            max_tokens: Some(asked.max_tokens.min(room)),
            prompt: prompt.ids,
            stop_ids: self.text.stop_ids().to_vec(),
            ignore_eos: false,
            sampling: asked.sampling,
            logits: false,
        };
        let mut engine = self.engine.lock().map_err(|_| AnswerError::Broken)?;
        let generation = engine.generate(&request, &mut |_| ControlFlow::Continue(()))?;
        let output = parse_output(&prompt.text, &self.decode(&generation.tokens));
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
    fn decode(&self, ids: &[u32]) -> String {
        let mut decoder = StreamDecoder::new(self.text.tokenizer().clone(), SpecialTokens::Show);
        let mut text = String::new();
        for &id in ids {
            let piece = decoder.push(id);
            text.push_str(&piece.unwrap_or_else(|_| char::REPLACEMENT_CHARACTER.to_string()));
        }
        text + &decoder.finish()
    }
}
