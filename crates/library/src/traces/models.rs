//! Brings models to the planner: a model is fetched while a machine starts, and never delays the start.
//!
//! A run asks the hub that its image came from while the mount, QEMU and the state are made ready, and passes the model on
//! once both it and the image are there. For a model that was fetched before, the hub is only asked whether it is still the
//! same. Without an answer, or with one that is not a model of this image, the machine runs without a model.
//!
//! An image that nobody has run yet, but that was captured from one with a model, is run with that model: most of what such a
//! guest touches, and when, is the same as for its parent.

use crate::traces::{Traces, outbox::Destination};
use floe_ground::{
    files::{oldest_first, replace_file},
    news::News,
};
use floe_image::{Hash, Manifest};
use floe_inventory::inventory::record::Origin;
use floe_mount::ImageHandle;
use floe_source::Fetcher;
use floe_traces::{Method, Model};
use floe_transfer::{Cancel, TransferError};
use parking_lot::Mutex;
use std::{path::PathBuf, sync::Arc, time::Duration};

/// How long a hub may take to send a model. The model is useful at any time, but most in the beginning.
const FETCH_TIMEOUT: Duration = Duration::from_secs(20);
/// For how many images sizes are remembered.
const SIZES_MAX: usize = 1024;
/// How many ancestors of an image without a model are asked for one: each takes a round trip over a slow link.
const ANCESTORS_MAX: usize = 4;
/// How many fetched models are kept; beyond that the oldest are deleted.
const KEPT_MAX: usize = 64;

/// Brings a model and the image's handle together, whichever comes first.
#[derive(Clone, Default)]
pub struct Coming(Arc<Mutex<Meeting>>);

#[derive(Default)]
enum Meeting {
    /// Neither is there.
    #[default]
    Nobody,
    /// Only the model is there.
    Model(Arc<Model>),
    /// The image is on the mount.
    Image(ImageHandle),
}

impl Coming {
    /// Notes that the image is on the mount now.
    pub fn image(&self, image: &ImageHandle) {
        let mut meeting = self.0.lock();
        match std::mem::take(&mut *meeting) {
            Meeting::Model(model) => image.model(model),
            Meeting::Nobody | Meeting::Image(_) => *meeting = Meeting::Image(image.clone()),
        }
    }

    fn model(&self, model: Arc<Model>) {
        let mut meeting = self.0.lock();
        match std::mem::take(&mut *meeting) {
            Meeting::Image(image) => image.model(model),
            Meeting::Nobody | Meeting::Model(_) => *meeting = Meeting::Model(model),
        }
    }
}

/// Returns which kind of model a rule follows.
fn method_of(prefetch: floe_api::Prefetch) -> Method {
    match prefetch {
        floe_api::Prefetch::Floe => Method::Floe,
        floe_api::Prefetch::Vtube => Method::VTube,
    }
}

impl Traces {
    /// Starts fetching the model that an image is to be streamed by, and finds out how large the image is.
    pub fn fetch_model(
        self: &Arc<Self>,
        image: Hash,
        manifest: Manifest,
        origin: &Origin,
        fetcher: Arc<Fetcher>,
    ) -> Coming {
        let coming = Coming::default();
        let (traces, to) = (self.clone(), coming.clone());
        let hub = Destination::of(image, origin, self.core.options.own_hub.as_ref());
        let method = method_of(origin.prefetch);
        let fetch = move || {
            match traces.model_for(&image, method, &manifest, hub.as_ref(), &fetcher) {
                Ok(Some((model, of))) => {
                    tracing::info!(
                        image = image.short(),
                        of = of.short(),
                        rule = method.name(),
                        traces = model.traces(),
                        "model loaded"
                    );
                    to.model(Arc::new(model));
                }
                Ok(None) => {}
                Err(why) => {
                    let news = News::ImageWithoutModel(why);
                    traces.core.tell(&image.short(), &news);
                }
            }
            if hub.is_some() {
                traces.learn_size(image, &fetcher);
            }
        };
        if let Err(error) = self.core.threads.start("model-fetch", fetch) {
            tracing::warn!(%error, "no thread to fetch a model");
        }
        coming
    }

    /// Returns the usual model of an image, if there is one; asks its hub. The error is for a human.
    pub fn known_model(
        &self,
        image: Hash,
        manifest: &Manifest,
        origin: &Origin,
        fetcher: &Fetcher,
    ) -> Result<Option<Model>, String> {
        let hub = Destination::of(image, origin, self.core.options.own_hub.as_ref());
        let found = self.model_for(&image, Method::Floe, manifest, hub.as_ref(), fetcher)?;
        Ok(found.map(|(model, _)| model))
    }

