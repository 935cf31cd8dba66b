//! A pool on a host of its own (`floe pool serve`): docked into from one node, activated from on another, seen by those who may.

use crate::support::command::{code, ends, floe, said};
use crate::support::node::{TestNode, eventually, free_address};
use floe_api::*;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// A pool as a process, which is killed at the end.
struct PoolHost {
    process: Child,
    at: String,
    dir: PathBuf,
}

impl Drop for PoolHost {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl PoolHost {
    fn begin(at: &str, dir: &Path, memory: &str) -> Child {
        let log = File::create(dir.with_extension("log")).unwrap();
        Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(["pool", "serve", "--memory", memory, "--listen", at])
            .arg("--dir")
            .arg(dir)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    fn start(dir: &Path, memory: &str) -> PoolHost {
        let at = free_address();
        let mut pool = PoolHost {
            process: PoolHost::begin(&at, dir, memory),
            at,
            dir: dir.to_owned(),
        };
        pool.answers();
        pool
    }

    fn answers(&mut self) {
        eventually("the pool answers", || {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}\n{}", self.log());
            std::net::TcpStream::connect(&self.at).is_ok()
        });
    }

    /// Kills it, and starts it again.
    fn dies_and_is_back(&mut self, memory: &str) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = PoolHost::begin(&self.at, &self.dir, memory);
        self.answers();
    }

    fn url(&self) -> String {
        format!("http://{}", self.at)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.with_extension("log")).unwrap_or_default()
    }

    fn status(&self, node: &TestNode, token: &str) -> PoolStatus {
        let args = ["pool", "status", "--json", "--pool", &self.url()];
        let said = code(node, 0, &[&args[..], &["--token", token]].concat());
        serde_json::from_slice(&said.stdout).unwrap()
    }
}

/// For a user who may not see a substrate there is none, in the same words as for one that nobody has.
fn sees_nothing(node: &TestNode, pool: &str, token: &[&str]) {
    let told = |name: &str| {
        let address = format!("{pool}/{name}");
        let asks = [
            &["pool", "show", name, "--pool", pool][..],
            &["activate", name, "--pool", pool],
            &["activate", &address, "-n", "2"],
            &["pool", "import", &address, "--as", "stolen"],
            &["run", &address],
        ];
        asks.map(|ask| {
            let done = ends(floe(node, &[ask, token].concat()));
            assert!(!done.status.success(), "{ask:?}: {}", said(&done));
            (done.status.code(), said(&done).replace(name, "X"))
        })
    };
    let seen = told("shop");
    assert_eq!(seen, told("none"));
    let none = format!("there is no substrate X in the pool {pool}");
    for (code, words) in &seen[..3] {
        assert_eq!(*code, Some(3), "{words}");
        assert!(words.contains(&none), "{words}");
    }
    let list = ["pool", "ls", "--json", "--pool", pool];
    let list = code(node, 0, &[&list[..], token].concat());
    let list: hub::PooledSubstrates = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(list.substrates, []);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_pool_on_its_own_host_gives_substrates_from_memory_to_those_who_may_and_survives_its_death() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("pool");
    std::fs::create_dir(&dir).unwrap();
    let [anna, berta, carl] =
        ["anna", "berta", "carl"].map(|user| floe_hub::create_token(&dir, user).unwrap());
    let mut pool = PoolHost::start(&dir, "1G");
    let url = pool.url();
    let (here, there) = (TestNode::start(), TestNode::start());

    here.boot_tiny("web");
    here.type_and_wait("web", "mark=$((6*7)); echo kept-$mark-here", "kept-42-here");
    eventually("its agent answers", || {
        let answers = ends(floe(&here, &["exec", "web", "--", "true"]));
        answers.status.success()
    });
    let dock = ["dock", "web", "--as", "shop", "--restricted", "berta"];
    let to = ["--pool", &url, "--token", &anna];
    code(&here, 0, &[&dock[..], &to].concat());
    code(&here, 3, &["pool", "show", "shop"]);
    eventually("it is in the pool's memory", || {
        let status = pool.status(&here, &anna);
        (status.substrates, status.in_memory) == (1, 1)
    });
    let shown = ["pool", "show", "shop", "--pool", &url, "--token", &berta];
    let shown = said(&code(&there, 0, &shown));
    assert!(
        shown.contains("restricted to berta") && shown.contains("anna"),
        "{shown}"
    );
    sees_nothing(&there, &url, &["--token", &carl]);
    sees_nothing(&there, &url, &[]);

    // all of it comes from memory: there are no packs on the disk meanwhile
    let (packs, aside) = (dir.join("repo/packs"), dir.join("aside"));
    std::fs::rename(&packs, &aside).unwrap();
    let address = format!("{url}/shop");
    let blue = ["activate", &address, "-n", "2", "--name", "blue"];
    let blue = [&blue[..], &["--answer", "300", "--token", &berta]].concat();
    let told = said(&code(&there, 0, &blue));
    assert!(told.contains(&format!("from the pool {url}")), "{told}");
    for (n, name) in ["blue.1", "blue.2"].into_iter().enumerate() {
        let line = format!("echo and-$((mark+{n}))-more");
        there.type_and_wait(name, &line, &format!("and-{}-more", 42 + n));
        let host = said(&code(&there, 0, &["exec", name, "--", "hostname"]));
        assert_eq!(host.trim(), name.replace('.', "-"), "{}", there.log());
    }
    std::fs::rename(&aside, &packs).unwrap();

    pool.dies_and_is_back("1G");
    eventually("the pool is warm again", || {
        let status = pool.status(&there, &berta);
        assert!(status.warming || status.warm_ms.is_some());
        !status.warming && (status.substrates, status.in_memory) == (1, 1)
    });
    assert_eq!(pool.status(&there, &carl).substrates, 0);
    // machines that read from it go on, and one needs it no more
    code(&there, 0, &["independent", "blue.1", "--wait"]);
    there.type_and_wait(
        "blue.2",
        "md5sum /bin/busybox; echo on-$((mark+5))",
        "on-47",
    );

    // less memory than it takes: it is on the disk, and activated from there
    pool.dies_and_is_back("64K");
    eventually("the pool has looked", || {
        !pool.status(&there, &berta).warming
    });
    let small = pool.status(&there, &berta);
    assert_eq!((small.substrates, small.in_memory), (1, 0), "{small:?}");
    let green = ["activate", "shop", "--pool", &url, "--name", "green"];
    let green = [&green[..], &["--token", &berta, "--answer", "300"]].concat();
    code(&there, 0, &green);
    there.type_and_wait("green.1", "echo also-$((mark+6))", "also-48");
    code(&there, 0, &["kill", "blue.2", "green.1"]);

    // only its owner removes it
    let gone = ["image", "rm", "--force", &address, "--token"];
    let refused = ends(floe(&there, &[&gone[..], &[&berta]].concat()));
    assert!(!refused.status.success(), "{}", said(&refused));
    code(&here, 0, &[&gone[..], &[&anna]].concat());
    sees_nothing(&there, &url, &["--token", &berta]);
    there.type_and_wait(
        "blue.1",
        "md5sum /bin/busybox; echo own-$((mark+7))",
        "own-49",
    );
}
