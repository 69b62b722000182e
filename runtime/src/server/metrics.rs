//! What is counted, in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::answer::{Ending, Finish};
use super::service::Service;

/// Upper bounds of the times to a first token, in seconds.
const FIRST_TOKEN_BOUNDS: [f64; 11] =
    [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0];
/// Upper bounds of answers' speeds, in tokens a second.
const SPEED_BOUNDS: [f64; 11] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0];

/// The server's own counts; the engine's are asked for when somebody looks.
pub struct Metrics {
    started: Instant,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Requests by path and status.
    requests: BTreeMap<(String, u16), u64>,
    /// Answers by the reason they ended with.
    answers: BTreeMap<&'static str, u64>,
    cancelled: u64,
    failed: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    completion_tokens: u64,
    first_token: Histogram<{ FIRST_TOKEN_BOUNDS.len() }>,
    speed: Histogram<{ SPEED_BOUNDS.len() }>,
}

struct Histogram<const N: usize> {
    within: [u64; N],
    count: u64,
    sum: f64,
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self { within: [0; N], count: 0, sum: 0.0 }
    }
}

impl<const N: usize> Histogram<N> {
    fn observe(&mut self, bounds: &[f64; N], value: f64) {
        for (within, bound) in self.within.iter_mut().zip(bounds) {
            *within += u64::from(value <= *bound);
        }
        self.count += 1;
        self.sum += value;
    }

    fn write(&self, text: &mut Page, name: &str, help: &str, bounds: &[f64; N]) {
        text.head(name, "histogram", help);
        for (within, bound) in self.within.iter().zip(bounds) {
            text.line(&format!("{name}_bucket{{le=\"{bound}\"}}"), *within);
        }
        text.line(&format!("{name}_bucket{{le=\"+Inf\"}}"), self.count);
        text.line(&format!("{name}_sum"), self.sum);
        text.line(&format!("{name}_count"), self.count);
    }
}

