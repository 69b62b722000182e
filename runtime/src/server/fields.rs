//! Reads JSON objects field by field, and lets no field pass that nobody asked for.
//!
//! `null` means absent. Every error names the path of the field, in the form that OpenAI's `param`
//! has: `messages[2].tool_calls[0].function.name`.

use serde_json::{Map, Value};
use std::ops::RangeInclusive;

use super::error::ApiError;

/// One value and where it stands.
#[derive(Debug, Clone)]
pub struct Field<'v> {
    pub path: String,
    pub value: &'v Value,
}

impl<'v> Field<'v> {
    pub fn new(path: impl Into<String>, value: &'v Value) -> Self {
        Self { path: path.into(), value }
    }

    /// The error that this is not what was expected.
    pub fn wrong(&self, expected: &str) -> ApiError {
        ApiError::value(&self.path, self.value, expected)
    }

    pub fn text(&self) -> Result<&'v str, ApiError> {
        self.value.as_str().ok_or_else(|| self.wrong("a string"))
    }

    pub fn boolean(&self) -> Result<bool, ApiError> {
        self.value.as_bool().ok_or_else(|| self.wrong("true or false"))
    }

    pub fn number(&self, range: RangeInclusive<f64>) -> Result<f64, ApiError> {
        let expected = || format!("a number from {} to {}", range.start(), range.end());
        let number = self.value.as_f64().filter(|number| range.contains(number));
        number.ok_or_else(|| self.wrong(&expected()))
    }

    /// A whole number; `5.0` is one.
    pub fn integer(&self, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
        let whole =
            |number: f64| (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64);
        let integer = self.value.as_i64().or_else(|| self.value.as_f64().and_then(whole));
        integer.filter(|integer| range.contains(integer)).ok_or_else(|| {
            let expected = match (*range.start(), *range.end()) {
                (i64::MIN, i64::MAX) => "a whole number of 64 bits".to_owned(),
                (start, i64::MAX) => format!("a whole number of 64 bits, at least {start}"),
                (start, end) => format!("a whole number from {start} to {end}"),
            };
            self.wrong(&expected)
        })
    }

    pub fn list(&self) -> Result<Vec<Field<'v>>, ApiError> {
        let items = self.value.as_array().ok_or_else(|| self.wrong("a list"))?;
        let item = |(index, value)| Field::new(format!("{}[{index}]", self.path), value);
        Ok(items.iter().enumerate().map(item).collect())
    }

    pub fn object(&self) -> Result<&'v Map<String, Value>, ApiError> {
        self.value.as_object().ok_or_else(|| self.wrong("an object"))
    }

    pub fn fields(&self) -> Result<Fields<'v>, ApiError> {
        Ok(Fields { path: self.path.clone(), map: self.object()?, asked: Vec::new() })
    }

    /// One of several names.
    pub fn one_of<T: Copy>(&self, choices: &[(&str, T)]) -> Result<T, ApiError> {
        let text = self.value.as_str();
        let found = choices.iter().find(|(name, _)| Some(*name) == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<String> =
                choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            self.wrong(&names.join(", "))
        })
    }
}

/// An object whose fields are taken one after another.
pub struct Fields<'v> {
    path: String,
    map: &'v Map<String, Value>,
    asked: Vec<&'static str>,
}

impl<'v> Fields<'v> {
    /// The fields of a request's body.
    pub fn of_body(map: &'v Map<String, Value>) -> Self {
        Self { path: String::new(), map, asked: Vec::new() }
    }

    /// The path of a field of this object.
    pub fn path_of(&self, name: &str) -> String {
        match self.path.as_str() {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        }
    }

