//! Hosts for tests of nodes that reach each other over a network.

/// Two hosts with a cable between them: namespaces that go away with this.
pub struct Hosts {
    /// The names of the namespaces; their addresses are 10.90.0.1 and 10.90.0.2.
    pub names: [String; 2],
}

impl Hosts {
    /// A pair that no other test has.
    pub fn new() -> Hosts {
        use std::sync::atomic::{AtomicU32, Ordering};
        static PAIRS: AtomicU32 = AtomicU32::new(0);
        let pair = PAIRS.fetch_add(1, Ordering::Relaxed);
        let of = |host| format!("flt{}-{pair}{host}", std::process::id());
        let hosts = Hosts {
            names: [of("a"), of("b")],
        };
        let [a, b] = &hosts.names;
        for name in [a, b] {
            ip(&format!("netns add {name}"));
            ip(&format!("-n {name} link set lo up"));
        }
        ip(&format!(
            "link add eth0 netns {a} type veth peer name eth0 netns {b}"
        ));
        for (name, address) in [(a, "10.90.0.1/24"), (b, "10.90.0.2/24")] {
            ip(&format!("-n {name} addr add {address} dev eth0"));
            ip(&format!("-n {name} link set eth0 up"));
            ip(&format!(
                "netns exec {name} sysctl -qw net.ipv4.ip_forward=1"
            ));
        }
        hosts
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = std::process::Command::new("ip")
                .args(["netns", "del", name])
                .status();
        }
    }
}

fn ip(arguments: &str) {
    let words = arguments.split(' ');
    let status = std::process::Command::new("ip")
        .args(words)
        .status()
        .unwrap();
    assert!(status.success(), "ip {arguments}");
}
