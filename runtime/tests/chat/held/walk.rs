//! A model that chooses at random among the allowed tokens.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use w4pack_runtime::chat::{ChatText, SpecialTokens};
use w4pack_runtime::constraint::{Allowed, Constraint};

/// The ids that may come next, in order; `vocabulary` ids where all may.
pub fn allowed(constraint: &mut dyn Constraint, vocabulary: u32) -> Vec<u32> {
    match constraint.next().expect("the constraint goes on") {
        Allowed::Anything => (0..vocabulary).collect(),
        Allowed::Only(words) => {
            let bit = |id: &u32| {
                let word = words.get(*id as usize / 32).copied().unwrap_or(0);
                word >> (id % 32) & 1 == 1
            };
            (0..vocabulary).filter(bit).collect()
        }
    }
}

/// How a walk ended.
pub enum Ending {
    /// With a token that ends it, which is the last of these.
    Ended(Vec<u32>),
    /// At the limit: ids and text.
    Cut(Vec<u32>, String),
}

impl Ending {
    /// The ids of a walk that ended.
    pub fn ended(self) -> Vec<u32> {
        match self {
            Ending::Ended(ids) => ids,
            Ending::Cut(_, text) => panic!("no end: {text}"),
        }
    }
}

/// Chooses uniformly for some tokens, and then, since a random text is endless, what closes things
/// where that is allowed.
pub struct Walker<'t> {
    text: &'t ChatText,
    random: ChaCha8Rng,
    wander: usize,
    most: usize,
    ends: Vec<u32>,
    /// What closes things, the outermost first.
    closing: Vec<u32>,
    /// The two quotation marks: `<|"|>` and JSON's.
    quotes: [u32; 2],
    stops_early: bool,
}

impl<'t> Walker<'t> {
    pub fn new(text: &'t ChatText, seed: u64, wander: usize) -> Self {
        let id = |token: &&str| text.tokenizer().id(token).expect("a token");
        let quotes = ["<|\"|>", "\""].map(|quote| id(&quote));
        let closing = ["<channel|>", "<tool_call|>", "}", "]", "<|\"|>", "\""];
        Self {
            text,
            random: ChaCha8Rng::seed_from_u64(seed),
            wander,
            most: 4000,
            ends: text.stop_ids().to_vec(),
            closing: closing.iter().map(id).collect(),
            quotes,
            stops_early: true,
        }
    }

    /// Ends at this token too.
    pub fn until(mut self, id: u32) -> Self {
        self.ends.push(id);
        self
    }

    pub fn at_most(mut self, most: usize) -> Self {
        self.most = most;
        self
    }

    /// While it wanders it does not end the answer.
    pub fn without_stopping_early(mut self) -> Self {
        self.stops_early = false;
        self
    }

    pub fn walk(mut self, constraint: &mut dyn Constraint) -> Ending {
        let mut ids = Vec::new();
        while ids.len() < self.most {
            let mut allowed = allowed(constraint, 2304);
            assert!(!allowed.is_empty(), "nothing is allowed after {ids:?}");
            let wandering = ids.len() < self.wander;
            if wandering && !self.stops_early && allowed.len() > self.ends.len() {
                allowed.retain(|id| !self.ends.contains(id));
            }
            let closing = match self.open_quote(&ids) {
                Some(quote) => Some(quote).filter(|id| allowed.contains(id)),
                None => {
                    let mut order = self.ends.iter().chain(&self.closing).copied();
                    order.find(|id| allowed.contains(id))
                }
            };
            let closing = closing.filter(|_| !wandering);
            let drawn = allowed[(self.random.next_u64() % allowed.len() as u64) as usize];
            let id = closing.unwrap_or(drawn);
            constraint.accept(id).expect("it was allowed");
            ids.push(id);
            if self.ends.contains(&id) {
                return Ending::Ended(ids);
            }
        }
        let text = self.text.tokenizer().decode(&ids, SpecialTokens::Show).expect("text");
        Ending::Cut(ids, text)
    }

    /// The quotation mark that closes the string the ids end in; in a string `}` is text.
    fn open_quote(&self, ids: &[u32]) -> Option<u32> {
        let [token, mark] = self.quotes;
        let tokens = ids.iter().filter(|&&id| id == token).count();
        if tokens % 2 == 1 {
            return Some(token);
        }
        if tokens > 0 {
            return None;
        }
        let text = self.text.tokenizer().decode(ids, SpecialTokens::Show).expect("text");
        let text = text.rsplit("<channel|>").next().unwrap_or_default();
        let (mut open, mut escaped) = (false, false);
        for c in text.chars() {
            match c {
                _ if escaped => escaped = false,
                '\\' if open => escaped = true,
                '"' => open = !open,
                _ => {}
            }
        }
        (open && text.starts_with(['{', '[', '"'])).then_some(mark)
    }
}
