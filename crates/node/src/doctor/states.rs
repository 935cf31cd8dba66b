//! Which captured, parked and docked states a QEMU can load: the one that is there, or one that is about to take its place. A running state
//! goes on only under the QEMU series (`7.2`) that made it, so an update is asked about before it is made.

use crate::Node;
use floe_api::{Check, CheckStatus, STATES_CHECK};
use floe_ground::{caller::Caller, error::NodeError};
use floe_image::{Hash, MachineConfig};
use floe_library::images::FORK_LABEL;
use floe_store::StoreError;
use std::collections::BTreeSet;

/// How many states are named; the rest is counted.
const NAMED_MAX: usize = 8;
/// What can be done about states that can't be loaded, before an update and after it.
const FIX: &str = "before the update wake parked machines and activate substrates, or keep this QEMU (apt-mark hold qemu-system-x86); \
    after it disks start as after a power cut: floe run --cold IMAGE, and floe stop --now MACHINE, then floe start MACHINE, for a parked one";

/// A state that a QEMU has to load for a machine to go on.
struct State {
    /// Whose state it is, in a user's words: `image web-clean`, `parked machine db`, `substrate shop`.
    what: String,
    /// The QEMU that made it, without the number of its update; empty if it does not say.
    series: String,
    /// Why the QEMU in question can't load it, if so.
    why_not: Option<String>,
}

/// Holds the states that this caller may see against the host's QEMU, or against one of this version.
pub(super) fn check(node: &Node, caller: &Caller, qemu: Option<&str>) -> Check {
    let version = qemu.map_or_else(
        || node.machines.qemu_version(),
        |asked| Ok(asked.to_owned()),
    );
    let judged = version.and_then(|version| {
        let states = states(node, caller, qemu)?;
        Ok(judge(&states, &version, qemu.is_some()))
    });
    judged.unwrap_or_else(|error| Check {
        name: STATES_CHECK.into(),
        status: match qemu {
            Some(_) => CheckStatus::Fail,
            None => CheckStatus::Warn,
        },
        detail: format!("nobody knows what QEMU can load: {}", error.to_api()),
        fix: "put that right, and ask again".into(),
    })
}

fn states(node: &Node, caller: &Caller, qemu: Option<&str>) -> Result<Vec<State>, NodeError> {
    let mut states = Vec::new();
    let mut add = |what: String, config: &MachineConfig| {
        let why_not = node.machines.check_loads(config, qemu).err();
        states.push(State {
            what,
            series: config
                .qemu_version
                .as_deref()
                .map(series)
                .unwrap_or_default(),
            why_not: why_not.map(|error| error.to_api().message),
        });
    };
    let substrates = node.pool.substrates(caller).substrates;
    for image in node.pool.images_for(caller)?.images {
        // what a fork has stored goes with its machines
        let goes = image.labels.contains_key(FORK_LABEL) && image.names.is_empty();
        let Ok(id) = image.id.parse::<Hash>() else {
            continue;
        };
        if goes || !image.live {
            continue;
        }
        let substrate = substrates.iter().find(|one| one.image == image.id);
        let what = match (substrate, image.names.first()) {
            (Some(substrate), _) => format!("substrate {}", substrate.name),
            (None, Some(name)) => format!("image {name}"),
            (None, None) => format!("image {}", id.short()),
        };
        match node.images.repo.manifest(&id) {
            Ok(manifest) => add(what, &manifest.config),
            Err(StoreError::NotFound { .. }) => {} // it was removed meanwhile
            Err(error) => return Err(error.into()),
        }
    }
    for entry in node.inventory.all() {
        if entry.is_parked() {
            add(
                format!("parked machine {}", entry.name),
                &entry.record().config,
            );
        }
    }
    Ok(states)
}

