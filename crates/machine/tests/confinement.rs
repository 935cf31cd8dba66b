//! What a QEMU that its guest has taken over could reach, and which processes outlive which.

mod common;

use std::io::Read;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use common::*;
use floe_machine::{
    CaptureOptions, End, Machine, MachineError, PortForward, Protocol, Socket, Status,
};

fn status_field(pid: u32, field: &str) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|l| l.starts_with(field)).unwrap();
    line.split_whitespace()
        .skip(1)
        .map(str::to_string)
        .collect()
}

/// Sockets of a process that listen on a network, as lines of `/proc/net`.
fn network_listeners(pid: u32) -> Vec<String> {
    let inodes: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|e| std::fs::read_link(e.ok()?.path()).ok())
        .filter_map(|l| {
            Some(
                l.to_str()?
                    .strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .to_string(),
            )
        })
        .collect();
    let mut found = Vec::new();
    for table in ["tcp", "tcp6", "udp", "udp6"] {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        let listens = |fields: &[&str]| table.starts_with("udp") || fields[3] == "0A";
        found.extend(
            text.lines()
                .skip(1)
                .filter(|line| {
                    let fields: Vec<&str> = line.split_whitespace().collect();
                    inodes.iter().any(|i| i == fields[9]) && listens(&fields)
                })
                .map(str::to_string),
        );
    }
    found
}

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn a_machine_is_confined_and_a_failed_capture_leaves_it_running() {
    let guest = guest();
    let dir = scratch();
    let mut original = spec(&guest, dir.path(), "confined", 10);
    original.config.disks = vec!["disk0".into()];
    let disk = dir.path().join("disk0");
    std::fs::File::create(&disk)
        .unwrap()
        .set_len(8 << 20)
        .unwrap();
    if let Some(user) = original.user {
        std::os::unix::fs::chown(&disk, Some(user.uid), Some(user.gid)).unwrap();
    }
    original.disks = vec![disk];
    let (machine, mut console) = boot(original.clone());
    let pid = machine.pid();
    let guard = Guard(&machine);

    if let Some(user) = original.user {
        assert_eq!(status_field(pid, "Uid:"), vec![user.uid.to_string(); 4]);
        assert_eq!(status_field(pid, "Gid:"), vec![user.gid.to_string(); 4]);
        assert_eq!(status_field(pid, "Groups:"), Vec::<String>::new());
        assert_eq!(status_field(pid, "CapEff:"), ["0000000000000000"]);
    }
    assert_eq!(status_field(pid, "Seccomp:"), ["2"], "QEMU's sandbox is on");
    assert_eq!(status_field(pid, "NoNewPrivs:"), ["1"]);
    assert_eq!(
        network_listeners(pid),
        Vec::<String>::new(),
        "no network listeners"
    );

    // Forwards can be added and removed while it runs, and lead into the guest.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let forward = PortForward::tcp(port, 80);
    machine.add_forward(forward.clone()).unwrap();
    assert_eq!(network_listeners(pid).len(), 1, "only what was asked for");
    let taken = machine.add_forward(forward.clone()).unwrap_err();
    assert!(taken.to_string().contains(&port.to_string()), "{taken}");
    let mut page = String::new();
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    std::io::Write::write_all(&mut stream, b"GET / HTTP/1.0\r\n\r\n").unwrap();
    std::io::Read::read_to_string(&mut stream, &mut page).unwrap();
    assert!(page.contains("floe tiny guest"), "{page}");
    machine.remove_forward(&forward).unwrap();
    assert_eq!(network_listeners(pid), Vec::<String>::new());
    let udp = PortForward {
        protocol: Protocol::Udp,
        ..forward.clone()
    };
    assert!(
        machine.remove_forward(&udp).is_err(),
        "what is not there can't be removed"
    );

    // No agent answers, and nothing hangs.
    let silent = machine.agent_ping(Duration::from_millis(300)).unwrap_err();
    assert!(silent.to_string().contains("qemu-guest-agent"), "{silent}");

    // The disk is there, and writes reach its file.
    console.run("echo 'floe writes' | dd of=/dev/vda bs=512 conv=sync oflag=direct 2>/dev/null");
    let written = std::fs::read(&original.disks[0]).unwrap();
    assert!(written.starts_with(b"floe writes"), "{:?}", &written[..16]);

    // A second handle takes the machine over, as another process would; the first one is gone, the guest keeps running.
    let capturing = machine.capture(CaptureOptions::default(), || {
        let second = machine
            .capture(CaptureOptions::default(), || Ok::<_, String>(()))
            .err()
            .unwrap();
        assert!(
            matches!(second, MachineError::CaptureRunning { .. }),
            "{second}"
        );
        Err::<(), _>("no")
    });
    let error = capturing.err().unwrap();
    assert!(matches!(error, MachineError::Freeze { .. }), "{error}");
    assert_eq!(
        machine.status().unwrap(),
        Status::Running,
        "a failed capture leaves the machine running"
    );
    drop(console);
    std::mem::forget(guard);
    drop(machine);

    let adopted = Machine::adopt(dir.path().join("confined")).unwrap();
    let _guard = Guard(&adopted);
    assert_eq!(adopted.pid(), pid);
    assert_eq!(adopted.status().unwrap(), Status::Running);
    assert!(Console::open(&adopted).run("echo alive").contains("alive"));
    let small = CaptureOptions {
        bytes_max: Some(1 << 20),
        ..Default::default()
    };
    let error = adopted
        .capture(small, || Ok::<_, String>(()))
        .err()
        .unwrap();
    assert!(
        matches!(error, MachineError::CaptureTooLarge { .. }),
        "{error}"
    );
    let stay = CaptureOptions {
        stay_paused: true,
        ..Default::default()
    };
    adopted.capture(stay, || Ok::<_, String>(())).unwrap();
    assert_eq!(adopted.status().unwrap(), Status::Paused);
    // A paused machine can be captured as well, and stays paused.
    adopted
        .capture(CaptureOptions::default(), || Ok::<_, String>(()))
        .unwrap();
    assert_eq!(adopted.status().unwrap(), Status::Paused);
    adopted.cont().unwrap();

    // QEMU dies in the middle of a capture: the error says so, and nothing is left behind.
    let error = adopted.capture(CaptureOptions::default(), || {
        kill(pid);
        adopted.wait_end(PATIENCE);
        Ok::<_, String>(())
    });
    let error = error.err().unwrap();
    assert!(
        error.to_string().contains("QEMU ended in the middle"),
        "{error}"
    );
    assert_eq!(adopted.status().unwrap(), Status::Ended(End::Lost));
    let error = adopted
        .capture(CaptureOptions::default(), || Ok::<_, String>(()))
        .err()
        .unwrap();
    assert!(matches!(error, MachineError::Dead { .. }), "{error}");
    let error = Machine::adopt(dir.path().join("confined")).err().unwrap();
    assert!(
        matches!(&error, MachineError::NotAdoptable { reason, .. } if reason.contains("has ended")),
        "{error}"
    );
}

