//! `w4pack/laid-out.json`: the files of a packed checkpoint that was laid out anew from another one.
//!
//! Such a result has no manifest, since nobody compared it with the values that it was once made
//! from. This list says only which files w4pack wrote: so that the next run knows what it may
//! replace, and a reader what belongs together.

use crate::manifest::FileRecord;
use crate::source::check_relative_path;
use crate::{FormatError, Result, json};
use serde::{Deserialize, Serialize};

/// Path of the file below a checkpoint.
pub const LAID_OUT_FILE: &str = "w4pack/laid-out.json";

/// The value of [`LaidOut::schema`] that this version writes and reads.
pub const SCHEMA: &str = "w4pack-laid-out/1";

/// The whole list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaidOut {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of w4pack that wrote it.
    pub w4pack_version: String,
    /// What was written, this file excepted; sorted by path.
    pub files: Vec<FileRecord>,
}

impl LaidOut {
    /// Reads a list.
    ///
    /// Errors: not JSON, a field missing, unknown or of the wrong kind, another schema; a path that
    /// could leave the folder.
    pub fn parse(bytes: &[u8]) -> Result<LaidOut> {
        let value = json::parse(LAID_OUT_FILE, bytes)?;
        let fail = |field: &str, problem: String| FormatError::Field {
            file: LAID_OUT_FILE.into(),
            field: field.into(),
            problem,
        };
        let list: LaidOut =
            serde_json::from_value(value).map_err(|error| fail("(list)", error.to_string()))?;
        if list.schema != SCHEMA {
            let problem = format!("\"{}\", this version reads \"{SCHEMA}\"", list.schema);
            return Err(fail("schema", problem));
        }
        for file in &list.files {
            check_relative_path(&file.path, LAID_OUT_FILE)?;
        }
        Ok(list)
    }

    /// The file's content: indented JSON with a final newline.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self)
            .expect("strings, numbers and lists of them always serialize");
        bytes.push(b'\n');
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let record = FileRecord { path: "config.json".into(), bytes: 7, sha256: "0".repeat(64) };
        let list =
            LaidOut { schema: SCHEMA.into(), w4pack_version: "0.1.0".into(), files: vec![record] };
        assert_eq!(LaidOut::parse(&list.to_bytes()).unwrap(), list);
        let text = String::from_utf8(list.to_bytes()).unwrap();
        let wrong = [
            text.replace("laid-out/1", "laid-out/2"),
            text.replace("config.json", "../config.json"),
            text.replace("\"bytes\"", "\"size\""),
            text.replace("\"schema\"", "\"more\": 1,\n  \"schema\""),
        ];
        for wrong in wrong {
            let error = LaidOut::parse(wrong.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(LAID_OUT_FILE), "{error}");
        }
    }
}
