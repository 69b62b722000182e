//! What can go wrong between here and the Hub, each with the next step. No message holds a token or a
//! signed address.

use std::io;

/// Result of this crate.
pub type Result<T, E = HubError> = std::result::Result<T, E>;

/// The Hub said no, or could not be heard.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// What the user typed.
    #[error("`{text}` does not name anything on the Hub: {problem}")]
    Name {
        /// As typed.
        text: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Something that stands where a token should.
    #[error("what {from} holds is no token")]
    Token {
        /// The variable or file.
        from: String,
    },
    /// HOME is not set, nor anything that would do instead.
    #[error("there is no folder to keep the Hub's files in: HOME is not set")]
    NoHome,
    /// No connection may be opened, and the cache does not have it.
    #[error(
        "`{name}` (revision {revision}) is not in the local Hub cache `{cache}`, and this is offline"
    )]
    NotCached {
        /// `owner/name`.
        name: String,
        /// Branch, tag or commit.
        revision: String,
        /// The folder.
        cache: String,
    },
    /// No connection may be opened for what can be done over one only.
    #[error("could not {attempt}: this is offline")]
    Offline {
        /// What was tried.
        attempt: String,
    },
    /// Nobody answered, or not to the end.
    #[error("could not {attempt}: {host} {finding}")]
    Network {
        /// What was tried.
        attempt: String,
        /// Host and port.
        host: String,
        /// What was found.
        finding: String,
    },
    /// 401: the token is wrong, or there is none where one is needed.
    #[error("could not {attempt}: {}", if *.with_token {
        "the Hub does not accept this token (401)"
    } else {
        "the Hub shows it to nobody without a token (401): it is private, or not there at all"
    })]
    Unauthorized {
        /// What was tried.
        attempt: String,
        /// Whether one was sent.
        with_token: bool,
    },
    /// Terms that must be accepted first.
    #[error("could not {attempt}: the repository is gated, and {} ({status})", if *.with_token {
        "the account of this token has no access"
    } else {
        "no token was sent"
    })]
    Gated {
        /// What was tried.
        attempt: String,
        /// Its page.
        page: String,
        /// Whether a token was sent.
        with_token: bool,
        /// 401 or 403.
        status: u16,
    },
    /// 403.
    #[error("could not {attempt}: the token has no right to do so (403): {message}")]
    Forbidden {
        /// What was tried.
        attempt: String,
        /// The Hub's words.
        message: String,
    },
    /// 404.
    #[error("could not {attempt}: {}", match .what {
        Missing::Repository => "there is no such repository, or not for this token (404)",
        Missing::Revision => "it has no such branch, tag or commit (404)",
        Missing::File => "the repository has no such file at this commit (404)",
    })]
    NotFound {
        /// What was tried.
        attempt: String,
        /// What is not there.
        what: Missing,
    },
    /// 429, and a wait that is longer than one would sit through.
    #[error("could not {attempt}: too many requests from here (429){}", match .seconds {
        Some(seconds) => format!("; the Hub wants {seconds} s of quiet"),
        None => String::new(),
    })]
    TooMany {
        /// What was tried.
        attempt: String,
        /// What Retry-After says.
        seconds: Option<u64>,
    },
    /// 413.
    #[error("could not {attempt}: the server takes no request of this size (413)")]
    TooLarge {
        /// What was tried.
        attempt: String,
    },
    /// 5xx, several times.
    #[error(
        "could not {attempt}: {host} has a fault of its own ({status}), {tries} times in a row: {message}"
    )]
    Server {
        /// What was tried.
        attempt: String,
        /// Host and port.
        host: String,
        /// The status.
        status: u16,
        /// How often.
        tries: u32,
        /// Its words.
        message: String,
    },
    /// Any other refusal.
    #[error("could not {attempt}: {host} answered {status}: {message}")]
    Status {
        /// What was tried.
        attempt: String,
        /// Host and port.
        host: String,
        /// The status.
        status: u16,
        /// Its words.
        message: String,
    },
    /// An answer that is none.
    #[error("could not {attempt}: {host} gave an answer that cannot be used: {problem}")]
    Answer {
        /// What was tried.
        attempt: String,
        /// Host and port.
        host: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file with other bytes than the Hub lists.
    #[error("`{file}` of `{name}` arrived with {kind} {found}; the Hub lists {wanted}")]
    WrongHash {
        /// `owner/name`.
        name: String,
        /// The file.
        file: String,
        /// Which hash.
        kind: &'static str,
        /// Of what arrived.
        found: String,
        /// Of what should have.
        wanted: String,
    },
    /// What lies in the cache cannot be opened.
    #[error(transparent)]
    Cache(#[from] w4pack_format::FormatError),
    /// No room for a download.
    #[error(
        "`{place}` has too little room for `{name}`: {needed} bytes are needed, {free} are free on its disk"
    )]
    NoSpace {
        /// The cache.
        place: String,
        /// `owner/name`.
        name: String,
        /// Still to be downloaded.
        needed: u64,
        /// What an ordinary user may write.
        free: u64,
    },
    /// The operating system refused.
    #[error("could not {attempt} `{path}`: {cause}")]
    Io {
        /// What was tried.
        attempt: &'static str,
        /// The file or folder.
        path: String,
        /// The system's answer.
        cause: io::Error,
    },
    /// Nobody to publish as.
    #[error("there is no token to publish `{name}` with")]
    NoToken {
        /// `owner/name`.
        name: String,
    },
    /// Somebody else committed in the meantime.
    #[error(
        "`{name}` has changed since it was looked at: its {branch} was {parent}, and is another commit now; nothing was committed"
    )]
    Moved {
        /// `owner/name`.
        name: String,
        /// The branch.
        branch: String,
        /// The commit that this one was to follow.
        parent: String,
    },
    /// Weights in the repository that the commit would leave beside its own.
    #[error(
        "`{name}` already holds `{file}`, which this checkpoint does not have, and which loaders would take for a part of it"
    )]
    Leftover {
        /// `owner/name`.
        name: String,
        /// The file.
        file: String,
    },
    /// A file that changed after the proof.
    #[error("`{path}` is not what was proved: it has {found}, the proof speaks of {wanted}")]
    Changed {
        /// The file.
        path: String,
        /// Size or hash.
        found: String,
        /// Size or hash.
        wanted: String,
    },
    /// What the repository holds now is not what was sent.
    #[error("the commit {commit} of `{name}` is not what was sent: `{file}` {problem}")]
    ReadBack {
        /// `owner/name`.
        name: String,
        /// The commit.
        commit: String,
        /// The file.
        file: String,
        /// In which way.
        problem: String,
    },
    /// The chunk store's own words.
    #[error("could not {attempt}: the transfer to the Hub's chunk store failed: {problem}")]
    ChunkStore {
        /// What was tried.
        attempt: String,
        /// hf-hub's message.
        problem: String,
    },
}

