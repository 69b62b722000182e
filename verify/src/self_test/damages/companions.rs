//! Files beside the weights.

use serde_json::Value;

use crate::report::FaultClass::CompanionFile;
use crate::self_test::Expected;
use crate::self_test::checkpoint::Pack;
use crate::self_test::edits::of_file;
use crate::self_test::random::Random;

pub(super) fn byte(pack: &mut Pack, random: &mut Random, path: &str) -> Option<Expected> {
    let content = pack.file_mut(path)?;
    let at = random.below(content.len());
    content[at] ^= 1 << random.below(8);
    of_file(CompanionFile, path)
}

pub(super) fn stop_id(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let path = "generation_config.json";
    let id = 200 + random.below(1000);
    pack.edit_json(path, |config| match &mut config["eos_token_id"] {
        Value::Array(ids) => {
            let place = random.below(ids.len().max(1));
            *ids.get_mut(place)? = id.into();
            Some(())
        }
        other => {
            *other = id.into();
            Some(())
        }
    })??;
    of_file(CompanionFile, path)
}

pub(super) fn missing(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let needed = ["tokenizer.json", "chat_template.jinja", "generation_config.json"];
    let there: Vec<&str> = needed.into_iter().filter(|path| pack.file(path).is_some()).collect();
    let path = random.one_of(&there)?;
    pack.remove(path);
    of_file(CompanionFile, path)
}

pub(super) fn unknown_file(pack: &mut Pack, random: &mut Random) -> Option<Expected> {
    let path = random.one_of(&[
        "modeling_gemma4.py",
        "added_tokens.json",
        "w4pack/notes.txt",
        "additional_chat_templates/tool.jinja",
    ])?;
    pack.put(path, b"x".to_vec());
    of_file(CompanionFile, path)
}
