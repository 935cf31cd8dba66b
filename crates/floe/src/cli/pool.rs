//! Commands about substrates: dock, pool, activate.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::error::CliError;
use super::login::Access;
use super::outcome::{result, verified};
use super::output::{age, bytes, fields, table, word};
use super::pool_shown::{Visible, place, status};
use super::{Context, args, attach, ensembles, pool_host, pool_moving, progress};
use floe_api::{ActivateReport, ErrorCode, FreedReport, SubstrateInfo, SubstrateList, Visibility};

/// Put a machine into the pool as a substrate: it stands still there in memory, as it is now, and is activated in a moment
#[derive(Debug, Args)]
#[command(mut_arg("private", |private| private.help("Nobody else may see it (the default)")), after_help = "\
Example: web goes on after a pause of some tens of milliseconds
  floe dock web --as shop-web
Example: so that other users of this node may activate it
  floe dock web --as shop-web --public
  floe dock web --as shop-web --restricted anna,berta
Example: made small first, and gone once it is in the pool
  floe dock web --as shop-web --convert
Example: it is to answer soon on hosts that have nothing of it yet
  floe dock web --as shop-web --rehearse 4
Example: and back, as one machine or as three
  floe activate shop-web
  floe activate shop-web -n 3
Example: into a pool on a host of its own (floe pool serve --help), and out of it on any host
  floe dock web --as shop-web --pool https://pool.example
  floe activate https://pool.example/shop-web

The guest notices nothing, unless it is to be made small: then it runs the hooks in its /etc/floe/dock.d, drops its caches, and keeps no
more memory than it uses. If anything fails, the machine is as it was. Free pages are not stored, and pages that its disks or its base
image have too are stored as references. A machine of a private substrate keeps the docked machine's identity; those of the others
forget it before they get a network. To who may not see a substrate it does not exist.")]
pub struct Dock {
    /// The machine
    machine: String,
    /// Name of the substrate; by default that of the machine
    #[arg(long = "as", value_name = "NAME")]
    called: Option<String>,
    #[command(flatten)]
    visible: Visible,
    /// Make the machine small first, and remove it once the substrate is durable. Its guest needs floe's agent
    #[arg(long)]
    convert: bool,
    /// Seconds for which an isolated copy runs first, to learn what an activated machine touches: that is then fetched before it does,
    /// which helps most on other hosts
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    rehearse: u32,
    /// Keep it in this pool on another host, or on a hub, or in a bucket or directory, and not on this host
    #[arg(long, value_name = "ADDRESS")]
    pool: Option<String>,
    #[command(flatten)]
    access: Access,
}

impl Dock {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        let elsewhere = self.pool.clone().map(|to| pool_moving::Export {
            substrate: self.called.clone().unwrap_or_else(|| self.machine.clone()),
            to,
            force: false,
            access: self.access.clone(),
        });
        self.dock(cx)?;
        elsewhere.map_or(Ok(()), |export| export.and_remove(cx))
    }

    fn dock(self, cx: &Context) -> Result<(), CliError> {
        let request = floe_api::DockRequest {
            visibility: self.visible.asked().unwrap_or(Visibility::Private),
            name: self.called.unwrap_or_else(|| self.machine.clone()),
            users: self.visible.restricted,
            convert: self.convert,
            rehearse_s: (self.rehearse > 0).then_some(self.rehearse),
        };
        let done = progress::follow(cx.out, cx.client()?.dock(&self.machine, &request)?)?;
        let substrate = result(done.outcome.substrate, "the dock")?;
        let (machine, pause) = (&self.machine, done.outcome.pause_ms.unwrap_or_default());
        let now = match self.convert {
            true => "the machine is gone".to_owned(),
            false => format!("{machine} stood still for {pause:.0} ms"),
        };
        cx.out.text(&format!(
            "docked {machine} as {}: {} of memory are {} in the pool; {now}\n",
            substrate.name,
            bytes(substrate.memory_bytes),
            bytes(substrate.pool_bytes),
        ))
    }
}

/// Start machines from a substrate of the pool
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  floe activate shop-web
Example: three machines, called blue.1 to blue.3
  floe activate shop-web -n 3 --name blue
Example: larger than the machine was that was docked
  floe activate shop-web --cpus 4 --memory 4G
Example: eight of them on this host and two others of its cluster (floe cluster --help)
  floe activate shop-web -n 8 --hosts here,beta,gamma
Example: with an empty disk of 20 GiB, and one with what is in a file; each machine gets its own
  floe activate shop-web -n 3 --disk data=20G --disk db.qcow2
Example: in a network of their own
  floe activate shop-web -n 3 --network
Example: from a pool on another host (floe pool serve --help), from which it is read while it runs
  floe activate shop-web --pool https://pool.example
  floe activate https://pool.example/shop-web --independent
