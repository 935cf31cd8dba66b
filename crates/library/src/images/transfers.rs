//! Copies whole images between this node and other places.

use crate::images::{
    Images, PARK_LABEL,
    address::is_address,
    named::named,
    parse_name,
    sources::{Found, bind_token},
};
use floe_api::hub::CommitRequest;
use floe_api::{CopyRequest, Outcome, PullRequest, PushRequest, TransferReport, authorities};
use floe_ground::{
    caller::Visible,
    error::{NodeError, usage},
    news::News,
    patience::PATIENCE,
    report::Report,
};
use floe_http::Url;
use floe_image::{CHUNK_SIZE, Hash, ImageName};
use floe_inventory::inventory::record::Origin;
use floe_source::{Directory, Source};
use floe_store::Repository;
use floe_transfer as transfer;
use floe_transfer::{Destination, HubClient, Place, Progress, PullOptions, Stock};
use std::path::{Path, PathBuf};

/// The packs of a machine that comes here are closed at this size: what is in one stays here, also if this node is killed then, and 1 MiB is a
/// second of a slow link.
const MOVING_PACK_BYTES: u64 = 1 << 20;

impl Images {
    /// Sends an image to a hub or a bucket, or writes it into a directory of static files.
    pub fn push(
        &self,
        request: &Visible<PushRequest>,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let id = named(&self.repo, &request.image)?;
        let name = match &request.name {
            Some(name) => Some(parse_name(name)?),
            None => self.name_of(&request.image, &id),
        };
        let given = bind_token(request.token.as_deref(), [&*request.to])?;
        let goal = Goal {
            to: match Target::of(&request.to) {
                // a push never means this node
                Target::Here => Target::Directory(absolute(&request.to)?),
                other => other,
            },
            address: &request.to,
            name: name.as_ref(),
            token: given.into_values().next(),
            ca: request.ca.as_deref(),
            public: request.public,
        };
        let transfer = self.send_own(&self.repo, &id, &goal, report)?;
        report.stage("push")?;
        let news = News::ImagePushed(said(&request.to));
        self.core.tell(&id.short(), &news);
        Ok(Outcome {
            image: Some(self.summary(&id)?),
            transfer: Some(transfer),
            ..Default::default()
        })
    }

    /// Writes an image of this node into a directory of static files.
    pub fn write_into(
        &self,
        id: &Hash,
        dir: &Path,
        report: &Report,
    ) -> Result<TransferReport, NodeError> {
        let goal = Goal {
            to: Target::Directory(dir.to_owned()),
            address: "",
            name: None,
            token: None,
            ca: None,
            public: false,
        };
        self.send_own(&self.repo, id, &goal, report)
    }

    /// Copies an image from any place to any other.
    pub fn copy(
        &self,
        request: &Visible<CopyRequest>,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let to = Target::of(&request.to);
        if matches!(to, Target::Here) && !is_address(&request.from) {
            return Err(usage(
                "both are images of this node",
                "give it a further name with `floe image tag`, or name a hub, a bucket or a directory",
            ));
        }
        let access = access(request)?;
        let (token, ca) = (
            access.token_for(&request.to).map(str::to_owned),
            access.ca_for(&request.to).map(str::to_owned),
        );
        let found = self
            .sources
            .find_in(&request.from, &[], access, |step| report.step(step))?;
        if matches!(to, Target::Here) {
            self.check_trusted(&found, request.trust)?;
        }
        let name = match (&request.name, &to) {
            (Some(_), Target::Here) => {
                return Err(usage(
                    "--name and the second argument both name the image on this node",
                    "leave one of them out",
                ));
            }
            (None, Target::Here) => Some(parse_name(&request.to)?),
            (Some(name), _) => Some(parse_name(name)?),
            (None, _) if is_address(&request.from) => local_name(&request.from),
            (None, _) => self.name_of(&request.from, &found.id),
        };
        let goal = Goal {
            to,
            address: &request.to,
            name: name.as_ref(),
            token,
            ca: ca.as_deref(),
            public: request.public,
        };
        let transfer = self.send_found(&found, &goal, report)?;
        report.stage("copy")?;
        let news = match goal.to {
            Target::Here => News::ImageBrought(said(&request.from)),
            _ => News::ImagePushed(said(&request.to)),
        };
        self.core.tell(&found.id.short(), &news);
        Ok(Outcome {
            image: match self.repo.contains(&found.id)? {
                true => Some(self.summary(&found.id)?),
                false => None,
            },
            transfer: Some(transfer),
            ..Default::default()
        })
    }