/// Says which of these states a QEMU of this version can't load. `asked` is whether it is another one than the host's.
fn judge(states: &[State], version: &str, asked: bool) -> Check {
    let lost: Vec<&State> = states
        .iter()
        .filter(|state| state.why_not.is_some())
        .collect();
    let total = states.len();
    let told = |status, detail: String, fix: &str| Check {
        name: STATES_CHECK.into(),
        status,
        detail,
        fix: fix.into(),
    };
    let Some(why) = lost.first().and_then(|state| state.why_not.as_deref()) else {
        let made: BTreeSet<&str> = states.iter().map(|state| &*state.series).collect();
        let made: Vec<&str> = made
            .into_iter()
            .filter(|series| !series.is_empty())
            .collect();
        let detail = match (total, made.is_empty()) {
            (0, _) => "no image, parked machine or substrate has a running state".to_owned(),
            (_, true) => format!("QEMU {version} can load all {total}"),
            (_, false) => format!(
                "QEMU {version} can load all {total}; they were made by QEMU {}, and a QEMU of another series can't load them: floe doctor \
                 --qemu VERSION names them before an update",
                made.join(" and ")
            ),
        };
        return told(CheckStatus::Ok, detail, "");
    };
    let names: Vec<&str> = lost
        .iter()
        .map(|state| &*state.what)
        .take(NAMED_MAX)
        .collect();
    let more = match lost.len() - names.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let status = match asked {
        true => CheckStatus::Fail,
        false => CheckStatus::Warn,
    };
    let detail = format!(
        "QEMU {version} can't load {} of {total}: {}{more}; of the first: {why}",
        lost.len(),
        names.join(", ")
    );
    told(status, detail, FIX)
}

/// Returns what of a version says which states it can load: updates within a series change none.
fn series(version: &str) -> String {
    let parts: Vec<&str> = version.split('.').take(2).collect();
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_api::is_qemu_version;

    fn state(what: &str, why_not: Option<&str>) -> State {
        State {
            what: what.into(),
            series: series("7.2.22"),
            why_not: why_not.map(str::to_owned),
        }
    }

    #[test]
    fn what_an_update_would_lose_is_named_before_it_with_the_way_out() {
        let fine = judge(&[state("image web", None)], "7.2.22", false);
        assert_eq!((fine.status, &*fine.fix), (CheckStatus::Ok, ""));
        assert!(fine.detail.contains("made by QEMU 7.2,"), "{}", fine.detail);
        assert!(
            fine.detail.contains("floe doctor --qemu"),
            "{}",
            fine.detail
        );
        let none = judge(&[], "10.0", true);
        assert_eq!(none.status, CheckStatus::Ok);

        let why = "it was captured under QEMU 7.2.22";
        let states = [
            state("image web", Some(why)),
            state("image old", None),
            state("parked machine db", Some(why)),
            state("substrate shop", Some(why)),
        ];
        for (asked, status) in [(true, CheckStatus::Fail), (false, CheckStatus::Warn)] {
            let lost = judge(&states, "10.0", asked);
            assert_eq!(lost.status, status);
            for part in ["3 of 4: image web, parked machine db, substrate shop;", why] {
                assert!(lost.detail.contains(part), "{}", lost.detail);
            }
            for way in ["floe run --cold", "floe stop --now", "apt-mark hold"] {
                assert!(lost.fix.contains(way), "{}", lost.fix);
            }
        }
        let many: Vec<State> = (0..NAMED_MAX + 3)
            .map(|number| state(&format!("image i{number}"), Some(why)))
            .collect();
        let lost = judge(&many, "10.0", true);
        assert!(lost.detail.contains("i7 and 3 more;"), "{}", lost.detail);
        assert!(!lost.detail.contains("i8"), "{}", lost.detail);
    }

    #[test]
    fn a_version_has_two_or_three_numbers() {
        for good in ["10.0", "7.2.22", "0.0"] {
            assert!(is_qemu_version(good), "{good}");
        }
        for bad in [
            "", "10", "10.", ".0", "10.0.0.0", "v10.0", "10.0-rc1", "1:10.0", "10.00000",
        ] {
            assert!(!is_qemu_version(bad), "{bad}");
        }
        assert_eq!(series("7.2.22"), "7.2");
        assert_eq!(series("7"), "7");
    }
}
