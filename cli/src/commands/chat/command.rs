//! Lines as a chat understands them: commands, and everything else.

use std::path::PathBuf;

/// What a line asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A message, or a tool's result.
    Text(String),
    Help,
    Reset,
    Undo,
    /// Shows the system message, or sets it.
    System(Option<String>),
    /// Shows whether the model is to think, or sets it.
    Think(Option<bool>),
    /// Shows the tools, or reads a file of declarations.
    Tools(Option<PathBuf>),
    Save(PathBuf),
    Load(PathBuf),
    Stats,
    Exit,
    /// No command; what to say about it.
    Wrong(String),
}

pub const HELP: &str = "\
/help             this list
/reset            forget the conversation; system message and tools stay
/undo             take the last message and all that followed it back
/system [TEXT]    show the system message, or set it for the next prompt
/think [on|off]   show whether the model thinks before it answers, or set it
/tools [FILE]     show the declared tools, or declare those of a JSON file
/save FILE        write the conversation
/load FILE        go on with one that was written
/stats            tokens and speeds
/exit             leave; so does Ctrl-D
//TEXT            a message that begins with a slash";

/// Reads a line.
pub fn read(line: &str) -> Line {
    let Some(command) = line.strip_prefix('/') else { return Line::Text(line.to_owned()) };
    if command.starts_with('/') {
        return Line::Text(command.to_owned());
    }
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let rest = rest.trim();
    let given = (!rest.is_empty()).then(|| rest.to_owned());
    let alone = |line: Line| match &given {
        None => line,
        Some(_) => Line::Wrong(format!("/{name} takes nothing behind it")),
    };
    let file = |line: fn(PathBuf) -> Line| match &given {
        Some(path) => line(path.into()),
        None => Line::Wrong(format!("/{name} needs the name of a file")),
    };
    match name {
        "help" | "?" => alone(Line::Help),
        "reset" => alone(Line::Reset),
        "undo" => alone(Line::Undo),
        "system" => Line::System(given),
        "think" => match rest {
            "" => Line::Think(None),
            "on" => Line::Think(Some(true)),
            "off" => Line::Think(Some(false)),
            other => Line::Wrong(format!("/think {other}: on or off")),
        },
        "tools" => Line::Tools(given.map(PathBuf::from)),
        "save" => file(Line::Save),
        "load" => file(Line::Load),
        "stats" => alone(Line::Stats),
        "exit" | "quit" => alone(Line::Exit),
        _ => Line::Wrong(format!("/{name} is no command; /help lists them")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_messages() {
        let text = |text: &str| Line::Text(text.to_owned());
        for (line, read_as) in [
            ("hello /help", text("hello /help")),
            ("//etc/hosts", text("/etc/hosts")),
            ("/help", Line::Help),
            ("/system", Line::System(None)),
            ("/system  Be  brief. ", Line::System(Some("Be  brief.".to_owned()))),
            ("/think on", Line::Think(Some(true))),
            ("/save a b.json", Line::Save("a b.json".into())),
        ] {
            assert_eq!(read(line), read_as, "{line}");
        }
        for line in ["/", "/frobnicate", "/reset now", "/think maybe", "/save", "/load "] {
            assert!(matches!(read(line), Line::Wrong(_)), "{line}");
        }
    }

    #[test]
    fn every_command_is_in_the_help() {
        for line in HELP.lines().filter(|line| !line.starts_with("//")) {
            let name = line.split_whitespace().next().expect("a name");
            let with_file = read(&format!("{name} x"));
            let known =
                |line: &Line| !matches!(line, Line::Wrong(text) if text.contains("is no command"));
            assert!(known(&read(name)) && known(&with_file), "{name}");
        }
    }
}
