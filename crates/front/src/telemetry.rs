//! Logs and metrics.
//!
//! Logs go to standard error with `tracing`: warnings and errors by default, as text or as JSON lines. Metrics are
//! declared once, in [`METRICS`], with unit and meaning; `/metrics` of node and hub render the same table.

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::sync::OnceLock;
use tracing_subscriber::EnvFilter;

/// Settings of the log.
#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    /// JSON lines instead of text.
    pub json: bool,
    /// 0: warnings; 1: info; 2: debug; 3 and more: trace. The variable `FLOE_LOG` (a `tracing` filter) overrides this.
    pub verbosity: u8,
}

/// The environment variable with a `tracing` filter such as `info,floe_hub=debug`.
pub const LOG_VARIABLE: &str = "FLOE_LOG";

/// Starts logging to standard error. Only the first call in a process has an effect.
pub fn init_logs(options: &LogOptions) {
    let level = match options.verbosity {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = std::env::var(LOG_VARIABLE)
        .ok()
        .and_then(|text| EnvFilter::try_new(text).ok())
        .unwrap_or_else(|| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // these would also go to standard error, and a thread that can't write there (full disk) would panic
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    let started = if options.json {
        builder.json().flatten_event(true).try_init().is_ok()
    } else {
        builder.with_target(false).compact().try_init().is_ok()
    };
    if !started {
        tracing::debug!("logs were already set up by this process");
    }
}

/// How a metric's value changes over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only increases.
    Counter,
    /// It increases and decreases.
    Gauge,
    /// A distribution, in the buckets of [`LATENCY_BUCKETS_S`].
    Histogram,
}

/// One metric: its name carries the unit as Prometheus wants it (`_bytes`, `_seconds`, `_total`).
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The full name.
    pub name: &'static str,
    /// How its value changes over time.
    pub kind: MetricKind,
    /// What it means, in one sentence.
    pub help: &'static str,
}

/// Upper bounds of latency buckets, in seconds: from a read out of memory to a slow upload.
pub const LATENCY_BUCKETS_S: [f64; 15] = [
    0.000_01, 0.000_03, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5,
    2.0, 10.0, 60.0,
];

