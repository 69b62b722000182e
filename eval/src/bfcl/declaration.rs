//! A function's declaration: BFCL's names of types, and OpenAI's tool made of it.

use serde_json::{Map, Value, json};

/// The types of parameters that BFCL's Python questions know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text; `any` is judged as text too, as BFCL does.
    Text,
    /// A number without a fraction, written without one.
    Integer,
    /// A number; one without a fraction is as good.
    Float,
    /// true or false.
    Boolean,
    /// A list; a tuple is one.
    List,
    /// An object.
    Dictionary,
}

impl Kind {
    fn parse(name: &str) -> Result<Kind, String> {
        Ok(match name {
            "string" | "any" => Kind::Text,
            "integer" => Kind::Integer,
            "float" | "number" => Kind::Float,
            "boolean" | "bool" => Kind::Boolean,
            "array" | "list" | "tuple" => Kind::List,
            "dict" | "object" => Kind::Dictionary,
            other => return Err(format!("the type `{other}` is not known")),
        })
    }

    /// JSON schema's name.
    fn schema(self) -> &'static str {
        match self {
            Kind::Text => "string",
            Kind::Integer => "integer",
            Kind::Float => "number",
            Kind::Boolean => "boolean",
            Kind::List => "array",
            Kind::Dictionary => "object",
        }
    }

    /// The kind of a value; null has none.
    pub fn of(value: &Value) -> Option<Kind> {
        Some(match value {
            Value::Null => return None,
            Value::Bool(_) => Kind::Boolean,
            Value::Number(number) if number.is_f64() => Kind::Float,
            Value::Number(_) => Kind::Integer,
            Value::String(_) => Kind::Text,
            Value::Array(_) => Kind::List,
            Value::Object(_) => Kind::Dictionary,
        })
    }
}

/// A parameter's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    /// Its kind.
    pub kind: Kind,
    /// For lists: the kind of what is in them, where declared.
    pub items: Option<Kind>,
}

/// A function that may be called.
#[derive(Debug, Clone, PartialEq)]
pub struct Declaration {
    /// Its name, dots and all.
    pub name: String,
    /// Its parameters by name.
    pub parameters: Vec<(String, Parameter)>,
    /// The names of those that must be given.
    pub required: Vec<String>,
    description: Option<Value>,
    schema: Value,
}

impl Declaration {
    /// Reads `{"name", "description", "parameters": {"type", "properties", "required"}}`.
    ///
    /// Errors name function and parameter.
    pub fn parse(value: &Value) -> Result<Self, String> {
        let name = value.get("name").and_then(Value::as_str).ok_or("a function has no name")?;
        let wrong = |finding: String| format!("function `{name}`: {finding}");
        let schema = value.get("parameters").ok_or_else(|| wrong("no `parameters`".into()))?;
        let properties = schema.get("properties").and_then(Value::as_object);
        let properties = properties.ok_or_else(|| wrong("no `parameters.properties`".into()))?;
        let mut parameters = Vec::new();
        for (parameter, schema) in properties {
            let kind = parameter_type(schema)
                .map_err(|finding| wrong(format!("parameter `{parameter}`: {finding}")))?;
            parameters.push((parameter.clone(), kind));
        }
        let required = match schema.get("required") {
            None => Vec::new(),
            Some(list) => serde_json::from_value(list.clone())
                .map_err(|_| wrong(format!("`required` is no list of names: {list}")))?,
        };
        Ok(Self {
            name: name.to_owned(),
            parameters,
            required,
            description: value.get("description").cloned(),
            schema: in_json_schema(schema).map_err(wrong)?,
        })
    }

    /// The name as a model sees it.
    pub fn shown_name(&self, underscores: bool) -> String {
        if underscores { self.name.replace('.', "_") } else { self.name.clone() }
    }

    /// OpenAI's tool.
    pub fn tool(&self, underscores: bool) -> Value {
        let mut function = Map::new();
        function.insert("name".into(), self.shown_name(underscores).into());
        if let Some(description) = &self.description {
            function.insert("description".into(), description.clone());
        }
        function.insert("parameters".into(), self.schema.clone());
        json!({"type": "function", "function": function})
    }

    /// A parameter's type.
    pub fn parameter(&self, name: &str) -> Option<Parameter> {
        self.parameters.iter().find(|(known, _)| known == name).map(|(_, kind)| *kind)
    }
}

fn parameter_type(schema: &Value) -> Result<Parameter, String> {
    let kind = |schema: &Value| {
        schema.get("type").map(|name| Kind::parse(name.as_str().unwrap_or_default())).transpose()
    };
    let items = schema.get("items").map_or(Ok(None), kind)?;
    Ok(Parameter { kind: kind(schema)?.unwrap_or(Kind::Text), items })
}

/// The schema with BFCL's names of types (`dict`, `float`, `tuple`, `any`) made JSON schema's, at
/// any depth.
fn in_json_schema(schema: &Value) -> Result<Value, String> {
    let mut schema = schema.as_object().cloned().ok_or(format!("no schema: {schema}"))?;
    if let Some(name) = schema.get("type").and_then(Value::as_str) {
        let name = Kind::parse(name)?.schema();
        schema.insert("type".into(), name.into());
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for property in properties.values_mut() {
            *property = in_json_schema(property)?;
        }
    }
    if let Some(items) = schema.get_mut("items") {
        *items = in_json_schema(items)?;
    }
    Ok(schema.into())
}
