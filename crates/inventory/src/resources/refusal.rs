//! What a refusal of this host's resources says: what is short, how much of it there is, who has the rest, and what to do.

use super::host;
use super::ledger::{Resource, Shortage};
use floe_api::size_text;
use floe_ground::error::{NodeError, refused};

/// How the node gets more descriptors.
pub(crate) const DESCRIPTORS_FIX: &str = "raise the node's limit of open files and restart it: LimitNOFILE= of its unit, ulimit -Hn \
     (/etc/security/limits.conf), or docker run --ulimit nofile=65536";
/// How a kernel that lends no memory is asked to lend some.
pub(crate) const COMMIT_FIX: &str = "sysctl vm.overcommit_memory=0 lets the kernel lend memory that is not used; otherwise raise \
     vm.overcommit_ratio, add swap, or give machines less (--memory)";

/// Returns the error of a reservation for which there is too little.
pub(super) fn refusal(short: &Shortage) -> NodeError {
    let fix = match short.of {
        Resource::WholeMemory => {
            "give the machine less (--memory), use a larger host, or insist with --overcommit: the host may then end machines when \
             its memory is full"
        }
        Resource::Descriptors => DESCRIPTORS_FIX,
        Resource::Commit => COMMIT_FIX,
        _ => {
            "end machines that are no longer needed (floe stop, floe kill), give this one less (--memory), or insist with \
             --overcommit: the host may then end machines when its memory is full"
        }
    };
    refused(text(short), fix)
}

/// Says the same in one text, as one host's reason among several.
pub(super) fn explain(short: &Shortage) -> String {
    let text = text(short);
    match short.of {
        Resource::Descriptors => format!("{text}; {DESCRIPTORS_FIX}"),
        Resource::Commit => format!("{text}; {COMMIT_FIX}"),
        // what helps is the same for all hosts
        _ => text,
    }
}

/// Says what is short, how much there is, and who has the rest.
fn text(short: &Shortage) -> String {
    let (asked, left, all) = (
        size_text(short.asked),
        size_text(short.left),
        size_text(short.all),
    );
    let mut text = match short.of {
        Resource::Memory => format!("it takes {asked} of memory, and {left} of {all} are left"),
        Resource::FreeMemory => format!(
            "it takes {asked} of memory, and {left} are free on this host right now, not counting what machines were promised and \
             do not use yet"
        ),
        Resource::WholeMemory => {
            return format!(
                "it needs {asked} of memory, and machines on this host have {all} in all"
            );
        }
        Resource::Vcpus => format!(
            "it has {} CPUs, and {} of {} are left",
            short.asked, short.left, short.all
        ),
        Resource::Network => {
            format!("it takes {asked} a second of the host's network, and {left} of {all} are left")
        }
        Resource::Descriptors => {
            let most = host::descriptors_max().unwrap_or(u64::MAX);
            format!(
                "the node may have {most} files open, {} more are free for machines, and it takes {} of them",
                short.left, short.asked
            )
        }
        Resource::Commit => format!(
            "this host's kernel lends no memory (vm.overcommit_memory is 2): it sets {asked} aside for the machine, used or not, and \
             has {left} left"
        ),
    };
    let amount = |has: u64| match short.of {
        Resource::Vcpus => has.to_string(),
        _ => size_text(has),
    };
    let holders: Vec<String> = short
        .holders
        .iter()
        .map(|(name, has)| format!("{name} {}", amount(*has)))
        .collect();
    if !holders.is_empty() {
        text += &format!("; promised to {}", holders.join(", "));
    }
    if short.more_holders > 0 {
        text += &format!(" and {} more", short.more_holders);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_the_host_is_named_with_what_raises_it() {
        let short = |of, asked, left| Shortage {
            of,
            asked,
            left,
            all: left,
            holders: Vec::new(),
            more_holders: 0,
        };
        let files = refusal(&short(Resource::Descriptors, 20, 7)).to_api();
        assert!(
            files
                .message
                .contains(", 7 more are free for machines, and it takes 20"),
            "{files}"
        );
        assert!(files.fix.contains("LimitNOFILE="), "{files}");
        let clones = explain(&short(Resource::Descriptors, 20, 7));
        assert!(clones.ends_with(DESCRIPTORS_FIX), "{clones}");
        let commit = refusal(&short(Resource::Commit, 1 << 30, 1 << 29)).to_api();
        assert!(
            commit.message.contains("vm.overcommit_memory is 2"),
            "{commit}"
        );
        assert!(
            commit.message.contains("1.0 GiB") && commit.message.contains("512"),
            "{commit}"
        );
        assert!(
            commit.fix.contains("sysctl vm.overcommit_memory=0"),
            "{commit}"
        );
    }
}
