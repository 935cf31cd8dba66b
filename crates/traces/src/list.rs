//! What is kept of an image, as it is shown to its owner.

use super::{Kept, Method, Shape, TraceStore, TraceSummary, check};
use serde::{Deserialize, Serialize};
use std::io;
use utoipa::ToSchema;

/// A trace in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceEntry {
    /// What is in it.
    #[serde(flatten)]
    pub summary: TraceSummary,
    /// Who sent it; absent for somebody without a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uploader: Option<String>,
    /// When it came, Unix time in milliseconds.
    pub received_unix_ms: u64,
    /// Its part in the image's models, in percent: 0 if newer traces of the same sender count instead.
    #[serde(default)]
    pub weight_percent: u32,
}

/// A model in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModelEntry {
    /// `floe`, `vtube` or `vmtorrent`.
    pub method: String,
    /// Counts trainings, from 1.
    pub version: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether it was made of the traces that are kept now.
    pub current: bool,
}

/// All traces of an image, and what was made of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceList {
    /// The image's id.
    pub image: String,
    /// Oldest first.
    pub traces: Vec<TraceEntry>,
    /// Models.
    pub models: Vec<ModelEntry>,
}

impl TraceList {
    /// What a store has of an owner's image. A trace that can't be read is left out.
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
