//! Why an answer cannot be held to a form.

/// An error of the grammars. Its text says what was asked for and what was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// A schema asks for what is not enforced; nothing of it would be ignored.
    #[error("the schema uses keywords that cannot be enforced here: {}", keywords.join(", "))]
    Unsupported {
        /// JSON pointers to the keywords; for tools, the tool's name and a colon stand before.
        keywords: Vec<String>,
    },
    /// It is no schema, nothing can match it, or it is too large.
    #[error("the schema cannot be used: {finding}")]
    Schema {
        /// What is wrong, and where.
        finding: String,
    },
    /// The parameters of one tool.
    #[error("{error}")]
    Tool {
        /// Its number among the declared ones, from 0.
        tool: usize,
        /// What is wrong with them.
        error: Box<GrammarError>,
    },
    /// The choice names a tool that is not declared.
    #[error("the tool {name:?} is not among the declared tools")]
    UnknownTool {
        /// The name.
        name: String,
    },
    /// A call is demanded, but no tool is declared.
    #[error("a tool call is required, but no tools are declared")]
    NoTools,
    /// The tokenizer has no such token, so the model cannot write calls.
    #[error("tokenizer.json has no token {token}, which tool calls are written with")]
    MissingToken {
        /// The token.
        token: &'static str,
    },
    /// No token could end an answer.
    #[error("no stop id is in the vocabulary, so a held answer could never end")]
    NoStop,
}
