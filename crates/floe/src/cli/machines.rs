//! Commands about machines: run, start, console, screenshot, logs, capture, forward. Those that end or pause machines are in
//! `power`, those that show them in `ps` and `watching`.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::ending::{Ending, Inside};
use super::error::CliError;
use super::outcome::stored;
use super::output::{bytes, table};
use super::ps::arrow;
use super::{Context, args, console, progress, resize, stream, visible};
use floe_api::PortForward;

/// Make a machine from an image and start it
#[derive(Debug, Args)]
#[command(after_help = "\
Example: from a local image
  floe run debian --name web --memory 1G --cpus 2 -p 8080:80
Example: from a hub, fetching only what the machine touches
  floe run https://hub.example/debian-booted --name copy --wait port -p 8080:80
Example: from two hubs at the same time, each with a certificate authority of its own
  floe run https://one.example/debian-booted --source https://two.example/debian-booted \\
    --ca https://one.example=one.pem --ca https://two.example=two.pem
Example: with a network for itself and its clones, from which they reach one web server
  floe run debian-booted --name web --network --allow 192.0.2.7:443
Example: a guest that may use a database on this host, which it finds at 10.0.2.2
  floe run debian --name web --allow-host=5432
Example: cloud-init in the guest makes it your own: a host name, your key for its default user, and what a file says
  floe run debian --name web --hostname web --ssh-key ~/.ssh/id_ed25519.pub --user-data web.yaml
Example: install a system from a CD-ROM on an empty disk
  truncate -s 20G empty.raw && floe image import empty.raw --name empty
  floe run empty --name setup --firmware uefi --cdrom installer.iso
Example: a program in it may clone the machine, up to eight times; all nine together have four cores and 8 GiB
  floe run debian --name web --clones 8 --cpu-quota 4 --memory-max 8G
Example: what came over the link
  floe run https://hub.example/debian-booted --link-report
Example: a shell at once in a machine that goes with it; a service that comes back
  floe run -it --rm debian-booted
  floe run debian --name db --restart unless-stopped

