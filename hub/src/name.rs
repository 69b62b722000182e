//! `owner/name`, with an optional `@revision`.

use crate::{HubError, Result};
use std::fmt;
use std::str::FromStr;

/// The branch that is meant when none is named.
pub const MAIN: &str = "main";

/// A repository's name: `owner/name`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RepositoryName(String);

impl RepositoryName {
    /// Splits `owner/name[@revision]`.
    ///
    /// Errors: it is not of that form, or the revision is none.
    pub fn with_revision(text: &str) -> Result<(RepositoryName, Option<String>)> {
        let (name, revision) = match text.split_once('@') {
            Some((name, revision)) => (name, Some(revision)),
            None => (text, None),
        };
        revision.map(check_revision).transpose()?;
        Ok((name.parse()?, revision.map(str::to_string)))
    }

    /// `owner/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The two halves.
    pub fn halves(&self) -> (&str, &str) {
        self.0.split_once('/').unwrap_or(("", &self.0))
    }
}

impl FromStr for RepositoryName {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self> {
        let halves = text.split_once('/');
        if halves.is_some_and(|(owner, name)| is_path_part(owner) && is_path_part(name)) {
            return Ok(RepositoryName(text.into()));
        }
        Err(HubError::Name { text: text.into(), problem: "it is not of the form `owner/name`" })
    }
}

impl fmt::Display for RepositoryName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Refuses what can be no branch, tag or commit: a revision becomes part of paths.
pub fn check_revision(revision: &str) -> Result<()> {
    if revision.split('/').all(is_path_part) {
        return Ok(());
    }
    Err(HubError::Name { text: revision.into(), problem: "it is no branch, tag or commit" })
}

/// One level of a path that leads nowhere but down, in the characters that the Hub allows.
fn is_path_part(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !part.is_empty() && part.chars().all(allowed) && part != "." && part != ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_what_are_none() {
        let (name, revision) = RepositoryName::with_revision("google/gemma-4@refs/pr/1").unwrap();
        assert_eq!((name.as_str(), revision.as_deref()), ("google/gemma-4", Some("refs/pr/1")));
        assert_eq!(name.halves(), ("google", "gemma-4"));
        for wrong in ["", "gemma", "a/b/c", "../b", "a/..", "a/b@", "a/b@../x", "a/b@x//y", "a b/c"]
        {
            assert!(RepositoryName::with_revision(wrong).is_err(), "{wrong}");
        }
    }
}
