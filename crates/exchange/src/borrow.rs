//! Reads what clones lack of a parent on another host out of the swarms that this node is in: what is in pieces on its shelves, and more of
//! them where that is cheaper ([`Choice`]).
//!
//! A fork's image is based on the image that its parent ran, of which it has all that was not changed. Where this host runs that image too,
//! with others, these chunks need not leave the parent's host once more. A fork opens only its own image and those that it is based on: no
//! other swarm is looked into for it, whose image may be somebody else's.

use super::{
    cheaper::{Asked, Choice, Pace, Way},
    pieces::{Active, Part},
    reading::Reading,
};
use floe_image::{Hash, Kind, Layout, Manifest};
use floe_source::{LinkEstimate, Request, Sink, Source, SourceError, WholePacks};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// The swarms that may have some of an image, and what is decided for it.
type Lenders = (Vec<Arc<Part>>, Arc<Mutex<Choice>>);

/// The host of a fork's parent as a source; the swarms of this node are asked before it. Locks, never together: the list of images whose
/// manifests are known, and what is decided for one.
pub(super) struct Borrowed {
    parent: Arc<dyn Source>,
    active: Active,
    began: Instant,
    choices: Mutex<HashMap<Hash, Arc<Mutex<Choice>>>>,
}

impl Borrowed {
    /// Puts the swarms before what the parent's host gives.
    pub fn new(parent: Arc<dyn Source>, active: Active) -> Borrowed {
        Borrowed {
            parent,
            active,
            began: Instant::now(),
            choices: Mutex::default(),
        }
    }

    /// Returns what is decided for an image; `None` before its manifest was read.
    fn choice(&self, image: &Hash) -> Option<Arc<Mutex<Choice>>> {
        self.choices.lock().get(image).cloned()
    }

    /// Notes what an image is based on.
    fn note(&self, image: &Hash, manifest: &Manifest) {
        let choice = self.choices.lock().entry(*image).or_default().clone();
        self.active.lends(*image, manifest.parent, &choice);
    }

    /// Returns an image's lenders; `None` if there are none. What the image is based on is
    /// found out with the first read for which no guest stands still, if its manifest was not read here.
    fn lenders(&self, image: &Hash, demand: bool) -> Option<Lenders> {
        let used = self.active.used();
        if used.is_empty() {
            return None;
        }
        if !demand && self.choice(image).is_none() {
            let manifest = self.parent.manifest(image).ok()?;
            self.note(image, &manifest);
        }
        let choice = self.choice(image)?;
        let bases = self.active.bases(image);
        let parts = used.into_iter();
        let parts = parts.filter(|(key, _)| bases.contains(&key.image));
        let parts: Vec<Arc<Part>> = parts.map(|(_, part)| part).collect();
        (!parts.is_empty()).then_some((parts, choice))
    }

    /// Reads out of one swarm what is on its shelf, and the rest of what it has if that is cheaper.
    fn borrow(&self, part: &Part, choice: &Mutex<Choice>, reading: &mut Reading<'_, '_>) {
        let found = part.look_up(&reading.rest());
        let deadline = reading.request.deadline;
        read_some(part, &found.here, choice, Way::Shelf, deadline, reading);
        if found.there.is_empty() {
            return;
        }
        let demand = reading.request.is_demand();
        let asked = Asked {
            chunks: found.there.len() as u64,
            pieces: found.pieces as u64,
            demand,
        };
        let (swarm, parent) = (pace_of(part), self.pace_of_parent());
        let now = self.began.elapsed();
        let patience = choice.lock().choose(now, asked, swarm, parent);
        let Some(patience) = patience else {
            return;
        };
        if demand {
            part.note_demand();
        }
        // it leaves time for the parent's host; one that had too little time is not to blame
        let (limit, most) = (reading.began.elapsed() + patience, deadline.mul_f32(0.6));
        let (least, there) = (limit.min(most), &found.there);
        let came = read_some(part, there, choice, Way::Swarm, least, reading);
        if !came && limit <= most {
            choice.lock().failed(self.began.elapsed());
        }
    }

    fn pace_of_parent(&self) -> Option<Pace> {
        let link = self.parent.link();
        Some(Pace {
            first_us: link.rtt_us?,
            bytes_per_s: link.bytes_per_s?,
        })
    }
}

/// Reads items out of a swarm; returns whether all of them came.
fn read_some(
    part: &Part,
    items: &[(Kind, Hash)],
    choice: &Mutex<Choice>,
    way: Way,
    limit: Duration,
    reading: &mut Reading<'_, '_>,
) -> bool {
    if items.is_empty() {
        return true;
    }
    let lacked = reading.lacks();
    let read = reading.some_of_swarm(part, items, limit);
    choice.lock().came(way, lacked - reading.lacks());
    if let Err(error) = &read {
        tracing::debug!(image = reading.image.short(), %error, "read from the parent's host instead");
    }
    read.is_ok()
}

/// What a swarm has measured; nothing while no other host is linked, for then the hub would be asked.
fn pace_of(part: &Part) -> Option<Pace> {
    let speed = part.swarm.speed().filter(|_| part.swarm.linked() > 0)?;
    Some(Pace {
        first_us: speed.piece_us,
        bytes_per_s: speed.bytes_per_s,
    })
}

impl Source for Borrowed {
    fn describe(&self) -> String {
        self.parent.describe()
    }

    fn resolve(&self, name: &str) -> Result<Hash, SourceError> {
        self.parent.resolve(name)
    }

    fn manifest(&self, id: &Hash) -> Result<Manifest, SourceError> {
        let manifest = self.parent.manifest(id)?;
        self.note(id, &manifest);
        Ok(manifest)
    }

    fn layout(&self, id: &Hash) -> Result<Option<Layout>, SourceError> {
        self.parent.layout(id)
    }

    fn is_own(&self, id: &Hash) -> Result<bool, SourceError> {
        self.parent.is_own(id)
    }

    fn read(
        &self,
        image: &Hash,
        wants: &[(Kind, Hash)],
        request: &Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), SourceError> {
        let Some((parts, choice)) = self.lenders(image, request.is_demand()) else {
            return self.parent.read(image, wants, request, sink);
        };
        let mut reading = Reading::new(image, wants, request, sink);
        for part in &parts {
            self.borrow(part, &choice, &mut reading);
        }
        let lacked = reading.lacks();
        let read = reading.of_source(&*self.parent, request.deadline);
        let came = lacked - reading.lacks();
        choice.lock().came(Way::Parent, came);
        read
    }

    /// A piece that somebody waits for, and that is on its way for somebody else already, is hurried.
    fn merges(&self, image: &Hash) -> bool {
        let choice = self.choice(image);
        choice.is_some_and(|choice| choice.lock().is_swarm()) || self.parent.merges(image)
    }

    fn multicast(&self) -> Option<bool> {
        self.parent.multicast()
    }

    fn whole_packs(&self, image: &Hash) -> Option<Arc<dyn WholePacks>> {
        self.parent.whole_packs(image)
    }

    fn link(&self) -> LinkEstimate {
        self.parent.link()
    }
}
