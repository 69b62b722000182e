//! The routes, and the OpenAPI description that is made from their handlers.

use axum::Router;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::known::{self, Endpoint};
use super::shared::Shared;
use super::{chat, completions, lookups, responses};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "w4pack",
        description = "Gemma 4 in 4 bits behind OpenAI's API. null means absent; unknown fields are refused.",
    ),
    components(schemas(super::wire::chat::ChatChunk)),
    tags(
        (name = "generation", description = "Answers"),
        (name = "tokens", description = "Text to ids and back"),
        (name = "model", description = "What is served"),
        (name = "operation", description = "For those who run it"),
    )
)]
struct Description;

/// Every route that has a description, and the description.
pub fn routes() -> (Router<Arc<Shared>>, Value) {
    let (router, description) = OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(chat::chat_completions))
        .routes(routes!(completions::completions))
        .routes(routes!(responses::responses))
        .routes(routes!(lookups::models))
        .routes(routes!(lookups::model))
        .routes(routes!(lookups::health))
        .routes(routes!(lookups::metrics))
        .routes(routes!(lookups::tokenize))
        .routes(routes!(lookups::detokenize))
        .split_for_parts();
    let mut description = serde_json::to_value(description).expect("a description is JSON");
    finish(&mut description);
    (router, description)
}

/// Adds what the types do not say: fields that are known and not carried out, and that no other
/// may come.
fn finish(description: &mut Value) {
    let schemas = &mut description["components"]["schemas"];
    flatten(schemas);
    for schema in schemas.as_object_mut().into_iter().flat_map(Map::values_mut) {
        let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
        properties.into_iter().flat_map(Map::values_mut).for_each(lift_description);
    }
    for endpoint in Endpoint::ALL {
        let schema = &mut schemas[endpoint.request()];
        for field in known::at(endpoint) {
            let (description, accepted) = match field.accepted {
                None => (format!("Changes nothing: {}.", field.why), None),
                Some(accepted) => {
                    let values = accepted.iter().filter_map(|text| serde_json::from_str(text).ok());
                    let values: Vec<Value> = values.chain([Value::Null]).collect();
                    (format!("Not supported: {}.", field.why), Some(values))
                }
            };
            let mut property = json!({"description": description});
            if let Some(values) = accepted {
                property["enum"] = values.into();
            }
            schema["properties"][field.name] = property;
        }
    }
    let closed = [
        "ChatRequest",
        "CompletionRequest",
        "ResponsesRequest",
        "TokenizeRequest",
        "DetokenizeRequest",
        "StreamOptions",
    ];
    for name in closed {
        schemas[name]["additionalProperties"] = json!(false);
    }
    // No key is needed where the server has none.
    description["components"]["securitySchemes"]["key"] =
        json!({"type": "http", "scheme": "bearer"});
    description["security"] = json!([{}, {"key": []}]);
}

/// Where a field may be null, its description stands at one of its forms: it belongs to all.
fn lift_description(property: &mut Value) {
    let mut forms = property.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten();
    let lifted = forms.find_map(|form| form.as_object_mut()?.shift_remove("description"));
    if let Some(description) = lifted {
        property["description"] = description;
    }
}

