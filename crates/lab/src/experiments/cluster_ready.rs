//! A part of `activate`: a web server, a PHP application and a database that were docked while they ran, activated as one cluster, until
//! the first web request that goes through all three is answered. Each was booted by itself: none is a fork of another.
use super::dock::dock;
use super::exec::Floe;
use anyhow::{Context as _, ensure};
use floe_api::{EnsembleRequest, ImportRequest, RunRequest, Wait};
use floe_testbed::guest::Guest;
use floe_testbed::harness::{Context, Report, Samples};
use floe_testbed::live::Node;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Services that wait until they are started by hand, one in each machine.
const MASKED: &str =
    "systemd.mask=nginx.service systemd.mask=php8.2-fpm.service systemd.mask=mariadb.service";
/// What makes each machine what it is: the substrate, and the script.
const PARTS: [(&str, &str); 3] = [
    (
        "shop-db",
        include_str!("../../../../docs/examples/shop/db.sh"),
    ),
    (
        "shop-php",
        include_str!("../../../../docs/examples/shop/php.sh"),
    ),
    (
        "shop-web",
        include_str!("../../../../docs/examples/shop/web.sh"),
    ),
];
/// The cluster.
const SHOP: &str = include_str!("../../../../docs/examples/shop/shop.toml");
/// The name of each while it is prepared.
const MACHINE: &str = "part";
/// Memory of each machine, bytes.
const MEMORY: u64 = 512 << 20;
/// Longest time for a guest to do its work, and for the cluster to become ready.
const LONG: Duration = Duration::from_secs(600);

/// Adds the figure. A quick run has no such guest.
pub(super) fn add(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    if context.quick {
        return Ok(());
    }
    let (guest, text) = (Guest::shop()?, |path: PathBuf| path.display().to_string());
    let node = Node::start(None, &context.scratch.join("shop"), true)?;
    let request = ImportRequest {
        disks: vec![text(guest.disk())],
        kernel: Some(text(guest.kernel())),
        initrd: Some(text(guest.initrd())),
        cmdline: Some(format!("{} {MASKED}", guest.cmdline()?)),
        name: Some("shop".into()),
        memory_bytes: Some(MEMORY),
        cpus: Some(1),
        ..ImportRequest::default()
    };
    node.client.import(&request)?.finish(|_| {})?;
    let floe = Floe::new(&node)?;
    for (substrate, script) in PARTS {
        let request = RunRequest {
            image: "shop".into(),
            name: Some(MACHINE.into()),
            wait: Wait::Agent,
            wait_timeout_s: Some(LONG.as_secs()),
            ..RunRequest::default()
        };
        node.run(&request, |_| {})?;
        floe.timed(&["exec", MACHINE, "--", "sh", "-ec", script])?;
        dock(&node, MACHINE, substrate)?;
        node.remove(MACHINE)?;
    }
    let (mut answered, mut ready) = (Samples::default(), Samples::default());
    for _ in 0..5 {
        node.client.cache_gc()?;
        let began = Instant::now();
        let request = EnsembleRequest {
            file: SHOP
                .replace("8080:80", "0:80")
                .replace("memory = \"1G\"\n", ""),
            ready_s: Some(LONG.as_secs()),
            ..EnsembleRequest::default()
        };
        let outcome = node.client.activate_ensemble(&request)?.finish(|_| {})?;
        let shop = outcome.ensemble.context("a cluster is told")?;
        ensure!(shop.is_whole(), "half an ensemble: {shop:?}");
        let whole = shop.machines.iter().filter_map(|m| m.ready_ms);
        ready.push(whole.fold(0.0, f64::max));
        let web = shop.machines.last().context("it has machines")?;
        let port = web.forwards.first().context("its port is forwarded")?;
        let answer = get(port.host_port)?;
        ensure!(answer.contains("sold 42 pieces"), "{answer}");
        answered.push(began.elapsed().as_secs_f64() * 1e3);
        for machine in &shop.machines {
            node.remove(&machine.name)?;
        }
    }
    report.add("ensemble_ready_ms", "ms", &answered).against(
        "until all three count as ready",
        "ms",
        ready.median(),
    );
    Ok(())
}

/// Returns what a web server on this host answers.
fn get(port: u16) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(b"GET / HTTP/1.0\r\nHost: shop\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