    /// The local name by which the user named an image, if it was a name.
    fn name_of(&self, text: &str, id: &Hash) -> Option<ImageName> {
        let points_to_it = |name: &ImageName| {
            let tags = self.repo.tags();
            tags.is_ok_and(|tags| tags.iter().any(|tag| tag.name == *name && tag.id == *id))
        };
        ImageName::parse(text).ok().filter(points_to_it)
    }

    /// Sends an image that may be anywhere.
    fn send_found(
        &self,
        found: &Found,
        goal: &Goal<'_>,
        report: &Report,
    ) -> Result<TransferReport, NodeError> {
        let id = &found.id;
        if let Target::Here = goal.to {
            let transfer = self.bring_here(found, report)?;
            if let Some(name) = goal.name {
                self.repo.tag(name, id)?;
            }
            return Ok(transfer);
        }
        // packs that are on this host go as they are
        if self.repo.contains(id)? {
            self.find_roots(id);
            return self.send_own(&self.repo, id, goal, report);
        }
        if let Some(dir) = found.origin.urls.first().and_then(|url| directory(url)) {
            return self.send_own(&Repository::open(&dir)?, id, goal, report);
        }
        let source = found.fetcher.source();
        let before = source.link().wire_bytes;
        let sent = match &goal.to {
            Target::Directory(dir) => {
                let there = Repository::create_public(dir)?;
                let done = pull_into(source.as_ref(), &there, id, report)?;
                if let Some(name) = goal.name {
                    there.tag(name, id)?;
                }
                TransferReport {
                    wire_bytes: 0,
                    skipped_bytes: done.chunks_reused * CHUNK_SIZE as u64,
                    resumed: false,
                }
            }
            _ => self.send(Stock::Source(source.as_ref()), id, goal, report)?,
        };
        Ok(TransferReport {
            wire_bytes: sent.wire_bytes + source.link().wire_bytes.saturating_sub(before),
            ..sent
        })
    }

    /// Sends an image of a repository on this host; again if its packs are laid out anew meanwhile.
    fn send_own(
        &self,
        own: &Repository,
        id: &Hash,
        goal: &Goal<'_>,
        report: &Report,
    ) -> Result<TransferReport, NodeError> {
        loop {
            let layout = own.layout(id)?;
            let sent = match &goal.to {
                Target::Directory(dir) => copy_into(own, dir, id, goal.name, report),
                _ => self.send(Stock::Repository(own), id, goal, report),
            };
            match sent {
                // chunks that were sent are not sent again
                Err(_) if report.check().is_ok() && own.layout(id)? != layout => {}
                other => return other,
            }
        }
    }

    /// Sends an image over the network.
    fn send(
        &self,
        stock: Stock<'_>,
        id: &Hash,
        goal: &Goal<'_>,
        report: &Report,
    ) -> Result<TransferReport, NodeError> {
        let cancel = report.cancel();
        let (progress, bucket) = (
            progress_of(report, "push"),
            match goal.to {
                Target::Bucket => Some(self.sources.bucket(goal.address, goal.ca)?),
                _ => None,
            },
        );
        let place = match &bucket {
            Some(bucket) => {
                if goal.public {
                    report.note("who may read a bucket is said by its own policy; --public changes nothing there");
                }
                Place::Bucket(bucket, goal.name.cloned())
            }
            None => {
                let token = self.sources.token_for(goal.address, goal.token.as_deref());
                let ca = goal.ca.map(Path::new);
                let wish = CommitRequest {
                    name: goal.name.map(ToString::to_string),
                    public: goal.public.then_some(true),
                };
                Place::Hub(
                    HubClient::new(goal.address, token.as_deref(), ca, &cancel)?,
                    wish,
                )
            }
        };
        let done = transfer::send(stock, id, &place, 0, &cancel, &progress)?;
        Ok(TransferReport {
            wire_bytes: done.bytes_sent,
            skipped_bytes: done.chunks_reused * CHUNK_SIZE as u64,
            resumed: done.resumed,
        })
    }