/// What is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The repository.
    Repository,
    /// The branch, tag or commit.
    Revision,
    /// The file.
    File,
}

/// How much of another's words is repeated.
const REPEATED_CHARACTERS: usize = 300;

/// Another's words within a message: in one line, which nothing in them can steer or forge, and not
/// too many.
pub(crate) fn plain(words: &str) -> String {
    let spaced: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let line = spaced.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(REPEATED_CHARACTERS) {
        Some((end, _)) => format!("{} …", &line[..end]),
        None => line,
    }
}

impl HubError {
    /// The next step, when there is one.
    pub fn hint(&self) -> Option<String> {
        let hint: &str = match self {
            HubError::Cache(error) => return error.hint(),
            HubError::Name { .. } => "a Hub name reads `owner/name`, or `owner/name@revision`",
            HubError::Token { .. } => "a token begins with hf_; `hf auth login` keeps one",
            HubError::NoHome => "set HF_HOME, or HF_HUB_CACHE, to a folder",
            HubError::NotCached { name, .. } => {
                return Some(format!(
                    "leave out --offline (or HF_HUB_OFFLINE), or download it with `hf download {name}`"
                ));
            }
            HubError::Offline { .. } => "leave out --offline (or HF_HUB_OFFLINE)",
            HubError::Network { .. } => {
                "is there a network, and are HF_ENDPOINT and HTTPS_PROXY right? The same command goes on where it stopped"
            }
            HubError::Unauthorized { with_token: true, .. } => {
                "make a new token on the Hub's page of settings and put it in HF_TOKEN"
            }
            HubError::Unauthorized { with_token: false, .. } => {
                "check the spelling; for a private repository set HF_TOKEN, or run `hf auth login`"
            }
            HubError::Gated { page, with_token, .. } => {
                let login =
                    if *with_token { "" } else { ", and set HF_TOKEN or run `hf auth login`" };
                return Some(format!("accept its terms at {page}{login}"));
            }
            HubError::Forbidden { .. } => {
                "give the token the right to read (or, to publish, to write) this repository"
            }
            HubError::NotFound { what: Missing::Repository, .. } => {
                "check the spelling; of a private repository a token in HF_TOKEN must be its owner's"
            }
            HubError::NotFound { what: Missing::Revision, .. } => {
                "leave out the revision for the newest commit of main"
            }
            HubError::TooMany { .. } => {
                "wait, then try again: the same command goes on where it stopped"
            }
            HubError::TooLarge { .. } | HubError::ChunkStore { .. } => {
                "`w4pack publish --dry-run` prints the `hf upload` line that does the same"
            }
            HubError::Server { .. } => "try again later: the same command goes on where it stopped",
            HubError::WrongHash { .. } => {
                "try again; if it stays, a proxy or mirror in between changes what it passes on"
            }
            HubError::NoSpace { .. } => {
                "free some space, set HF_HUB_CACHE to a folder on another disk, or (to convert) give --stream"
            }
            HubError::Io { path, cause, .. } => return io_hint(path, cause),
            HubError::NoToken { .. } => {
                "set HF_TOKEN to a token that may write, or run `hf auth login`"
            }
            HubError::Moved { .. } => {
                "look at the new commit, then publish again; or give --pr for a pull request"
            }
            HubError::Leftover { .. } => "delete it there, or publish to another name",
            HubError::Changed { .. } => {
                "publish again: the proof is then made from what is there now"
            }
            HubError::ReadBack { .. } => {
                "do not use this commit; publish again, and compare with the `hf upload` line of --dry-run"
            }
            _ => return None,
        };
        Some(hint.into())
    }

    /// Whether the user can mend it: wrong names, missing rights, an unreachable Hub.
    pub fn is_input(&self) -> bool {
        !matches!(
            self,
            HubError::Io { .. }
                | HubError::NoSpace { .. }
                | HubError::ReadBack { .. }
                | HubError::Server { .. }
                | HubError::ChunkStore { .. }
                | HubError::Moved { .. }
                | HubError::TooLarge { .. }
        )
    }
}

/// Most files that this crate writes lie in the cache.
fn io_hint(path: &str, cause: &io::Error) -> Option<String> {
    use io::ErrorKind::*;
    let is_in_cache = path.contains("models--");
    let hint = match cause.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => {
            "free some space: the same command goes on where it stopped"
        }
        PermissionDenied | ReadOnlyFilesystem | NotADirectory if is_in_cache => {
            "set HF_HUB_CACHE to a folder that you may write to"
        }
        _ => return None,
    };
    Some(hint.into())
}
