//! Two isolated machines of one user on one device, a personal one and a company's (AMPhone, section 5.3.2): what the guest of the one gets
//! of the other over its network and from its disks, what a QEMU that was taken over gets of it, and where inputs come that are typed.

use crate::support::command::ok;
use crate::support::node::{TestNode, eventually};
use crate::support::other_users::{as_user, everything, open_of_process, possible, status_field};
use crate::support::resources::pid;
use floe_api::*;
use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
};

/// Each of the two, and the other one.
const EACH: [[&str; 2]; 2] = [["personal", "company"], ["company", "personal"]];

/// The end of what a program reads.
const END: &str = "\u{4}";

/// Runs a machine with a disk and a web server that the host reaches at this port.
fn run(node: &TestNode, name: &str, port: u16) {
    node.run(&RunRequest {
        image: "tiny".into(),
        name: Some(name.into()),
        forwards: vec![format!("{port}:80").parse().unwrap()],
        ..Default::default()
    });
    node.wait_console(name, "floe-guest ready");
}

/// What only this machine has, on its disk and its web server.
fn secret(name: &str) -> String {
    format!("secret-42-{name}")
}

/// What the web server of a machine tells the host.
fn served(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// What a command prints in a guest; `number` is that of no other question.
fn asked(node: &TestNode, name: &str, number: u32, command: &str) -> String {
    let (begin, end) = (format!("asked{number}-"), format!("-told42-{number}"));
    let typed = format!("echo {begin}$({command})-told$((40+2))-{number}");
    node.type_and_wait(name, &typed, &end);
    let console = node.console(name);
    let (before, _) = console.rsplit_once(&end).unwrap();
    before.rsplit_once(&begin).unwrap().1.to_owned()
}

/// What a guest gets of a web server.
fn fetched(node: &TestNode, name: &str, number: u32, from: &str) -> String {
    let command = format!("timeout 10 wget -q -O - http://{from}/ 2>/dev/null");
    asked(node, name, number, &command)
}

/// What a user can do with the files of a machine, in words.
fn open_to(user: u32, node: &TestNode, name: &str) -> Vec<String> {
    let part = format!("/{name}/");
    let its = |path: &PathBuf| path.display().to_string().contains(&part);
    let all = everything(node.home()).into_iter().filter(its);
    let seen: Vec<(PathBuf, fs::Metadata)> = all
        .filter_map(|path| Some((path.clone(), fs::symlink_metadata(path).ok()?)))
        .filter(|(_, meta)| !meta.is_symlink())
        .collect();
    as_user(user, || {
        let can = seen.iter().flat_map(|(path, meta)| possible(path, meta));
        can.collect()
    })
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test-all"]
fn a_personal_and_a_company_machine_on_one_device_get_nothing_of_each_other() {
    let node = TestNode::start();
    let disk = node.blank_disk();
    node.import_tiny("tiny", Some(&disk));
    let free = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = free
        .each_ref()
        .map(|free| free.local_addr().unwrap().port());
    drop(free);
    for ([me, _], port) in EACH.into_iter().zip(ports) {
        run(&node, me, port);
        let keep = format!(
            "echo secret-$((6*7))-{me} > /www/index.html; cat /www/index.html > /dev/vda; sync; echo kept-$((1+1))"
        );
        node.type_and_wait(me, &keep, "kept-2");
    }

    // the host's user reaches both, each of them itself, and neither the other
    for (at, [me, other]) in EACH.into_iter().enumerate() {
        let (own, its) = (secret(me), secret(other));
        eventually("its web server answers the host", || {
            served(ports[at]).is_ok_and(|text| text.contains(&own))
        });
        // all of a user network's guests have this address
        assert_eq!(fetched(&node, me, 1, "10.0.2.15"), own);
        let others = ports[1 - at];
        let ways = [
            format!("10.0.2.2:{others}"),
            format!("10.0.2.2:{}", ports[at]),
            format!("127.0.0.1:{others}"),
            "10.0.2.16".to_owned(),
        ];
        for (number, way) in (2..).zip(ways) {
            let got = fetched(&node, me, number, &way);
            assert_eq!(got, "", "{me} has got {got:?} from {way}");
        }
        // each has one disk, with what it has written, and no trace of the other's
        assert_eq!(
            asked(&node, me, 10, "ls /dev/vd* | tr '\\n' ' '"),
            "/dev/vda "
        );
        let look = "tr -d '\\000' < /dev/vda | tr '\\n' ' '";
        let found = asked(&node, me, 11, look);
        assert!(found.contains(&own) && !found.contains(&its), "{found:?}");
    }

    // what is typed comes to the machine that it was typed at, also while that one stands still and the same sender counts for both
    for [me, _] in EACH {
        let cat = "stty -echo; echo reads-$((6*7)); cat > /www/got; stty echo";
        ok(&node, &["type", me, cat]);
        node.wait_console(me, "reads-42");
    }
    ok(&node, &["pause", "company"]);
    for [me, _] in EACH {
        ok(&node, &["type", me, &format!("for the {me} one")]);
        let text = format!("the {me} one alone\n");
        let request = TypeRequest {
            from: "00000000000000cd".into(),
            first: 1,
            inputs: vec![TypedInput {
                gap_ms: 0,
                input: UserInput::Text { text },
            }],
        };
        assert_eq!(node.client().type_on(me, &request).unwrap().kept, 1);
    }
    let got = |name: &str| ok(&node, &["exec", name, "--", "cat", "/www/got"]);
    let wanted = |name: &str| format!("for the {name} one\nthe {name} one alone\n");
    let has_all = |name: &str| eventually("all is there", || got(name).len() >= wanted(name).len());
    has_all("personal");
    ok(&node, &["resume", "company"]);
    has_all("company");
    for [me, _] in EACH {
        assert_eq!(got(me), wanted(me));
        ok(&node, &["type", "-n", me, END]);
    }

    // a QEMU that was taken over has its own machine's files, and nothing of the other one
    for [me, other] in EACH {
        let user = status_field(pid(&node, me), "Uid:").unwrap();
        let user: u32 = user.parse().unwrap();
        assert!(!open_to(user, &node, me).is_empty(), "{me}");
        assert_eq!(open_to(user, &node, other), Vec::<String>::new());
        let process = open_of_process(user, pid(&node, other));
        assert_eq!(process, Vec::<String>::new());
    }
}
