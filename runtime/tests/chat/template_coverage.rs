//! Whether loading a template really goes through all of it: every filter, test and method of
//! Google's template is replaced by an unknown one, one at a time, and each must be found at load.

use w4pack_runtime::chat::ChatTemplate;

use crate::references::{google_template, reference_folder};

/// Copies of `text`, each with one occurrence of `known` replaced.
fn with_one_unknown(text: &str, known: &str, unknown: &str) -> Vec<String> {
    text.match_indices(known)
        .map(|(at, _)| format!("{}{unknown}{}", &text[..at], &text[at + known.len()..]))
        .collect()
}

#[test]
fn every_branch_of_googles_template_is_rendered_at_load() {
    let Some(folder) = reference_folder() else { return };
    let template = google_template(&folder);
    let mut tried = 0;
    for filter in ["upper", "trim", "dictsort", "length", "list", "default(", "map('upper')"] {
        let known = format!("| {filter}");
        let unknown = format!("| nonsense_{filter}");
        for broken in with_one_unknown(&template, &known, &unknown) {
            let loaded = ChatTemplate::load(Some(&broken), None, &[]);
            let found = loaded.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(found.contains("nonsense"), "{known}, occurrence {tried}: {found:?}");
            tried += 1;
        }
    }
    // A method is looked up where its text stands only if that branch runs.
    for broken in with_one_unknown(&template, ".get(", ".nonsense(") {
        let loaded = ChatTemplate::load(Some(&broken), None, &[]);
        assert!(loaded.is_err(), "an unknown method, occurrence {tried}");
        tried += 1;
    }
    assert!(tried > 30, "the template has {tried} filters and methods");
}
