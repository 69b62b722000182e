//! BFCL's files, from questions to verdicts.

use crate::bfcl_rules::{calls, items, write};
use crate::support::options;
use crate::support::server::{Server, completion};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::Duration;
use w4pack_eval::bfcl::{BfclOptions, questions};
use w4pack_eval::{ServerAnswerer, ServerOptions, run};

#[test]
fn declarations_reach_the_model_as_tools_of_json_schema() {
    let folder = tempfile::tempdir().unwrap();
    let options = write(folder.path(), &items());
    let tools = |underscores| {
        let options = BfclOptions { underscores, ..options.clone() };
        questions(&options).unwrap().remove(3).tools
    };
    let function = &tools(false)[0]["function"];
    assert_eq!(function["name"], "shop.order");
    let parameters = &function["parameters"];
    assert_eq!(parameters["type"], "object");
    assert_eq!(parameters["required"], json!(["items"]));
    assert_eq!(parameters.pointer("/properties/items/items/type"), Some(&json!("object")));
    assert_eq!(
        parameters.pointer("/properties/address/properties/geo/properties/lat/type"),
        Some(&json!("number"))
    );
    assert_eq!(parameters.pointer("/properties/note/type"), Some(&json!("string")));
    assert_eq!(tools(true)[0]["function"]["name"], "shop_order");
}

#[test]
fn a_server_is_asked_and_its_tool_calls_are_judged() {
    let folder = tempfile::tempdir().unwrap();
    let questions =
        questions(&BfclOptions { underscores: true, ..write(folder.path(), &items()) }).unwrap();
    let truths: Vec<Value> = questions.iter().map(|question| question.expected.clone()).collect();
    let ids: Vec<String> = questions.iter().map(|question| question.id.clone()).collect();
    let server = Server::start(move |_, request| {
        let prompt = request.body["messages"][0]["content"].as_str().unwrap();
        let at = ids.iter().position(|id| prompt == format!("Do {id}.")).unwrap();
        assert!(!request.body["tools"][0]["function"]["name"].as_str().unwrap().contains('.'));
        if ids[at] == "multiple_0" {
            return completion(json!({"role": "assistant", "content": "I cannot."}));
        }
        let calls: Vec<Value> = truths[at]
            .as_array()
            .unwrap()
            .iter()
            .map(|truth| {
                let call = calls(truth).remove(0);
                json!({"id": "c", "type": "function", "function": {
                "name": call.name.replace('.', "_"), "arguments": call.arguments.to_string()}})
            })
            .collect();
        completion(json!({"role": "assistant", "content": null, "tool_calls": calls}))
    });
    let answerer = ServerAnswerer::new(ServerOptions {
        url: server.url.clone(),
        model: "m".into(),
        api_key: None,
        concurrency: 4,
        retries: 0,
        first_wait: Duration::ZERO,
        timeout: Duration::from_secs(120),
    })
    .unwrap();
    let records = run(&questions, &answerer, &options("bfcl", None), &mut |_| {}).unwrap();
    for record in &records {
        assert_eq!(record.correct, record.id != "multiple_0", "{record:?}");
    }
    let missed = records.iter().find(|record| !record.correct).unwrap();
    assert_eq!(missed.reason.as_deref(), Some("0 calls, expected 1"));
    assert_eq!(missed.group["category"], "multiple");
}

#[test]
fn faulty_files_are_named_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let function = json!([{"name": "f", "parameters": {"type": "dict", "properties": {"x": {"type": "integer"}}}}]);
    let fault = |id: &str, function: &Value, truth: Value, change: &dyn Fn(&Path)| {
        let options = write(
            folder.path(),
            &[
                ("simple_0", function.clone(), json!([{"f": {"x": [1]}}])),
                (id, function.clone(), truth),
            ],
        );
        change(&options.data);
        questions(&options).err().expect("it is faulty").to_string()
    };
    let none: &dyn Fn(&Path) = &|_| {};
    let truth = json!([{"f": {"x": [1]}}]);
    for (error, words) in [
        (fault("simple_1", &function, json!([{"g": {}}]), none), ["line 2", "`g` is not declared"]),
        (
            fault("simple_1", &function, json!([{"f": {"y": [1]}}]), none),
            ["line 2", "`y` is not declared"],
        ),
        (
            fault("simple_1", &function, json!([{"f": {"x": 1}}]), none),
            ["line 2", "`x` are no list"],
        ),
        (fault("simple_1", &function, json!([]), none), ["line 2", "no call"]),
        (fault("simple_java_1", &function, truth.clone(), none), ["line 2", "only Python"]),
        (fault("simple_0", &function, truth.clone(), none), ["line 2", "there twice"]),
        (
            fault(
                "simple_1",
                &json!([{"name": "f", "parameters": {"properties": {"x": {"type": "tensor"}}}}]),
                truth.clone(),
                none,
            ),
            ["line 1", "`tensor`"],
        ),
        (
            fault("simple_1", &function, truth.clone(), &|data| {
                let lines = fs::read_to_string(data).unwrap();
                fs::write(data, lines.replace("[[{\"role\"", "[[],[{\"role\"")).unwrap();
            }),
            ["line 1", "2 turns"],
        ),
        (
            fault("simple_1", &function, truth.clone(), &|data| {
                let lines = fs::read_to_string(data).unwrap();
                fs::write(
                    data,
                    lines.replace("\"question\"", "\"initial_config\":{},\"question\""),
                )
                .unwrap();
            }),
            ["line 1", "`initial_config`"],
        ),
        (
            fault("simple_1", &function, truth.clone(), &|data| {
                let lines = fs::read_to_string(data).unwrap();
                fs::write(data, lines.replace("simple_1", "simple_9")).unwrap();
            }),
            ["line 2", "no ground truth"],
        ),
    ] {
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}