    /// Copies a whole image to this node.
    pub fn pull(
        &self,
        request: &Visible<PullRequest>,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        if !is_address(&request.from) {
            return Err(usage(
                format!("{:?} is no image's address", request.from),
                "write for example https://hub/NAME or /srv/images/NAME",
            ));
        }
        let name = match &request.name {
            Some(name) => Some(parse_name(name)?),
            None => local_name(&request.from),
        };
        let (token, ca) = (request.token.as_deref(), request.ca.as_deref());
        let found = self
            .sources
            .find(&request.from, token, ca, |step| report.step(step))?;
        self.check_trusted(&found, request.trust)?;
        let transfer = self.bring_here(&found, report)?;
        if let Some(name) = &name {
            self.repo.tag(name, &found.id)?;
        }
        report.stage("pull")?;
        let news = News::ImageBrought(said(&request.from));
        self.core.tell(&found.id.short(), &news);
        Ok(Outcome {
            image: Some(self.summary(&found.id)?),
            transfer: Some(transfer),
            ..Default::default()
        })
    }

    /// Makes the repository hold an image that was found elsewhere.
    pub fn bring_here(&self, found: &Found, report: &Report) -> Result<TransferReport, NodeError> {
        let _storing = self.storing.read();
        let progress = progress_of(report, "pull");
        let is_moving = found.manifest.config.labels.contains_key(PARK_LABEL);
        let options = PullOptions {
            cancel: report.cancel(),
            patience: PATIENCE,
            pack_bytes: if is_moving { MOVING_PACK_BYTES } else { 0 },
            whole_packs: true,
            ..Default::default()
        };
        let before = found.fetcher.source().link().wire_bytes;
        let to = Destination::Repository(&self.repo, Some(&self.cache));
        let done = transfer::pull(
            found.fetcher.source().as_ref(),
            &found.id,
            to,
            &options,
            &progress,
        )?;
        let counted = found.fetcher.source().link().wire_bytes;
        let counted = counted.saturating_sub(before);
        Ok(TransferReport {
            // a directory has no link whose bytes could be counted
            wire_bytes: if counted > 0 {
                counted
            } else {
                done.bytes_fetched
            },
            skipped_bytes: done.chunks_reused * CHUNK_SIZE as u64,
            resumed: false,
        })
    }
}

/// Where an image is sent, and as what.
struct Goal<'a> {
    to: Target,
    address: &'a str,
    name: Option<&'a ImageName>,
    token: Option<String>,
    ca: Option<&'a str>,
    public: bool,
}

/// The kinds of places that an image can be sent to.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    /// This node's repository.
    Here,
    Directory(PathBuf),
    Bucket,
    Hub,
}

impl Target {
    fn of(to: &str) -> Target {
        match directory(to) {
            _ if !is_address(to) => Target::Here,
            Some(dir) => Target::Directory(dir),
            None if floe_source::is_bucket(to) => Target::Bucket,
            None => Target::Hub,
        }
    }
}

/// Copies an image from a repository into a directory of static files.
fn copy_into(
    own: &Repository,
    dir: &Path,
    id: &Hash,
    name: Option<&ImageName>,
    report: &Report,
) -> Result<TransferReport, NodeError> {
    let there = Repository::create_public(dir)?;
    if there.contains(id)? && there.layout(id)? != own.layout(id)? {
        let path = dir.join(id.to_string());
        report.note(format!(
            "the image is there, in packs of its own: `floe image optimize {}` lays those out",
            path.display()
        ));
    }
    let (cancel, progress) = (report.cancel(), progress_of(report, "push"));
    let copied = transfer::copy_packs(own, &there, id, &cancel, &progress)?;
    let done = pull_into(&Directory::new(own.clone()), &there, id, report)?;
    if let Some(name) = name {
        there.tag(name, id)?;
    }
    Ok(TransferReport {
        wire_bytes: copied.bytes + done.bytes_fetched,
        skipped_bytes: done.chunks_reused.saturating_sub(copied.chunks) * CHUNK_SIZE as u64,
        resumed: false,
    })
}

