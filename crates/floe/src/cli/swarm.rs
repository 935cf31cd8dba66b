//! Nodes that bring one image to each other: `floe swarm`.

use clap::{Args, Subcommand};

use super::error::CliError;
use super::login::Access;
use super::output::{bytes, fields, short, table};
use super::stream::rate;
use super::{Context, args};
use floe_api::{
    ErrorCode, SWARM_LIST_BYTES_MAX, SwarmInfo, SwarmLeave, SwarmMember, SwarmMembers, SwarmPeer,
    SwarmReport, SwarmSeed, SwarmUse, SwarmWay,
};
use std::{
    fs::File,
    io::Read,
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// Show which images this node exchanges with other nodes, and give images to others
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Example: which images come from other nodes, and how much of them
  floe swarm status
Example: who gives, and who takes
  floe swarm peers
Example: give an image to all who run it, and end that
  floe swarm seed https://hub.example/team/web
  floe swarm leave https://hub.example/team/web

Nodes that run the same image of a hub find each other through that hub, and send each other its pieces over UDP; the hub sends what none
of them has. Only nodes that may read the image on its hub can take part. By default a node meets nodes of the same user (by its token);
with --swarm, or as a seed, it also meets nodes of other users that did the same. With floe run --swarm-members cluster, or FILE, no hub
hears who takes part.")]
pub enum Swarm {
    /// Show the swarms that this node is in
    #[command(after_help = "Example:\n  floe swarm status")]
    Status,
    /// Show the other nodes of its swarms
    #[command(after_help = "Example:\n  floe swarm peers\n  floe swarm peers 07142f5b47f6")]
    Peers {
        /// Only those of this image: its id or the beginning of it
        image: Option<String>,
    },
    /// Listen for other nodes from now on, and print the line that names this one in a list of members (floe run --swarm-members)
    #[command(after_help = "Example:\n  floe swarm listen")]
    Listen,
    /// Bring all of an image here, and give it to the nodes that run it, also after a restart
    #[command(
        after_help = "Example: until it is ended, or until three others have had all of it\n  floe swarm seed https://hub.example/team/web\n  floe swarm seed https://hub.example/team/web --until 3"
    )]
    Seed {
        /// Address of the image on its hub
        image: String,
        /// Stop once so many other nodes have had all of it; 0, the default: only floe swarm leave stops it
        #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
        until: u32,
        #[command(flatten)]
        access: Access,
    },
    /// Leave an image's swarm; machines that run it read from the hub alone from then on
    #[command(after_help = "Example:\n  floe swarm leave https://hub.example/team/web")]
    Leave {
        /// The image: its id, the beginning of it, or its address as it was given
        image: String,
    },
}

/// Options of `floe run` about swarms.
#[derive(Debug, Args)]
pub(super) struct SwarmRunArgs {
    /// Exchange the image's pieces with other nodes that run it. --swarm: always, also with nodes of other users that said the same.
    /// --swarm=auto: once another node of the same user (by its token) runs it. --swarm=off: never. The default is what floe node was
    /// started with
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "on", value_name = "WHEN")]
    swarm: Option<SwarmUse>,
    /// Exchange its pieces with these nodes alone: members of this node's cluster that run it with the same option (cluster), or the nodes
    /// in a FILE, one a line, as floe swarm listen prints it on each of them. No hub hears who takes part
    #[arg(long, value_name = "cluster|FILE")]
    swarm_members: Option<PathBuf>,
}

impl SwarmRunArgs {
    /// Returns whether the machine takes part; `None` if that was not said.
    pub fn wish(&self) -> Option<SwarmUse> {
        self.swarm
    }

    /// Returns where the members of the swarm are listed: by the hub, by the cluster, or in a file.
    pub fn members(&self) -> Result<SwarmMembers, CliError> {
        match &self.swarm_members {
            Some(cluster) if cluster == Path::new("cluster") => Ok(SwarmMembers::Cluster),
            Some(file) => Ok(SwarmMembers::List(listed(file)?)),
            None => Ok(SwarmMembers::Hub),
        }
    }
}

/// Reads a list of members.
fn listed(file: &Path) -> Result<Vec<SwarmMember>, CliError> {
    let mut text = String::new();
    let read = File::open(file).and_then(|from| {
        let most = SWARM_LIST_BYTES_MAX as u64;
        from.take(most + 1).read_to_string(&mut text)
    });
    read.map_err(|error| CliError::file("read", file, error))?;
    let list = match text.len() > SWARM_LIST_BYTES_MAX {
        true => Err(format!("it has more than {SWARM_LIST_BYTES_MAX} bytes")),
        false => SwarmMember::parse_list(&text),
    };
    list.map_err(|why| {
        CliError::usage(
            format!("{}: {why}", file.display()),
            "floe swarm listen prints the line of a node",
        )
    })
}

