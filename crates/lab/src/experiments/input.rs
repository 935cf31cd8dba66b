//! `input`: what a user types at one host while the machine is parked, paused, moved between two hosts, the link between them is cut, and
//! their nodes are killed.
//! Counted in the guest: what is missing there, what came twice, what came too late.
use super::activate::{host_name, join};
use super::live::Node;
use crate::guest::Guest;
use crate::harness::{Context, Report};
use crate::link::Segment;
use anyhow::{Context as _, bail, ensure};
use floe_api::client::{Client, ClientError};
use floe_api::{
    ErrorCode, MachineStatus, MoveRequest, TypeReport, TypeRequest, TypedInput, UserInput,
};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The machine.
const NAME: &str = "typed";
/// How many inputs are sent together.
const BATCH: u64 = 5;
/// Time between two batches.
const BETWEEN: Duration = Duration::from_millis(10);
/// Longest time for one step, under emulation on a busy host.
const STEP_MAX: Duration = Duration::from_secs(300);
/// How often awaited conditions are checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long the link is cut: long enough for what was said over it to be given up, and said again.
const LINK_DOWN: Duration = Duration::from_secs(3);
/// Ends the guest's `cat`.
const END: &str = "\u{4}";
/// What the guest answers in, with four numbers.
const ANSWER: &str = "typed-sum-";

/// What is done to the machine and its nodes, in turn.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Move,
    /// The link, while the machine is where its user is not.
    Link,
    KillFirst,
    /// The link, while the machine is on its way.
    LinkInMove,
    Park,
    KillSecond,
    Pause,
}

const CUTS: [Cut; 7] = [
    Cut::Move,
    Cut::Link,
    Cut::KillFirst,
    Cut::LinkInMove,
    Cut::Park,
    Cut::KillSecond,
    Cut::Pause,
];

/// Runs the experiment.
pub fn run(context: &Context) -> anyhow::Result<Report> {
    let mut report = Report::new("input", context.quick);
    let (inputs, cuts) = (context.pick(10_000, 500), context.pick(50, 10));
    let segment = Segment::new(2).context("hosts of our own need root")?;
    let tiny = Guest::tiny()?;
    let mut nodes = Vec::new();
    for number in 0..2 {
        segment.as_gigabit(number)?;
        let home = context.scratch.join(format!("input-host{number}"));
        let node = Node::start(Some(segment.host(number)), &home, false)?;
        node.import(&tiny, "tiny", 128 << 20)?;
        nodes.push(node);
    }
    join(&segment, &nodes)?;
    nodes[0].boot("tiny", NAME)?;
    let mut source = Source::new(nodes[0].client.clone());
    source.text("stty -echo; echo reads-$((6*7)); cat > /got; stty echo\n")?;
    waits(&nodes[0], "reads-42")?;
    let done = type_through(&segment, &mut nodes, &mut source, inputs, cuts)?;
    // cat is the only one that reads until then
    source.text(END)?;
    wait_for("all inputs are taken", || {
        Ok(source.send(Vec::new())?.waiting == 0)
    })?;
    let counted = count(&nodes, inputs)?;
    ensure!(
        counted.lines + counted.lost == inputs + counted.twice,
        "the guest has got something that nobody has typed: {counted:?}"
    );
    for (name, value) in [
        ("lost", counted.lost),
        ("twice", counted.twice),
        ("out_of_order", counted.out_of_order),
    ] {
        report.add_value(name, "inputs", value as f64);
        if value > 0 {
            report.fail(format!("{name}: {value} of {inputs} inputs"));
        }
    }
    report.note(format!(
        "{inputs} lines typed at the first of two hosts through {cuts} cuts: {done:?}; counted by the guest, whose agent gives them to its \
         console"
    ));
    Ok(report)
}