/// `allOf` of a type and the fields it shares with others becomes one object: a list of fields that
/// are not to have company must be in one place.
fn flatten(schemas: &mut Value) {
    let Some(all) = schemas.as_object_mut() else { return };
    let original = all.clone();
    for schema in all.values_mut() {
        let Some(parts) = schema.get("allOf").and_then(Value::as_array).cloned() else { continue };
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for part in &parts {
            let name = part.get("$ref").and_then(Value::as_str);
            let name = name.and_then(|path| path.strip_prefix("#/components/schemas/"));
            let part = name.and_then(|name| original.get(name)).unwrap_or(part);
            for (name, property) in part["properties"].as_object().into_iter().flatten() {
                properties.insert(name.clone(), property.clone());
            }
            required.extend(part["required"].as_array().into_iter().flatten().cloned());
        }
        let description = schema.get("description").cloned().unwrap_or_default();
        *schema = json!({
            "type": "object",
            "description": description,
            "required": required,
            "properties": properties,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::completions::request as completion;
    use crate::server::responses::request as response;
    use std::collections::BTreeSet;

    /// The readers and the descriptions are written apart: every field that is read is described,
    /// and none else.
    #[test]
    fn the_fields_described_are_those_that_are_read() {
        let (_, description) = routes();
        let body = |value: Value| value.as_object().expect("an object").clone();
        let user = json!([{"role": "user", "content": "x"}]);
        let chat =
            chat::request::read(&body(json!({"messages": user})), 10).map(|(_, names)| names);
        let text = completion::read(&body(json!({"prompt": "x"})), 10).map(|(_, names)| names);
        let input = response::read(&body(json!({"input": "x"})), 10).map(|(_, names)| names);
        for (endpoint, read) in
            [(Endpoint::Chat, chat), (Endpoint::Completions, text), (Endpoint::Responses, input)]
        {
            let schema = &description["components"]["schemas"][endpoint.request()];
            let described: BTreeSet<&str> = schema["properties"]
                .as_object()
                .expect("fields")
                .keys()
                .map(String::as_str)
                .collect();
            let read: BTreeSet<&str> = read.expect("it is sound").into_iter().collect();
            assert_eq!(read, described, "{}", endpoint.path());
            for (name, property) in schema["properties"].as_object().expect("fields") {
                let text = property["description"].as_str().unwrap_or_default();
                assert!(!text.is_empty(), "{} of {} says nothing", name, endpoint.path());
            }
        }
    }

    /// The tables of docs/server.md are printed from the description and from `known.rs`.
    #[test]
    fn the_documentation_lists_every_field() {
        let documentation = include_str!("../../../docs/server.md");
        let (_, description) = routes();
        let mut tables = vec![idle_table(), refused_table()];
        for endpoint in Endpoint::ALL {
            tables.push(field_table(&description, endpoint));
        }
        for table in tables {
            assert!(documentation.contains(&table), "docs/server.md must hold:\n\n{table}");
        }
    }

    /// The fields that an endpoint carries out, from their descriptions.
    fn field_table(description: &Value, endpoint: Endpoint) -> String {
        let schema = &description["components"]["schemas"][endpoint.request()];
        let known: Vec<&str> = known::at(endpoint).map(|field| field.name).collect();
        let mut table = String::from("| field | what it does |\n|---|---|\n");
        for (name, property) in schema["properties"].as_object().expect("fields") {
            if !known.contains(&name.as_str()) {
                let text = property["description"].as_str().expect("a description");
                table += &format!("| `{name}` | {} |\n", text.replace('\n', " "));
            }
        }
        table
    }

    /// The table of the fields that change nothing.
    fn idle_table() -> String {
        let mut table = String::from("| field | where | why it changes nothing |\n|---|---|---|\n");
        for field in known::KNOWN.iter().filter(|field| field.accepted.is_none()) {
            table += &format!("| `{}` | {} | {} |\n", field.name, paths(field), field.why);
        }
        table
    }

    /// The table of the fields that are refused.
    fn refused_table() -> String {
        let mut table = String::from("| field | where | accepted | why |\n|---|---|---|---|\n");
        for field in known::KNOWN {
            let Some(accepted) = field.accepted else { continue };
            let accepted: Vec<String> = accepted.iter().map(|value| format!("`{value}`")).collect();
            let accepted = if accepted.is_empty() { "null".into() } else { accepted.join(", ") };
            table +=
                &format!("| `{}` | {} | {accepted} | {} |\n", field.name, paths(field), field.why);
        }
        table
    }

    fn paths(field: &known::Known) -> String {
        let paths: Vec<String> =
            field.endpoints.iter().map(|endpoint| format!("`{}`", endpoint.path())).collect();
        paths.join(", ")
    }
}
