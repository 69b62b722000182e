//! The words around records and question.

/// Which words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wording {
    /// Says all: what the list is, what is asked, how to answer. For any model that follows
    /// instructions.
    Plain,
    /// The bare list and a short question, as the small model of `fixtures/trained` was taught; a
    /// seed takes one of several forms.
    Trained,
}

impl Wording {
    /// `plain` or `trained`.
    pub fn name(self) -> &'static str {
        match self {
            Wording::Plain => "plain",
            Wording::Trained => "trained",
        }
    }

    pub(super) fn form(self, seed: u64) -> Form {
        match self {
            Wording::Plain => PLAIN,
            Wording::Trained => TRAINED[(seed % TRAINED.len() as u64) as usize],
        }
    }
}

/// One way to write list and question; `{k}` is a record's number, `{c}` its code.
#[derive(Clone, Copy)]
pub(super) struct Form {
    head: &'static str,
    record: &'static str,
    question: &'static str,
}

const PLAIN: Form = Form {
    head: "Below is a list of records. Each record has a number and a six-digit code.\n\n",
    record: "Record {k}: {c}",
    question: "\nWhat is the code of record {k}? Answer with the six digits only.",
};

/// Layouts and questions of the training grammar that have a number as key and digits as code.
const TRAINED: [Form; 6] = [
    Form { head: "", record: "Record {k}: {c}", question: "What is the code of record {k}?" },
    Form { head: "", record: "Locker {k} = {c}", question: "tell me the code of locker {k}" },
    Form { head: "", record: "- Box {k} -> {c}", question: "what about box {k}?" },
    Form { head: "", record: "Order {k} | {c}", question: "I need the number of order {k}." },
    Form { head: "", record: "Ticket #{k}: {c}", question: "which code belongs to ticket {k}?" },
    Form { head: "", record: "Entry {k} has code {c}", question: "entry {k}, please" },
];

impl Form {
    /// One record, its line's end included.
    pub(super) fn line(&self, number: u64, code: &str) -> String {
        self.record.replace("{k}", &number.to_string()).replace("{c}", code) + "\n"
    }

    /// The whole message.
    pub(super) fn prompt(&self, records: &[(u64, String)], asked: u64) -> String {
        let mut prompt = self.head.to_owned();
        for (number, code) in records {
            prompt.push_str(&self.line(*number, code));
        }
        prompt + &self.question.replace("{k}", &asked.to_string())
    }
}
