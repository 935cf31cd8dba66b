//! Copies whole images between this node and other places.

use crate::{
    error::{NodeError, usage},
    images::{
        Images,
        address::is_address,
        named::named,
        parse_name,
        sources::{Found, bind_token},
    },
    report::Report,
    transfer::{self, Destination, Progress, PullOptions, PushOptions},
};
use floe_api::{Happened, Outcome, PullRequest, PushRequest, TransferReport};
use floe_http::Url;
use floe_image::{CHUNK_SIZE, Hash, ImageName};
use floe_source::Directory;
use floe_store::Repository;
use std::path::{Path, PathBuf};

impl Images {
    /// Sends an image to a hub, or writes it into a directory of static files.
    pub fn push(&self, request: &PushRequest, report: &mut Report) -> Result<Outcome, NodeError> {
        let id = named(&self.repo, &request.image)?;
        // the name there: the one that was asked for, else the local one that the user pushed by
        let name = match &request.name {
            Some(name) => Some(parse_name(name)?),
            None => ImageName::parse(&request.image).ok().filter(|name| {
                self.repo
                    .tags()
                    .is_ok_and(|tags| tags.iter().any(|tag| tag.name == *name && tag.id == id))
            }),
        };
        let transfer = loop {
            let layout = self.repo.layout(&id)?;
            match self.push_once(&id, name.as_ref(), request, report) {
                // its packs were laid out anew meanwhile; chunks that were sent are not sent again
                Err(_) if report.check().is_ok() && self.repo.layout(&id)? != layout => {}
                other => break other?,
            }
        };
        report.stage("push")?;
        self.core
            .tell(Happened::ImagePushed, &id.short(), request.to.clone());
        Ok(Outcome {
            image: Some(self.summary(&id)?),
            transfer: Some(transfer),
            ..Default::default()
        })
    }

    fn push_once(
        &self,
        id: &Hash,
        name: Option<&ImageName>,
        request: &PushRequest,
        report: &Report,
    ) -> Result<TransferReport, NodeError> {
        let line = report.progress_line("push", "bytes");
        let progress = move |progress: Progress| {
            line.at(progress.done_bytes, progress.total_bytes);
        };
        if let Some(dir) = directory(&request.to) {
            let there = Repository::create_public(&dir)?;
            if there.contains(id) && there.layout(id)? != self.repo.layout(id)? {
                let path = dir.join(id.to_string());
                report.note(format!(
                    "the image is there, in packs of its own: `floe image optimize {}` lays those out",
                    path.display()
                ));
            }
            let options = PullOptions {
                cancel: report.cancel(),
                ..Default::default()
            };
            let source = Directory::new(self.repo.clone());
            let copied = transfer::copy_packs(&self.repo, &there, id, &options.cancel, &progress)?;
            let to = Destination::Repository(&there, None);
            let done = transfer::pull(&source, id, to, &options, &progress)?;
            if let Some(name) = name {
                there.tag(name, id)?;
            }
            return Ok(TransferReport {
                wire_bytes: copied.bytes + done.bytes_fetched,
                skipped_bytes: done.chunks_reused.saturating_sub(copied.chunks) * CHUNK_SIZE as u64,
                resumed: false,
            });
        }
        let options = PushOptions {
            name: name.map(ToString::to_string),
            public: request.public.then_some(true),
            ca: request.ca.as_ref().map(PathBuf::from),
            connections: 0,
            cancel: report.cancel(),
        };
        let given = bind_token(request.token.as_deref(), [&*request.to])?;
        let given = given.into_values().next();
        let token = self.sources.token_for(&request.to, given.as_deref());
        let (to, token) = (&request.to, token.as_deref());
        let done = transfer::push(&self.repo, id, to, token, &options, &progress)?;
        Ok(TransferReport {
            wire_bytes: done.bytes_sent,
            skipped_bytes: done.chunks_reused * CHUNK_SIZE as u64,
            resumed: false,
        })
    }

    /// Copies a whole image to this node.
    pub fn pull(&self, request: &PullRequest, report: &mut Report) -> Result<Outcome, NodeError> {
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
            .find(&request.from, token, ca, |name| report.stage(name))?;
        let transfer = self.bring_here(&found, report)?;
        if let Some(name) = &name {
            self.repo.tag(name, &found.id)?;
        }
        report.stage("pull")?;
        self.core.tell(
            Happened::ImageAdded,
            &found.id.short(),
            request.from.clone(),
        );
        Ok(Outcome {
            image: Some(self.summary(&found.id)?),
            transfer: Some(transfer),
            ..Default::default()
        })
    }

    /// Makes the repository hold an image that was found elsewhere.
    pub(crate) fn bring_here(
        &self,
        found: &Found,
        report: &Report,
    ) -> Result<TransferReport, NodeError> {
        let _storing = self.storing.read();
        let line = report.progress_line("pull", "bytes");
        let progress = move |progress: Progress| {
            line.at(progress.done_bytes, progress.total_bytes);
        };
        let options = PullOptions {
            cancel: report.cancel(),
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
        let counted = found.fetcher.source().link().wire_bytes - before;
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
    }
}
