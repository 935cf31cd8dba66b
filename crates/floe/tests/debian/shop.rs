//! A web server, a PHP application and a database from Debian: docked while they run, activated as one cluster, and a web request that
//! goes through all three of them.

use crate::support::command::{ends, floe, said};
use crate::support::node::{TestNode, finish, guest};
use floe_api::*;
use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

/// How long an emulated Debian may take for one thing on a busy host.
const LONG: Duration = Duration::from_secs(600);

/// Services that wait until they are started by hand, one in each machine.
const MASKED: &str =
    "systemd.mask=nginx.service systemd.mask=php8.2-fpm.service systemd.mask=mariadb.service";

/// What makes a machine the database, and shows that it is one.
const DATABASE: &str = include_str!("../../../../docs/examples/shop/db.sh");

/// What makes a machine the application: each request asks the database, by its name.
const APPLICATION: &str = include_str!("../../../../docs/examples/shop/php.sh");

/// What makes a machine the web server. It looks its application's name up when it starts, so it is told to look again.
const WEB: &str = include_str!("../../../../docs/examples/shop/web.sh");

/// Runs a shell's script in a guest until it succeeds; returns what it says.
fn sh(node: &TestNode, machine: &str, script: &str) -> String {
    let until = Instant::now() + LONG;
    loop {
        let done = ends(floe(node, &["exec", machine, "--", "sh", "-ec", script]));
        if done.status.success() {
            return String::from_utf8(done.stdout).unwrap().trim().to_owned();
        }
        // only a guest that does not answer yet is asked again: a script that failed may have done its half
        let told = said(&done);
        let waits = told.contains("no agent answers") && Instant::now() < until;
        assert!(
            waits,
            "{machine}: {told}\n{}\n{}",
            node.console(machine),
            node.log()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// What a web server on this host answers.
fn get(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(120)))?;
    stream.write_all(b"GET / HTTP/1.0\r\nHost: shop\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
#[ignore = "needs root, FUSE, QEMU and the guest shop: make test-all"]
fn a_web_request_goes_through_a_cluster_of_three_that_was_docked_warm() {
    let node = TestNode::start();
    let cmdline = std::fs::read_to_string(guest("shop/cmdline")).unwrap();
    let import = ImportRequest {
        disks: vec![guest("shop/disk.raw")],
        kernel: Some(guest("shop/vmlinuz")),
        initrd: Some(guest("shop/initrd")),
        cmdline: Some(format!("{} {MASKED}", cmdline.trim())),
        name: Some("shop".into()),
        memory_bytes: Some(512 << 20),
        cpus: Some(1),
        ..Default::default()
    };
    finish(node.client().import(&import).unwrap());
    node.run(&RunRequest {
        image: "shop".into(),
        name: Some("base".into()),
        wait: Wait::Agent,
        wait_timeout_s: Some(LONG.as_secs()),
        ..Default::default()
    });
    let clones = ForkRequest {
        clones: 3,
        ..Default::default()
    };
    finish(node.client().fork("base", &clones).unwrap());
    let parts = [
        ("base.1", DATABASE, "42", "shop-db"),
        ("base.2", APPLICATION, "serves", "shop-php"),
        ("base.3", WEB, "serves", "shop-web"),
    ];
    for (machine, script, says, substrate) in parts {
        assert_eq!(sh(&node, machine, script), says, "{machine}");
        let dock = DockRequest {
            name: substrate.into(),
            ..Default::default()
        };
        finish(node.client().dock(machine, &dock).unwrap());
        node.client().remove_machine(machine, true).unwrap();
    }
    node.client().remove_machine("base", true).unwrap();

    let file = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/examples/shop/shop.toml"
    ));
    let file = file.unwrap().replace("8080:80", "0:80");
    let request = EnsembleRequest {
        file: file.replace("memory = \"1G\"\n", ""),
        ready_s: Some(LONG.as_secs()),
        ..Default::default()
    };
    let outcome = finish(node.client().activate_ensemble(&request).unwrap());
    let shop = outcome.ensemble.unwrap();
    assert!(shop.is_whole(), "{shop:#?}\n{}", node.log());
    let port = shop.machines[2].forwards[0].host_port;
    let answer = get(port).unwrap();
    assert!(
        answer.contains("200 OK") && answer.ends_with("sold 42 pieces, says php\n"),
        "{answer}"
    );
    // and it is the database that knows: it is told of another piece
    sh(
        &node,
        "shop-db",
        "mariadb -e 'insert into shop.sold values (1)'",
    );
    let answer = get(port).unwrap();
    assert!(answer.ends_with("sold 43 pieces, says php\n"), "{answer}");
    eprintln!("{shop:#?}");
}