fn kill(pid: u32) {
    // SAFETY: an ordinary signal to a process that this test started.
    assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGKILL) }, 0);
}

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn huge_pages_are_refused_only_where_ram_is_a_file() {
    use std::os::unix::process::CommandExt;
    // A program that asks for huge pages, started in the same way as QEMU.
    let ask = "import ctypes, mmap, sys\n\
               m = mmap.mmap(-1, 4 << 20)\n\
               try:\n    m.madvise(14); print('given')\n\
               except OSError as e: print('refused', e.errno)\n\
               m.madvise(4); print('other advice is taken')\n";
    let python = std::fs::canonicalize("/usr/bin/python3").unwrap();
    for (refuse, said) in [(true, "refused 22"), (false, "given")] {
        let plan = floe_machine::exec::ExecPlan {
            dir: "/".into(),
            announcement: None,
            ends_with: None,
            cgroup: Vec::new(),
            user: None,
            device_group: None,
            refuse_huge_pages: refuse,
            ram: Vec::new(),
            guard: floe_machine::guard::Role::Machine {
                access: floe_machine::HostAccess::None,
                log_bytes: 1 << 20,
            },
            program: python.clone(),
            args: common::python_arguments(ask),
        };
        let out = std::process::Command::new(&programs().wrapper[0])
            .arg0("exec")
            .args(plan.to_args())
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&out.stdout).into_owned()
            + &String::from_utf8_lossy(&out.stderr);
        assert!(
            out.contains(said) && out.contains("other advice is taken"),
            "{out}"
        );
    }
}

#[test]
#[ignore = "needs root: make test-all"]
fn a_machines_user_is_in_the_group_of_kvms_device_and_in_no_other() {
    use std::os::unix::process::CommandExt;
    let (user, group) = (90_017, 107);
    let plan = |device_group| floe_machine::exec::ExecPlan {
        dir: "/".into(),
        announcement: None,
        ends_with: None,
        cgroup: Vec::new(),
        user: Some(floe_machine::exec::User {
            uid: user,
            gid: user,
        }),
        device_group,
        refuse_huge_pages: false,
        ram: Vec::new(),
        guard: floe_machine::guard::Role::Machine {
            access: floe_machine::HostAccess::None,
            log_bytes: 1 << 20,
        },
        program: "/usr/bin/id".into(),
        args: vec!["-G".into()],
    };
    for (given, said) in [
        (None, format!("{user}\n")),
        (Some(group), format!("{user} {group}\n")),
    ] {
        let out = std::process::Command::new(&programs().wrapper[0])
            .arg0("exec")
            .args(plan(given).to_args())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&out.stdout), said, "{out:?}");
    }
}