It ends once the machine's CPUs run and prints how long each stage took. With --wait it then waits for a sign of life of the
guest; Ctrl-C ends that wait, and the machine goes on.")]
pub struct Run {
    /// A local image, or the address of one: https://HUB/NAME, s3://BUCKET/PREFIX/NAME (gs://, az://), a directory
    image: String,
    /// Name of the machine; by default derived from the image's
    #[arg(long, short)]
    name: Option<String>,
    /// Memory, such as 1G
    #[arg(long, short, value_parser = args::memory, value_name = "SIZE")]
    memory: Option<u64>,
    /// CPUs
    #[arg(long, short, value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
    /// Start it with so many CPUs, and have its guest use --cpus of them: the agent takes the others offline as soon as it answers, and floe
    /// resize and floe offload --cpus have them used. For kernels that use no CPUs that were not there when they booted
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        requires = "cpus",
        conflicts_with_all = ["wait", "interactive", "tty", "command", "cpu_quota"]
    )]
    cpus_most: Option<u32>,
    /// A port of this host that is forwarded to the guest (repeatable): [ADDRESS:]HOST:GUEST[/udp]
    #[arg(long = "publish", short, value_name = "PORTS")]
    publish: Vec<PortForward>,
    /// Another place that has the image (repeatable), such as https://hub.example/NAME: all of them are read from at the same
    /// time, and the others go on if one fails
    #[arg(long, value_name = "ADDRESS")]
    source: Vec<String>,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    ending: Ending,
    #[command(flatten)]
    inside: Inside,
    /// Kernel command line instead of the image's
    #[arg(long)]
    cmdline: Option<String>,
    /// Boot from the disks even if the image contains a running machine
    #[arg(long)]
    cold: bool,
    /// Give it a host name, machine id, network address and host keys that no other machine has: for an image of a running machine with
    /// floe's agent that is started more than once. It has no network until the agent has done that
    #[arg(long, conflicts_with = "cold")]
    own_identity: bool,
    /// By which rule the image is fetched ahead of what the machine touches, once machines of it have run before: floe's own (floe, the
    /// default), or vTube's as published (vtube), which fetches and buffers more at a time. Machines of one image on this host share
    /// the rule of the one that was started last
    #[arg(long, value_enum, value_name = "RULE")]
    prefetch: Option<floe_api::Prefetch>,
    /// Stay until Ctrl-C or the machine's end, then print what its link carried and what it waited for
    #[arg(long)]
    link_report: bool,
    /// Keep and send no trace of what the machine touches
    #[arg(long)]
    no_trace: bool,
    /// Don't ask its guest once a day to give back what it deletes (floe limit --trim on undoes that; floe disk trim works all the same)
    #[arg(long)]
    no_trim: bool,
    /// Put it into a network of its own, which its clones join: they see each other and nobody else
    #[arg(long)]
    network: bool,
    /// Let that network reach ADDRESS[/BITS][:PORT] through this host (repeatable), such as 192.0.2.0/24:443. The host must pass
    /// packets on: sysctl -w net.ipv4.ip_forward=1
    #[arg(long, value_name = "DESTINATION", requires = "network")]
    allow: Vec<floe_api::Allow>,
    /// At most this many bytes a second to and from there, such as 10M, on all hosts that its clones are on together
    #[arg(long, value_parser = args::size, value_name = "SIZE", requires = "allow")]
    allow_rate: Option<u64>,
    /// Let its guest reach this host's loopback (10.0.2.2 and fec0::2 in the guest), link-local addresses and the cloud's
    /// metadata service: all ports, or those named, such as --allow-host=5432,8080
    #[arg(
        long,
        num_args = 0..,
        require_equals = true,
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..),
        value_name = "PORT",
        conflicts_with = "network"
    )]
    allow_host: Option<Vec<u16>>,
    /// Start it even if this host has too little memory for it: when its memory is full, the host may end machines
    #[arg(long)]
    overcommit: bool,
    #[command(flatten)]
    independent: super::independent::RunArgs,
    #[command(flatten)]
    trust: args::TrustArgs,
    #[command(flatten)]
    swarm: super::swarm::SwarmRunArgs,
    #[command(flatten)]
    limits: super::limits::LimitArgs,
    #[command(
        flatten,
        next_help_heading = "Hardware (with a boot, not with a captured machine)"
    )]
    hardware: super::hardware::HardwareArgs,
    #[command(
        flatten,
        next_help_heading = "Hardware (with a boot, not with a captured machine)"
    )]
    cdrom: super::hardware::CdromArgs,
    #[command(
        flatten,
        next_help_heading = "cloud-init in the guest (with a boot, not with a captured machine)"
    )]
    seed: super::hardware::SeedArgs,
    #[command(flatten, next_help_heading = "Options")]
    tokens: super::login::TokenArgs,
    #[command(flatten)]
    authorities: super::authority::AuthorityArgs,
}

#[derive(Debug, Args)]
pub(super) struct WaitArgs {
    /// Then wait for a sign of life: console (its first byte there), agent (floe's agent in the guest answers), port (the first
    /// forwarded port answers), port=N (that of the guest's port N does), none
    #[arg(long, value_parser = sign, value_name = "SIGN", default_value = "none")]
    wait: Sign,
    /// How long to wait for it, such as 90s or 10m, by default 120s; a number alone is in seconds
    #[arg(long, value_parser = args::time_s, value_name = "TIME")]
    wait_timeout: Option<u64>,
}

impl WaitArgs {
    /// Returns the request to start a machine and wait so.
    pub(super) fn request(&self) -> floe_api::StartRequest {
        floe_api::StartRequest {
            wait: self.wait.wait,
            wait_port: self.wait.port,
            wait_timeout_s: self.wait_timeout,
            ..Default::default()
        }
    }
}

/// The value of `--wait`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sign {
    wait: floe_api::Wait,
    /// The guest's port, if one is named.
    port: Option<u16>,
}

