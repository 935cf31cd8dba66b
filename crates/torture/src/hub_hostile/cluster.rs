//! The port at which a node answers the members of its cluster: another node connects (TLS with both sides' certificates) and asks for
//! its room, alone and beside strangers that connect and say nothing, from the same address as that node.
use super::client::connect_from;
use anyhow::{Context as _, ensure};
use floe_api::{ClusterInit, ClusterInvite, ClusterJoin};
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::live::Node;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Silent connections at a time.
const STRANGERS: usize = 300;
/// How long they are held before they are made anew: a node waits a second longer for their handshake.
const HELD: Duration = Duration::from_secs(9);
/// Where the two members answer.
const PORTS: [u16; 2] = [7074, 7075];
/// How long a member waits between two requests.
const PAUSE: Duration = Duration::from_millis(4);

/// Adds the figures.
pub(super) fn add(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let nodes = members(context)?;
    let length = Duration::from_secs(context.pick(12, 3));
    let rounds = context.pick(7, 1);
    phase(&nodes[1], Duration::from_secs(1))?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // use the reverse order in every other round
        for step in 0..2 {
            if (step == 0) == (round % 2 == 0) {
                alone.push(phase(&nodes[1], length)?);
            } else {
                let strangers = Strangers::come(at(0))?;
                beside.push(phase(&nodes[1], length)?);
                drop(strangers);
            }
        }
    }
    let of = |phases: &[Samples], q: f64| -> Samples {
        phases.iter().map(|phase| phase.quantile(q)).collect()
    };
    let (calm, storm) = (of(&alone, 0.99), of(&beside, 0.99));
    report
        .add("member_p99_ratio", "x", &storm.over(&calm))
        .against("without strangers", "ms", calm.median());
    report
        .add("member_ms_p99", "ms", &storm)
        .against("without strangers", "ms", calm.median());
    report
        .add("member_ms_p50", "ms", &of(&beside, 0.5))
        .against("without strangers", "ms", of(&alone, 0.5).median());
    let count: usize = beside.iter().map(Samples::len).sum();
    report.add_value("member_requests", "", count as f64);
    report.note(format!(
        "members: a node connects to another and asks for its room, {PAUSE:?} after the last answer; {STRANGERS} connections that \
         say nothing, from its own address, made anew every {HELD:?}"
    ));
    Ok(())
}

fn at(node: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, PORTS[node]))
}

/// Starts two nodes in a cluster; the second one knows the first one by a name.
fn members(context: &Context) -> anyhow::Result<[Node; 2]> {
    let start = |name: &str| Node::start(None, &context.scratch.join(name), false);
    let (first, second) = (start("first")?, start("second")?);
    let hosts = format!("first https://{}\n", at(0));
    std::fs::write(second.home.join("hosts"), hosts)?;
    first.client.cluster_init(&ClusterInit {
        name: Some("first".into()),
        listen: Some(at(0)),
        certificate_s: None,
    })?;
    let invited = first.client.cluster_invite(&ClusterInvite::default())?;
    second.client.cluster_join(&ClusterJoin {
        url: invited.url,
        invitation: invited.invitation,
        name: Some("second".into()),
        listen: Some(at(1)),
    })?;
    Ok([first, second])
}

/// Lets a member ask for this long; returns how long each request took, with its handshake, in milliseconds.
fn phase(member: &Node, length: Duration) -> anyhow::Result<Samples> {
    let until = Instant::now() + length;
    let mut times = Samples::default();
    while Instant::now() < until {
        let began = Instant::now();
        let hosts = member.client.hosts()?.hosts;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        let first = hosts.first().context("the other node is listed")?;
        ensure!(
            first.room.is_some(),
            "a member was not answered: {}",
            first.detail
        );
        std::thread::sleep(PAUSE);
    }
    Ok(times)
}

/// Strangers that hold their connections until this is dropped.
struct Strangers {
    over: Option<mpsc::Sender<()>>,
    holds: Option<std::thread::JoinHandle<()>>,
}

impl Strangers {
    /// Returns once all have connected.
    fn come(to: SocketAddr) -> anyhow::Result<Strangers> {
        let (over, is_over) = mpsc::channel();
        let (came, all_came) = mpsc::channel();
        let holds = std::thread::Builder::new()
            .name("strangers".into())
            .spawn(move || {
                loop {
                    // one that is refused tries again with the others
                    let connect = |_| connect_from(Ipv4Addr::LOCALHOST, to).ok();
                    let _held: Vec<TcpStream> = (0..STRANGERS).filter_map(connect).collect();
                    let _ = came.send(()); // it is waited for once
                    if let Err(mpsc::RecvTimeoutError::Disconnected) = is_over.recv_timeout(HELD) {
                        return;
                    }
                }
            })?;
        all_came.recv().context("the strangers did not come")?;
        Ok(Strangers {
            over: Some(over),
            holds: Some(holds),
        })
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(holds) = self.holds.take() {
            let _ = holds.join(); // a panic of theirs harms nobody
        }
    }
}