Example: an ensemble, machines of several substrates that reach each other by name
  floe activate --ensemble shop.toml
Example: when they executed first, and when their networks answered
  floe activate shop-web -n 3 --json | jq 'select(.event == \"done\").activated.machines'

A machine runs at once, and its chunks come from memory as it touches them. One machine of a private substrate keeps the identity of the
machine that was docked. In all other cases each machine gets an identity of its own, and no network before that is in place. More CPUs,
memory and disks come once the guest answers, as with floe resize and floe attach; if a machine does not get all of it, the command says
so and has the exit code of those. Machines on other hosts can be given empty disks only.

Other hosts read the substrate from this one while their machines run; what several of them need is sent once. floe family and
floe kill list and end the machines there, as clones of the substrate. If a host cannot take its machines, the others do. The exit code
is 0 only if all machines run and all hosts report theirs, and 4 if a host fell silent after its machines ran.")]
pub struct Activate {
    /// The substrate: its name, or its address in a pool on another host
    #[arg(required_unless_present = "file")]
    substrate: Option<String>,
    #[command(flatten)]
    at: pool_host::At,
    #[command(flatten)]
    ensemble: ensembles::Ensemble,
    /// How many machines
    #[arg(long = "machines", short = 'n', default_value_t = 1, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(floe_api::CLONES_MAX)))]
    count: u32,
    /// Name of the machine, or the beginning of the names of several; by default that of the substrate
    #[arg(long)]
    name: Option<String>,
    /// Hosts to run them on: members of this node's cluster by name or address (floe cluster members), or here
    #[arg(long, value_delimiter = ',', value_name = "HOST")]
    hosts: Vec<String>,
    /// Put them into a network of their own, together: they see each other and nobody else, on all of their hosts
    #[arg(long)]
    network: bool,
    /// Let that network reach ADDRESS[/BITS][:PORT] through their hosts (repeatable), such as 192.0.2.0/24:443. The hosts must pass
    /// packets on: sysctl -w net.ipv4.ip_forward=1
    #[arg(long, value_name = "DESTINATION", requires = "network")]
    allow: Vec<floe_api::Allow>,
    /// Start them even if this host has too little memory for them: when its memory is full, it may end machines
    #[arg(long)]
    overcommit: bool,
    /// How long the command waits until their guests answer, in seconds (0: not at all). The machines run before that
    #[arg(long, value_name = "SECONDS", default_value_t = floe_api::ACTIVATE_ANSWER_S_DEFAULT)]
    answer: u64,
    /// Keep all of their image on this host for them, so that the substrate can go (floe independent)
    #[arg(long)]
    independent: bool,
    /// How many CPUs each gets; by default as many as the machine had that was docked
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
    /// How much memory each gets, such as 2G; by default as much as the machine had that was docked
    #[arg(long, value_parser = args::memory, value_name = "SIZE")]
    memory: Option<u64>,
    /// A disk for each (repeatable): NAME=SIZE for an empty one, FILE or NAME=FILE for one with what is in the file
    #[arg(long = "disk", value_name = "NAME=SIZE|FILE")]
    disks: Vec<String>,
    /// Assume this format for the disks' files, whatever they look like
    #[arg(long, value_enum, requires = "disks")]
    format: Option<floe_api::ImportFormat>,
    #[command(flatten)]
    trust: args::TrustArgs,
}

impl Activate {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        let Some(substrate) = &self.substrate else {
            return self.ensemble.run(cx, self.overcommit);
        };
        let (pool, substrate) = pool_host::place_of(substrate, self.at.pool.as_deref())?;
        let asked = pool.as_deref().map(|pool| self.at.access.token_for(pool));
        let disks = self.disks.iter().map(|disk| {
            let (name, content) = attach::new_disk(disk, self.format)?;
            Ok(floe_api::NamedDisk { name, content })
        });
        let disks = disks.collect::<Result<_, CliError>>()?;
        let request = floe_api::ActivateRequest {
            machines: self.count,
            name: self.name,
            hosts: self.hosts,
            network: self.network.then_some(floe_api::NetworkRequest {
                allow: self.allow,
                bytes_per_s: None,
            }),
            overcommit: self.overcommit,
            answer_s: Some(self.answer),
            independent: self.independent.then(Default::default),
            cpus: self.cpus,
            memory_bytes: self.memory,
            disks,
            ca: match &pool {
                Some(_) => self.at.access.ca()?,
                None => None,
            },
            token: asked.transpose()?.flatten(),
            trust: self.trust.trust,
            pool,
        };
        let events = cx.client()?.activate(&substrate, &request)?;
        let done = progress::follow(cx.out, events)?;
        let activated = result(done.outcome.activated, "the activation")?;
        cx.out.text(&told(&activated))?;
        let running = activated.machines.len() as u32;
        if running != self.count {
            return Err(CliError::new(
                ErrorCode::Failed,
                format!("{running} of {} machines run", self.count),
                "use those that do, or end them with floe kill",
            ));
        }
        let short = activated.machines.iter().flat_map(|machine| &machine.short);
        let mut short = short.cloned().map(CliError);
        let Some(first) = short.next() else {
            return Ok(ExitCode::SUCCESS);
        };
        short.for_each(|more| more.print(cx.out.json));
        Err(first)
    }
}

