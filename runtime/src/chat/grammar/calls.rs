//! Grammars of tool calls in Gemma 4's syntax.

use serde_json::Value;

use super::arguments::Arguments;
use super::lark::{Lark, literal};
use super::{GrammarError, keywords, patterns, values};

/// Which tools may or must be called, and how.
#[derive(Debug, Clone, Copy)]
pub struct CallRules<'r> {
    /// The declared tools.
    pub tools: &'r [ToolDeclaration<'r>],
    /// Whether a call is demanded.
    pub choice: Choice<'r>,
    /// Whether several calls may come.
    pub parallel: bool,
    /// The prompt's text: where it lets the model think, a thought may come first.
    pub after_prompt: &'r str,
}

/// A tool that may be called.
#[derive(Debug, Clone, Copy)]
pub struct ToolDeclaration<'r> {
    /// Its name.
    pub name: &'r str,
    /// The JSON schema of its arguments; `None`: it takes none.
    pub parameters: Option<&'r Value>,
    /// Whether calls must follow the schema even where none is demanded.
    pub strict: bool,
}

/// OpenAI's `tool_choice`, but for `none`: then no tools are declared at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice<'r> {
    /// The model may call.
    Auto,
    /// It must call some tool.
    Required,
    /// It must call this one.
    Named(&'r str),
}

/// The expression of one or more calls, with their marks. Where the model may call and need not,
/// tools that are not strict take any arguments.
pub(super) fn some_calls(lark: &mut Lark, rules: &CallRules<'_>) -> Result<String, GrammarError> {
    let all = rules.tools.iter().enumerate();
    let tools: Vec<(usize, &ToolDeclaration<'_>)> = match rules.choice {
        Choice::Named(name) => {
            let named: Vec<_> = all.filter(|(_, tool)| tool.name == name).collect();
            if named.is_empty() {
                return Err(GrammarError::UnknownTool { name: name.to_owned() });
            }
            named
        }
        Choice::Auto | Choice::Required => all.collect(),
    };
    let body = bodies(lark, &tools, |tool| tool.strict || rules.choice != Choice::Auto)?;
    let call = lark.new_rule(&format!("{} {body} {}", lark.call, lark.call_end));
    Ok(if rules.parallel { format!("{call}+") } else { call })
}

/// One call, from behind `<|tool_call>`. Tools that are not strict take any arguments.
pub(super) fn one_call(lark: &mut Lark, rules: &CallRules<'_>) -> Result<(), GrammarError> {
    let tools: Vec<(usize, &ToolDeclaration<'_>)> = rules.tools.iter().enumerate().collect();
    let body = bodies(lark, &tools, |tool| tool.strict)?;
    let body = format!("{body} {}", lark.call_end);
    lark.rule("start", &body);
    Ok(())
}

/// The rule of `call:NAME{…}` for any of the tools; `held` says whose arguments follow their schema.
fn bodies(
    lark: &mut Lark,
    tools: &[(usize, &ToolDeclaration<'_>)],
    held: impl Fn(&ToolDeclaration<'_>) -> bool,
) -> Result<String, GrammarError> {
    let mut unsupported = Vec::new();
    let mut bodies = Vec::new();
    for &(tool_index, tool) in tools {
        let of_tool = |error| GrammarError::Tool { tool: tool_index, error: Box::new(error) };
        let mut arguments = Arguments::new(lark);
        let written = match tool.parameters {
            None => Some("\"{}\"".to_owned()),
            Some(_) if !held(tool) => Some(arguments.any_object()),
            Some(schema) => {
                values::check(schema).map_err(of_tool)?;
                patterns::check(schema).map_err(of_tool)?;
                arguments.object_of(&keywords::cleaned(schema))
            }
        };
        let missing = arguments.into_unsupported();
        unsupported.extend(missing.into_iter().map(|pointer| format!("{}: {pointer}", tool.name)));
        match written {
            Some(written) => {
                let name = literal(&format!("call:{}", tool.name));
                bodies.push(format!("{name} {written}"));
            }
            None if unsupported.is_empty() => {
                let finding = "no arguments can match it".to_owned();
                return Err(of_tool(GrammarError::Schema { finding }));
            }
            None => {}
        }
    }
    if !unsupported.is_empty() {
        return Err(GrammarError::Unsupported { keywords: unsupported });
    }
    Ok(lark.new_rule(&bodies.join(" | ")))
}
