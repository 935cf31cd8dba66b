//! Placement of clones by a real Slurm: a controller and nodes of the test's own, on this host.

use crate::support::node::{self, Setup, Signal, TestNode, eventually};
use floe_api::*;
use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// A cluster whose nodes are processes of this host.
struct Cluster {
    dir: tempfile::TempDir,
    daemons: Vec<Child>,
}

impl Cluster {
    /// With nodes of these names, two CPUs and memory for many clones each.
    fn start(nodes: &[&str]) -> Cluster {
        let dir = tempfile::Builder::new()
            .prefix("floe-slurm-")
            .tempdir()
            .unwrap();
        let at = dir.path().display();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let host = host.trim().split('.').next().unwrap();
        // all ports are held until each has been chosen
        let held: Vec<_> = (0..=nodes.len())
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let port = |n: usize| held[n].local_addr().unwrap().port();
        let mut conf = format!(
            "ClusterName=floe\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={}\n\
             AuthType=auth/none\nCredType=cred/none\nSlurmUser=root\nSlurmdUser=root\n\
             StateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool.%n\n\
             SlurmctldPidFile={at}/ctld.pid\nSlurmdPidFile={at}/%n.pid\n\
             ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU_Memory\nSlurmdParameters=config_overrides\n\
             ReturnToService=2\nJobAcctGatherType=jobacct_gather/none\nMinJobAge=2\n",
            port(0)
        );
        for (n, name) in nodes.iter().enumerate() {
            conf += &format!(
                "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={} CPUs=2 RealMemory=4000\n",
                port(n + 1)
            );
        }
        conf += "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n";
        std::fs::create_dir(dir.path().join("state")).unwrap();
        std::fs::write(dir.path().join("slurm.conf"), conf).unwrap();
        drop(held);
        let mut cluster = Cluster {
            dir,
            daemons: Vec::new(),
        };
        cluster.daemon("slurmctld", &[]);
        for name in nodes {
            cluster.daemon("slurmd", &["-N", name]);
        }
        eventually("all nodes of the cluster are idle", || {
            let states = cluster.tool("sinfo", &["-h", "-N", "-o", "%T"]);
            states.lines().filter(|state| *state == "idle").count() == nodes.len()
        });
        cluster
    }

    fn conf(&self) -> PathBuf {
        self.dir.path().join("slurm.conf")
    }

    fn daemon(&mut self, program: &str, args: &[&str]) {
        let path = Path::new("/usr/sbin").join(program);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))
            .unwrap();
        let child = Command::new(path)
            .args(["-D", "-f"])
            .arg(self.conf())
            .args(args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.daemons.push(child);
    }

    /// What a tool of Slurm's prints.
    fn tool(&self, program: &str, args: &[&str]) -> String {
        let out = Command::new(program)
            .args(args)
            .env("SLURM_CONF", self.conf())
            .output()
            .unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Names of the jobs that have nodes.
    fn jobs(&self) -> Vec<String> {
        let jobs = self.tool("squeue", &["-h", "-t", "RUNNING", "-o", "%j"]);
        jobs.lines().map(str::to_owned).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            let pid = rustix::process::Pid::from_child(daemon);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = daemon.wait();
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.path().join("log"));
            eprintln!("the cluster's log:\n{}", log.unwrap_or_default());
        }
    }
}

fn fork(node: &TestNode, clones: u32, placement: &str) -> Result<ForkReport, String> {
    let request = ForkRequest {
        clones,
        placement: Some(placement.into()),
        ..Default::default()
    };
    let events = node.client().fork("web", &request).unwrap();
    let outcome = events.finish(|_| ()).map_err(|error| error.to_string())?;
    Ok(outcome.fork.unwrap())
}

fn hosts_of(fork: &ForkReport) -> Vec<Option<String>> {
    let running = fork
        .clones
        .iter()
        .filter(|clone| clone.state == CloneState::Running);
    running.map(|clone| clone.host.clone()).collect()
}