fn told(activated: &ActivateReport) -> String {
    let row = |machine: &floe_api::ActivatedInfo| {
        let ms = |ms: Option<f64>| ms.map(|ms| format!("{ms:.0}")).unwrap_or_default();
        vec![
            machine.name.clone(),
            machine.host.clone().unwrap_or_default(),
            machine.address.clone().unwrap_or_default(),
            format!("{:.0}", machine.first_ms),
            ms(machine.network_ms),
            ms(machine.size_ms),
            String::new(),
        ]
    };
    let head = [
        "NAME",
        "HOST",
        "ADDRESS",
        ">RUNS MS",
        ">ANSWERS MS",
        ">HAS ITS SIZE MS",
        "",
    ];
    let failed = |clone: &floe_api::CloneInfo| {
        let mut row = vec![clone.name.clone()];
        row.resize(head.len() - 1, String::new());
        row.push(clone.detail.clone());
        row
    };
    let rows = activated.machines.iter().map(row);
    let mut text = table(&head, rows.chain(activated.failed.iter().map(failed)));
    for machine in &activated.machines {
        let disks = machine.disks.iter();
        text.extend(disks.map(|disk| attach::told(&machine.name, disk)));
    }
    text += &match (&activated.pool, activated.from_memory) {
        (Some(pool), _) => format!("\nfrom the pool {pool}\n"),
        (None, true) => "\nfrom memory\n".to_owned(),
        (None, false) => "\nfrom the backup on the disk\n".to_owned(),
    };
    text
}

/// The pool of substrates: how full it is, what is in it
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Example:\n  floe dock web --as shop-web\n  floe pool ls\n  floe activate shop-web"
)]
pub enum PoolCommand {
    Serve(pool_host::ServePool),
    /// How much memory substrates take, and may take
    #[command(
        after_help = "Example:\n  floe pool status --json | jq .used_bytes\nExample: of a pool on another host\n  \
        floe pool status --pool https://pool.example"
    )]
    Status(pool_host::At),
    /// List the substrates
    #[command(
        after_help = "Example:\n  floe pool ls\nExample: of a pool on another host\n  floe pool ls --pool https://pool.example"
    )]
    Ls(pool_host::At),
    /// Show a substrate, and what its bytes are made of
    #[command(after_help = "Example:\n  floe pool show shop-web")]
    Show {
        /// The substrate
        substrate: String,
        #[command(flatten)]
        at: pool_host::At,
    },
    /// Remove substrates with their backups
    #[command(after_help = "Example:\n  floe pool rm shop-web")]
    Rm {
        /// The substrates
        #[arg(required = true)]
        substrates: Vec<String>,
    },
    Export(pool_moving::Export),
    Import(pool_moving::Import),
    /// Read and hash the backups of substrates
    #[command(
        after_help = "Example: all of them\n  floe pool verify\nExample: one\n  floe pool verify shop-web && echo intact\n\n\
        A substrate with a damaged backup is named; the others are activated as ever."
    )]
    Verify {
        /// The substrates; by default all
        substrates: Vec<String>,
    },
    /// Change how much memory substrates may take
    #[command(after_help = "Example:\n  floe pool resize 8G\n\n\
        Those that were used least recently leave the memory if it is less than before; they are activated from the disk then.\n\
        They also leave it when a machine needs it. More than the host has beside its machines is refused.")]
    Resize {
        /// The most memory that they may take together, such as 8G
        #[arg(value_parser = args::size)]
        size: u64,
        /// Accept more than is free on this host now: substrates come into memory as it gets free
        #[arg(long)]
        overcommit: bool,
    },
}

impl PoolCommand {
    pub(super) fn run(self, cx: &Context) -> Result<ExitCode, CliError> {
        // a pool on another host is asked directly: no node is needed
        match self {
            PoolCommand::Serve(serve) => serve.run(cx)?,
            PoolCommand::Status(pool_host::At {
                pool: Some(pool),
                access,
            }) => pool_host::status(cx, &pool, &access)?,
            PoolCommand::Ls(pool_host::At {
                pool: Some(pool),
                access,
            }) => pool_host::list(cx, &pool, &access)?,
            PoolCommand::Show {
                substrate,
                at:
                    pool_host::At {
                        pool: Some(pool),
                        access,
                    },
            } => pool_host::show(cx, &pool, &access, &substrate)?,
            here => return here.run_here(cx),
        }
        Ok(ExitCode::SUCCESS)
    }

