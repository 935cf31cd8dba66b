//! The main use on two hosts: a guest is captured at the far end, published, and resumed at the near end, behind a slow
//! link. The experiment `resume-wan` measures it, `floe-lab demo` shows it.
use crate::content::Content;
use crate::guest::Guest;
use crate::harness::Context;
use crate::link::{Bridge, Shape};
use crate::live::{Hub, Node};
use anyhow::Context as _;
use floe_api::{Event, ImageSummary, Outcome, REHEARSE_S_DEFAULT, RunRequest};
use floe_image::TraceReader;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The hub's port at the far end.
const HUB_PORT: u16 = 7070;
/// The name of the captured image.
pub const IMAGE: &str = "debian-booted";
/// The name of the machine at the near end.
pub const MACHINE: &str = "web";
/// Longest time for a guest to answer over the slow link.
const ANSWER_MAX: Duration = Duration::from_secs(600);

/// Both hosts, the link between them, and the published image.
pub struct Wan {
    /// The hub at the far end.
    hub: Hub,
    /// The published image.
    pub image: ImageSummary,
    homes: PathBuf,
    /// The link between the hosts. It is dropped last, because processes at its ends still use it.
    pub bridge: Bridge,
}

/// A guest that was resumed at the near end.
pub struct Resumed {
    /// Its node.
    pub node: Node,
    /// Time from the command to the shell's answer.
    pub answered: Duration,
    /// The result of `run` with its stages.
    pub outcome: Outcome,
    /// Bytes on the link from the command to the answer, in both directions.
    pub wire_at_answer: u64,
    wire_before: u64,
}

impl Wan {
    /// Boots `guest` at the far end, captures it at its prompt, and publishes it. Reports each step to `tell`.
    pub fn prepare(
        dir: &Path,
        guest: &Guest,
        memory: u64,
        tell: &mut dyn FnMut(&str),
    ) -> anyhow::Result<Wan> {
        let bridge = Bridge::new(Shape::wan(), Shape::wan())?;
        let far = Some(&bridge.ends.far);
        let hub_dir = dir.join("hub");
        let hub = Hub::start(far, &hub_dir, Bridge::FAR, HUB_PORT)?;
        let origin = Node::start(far, &dir.join("origin"), false)?;
        tell("importing the guest");
        origin.import(guest, "guest", memory)?;
        tell("booting it");
        origin.boot("guest", "origin")?;
        tell("capturing it while it runs");
        let captured = origin.capture("origin", IMAGE, false, REHEARSE_S_DEFAULT)?;
        let image = captured.image.context("a capture makes an image")?;
        if let Some(pause) = captured.pause_ms {
            tell(&format!("captured; it stood still for {pause:.0} ms"));
        }
        tell("publishing it to the hub");
        origin.publish(IMAGE, &hub)?;
        Ok(Wan {
            hub,
            image,
            homes: dir.to_path_buf(),
            bridge,
        })
    }

    /// Returns the bytes on the link so far, in both directions.
    pub fn wire(&self) -> u64 {
        self.bridge.up.read().bytes_delivered + self.bridge.down.read().bytes_delivered
    }

    /// Runs the image at the near end, on a node without any data, until its shell answers.
    pub fn resume(&self, name: &str, each: impl FnMut(&Event)) -> anyhow::Result<Resumed> {
        let node = Node::start(Some(&self.bridge.ends.near), &self.homes.join(name), false)?;
        let wire_before = self.wire();
        let start = Instant::now();
        let request = RunRequest {
            image: self.hub.address(IMAGE),
            name: Some(MACHINE.into()),
            token: Some(self.hub.token.clone()),
            ..RunRequest::default()
        };
        let outcome = node.run(&request, each)?;
        node.ask(MACHINE, ANSWER_MAX)?;
        let (answered, wire_at_answer) = (start.elapsed(), self.wire() - wire_before);
        Ok(Resumed {
            node,
            answered,
            outcome,
            wire_at_answer,
            wire_before,
        })
    }

    /// Copies the whole (compressed) image to another new node at the near end, then runs it there until its shell
    /// answers. Returns the time of the copy and the total time.
    pub fn copy_first(&self, name: &str) -> anyhow::Result<(Duration, Duration)> {
        let node = Node::start(Some(&self.bridge.ends.near), &self.homes.join(name), false)?;
        let start = Instant::now();
        let copied = node.download(IMAGE, &self.hub)?;
        node.run(
            &RunRequest {
                image: IMAGE.into(),
                name: Some(MACHINE.into()),
                ..RunRequest::default()
            },
            |_| {},
        )?;
        node.ask(MACHINE, ANSWER_MAX)?;
        Ok((copied, start.elapsed()))
    }

    /// Returns the bytes of the chunks that the machine touched, before compression. Zero chunks don't count, as they are
    /// never sent.
    pub fn touched_bytes(&self, resumed: &Resumed) -> anyhow::Result<u64> {
        let image = Content::open(&self.homes.join("origin"), &self.image.id)?;
        let mut chunks: BTreeSet<(u8, u32)> = BTreeSet::new();
        for trace in resumed.node.traces()? {
            let bytes = std::fs::read(&trace)?;
            for access in TraceReader::new(&bytes)? {
                chunks.insert((access.region, access.chunk));
            }
        }
        anyhow::ensure!(
            !chunks.is_empty(),
            "the machine left no trace of what it touched below {}",
            resumed.node.home.display()
        );
        let count = chunks
            .iter()
            .filter(|(region, chunk)| image.hash(*region, *chunk).is_some())
            .count();
        Ok((count * floe_image::CHUNK_SIZE) as u64)
    }
}

impl Resumed {
    /// Returns the bytes on the link since the command, in both directions.
    pub fn wire(&self, wan: &Wan) -> u64 {
        wan.wire() - self.wire_before
    }
}

/// Returns the guest of an experiment: Debian with 1 GiB, or the tiny one for a quick check.
pub fn guest(context: &Context) -> anyhow::Result<(Guest, u64)> {
    if context.quick {
        Ok((Guest::tiny()?, 128 << 20))
    } else {
        Ok((Guest::debian()?, 1 << 30))
    }
}