/// Parses the most that is sent to others, in bytes a second: at least a piece a second, or whoever asked for one would wait in vain.
fn upload(text: &str) -> Result<u64, String> {
    match args::size(text)? {
        less if less < floe_node::SWARM_UPLOAD_MIN => Err(
            "at least 64K, a piece a second; a node that is to give nothing takes no part: --swarm off".into(),
        ),
        enough => Ok(enough),
    }
}

/// Options of `floe node` and `floe up` about swarms.
#[derive(Debug, Args)]
pub(super) struct SwarmNodeArgs {
    /// Exchange images' pieces with other nodes that run them: once another node of the same user, by its token, runs the image (auto);
    /// always, also with nodes of other users that said the same (on); or never (off)
    #[arg(long, value_enum, num_args = 0..=1, default_value = "auto", default_missing_value = "on", value_name = "WHEN")]
    swarm: SwarmUse,
    /// UDP address and port for that; by default all addresses of this host, at a free port that is kept
    #[arg(long, value_name = "ADDRESS")]
    swarm_listen: Option<SocketAddr>,
    /// Most bytes a second that go to other nodes, such as 20M, at least 64K; by default all that the link carries
    #[arg(long, value_parser = upload, value_name = "SIZE")]
    swarm_upload: Option<u64>,
}

impl SwarmNodeArgs {
    /// Returns the node's options.
    pub fn options(&self) -> floe_node::SwarmOptions {
        floe_node::SwarmOptions {
            usage: self.swarm,
            listen: self.swarm_listen,
            upload_bytes_per_s: self.swarm_upload,
            ..Default::default()
        }
    }
}

impl Swarm {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        match self {
            Swarm::Status => cx.out.value(&cx.client()?.swarm()?, status),
            Swarm::Peers { image } => {
                let mut report = cx.client()?.swarm()?;
                if let Some(image) = image {
                    report
                        .swarms
                        .retain(|swarm| swarm.image.starts_with(&image));
                    if report.swarms.is_empty() {
                        return Err(CliError::new(
                            ErrorCode::NotFound,
                            format!("this node is in no swarm of an image {image:?}"),
                            "floe swarm status lists them by their ids",
                        ));
                    }
                }
                cx.out.value(&report, peers)
            }
            Swarm::Listen => cx.out.value(&cx.client()?.swarm_listen()?, line),
            Swarm::Seed {
                image,
                until,
                access,
            } => {
                let image = args::image(&image)?;
                let request = SwarmSeed {
                    until: (until > 0).then_some(until),
                    token: access.token_for(&image)?,
                    ca: access.ca()?,
                    image,
                };
                cx.out.value(&cx.client()?.swarm_seed(&request)?, status)
            }
            Swarm::Leave { image } => {
                let request = SwarmLeave {
                    image: args::image(&image)?,
                };
                cx.out.value(&cx.client()?.swarm_leave(&request)?, status)
            }
        }
    }
}

fn status(report: &SwarmReport) -> String {
    let usage = match report.usage {
        SwarmUse::Auto => "as soon as another node of the same user runs the same image (auto)",
        SwarmUse::On => "always, and with other users' nodes that do the same (on)",
        SwarmUse::Off => "never, unless a machine was started with --swarm (off)",
    };
    let mut pairs = vec![("machines take part", usage.to_owned())];
    if let Some(key) = &report.key {
        pairs.push(("this node", short(key)));
        pairs.push(("listens (UDP)", report.addresses.join(", ")));
    }
    let mut text = fields(&pairs);
    if report.swarms.is_empty() {
        return text + "This node is in no swarm: it runs no image of a hub, or must not.\n";
    }
    let titles = [
        "IMAGE",
        "MACHINES",
        "PIECES FROM",
        ">HERE",
        ">OTHERS",
        ">HAVE ALL",
        ">FROM THEM",
        ">FROM HUB",
        ">TO THEM",
    ];
    text.push('\n');
    text += &table(&titles, report.swarms.iter().map(row));
    text.push('\n');
    for swarm in &report.swarms {
        for said in [&swarm.why, &measured(swarm), &lent(swarm), &swarm.trouble] {
            if !said.is_empty() {
                text += &format!("{}: {said}\n", short(&swarm.image));
            }
        }
    }
    text
}