fn end_clones(node: &TestNode) {
    let killed = node
        .client()
        .kill("web", &KillRequest { all: true })
        .unwrap();
    assert!(killed.failed.is_empty(), "{:?}", killed.failed);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn clones_run_where_slurm_allocates_them_as_long_as_it_does() {
    // no node of ours runs on gamma
    let cluster = Cluster::start(&["alpha", "beta", "gamma"]);
    let conf = cluster.conf().display().to_string();
    let here = TestNode::with(Setup {
        env: vec![("SLURM_CONF".into(), conf)],
        args: ["--guest-placement", "slurm"].map(String::from).to_vec(),
        ..Setup::on_the_network()
    });
    let mut there = TestNode::on_the_network();
    let hosts = format!("alpha here\nbeta {}\n", there.url());
    std::fs::write(here.home().join("hosts"), hosts).unwrap();
    node::cluster(&[&here, &there]);
    here.boot_tiny("web");

    // two CPUs on each of two nodes: fewer than were asked for
    let away = Some(there.url());
    let first = fork(&here, 5, "slurm").unwrap();
    assert_eq!((first.asked, first.granted, first.running), (5, 4, 4));
    assert_eq!(hosts_of(&first), [None, away.clone(), None, away.clone()]);
    assert!(first.ticket.unwrap().starts_with("slurm "));
    assert_eq!(cluster.jobs(), ["floe-web"]);
    let full = fork(&here, 1, "slurm").unwrap_err();
    assert!(full.contains("alpha: Slurm has 0 CPUs"), "{full}");
    end_clones(&here);
    eventually("the allocation is given back", || cluster.jobs().is_empty());

    // the ticket of a program in the guest is an allocation, from its request on
    let clones = LimitRequest {
        clones: Some(16),
        ..Default::default()
    };
    here.client().limit("web", &clones).unwrap();
    let whoami = "until floe-guest whoami 2>/dev/null; do sleep 1; done";
    here.type_and_wait("web", whoami, "0 web");
    let ticket = |clones| format!("set -- $(floe-guest ticket {clones}); echo granted-$2-");
    here.type_and_wait("web", &ticket(9), "granted-4-");
    assert_eq!(cluster.jobs(), ["floe-web"]);
    here.type_and_wait("web", "floe-guest kill $1; echo unused-$?", "unused-0");
    eventually("the allocation is given back", || cluster.jobs().is_empty());
    here.type_and_wait("web", &ticket(3), "granted-3-");
    here.type_and_wait("web", "echo cloned-$(floe-guest clone $1)-", "cloned-0-");
    let machines = |node: &TestNode| node.client().machines().unwrap().machines.len();
    assert_eq!((machines(&here), machines(&there)), (1 + 2, 1));
    assert_eq!(cluster.jobs(), ["floe-web"]);
    here.type_and_wait("web", "floe-guest kill $1; echo ended-$?", "ended-0");
    eventually("the allocation is given back", || cluster.jobs().is_empty());

    // a node leaves, as Slurm sees it
    let drain = ["update", "nodename=beta", "state=drain", "reason=repair"];
    cluster.tool("scontrol", &drain);
    let second = fork(&here, 3, "slurm").unwrap();
    assert_eq!(hosts_of(&second), [None, None]);
    // what is taken away is not used any more
    let job = second.ticket.unwrap().replace("slurm ", "");
    cluster.tool("scancel", &[&job]);
    eventually("the clones are ended", || {
        here.client().machines().unwrap().machines.len() == 1
    });
    // it joins again
    cluster.tool("scontrol", &["update", "nodename=beta", "state=resume"]);
    eventually("beta takes jobs", || {
        let states = cluster.tool("sinfo", &["-h", "-N", "-n", "beta", "-o", "%T"]);
        states.trim() == "idle"
    });
    let third = fork(&here, 3, "slurm").unwrap();
    assert_eq!(hosts_of(&third), [None, away.clone(), None]);
    // a guest that switches itself off gives its part back with the last one
    let stop = StopRequest {
        now: true,
        timeout_s: None,
    };
    for clone in &third.clones {
        match clone.host {
            None => here.client().stop(&clone.name, &stop).unwrap(),
            Some(_) => there.client().stop(&clone.name, &stop).unwrap(),
        };
    }
    eventually("the allocation is given back", || cluster.jobs().is_empty());
    end_clones(&here);

    // memory and CPUs counted by ourselves
    let known = here.client().hosts().unwrap().hosts;
    let size = (256 << 20) + floe_node::STANDBY_BYTES;
    let fits = |host: &HostInfo| {
        let room = host.room.unwrap();
        room.free_cpus.min((room.free_memory_bytes / size) as u32)
    };
    let fits: u32 = known.iter().map(fits).sum();
    match fork(&here, 3, "simple") {
        Ok(fork) => assert!(fork.granted <= fits.min(3), "{} of {fits}", fork.granted),
        Err(error) => assert!(error.contains("a clone takes"), "{error}"),
    }
    end_clones(&here);

    // a node leaves, as floe sees it
    eventually("it is told who joined", || {
        here.log().contains("host.joined")
    });
    there.end(Signal::KILL);
    let known = here.client().hosts().unwrap().hosts;
    assert!(
        known[0].room.is_some() && known[1].room.is_none(),
        "{known:?}"
    );
    let last = fork(&here, 3, "slurm").unwrap();
    assert_eq!(hosts_of(&last), [None, None]);
    eventually("it is told who left", || here.log().contains("host.left"));
    end_clones(&here);
    eventually("the allocation is given back", || cluster.jobs().is_empty());
    let error = fork(&here, 1, "nobody").unwrap_err();
    assert!(error.contains("simple, slurm"), "{error}");
}
