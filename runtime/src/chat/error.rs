//! What can go wrong between text and ids.

/// What kind of fault a part of a conversation has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Something that must be there is not.
    Missing,
    /// A field that nobody knows.
    Unknown,
    /// Something known that is not done.
    Unsupported,
    /// Anything else that it must not be.
    Value,
}

/// An error of the chat rooms. Its text names the file, says what was tried and what was found.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// `tokenizer.json` cannot be read as a tokenizer.
    #[error("cannot read the tokenizer in {file}: {finding}")]
    Tokenizer {
        /// The file.
        file: String,
        /// What its reader said.
        finding: String,
    },
    /// The tokenizer is well-formed, but not of Gemma's kind.
    #[error("{file}: {part} is not Gemma's: expected {expected}, found {found}")]
    ForeignTokenizer {
        /// The file.
        file: String,
        /// The part that differs.
        part: &'static str,
        /// What Gemma's tokenizer has there.
        expected: &'static str,
        /// What this file has there.
        found: String,
    },
    /// A JSON file beside the weights cannot be read, or one of its fields has another shape.
    #[error("{file}: {finding}")]
    Json {
        /// The file.
        file: String,
        /// What is wrong.
        finding: String,
    },
    /// A token that another file names is not in the vocabulary.
    #[error("{named_in} names the token {token}, which is not in {file}")]
    MissingToken {
        /// The tokenizer's file.
        file: String,
        /// The token's text or id.
        token: String,
        /// The file that names it.
        named_in: String,
    },
    /// A raw prompt needs `<bos>` in front, and no file says which token that is.
    #[error(
        "no beginning-of-sequence token: neither tokenizer_config.json nor config.json names one"
    )]
    NoBeginning,
    /// Encoding failed inside the tokenizer.
    #[error("cannot encode text with {file}: {finding}")]
    Encode {
        /// The tokenizer's file.
        file: String,
        /// What the tokenizer said.
        finding: String,
    },
    /// A text with more tokens than it may have. How many more was not counted.
    #[error("the text has more than {most} tokens")]
    TooLong {
        /// Tokens it may have.
        most: usize,
    },
    /// A row of characters of which any two neighbours may be part of one token: only the row as a
    /// whole could be encoded.
    #[error(
        "{bytes} bytes of text stand in a row without a word's end, as if one character were \
         repeated: at most {most} are encoded"
    )]
    Uncut {
        /// Bytes in the row.
        bytes: usize,
        /// Bytes that may stand in one.
        most: usize,
    },
    /// An id without a token.
    #[error("token id {id} is not in {file}")]
    UnknownId {
        /// The tokenizer's file.
        file: String,
        /// The id.
        id: u32,
    },
    /// The template cannot be compiled, or uses something that does not exist.
    #[error("chat template {file}, line {line}: {finding}")]
    Template {
        /// The template's file.
        file: String,
        /// One-based line of the template's text.
        line: usize,
        /// What the template engine said.
        finding: String,
    },
    /// The template cannot render these messages.
    #[error("chat template {file}, line {line}, cannot render these messages: {finding}")]
    Rendering {
        /// The template's file.
        file: String,
        /// One-based line of the template's text.
        line: usize,
        /// What the template engine said.
        finding: String,
    },
    /// The template compiles, but cannot do its work.
    #[error("chat template {file} is of no use: {finding}")]
    UselessTemplate {
        /// The template's file.
        file: String,
        /// What it does wrong.
        finding: String,
    },
    /// The template itself refused these messages (`raise_exception`).
    #[error("chat template {file}, line {line}, refuses these messages: {message}")]
    Refused {
        /// The template's file.
        file: String,
        /// One-based line of the template's text.
        line: usize,
        /// The template's own words.
        message: String,
    },
    /// A message of the conversation has the wrong shape.
    #[error("messages[{message}]{path}: {finding}")]
    Message {
        /// Zero-based index of the message.
        message: usize,
        /// Where in the message, e.g. `.tool_calls[0].function.arguments`.
        path: String,
        /// What kind of fault it is.
        fault: Fault,
        /// What is wrong.
        finding: String,
    },
    /// The declaration of a tool has the wrong shape.
    #[error("tools[{tool}]{path}: {finding}")]
    Tool {
        /// Zero-based index of the tool.
        tool: usize,
        /// Where in the declaration, e.g. `.function.name`.
        path: String,
        /// What kind of fault it is.
        fault: Fault,
        /// What is wrong.
        finding: String,
    },
    /// A conversation was given to a model that has no template to write it with.
    #[error("the checkpoint has no chat template to write messages with")]
    NoTemplate,
    /// A template variable that a request may not set.
    #[error("the template variable {name} cannot be given as an extra value: {reason}")]
    ReservedVariable {
        /// The variable.
        name: String,
        /// Why.
        reason: &'static str,
    },
}

impl ChatError {
    /// The next step, where there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Template { .. } | Self::UselessTemplate { .. } => Some(
                "give the text with --raw, or take chat_template.jinja from the model's current \
                 revision"
                    .to_owned(),
            ),
            Self::Tokenizer { .. } | Self::ForeignTokenizer { .. } => Some(
                "copy tokenizer.json and tokenizer_config.json from the source model again, or \
                 give token ids with --tokens"
                    .to_owned(),
            ),
            Self::NoBeginning => {
                Some("give token ids with --tokens, beginning token included".to_owned())
            }
            Self::NoTemplate => Some(
                "give --raw to send text as it is, or take chat_template.jinja from the \
                      model's current revision"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}
