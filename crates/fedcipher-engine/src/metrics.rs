//! Seconds, bytes and outcomes, as a Prometheus text page.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use fedcipher_core::rlwe::accelerator::Usage;
use prometheus::{Counter, CounterVec, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};
use std::sync::Arc;

/// The counters of an engine.
pub struct Metrics {
    registry: Registry,
    /// By phase: `encode`, `encrypt`, `decrypt`, `wait` (for the host).
    pub seconds: CounterVec,
    /// By direction: `values_in`, `frame_out`, `frame_in`, `values_out`.
    pub bytes: IntCounterVec,
    /// By call and outcome, `ok` or a class of `fedcipher.errors`.
    pub calls: IntCounterVec,
    pub streams: IntGauge,
    /// An accelerator's counters by kind: cycles of `prepare`, `encrypt`, `decrypt` and `key`, `ciphertexts`,
    /// `bytes_to`, `bytes_from`, and `fallbacks` to the core.
    pub accelerator: IntCounterVec,
    /// Seconds on the link to an accelerator, according to the link's model.
    pub link_seconds: Counter,
    /// Seconds of this process's own work beside an accelerator, and seconds that it waited for the accelerator.
    pub host_seconds: Counter,
    pub wait_seconds: Counter,
}

impl Metrics {
    pub fn new() -> prometheus::Result<Arc<Self>> {
        let registry = Registry::new_custom(Some("fedcipher_engine".into()), None)?;
        let seconds = CounterVec::new(Opts::new("seconds_total", "Seconds by phase, summed over streams"), &["phase"])?;
        let bytes = IntCounterVec::new(Opts::new("bytes_total", "Bytes by direction"), &["direction"])?;
        let calls = IntCounterVec::new(Opts::new("calls_total", "Calls by outcome"), &["call", "outcome"])?;
        let streams = IntGauge::new("streams", "Streams under way")?;
        let accelerator =
            IntCounterVec::new(Opts::new("accelerator_total", "Work of an accelerator by kind"), &["kind"])?;
        let link_seconds =
            Counter::new("accelerator_link_seconds_total", "Seconds on an accelerator's link, modelled")?;
        let host_seconds = Counter::new("accelerator_host_seconds_total", "Seconds of work beside an accelerator")?;
        let wait_seconds = Counter::new("accelerator_wait_seconds_total", "Seconds of waiting for an accelerator")?;
        registry.register(Box::new(accelerator.clone()))?;
        registry.register(Box::new(link_seconds.clone()))?;
        registry.register(Box::new(host_seconds.clone()))?;
        registry.register(Box::new(wait_seconds.clone()))?;
        registry.register(Box::new(seconds.clone()))?;
        registry.register(Box::new(bytes.clone()))?;
        registry.register(Box::new(calls.clone()))?;
        registry.register(Box::new(streams.clone()))?;
        Ok(Arc::new(Metrics {
            registry,
            seconds,
            bytes,
            calls,
            streams,
            accelerator,
            link_seconds,
            host_seconds,
            wait_seconds,
        }))
    }

    pub fn phase(&self, phase: &str, seconds: f64) {
        self.seconds.with_label_values(&[phase]).inc_by(seconds);
    }

    pub fn moved(&self, direction: &str, bytes: usize) {
        self.bytes.with_label_values(&[direction]).inc_by(bytes as u64);
    }

    /// Adds an accelerator's counters. Cycles, the link's seconds and the host's seconds are never added together.
    pub fn accelerated(&self, usage: &Usage) {
        for (kind, value) in [
            ("prepare_cycles", usage.prepare_cycles),
            ("encrypt_cycles", usage.encrypt_cycles),
            ("decrypt_cycles", usage.decrypt_cycles),
            ("key_cycles", usage.key_cycles),
            ("ciphertexts", usage.ciphertexts),
            ("bytes_to", usage.bytes_to),
            ("bytes_from", usage.bytes_from),
            ("fallbacks", usage.fallbacks),
        ] {
            self.accelerator.with_label_values(&[kind]).inc_by(value);
        }
        self.link_seconds.inc_by(usage.link_seconds);
        self.host_seconds.inc_by(usage.host_seconds);
        self.wait_seconds.inc_by(usage.wait_seconds);
    }

    /// Counts a finished call.
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
