//! `input`: what a user does at one host, on the console, with keys and with a pointer, while the machine is parked, paused, moved between two hosts, the link between them is cut, and
//! their nodes are killed.
//! Counted in the guest: what is missing there, what came twice, what came too late.
use anyhow::{Context as _, bail, ensure};
use floe_api::client::{Client, ClientError};
use floe_api::{
    ErrorCode, MachineStatus, MoveRequest, TypeReport, TypeRequest, TypedInput, UserInput,
};
use floe_contention::cpu_user::guest_and;
use floe_testbed::cluster::{host_name, join};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report};
use floe_testbed::link::Segment;
use floe_testbed::live::Node;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The machine.
const NAME: &str = "typed";
/// What writes down keys and pointer in the guest, and its name there.
const PROGRAM: &str = include_str!("../../guests/keys.rs");
const PROGRAM_NAME: &str = "floe-keys";
/// The keys: those of the digits, each of which goes down and up again, the next one after that.
const KEY_FIRST: u64 = 2;
const KEYS: u64 = 10;
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
    let guest = guest_and(
        &Guest::keys()?,
        &context.scratch.join("guest"),
        PROGRAM_NAME,
        PROGRAM,
    )?;
    let mut nodes = Vec::new();
    for number in 0..2 {
        segment.as_gigabit(number)?;
        let home = context.scratch.join(format!("input-host{number}"));
        let node = Node::start(Some(segment.host(number)), &home, false)?;
        // with one processor what writes down the keys has it at once
        node.import_with(&guest, "keys", 192 << 20, 1)?;
        nodes.push(node);
    }
    join(&segment, &nodes)?;
    nodes[0].boot("keys", NAME)?;
    let mut source = Source::new(nodes[0].client.clone());
    source.text(&format!("{PROGRAM_NAME} 2>/dev/kmsg &\n"))?;
    source.text("stty -echo; echo reads-$((6*7)); cat > /got; stty echo\n")?;
    waits(&nodes[0], "reads-42")?;
    let done = type_through(&segment, &mut nodes, &mut source, inputs, cuts)?;
    // cat is the only one that reads until then
    source.text(END)?;
    wait_for("all inputs are taken", || {
        Ok(source.send(Vec::new())?.waiting == 0)
    })?;
    let counted = count(&nodes, inputs)?;
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
        "{inputs} lines, keys and places of the pointer, a third each, at the first of two hosts through {cuts} cuts: {done:?}; counted by \
         the guest, whose agent gives them to its console and its kernel"
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

/// Returns how many of so many inputs are keys, places of the pointer and lines.
fn kinds(inputs: u64) -> [u64; 3] {
    [inputs.div_ceil(3), (inputs + 1) / 3, inputs / 3]
}

/// Returns an input by its number, from 1: of three a key, a place and a line, each of which tells how many of its kind were before.
fn nth(number: u64) -> UserInput {
    let before = (number - 1) / 3;
    match number % 3 {
        1 => UserInput::Key {
            code: (KEY_FIRST + before / 2 % KEYS) as u16,
            down: before.is_multiple_of(2),
        },
        2 => UserInput::Pointer {
            x: (before + 1) as u16,
            y: (before + 1) as u16,
            buttons: 0,
        },
        _ => UserInput::Text {
            text: format!("{}\n", before + 1),
        },
    }
}

/// Does all inputs, and after `each` of them waits for the cut that is being made.
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
        source.send((next..=last).map(nth).collect())?;
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
#[derive(Debug, Default)]
struct Counted {
    lost: u64,
    twice: u64,
    out_of_order: u64,
}

/// Has the guest count what it has got of each kind.
fn count(nodes: &[Node], inputs: u64) -> anyhow::Result<Counted> {
    let node = &nodes[place(nodes)?];
    let [keys, points, lines] = kinds(inputs);
    let mut all = Counted::default();
    for (file, count, program) in [
        ("/keys", keys, of_keys(keys)),
        ("/points", points, of_numbers(points)),
        ("/got", lines, of_numbers(lines)),
    ] {
        node.tell(NAME, &format!("awk '{program}' {file}"), STEP_MAX)?;
        let console = console(node)?;
        let told = console
            .rmatch_indices(ANSWER)
            .find_map(|(at, _)| numbers(&console[at + ANSWER.len()..]));
        let Some([lines, lost, twice, out_of_order]) = told else {
            bail!("the guest did not say what is in {file}: {console:?}");
        };
        ensure!(
            lines + lost == count + twice,
            "{file} has something that nobody has done: {lines} lines of {count}, {lost} lost, {twice} twice"
        );
        all.lost += lost;
        all.twice += twice;
        all.out_of_order += out_of_order;
    }
    eprintln!("{all:?}");
    Ok(all)
}

/// Returns the program of awk that counts the numbers from 1 on, one a line.
fn of_numbers(count: u64) -> String {
    format!(
        "{{ n = $1 + 0; seen[n]++; if (n < most) late++; if (n > most) most = n }} END {{ for (i = 1; i <= {count}; i++) {{ if (!seen[i]) \
         lost++; else twice += seen[i] - 1 }}; printf \"{ANSWER}%d-%d-%d-%d.\\n\", NR, lost, twice, late }}"
    )
}

/// Returns the one that counts keys: which of the cycle of keys that go down and up this is, `m`, tells how many are missing before it. What
/// is behind the one that is due, `e`, comes again, or too late.
fn of_keys(count: u64) -> String {
    let cycle = 2 * KEYS;
    format!(
        "$1 !~ /^[0-9]/ {{ next }} {{ m = 2 * ($1 - {KEY_FIRST}) + 1 - $2; d = (m - e + {cycle}) % {cycle}; if (d < {KEYS}) {{ got++; \
         e = (m + 1) % {cycle} }} else {{ twice++; late++ }} }} END {{ printf \"{ANSWER}%d-%d-%d-%d.\\n\", NR, {count} - got, twice, late }}"
    )
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
        let text = text.to_owned();
        self.send(vec![UserInput::Text { text }]).map(drop)
    }

    /// Has inputs given to the guest; with none, asks how many wait.
    fn send(&mut self, inputs: Vec<UserInput>) -> anyhow::Result<TypeReport> {
        let count = inputs.len() as u64;
        let typed = |input| TypedInput { gap_ms: 0, input };
        let request = TypeRequest {
            from: self.from.clone(),
            first: self.next,
            inputs: inputs.into_iter().map(typed).collect(),
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
    fn inputs_of_three_kinds_tell_how_many_were_before() {
        assert_eq!(kinds(10_000), [3334, 3333, 3333]);
        assert_eq!(kinds(500), [167, 167, 166]);
        let key = |code, down| UserInput::Key { code, down };
        assert_eq!(nth(1), key(2, true));
        assert_eq!(nth(4), key(2, false));
        assert_eq!(nth(7), key(3, true));
        assert_eq!(nth(1 + 3 * 20), key(2, true));
        let (x, y, buttons) = (3333, 3333, 0);
        assert_eq!(nth(9998), UserInput::Pointer { x, y, buttons });
        let text = "3333\n".to_owned();
        assert_eq!(nth(9999), UserInput::Text { text });
    }

    #[test]
    fn what_the_guest_has_counted_is_read_and_its_command_is_not() {
        assert_eq!(numbers("10000-0-0-0.\r\n"), Some([10_000, 0, 0, 0]));
        assert_eq!(numbers("%d-%d-%d-%d.\\n\", NR"), None);
        assert_eq!(numbers("1-2-3."), None);
    }
}