macro_rules! metrics_table {
    ($($id:ident $kind:ident $name:literal $help:literal;)*) => {
        $(#[doc = $help] pub const $id: &str = $name;)*
        /// Every metric that floe's daemons export.
        pub const METRICS: &[Metric] = &[$(Metric { name: $name, kind: MetricKind::$kind, help: $help }),*];
    };
}

metrics_table! {
    HUB_REQUESTS Counter "floe_hub_requests_total" "Requests that the hub answered, by route and status.";
    HUB_REQUEST_SECONDS Histogram "floe_hub_request_seconds" "Time from a request's head to its answer's head, by route.";
    HUB_CONNECTIONS Gauge "floe_hub_connections" "Open connections.";
    HUB_REFUSED_CONNECTIONS Counter "floe_hub_refused_connections_total" "Connections closed at once because of a limit.";
    HUB_READ_ITEMS Counter "floe_hub_read_items_total" "Chunks and segments served by batch reads, by where they were found (memory or disk).";
    HUB_READ_BYTES Counter "floe_hub_read_bytes_total" "Bytes sent by batch reads.";
    HUB_CACHE_BYTES Gauge "floe_hub_cache_bytes" "Decompressed frames held in memory.";
    HUB_UPLOAD_BYTES Counter "floe_hub_upload_bytes_total" "Bytes of verified packs received.";
    HUB_UPLOADS_REFUSED Counter "floe_hub_uploads_refused_total" "Packs and commits that failed verification, by reason.";
    HUB_TRACES Counter "floe_hub_traces_total" "Traces of machines that were taken.";
    HUB_TRACES_REFUSED Counter "floe_hub_traces_refused_total" "Traces that were none, or not of their image.";
    HUB_IMAGES Gauge "floe_hub_images" "Published images.";
    HUB_WRONG_TOKENS Counter "floe_hub_wrong_tokens_total" "Requests with an unknown token.";
    NODE_MACHINES Gauge "floe_node_machines" "Machines, running or not.";
    NODE_STANDBY Gauge "floe_node_standby" "Standby QEMUs: they wait with an image's state loaded, for its next run.";
    NODE_CACHE_BYTES Gauge "floe_node_cache_bytes" "Bytes of chunks and segments in the cache.";
    NODE_CACHE_HITS Counter "floe_node_cache_hits_total" "Reads that the cache answered.";
    NODE_CACHE_MISSES Counter "floe_node_cache_misses_total" "Reads that a source had to answer.";
    NODE_FAULTS Counter "floe_node_region_reads_total" "First touches of images' memory and disks by the kernel.";
    NODE_DISK_READS Counter "floe_node_disk_reads_total" "Read requests of machines' disks.";
    NODE_DISK_WRITES Counter "floe_node_disk_writes_total" "Write requests of machines' disks.";
    NODE_WAITS Counter "floe_node_waits_total" "Requests that had to wait for a source.";
    NODE_WAIT_SECONDS Counter "floe_node_wait_seconds_total" "Time that requests waited for sources, whole seconds.";
    NODE_IO_ERRORS Counter "floe_node_io_errors_total" "Requests answered with an I/O error.";
    NODE_SWARMS Gauge "floe_node_swarms" "Swarms that this node is in.";
    NODE_SWARM_HOSTS Gauge "floe_node_swarm_hosts" "Connections to other hosts of these swarms.";
    NODE_SWARM_PIECES Gauge "floe_node_swarm_pieces" "Pieces of these swarms' images that are here.";
    NODE_SWARM_NEEDED Gauge "floe_node_swarm_pieces_needed" "Pieces that machines wait for.";
    NODE_SWARM_RECEIVED_BYTES Counter "floe_node_swarm_received_bytes_total" "Bytes that came for swarms, from the hub or from other hosts.";
    NODE_SWARM_SENT_BYTES Counter "floe_node_swarm_sent_bytes_total" "Bytes that went to other hosts of swarms.";
    NODE_STAGE_SECONDS Histogram "floe_node_stage_seconds" "Time of the stages of long calls, by stage.";
}

static METRICS_HANDLE: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Starts collecting metrics in this process at the first call, and returns the handle that renders them; `None` if
/// another recorder was installed before.
pub fn metrics() -> Option<&'static PrometheusHandle> {
    METRICS_HANDLE
        .get_or_init(|| {
            let recorder = PrometheusBuilder::new()
                .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &LATENCY_BUCKETS_S)
                .ok()?
                .build_recorder();
            let handle = recorder.handle();
            metrics::set_global_recorder(recorder).ok()?;
            for metric in METRICS {
                match metric.kind {
                    MetricKind::Counter => metrics::describe_counter!(metric.name, metric.help),
                    MetricKind::Gauge => metrics::describe_gauge!(metric.name, metric.help),
                    MetricKind::Histogram => metrics::describe_histogram!(metric.name, metric.help),
                }
            }
            Some(handle)
        })
        .as_ref()
}

/// Returns the text of `/metrics`, in Prometheus' exposition format.
pub fn render_metrics() -> String {
    metrics()
        .map(|handle| {
            handle.run_upkeep();
            handle.render()
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_declared_once_with_its_meaning() {
        let mut names: Vec<_> = METRICS.iter().map(|m| m.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METRICS.len());
        for metric in METRICS {
            assert!(metric.name.starts_with("floe_"), "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}", metric.name);
        }
    }

    #[test]
    fn what_was_counted_is_rendered_with_its_help() {
        metrics().expect("the only recorder of this test process");
        metrics::counter!(HUB_UPLOAD_BYTES).increment(17);
        metrics::histogram!(HUB_REQUEST_SECONDS, "route" => "test").record(0.000_02);
        let text = render_metrics();
        assert!(
            text.contains("# HELP floe_hub_upload_bytes_total Bytes of verified packs received."),
            "{text}"
        );
        assert!(text.contains("floe_hub_upload_bytes_total"), "{text}");
        assert!(
            text.contains("floe_hub_request_seconds_bucket{route=\"test\",le=\"0.00003\"} 1"),
            "{text}"
        );
    }
}