    fn run_here(self, cx: &Context) -> Result<ExitCode, CliError> {
        let client = cx.client()?;
        match self {
            PoolCommand::Serve(_) => {}
            PoolCommand::Export(export) => export.run(cx)?,
            PoolCommand::Import(import) => import.run(cx)?,
            PoolCommand::Status(_) => cx.out.value(&client.pool()?, status)?,
            PoolCommand::Ls(_) => cx.out.value(&client.substrates()?, list)?,
            PoolCommand::Show { substrate, .. } => {
                cx.out.value(&client.substrate(&substrate)?, show)?;
            }
            PoolCommand::Rm { substrates } => {
                let mut freed = FreedReport::default();
                for name in substrates {
                    let one = client.remove_substrate(&name)?;
                    freed.freed_bytes += one.freed_bytes;
                    freed.names.extend(one.names);
                }
                cx.out.value(&freed, |freed| {
                    let names = freed.names.join(", ");
                    format!("removed {names}, {} freed\n", bytes(freed.freed_bytes))
                })?;
            }
            PoolCommand::Verify { substrates } => {
                return verified(cx, client.verify_pool(substrates)?);
            }
            PoolCommand::Resize { size, overcommit } => {
                let request = floe_api::PoolResizeRequest {
                    budget_bytes: size,
                    overcommit,
                };
                cx.out.value(&client.resize_pool(&request)?, status)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn list(list: &SubstrateList) -> String {
    let row = |substrate: &SubstrateInfo| {
        vec![
            substrate.name.clone(),
            substrate.machine.clone(),
            word(&substrate.visibility),
            bytes(substrate.memory_bytes),
            bytes(substrate.pool_bytes),
            place(substrate.in_memory).into(),
            age(substrate.docked_unix_s),
        ]
    };
    table(
        &["NAME", "MACHINE", "VISIBLE", ">RAM", ">POOL", "IN", ">AGE"],
        list.substrates.iter().map(row),
    )
}

fn show(substrate: &SubstrateInfo) -> String {
    let of = &substrate.made_of;
    let activated = substrate.activated_unix_s.map(age).unwrap_or_default();
    fields(&[
        ("name", substrate.name.clone()),
        ("machine", substrate.machine.clone()),
        ("visible", word(&substrate.visibility)),
        ("users", substrate.users.join(", ")),
        ("owner", substrate.owner_uid.to_string()),
        ("docked", format!("{} ago", age(substrate.docked_unix_s))),
        ("activated", activated),
        ("cpus", substrate.cpus.to_string()),
        ("ram", bytes(substrate.memory_bytes)),
        (
            "  free or zero",
            format!("{} dropped", bytes(of.zero_bytes)),
        ),
        (
            "  of the base",
            format!("{} referred to", bytes(of.base_bytes)),
        ),
        (
            "  of its disks",
            format!("{} referred to", bytes(of.disk_cache_bytes)),
        ),
        ("  twice", format!("{} referred to", bytes(of.twice_bytes))),
        ("  its own", bytes(of.own_memory_bytes)),
        ("disks", bytes(of.own_disk_bytes)),
        ("devices", bytes(of.device_bytes)),
        ("tables", bytes(of.table_bytes)),
        ("on the disk", bytes(of.backup_bytes)),
        ("in the pool", bytes(substrate.pool_bytes)),
        ("in", place(substrate.in_memory).into()),
        ("reset", substrate.reset.join(", ")),
        ("image", substrate.image.clone()),
        ("base", substrate.base.clone().unwrap_or_default()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_that_did_not_answer_have_no_time_for_that() {
        let machine = |name: &str, network_ms| floe_api::ActivatedInfo {
            name: name.into(),
            first_ms: 41.6,
            network_ms,
            ..Default::default()
        };
        let report = ActivateReport {
            substrate: "shop-web".into(),
            from_memory: true,
            pool: None,
            machines: vec![machine("a.1", Some(812.2)), machine("a.2", None)],
            failed: vec![floe_api::CloneInfo {
                number: 3,
                name: "a.3".into(),
                host: None,
                state: floe_api::CloneState::Failed,
                detail: "https://b: no answer".into(),
                address: None,
                running_ms: None,
                ends_unix_s: None,
            }],
        };
        let text = told(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].contains("42") && lines[1].contains("812"),
            "{text}"
        );
        assert!(lines[2].ends_with("42"), "{text}");
        assert!(
            lines[3].contains("a.3") && lines[3].ends_with("no answer"),
            "{text}"
        );
        assert!(text.ends_with("from memory\n"), "{text}");
    }
}
