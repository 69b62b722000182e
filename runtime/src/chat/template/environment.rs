//! minijinja set up as transformers sets up Jinja2.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value, escape_formatter};

use crate::chat::python;

/// Stands before a message of the template's own (`raise_exception`), to tell it from the engine's
/// errors.
pub(super) const REFUSAL: &str = "raise_exception: ";

/// An environment without templates: transformers' white space rules, Python's methods on texts,
/// lists and maps, Python's way of printing values, and the functions that templates expect.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .expect("only white space rules are set, and those cannot conflict"),
    );
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(print);
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", |value: &Value| python_text(value));
    environment.add_filter("upper", |value: &Value| python_text(value).to_uppercase());
    environment.add_filter("lower", |value: &Value| python_text(value).to_lowercase());
    environment.add_function("raise_exception", refuse);
    environment.add_function("strftime_now", now);
    environment
}

fn refuse(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{REFUSAL}{message}")))
}

/// The time now, in UTC.
fn now(format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, jiff::Timestamp::now())
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
}

/// `tojson(indent=…)` with Python's spacing. Unlike Jinja2's own filter, transformers' does not
/// escape HTML.
fn to_json(value: &Value, indent: Option<usize>, options: Kwargs) -> Result<String, Error> {
    let named: Option<usize> = options.get("indent")?;
    options.assert_all_used()?;
    python::json(value, indent.or(named))
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    if is_float(value) || matches!(value.kind(), ValueKind::Seq | ValueKind::Map) {
        return out.write_str(&python_text(value)).map_err(Error::from);
    }
    escape_formatter(out, state, value)
}

/// What `str(value)` gives in Python.
fn python_text(value: &Value) -> String {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map => python_repr(value),
        _ if is_float(value) => {
            f64::try_from(value.clone()).map_or_else(|_| value.to_string(), python::float)
        }
        _ => value.to_string(),
    }
}

/// What `repr(value)` gives in Python.
fn python_repr(value: &Value) -> String {
    let items = |value: &Value| value.try_iter().into_iter().flatten().collect::<Vec<_>>();
    match value.kind() {
        ValueKind::Seq => {
            let items: Vec<String> = items(value).iter().map(python_repr).collect();
            format!("[{}]", items.join(", "))
        }
        ValueKind::Map => {
            let pair = |key: &Value| {
                let item = value.get_item(key).unwrap_or_default();
                format!("{}: {}", python_repr(key), python_repr(&item))
            };
            let pairs: Vec<String> = items(value).iter().map(pair).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        ValueKind::String => python::quoted(value.as_str().unwrap_or_default()),
        _ => python_text(value),
    }
}

fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer()
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::value::Serde;
    use serde_json::json;

    /// Expected texts are what Jinja2 gives with transformers' settings.
    #[test]
    fn values_look_as_in_python() {
        let data = json!({"v": {"f": 1e-5, "t": ["string", null, 1.0, true], "m": {"a b": "it's"}, "g": 1e16}});
        let context = || Value::from(Serde(&data));
        let cases = [
            ("{{ v.f }} {{ v.g }}", "1e-05 1e+16"),
            ("{{ v.t }}", "['string', None, 1.0, True]"),
            ("{{ v.t | upper }}", "['STRING', NONE, 1.0, TRUE]"),
            ("{{ v.m }}", "{'a b': \"it's\"}"),
            ("{{ v.m | tojson }}", "{\"a b\": \"it's\"}"),
            ("{{ v.t | tojson(indent=1) }}", "[\n \"string\",\n null,\n 1.0,\n true\n]"),
            ("{{ none }}{{ true }}{{ nothing }}", "NoneTrue"),
            ("{{ 'a-b'.split('-') }}{{ v.get('x') }}", "['a', 'b']None"),
            ("{%- if true %}\n  x\n  {%- endif %}\n", "  x"),
        ];
        for (template, text) in cases {
            assert_eq!(
                environment().render_str(template, context()).expect(template),
                text,
                "{template}"
            );
        }
    }

    #[test]
    fn the_time_is_told_and_a_wrong_format_is_an_error() {
        let year = environment().render_str("{{ strftime_now('%Y') }}", ()).expect("a year");
        assert!(year.parse::<u32>().is_ok_and(|year| year >= 2024), "{year}");
        assert!(environment().render_str("{{ strftime_now('%') }}", ()).is_err());
    }
}