fn sign(text: &str) -> Result<Sign, String> {
    use floe_api::Wait;
    let (word, port) = match text.split_once('=') {
        Some((word, port)) => (word, Some(port)),
        None => (text, None),
    };
    let wait = match word {
        "none" => Wait::None,
        "console" => Wait::Console,
        "agent" => Wait::Agent,
        "port" => Wait::Port,
        _ => return Err("write console, agent, port, port=80 or none".into()),
    };
    match port.map(str::parse) {
        None => Ok(Sign { wait, port: None }),
        Some(Ok(port)) if port > 0 && wait == Wait::Port => Ok(Sign {
            wait,
            port: Some(port),
        }),
        Some(_) => Err("only a port has a number, from 1 to 65535: port=80".into()),
    }
}

impl Run {
    /// Returns what the guest may reach of this host.
    pub(super) fn host_access(&self) -> floe_api::HostAccess {
        match self.allow_host.clone() {
            None => floe_api::HostAccess::None,
            Some(ports) if ports.is_empty() => floe_api::HostAccess::All,
            Some(ports) => floe_api::HostAccess::Ports(ports),
        }
    }

    /// Returns with how many CPUs it starts, and what is waited for then.
    fn cpus_and_sign(&self) -> Result<(Option<u32>, floe_api::Wait), CliError> {
        match (self.cpus, self.cpus_most) {
            (Some(cpus), Some(most)) if most < cpus => Err(CliError::usage(
                format!("its guest can't use {cpus} of {most} CPUs"),
                "give --cpus-most at least as many as --cpus",
            )),
            (_, Some(most)) => Ok((Some(most), floe_api::Wait::Agent)),
            (cpus, None) => Ok((cpus, self.wait.wait.wait)),
        }
    }

    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let allow_host = self.host_access();
        let (cpus, wait) = self.cpus_and_sign()?;
        let image = args::image(&self.image)?;
        let more = self.source.iter().map(String::as_str);
        let places: Vec<&str> = std::iter::once(&*image).chain(more).collect();
        let tokens = self.tokens.tokens_for(places.iter().copied())?;
        let authorities = self.authorities.given(places)?;
        let request = floe_api::RunRequest {
            image,
            sources: self.source,
            name: self.name,
            memory_bytes: self.memory,
            cpus,
            forwards: self.publish,
            wait,
            wait_port: self.wait.wait.port,
            wait_timeout_s: self.wait.wait_timeout,
            cmdline: self.cmdline,
            cold: self.cold,
            token: None,
            tokens,
            ca: authorities.ca,
            cas: authorities.cas,
            no_trace: self.no_trace,
            prefetch: self.prefetch.unwrap_or_default(),
            network: self.network.then_some(floe_api::NetworkRequest {
                allow: self.allow,
                bytes_per_s: self.allow_rate,
            }),
            allow_host,
            overcommit: self.overcommit,
            limits: self.limits.limits(),
            remove: self.ending.rm,
            restart: self.ending.restart,
            park_after_s: self.ending.park_after,
            no_trim: self.no_trim,
            hardware: self.hardware.hardware(),
            cdrom: self.cdrom.file()?,
            boot: self.cdrom.first(),
            seed: self.seed.seed()?,
            independent: self.independent.wish(),
            swarm: self.swarm.wish(),
            swarm_members: self.swarm.members()?,
            trust: self.trust.trust,
            own_identity: self.own_identity,
        };
        let client = cx.client()?;
        let events = client.run(&request)?;
        if self.inside.is_wanted() {
            return self.inside.run(cx, &client, events, request.remove);
        }
        let Some(machine) = started(cx, events)? else {
            return Ok(ExitCode::SUCCESS);
        };
        if self.cpus_most.is_some() {
            let size = floe_api::SizeRequest {
                cpus: self.cpus,
                ..Default::default()
            };
            resize::resized(cx, &client, &machine, &size)?;
        }
        if self.link_report {
            stream::report(cx, machine)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Follows a start and reports it. Returns the machine's name.
pub(super) fn started(
    cx: &Context,
    events: floe_api::client::Events,
) -> Result<Option<String>, CliError> {
    let done = progress::follow(cx.out, events)?;
    let name = done.outcome.machine.as_ref().map(|m| m.name.clone());
    let mut text = String::new();
    if let Some(m) = &done.outcome.machine {
        let how = if m.restored { "goes on" } else { "has started" };
        text += &format!(
            "{} {how}: {}, {} CPUs, {}, {}\n",
            m.name,
            m.image_name,
            m.cpus,
            bytes(m.memory_bytes),
            m.accel
        );
        for f in &m.forwards {
            text += &format!("  port {}\n", arrow(f));
        }
    }
    text += "\n";
    text += &stages(&done.stages, done.outcome.total_ms);
    cx.out.text(&text)?;
    Ok(name)
}

/// Returns the table of stages. Time that belongs to no stage has its own row, so that the rows always add up.
fn stages(stages: &[(String, f64)], total_ms: f64) -> String {
    let mut rows: Vec<_> = stages
        .iter()
        .map(|(name, ms)| vec![name.clone(), format!("{ms:.1}")])
        .collect();
    let other = total_ms - stages.iter().map(|(_, ms)| ms).sum::<f64>();
    if other.abs() >= 0.1 {
        rows.push(vec!["other".into(), format!("{other:.1}")]);
    }
    rows.push(vec!["total".into(), format!("{total_ms:.1}")]);
    table(&["STAGE", ">MS"], rows)
}

/// Attach this terminal to a machine's serial console
#[derive(Debug, Args)]
#[command(after_help = "\
Example: Ctrl-] leaves, the machine goes on
  floe console web
Example: one command, without a terminal
  echo 'uname -a' | floe console web --quiet-for 3

The console shows what the guest wrote last. It belongs to one user at a time. A terminal follows the machine: while it is parked, on its
way to another node, or lent to one (floe offload), what it writes there is shown, and what is typed is kept until its guest has got it,
as by floe type. So it is while the machine is paused, if floe's agent runs in the guest.")]
pub struct Console {
    /// The machine
    machine: String,
    /// Without a terminal: leave when the input has ended and the guest was quiet for this many seconds
    #[arg(long, default_value = "2", value_name = "SECONDS")]
    quiet_for: u64,
}

impl Console {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        console::attach(
            &cx.client()?,
            &self.machine,
            Duration::from_secs(self.quiet_for),
        )
    }
}

