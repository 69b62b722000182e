//! `quantization_config` as it stands, sound or not.

use serde_json::{Map, Value};

/// What a loader finds in `quantization_config`.
#[derive(Debug, Default)]
pub(super) struct Scheme {
    /// The object as it is.
    pub object: Map<String, Value>,
    /// Entries of `targets`, of all groups.
    pub targets: Vec<String>,
    /// Entries of `ignore`.
    pub ignore: Vec<String>,
    /// Whether transformers is to unpack while loading.
    pub dequantize: bool,
}

/// Keys that the official reader knows below `weights`; any other is an error there.
const WEIGHT_KEYS: [&str; 12] = [
    "num_bits",
    "type",
    "symmetric",
    "strategy",
    "group_size",
    "dynamic",
    "actorder",
    "block_structure",
    "scale_dtype",
    "zp_dtype",
    "observer",
    "observer_kwargs",
];

/// Keys that it knows in a group.
const GROUP_KEYS: [&str; 5] =
    ["targets", "weights", "input_activations", "output_activations", "format"];

impl Scheme {
    pub(super) fn read(value: &Value) -> Scheme {
        let object = value.as_object().cloned().unwrap_or_default();
        let texts = |value: Option<&Value>| -> Vec<String> {
            let list = value.and_then(Value::as_array).into_iter().flatten();
            list.filter_map(Value::as_str).map(String::from).collect()
        };
        // A preset is given as its name and the list of targets alone.
        let of_group =
            |group| if group_is_preset(group) { Some(group) } else { group.get("targets") };
        let targets = groups(&object).flat_map(|(_, group)| texts(of_group(group))).collect();
        let ignore = texts(object.get("ignore"));
        let dequantize = object.get("dequantize") == Some(&Value::Bool(true));
        Scheme { targets, ignore, dequantize, object }
    }

    /// The groups by name.
    pub(super) fn groups(&self) -> impl Iterator<Item = (&String, &Value)> {
        groups(&self.object)
    }

    /// A text field of the top level.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.object.get(key).and_then(Value::as_str)
    }

    /// Keys that the official reader does not know, by path.
    pub(super) fn unknown_keys(&self) -> Vec<String> {
        let mut unknown = Vec::new();
        for (name, group) in self.groups() {
            let path = format!("quantization_config.config_groups.{name}");
            unknown.extend(keys_beyond(group, &GROUP_KEYS).map(|key| format!("{path}.{key}")));
            let weights = group.get("weights").unwrap_or(&Value::Null);
            let beyond = keys_beyond(weights, &WEIGHT_KEYS);
            unknown.extend(beyond.map(|key| format!("{path}.weights.{key}")));
        }
        unknown
    }

    /// What of `weights` is not the one scheme that packed words of this format follow.
    pub(super) fn other_weights(&self) -> Vec<String> {
        let wanted: [(&str, Value); 5] = [
            ("num_bits", 4.into()),
            ("type", "int".into()),
            ("symmetric", true.into()),
            ("strategy", "group".into()),
            ("group_size", 32.into()),
        ];
        let mut other = Vec::new();
        for (name, group) in self.groups().filter(|(_, group)| !group_is_preset(group)) {
            for (key, wanted) in &wanted {
                let found = group.get("weights").and_then(|weights| weights.get(*key));
                let found = found.unwrap_or(&Value::Null);
                if found != wanted {
                    other.push(format!("{name}.weights.{key} is {found}, the words say {wanted}"));
                }
            }
        }
        other
    }
}

/// A group that is no object: the list of targets under a preset's name.
pub(super) fn group_is_preset(group: &Value) -> bool {
    group.is_array()
}

fn groups(object: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    object.get("config_groups").and_then(Value::as_object).into_iter().flatten()
}

fn keys_beyond<'a>(value: &'a Value, known: &'a [&str]) -> impl Iterator<Item = &'a String> {
    let keys = value.as_object().into_iter().flat_map(|object| object.keys());
    keys.filter(move |key| !known.contains(&key.as_str()))
}
