//! `floe ps`: what machines there are, and all about one of them.

use clap::Args;

use super::Context;
use super::error::CliError;
use super::output::{age, bytes, fields, short, table, until, word};
use floe_api::PortForward;

pub(super) fn arrow(f: &PortForward) -> String {
    format!(
        "{}:{} -> {}/{}",
        f.host_address, f.host_port, f.guest_port, f.protocol
    )
}

/// List machines, or show one
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  floe ps\n  floe ps web\n  floe ps --json | jq '.machines[].name'"
)]
pub struct Ps {
    /// Show all about this machine
    machine: Option<String>,
}

impl Ps {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let client = cx.client()?;
        match self.machine {
            Some(name) => cx.out.value(&client.machine(&name)?, describe),
            None => cx
                .out
                .value(&client.machines()?, |list| listing(&list.machines)),
        }
    }
}

fn listing(machines: &[floe_api::MachineInfo]) -> String {
    let row = |m: &floe_api::MachineInfo| {
        let ports: Vec<_> = m
            .forwards
            .iter()
            .map(|f| format!("{}:{}", f.host_port, f.guest_port))
            .collect();
        vec![
            m.name.clone(),
            word(&m.status),
            m.image_name.clone(),
            m.cpus.to_string(),
            bytes(m.memory_bytes),
            age(m.created_unix_s),
            ports.join(" "),
            detail(m),
        ]
    };
    table(
        &[
            "NAME", "STATUS", "IMAGE", ">CPUS", ">MEMORY", ">AGE", "PORTS", "DETAIL",
        ],
        machines.iter().map(row),
    )
}

fn describe(m: &floe_api::MachineInfo) -> String {
    let s = &m.stats;
    fields(&[
        ("name", m.name.clone()),
        ("status", word(&m.status)),
        ("detail", m.detail.clone()),
        ("clone", m.cloned.as_ref().map(cloned).unwrap_or_default()),
        (
            "ensemble",
            m.ensemble
                .as_ref()
                .map(super::ensembles::described)
                .unwrap_or_default(),
        ),
        ("image", format!("{} ({})", m.image_name, short(&m.image))),
        (
            "began",
            if m.restored {
                "from a running state"
            } else {
                "with a boot"
            }
            .into(),
        ),
        ("pid", m.pid.map(|p| p.to_string()).unwrap_or_default()),
        (
            "cpus",
            format!(
                "{} ({}){}",
                m.cpus,
                m.accel,
                most(m.cpus, m.cpus_max, u32::to_string)
            ),
        ),
        (
            "memory",
            bytes(m.memory_bytes)
                + &unused(m.memory_unused_bytes)
                + &most(m.memory_bytes, m.memory_bytes_max, |n| bytes(*n)),
        ),
        ("age", age(m.created_unix_s)),
        (
            "ports",
            m.forwards.iter().map(arrow).collect::<Vec<_>>().join(", "),
        ),
        ("restart", afterwards(m)),
        ("limits", super::limits::described(&m.limits)),
        ("idle", super::limits::parked_after(m.park_after_s)),
        (
            "trim",
            match m.no_trim {
                true => "only when asked: floe disk trim".into(),
                false => String::new(),
            },
        ),
        ("takes", super::limits::taken(s)),
        ("reaches", reaches(&m.allow_host)),
        ("sources", m.sources.join(", ")),
        (
            "independent",
            m.independence
                .as_ref()
                .map(super::independent::described)
                .unwrap_or_default(),
        ),
        (
            "reads",
            format!(
                "{}, {} of them waited, {:.0} ms in all",
                s.requests, s.misses, s.wait_ms
            ),
        ),
        ("fetched", bytes(s.wire_bytes)),
        ("written", bytes(s.overlay_bytes)),
    ])
}

/// Says how much of something a machine can have while it runs, if that is more than it has.
fn most<T: PartialOrd>(has: T, most: T, text: impl Fn(&T) -> String) -> String {
    match most > has {
        true => format!(", at most {} while it runs", text(&most)),
        false => String::new(),
    }
}

/// Says how much of its memory a guest is not known to use.
fn unused(memory_unused_bytes: u64) -> String {
    match memory_unused_bytes {
        0 => String::new(),
        unused => format!(", {} of it not in use in its guest", bytes(unused)),
    }
}

/// Describes what becomes of a machine once it has ended.
fn afterwards(m: &floe_api::MachineInfo) -> String {
    match (m.remove, m.restart) {
        (true, _) => "none: it is removed once it has ended".into(),
        (false, floe_api::RestartPolicy::No) => String::new(),
        (false, policy) => format!("{policy}, {} in a row", m.restarts),
    }
}

/// Describes what a guest can reach of its host.
fn reaches(access: &floe_api::HostAccess) -> String {
    let what = "of this host's loopback and link-local addresses";
    match access {
        floe_api::HostAccess::None => String::new(),
        floe_api::HostAccess::All => format!("all ports {what}"),
        floe_api::HostAccess::Ports(ports) => {
            let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
            format!("ports {} {what}", ports.join(", "))
        }
    }
}

fn cloned(cloned: &floe_api::Cloned) -> String {
    let needs = match cloned.settled {
        true => "",
        false => ", needs its parent's node",
    };
    let identity = match cloned.identity {
        floe_api::Identity::Pending => ", without network until its identity is in place",
        floe_api::Identity::Foreign | floe_api::Identity::Placed => "",
    };
    let ends = match cloned.ends_unix_s {
        None => String::new(),
        Some(ends) => format!(", removed in {}", until(ends)),
    };
    format!(
        "{} of {}{needs}{identity}{ends}",
        cloned.number, cloned.parent
    )
}

/// Returns what a machine's line in the list says at its end: of which ensemble it is, what is going on with it, how far its image is
/// here, and when it will be removed.
fn detail(m: &floe_api::MachineInfo) -> String {
    let coming = m.independence.as_ref();
    let coming = coming.filter(|now| now.state != floe_api::IndependenceState::Whole);
    let ends = m.cloned.as_ref().and_then(|cloned| cloned.ends_unix_s);
    let parts = [
        m.ensemble.as_ref().map(super::ensembles::described),
        Some(m.detail.clone()).filter(|detail| !detail.is_empty()),
        coming.map(ToString::to_string),
        ends.map(|ends| format!("removed in {}", until(ends))),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_line_says_all_that_is_to_be_said_of_a_machine() {
        let mut machine = super::super::top::tests::machine();
        assert_eq!(detail(&machine), "");
        machine.independence = Some(floe_api::Independence {
            state: floe_api::IndependenceState::Copying,
            done_bytes: 43,
            total_bytes: 100,
            ..Default::default()
        });
        assert_eq!(detail(&machine), "independent 43 %");
        machine.detail = "paused".into();
        assert_eq!(detail(&machine), "paused; independent 43 %");
    }
}