/// Save a machine's screen as a PNG file
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  floe screenshot web out.png\n  floe screenshot web - | display"
)]
pub struct Screenshot {
    /// The machine
    machine: String,
    /// File to write, - for standard output
    file: PathBuf,
}

impl Screenshot {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let png = cx.client()?.screenshot(&self.machine)?;
        if self.file.as_os_str() == "-" {
            return cx.out.bytes(&png);
        }
        std::fs::write(&self.file, &png).map_err(|e| CliError::file("write", &self.file, e))?;
        let outcome = floe_api::Outcome {
            path: Some(args::absolute(&self.file)?),
            ..Default::default()
        };
        cx.out.value(&outcome, |_| {
            format!("{} ({})\n", self.file.display(), bytes(png.len() as u64))
        })
    }
}

/// Print what a machine wrote on its console
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe logs web
  floe logs web --follow --tail 4K
Example: colours and all, of a guest that you trust
  floe logs web --raw | less -R

The last 4 to 8 MiB are kept. What would steer the terminal is shown by its number, such as \\x1b. Of a machine that is lent (floe
offload) it is what it has written there.")]
pub struct Logs {
    /// The machine
    machine: String,
    /// Continue as the guest writes, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
    /// Only this many bytes from the end, such as 4K
    #[arg(long, value_parser = args::size, value_name = "SIZE")]
    tail: Option<u64>,
    /// Print the guest's bytes unchanged: escape sequences in them control your terminal
    #[arg(long, conflicts_with = "json")]
    raw: bool,
}

impl Logs {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let query = floe_api::LogQuery {
            follow: self.follow,
            tail_bytes: self.tail,
        };
        let mut log = cx.client()?.logs(&self.machine, &query)?;
        let mut buffer = vec![0; 64 * 1024];
        let mut shown = visible::Filter::default();
        loop {
            match log.read(&mut buffer) {
                Ok(0) => return cx.out.bytes(shown.finish().as_bytes()),
                Ok(n) if cx.out.json => {
                    let text = String::from_utf8_lossy(&buffer[..n]);
                    cx.out
                        .value(&std::collections::BTreeMap::from([("text", text)]), |_| {
                            String::new()
                        })?;
                }
                Ok(n) if self.raw => cx.out.bytes(&buffer[..n])?,
                Ok(n) => cx.out.bytes(shown.feed(&buffer[..n]).as_bytes())?,
                Err(e) => return Err(CliError::failed("the log broke off", e)),
            }
        }
    }
}

