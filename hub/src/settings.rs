//! What the environment says about the Hub, in the variables of Python's `huggingface_hub`.

use crate::{HubError, Result};
use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A token. It can be sent, and shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Errors: characters that no token has, and that would break a header.
    pub fn new(text: &str, from: &str) -> Result<Token> {
        let text = text.trim();
        if text.is_empty() || !text.chars().all(|c| c.is_ascii_graphic()) {
            return Err(HubError::Token { from: from.into() });
        }
        Ok(Token(text.into()))
    }

    /// For a header, and for nothing else.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token(…)")
    }
}

/// How often something is tried again, and for how long it is waited for.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    /// Tries in all, with no progress worth the name between them.
    pub tries: u32,
    /// The wait before the second; it doubles with each.
    pub first_wait: Duration,
    /// The longest wait that a server may ask for; beyond it the user is told.
    pub longest_wait: Duration,
    /// A connection that gives nothing, or hardly anything, in so much time is given up.
    pub silence: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Retry {
            tries: 5,
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(300),
            silence: Duration::from_secs(60),
        }
    }
}

/// Where the Hub is, who asks, and where its files are kept.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `https://huggingface.co`, without a slash at the end.
    pub endpoint: String,
    /// Sent to the endpoint, to no other host.
    pub token: Option<Token>,
    /// Whether reading goes without the token all the same.
    pub reads_without_token: bool,
    /// The folder with `models--owner--name`.
    pub cache: PathBuf,
    /// Open no connection.
    pub offline: bool,
    /// How often something is tried again.
    pub retry: Retry,
}

impl Settings {
    /// HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE,
    /// HF_HUB_DISABLE_IMPLICIT_TOKEN, with Python's defaults; `offline` is the flag.
    ///
    /// Errors: a token that is none; no home folder to keep files in.
    pub fn from_environment(offline: bool) -> Result<Settings> {
        let home = || -> Result<PathBuf> {
            if let Some(home) = variable("HF_HOME") {
                return Ok(home.into());
            }
            if let Some(cache) = variable("XDG_CACHE_HOME") {
                return Ok(Path::new(&cache).join("huggingface"));
            }
            let user = variable("HOME").ok_or(HubError::NoHome)?;
            Ok(Path::new(&user).join(".cache/huggingface"))
        };
        let cache = match variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE")) {
            Some(cache) => cache.into(),
            None => home()?.join("hub"),
        };
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        Ok(Settings {
            endpoint: endpoint.trim_end_matches('/').into(),
            token: token(home)?,
            reads_without_token: is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN"),
            cache,
            offline: offline || is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE"),
            retry: Retry::default(),
        })
    }
}

/// HF_TOKEN, else the file that `hf auth login` writes.
fn token(home: impl Fn() -> Result<PathBuf>) -> Result<Option<Token>> {
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        if let Some(text) = variable(name) {
            return Token::new(&text, name).map(Some);
        }
    }
    let path = match variable("HF_TOKEN_PATH") {
        Some(path) => PathBuf::from(path),
        // Without a home folder there is no such file.
        None => match home() {
            Ok(home) => home.join("token"),
            Err(_) => return Ok(None),
        },
    };
    match std::fs::read_to_string(&path) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => Token::new(&text, &path.display().to_string()).map(Some),
        Err(_) => Ok(None),
    }
}

/// A variable that says something.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.trim().is_empty())
}

fn is_true(name: &str) -> bool {
    variable(name).is_some_and(|value| {
        ["1", "on", "yes", "true"].contains(&value.trim().to_ascii_lowercase().as_str())
    })
}