/// Types all inputs while one cut after the other is made. Returns how many of each kind were.
fn type_through(
    segment: &Segment,
    nodes: &mut [Node],
    source: &mut Source,
    inputs: u64,
    cuts: u64,
) -> anyhow::Result<Vec<(String, usize)>> {
    let each = inputs / cuts;
    let (typed, made) = (AtomicU64::new(0), AtomicU64::new(0));
    let failed = Mutex::new(None);
    let mut kinds = vec![0; CUTS.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let end = type_all(source, inputs, each, &typed, &made);
            if let Err(error) = end {
                *failed.lock().expect("no panic") = Some(error);
            }
        });
        for number in 0..cuts {
            // what is typed while it is made is what this is about
            let due = wait_for("inputs are typed", || {
                let over = failed.lock().expect("no panic").is_some();
                Ok(over || typed.load(Ordering::SeqCst) >= number * each)
            });
            let which = number as usize % CUTS.len();
            let cut = due.and_then(|()| cut(segment, nodes, CUTS[which]));
            // lets the one that types end
            made.store(
                if cut.is_ok() { number + 1 } else { cuts },
                Ordering::SeqCst,
            );
            cut.with_context(|| format!("cut {number}, {:?}", CUTS[which]))?;
            kinds[which] += 1;
        }
        anyhow::Ok(())
    })?;
    if let Some(error) = failed.into_inner().expect("no panic") {
        return Err(error);
    }
    let names = CUTS.iter().map(|cut| format!("{cut:?}"));
    Ok(names.zip(kinds).collect())
}

/// Types the numbers from 1 on, a line each, and after `each` of them waits for the cut that is being made.
fn type_all(
    source: &mut Source,
    inputs: u64,
    each: u64,
    typed: &AtomicU64,
    made: &AtomicU64,
) -> anyhow::Result<()> {
    let mut next = 1;
    while next <= inputs {
        let last = (next + BATCH - 1).min(inputs);
        let lines = (next..=last).map(|number| format!("{number}\n")).collect();
        source.send(lines)?;
        typed.store(last, Ordering::SeqCst);
        next = last + 1;
        std::thread::sleep(BETWEEN);
        wait_for("the cut is made", || {
            Ok(made.load(Ordering::SeqCst) >= last / each)
        })?;
    }
    Ok(())
}

fn cut(segment: &Segment, nodes: &mut [Node], cut: Cut) -> anyhow::Result<()> {
    match cut {
        Cut::KillFirst => nodes[0].kill_and_start_again_in(Some(segment.host(0)), &[]),
        Cut::KillSecond => nodes[1].kill_and_start_again_in(Some(segment.host(1)), &[]),
        Cut::Move => moves(nodes, place(nodes)?),
        Cut::Link => {
            if place(nodes)? == 0 {
                moves(nodes, 0)?;
            }
            Ok(without_link(segment)?)
        }
        Cut::LinkInMove => {
            let from = place(nodes)?;
            std::thread::scope(|scope| {
                let link = scope.spawn(|| {
                    std::thread::sleep(BETWEEN * 20);
                    without_link(segment)
                });
                // it may have been given up: where it is then is seen below
                if let Err(error) = moves(nodes, from) {
                    eprintln!("it was not moved over a link that was cut: {error:#}");
                }
                link.join().expect("no panic")
            })?;
            place(nodes).map(drop)
        }
        Cut::Park => {
            let client = &nodes[place(nodes)?].client;
            settled(|| {
                let parked = client.park(NAME, &Default::default())?;
                parked.finish(|_| ()).map(drop)
            })?;
            std::thread::sleep(BETWEEN * 20);
            settled(|| {
                let woken = client.wake(NAME, &Default::default())?;
                woken.finish(|_| ()).map(drop)
            })
        }
        Cut::Pause => {
            let client = &nodes[place(nodes)?].client;
            settled(|| client.pause(NAME).map(drop))?;
            std::thread::sleep(BETWEEN * 20);
            settled(|| client.resume(NAME).map(drop))
        }
    }
}

/// Moves the machine to the other host.
fn moves(nodes: &[Node], from: usize) -> anyhow::Result<()> {
    let request = MoveRequest {
        to: Some(host_name(1 - from)),
        keep: true,
        ..MoveRequest::default()
    };
    // the node that it came from last may have to forget it first
    settled(|| {
        let moved = nodes[from].client.move_machine(NAME, &request)?;
        moved.finish(|_| ()).map(drop)
    })
}

/// Cuts the link between the hosts for a while.
fn without_link(segment: &Segment) -> std::io::Result<()> {
    segment.cut(1)?;
    std::thread::sleep(LINK_DOWN);
    segment.mend(1)
}

/// Does something as soon as nothing else is under way with the machine.
fn settled(act: impl Fn() -> Result<(), ClientError>) -> anyhow::Result<()> {
    wait_for("nothing else is done with it", || match act() {
        Err(error) if error.to_api().code == ErrorCode::Busy => Ok(false),
        done => Ok(done.map(|()| true)?),
    })
}