/// Make an image of a machine as it is now: memory, disks, devices
#[derive(Debug, Args)]
#[command(after_help = "\
Example: the machine goes on after a pause of about a tenth of a second
  floe capture web --name debian-booted
Example: put it away
  floe capture web --name web:friday --stop")]
pub struct Capture {
    /// The machine
    machine: String,
    /// Name of the image, NAME or NAME:TAG
    #[arg(long, short)]
    name: Option<String>,
    /// End the machine once it is captured
    #[arg(long)]
    stop: bool,
    /// Seconds for which an isolated copy runs, to learn what a resumed machine touches first (0: not at all)
    #[arg(long, value_name = "SECONDS", default_value_t = floe_api::REHEARSE_S_DEFAULT)]
    rehearse: u32,
    #[command(flatten)]
    hooks: args::HooksArgs,
    /// A note to keep in the image (repeatable)
    #[arg(long, value_parser = args::label, value_name = "KEY=VALUE")]
    label: Vec<(String, String)>,
}

impl Capture {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let request = floe_api::CaptureRequest {
            name: self.name,
            stop: self.stop,
            rehearse_s: Some(self.rehearse),
            hooks_s: self.hooks.hooks,
            labels: self.label.into_iter().collect(),
        };
        let done = progress::follow(cx.out, cx.client()?.capture(&self.machine, &request)?)?;
        cx.out.text(&stored(&done.outcome, "captured"))
    }
}

/// Start a stopped machine again from its disks
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe start web
Example: and wait until its web server answers; Ctrl-C ends the wait, the machine goes on
  floe start web --wait port=80

It also lets a machine that is paused go on at once, for whatever reason it is. floe resume only ends a floe pause.")]
pub struct Start {
    /// The machine
    machine: String,
    #[command(flatten)]
    wait: WaitArgs,
    /// Start it even if this host has too little memory for it: when its memory is full, the host may end machines
    #[arg(long)]
    overcommit: bool,
}

impl Start {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let request = floe_api::StartRequest {
            overcommit: self.overcommit,
            ..self.wait.request()
        };
        started(cx, cx.client()?.start(&self.machine, &request)?).map(drop)
    }
}

/// Add or remove a port of this host that is forwarded to a running machine
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  floe forward web 8443:443\n  floe forward web 8443:443 --remove\n  floe forward web 0:22   # chooses a free port"
)]
pub struct Forward {
    /// The machine
    machine: String,
    /// [ADDRESS:]HOST:GUEST[/udp]
    ports: PortForward,
    /// Remove it
    #[arg(long)]
    remove: bool,
}

impl Forward {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let request = floe_api::ForwardRequest {
            forward: self.ports,
            remove: self.remove,
        };
        let forward = cx.client()?.forward(&self.machine, &request)?;
        let verb = if self.remove { "removed " } else { "" };
        cx.out.value(&forward, |f| format!("{verb}{}\n", arrow(f)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stages_add_up() {
        let known = [("resolve".to_owned(), 1.5), ("qemu".to_owned(), 40.0)];
        let text = stages(&known, 43.0);
        assert_eq!(
            text,
            "STAGE      MS\nresolve   1.5\nqemu     40.0\nother     1.5\ntotal    43.0\n"
        );
        assert!(!stages(&known, 41.5).contains("other"));
    }

    #[test]
    fn what_is_waited_for_is_a_word_or_a_port() {
        use floe_api::Wait;
        let parsed = |text| sign(text).map(|sign| (sign.wait, sign.port));
        assert_eq!(parsed("none"), Ok((Wait::None, None)));
        assert_eq!(parsed("agent"), Ok((Wait::Agent, None)));
        assert_eq!(parsed("port"), Ok((Wait::Port, None)));
        assert_eq!(parsed("port=8080"), Ok((Wait::Port, Some(8080))));
        for bad in ["", "ports", "port=", "port=0", "port=65536", "console=80"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }
}
