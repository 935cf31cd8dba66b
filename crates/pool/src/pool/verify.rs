//! Whether the backups of substrates are whole.

use super::{Pool, record::SubstrateRecord};
use floe_api::{Outcome, PoolVerifyRequest, VerifyReport};
use floe_ground::{caller::Caller, error::NodeError, report::Report};

impl Pool {
    /// Reads and hashes the backups of substrates, each with its base.
    pub fn verify(
        &self,
        request: &PoolVerifyRequest,
        caller: &Caller,
        report: &mut Report,
    ) -> Result<Outcome, NodeError> {
        let records: Vec<SubstrateRecord> = match request.names.is_empty() {
            true => {
                let records = self.records.read();
                let seen = records.values().filter(|record| record.is_seen_by(caller));
                seen.cloned().collect()
            }
            false => {
                let names = request.names.iter();
                names
                    .map(|name| self.visible(name, caller))
                    .collect::<Result<_, _>>()?
            }
        };
        let mut verify = VerifyReport::default();
        for record in &records {
            report.check()?;
            let line = report.progress_line("verify", "bytes");
            let found = self
                .images
                .repo
                .verify(&record.image, &move |done, total| line.at(done, total));
            let in_memory = self.stock.with(|stock| stock.holds(&record.image));
            let still = match in_memory {
                true => {
                    "; it is in memory: activate it while it is, and dock that machine again if it runs"
                }
                false => "",
            };
            match found {
                Ok(found) => {
                    verify.checked += found.items;
                    let damage = found.damage.iter().map(|damage| {
                        let (file, what) = (damage.file.display(), &damage.what);
                        format!("{}: {file}: {what}{still}", record.name)
                    });
                    verify.problems.extend(damage);
                    if found.more > 0 {
                        let more = format!("{}: and {} more", record.name, found.more);
                        verify.problems.push(more);
                    }
                }
                Err(error) => verify
                    .problems
                    .push(format!("{}: {error}{still}", record.name)),
            }
        }
        report.stage("verify")?;
        Ok(Outcome {
            verify: Some(verify),
            ..Default::default()
        })
    }
}
