//! Promises of clusters: who gets in, who does not, and what can be read on the way.

use crate::support::clusters::{init, invite, join, names, quiet, stranger};
use crate::support::node::{self, TestNode, eventually};
use floe_api::*;
use std::{
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
    time::Duration,
};

/// A certificate and key of one's own, signed by an authority of one's own.
fn foreign(dir: &std::path::Path) -> [String; 2] {
    let files = ["foreign.pem", "foreign.key"].map(|f| dir.join(f).display().to_string());
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ])
        .args([
            "-subj",
            "/CN=floe",
            "-addext",
            "subjectAltName=DNS:0000000000000001.floe",
        ])
        .args(["-out", &files[0], "-keyout", &files[1]])
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(made.success());
    files
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn an_invitation_lets_one_node_in_once_and_in_time() {
    let (here, there, third) = (quiet(), quiet(), quiet());
    let made = init(&here, None);
    assert!(made.authority && made.joined, "{made:?}");
    let again = here.client().cluster_init(&Default::default()).unwrap_err();
    assert_eq!(again.to_api().code, ErrorCode::Busy);

    let invited = invite(&here, None);
    assert_eq!(
        invited.command,
        format!("floe cluster join {} {}", here.url(), invited.invitation)
    );
    // what the authority keeps of it does not let anybody in
    let secret = invited.invitation.rsplit('.').next().unwrap();
    for file in std::fs::read_dir(here.home().join("cluster")).unwrap() {
        let file = file.unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(!text.contains(secret), "{:?}", file.path());
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    // a wrong secret, another cluster's fingerprint, text that is none
    let changed = |from: usize| {
        let mut text = invited.invitation.clone().into_bytes();
        text[from] = if text[from] == b'0' { b'1' } else { b'0' };
        ClusterInvited {
            invitation: String::from_utf8(text).unwrap(),
            ..invited.clone()
        }
    };
    let wrong = join(&there, "second", &changed(invited.invitation.len() - 1)).unwrap_err();
    assert!(wrong.message.contains("not good"), "{wrong}");
    assert!(wrong.fix.contains("floe cluster invite"), "{wrong}");
    let impostor = join(&there, "second", &changed(8)).unwrap_err();
    assert!(impostor.message.contains("UnknownIssuer"), "{impostor}");
    let taken = join(&there, "first", &invited).unwrap_err();
    assert!(taken.fix.contains("--name"), "{taken}");
    assert!(!there.client().cluster().unwrap().joined);

    let joined = join(&there, "second", &invited).unwrap();
    assert_eq!((joined.authority, joined.url), (false, there.url()));
    assert_eq!(names(&here), ["first", "second"]);
    assert_eq!(names(&there), ["first", "second"]);
    // the CA's key is where it was made
    assert!(here.home().join("cluster/ca.key").exists());
    assert!(!there.home().join("cluster/ca.key").exists());

    let used = join(&third, "third", &invited).unwrap_err();
    assert_eq!(used.code, ErrorCode::Refused, "{used}");
    assert!(used.message.contains("was used"), "{used}");
    assert!(used.fix.contains("floe cluster invite"), "{used}");
    let short = invite(&here, Some(1));
    eventually("it has expired", || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.unwrap().as_secs() > short.expires_unix_s
    });
    // nobody without a certificate is even listened to now
    let expired = join(&third, "third", &short).unwrap_err();
    assert!(
        expired.message.contains("let into that cluster now"),
        "{expired}"
    );
    let _open = invite(&here, None);
    let expired = join(&third, "third", &short).unwrap_err();
    assert_eq!(expired.code, ErrorCode::Refused, "{expired}");
    // it goes with the first who looks
    assert!(expired.message.contains("expired") || expired.message.contains("not good"));
    // nobody but the authority lets anybody in
    let refused = there
        .client()
        .cluster_invite(&Default::default())
        .unwrap_err();
    assert!(refused.to_api().fix.contains("first"), "{refused}");

    // wrong guesses void an invitation
    let guessed = invite(&here, None);
    let guess = ClusterInvited {
        invitation: format!(
            "{}{}",
            &guessed.invitation[..guessed.invitation.len() - 32],
            "7".repeat(32)
        ),
        ..guessed.clone()
    };
    for _ in 0..5 {
        join(&third, "third", &guess).unwrap_err();
    }
    join(&third, "third", &guessed).unwrap_err();
    join(&third, "third", &invite(&here, None)).unwrap();
    eventually("all know", || names(&there).len() == 3);
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn strangers_other_clusters_and_revoked_members_are_refused() {
    let (here, there, mut third, outside) = (quiet(), quiet(), quiet(), quiet());
    init(&here, None);
    join(&there, "second", &invite(&here, None)).unwrap();
    join(&third, "third", &invite(&here, None)).unwrap();
    init(&outside, None);
    eventually("all know", || names(&there).len() == 3);
    let at = |node: &TestNode| node.member_address().unwrap();
    let pem = |node: &TestNode| node.home().join("cluster/node.pem").display().to_string();
    let answered = |text: &str| text.contains("200 OK") && text.contains("free_cpus");

    let member = pem(&there);
    let welcome = stranger(at(&here), &["-cert", &member, "-key", &member]);
    assert!(answered(&welcome), "{welcome}");
    let foreign = foreign(here.home());
    let other = pem(&outside);
    let ways: [&[&str]; 3] = [
        &[],
        &["-cert", &foreign[0], "-key", &foreign[1]],
        &["-cert", &other, "-key", &other],
    ];
    // also while strangers may come to use an invitation
    for invites in [false, true] {
        if invites {
            invite(&here, None);
        }
        for way in ways {
            let refused = stranger(at(&here), way);
            assert!(!refused.contains("200 OK"), "{way:?}: {refused}");
        }
    }
    // a member serves other members only what they need
    let admin = TcpStream::connect(at(&here)).unwrap();
    drop(admin);

    // a member that is revoked is refused by all, and refuses all
    let lost = pem(&third);
    assert!(answered(&stranger(
        at(&there),
        &["-cert", &lost, "-key", &lost]
    )));
    let revoke = |name: &str| {
        let request = ClusterRevoke { name: name.into() };
        here.client().cluster_revoke(&request)
    };
    // one that is away now learns it when it is back
    third.end(node::Signal::KILL);
    assert_eq!(revoke("third").unwrap().untold, Vec::<String>::new());
    for node in [&here, &there] {
        let refused = stranger(at(node), &["-cert", &lost, "-key", &lost]);
        assert!(!refused.contains("200 OK"), "{refused}");
    }
    third.start_again();
    eventually("it is told that it is no member", || {
        let told = third.client().cluster().unwrap();
        told.detail.contains("does not take this node for a member")
    });
    assert_eq!(
        revoke("third").unwrap_err().to_api().code,
        ErrorCode::NotFound
    );
    assert_eq!(
        revoke("first").unwrap_err().to_api().code,
        ErrorCode::Refused
    );
    // it can join anew, by the same name, and its old certificate is still good for nothing
    let copy = third.home().join("old.pem");
    std::fs::copy(&lost, &copy).unwrap();
    let copy = copy.display().to_string();
    third.client().cluster_leave(&Default::default()).unwrap();
    join(&third, "third", &invite(&here, None)).unwrap();
    assert!(answered(&stranger(
        at(&here),
        &["-cert", &lost, "-key", &lost]
    )));
    assert!(!stranger(at(&here), &["-cert", &copy, "-key", &copy]).contains("200 OK"));

    // the authority goes only if nobody is left, or by force
    let client = here.client();
    let refused = client.cluster_leave(&Default::default()).unwrap_err();
    assert!(refused.to_api().fix.contains("--force"), "{refused}");
    third.client().cluster_leave(&Default::default()).unwrap();
    there.client().cluster_leave(&Default::default()).unwrap();
    assert_eq!(names(&here), ["first"]);
    client.cluster_leave(&Default::default()).unwrap();
    assert!(!client.cluster().unwrap().joined);
    assert_eq!(
        std::fs::read_dir(here.home().join("cluster"))
            .unwrap()
            .count(),
        0
    );
    let address = at(&here);
    eventually("nobody listens to members any more", || {
        TcpStream::connect_timeout(&address, Duration::from_secs(5)).is_err()
    });
}

#[test]
#[ignore = "needs root, FUSE and QEMU: make test"]
fn without_a_cluster_no_fork_goes_to_another_host_and_the_way_out_is_named() {
    let (here, there) = (quiet(), quiet());
    here.boot_tiny("web");
    let fork = |host: &str| {
        let request = ForkRequest {
            clones: 1,
            hosts: vec![host.into()],
            ..Default::default()
        };
        let forked = here.client().fork("web", &request).unwrap().finish(|_| ());
        forked.unwrap_err().to_api()
    };
    for host in [there.url(), "http://127.0.0.1:1".into(), "beta".into()] {
        let refused = fork(&host);
        assert_eq!(refused.code, ErrorCode::Refused);
        for word in ["floe cluster init", "floe cluster join", "--insecure"] {
            assert!(refused.fix.contains(word), "{refused}");
        }
    }
    init(&here, None);
    for host in [there.url(), "http://127.0.0.1:1".into(), "beta".into()] {
        let refused = fork(&host);
        assert!(refused.fix.contains("floe cluster join"), "{refused}");
    }
}
