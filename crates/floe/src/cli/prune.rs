//! `floe prune`: removes what nobody uses.

use std::process::ExitCode;

use clap::Args;

use super::error::CliError;
use super::output::{bytes, table};
use super::{Context, confirm};
use floe_api::{ErrorCode, Prune, PruneReport, PruneRequest};

/// Remove what nobody uses: stopped machines, images without a name, cached chunks
#[derive(Debug, Args)]
#[command(after_help = "\
Example: what would go, and how much that frees
  floe prune --dry-run
Example: stopped machines with their disks, without being asked
  floe prune machines --force

It shows what it would remove and asks. Machines that run, stand still or are about to be started again stay, and so do images
with a name (floe image rm removes those) and images under a machine. Images that only a removed machine needed go the next
time.")]
pub struct PruneArgs {
    /// What to remove
    #[arg(value_enum, default_value = "all", value_name = "WHAT")]
    what: Prune,
    /// Only show it
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    force: bool,
}

impl PruneArgs {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let what = self.what;
        let request = |dry_run| PruneRequest { what, dry_run };
        let client = cx.client()?;
        if self.dry_run || !self.force {
            let found = client.prune(&request(true))?;
            if self.dry_run || is_nothing(&found) {
                cx.out.value(&found, |found| listing(found, "would free"))?;
                return Ok(ExitCode::SUCCESS);
            }
            cx.out.text(&listing(&found, "would free"))?;
            if !confirm::agrees("Remove them?")? {
                return Err(CliError::new(
                    ErrorCode::Cancelled,
                    "nothing was removed",
                    "",
                ));
            }
        }
        let done = client.prune(&request(false))?;
        cx.out.value(&done, |done| listing(done, "freed"))?;
        Ok(match done.problems.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

fn is_nothing(found: &PruneReport) -> bool {
    found.machines.is_empty() && found.images.is_empty() && found.cache_bytes == 0
}

fn listing(report: &PruneReport, verb: &str) -> String {
    let of = |kind: &'static str| {
        move |one: &floe_api::Pruned| vec![kind.to_owned(), one.name.clone(), bytes(one.bytes)]
    };
    let machines = report.machines.iter().map(of("machine"));
    let mut rows: Vec<_> = machines
        .chain(report.images.iter().map(of("image")))
        .collect();
    if report.cache_bytes > 0 {
        rows.push(vec!["cache".into(), "-".into(), bytes(report.cache_bytes)]);
    }
    if rows.is_empty() && report.problems.is_empty() {
        return "there is nothing that nobody uses\n".into();
    }
    let each = report.machines.iter().chain(&report.images);
    let found: u64 = each.map(|one| one.bytes).sum();
    let sum = match report.freed_bytes {
        0 => found + report.cache_bytes,
        freed => freed,
    };
    let mut text = table(&["KIND", "NAME", ">SIZE"], rows);
    text += &format!("{verb} {}\n", bytes(sum));
    for problem in &report.problems {
        text += &format!("not removed: {problem}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_api::Pruned;

    #[test]
    fn what_goes_is_listed_with_its_size_and_the_sum() {
        let one = |name: &str, bytes| Pruned {
            name: name.into(),
            bytes,
        };
        let found = PruneReport {
            machines: vec![one("web", 2 << 20)],
            images: vec![one("3f2a91", 1 << 20)],
            cache_bytes: 1 << 20,
            ..Default::default()
        };
        let text = listing(&found, "would free");
        for part in ["machine  web", "image    3f2a91", "would free 4.0 MiB"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(listing(&PruneReport::default(), "freed").contains("nothing"));
        let stuck = PruneReport {
            problems: vec!["machine web: capture is under way".into()],
            ..Default::default()
        };
        assert!(listing(&stuck, "freed").contains("not removed: machine web"));
    }
}
