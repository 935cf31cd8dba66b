//! The truth about a day's requests, as the guest's kernel has traced it: which program of which role asked for which part of the disk. What a role's
//! program starts has the same role. Files may be anybody's: the places of requests tell nothing.

use super::Block;
use super::programs::number_of;
use floe_testbed::launch::read_of;
use std::collections::HashMap;

/// A part of the disk that somebody in the guest has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    from: u64,
    end: u64,
    /// How many of its bytes the disk was not asked for yet.
    left: u64,
    /// For whom; `None` for the guest's own programs, of which nothing is judged.
    who: Option<Block>,
}

/// Reads a trace; lines of anything else are passed over.
pub(super) fn asked(trace: &str) -> Vec<Asked> {
    let mut known: HashMap<u32, Block> = HashMap::new();
    let mut all = Vec::new();
    for line in trace.lines() {
        if let Some((_, said)) = line.split_once(": tracing_mark_write: floe ") {
            if let Some((thread, block)) = role(said) {
                known.insert(thread, block);
            }
        } else if let Some((_, forked)) = line.split_once(": sched_process_fork: ") {
            let of = |key: &str| {
                let mut words = forked.split_whitespace();
                words.find_map(|word| word.strip_prefix(key)?.parse::<u32>().ok())
            };
            let (Some(parent), Some(child)) = (of("pid="), of("child_pid=")) else {
                continue;
            };
            match known.get(&parent).copied() {
                Some(block) => known.insert(child, block),
                // a number that another one had before
                None => known.remove(&child),
            };
        } else if let Some((thread, from, end)) = read_of(line) {
            all.push(Asked {
                from,
                end,
                left: end - from,
                who: known.get(&thread).copied(),
            });
        }
    }
    all
}

/// Reads who a process says that it is: `ROLE NAME NUMBER`.
fn role(said: &str) -> Option<(u32, Block)> {
    let words: Vec<&str> = said.split_whitespace().collect();
    let [role, name, thread] = words[..] else {
        return None;
    };
    let block = Block {
        who: number_of(name)?,
        is_waited_for: role == "user",
    };
    Some((thread.parse().ok()?, block))
}

/// Returns for whom most of a request is that the disk was asked for. To be called for all requests in their order: what was read twice was asked for
/// twice. `None` if it was for nobody who is judged.
pub(super) fn whose(asked: &mut [Asked], offset: u64, bytes: u64) -> Option<Block> {
    let (end, mut lacking) = (offset.saturating_add(bytes), bytes);
    let mut parts: Vec<(Option<Block>, u64)> = Vec::new();
    for one in asked {
        let common = one.end.min(end).saturating_sub(one.from.max(offset));
        let common = common.min(one.left).min(lacking);
        if common == 0 {
            continue;
        }
        one.left -= common;
        lacking -= common;
        parts.push((one.who, common));
        if lacking == 0 {
            break;
        }
    }
    let of = |who: &Option<Block>| -> u64 {
        let its = parts.iter().filter(|(of, _)| of == who);
        its.map(|(_, bytes)| bytes).sum()
    };
    let most = parts.iter().max_by_key(|(who, _)| of(who));
    most.and_then(|(who, _)| *who)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRACE: &str = "# tracer: nop\r\n\
        \x20 sh-300   [000] .....  1.000000: tracing_mark_write: floe user perl 300\r\n\
        \x20 sh-300   [000] .....  1.100000: sched_process_fork: comm=sh pid=300 child_comm=sh child_pid=301\r\n\
        \x20 perl-301 [000] .....  1.200000: block_bio_queue: 254,0 RA 0 + 8 [perl]\r\n\
        \x20 sh-310   [000] .....  1.300000: tracing_mark_write: floe daemon indexd 310\r\n\
        \x20 grep-310 [000] .....  1.400000: block_bio_queue: 254,0 R 0 + 8 [grep]\r\n\
        \x20 sh-310   [000] .....  1.500000: tracing_mark_write: floe own perl 310\r\n\
        \x20 perl-310 [000] .....  1.600000: block_bio_queue: 254,0 R 80 + 8 [perl]\r\n\
        \x20 init-1   [000] .....  1.700000: sched_process_fork: comm=init pid=1 child_comm=init child_pid=310\r\n\
        \x20 x-310    [000] .....  1.800000: block_bio_queue: 254,0 R 160 + 8 [x]\r\n\
        \x20 x-310    [000] .....  1.900000: tracing_mark_write: floe user stranger 310\r\n";

    fn block(name: &str, is_waited_for: bool) -> Option<Block> {
        Some(Block {
            who: number_of(name)?,
            is_waited_for,
        })
    }

    #[test]
    fn what_a_program_starts_has_its_role_and_the_same_file_is_whose_turn_it_is() {
        let mut all = asked(TRACE);
        let who: Vec<Option<Block>> = all.iter().map(|one| one.who).collect();
        let (user, daemon, own) = (
            block("perl", true),
            block("indexd", false),
            block("perl", false),
        );
        assert_eq!(who, [user, daemon, own, None]);
        // both read the same place: first the one, then the other, then nobody is known
        assert_eq!(whose(&mut all, 0, 4096), user);
        assert_eq!(whose(&mut all, 0, 4096), daemon);
        assert_eq!(whose(&mut all, 0, 4096), None);
        // in two parts, and past its end
        assert_eq!(whose(&mut all, 40_960, 512), own);
        assert_eq!(whose(&mut all, 41_472, 8192), own);
        assert_eq!(whose(&mut all, 81_920, 4096), None);
    }

    proptest! {
        #[test]
        fn no_line_does_harm(line in "\\PC{0,20}: (tracing_mark_write: floe|sched_process_fork:|block_bio_queue:) \\PC{0,40}") {
            let mut all = asked(&line);
            let _ = whose(&mut all, u64::MAX, u64::MAX);
        }
    }
}
