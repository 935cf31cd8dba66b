//! The part of `import` that asks whether what is imported is the disk: files of all formats and their odd variants, each of which must
//! become the disk's bytes, or be refused with what it is.

mod files;

use anyhow::ensure;
use files::{Case, Expect};
use floe_api::{ExportFormat, ExportRequest, ImportRequest};
use floe_testbed::harness::{Context, Report};
use floe_testbed::live::Node;
use std::fs;
use std::path::Path;

/// At least so many files make a figure.
const FILES_LEAST: usize = 60;
/// What a message says of bytes that it has no name for.
const UNNAMED: &str = "nothing that looks like a disk";

/// Imports all files, and adds the share of those that became what they must.
pub fn measure(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let dir = context.scratch.join("foreign");
    fs::create_dir(&dir)?;
    let cases = files::make(&dir)?;
    ensure!(
        cases.len() >= FILES_LEAST,
        "{} files are too few",
        cases.len()
    );
    let node = Node::start(None, &context.scratch.join("foreign-node"), false)?;
    let mut right = 0;
    for case in &cases {
        match judge(&node, &dir, case) {
            Ok(()) => right += 1,
            Err(error) => report.fail(format!("{}: {error:#}", case.name)),
        }
    }
    report.add_value(
        "foreign_equal_ratio",
        "x",
        f64::from(right) / cases.len() as f64,
    );
    let refused = cases
        .iter()
        .filter(|case| matches!(case.expect, Expect::Refused(_)));
    report.note(format!(
        "{} files of other programs, of which {} must be refused by name",
        cases.len(),
        refused.count()
    ));
    Ok(())
}

/// Returns an error unless a file becomes what it must.
fn judge(node: &Node, dir: &Path, case: &Case) -> anyhow::Result<()> {
    let request = ImportRequest {
        disks: vec![dir.join(&case.name).display().to_string()],
        // no two are the same image
        labels: [("from".to_owned(), case.name.clone())].into(),
        ..Default::default()
    };
    let imported = node
        .client
        .import(&request)
        .and_then(|events| events.finish(|_| {}));
    let disks = match (&case.expect, imported) {
        (Expect::Refused(word), Err(error)) => {
            let said = error.to_string();
            ensure!(
                said.contains(word) && !said.contains(UNNAMED),
                "refused, but as this: {said}"
            );
            return Ok(());
        }
        (Expect::Refused(_), Ok(_)) => anyhow::bail!("it was imported"),
        (Expect::Equal(_), Err(error)) => return Err(error.into()),
        (Expect::Equal(disks), Ok(outcome)) => (
            disks,
            outcome.image.map(|image| image.id).unwrap_or_default(),
        ),
    };
    let (disks, image) = disks;
    let regions = node.client.image(&image)?.regions;
    let found = regions
        .iter()
        .filter(|region| region.name.starts_with("disk"))
        .count();
    ensure!(
        found == disks.len(),
        "{found} disks instead of {}",
        disks.len()
    );
    for (number, disk) in disks.iter().enumerate() {
        let to = dir.join("exported");
        let request = ExportRequest {
            image: image.clone(),
            region: format!("disk{number}"),
            path: to.display().to_string(),
            format: ExportFormat::Raw,
            force: true,
        };
        node.client.export(&request)?.finish(|_| {})?;
        let equal = fs::read(&to)? == fs::read(dir.join(disk))?;
        ensure!(equal, "disk{number} is not {disk}");
    }
    Ok(())
}
