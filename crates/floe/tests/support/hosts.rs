//! Hosts for tests of nodes that reach each other over a network.

/// Hosts that reach each other: namespaces that go away with this.
pub struct Hosts {
    /// The names of the namespaces; their addresses are 10.90.0.1, 10.90.0.2 ...
    pub names: Vec<String>,
    /// The switch between them, if they are more than two.
    switch: Option<String>,
}

impl Hosts {
    #[allow(dead_code, reason = "not every file of tests has just two")]
    /// A pair that no other test has.
    pub fn new() -> Hosts {
        use std::sync::atomic::{AtomicU32, Ordering};
        static PAIRS: AtomicU32 = AtomicU32::new(0);
        let pair = PAIRS.fetch_add(1, Ordering::Relaxed);
        let of = |host| format!("flt{}-{pair}{host}", std::process::id());
        let hosts = Hosts {
            names: vec![of("a"), of("b")],
            switch: None,
        };
        let (a, b) = (&hosts.names[0], &hosts.names[1]);
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

    #[allow(dead_code, reason = "not every file of tests has more than two")]
    /// So many at a switch. `kind` tells them from others of this process.
    pub fn at_a_switch(count: u8, kind: &str) -> Hosts {
        let of = |host: &str| format!("flt{}{kind}{host}", std::process::id());
        let switch = of("s");
        ip(&format!("netns add {switch}"));
        ip(&format!(
            "-n {switch} link add br0 type bridge mcast_snooping 0 forward_delay 0"
        ));
        ip(&format!("-n {switch} link set br0 up"));
        let mut hosts = Hosts {
            names: Vec::new(),
            switch: Some(switch.clone()),
        };
        for n in 1..=count {
            let name = of(&n.to_string());
            ip(&format!("netns add {name}"));
            ip(&format!("-n {name} link set lo up"));
            ip(&format!(
                "link add eth0 netns {name} type veth peer name p{n} netns {switch}"
            ));
            ip(&format!("-n {switch} link set p{n} master br0 up"));
            ip(&format!("-n {name} addr add 10.90.0.{n}/24 dev eth0"));
            ip(&format!("-n {name} link set eth0 up"));
            hosts.names.push(name);
        }
        hosts
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in self.names.iter().chain(&self.switch) {
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