/// Brings what a directory of static files lacks of an image.
fn pull_into(
    source: &dyn Source,
    there: &Repository,
    id: &Hash,
    report: &Report,
) -> Result<transfer::PullReport, NodeError> {
    let options = PullOptions {
        cancel: report.cancel(),
        patience: PATIENCE,
        ..Default::default()
    };
    let to = Destination::Repository(there, None);
    let progress = progress_of(report, "push");
    Ok(transfer::pull(source, id, to, &options, &progress)?)
}

/// The tokens and certificate authorities of a request.
fn access(request: &CopyRequest) -> Result<Origin, NodeError> {
    let places = [&*request.from, &*request.to];
    let cas = request.cas.iter();
    let cas = cas.map(|(address, file)| (address.as_str(), file.as_str()));
    let mut access = Origin {
        ca: request.ca.clone(),
        cas: authorities::bind(cas, places)?,
        ..Default::default()
    };
    for (address, token) in &request.tokens {
        access.tokens.extend(bind_token(Some(token), [&**address])?);
    }
    Ok(access)
}

fn progress_of(report: &Report, name: &'static str) -> impl Fn(Progress) + Sync + use<> {
    let line = report.progress_line(name, "bytes");
    move |progress: Progress| {
        line.at(progress.done_bytes, progress.total_bytes);
    }
}

fn absolute(path: &str) -> Result<PathBuf, NodeError> {
    std::path::absolute(Path::new(path))
        .map_err(|e| usage(format!("{path:?} is no directory: {e}"), "name another"))
}

/// Returns an address as an event says it: a signature that a user has copied along with it is for nobody else.
fn said(address: &str) -> String {
    match address.contains("://") {
        true => floe_http::shown(address),
        false => address.to_owned(),
    }
}

/// Returns the directory that an address means, if it means one.
fn directory(to: &str) -> Option<PathBuf> {
    if !to.contains("://") {
        return std::path::absolute(Path::new(to)).ok();
    }
    let url = Url::parse(to).ok()?;
    url.to_file_path().ok().filter(|_| url.scheme() == "file")
}

/// Returns the local name of an image from this address: its name there, unless that is an id.
fn local_name(from: &str) -> Option<ImageName> {
    let last = from.rsplit(['/', '#']).next()?;
    let id = last.len() == 64 && last.bytes().all(|byte| byte.is_ascii_hexdigit());
    ImageName::parse(last).ok().filter(|_| !id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_keeps_its_name_unless_it_has_none() {
        assert_eq!(
            local_name("https://hub/team/debian:12")
                .unwrap()
                .to_string(),
            "debian:12"
        );
        assert_eq!(
            local_name("https://server/x#tiny").unwrap().to_string(),
            ImageName::parse("tiny").unwrap().to_string()
        );
        assert_eq!(
            local_name(&format!("https://hub/{}", "ab".repeat(32))),
            None
        );
    }

    #[test]
    fn a_path_is_a_directory_and_an_address_is_not() {
        assert_eq!(directory("/srv/images"), Some("/srv/images".into()));
        assert_eq!(directory("file:///srv/images"), Some("/srv/images".into()));
        assert_eq!(directory("https://hub"), None);
        assert_eq!(said("/srv/a@b?c"), "/srv/a@b?c");
        assert_eq!(said("https://web/x?sig=y#tiny"), "https://web/x");
        for (to, target) in [
            ("debian:12", Target::Here),
            ("/srv/images", Target::Directory("/srv/images".into())),
            (
                "file:///srv/images",
                Target::Directory("/srv/images".into()),
            ),
            ("s3://bucket/prefix", Target::Bucket),
            ("gs://bucket", Target::Bucket),
            ("az://container/prefix", Target::Bucket),
            ("https://hub", Target::Hub),
            ("floe://hub", Target::Hub),
        ] {
            assert_eq!(Target::of(to), target, "{to}");
        }
    }
}
