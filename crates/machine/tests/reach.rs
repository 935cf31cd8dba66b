//! What a guest can reach of its host over QEMU's user network, and what it can write to the host's disk.
//!
//! Each test has its own network (a namespace, which QEMU inherits), so that it can have services on 127.0.0.1, ::1 and where
//! clouds have theirs, and a resolver at 127.0.0.53, whatever runs on the host.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::*;
use floe_machine::exec::ExecPlan;
use floe_machine::guard::Role;
use floe_machine::{CaptureOptions, HostAccess, Machine, PortForward};

/// The answer of every service.
const BANNER: &str = "the host answers";
/// Addresses at which clouds answer for their hosts.
const METADATA: [&str; 3] = ["169.254.169.254", "168.63.129.16", "fd00:ec2::254"];
/// The port of the services.
const PORT: u16 = 7070;

/// Runs a command and panics unless it succeeds.
fn sh(command: &str) {
    let status = Command::new("sh").args(["-c", command]).status().unwrap();
    assert!(status.success(), "{command}");
}

/// Runs a test in its own network and mount namespace, with a resolver at 127.0.0.53.
fn alone(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        // SAFETY: changes the namespaces of this thread alone.
        let made = unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        sh("mount --make-rprivate /");
        sh("ip link set lo up");
        for address in METADATA {
            sh(&format!("ip addr add {address} dev lo"));
        }
        let dir = scratch();
        let resolv = dir.path().join("resolv.conf");
        fs::write(&resolv, "nameserver 127.0.0.53\n").unwrap();
        sh(&format!(
            "mount --bind {} /etc/resolv.conf",
            resolv.display()
        ));
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Counts the connections to the services of the host.
#[derive(Clone, Default)]
struct Visits(Arc<AtomicUsize>);

impl Visits {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn tcp(&self, address: &str) {
        let listener = TcpListener::bind(address.parse::<SocketAddr>().unwrap()).unwrap();
        let visits = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                visits.0.fetch_add(1, Ordering::SeqCst);
                let _ = stream.and_then(|mut s| writeln!(s, "{BANNER}"));
            }
        });
    }

    /// Answers with an error message of TFTP, which busybox can print.
    fn udp(&self, address: &str) {
        let socket = UdpSocket::bind(address.parse::<SocketAddr>().unwrap()).unwrap();
        let visits = self.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                visits.0.fetch_add(1, Ordering::SeqCst);
                let _ = socket.send_to(format!("\0\x05\0\x01{BANNER}\0").as_bytes(), from);
            }
        });
    }

    /// Starts the services that a guest must not reach.
    fn serve() -> Visits {
        let visits = Visits::default();
        for address in ["127.0.0.1", "::1"].iter().chain(&METADATA) {
            let address = SocketAddr::new(address.parse().unwrap(), PORT);
            visits.tcp(&address.to_string());
            visits.udp(&address.to_string());
        }
        visits
    }
}

/// Starts a resolver that knows one answer, 192.0.2.77.
fn resolver() {
    let socket = UdpSocket::bind("127.0.0.53:53").unwrap();
    // another service at the same address, which the guest must not reach
    let other = Visits::default();
    other.tcp(&format!("127.0.0.53:{PORT}"));
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let question = &buffer[12..len];
            let end = question.iter().position(|b| *b == 0).unwrap() + 5;
            let kind = question[end - 3];
            let mut answer = buffer[..2].to_vec();
            let answers = u8::from(kind == 1);
            answer.extend([0x81, 0x80, 0, 1, 0, answers, 0, 0, 0, 0]);
            answer.extend(&question[..end]);
            if kind == 1 {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 77]);
            }
            let _ = socket.send_to(&answer, from);
        }
    });
}

/// Gives the guest an IPv6 address at once; by itself it would get one only after some seconds.
fn dress(console: &mut Console) {
    let said = console.run(
        "ip -6 addr add fec0::15/64 dev eth0 nodad; ip -6 route add default via fe80::2 dev eth0; \
         echo nameserver 10.0.2.3 > /etc/resolv.conf; echo dressed",
    );
    assert!(said.contains("dressed"), "{said}");
}

/// Returns whether the guest gets an answer from an address by TCP and by UDP.
fn ask(console: &mut Console, address: &str) -> [bool; 2] {
    let tcp = console.run(&format!(
        "timeout 5 nc -w 5 {address} {PORT} </dev/null 2>&1"
    ));
    let udp = console.run(&format!(
        "timeout 5 tftp -g -l /dev/null -r x {address} {PORT} 2>&1"
    ));
    [tcp.contains(BANNER), udp.contains(BANNER)]
}

