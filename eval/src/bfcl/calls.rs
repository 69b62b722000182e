//! Calls against ground truth: the same number, each matched by one, in any order.

use super::declaration::Declaration;
use super::values::acceptable;
use crate::answerer::Call;
use serde_json::{Map, Value};

/// Every call that is expected.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    truths: Vec<Truth>,
}

/// One call that is expected.
#[derive(Debug, Clone)]
pub struct Truth {
    declaration: Declaration,
    /// The name as the model sees it.
    name: String,
    /// For each parameter the acceptable values; among them `""` says that it may be left out.
    parameters: Map<String, Value>,
}

impl Expected {
    /// Reads `[{NAME: {PARAMETER: [values]}}, …]`.
    ///
    /// Errors: a function or parameter that is not declared, or values that are no list.
    pub fn parse(
        truths: &[Value],
        declarations: &[Declaration],
        underscores: bool,
    ) -> Result<Self, String> {
        if truths.is_empty() {
            return Err("the ground truth holds no call".into());
        }
        let truths = truths.iter().map(|truth| Truth::parse(truth, declarations, underscores));
        Ok(Self { truths: truths.collect::<Result<_, _>>()? })
    }

    /// Ok if every expected call was made, and no other. Calls are matched so that as many as
    /// possible find a partner: no order of them is better than another.
    pub fn check(&self, calls: &[Call]) -> Result<(), String> {
        if calls.len() != self.truths.len() {
            return Err(format!("{} calls, expected {}", calls.len(), self.truths.len()));
        }
        let verdicts: Vec<Vec<Result<(), String>>> = self
            .truths
            .iter()
            .map(|truth| calls.iter().map(|call| truth.check(call)).collect())
            .collect();
        // Which expected call each call is the partner of.
        let mut partner = vec![None; calls.len()];
        for truth in 0..self.truths.len() {
            if !find_partner(truth, &verdicts, &mut partner, &mut vec![false; calls.len()]) {
                return Err(self.complaint(truth, &verdicts[truth]));
            }
        }
        Ok(())
    }

    fn complaint(&self, truth: usize, verdicts: &[Result<(), String>]) -> String {
        let reasons: Vec<&str> = verdicts
            .iter()
            .filter_map(|verdict| verdict.as_ref().err())
            .map(String::as_str)
            .collect();
        match self.truths.len() {
            1 => reasons.concat(),
            _ => format!(
                "no call is expected call {} (`{}`): {}",
                truth + 1,
                self.truths[truth].name,
                reasons.join("; ")
            ),
        }
    }
}

/// Finds a call for an expected one, moving others to other partners if need be (an augmenting
/// path of the bipartite matching).
fn find_partner(
    truth: usize,
    verdicts: &[Vec<Result<(), String>>],
    partner: &mut [Option<usize>],
    seen: &mut [bool],
) -> bool {
    for call in 0..partner.len() {
        if verdicts[truth][call].is_err() || std::mem::replace(&mut seen[call], true) {
            continue;
        }
        let free = match partner[call] {
            None => true,
            Some(other) => find_partner(other, verdicts, partner, seen),
        };
        if free {
            partner[call] = Some(truth);
            return true;
        }
    }
    false
}

impl Truth {
    fn parse(
        truth: &Value,
        declarations: &[Declaration],
        underscores: bool,
    ) -> Result<Self, String> {
        let mut entries = truth.as_object().into_iter().flatten();
        let (Some((name, parameters)), None) = (entries.next(), entries.next()) else {
            return Err(format!("not one function with its parameters: {truth}"));
        };
        let declaration = declarations.iter().find(|declaration| declaration.name == *name);
        let declaration =
            declaration.ok_or_else(|| format!("the function `{name}` is not declared"))?;
        let parameters = parameters.as_object();
        let parameters =
            parameters.ok_or_else(|| format!("`{name}`: its parameters are no object"))?;
        for (parameter, values) in parameters {
            if declaration.parameter(parameter).is_none() {
                return Err(format!("`{name}`: the parameter `{parameter}` is not declared"));
            }
            if values.as_array().is_none_or(|values| values.is_empty()) {
                return Err(format!("`{name}`: the values of `{parameter}` are no list"));
            }
        }
        Ok(Self {
            name: declaration.shown_name(underscores),
            declaration: declaration.clone(),
            parameters: parameters.clone(),
        })
    }

    /// Ok if a call is this one.
    pub fn check(&self, call: &Call) -> Result<(), String> {
        if call.name != self.name {
            return Err(format!("calls `{}`, expected `{}`", call.name, self.name));
        }
        let arguments = call.arguments.as_object();
        let arguments =
            arguments.ok_or_else(|| format!("the arguments are no object: {}", call.arguments))?;
        for required in &self.declaration.required {
            if !arguments.contains_key(required) {
                return Err(format!("`{required}` is missing"));
            }
        }
        for (name, value) in arguments {
            let kind = self.declaration.parameter(name);
            let (Some(kind), Some(listed)) = (kind, self.listed(name)) else {
                return Err(format!("`{name}` is not expected"));
            };
            if !acceptable(value, kind, listed) {
                return Err(format!(
                    "`{name}` is {value}, expected one of {}",
                    Value::from(listed)
                ));
            }
        }
        for name in self.parameters.keys() {
            let may_be_left_out =
                self.listed(name).is_some_and(|listed| listed.contains(&"".into()));
            if !arguments.contains_key(name) && !may_be_left_out {
                return Err(format!("`{name}` is missing"));
            }
        }
        Ok(())
    }

    fn listed(&self, parameter: &str) -> Option<&[Value]> {
        Some(self.parameters.get(parameter)?.as_array()?.as_slice())
    }
}
