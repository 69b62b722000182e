//! The control tokens by which a Gemma 4 conversation is written, as text.
//!
//! Their ids are never written down here: a tokenizer finds them by these texts.

/// Ends a turn.
pub const TURN_END: &str = "<turn|>";
/// Begins a channel; its name and a newline follow.
pub const CHANNEL: &str = "<|channel>";
/// The name, with its newline, of the one channel there is.
pub const THOUGHT: &str = "thought\n";
/// Ends a channel.
pub const CHANNEL_END: &str = "<channel|>";
/// Begins a tool call.
pub const CALL: &str = "<|tool_call>";
/// Ends a tool call.
pub const CALL_END: &str = "<tool_call|>";
/// Begins a tool's response; the model writes it and waits.
pub const RESPONSE: &str = "<|tool_response>";
/// Ends a tool's response.
pub const RESPONSE_END: &str = "<tool_response|>";
/// Stands for the quotation mark at both ends of a string.
pub const QUOTE: &str = "<|\"|>";
/// Ends the text.
pub const EOS: &str = "<eos>";
/// Opens the model's turn.
pub const MODEL_TURN: &str = "<|turn>model\n";
/// What ends an answer.
pub const ENDS: [&str; 3] = [TURN_END, RESPONSE, EOS];

/// The first of `markers` in `text`: its place and itself. At one place the first listed wins.
pub fn first<'m>(text: &str, markers: &[&'m str]) -> Option<(usize, &'m str)> {
    // Every marker begins with '<', which most text holds nowhere.
    text.match_indices('<').find_map(|(at, _)| {
        markers.iter().find(|marker| text[at..].starts_with(**marker)).map(|marker| (at, *marker))
    })
}

/// How many bytes at the end of `text` may be the beginning of one of `markers`.
pub fn unfinished(text: &str, markers: &[&str]) -> usize {
    let longest = markers.iter().map(|marker| marker.len()).max().unwrap_or(0);
    let from = text.len().saturating_sub(longest);
    text.as_bytes()[from..]
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'<')
        .map(|(at, _)| &text[from + at..])
        .find(|end| markers.iter().any(|marker| marker.starts_with(end)))
        .map_or(0, str::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_marker_is_found() {
        let text = "a<b <turn|> <eos>";
        assert_eq!(first(text, &[EOS, TURN_END]), Some((4, TURN_END)));
        assert_eq!(first("a<b", &[EOS]), None);
    }

    #[test]
    fn an_unfinished_marker_is_held_back_and_nothing_else() {
        assert_eq!(unfinished("text <|tool_c", &[CALL, RESPONSE]), 8);
        assert_eq!(unfinished("<<", &[CALL]), 1);
        assert_eq!(unfinished("é<|turx", &[MODEL_TURN, CALL]), 0);
        assert_eq!(unfinished("", &[CALL]), 0);
    }
}