/// A node that is killed at any moment of a start leaves either a QEMU that is found, or none.
#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn a_qemu_whose_starter_was_killed_is_found_or_never_there() {
    let guest = guest();
    if let Some(dir) = std::env::var_os(STARTER) {
        let _ = Machine::start(spec(&guest, std::path::Path::new(&dir), "early", 13));
        return;
    }
    let name = "a_qemu_whose_starter_was_killed_is_found_or_never_there";
    let deadline = Duration::from_secs(60);
    // the first is killed once its QEMU is known; how long that took, here and now, is what the moments of the others are spread over
    let mut start = Duration::ZERO;
    for moment in 0..=20 {
        let dir = scratch();
        let mut starter = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--include-ignored", name])
            .env(STARTER, dir.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let vm = spec(&guest, dir.path(), "early", 13).dir;
        let began = std::time::Instant::now();
        if moment == 0 {
            while Machine::process_in(&vm).unwrap().is_none() {
                assert!(began.elapsed() < deadline, "no QEMU was started");
                std::thread::sleep(Duration::from_millis(1));
            }
            start = began.elapsed();
        } else {
            std::thread::sleep(start * moment / 16);
        }
        starter.kill().unwrap();
        starter.wait().unwrap();
        let known = Machine::process_in(&vm).unwrap();
        assert!(moment > 0 || known.is_some(), "one that is known is lost");
        let known = known.inspect(|qemu| qemu.kill());
        assert!(known.is_none_or(|qemu| qemu.wait(deadline)));
        // one that had not yet written down its id gives up by itself
        let until = std::time::Instant::now() + deadline;
        while names_it(dir.path()) {
            assert!(std::time::Instant::now() < until, "a QEMU was left behind");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Returns whether a process was started for machines of a directory.
fn names_it(dir: &std::path::Path) -> bool {
    let wanted = dir.display().to_string();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes.into_iter().any(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&wanted)
    })
}

/// Environment variable of the process that starts a machine and is killed.
const STARTER: &str = "FLOE_TEST_STARTER_DIR";

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn a_machine_outlives_its_killed_starter() {
    let guest = guest();
    if let Some(dir) = std::env::var_os(STARTER) {
        let machine =
            Machine::start(spec(&guest, std::path::Path::new(&dir), "orphan", 12)).unwrap();
        println!("started {}", machine.pid());
        loop {
            std::thread::park();
        }
    }
    let dir = scratch();
    let mut starter = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--include-ignored",
            "a_machine_outlives_its_killed_starter",
            "--nocapture",
        ])
        .env(STARTER, dir.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = std::io::BufRead::lines(std::io::BufReader::new(starter.stdout.take().unwrap()));
    let line = said
        .find(|l| l.as_ref().unwrap().contains("started "))
        .unwrap()
        .unwrap();
    starter.kill().unwrap();
    starter.wait().unwrap();
    let machine = Machine::adopt(dir.path().join("orphan")).unwrap();
    let _machine = Guard(&machine);
    assert!(
        line.ends_with(&format!("started {}", machine.pid())),
        "{line}"
    );
    wait_ready(&machine);
    assert_eq!(machine.status().unwrap(), Status::Running);
}

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn a_socket_that_took_the_place_of_qemus_is_told_nothing() {
    let guest = guest();
    let dir = scratch();
    let (machine, _console) = boot(spec(&guest, dir.path(), "replaced", 14));
    let _machine = Guard(&machine);
    machine.connect(Socket::Screen).unwrap();
    // as a QEMU that its guest has taken over could do: the directory is its user's
    let run = dir.path().join("replaced/run");
    let others = ["console.sock", "vnc.sock", "qga.sock", "qmp.sock"].map(|name| {
        std::fs::remove_file(run.join(name)).unwrap();
        UnixListener::bind(run.join(name)).unwrap()
    });
    let told = [
        machine.connect(Socket::Console).unwrap_err().to_string(),
        machine.connect(Socket::Screen).unwrap_err().to_string(),
        machine.agent_ping(PATIENCE).unwrap_err().to_string(),
        Machine::adopt(machine.dir()).err().unwrap().to_string(),
    ];
    for told in told {
        assert!(told.contains("not QEMU's process"), "{told}");
    }
    for other in others {
        let mut heard = Vec::new();
        let (mut stream, _) = other.accept().unwrap();
        stream.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"");
    }
}

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn a_qemu_whose_files_are_damaged_is_found_by_where_it_runs() {
    let guest = guest();
    let dir = scratch();
    let (machine, _console) = boot(spec(&guest, dir.path(), "damaged", 15));
    let pid = machine.pid();
    let guard = Guard(&machine);
    let place = machine.dir().to_owned();
    let known = || {
        Machine::process_in(&place)
            .unwrap()
            .map(|qemu| qemu.id().pid)
    };
    // whoever else is there is no QEMU
    let mut other = std::process::Command::new("sleep");
    let mut other = other
        .arg("1000")
        .current_dir(place.join("run"))
        .spawn()
        .unwrap();
    let own = std::fs::read(place.join("qemu.json")).unwrap();
    for damage in [
        &b""[..],
        &own[..own.len() - 3],
        b"{\"pid\": 1}",
        b"\0\0\0\0",
    ] {
        std::fs::write(place.join("qemu.json"), damage).unwrap();
        assert_eq!(known(), Some(pid), "{damage:?}");
    }
    std::fs::write(place.join("machine.json"), "{").unwrap();
    assert_eq!(known(), Some(pid));
    drop(guard);
    assert_eq!(known(), None);
    other.kill().unwrap();
    other.wait().unwrap();
}