/// Says what paces the fetching ahead; nothing before that was measured.
fn measured(swarm: &SwarmInfo) -> String {
    let (Some(bytes_per_s), Some(piece_us)) = (swarm.bytes_per_s, swarm.piece_us) else {
        return String::new();
    };
    format!(
        "pieces come at {}, the quickest of late in {:.1} ms; what is fetched ahead is bounded by that",
        rate(bytes_per_s as f64),
        piece_us as f64 / 1e3
    )
}

/// Says from where a fork's clones got what they lacked, and by which figures that was decided.
fn lent(swarm: &SwarmInfo) -> String {
    let Some(lent) = &swarm.lent else {
        return String::new();
    };
    let mut text = format!(
        "of what its clones lacked, {} were in pieces here, {} came by a swarm and {} from the parent's host",
        bytes(lent.shelf_bytes),
        bytes(lent.swarm_bytes),
        bytes(lent.parent_bytes)
    );
    if let (Some(swarm_us), Some(parent_us)) = (lent.swarm_us, lent.parent_us) {
        let ms = |us: u64| us as f64 / 1e3;
        text += &format!(
            "; a chunk takes {:.1} ms by the swarm, {:.1} ms from that host",
            ms(swarm_us),
            ms(parent_us)
        );
    }
    text
}

/// The line that names a node in a list of members, and what is to be changed in it.
fn line(report: &SwarmReport) -> String {
    let member = SwarmMember {
        key: report.key.clone().unwrap_or_default(),
        addresses: report.addresses.clone(),
    };
    let anywhere = |at: &String| {
        let at = at.parse::<SocketAddr>();
        at.is_ok_and(|at| at.ip().is_unspecified())
    };
    let note = match report.addresses.iter().any(anywhere) {
        true => "# in a list, write this host's own address for 0.0.0.0 and [::]\n",
        false => "",
    };
    format!("{member}\n{note}")
}

fn row(swarm: &SwarmInfo) -> Vec<String> {
    let mut machines = swarm.machines.join(", ");
    if swarm.seeding {
        machines = match machines.is_empty() {
            true => "(seeded)".into(),
            false => format!("{machines} (seeded)"),
        };
    }
    let way = match swarm.way {
        SwarmWay::Hub => "the hub",
        SwarmWay::Swarm => "others and the hub",
        SwarmWay::Multicast => "multicast and the parent",
        SwarmWay::Parent => "the parent",
    };
    let here = match swarm.pieces {
        0 => "-".into(),
        all => format!("{} of {all}", swarm.pieces_here),
    };
    let connected = swarm.peers.iter().filter(|peer| peer.linked).count();
    let others = match swarm.peers.len() {
        0 => "none".into(),
        all => format!("{connected} of {all} connected"),
    };
    let complete = match swarm.seed_until {
        Some(until) => format!("{} of {until}", swarm.complete),
        None => swarm.complete.to_string(),
    };
    vec![
        short(&swarm.image),
        machines,
        way.into(),
        here,
        others,
        complete,
        bytes(swarm.received_bytes),
        bytes(swarm.hub_bytes),
        bytes(swarm.sent_bytes),
    ]
}