/// Returns which of the nodes runs the machine, and waits until it is the only one that has it.
fn place(nodes: &[Node]) -> anyhow::Result<usize> {
    let mut found = None;
    wait_for("one node has the machine", || {
        let mut all = Vec::new();
        for (number, node) in nodes.iter().enumerate() {
            let machines = node.client.machines()?.machines.into_iter();
            all.extend(machines.filter(|m| m.name == NAME).map(|m| (number, m)));
        }
        found = match &all[..] {
            [(number, machine)] if machine.status == MachineStatus::Running => Some(*number),
            _ => None,
        };
        Ok(found.is_some())
    })?;
    found.context("it was found")
}

/// What the guest has counted.
#[derive(Debug)]
struct Counted {
    lines: u64,
    lost: u64,
    twice: u64,
    out_of_order: u64,
}

/// Has the guest count what it has got.
fn count(nodes: &[Node], inputs: u64) -> anyhow::Result<Counted> {
    let node = &nodes[place(nodes)?];
    let program = format!(
        "{{ n = $1 + 0; seen[n]++; if (n < most) late++; if (n > most) most = n }} END {{ for (i = 1; i <= {inputs}; i++) {{ if (!seen[i]) \
         lost++; else twice += seen[i] - 1 }}; printf \"{ANSWER}%d-%d-%d-%d.\\n\", NR, lost, twice, late }}"
    );
    node.tell(NAME, &format!("awk '{program}' /got"), STEP_MAX)?;
    let console = console(node)?;
    let told = console
        .rmatch_indices(ANSWER)
        .find_map(|(at, _)| numbers(&console[at + ANSWER.len()..]));
    let Some([lines, lost, twice, out_of_order]) = told else {
        bail!("the guest did not say what it has got: {console:?}");
    };
    Ok(Counted {
        lines,
        lost,
        twice,
        out_of_order,
    })
}

/// Reads the four numbers at the beginning of a text; `None` if there are none.
fn numbers(text: &str) -> Option<[u64; 4]> {
    let (numbers, _) = text.split_once('.')?;
    let numbers: Result<Vec<u64>, _> = numbers.split('-').map(str::parse).collect();
    numbers.ok()?.try_into().ok()
}

fn console(node: &Node) -> anyhow::Result<String> {
    let log = PathBuf::from(node.client.console(NAME)?.log);
    let bytes = std::fs::read(&log).with_context(|| log.display().to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Waits until the guest has written something on its console.
fn waits(node: &Node, text: &str) -> anyhow::Result<()> {
    wait_for(text, || Ok(console(node)?.contains(text)))
}

fn wait_for(what: &str, mut is: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let until = Instant::now() + STEP_MAX;
    while !is()? {
        ensure!(Instant::now() < until, "{what}: not within {STEP_MAX:?}");
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Who types: what has no answer is sent again under its number.
struct Source {
    client: Client,
    from: String,
    next: u64,
}

impl Source {
    fn new(client: Client) -> Source {
        Source {
            client,
            from: format!("{:016x}", rand::random::<u64>()),
            next: 1,
        }
    }

    fn text(&mut self, text: &str) -> anyhow::Result<()> {
        self.send(vec![text.to_owned()]).map(drop)
    }

    /// Has texts typed, each as one input; with none, asks how many wait.
    fn send(&mut self, texts: Vec<String>) -> anyhow::Result<TypeReport> {
        let count = texts.len() as u64;
        let typed = |text| TypedInput {
            gap_ms: 0,
            input: UserInput::Text { text },
        };
        let request = TypeRequest {
            from: self.from.clone(),
            first: self.next,
            inputs: texts.into_iter().map(typed).collect(),
        };
        let mut report = TypeReport::default();
        // a node that is killed answers nothing, the next one does
        wait_for("a node keeps what is typed", || {
            match self.client.type_on(NAME, &request) {
                Ok(kept) => report = kept,
                Err(ClientError::NoNode { .. } | ClientError::Broken(_)) => return Ok(false),
                Err(error) if error.to_api().code == ErrorCode::Busy => return Ok(false),
                Err(error) => return Err(error.into()),
            }
            Ok(true)
        })?;
        self.next += count;
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guest_has_counted_is_read_and_its_command_is_not() {
        assert_eq!(numbers("10000-0-0-0.\r\n"), Some([10_000, 0, 0, 0]));
        assert_eq!(numbers("%d-%d-%d-%d.\\n\", NR"), None);
        assert_eq!(numbers("1-2-3."), None);
    }
}
