//! Launches captured once and run as one, and how long they take.

use super::error::{Attempt, CudaError, Result};
use super::gpu::{Gpu, without_captures};
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use std::sync::Arc;

impl Gpu {
    /// Captures what `record` launches as a graph.
    pub fn capture<E: From<CudaError>>(
        &self,
        record: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Graph, E> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let _alone = without_captures();
        self.stream.begin_capture(mode).attempt("beginning a capture")?;
        let recorded = record();
        // SAFETY: the stream is capturing since the call above.
        let ended = unsafe { result::stream::end_capture(self.stream.cu_stream()) };
        recorded?;
        let graph = ended.attempt("ending a capture")?;
        // SAFETY: the graph was just captured; flags 0 are the defaults.
        let made = unsafe {
            let mut executable = std::ptr::null_mut();
            sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0)
                .result()
                .map(|()| executable)
        };
        // SAFETY: the executable graph does not need the captured one.
        let _ = unsafe { result::graph::destroy(graph) };
        let executable = made.attempt("making a graph executable")?;
        let graph = Graph { context: self.context.clone(), executable };
        // SAFETY: both are live and of one context.
        unsafe { result::graph::upload(graph.executable, self.stream.cu_stream()) }
            .attempt("uploading a graph")?;
        Ok(graph)
    }

    /// Runs a graph in the stream.
    pub fn run(&self, graph: &Graph) -> Result<()> {
        // SAFETY: both are live and of one context.
        unsafe { result::graph::launch(graph.executable, self.stream.cu_stream()) }
            .attempt("launching a graph")
    }

    /// A clock of the stream.
    pub fn timer(&self) -> Result<Timer> {
        let event = || self.context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT));
        let (begin, end) =
            (event().attempt("making an event")?, event().attempt("making an event")?);
        Ok(Timer { stream: self.stream.clone(), begin, end })
    }
}

/// A captured sequence of launches.
#[derive(Debug)]
pub struct Graph {
    context: Arc<CudaContext>,
    executable: sys::CUgraphExec,
}

// SAFETY: used by one owner at a time, see `Gpu`.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: made by `capture`; the driver waits for a run that is under way.
        let _ = unsafe { result::graph::exec_destroy(self.executable) };
    }
}

/// Measures what the card does between two points.
pub struct Timer {
    stream: Arc<CudaStream>,
    begin: cudarc::driver::CudaEvent,
    end: cudarc::driver::CudaEvent,
}

impl Timer {
    /// Seconds that the card takes for what `work` launches.
    pub fn measure<E: From<CudaError>>(
        &self,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<f64, E> {
        self.begin.record(&self.stream).attempt("recording an event")?;
        work()?;
        self.end.record(&self.stream).attempt("recording an event")?;
        self.end.synchronize().attempt("waiting for the card")?;
        let milliseconds = self.begin.elapsed_ms(&self.end).attempt("reading an event")?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}
