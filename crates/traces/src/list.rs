//! What is stored for an image, as its owner sees it.

use super::{Kept, Method, Shape, TraceStore, TraceSummary, check};
use serde::{Deserialize, Serialize};
use std::io;
use utoipa::ToSchema;

/// A trace in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceEntry {
    /// What the trace contains.
    #[serde(flatten)]
    pub summary: TraceSummary,
    /// Who sent it; absent if the sender had no token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uploader: Option<String>,
    /// When it was received, in milliseconds of Unix time.
    pub received_unix_ms: u64,
    /// Its weight in the image's models, in percent; 0 if it doesn't count, because newer traces of the same sender do.
    #[serde(default)]
    pub weight_percent: u32,
}

/// A model in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelEntry {
    /// `floe`, `vtube` or `vmtorrent`.
    pub method: String,
    /// Which training made it, counted from 1.
    pub version: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether it was made from the traces that count now.
    pub current: bool,
}

/// All traces of an image, and the models that were made from them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceList {
    /// The image's id.
    pub image: String,
    /// The traces, oldest first.
    pub traces: Vec<TraceEntry>,
    /// The models.
    pub models: Vec<ModelEntry>,
}

impl TraceList {
    /// Returns what a store has for an owner's image. A trace that can't be read is left out.
    pub fn of(store: &TraceStore, shape: &Shape, owner: &str) -> io::Result<TraceList> {
        let kept = store.traces(&shape.image, owner)?;
        let counting = TraceStore::counting(&kept, owner);
        let digest = TraceStore::digest(&counting);
        let weight_percent = |trace: &Kept| match counting.iter().any(|c| c.hash == trace.hash) {
            true => (100.0 / counting.len() as f64).round().max(1.0) as u32,
            false => 0,
        };
        let mut list = TraceList {
            image: shape.image.to_string(),
            ..Default::default()
        };
        for trace in kept {
            let Some(bytes) = store.read(&shape.image, owner, &trace.hash)? else {
                continue;
            };
            match check(&bytes, shape) {
                Ok(summary) => {
                    let weight_percent = weight_percent(&trace);
                    list.traces.push(TraceEntry {
                        summary,
                        uploader: trace.uploader,
                        received_unix_ms: trace.received_ms,
                        weight_percent,
                    });
                }
                Err(error) => {
                    tracing::warn!(trace = trace.hash.short(), %error, "a kept trace is damaged");
                }
            }
        }
        for method in Method::ALL {
            if let Some(model) = store.model(&shape.image, owner, method.name())? {
                list.models.push(ModelEntry {
                    method: method.name().into(),
                    version: model.version,
                    bytes: std::fs::metadata(&model.path).map_or(0, |found| found.len()),
                    current: model.digest == digest,
                });
            }
        }
        Ok(list)
    }
}
