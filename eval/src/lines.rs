//! Files of one JSON object a line.

use crate::error::{EvalError, Result};
use serde_json::{Map, Value};
use std::fs;
use std::path::Path;

/// Reads every object of a file, with the number of its line (from 1). Empty lines are skipped.
///
/// Errors: the file cannot be read, is not UTF-8, holds a line that is no JSON object, or holds
/// nothing.
pub fn objects(path: &Path) -> Result<Vec<(usize, Map<String, Value>)>> {
    let text = fs::read_to_string(path).map_err(EvalError::io("read", path))?;
    let mut objects = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        match serde_json::from_str(line) {
            Ok(Value::Object(object)) => objects.push((index + 1, object)),
            Ok(_) => return Err(EvalError::line(path, index + 1, "not a JSON object")),
            Err(error) => {
                return Err(EvalError::line(path, index + 1, format!("not JSON ({error})")));
            }
        }
    }
    if objects.is_empty() {
        let finding = "holds no line of JSON".into();
        return Err(EvalError::File { file: path.display().to_string(), finding });
    }
    Ok(objects)
}

/// The keys of an object that are not among the known ones, joined; `None` if there are none.
pub fn unknown_keys(object: &Map<String, Value>, known: &[&str]) -> Option<String> {
    let unknown: Vec<String> = object
        .keys()
        .filter(|key| !known.contains(&key.as_str()))
        .map(|key| format!("`{key}`"))
        .collect();
    (!unknown.is_empty()).then(|| unknown.join(", "))
}