    /// Returns the model for an image, its own or an ancestor's, and whose it is.
    fn model_for(
        &self,
        image: &Hash,
        method: Method,
        manifest: &Manifest,
        hub: Option<&Destination>,
        fetcher: &Fetcher,
    ) -> Result<Option<(Model, Hash)>, String> {
        match self.find_model(image, method, hub) {
            Ok(None) => self.inherited_model(image, method, manifest, hub, fetcher),
            found => found.map(|model| model.map(|model| (model, *image))),
        }
    }

    /// Fetches the models of machines that were taken over from an earlier node.
    pub fn fetch_models_again(self: &Arc<Self>) {
        for entry in self.inventory.all() {
            let (record, image, fetcher) = {
                let state = entry.state();
                if let Some(disks) = &state.disks {
                    disks.stream(true);
                }
                let image = state.images.first().cloned();
                (state.record.clone(), image, state.fetcher.clone())
            };
            if let (Some(image), Some(fetcher)) = (image, fetcher) {
                let Ok(manifest) = self.images.manifest_of(&entry.dir, &record.image) else {
                    continue;
                };
                self.fetch_model(record.image, manifest, &record.origin, fetcher)
                    .image(&image);
            }
        }
    }

    /// Finds out the size of the compressed image, from which the bytes that were not needed are computed.
    fn learn_size(&self, image: Hash, fetcher: &Fetcher) {
        if let Ok(Some(layout)) = fetcher.source().layout(&image) {
            let bytes = layout.packs.iter().map(|pack| pack.file_bytes).sum();
            let mut known = self.image_bytes.lock();
            if known.len() >= SIZES_MAX {
                known.clear();
            }
            known.insert(image, bytes);
        }
    }

    /// Returns an image's model, from its hub or made here; `None` if there is none. The error is for a human.
    fn find_model(
        &self,
        image: &Hash,
        method: Method,
        hub: Option<&Destination>,
    ) -> Result<Option<Model>, String> {
        let fetched = match hub {
            Some(hub) => self.fetch_from(hub, method),
            None => Ok(None),
        };
        let bytes = match fetched {
            Ok(Some(bytes)) => Ok(Some(bytes)),
            other => match self.local_model(image, method) {
                Some(bytes) => Ok(Some(bytes)),
                None => other,
            },
        };
        let Some(bytes) = bytes? else {
            return Ok(None);
        };
        let model = verified(&bytes, image).and_then(|model| of_method(model, method));
        if model.is_err() {
            // the damaged model must not be used the next time
            let _ = std::fs::remove_file(self.model_file(image, method));
        }
        model.map(Some)
    }

    /// Returns the model of the nearest ancestor that has one and the same layout as this image, and that ancestor's id.
    fn inherited_model(
        &self,
        image: &Hash,
        method: Method,
        manifest: &Manifest,
        hub: Option<&Destination>,
        fetcher: &Fetcher,
    ) -> Result<Option<(Model, Hash)>, String> {
        let mut parent = manifest.parent;
        for _ in 0..ANCESTORS_MAX {
            let Some(id) = parent else { break };
            let at_hub = hub.map(|hub| hub.about(id));
            let found = self.find_model(&id, method, at_hub.as_ref())?;
            let ancestor = fetcher.source().manifest(&id);
            let ancestor = match ancestor {
                Ok(manifest) => manifest,
                // an ancestor that is gone or not accessible is not an error of this image
                Err(_) => break,
            };
            if let Some(model) = found {
                return Ok(same_layout(&model, &ancestor, manifest)
                    .then(|| (model.inherited_by(*image), id)));
            }
            parent = ancestor.parent;
        }
        Ok(None)
    }

    /// The file that keeps an image's model of a kind.
    pub(crate) fn model_file(&self, image: &Hash, method: Method) -> PathBuf {
        let name = match method {
            Method::Floe => format!("{image}.model"),
            other => format!("{image}.{}.model", other.name()),
        };
        self.core.home.models().join(name)
    }

    fn fetch_from(&self, hub: &Destination, method: Method) -> Result<Option<Vec<u8>>, String> {
        let file = self.model_file(&hub.image, method);
        let known = std::fs::read(&file).ok();
        let seen = known.as_deref().map(Hash::of);
        let asked = hub
            .client(FETCH_TIMEOUT, &Cancel::default())
            .and_then(|client| client.model(&hub.image, method, seen.as_ref()));
        match asked {
            Ok(same) if same.is_empty() => Ok(known),
            Ok(bytes) => {
                let kept = floe_store::private::make_dirs(&self.core.home.models());
                if kept.is_err() || replace_file(&file, &bytes).is_err() {
                    tracing::debug!("a fetched model was not kept");
                }
                self.drop_old_models();
                Ok(Some(bytes))
            }
            // there is no model yet, or the server does not know of models
            Err(TransferError::Refused {
                status: 404 | 405, ..
            }) => Ok(None),
            // a model that was fetched before is better than none
            Err(error) => known.map_or(Err(error.to_string()), |bytes| Ok(Some(bytes))),
        }
    }