    /// A field, if it is there and not null.
    pub fn take(&mut self, name: &'static str) -> Option<Field<'v>> {
        self.asked.push(name);
        let value = self.map.get(name).filter(|value| !value.is_null())?;
        Some(Field::new(self.path_of(name), value))
    }

    /// A field that must be there.
    pub fn need(&mut self, name: &'static str) -> Result<Field<'v>, ApiError> {
        self.take(name).ok_or_else(|| ApiError::missing(&self.path_of(name)))
    }

    pub fn boolean(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        self.take(name).map(|field| field.boolean()).transpose()
    }

    pub fn text(&mut self, name: &'static str) -> Result<Option<&'v str>, ApiError> {
        self.take(name).map(|field| field.text()).transpose()
    }

    pub fn number(
        &mut self,
        name: &'static str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, ApiError> {
        self.take(name).map(|field| field.number(range)).transpose()
    }

    pub fn integer(
        &mut self,
        name: &'static str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        self.take(name).map(|field| field.integer(range)).transpose()
    }

    /// A field of OpenAI's API that is taken only where it asks for nothing: `why` says what is
    /// missing.
    pub fn refuse_unless(
        &mut self,
        name: &'static str,
        asks_for_nothing: impl Fn(&Value) -> bool,
        why: &str,
    ) -> Result<(), ApiError> {
        match self.take(name) {
            Some(field) if !asks_for_nothing(field.value) => {
                let message = format!("`{}` is not supported: {why}", field.path);
                Err(ApiError::unsupported(&field.path, message))
            }
            _ => Ok(()),
        }
    }

    /// Every field was asked for, or an error names the first that was not. Returns the names that
    /// were asked for.
    pub fn finish(self) -> Result<Vec<&'static str>, ApiError> {
        match self.map.keys().find(|key| !self.asked.contains(&key.as_str())) {
            Some(unknown) => Err(ApiError::unknown_field(&self.path_of(unknown), &self.asked)),
            None => Ok(self.asked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message(error: &ApiError) -> (String, String) {
        let body = error.body();
        let text = |name: &str| body["error"][name].as_str().unwrap_or_default().to_owned();
        (text("param"), text("message"))
    }

    #[test]
    fn null_is_absent_and_a_stranger_is_named() {
        let body = json!({"a": null, "b": 1, "ç": 2});
        let mut fields = Fields::of_body(body.as_object().expect("an object"));
        assert!(fields.take("a").is_none());
        assert_eq!(fields.integer("b", 0..=9).expect("a number"), Some(1));
        let (param, text) = message(&fields.finish().expect_err("ç is unknown"));
        assert_eq!(param, "ç");
        assert!(text.contains("`ç`") && text.contains("`a`, `b`"), "{text}");
    }

    #[test]
    fn faults_name_their_path() {
        let body = json!({"list": [{"x": true}, {"x": "no"}]});
        let mut fields = Fields::of_body(body.as_object().expect("an object"));
        let list = fields.need("list").and_then(|list| list.list()).expect("a list");
        let mut second = list[1].fields().expect("an object");
        let (param, text) = message(&second.boolean("x").expect_err("a string"));
        assert_eq!(param, "list[1].x");
        assert!(text.contains("\"no\"") && text.contains("true or false"), "{text}");
        let (param, _) = message(&second.need("y").expect_err("missing"));
        assert_eq!(param, "list[1].y");
    }

    #[test]
    fn whole_numbers_may_be_written_with_a_point_and_none_is_rounded() {
        let integer = |value: &Value| Field::new("n", value).integer(1..=16).ok();
        assert_eq!(integer(&json!(16)), Some(16));
        assert_eq!(integer(&json!(5.0)), Some(5));
        for bad in [json!(0), json!(17), json!(1.5), json!(1e300), json!("1"), json!(true)] {
            assert_eq!(integer(&bad), None, "{bad}");
        }
    }

    #[test]
    fn a_number_beyond_64_bits_is_told_what_is_wrong_with_it() {
        let huge = json!(1e30);
        for (least, expected) in
            [(i64::MIN, "a whole number of 64 bits"), (1, "a whole number of 64 bits, at least 1")]
        {
            let error = Field::new("n", &huge).integer(least..=i64::MAX).expect_err("too large");
            let (_, text) = message(&error);
            assert!(text.ends_with(&format!("expected {expected}")), "{text}");
        }
    }
}
