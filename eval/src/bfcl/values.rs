//! Whether a value is one of the acceptable ones, by BFCL's rules.
//!
//! - Text is compared without case, spaces and the marks `, . / - _ * ^`, quotes of either kind
//!   being one: "April 1, 2024" is "april 1 2024".
//! - A whole number may stand for a float, also in a list (BFCL itself takes it in a list only if
//!   the ground truth writes it so too); never a float or a boolean for an integer.
//! - A list is compared item by item in its order. Text in it is compared as above.
//! - A dictionary has for each of its keys a list of acceptable values, `""` again for a key that
//!   may be left out. (BFCL compares a dictionary in a dictionary as it is written; here it may
//!   also follow this rule.)
//! - Where the first listed value is of another type than the declared one, it stands for a
//!   variable or a default: a value of that type is taken if it is exactly one of those listed.

use super::declaration::{Kind, Parameter};
use serde_json::{Map, Value};

/// Says "may be left out" among the listed values.
const LEFT_OUT: &str = "";

/// Whether a value is one of those listed for a parameter.
pub fn acceptable(value: &Value, parameter: Parameter, listed: &[Value]) -> bool {
    let Some(kind) = Kind::of(value) else {
        return listed.contains(value);
    };
    let first = listed.iter().find(|listed| **listed != LEFT_OUT).and_then(Kind::of);
    let fits = kind == parameter.kind || (kind, parameter.kind) == (Kind::Integer, Kind::Float);
    let is_variable = first.is_some_and(|first| first != parameter.kind);
    if is_variable {
        return (fits || Some(kind) == first) && listed.iter().any(|listed| equal(value, listed));
    }
    if !fits {
        return false;
    }
    match value {
        Value::Object(dictionary) => is_one_of_dictionaries(dictionary, listed),
        Value::Array(list) if parameter.items == Some(Kind::Dictionary) => {
            listed.iter().any(|listed| are_dictionaries(list, listed))
        }
        Value::Array(list) => {
            let fit = list.iter().all(|item| item_fits(item, parameter.items, listed));
            fit && listed.iter().any(|listed| is_list(list, listed))
        }
        _ => listed.iter().any(|listed| loosely_equal(value, listed)),
    }
}

/// Whether an item of a list has the declared type, or that of the items listed.
fn item_fits(item: &Value, declared: Option<Kind>, listed: &[Value]) -> bool {
    let (Some(declared), Some(kind)) = (declared, Kind::of(item)) else { return true };
    let kinds_listed = || listed.iter().filter_map(Value::as_array).flatten().filter_map(Kind::of);
    kind == declared
        || (kind, declared) == (Kind::Integer, Kind::Float)
        || kinds_listed().any(|listed| listed == kind)
}

fn is_list(list: &[Value], listed: &Value) -> bool {
    match listed {
        Value::Array(listed) => {
            let pairs = || list.iter().zip(listed);
            list.len() == listed.len()
                && pairs().all(|(value, listed)| loosely_equal(value, listed))
        }
        // What may be left out may be empty.
        listed => *listed == LEFT_OUT && list.is_empty(),
    }
}

fn are_dictionaries(list: &[Value], listed: &Value) -> bool {
    let Value::Array(listed) = listed else {
        return *listed == LEFT_OUT && list.is_empty();
    };
    let is_one = |(value, listed): (&Value, &Value)| {
        value.as_object().is_some_and(|dictionary| is_dictionary(dictionary, listed))
    };
    list.len() == listed.len() && list.iter().zip(listed).all(is_one)
}

fn is_one_of_dictionaries(dictionary: &Map<String, Value>, listed: &[Value]) -> bool {
    listed.iter().any(|listed| is_dictionary(dictionary, listed))
}

fn is_dictionary(dictionary: &Map<String, Value>, listed: &Value) -> bool {
    let Value::Object(listed) = listed else { return false };
    let values = |key: &str| listed.get(key).and_then(Value::as_array);
    let is_listed = |(key, value): (&String, &Value)| {
        let inner = |listed: &Value| {
            value.as_object().is_some_and(|dictionary| is_dictionary(dictionary, listed))
        };
        values(key).is_some_and(|listed| {
            listed.iter().any(|listed| loosely_equal(value, listed) || inner(listed))
        })
    };
    let may_be_left_out =
        |key: &String| values(key).is_some_and(|listed| listed.contains(&LEFT_OUT.into()));
    dictionary.iter().all(is_listed)
        && listed.keys().all(|key| dictionary.contains_key(key) || may_be_left_out(key))
}

/// Equal, texts in BFCL's loose way.
fn loosely_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::String(a), Value::String(b)) => loose(a) == loose(b),
        _ => equal(a, b),
    }
}

/// Equal, 5 and 5.0 being one number.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) if x.is_f64() || y.is_f64() => {
            x.as_f64() == y.as_f64()
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let has = |(key, value): (&String, &Value)| {
                b.get(key).is_some_and(|other| equal(value, other))
            };
            a.len() == b.len() && a.iter().all(has)
        }
        _ => a == b,
    }
}

fn loose(text: &str) -> String {
    let kept = text.chars().filter(|character| !" ,./-_*^".contains(*character));
    kept.collect::<String>().to_lowercase().replace('\'', "\"")
}