    fn drop_old_models(&self) {
        let files = oldest_first(&self.core.home.models());
        let excess = files.len().saturating_sub(KEPT_MAX);
        for path in &files[..excess] {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether all regions that a model of `parent` refers to are in the same place in `child`.
fn same_layout(model: &Model, parent: &Manifest, child: &Manifest) -> bool {
    let at = |manifest: &Manifest, number: u8| {
        let region = manifest.regions.get(usize::from(number));
        region.map(|region| (region.name.clone(), region.size))
    };
    model.regions().into_iter().all(|number| {
        let of_parent = at(parent, number);
        of_parent.is_some() && of_parent == at(child, number)
    })
}

/// Decodes a model of this image, or returns why the bytes are not one.
pub(crate) fn verified(bytes: &[u8], image: &Hash) -> Result<Model, String> {
    let model = Model::decode(bytes).map_err(|error| error.to_string())?;
    if model.image() != *image {
        return Err(format!("it is of image {}", model.image().short()));
    }
    Ok(model)
}

/// Returns a model if it is of this kind, or says that it is not.
fn of_method(model: Model, method: Method) -> Result<Model, String> {
    match model.method() == method {
        true => Ok(model),
        false => Err(format!(
            "it is one for {}, not for {}",
            model.method().name(),
            method.name()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_image::{Access, TraceHeader, TraceWriter};
    use floe_traces::learn;

    /// Returns a trace of two first accesses, each to a region's chunk.
    fn trace(image: Hash, touches: [(u8, u32); 2]) -> Vec<u8> {
        let header = TraceHeader {
            image,
            machine: "web".into(),
            start_unix_us: 0,
        };
        let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
        for (t_us, (region, chunk)) in (0..).step_by(10).zip(touches) {
            let access = Access {
                region,
                chunk,
                t_us,
                wait_us: 0,
            };
            writer.push(access).unwrap();
        }
        writer.into_inner()
    }

    #[test]
    fn a_model_that_is_damaged_or_another_images_is_refused() {
        let (image, other) = (Hash::of(b"image"), Hash::of(b"other"));
        let trace = trace(image, [(0, 1), (0, 2)]);
        let bytes = learn(Method::Floe, &image, &[trace]).unwrap();
        assert_eq!(verified(&bytes, &image).unwrap().image(), image);
        assert!(verified(&bytes, &other).unwrap_err().contains("of image"));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(verified(&damaged, &image).is_err(), "byte {at}");
            assert!(verified(&bytes[..at], &image).is_err(), "length {at}");
        }
    }

    #[test]
    fn a_model_for_another_rule_is_refused() {
        let image = Hash::of(b"image");
        let trace = trace(image, [(0, 1), (0, 2)]);
        let rules = [floe_api::Prefetch::Floe, floe_api::Prefetch::Vtube];
        for method in rules.map(method_of) {
            let bytes = learn(method, &image, std::slice::from_ref(&trace)).unwrap();
            let model = verified(&bytes, &image).unwrap();
            assert_eq!(of_method(model.clone(), method).unwrap(), model);
            let error = of_method(model, Method::VmTorrent).unwrap_err();
            assert!(error.contains(method.name()), "{error}");
        }
    }

    #[test]
    fn a_model_is_inherited_where_the_regions_it_speaks_of_are_the_same() {
        let region = |name: &str, size| floe_image::Region {
            name: name.into(),
            size,
            segments: Vec::new(),
            patches: Vec::new(),
        };
        let with = |regions: &[(&str, u64)]| Manifest {
            regions: regions.iter().map(|(n, size)| region(n, *size)).collect(),
            ..Manifest::default()
        };
        let image = Hash::of(b"parent");
        let trace = trace(image, [(0, 1), (1, 2)]);
        let model = verified(&learn(Method::Floe, &image, &[trace]).unwrap(), &image).unwrap();
        let parent = with(&[("ram", 1 << 20), ("disk0", 1 << 20), ("device", 1)]);
        let same = with(&[("ram", 1 << 20), ("disk0", 1 << 20), ("device", 2)]);
        assert!(same_layout(&model, &parent, &same));
        for other in [
            with(&[("disk0", 1 << 20), ("ram", 1 << 20)]),
            with(&[("ram", 1 << 20), ("disk0", 2 << 20)]),
            with(&[("ram", 1 << 20)]),
        ] {
            assert!(!same_layout(&model, &parent, &other), "{other:?}");
        }
        let heir = Hash::of(b"child");
        let inherited = model.clone().inherited_by(heir);
        assert_eq!(inherited.image(), heir);
        assert_eq!(inherited.clusters(), model.clusters());
    }
}