fn peers(report: &SwarmReport) -> String {
    let of = |swarm: &SwarmInfo| {
        let image = short(&swarm.image);
        let row = |peer: &SwarmPeer| {
            let has = match peer.pieces {
                0 => "-".into(),
                pieces => format!("{pieces} of {}", swarm.pieces),
            };
            let state = match (&peer.dropped, peer.linked) {
                (Some(why), _) => format!("dropped: {why}"),
                (None, true) => "connected".into(),
                (None, false) => "known".into(),
            };
            vec![
                image.clone(),
                short(&peer.key),
                peer.addresses.join(", "),
                state,
                has,
                bytes(peer.received_bytes),
                bytes(peer.sent_bytes),
            ]
        };
        swarm.peers.iter().map(row).collect::<Vec<_>>()
    };
    let rows: Vec<_> = report.swarms.iter().flat_map(of).collect();
    if rows.is_empty() {
        return "No other node is known that runs an image of this node's.\n".into();
    }
    let titles = [
        "IMAGE", "NODE", "ADDRESS", "STATE", ">HAS", ">FROM IT", ">TO IT",
    ];
    table(&titles, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_api::SwarmLent;

    #[test]
    fn a_node_that_takes_part_gives_a_piece_a_second_at_least() {
        assert_eq!(upload("64K"), Ok(64 << 10));
        assert_eq!(upload("20M"), Ok(20 << 20));
        for little in ["0", "65535", "63.9K"] {
            assert!(
                upload(little).unwrap_err().contains("--swarm off"),
                "{little}"
            );
        }
        assert!(upload("much").is_err());
    }

    fn report() -> SwarmReport {
        let peer = |key: &str, linked, dropped: Option<&str>| SwarmPeer {
            key: key.repeat(32),
            addresses: vec!["10.0.0.2:4433".into()],
            linked,
            pieces: 42,
            received_bytes: 3 << 20,
            sent_bytes: 1 << 20,
            dropped: dropped.map(str::to_owned),
        };
        let info = SwarmInfo {
            image: "ab".repeat(32),
            machines: vec!["web".into()],
            seeding: true,
            seed_until: Some(5),
            complete: 3,
            way: SwarmWay::Swarm,
            pieces_here: 7,
            pieces: 90,
            bytes_per_s: Some(2_500_000),
            piece_us: Some(31_300),
            received_bytes: 3 << 20,
            peers: vec![
                peer("01", true, None),
                peer("02", false, Some("it sent wrong bytes")),
            ],
            why: "connected to 1 of 2 other nodes that the hub lists".into(),
            trouble: "the disk is full".into(),
            ..Default::default()
        };
        SwarmReport {
            key: Some("cd".repeat(32)),
            addresses: vec!["0.0.0.0:4433".into()],
            swarms: vec![info],
            ..Default::default()
        }
    }

    #[test]
    fn swarms_and_the_others_in_them_are_shown_with_what_went_which_way() {
        let text = status(&report());
        for part in [
            "abababababab",
            "web (seeded)",
            "7 of 90",
            "1 of 2 connected",
            "3 of 5",
            "others and the hub",
            "0.0.0.0:4433",
            "abababababab: connected to 1 of 2 other nodes that the hub lists\n",
            "pieces come at 20.0 Mbit/s, the quickest of late in 31.3 ms",
            "abababababab: the disk is full",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = peers(&report());
        for part in [
            "connected",
            "dropped: it sent wrong bytes",
            "10.0.0.2:4433",
            "42 of 90",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn clones_are_shown_with_what_they_read_out_of_swarms_and_why() {
        let mut report = report();
        let mut lent = SwarmLent {
            shelf_bytes: 3 << 20,
            swarm_bytes: 2 << 20,
            parent_bytes: 1 << 20,
            ..Default::default()
        };
        report.swarms[0].lent = Some(lent);
        let text = status(&report);
        assert!(text.contains("were in pieces here"), "{text}");
        assert!(!text.contains("a chunk takes"), "{text}");
        (lent.swarm_us, lent.parent_us) = (Some(1_200), Some(34_000));
        report.swarms[0].lent = Some(lent);
        let text = status(&report);
        let why = "a chunk takes 1.2 ms by the swarm, 34.0 ms from that host\n";
        assert!(text.contains(why), "{text}");
    }

    #[test]
    fn the_line_of_a_node_is_one_of_a_list() {
        let own = line(&report());
        let (said, note) = own.split_once('\n').unwrap();
        assert_eq!(said, format!("{} 0.0.0.0:4433", "cd".repeat(32)));
        assert!(note.starts_with('#'), "{note}");
        let error = SwarmMember::parse_list(&own).unwrap_err();
        assert!(
            error.starts_with("line 1: nobody can be reached"),
            "{error}"
        );
        let own = own.replacen("0.0.0.0", "10.0.0.7", 1);
        let list = SwarmMember::parse_list(&own).unwrap();
        assert_eq!(list[0].addresses, ["10.0.0.7:4433"]);
    }

    #[test]
    fn a_list_that_makes_no_sense_is_refused_by_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lab");
        let read = |text: &[u8]| {
            std::fs::write(&file, text).unwrap();
            listed(&file)
        };
        let good = format!("# lab\n{} 10.0.0.1:4433\n", "0a".repeat(32));
        assert_eq!(read(good.as_bytes()).unwrap().len(), 1);
        let long = vec![b'\n'; SWARM_LIST_BYTES_MAX + 1];
        for (text, why) in [
            (
                &b"\nweb 10.0.0.1:1"[..],
                "lab: line 2: \"web\" is no node's key",
            ),
            (&b""[..], "lab: it names no node"),
            (&b"\xff\xfe"[..], "cannot read"),
            (&long[..], "lab: it has more than"),
        ] {
            let CliError(error) = read(text).unwrap_err();
            assert!(error.message.contains(why), "{error}");
        }
        std::fs::remove_file(&file).unwrap();
        let CliError(error) = listed(&file).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotFound);
    }

    #[test]
    fn who_is_alone_is_told_so() {
        let alone = SwarmReport::default();
        assert!(status(&alone).contains("in no swarm"));
        assert!(peers(&alone).contains("No other node"));
    }
}
