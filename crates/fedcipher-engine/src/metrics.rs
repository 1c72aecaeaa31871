//! Seconds, bytes and outcomes, as a Prometheus text page.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus::{CounterVec, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};
use std::sync::Arc;

/// Everything an engine counts.
pub struct Metrics {
    registry: Registry,
    /// By phase: `encode`, `encrypt`, `decrypt`, `wait` (for the host).
    pub seconds: CounterVec,
    /// By direction: `values_in`, `frame_out`, `frame_in`, `values_out`.
    pub bytes: IntCounterVec,
    /// By call and outcome, `ok` or a class of `fedcipher.errors`.
    pub calls: IntCounterVec,
    pub streams: IntGauge,
}

impl Metrics {
    pub fn new() -> prometheus::Result<Arc<Self>> {
        let registry = Registry::new_custom(Some("fedcipher_engine".into()), None)?;
        let seconds = CounterVec::new(Opts::new("seconds_total", "Seconds by phase, summed over streams"), &["phase"])?;
        let bytes = IntCounterVec::new(Opts::new("bytes_total", "Bytes by direction"), &["direction"])?;
        let calls = IntCounterVec::new(Opts::new("calls_total", "Calls by outcome"), &["call", "outcome"])?;
        let streams = IntGauge::new("streams", "Streams under way")?;
        registry.register(Box::new(seconds.clone()))?;
        registry.register(Box::new(bytes.clone()))?;
        registry.register(Box::new(calls.clone()))?;
        registry.register(Box::new(streams.clone()))?;
        Ok(Arc::new(Metrics { registry, seconds, bytes, calls, streams }))
    }

    pub fn phase(&self, phase: &str, seconds: f64) {
        self.seconds.with_label_values(&[phase]).inc_by(seconds);
    }

    pub fn moved(&self, direction: &str, bytes: usize) {
        self.bytes.with_label_values(&[direction]).inc_by(bytes as u64);
    }

    /// Counts a call that has ended.
    pub fn ended<T>(&self, call: &str, result: &crate::Result<T>) {
        let outcome = result.as_ref().map_or_else(crate::Error::class, |_| "ok");
        self.calls.with_label_values(&[call, outcome]).inc();
    }

    /// `GET /metrics`.
    pub fn router(self: Arc<Self>) -> Router {
        Router::new().route("/metrics", get(page)).with_state(self)
    }
}

async fn page(State(metrics): State<Arc<Metrics>>) -> impl IntoResponse {
    match TextEncoder::new().encode_to_string(&metrics.registry.gather()) {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], format!("{error}\n")),
    }
}