impl Metrics {
    pub fn new() -> Self {
        Self { started: Instant::now(), counts: Mutex::default() }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Plain numbers: whatever a panic left there is as good as before.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request was answered. `path` is the route's, so that strangers' paths are one line.
    pub fn request(&self, path: &str, status: u16) {
        *self.counts().requests.entry((path.to_owned(), status)).or_default() += 1;
    }

    /// An answer got its first token, so long after its request.
    pub fn first_token(&self, after: Duration) {
        self.counts().first_token.observe(&FIRST_TOKEN_BOUNDS, after.as_secs_f64());
    }

    /// An answer came to its end.
    pub fn answered(&self, ending: &Ending) {
        let summary = &ending.summary;
        let mut counts = self.counts();
        *counts.answers.entry(ending.finish.name()).or_default() += 1;
        counts.prompt_tokens += summary.prompt_tokens as u64;
        counts.cached_tokens += summary.cached_tokens as u64;
        counts.completion_tokens += summary.completion_tokens as u64;
        if summary.completion_tokens > 1 && !summary.decode.is_zero() {
            let speed = (summary.completion_tokens - 1) as f64 / summary.decode.as_secs_f64();
            counts.speed.observe(&SPEED_BOUNDS, speed);
        }
    }

    /// A client went away from so many answers.
    pub fn cancelled(&self, answers: usize) {
        self.counts().cancelled += answers as u64;
    }

    /// A request whose answers could not go on.
    pub fn failed(&self) {
        self.counts().failed += 1;
    }

    /// All of it, and of the engine's if it is there.
    pub fn page(&self, service: Option<&Service>) -> String {
        let mut page = Page::default();
        page.head("w4pack_info", "gauge", "The version that runs.");
        page.line(concat!("w4pack_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}"), 1);
        page.one(
            "w4pack_uptime_seconds",
            "gauge",
            "Since the start.",
            self.started.elapsed().as_secs_f64(),
        );
        page.one(
            "w4pack_ready",
            "gauge",
            "1 once the model is loaded.",
            u8::from(service.is_some()),
        );
        let counts = self.counts();
        page.head("w4pack_requests_total", "counter", "HTTP requests by route and status.");
        for ((path, status), count) in &counts.requests {
            page.line(
                &format!("w4pack_requests_total{{path=\"{path}\",status=\"{status}\"}}"),
                *count,
            );
        }
        page.head("w4pack_answers_total", "counter", "Answers that came to their end, by reason.");
        for finish in [Finish::Stop, Finish::Length, Finish::ToolCalls].map(Finish::name) {
            let count = counts.answers.get(finish).copied().unwrap_or(0);
            page.line(&format!("w4pack_answers_total{{finish_reason=\"{finish}\"}}"), count);
        }
        page.one(
            "w4pack_cancelled_total",
            "counter",
            "Answers whose client went away.",
            counts.cancelled,
        );
        page.one(
            "w4pack_failed_total",
            "counter",
            "Requests that the engine could not go on with.",
            counts.failed,
        );
        page.one(
            "w4pack_prompt_tokens_total",
            "counter",
            "Tokens of answered prompts.",
            counts.prompt_tokens,
        );
        page.one(
            "w4pack_cached_tokens_total",
            "counter",
            "Those of them that the cache held.",
            counts.cached_tokens,
        );
        page.one(
            "w4pack_completion_tokens_total",
            "counter",
            "Tokens of answers.",
            counts.completion_tokens,
        );
        let first = "Seconds from a request to the first token of its answers.";
        counts.first_token.write(
            &mut page,
            "w4pack_time_to_first_token_seconds",
            first,
            &FIRST_TOKEN_BOUNDS,
        );
        let speed = "Tokens a second behind an answer's first.";
        counts.speed.write(&mut page, "w4pack_decode_tokens_per_second", speed, &SPEED_BOUNDS);
        drop(counts);
        if let Some(service) = service {
            engine(&mut page, service);
        }
        if let Some(bytes) = resident_bytes() {
            page.one("process_resident_memory_bytes", "gauge", "Memory of the process.", bytes);
        }
        page.text
    }
}

/// What the engine's thread counts.
fn engine(page: &mut Page, service: &Service) {
    let gauges = service.scheduler.gauges();
    let weights = service.scheduler.memory_plan().total(0);
    let (prefill, decode) = (gauges.prefill.as_secs_f64(), gauges.decode.as_secs_f64());
    let lines: [(&str, &str, &str, f64); 19] = [
        ("w4pack_slots", "gauge", "Answers that can be made at once.", gauges.slots as f64),
        ("w4pack_running", "gauge", "Answers in the making.", gauges.running as f64),
        ("w4pack_waiting", "gauge", "Answers that wait for a slot.", gauges.waiting as f64),
        ("w4pack_queue_limit", "gauge", "Answers that may wait.", gauges.queue as f64),
        (
            "w4pack_queue_full_total",
            "counter",
            "Refused: the queue was full.",
            gauges.queue_full as f64,
        ),
        (
            "w4pack_engine_prompt_tokens_total",
            "counter",
            "Prompt tokens read.",
            gauges.prompt_tokens as f64,
        ),
        (
            "w4pack_engine_generated_tokens_total",
            "counter",
            "Tokens generated.",
            gauges.generated_tokens as f64,
        ),
        ("w4pack_engine_prefill_seconds_total", "counter", "Time spent on prompts.", prefill),
        ("w4pack_engine_decode_seconds_total", "counter", "Time spent on answers.", decode),
        (
            "w4pack_drafted_tokens_total",
            "counter",
            "Tokens guessed ahead and tried.",
            gauges.drafted_tokens as f64,
        ),
        (
            "w4pack_accepted_tokens_total",
            "counter",
            "Those of them that answers have.",
            gauges.accepted_tokens as f64,
        ),
        (
            "w4pack_cache_hits_total",
            "counter",
            "Prompts found in a slot in part.",
            gauges.cache_hits as f64,
        ),
        (
            "w4pack_cache_hit_tokens_total",
            "counter",
            "Their tokens, not read again.",
            gauges.cached_tokens as f64,
        ),
        (
            "w4pack_cache_disk_hits_total",
            "counter",
            "Prompts that came from disk.",
            gauges.disk_hits as f64,
        ),
        (
            "w4pack_cached_positions",
            "gauge",
            "Positions that slots hold now.",
            gauges.cached_positions as f64,
        ),
        ("w4pack_weights_bytes", "gauge", "Memory of weights and work space.", weights as f64),
        ("w4pack_slots_bytes", "gauge", "Memory of slots.", gauges.slot_bytes as f64),
        (
            "w4pack_checkpoints_bytes",
            "gauge",
            "Memory of copies to go back to.",
            gauges.checkpoint_bytes as f64,
        ),
        ("w4pack_cache_disk_bytes", "gauge", "Disk of kept prompts.", gauges.disk_bytes as f64),
    ];
    for (name, kind, help, value) in lines {
        page.one(name, kind, help, value);
    }
}

/// The text in the making.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n")
            .expect("a String takes all");
    }

    fn line(&mut self, name: &str, value: impl std::fmt::Display) {
        writeln!(self.text, "{name} {value}").expect("a String takes all");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, kind, help);
        self.line(name, value);
    }
}

/// What the process holds in memory; `None` where the system does not say.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_all_that_is_below_their_bound() {
        let metrics = Metrics::new();
        for milliseconds in [5, 50, 50, 400_000] {
            metrics.first_token(Duration::from_millis(milliseconds));
        }
        let page = metrics.page(None);
        let line = |bound: &str, count: u64| {
            format!("w4pack_time_to_first_token_seconds_bucket{{le=\"{bound}\"}} {count}\n")
        };
        for (bound, count) in [("0.01", 1), ("0.03", 1), ("0.1", 3), ("300", 3), ("+Inf", 4)] {
            assert!(page.contains(&line(bound, count)), "{page}");
        }
        assert!(page.contains("w4pack_time_to_first_token_seconds_count 4\n"));
    }
}
