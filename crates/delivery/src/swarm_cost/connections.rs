//! What a connection costs a host in memory: a host in a process of its own, which gives to others and takes from them, once with few
//! others and once with many.
use super::goods::{Goods, PATIENCE, connected, connections, member, options, stocked};
use anyhow::{Context as _, bail, ensure};
use floe_image::Hash;
use floe_peers::{Host, Key, Member, Shelf, Swarm};
use floe_swarm::roster::NEAR;
use floe_testbed::harness::own_memory;
use std::io::{self, BufRead, BufReader, Lines, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Bytes of the pack that the measured host has, and of the one that all others have.
const PACK_BYTES: usize = 8 << 20;
const OURS: usize = 0;
const THEIRS: usize = 1;
/// Where all listen.
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// How often the measured host looks at its memory.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What the measured host has seen of itself while it gave and took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// The most bytes that were no file's.
    pub memory: u64,
    /// The most connections.
    pub connections: usize,
}

/// `floe-lab swarm-host DIR`: a host that tells its key and its address, is told the others on its input, a line each, and says in its
/// last line what it has seen once the input ends.
#[derive(clap::Args)]
pub struct Arguments {
    dir: PathBuf,
}

impl Arguments {
    /// Takes part until the input ends.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Runtime::new()?;
        runtime.block_on(self.take_part())?;
        Ok(ExitCode::SUCCESS)
    }

    async fn take_part(self) -> anyhow::Result<()> {
        let host = Host::listen([u8::MAX; 32], &[LOOPBACK]).await?;
        let goods = Goods::new(2, PACK_BYTES)?;
        let shelf = stocked(&host, &self.dir, &goods, &[OURS]).await?;
        let wanted = goods.pieces_of(THEIRS);
        drop(goods);
        say(&written(&member(&host))?)?;
        let mut members = vec![member(&host)];
        for line in io::stdin().lines() {
            match line?.as_str() {
                "" => break,
                line => members.push(read(line)?),
            }
        }
        let swarm = host.join(shelf, None, options(&members))?;
        // more come where something is asked
        connected(&swarm, NEAR.min(members.len() - 1)).await?;
        say("connected")?;
        let over = async {
            swarm.want(&wanted).await?;
            let ended = || io::copy(&mut io::stdin(), &mut io::sink());
            tokio::task::spawn_blocking(ended).await??;
            anyhow::Ok(())
        };
        tokio::pin!(over);
        let mut seen = Seen::default();
        loop {
            tokio::select! {
                done = &mut over => break done?,
                () = tokio::time::sleep(LOOK_EVERY) => {
                    seen.memory = seen.memory.max(own_memory(std::process::id())?);
                    seen.connections = seen.connections.max(connections(&swarm).await?);
                }
            }
        }
        say(&format!("{} {}", seen.memory, seen.connections))
    }
}

/// Prints a line for who has started this process.
fn say(line: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Writes a member as a line: its key in hexadecimal digits, and its address.
fn written(member: &Member) -> anyhow::Result<String> {
    let address = member.addresses.first().context("it listens nowhere")?;
    Ok(format!("{} {address}", Hash(member.key.0)))
}

fn read(line: &str) -> anyhow::Result<Member> {
    let (key, address) = line.split_once(' ').context("a key and an address")?;
    let key: Hash = key.parse()?;
    Ok(Member {
        key: Key(*key.as_bytes()),
        addresses: vec![address.parse()?],
    })
}

/// The measured host, as who has started it sees it. Dropped, it is killed.
struct Measured {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Measured {
    fn start(dir: &Path) -> anyhow::Result<Measured> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("swarm-host")
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("it was started with a pipe")?;
        Ok(Measured {
            child,
            input,
            output: BufReader::new(output).lines(),
        })
    }

    /// Waits for its next line.
    fn line(&mut self) -> anyhow::Result<String> {
        match self.output.next() {
            Some(line) => Ok(line?),
            None => bail!("the measured host has ended"),
        }
    }

    /// Tells it who the others are.
    fn tell(&mut self, others: &[Member]) -> anyhow::Result<()> {
        let input = self.input.as_mut().context("its input has ended")?;
        for other in others {
            writeln!(input, "{}", written(other)?)?;
        }
        writeln!(input)?;
        Ok(input.flush()?)
    }

    /// Ends it, and returns what it has seen.
    fn end(mut self) -> anyhow::Result<Seen> {
        drop(self.input.take());
        let line = self.line()?;
        let (memory, connections) = line.split_once(' ').context("two numbers")?;
        Ok(Seen {
            memory: memory.parse()?,
            connections: connections.parse()?,
        })
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets a host give a pack to so many others (at most 200), and take one that all of those have. Returns what it has seen of itself.
pub(super) fn load(dir: &Path, others: usize) -> anyhow::Result<Seen> {
    ensure!((1..=200).contains(&others), "{others} other hosts");
    let runtime = tokio::runtime::Runtime::new()?;
    let seen = runtime.block_on(bring(dir, others))?;
    // what is still being written has been written then
    drop(runtime);
    std::fs::remove_dir_all(dir)?;
    Ok(seen)
}

async fn bring(dir: &Path, others: usize) -> anyhow::Result<Seen> {
    let mut measured = Measured::start(&dir.join("measured"))?;
    let it = read(&measured.line()?)?;
    let goods = Goods::new(2, PACK_BYTES)?;
    let (mut hosts, mut members) = (Vec::new(), Vec::new());
    for number in 1..=others {
        let host = Host::listen([number as u8; 32], &[LOOPBACK]).await?;
        let shelf = stocked(&host, &dir.join(number.to_string()), &goods, &[THEIRS]).await?;
        members.push(member(&host));
        hosts.push((host, shelf));
    }
    measured.tell(&members)?;
    members.push(it);
    let join = |(host, shelf): &(Host, Arc<Shelf>)| -> anyhow::Result<Arc<Swarm>> {
        Ok(Arc::new(host.join(
            shelf.clone(),
            None,
            options(&members),
        )?))
    };
    let swarms: Vec<Arc<Swarm>> = hosts.iter().map(join).collect::<anyhow::Result<_>>()?;
    // this thread waits, those of the runtime go on
    let said = measured.line()?;
    ensure!(said == "connected", "the measured host says {said:?}");
    let mut all = JoinSet::new();
    for swarm in &swarms {
        let (swarm, wanted) = (swarm.clone(), goods.pieces_of(OURS));
        all.spawn(async move { swarm.want(&wanted).await });
    }
    let done = tokio::time::timeout(PATIENCE, async {
        while let Some(done) = all.join_next().await {
            done??;
        }
        anyhow::Ok(())
    });
    done.await.context("the pieces do not come")??;
    measured.end()
}
