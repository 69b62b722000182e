//! BFCL's scoring: its own ground truth rendered as calls must pass, every mutation must fail.
//!
//! The items are made in BFCL's format, so that each of its rules is met at least once.

use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;
use w4pack_eval::bfcl::{BfclOptions, questions};
use w4pack_eval::{Answer, Call, Question};

/// (id, functions, ground truth)
pub fn items() -> Vec<(&'static str, Value, Value)> {
    let weather = json!({"name": "weather.current", "description": "The weather now.", "parameters": {
        "type": "dict", "required": ["place"], "properties": {
            "place": {"type": "string", "description": "City."},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": "integer", "description": "Days ahead."}}}});
    let area = json!({"name": "area", "description": "Area of a triangle.", "parameters": {
        "type": "dict", "required": ["base", "height"], "properties": {
            "base": {"type": "float"}, "height": {"type": "float"},
            "exact": {"type": "boolean"}}}});
    let route = json!({"name": "route.plan", "description": "A route.", "parameters": {
        "type": "dict", "required": ["stops"], "properties": {
            "stops": {"type": "array", "items": {"type": "string"}},
            "at": {"type": "tuple", "items": {"type": "float"}},
            "grid": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            "numbers": {"type": "array", "items": {"type": "integer"}}}}});
    let order = json!({"name": "shop.order", "description": "An order.", "parameters": {
        "type": "dict", "required": ["items"], "properties": {
            "items": {"type": "array", "items": {"type": "dict", "properties": {
                "name": {"type": "string"}, "count": {"type": "integer"}}}},
            "address": {"type": "dict", "properties": {
                "street": {"type": "string"}, "floor": {"type": "integer"},
                "geo": {"type": "dict", "properties": {"lat": {"type": "float"}}}}},
            "note": {"type": "any"}}}});
    vec![
        (
            "simple_python_0",
            json!([weather]),
            json!([{"weather.current": {"place": ["Paris", "Paris, France"], "unit": ["celsius", ""], "days": ["", 0]}}]),
        ),
        (
            "simple_python_1",
            json!([area]),
            json!([{"area": {"base": [10], "height": [5.5], "exact": [true, ""]}}]),
        ),
        (
            "simple_python_2",
            json!([route]),
            json!([{"route.plan": {"stops": [["New York", "St. John's"], ["NYC", "St. John's"]],
                 "at": [[1.0, 2.5]], "grid": [[[1, 2], [3, 4]]], "numbers": [[7, 8], ""]}}]),
        ),
        (
            "simple_python_3",
            json!([order]),
            json!([{"shop.order": {
             "items": [[{"name": ["tea", "green tea"], "count": [2]}, {"name": ["cup"], "count": [1, ""]}]],
             "address": [{"street": ["Main St. 5"], "floor": [3, ""], "geo": [{"lat": [1.5, 2.5]}]}],
             "note": ["", "ring twice"]}}]),
        ),
        // A variable where a number is declared, a number where text is declared.
        (
            "simple_python_4",
            json!([area]),
            json!([{"area": {"base": ["width"], "height": [2], "exact": ["", false]}}]),
        ),
        (
            "multiple_0",
            json!([area, weather, route]),
            json!([{"weather.current": {"place": ["Oslo"], "unit": ["", "celsius"], "days": [2]}}]),
        ),
        (
            "parallel_0",
            json!([weather]),
            json!([{"weather.current": {"place": ["Rome"], "unit": [""], "days": [""]}},
                {"weather.current": {"place": ["Lima"], "unit": [""], "days": [1, 2]}},
                {"weather.current": {"place": ["Lima"], "unit": [""], "days": [1]}}]),
        ),
        (
            "parallel_multiple_0",
            json!([area, weather]),
            json!([{"area": {"base": [3.0], "height": [4.0], "exact": [""]}},
                {"weather.current": {"place": ["Bern"], "unit": ["celsius"], "days": [""]}}]),
        ),
    ]
}

pub fn write(folder: &Path, items: &[(&str, Value, Value)]) -> BfclOptions {
    let data = folder.join("BFCL_v4_made.json");
    let lines = |line: &dyn Fn(&(&str, Value, Value)) -> Value| -> String {
        items.iter().map(|item| line(item).to_string() + "\n").collect()
    };
    fs::create_dir_all(folder.join("possible_answer")).unwrap();
    let question = |id: &str| json!([[{"role": "user", "content": format!("Do {id}.")}]]);
    fs::write(&data, lines(&|(id, functions, _)| {
        json!({"id": id, "question": question(id), "function": functions})
    })).unwrap();
    fs::write(
        folder.join("possible_answer/BFCL_v4_made.json"),
        lines(&|(id, _, truth)| json!({"id": id, "ground_truth": truth})),
    )
    .unwrap();
    BfclOptions { data, answers: None, underscores: false }
}

fn load() -> Vec<Question> {
    questions(&write(tempfile::tempdir().unwrap().path(), &items())).unwrap()
}

/// Every way to render what is listed for one place: all choices of dictionaries inside included.
fn choices(listed: &Value) -> Vec<Option<Value>> {
    let listed = listed.as_array().unwrap();
    let mut all = Vec::new();
    for value in listed {
        match value {
            Value::String(text) if text.is_empty() => all.push(None),
            Value::Object(dictionary) => all.extend(objects(dictionary).into_iter().map(Some)),
            Value::Array(list) if list.iter().all(Value::is_object) => {
                let mut lists = vec![Vec::new()];
                for dictionary in list {
                    let options = objects(dictionary.as_object().unwrap());
                    lists = lists
                        .iter()
                        .flat_map(|list: &Vec<Value>| {
                            options
                                .iter()
                                .map(|one| [&list[..], std::slice::from_ref(one)].concat())
                        })
                        .collect();
                }
                all.extend(lists.into_iter().map(|list| Some(list.into())));
            }
            value => all.push(Some(value.clone())),
        }
    }
    all
}

/// Every object that a dictionary of listed values admits.
fn objects(listed: &Map<String, Value>) -> Vec<Value> {
    let mut all = vec![Map::new()];
    for (key, values) in listed {
        let options = choices(values);
        all = all
            .iter()
            .flat_map(|object: &Map<String, Value>| {
                options.iter().map(|choice| {
                    let mut object = object.clone();
                    if let Some(value) = choice {
                        object.insert(key.clone(), value.clone());
                    }
                    object
                })
            })
            .collect();
    }
    all.into_iter().map(Value::Object).collect()
}

/// All renderings of one expected call.
pub fn calls(truth: &Value) -> Vec<Call> {
    let (name, parameters) = truth.as_object().unwrap().iter().next().unwrap();
    let arguments = objects(parameters.as_object().unwrap()).into_iter();
    arguments.map(|arguments| Call { name: name.clone(), arguments }).collect()
}

fn verdict(question: &Question, calls: Vec<Call>) -> Result<(), String> {
    question.judge.judge(&Answer { calls, ..Answer::default() })
}

#[test]
fn the_ground_truth_passes_in_every_rendering_and_any_order() {
    let mut tried = 0;
    for question in load() {
        let truths = question.expected.as_array().unwrap();
        let all: Vec<Vec<Call>> = truths.iter().map(calls).collect();
        for rendering in 0..all.iter().map(Vec::len).max().unwrap() {
            let set: Vec<Call> =
                all.iter().map(|calls| calls[rendering % calls.len()].clone()).collect();
            for turn in 0..set.len() {
                let mut turned = set.clone();
                turned.rotate_left(turn);
                assert_eq!(verdict(&question, turned.clone()), Ok(()), "{turned:?}");
                turned.reverse();
                assert_eq!(verdict(&question, turned), Ok(()));
                tried += 2;
            }
        }
    }
    assert!(tried > 80, "{tried}");
}

/// Values that are not the given one by any rule: another value and other types.
fn wrong_values(value: &Value) -> Vec<Value> {
    match value {
        Value::Bool(truth) => {
            vec![json!(!truth), json!(truth.to_string()), json!(i32::from(*truth))]
        }
        Value::Number(number) => {
            let number = number.as_f64().unwrap();
            vec![json!(number + 1000.5), json!(number.to_string()), json!(true), json!([number])]
        }
        Value::String(text) => {
            vec![json!(format!("{text} x")), json!(""), json!(17), json!([text])]
        }
        Value::Array(list) => {
            let mut wrong =
                vec![json!(value.to_string()), json!({"0": list}), json!([]), json!(list[1..])];
            wrong.push([&list[..], &list[..1]].concat().into());
            if list.len() > 1 {
                wrong.push(list.iter().rev().cloned().collect::<Vec<_>>().into());
            }
            for (at, item) in list.iter().enumerate() {
                wrong.extend(wrong_values(item).into_iter().map(|item| {
                    let mut list = list.clone();
                    list[at] = item;
                    list.into()
                }));
            }
            wrong
        }
        Value::Object(object) => {
            let mut wrong = vec![json!(value.to_string()), json!([value])];
            let mut more = object.clone();
            more.insert("unheard_of".into(), 1.into());
            wrong.push(more.into());
            for (key, item) in object {
                wrong.extend(wrong_values(item).into_iter().map(|item| {
                    let mut object = object.clone();
                    object.insert(key.clone(), item);
                    object.into()
                }));
            }
            wrong
        }
        Value::Null => vec![],
    }
}

#[test]
fn every_mutation_fails() {
    let mut tried = 0;
    let mut fails = |question: &Question, calls: Vec<Call>, what: &str| {
        assert!(verdict(question, calls.clone()).is_err(), "{what}: {calls:?}");
        tried += 1;
    };
    for question in load() {
        let truths = question.expected.as_array().unwrap();
        // The first rendering of each: with all that is not left out.
        let right: Vec<Call> = truths.iter().map(|truth| calls(truth).remove(0)).collect();
        fails(&question, vec![], "no call");
        fails(&question, [&right[..], &right[..1]].concat(), "a call too many");
        for at in 0..right.len() {
            if right.len() > 1 {
                let mut fewer = right.clone();
                fewer.remove(at);
                fails(&question, fewer, "a call too few");
            }
            let with = |call: Call| {
                let mut calls = right.clone();
                calls[at] = call;
                calls
            };
            let call = &right[at];
            for name in ["", "other", &call.name.to_uppercase(), &format!("{}_", call.name)] {
                let name = name.to_owned();
                fails(&question, with(Call { name, ..call.clone() }), "another function");
            }
            for arguments in [json!("{}"), json!([]), Value::Null, json!("not JSON")] {
                fails(&question, with(Call { arguments, ..call.clone() }), "no object");
            }
            let arguments = call.arguments.as_object().unwrap();
            let parameters = truths[at][&call.name].as_object().unwrap();
            for (name, value) in arguments {
                let change = |value: Value| {
                    let mut arguments = arguments.clone();
                    arguments.insert(name.clone(), value);
                    with(Call { arguments: arguments.into(), ..call.clone() })
                };
                let listed = parameters[name].as_array().unwrap();
                let is_listed = |value: &Value| {
                    let optional = listed.contains(&json!("")) && *value == json!([]);
                    listed.contains(value) || optional
                };
                for wrong in wrong_values(value).into_iter().filter(|value| !is_listed(value)) {
                    fails(&question, change(wrong), name);
                }
                fails(&question, change(Value::Null), "null");
                if !listed.contains(&json!("")) {
                    let mut arguments = arguments.clone();
                    arguments.remove(name);
                    let call = Call { arguments: arguments.into(), ..call.clone() };
                    fails(&question, with(call), "left out");
                }
            }
            let mut more = arguments.clone();
            more.insert("unheard_of".into(), 1.into());
            fails(&question, with(Call { arguments: more.into(), ..call.clone() }), "one more");
        }
    }
    assert!(tried > 200, "{tried}");
}

/// Rule by rule, with what BFCL's own checker says.
#[test]
fn rules_by_example() {
    let all = load();
    let check = |id: &str, name: &str, arguments: Value| {
        let question = all.iter().find(|question| question.id == id).unwrap();
        verdict(question, vec![Call { name: name.into(), arguments }]).is_ok()
    };
    let weather = |arguments| check("simple_python_0", "weather.current", arguments);
    // Text: case, spaces and marks do not matter, letters do.
    assert!(weather(json!({"place": "PARIS  france"})));
    assert!(weather(json!({"place": "pa-r_i.s"})));
    assert!(!weather(json!({"place": "Pariss"})));
    // An optional parameter may be given, but not with any value; an undeclared one may not.
    assert!(weather(json!({"place": "Paris", "days": 0})));
    assert!(!weather(json!({"place": "Paris", "days": 1})));
    assert!(!weather(json!({"place": "Paris", "day": 0})));
    assert!(!weather(json!({"place": "Paris", "days": 0.0})), "no float for an integer");
    assert!(!weather(json!({"unit": "celsius"})), "a required one");
    // Whole numbers for floats, also where the ground truth writes one without a point.
    let area = |arguments| check("simple_python_1", "area", arguments);
    assert!(area(json!({"base": 10, "height": 5.5})));
    assert!(area(json!({"base": 10.0, "height": 5.5, "exact": true})));
    assert!(!area(json!({"base": "10", "height": 5.5})));
    assert!(!area(json!({"base": 10, "height": 5.5, "exact": "true"})));
    assert!(!area(json!({"base": 10, "height": 5.5, "exact": false})));
    // Lists: order and length matter, the text in them as loosely as elsewhere.
    let route = |stops: Value, at: Value| {
        let rest = json!([[1, 2], [3, 4]]);
        check("simple_python_2", "route.plan", json!({"stops": stops, "at": at, "grid": rest}))
    };
    assert!(route(json!(["new york", "ST JOHN\"S"]), json!([1.0, 2.5])));
    assert!(route(json!(["NYC", "St. John's"]), json!([1, 2.5])));
    assert!(!route(json!(["St. John's", "New York"]), json!([1.0, 2.5])));
    assert!(!route(json!(["NYC"]), json!([1.0, 2.5])));
    assert!(!route(json!(["NYC", "St. John's"]), json!([2.5, 1.0])));
    // A variable is taken exactly as it is written.
    let named = |base: Value| check("simple_python_4", "area", json!({"base": base, "height": 2}));
    assert!(named(json!("width")));
    assert!(!named(json!("Width")));
    assert!(!named(json!(3.0)));
    // An empty list for one that may be left out, as BFCL takes it.
    let numbers = |numbers: Value| {
        let rest =
            json!({"stops": ["NYC", "St. John's"], "at": [1.0, 2.5], "grid": [[1, 2], [3, 4]]});
        let mut arguments = rest.as_object().unwrap().clone();
        arguments.insert("numbers".into(), numbers);
        check("simple_python_2", "route.plan", arguments.into())
    };
    assert!(numbers(json!([7, 8])) && numbers(json!([])));
    assert!(!numbers(json!([7])) && !numbers(json!([7.0, 8.0])));
}

#[test]
fn calls_find_their_partners_even_if_the_first_fit_is_another_ones() {
    let all = load();
    let question = all.iter().find(|question| question.id == "parallel_0").unwrap();
    let call = |place: &str, days: Option<i64>| {
        let mut arguments = json!({"place": place});
        if let Some(days) = days {
            arguments["days"] = days.into();
        }
        Call { name: "weather.current".into(), arguments }
    };
    // The call with 1 day fits two expected ones, the other only one of them.
    let calls = vec![call("Lima", Some(1)), call("Rome", None), call("Lima", Some(2))];
    assert_eq!(verdict(question, calls), Ok(()));
    let twice = vec![call("Lima", Some(2)), call("Rome", None), call("Lima", Some(2))];
    let complaint = verdict(question, twice).unwrap_err();
    assert!(complaint.contains("expected call"), "{complaint}");
}
