//! Recall: numbered records with random six-digit codes, and a question for one of them.
//!
//! A question follows from its wording, length, depth and seed alone, so that it is the same
//! whatever else is asked, and whoever is asked.

pub mod table;
mod wording;

use crate::answerer::Answer;
use crate::error::{EvalError, Result};
use crate::question::{Judge, Question};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use wording::Form;
pub use wording::Wording;

/// Records are numbered 1 to this.
const HIGHEST_NUMBER: u64 = 99_999;
/// Tokens of a prompt beside its records: turns, instruction, question.
const FRAME_TOKENS: usize = 45;
/// Longest prompt: no more different record numbers than half of those there are.
const LONGEST: usize = 500_000;

/// Which questions to ask: every length at every depth with every seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecallOptions {
    /// The words.
    pub wording: Wording,
    /// Approximate tokens of the prompt, see [`tokens`].
    pub lengths: Vec<usize>,
    /// Where the asked record stands, in per cent of the list: 0 is its beginning, 100 its end.
    pub depths: Vec<usize>,
    /// One question of each length and depth for each.
    pub seeds: Vec<u64>,
}

/// Makes the questions.
///
/// Errors: an empty list, a depth beyond 100 %, a length below 100 or beyond 500,000 tokens.
pub fn questions(options: &RecallOptions) -> Result<Vec<Question>> {
    let setting = |name, value: String, expected| Err(EvalError::Setting { name, value, expected });
    if options.lengths.is_empty() || options.depths.is_empty() || options.seeds.is_empty() {
        return setting("lengths, depths or seeds", "empty".into(), "at least one of each");
    }
    if let Some(length) = options.lengths.iter().find(|length| !(100..=LONGEST).contains(length)) {
        return setting("lengths", length.to_string(), "100 to 500000 tokens");
    }
    if let Some(depth) = options.depths.iter().find(|depth| **depth > 100) {
        return setting("depths", depth.to_string(), "0 to 100 (per cent)");
    }
    let mut questions = Vec::new();
    for &length in &options.lengths {
        for &depth in &options.depths {
            for &seed in &options.seeds {
                questions.push(question(options.wording, length, depth, seed));
            }
        }
    }
    Ok(questions)
}

fn question(wording: Wording, length: usize, depth: usize, seed: u64) -> Question {
    let id = format!("recall-{}-{length}-{depth}-{seed}", wording.name());
    let mut random = ChaCha8Rng::from_seed(Sha256::digest(&id).into());
    let form = wording.form(seed);
    let records = records(&form, length, &mut random);
    let asked = (depth * (records.len() - 1) + 50) / 100;
    let (number, code) = &records[asked];
    let prompt = form.prompt(&records, *number);
    let mut group = Map::new();
    group.insert("length".into(), length.into());
    group.insert("depth".into(), depth.into());
    Question {
        id,
        group,
        messages: vec![json!({"role": "user", "content": prompt})],
        tools: Vec::new(),
        expected: Value::from(code.clone()),
        judge: Box::new(Code(code.clone())),
    }
}

/// Records with different numbers and different codes, at least two, filling a prompt of `length`
/// tokens.
fn records(form: &Form, length: usize, random: &mut ChaCha8Rng) -> Vec<(u64, String)> {
    let room = length.saturating_sub(FRAME_TOKENS);
    let (mut numbers, mut codes) = (HashSet::new(), HashSet::new());
    let (mut records, mut filled) = (Vec::new(), 0);
    loop {
        let number = 1 + below(random, HIGHEST_NUMBER);
        let code = format!("{:06}", below(random, 1_000_000));
        if numbers.contains(&number) || !codes.insert(code.clone()) {
            continue;
        }
        filled += tokens(&form.line(number, &code));
        if filled > room && records.len() >= 2 {
            return records;
        }
        numbers.insert(number);
        records.push((number, code));
    }
}

/// A number below `limit`, every one as likely as the next (but for one in 2^40).
fn below(random: &mut ChaCha8Rng, limit: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(limit)) >> 64) as u64
}

/// The tokens of a text as vocabularies that take digits singly (Gemma's) count them, nearly: a
/// word is one, so is a digit, a mark, a line's end, and a space in front of a digit. The same for
/// everybody, so that all answer the same questions; how many tokens it really were stands in the
/// record.
pub fn tokens(text: &str) -> usize {
    let mut count = 0;
    let mut previous = ' ';
    for character in text.chars() {
        let begins_word = character.is_alphabetic() && !previous.is_alphabetic();
        let space_of_number = character.is_ascii_digit() && previous == ' ';
        let alone = !character.is_alphabetic() && character != ' ';
        count += usize::from(begins_word) + usize::from(space_of_number) + usize::from(alone);
        previous = character;
    }
    count
}

/// Right is an answer that holds the code, and no other six digits.
struct Code(String);

impl Judge for Code {
    fn judge(&self, answer: &Answer) -> Result<(), String> {
        let content = answer.content.as_deref().unwrap_or_default();
        let codes: Vec<&str> = content
            .split(|character: char| !character.is_ascii_digit())
            .filter(|digits| digits.len() == self.0.len())
            .collect();
        match codes.iter().find(|code| **code != self.0) {
            Some(other) => Err(format!("says {other}")),
            None if codes.is_empty() => Err("holds no six-digit code".into()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_code_and_no_other() {
        let judge = |content: &str| {
            let answer = Answer { content: Some(content.into()), ..Answer::default() };
            Code("012345".into()).judge(&answer)
        };
        for right in ["012345", "The code of record 17 is 012345.", "**012345** (012345)"] {
            assert_eq!(judge(right), Ok(()), "{right}");
        }
        for wrong in ["", "12345", "0123456", "012345 or 543210", "012346", "012 345", "none"] {
            assert!(judge(wrong).is_err(), "{wrong}");
        }
        assert!(Code("012345".into()).judge(&Answer::default()).is_err());
    }

    #[test]
    fn tokens_of_a_record() {
        // Record, space, 1, 7, colon, space, six digits, line's end.
        assert_eq!(tokens("Record 17: 012345\n"), 13);
        assert_eq!(tokens("What is the code of record 17?"), 10);
    }
}