/// The host's loopback under the user network's names for it.
const LOOPBACK: [&str; 2] = ["10.0.2.2", "fec0::2"];

fn reaches_nothing(console: &mut Console, visits: &Visits, who: &str) {
    let addresses = LOOPBACK.iter().chain(&METADATA);
    for address in addresses.chain(&["10.0.2.3", "0.0.0.0"]) {
        let got = ask(console, address);
        assert_eq!(got, [false; 2], "{who} machine reached {address}");
    }
    assert_eq!(visits.count(), 0, "{who} machine sent something");
    let said = console.run("nslookup -type=a name.test 10.0.2.3 2>&1");
    assert!(said.contains("192.0.2.77"), "{who} has no resolver: {said}");
}

fn page(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn guests_reach_neither_the_hosts_loopback_nor_link_local_addresses_unless_allowed() {
    let guest = guest();
    alone(move || {
        resolver();
        let visits = Visits::serve();
        let dir = scratch();
        let mut original = spec(&guest, dir.path(), "guarded", 20);
        original.forwards = vec![PortForward::tcp(8081, 80)];
        let (machine, mut console) = boot(original.clone());
        let guard = Guard(&machine);
        dress(&mut console);
        reaches_nothing(&mut console, &visits, "fresh");
        assert!(page(8081).contains("floe tiny guest"));
        machine.add_forward(PortForward::tcp(8082, 80)).unwrap();
        assert!(page(8082).contains("floe tiny guest"));

        let capture = machine
            .capture(CaptureOptions::default(), || Ok::<_, String>(()))
            .unwrap();
        drop(console);
        drop(guard);
        drop(machine);
        let clone = |name: &str, number, access: HostAccess| {
            let mut spec = clone_spec(&original, &capture, dir.path(), name, number);
            spec.host_access = access;
            let ram = dir.path().join(format!("{name}.ram"));
            let state = snapshot(&capture, None, &ram, spec.user);
            Machine::restore(spec, &state).unwrap().machine
        };
        let restored = clone("restored", 21, HostAccess::None);
        let guard = Guard(&restored);
        let mut console = Console::open(&restored);
        reaches_nothing(&mut console, &visits, "restored");
        restored.add_forward(PortForward::tcp(8083, 80)).unwrap();
        assert!(page(8083).contains("floe tiny guest"));
        drop(console);
        // another process takes the machine over, but the guard is still in QEMU
        std::mem::forget(guard);
        drop(restored);
        let adopted = Machine::adopt(dir.path().join("restored")).unwrap();
        let _adopted = Guard(&adopted);
        let mut console = Console::open(&adopted);
        assert_eq!(ask(&mut console, "10.0.2.2"), [false; 2]);
        assert_eq!(visits.count(), 0);

        // the same services can be reached by machines with permission, so the test above did not pass by accident
        for (number, access) in [HostAccess::All, HostAccess::Ports(vec![1, PORT])]
            .into_iter()
            .enumerate()
        {
            let allowed = clone(&format!("allowed{number}"), 22 + number as u32, access);
            let _allowed = Guard(&allowed);
            let mut console = Console::open(&allowed);
            for address in LOOPBACK.iter().chain(&METADATA) {
                assert_eq!(ask(&mut console, address), [true; 2], "{address}");
            }
        }
        assert!(visits.count() >= 20, "{}", visits.count());
        let elsewhere = clone("elsewhere", 24, HostAccess::Ports(vec![PORT + 1]));
        let _elsewhere = Guard(&elsewhere);
        let mut console = Console::open(&elsewhere);
        assert_eq!(ask(&mut console, "10.0.2.2"), [false; 2]);
    });
}

/// Runs Python like QEMU, with the guard loaded.
fn guarded_python(dir: &Path, access: HostAccess, script: &str) -> String {
    let python = fs::canonicalize("/usr/bin/python3").unwrap();
    let plan = ExecPlan {
        dir: dir.into(),
        announcement: None,
        ends_with: None,
        cgroup: Vec::new(),
        user: None,
        device_group: None,
        refuse_huge_pages: false,
        ram: Vec::new(),
        guard: Role::Machine {
            access,
            log_bytes: 64 << 10,
        },
        program: python,
        args: common::python_arguments(script),
    };
    let out = Command::new(&programs().wrapper[0])
        .args(plan.to_args())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    said + &String::from_utf8_lossy(&out.stderr)
}

#[test]
#[ignore = "needs root, QEMU and python3: make test-all"]
fn a_forwarded_udp_port_answers_its_callers_and_calls_nobody() {
    // A forwarded port is a socket of QEMU's from which a guest may send whatever it wants.
    let script = r#"
import socket
def udp():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(('127.0.0.1', 0))
    s.settimeout(20)
    return s
def attempt(what, call):
    try:
        call(); print(what, 'yes')
    except OSError as e:
        print(what, 'no', e.errno)
port, stranger = udp(), udp()
attempt('first', lambda: port.sendto(b'x', stranger.getsockname()))
# the caller is another process of the host, on which there is no guard
import subprocess, sys
caller = subprocess.Popen([sys.executable, '-c', '''
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('127.0.0.1', 0)); s.settimeout(20)
s.sendto(b'question', ('127.0.0.1', int(sys.argv[1])))
print('caller got', s.recv(100).decode())
''', str(port.getsockname()[1])], env={}, stdout=subprocess.PIPE)
said, address = port.recvfrom(100)
attempt('answer', lambda: port.sendto(b'answer', address))
attempt('answer by message', lambda: port.sendmsg([b'more'], [], 0, address))
attempt('other socket', lambda: udp().sendto(b'x', address))
attempt('other port', lambda: port.sendto(b'x', stranger.getsockname()))
print(caller.communicate()[0].decode())
t = socket.socket(); attempt('tcp', lambda: t.connect(address))
six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
attempt('mapped', lambda: six.sendto(b'x', ('::ffff:127.0.0.1', address[1])))
attempt('message', lambda: port.sendmsg([b'x'], [], 0, ('127.0.0.1', 9)))
unix, other = socket.socketpair(); attempt('unix', lambda: unix.send(b'x'))
"#;
    let dir = scratch();
    let said = guarded_python(dir.path(), HostAccess::None, script);
    for line in [
        "first no 113",
        "answer yes",
        "answer by message yes",
        "other socket no 113",
        "other port no 113",
        "caller got answer",
        "tcp no 113",
        "mapped no 113",
        "message no 113",
        "unix yes",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
}

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn a_guest_behind_a_forwarded_udp_port_answers_and_calls_nobody() {
    let guest = guest();
    let guest = guest.parent().unwrap().join("mpi"); // has Python, which speaks UDP
    alone(move || {
        let stranger = Visits::default();
        stranger.udp(&format!("127.0.0.1:{PORT}"));
        let dir = scratch();
        let mut spec = spec(&guest, dir.path(), "udp", 27);
        spec.config.memory_bytes = Some(512 << 20);
        spec.forwards = vec![PortForward {
            protocol: floe_machine::Protocol::Udp,
            ..PortForward::tcp(9009, 9)
        }];
        let (machine, mut console) = boot(spec);
        let _machine = Guard(&machine);
        console.send(&format!(
            "python3 -uc \"import socket as S; s=S.socket(S.AF_INET,S.SOCK_DGRAM); s.bind(('',9)); d,a=s.recvfrom(99); \
             [s.sendto(b'x',('10.0.2.2',{PORT})) for i in range(9)]; s.sendto(b'answer',a); print('se'+'nt')\""
        ));
        let caller = UdpSocket::bind("127.0.0.1:0").unwrap();
        caller
            .set_read_timeout(Some(Duration::from_secs(1)))
            .unwrap();
        let deadline = Instant::now() + PATIENCE;
        let mut answer = [0; 64];
        let len = loop {
            caller.send_to(b"question", "127.0.0.1:9009").unwrap();
            match caller.recv_from(&mut answer) {
                Ok((len, _)) => break len,
                Err(_) => assert!(Instant::now() < deadline, "no answer"),
            }
        };
        assert_eq!(&answer[..len], b"answer");
        console.expect("sent");
        assert_eq!(
            stranger.count(),
            0,
            "the guest called from its forwarded port"
        );
    });
}

/// Runs a program like QEMU, with the guard loaded, and its output in a log as QEMU's is. Returns what is in that.
fn said_in_log(program: &str, args: &[&str], log_bytes: u64) -> String {
    let dir = scratch();
    let plan = ExecPlan {
        dir: dir.path().into(),
        announcement: None,
        ends_with: None,
        cgroup: Vec::new(),
        user: None,
        device_group: None,
        refuse_huge_pages: false,
        ram: Vec::new(),
        guard: Role::Machine {
            access: HostAccess::None,
            log_bytes,
        },
        program: fs::canonicalize(program).unwrap(),
        args: args.iter().map(Into::into).collect(),
    };
    let path = dir.path().join("qemu.log");
    let mut log = fs::File::options();
    let log = log.create(true).read(true).append(true).open(&path);
    let log = log.unwrap();
    let mut child = Command::new(&programs().wrapper[0])
        .args(plan.to_args())
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        most = most.max(fs::metadata(&path).unwrap().len());
    }
    assert!(most <= log_bytes, "{program}: {most} bytes");
    fs::read_to_string(path).unwrap()
}

#[test]
#[ignore = "needs QEMU and python3: make test-all"]
fn what_qemu_says_without_end_keeps_within_its_bound() {
    const BYTES: u64 = 8 << 10;
    let names: Vec<String> = (0..20_000).map(|n| format!("missing-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let script = "import os\nfor n in range(20000): os.write(2, b'missing-%d\\n' % n)";
    // by the C library's stream, by its stream for output in large pieces, and without it; and as QEMU does it
    for (program, args, last) in [
        ("/usr/bin/ls", &names[..], "missing-19999"),
        ("/usr/bin/seq", &["20000"], "20000"),
        ("/usr/bin/python3", &["-c", script], "missing-19999"),
        ("/usr/bin/qemu-system-x86_64", &["-h"], "qemu.org"),
        ("/usr/bin/qemu-system-x86_64", &["-oops"], "-oops"),
    ] {
        let said = said_in_log(program, args, BYTES);
        let end = said.lines().rfind(|line| !line.is_empty()).unwrap_or("");
        assert!(end.contains(last), "{program}: {end}");
        assert!(said.len() as u64 <= BYTES, "{program}");
        if !args[0].starts_with('-') || args[0] == "-c" {
            // what is kept is the latest, without a gap
            assert!(said.len() as u64 > BYTES / 3, "{program}: {}", said.len());
            let number = |line: &str| -> Option<u32> {
                let digits = line.trim_end_matches(|c: char| !c.is_ascii_digit());
                digits
                    .rsplit(|c: char| !c.is_ascii_digit())
                    .next()?
                    .parse()
                    .ok()
            };
            let kept: Vec<u32> = said.lines().skip(1).filter_map(number).collect();
            assert!(kept.windows(2).all(|pair| pair[1] == pair[0] + 1));
        }
    }
}

#[test]
#[ignore = "needs QEMU and the tiny guest: make test-all"]
fn a_console_that_writes_without_end_keeps_within_its_bound() {
    let guest = guest();
    const BYTES: u64 = 128 << 10;
    let dir = scratch();
    let mut noisy = spec(&guest, dir.path(), "noisy", 26);
    noisy.console_log_bytes = BYTES;
    let (machine, mut console) = boot(noisy);
    let _machine = Guard(&machine);
    let run = dir.path().join("noisy/run");
    // no node runs, only QEMU
    console.send("i=0; while :; do i=$((i+1)); echo line $i of a guest that has much to say; done");
    console.expect("line 9 of");
    drop(console);
    let lines = |text: &str| -> Vec<u64> {
        let numbers = text.lines().filter_map(|line| {
            let rest = line.strip_prefix("line ")?;
            rest.split_once(" of a guest that has much to say")?
                .0
                .parse()
                .ok()
        });
        numbers.collect()
    };
    let deadline = Instant::now() + PATIENCE;
    let (mut rotations, mut last) = (0, 0);
    while rotations < 3 {
        let len = |name: &str| fs::metadata(run.join(name)).map_or(0, |m| m.len());
        let (now, before) = (len("console.log"), len("console.log.1"));
        assert!(now <= BYTES && before <= BYTES, "{now} and {before} bytes");
        rotations += usize::from(now < last);
        last = now;
        assert!(Instant::now() < deadline, "{rotations} rotations");
        std::thread::sleep(Duration::from_millis(5));
    }
    // what is left is the latest output, without a gap
    let said = machine.console_history(u64::MAX).unwrap();
    assert!(said.len() as u64 > BYTES / 2, "{} bytes", said.len());
    let numbers = lines(&String::from_utf8_lossy(&said));
    assert!(numbers.len() > 1000);
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1));
}
