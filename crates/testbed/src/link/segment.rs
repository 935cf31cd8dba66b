//! Hosts on one Ethernet segment: network namespaces, each connected to the same switch by a virtual cable.
use super::Namespace;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

/// Most hosts: a /24 has no more addresses.
pub const SEGMENT_HOSTS_MAX: usize = 250;
/// The name of the device at each host's end of its cable.
const DEVICE: &str = "floe1";

/// What waits for a limited link before packets are dropped, in milliseconds of its rate.
const QUEUE_MS: u32 = 50;

/// A switch and its hosts. They have no names, and disappear with the process.
pub struct Segment {
    hosts: Vec<Namespace>,
    /// The namespace of the bridge.
    switch: Namespace,
}

impl Segment {
    /// Makes this many hosts, with addresses in 10.79.0/24.
    pub fn new(hosts: usize) -> io::Result<Segment> {
        if hosts > SEGMENT_HOSTS_MAX {
            return Err(io::Error::other(format!(
                "{hosts} hosts on a segment; {SEGMENT_HOSTS_MAX} is the most"
            )));
        }
        let switch = Namespace::new()?;
        // a bridge without a querier floods what is sent to groups, like a cheap switch
        switch.ip("link add segment type bridge mcast_snooping 0")?;
        switch.ip("link set segment up")?;
        let mut all = Vec::new();
        for number in 0..hosts {
            let host = Namespace::new()?;
            let theirs = format!("/proc/{}/fd/{}", std::process::id(), host.as_raw_fd());
            switch.ip(&format!(
                "link add port{number} type veth peer name {DEVICE} netns {theirs}"
            ))?;
            switch.ip(&format!("link set port{number} master segment up"))?;
            host.ip(&format!("addr add {}/24 dev {DEVICE}", address(number)))?;
            host.ip(&format!("link set {DEVICE} up"))?;
            all.push(host);
        }
        Ok(Segment { hosts: all, switch })
    }

    /// Returns a host.
    pub fn host(&self, number: usize) -> &Namespace {
        &self.hosts[number]
    }

    /// Returns a host's address.
    pub fn address(&self, number: usize) -> Ipv4Addr {
        address(number)
    }

    /// Limits what a host sends to a gigabit per second, and counts it packet by packet, as on a wire.
    pub fn as_gigabit(&self, number: usize) -> io::Result<()> {
        let host = self.host(number);
        host.ip(&format!("link set {DEVICE} gso_max_segs 1"))?;
        host.tool(
            "tc",
            "iproute2",
            &format!("qdisc add dev {DEVICE} root tbf rate 1gbit burst 256k latency 20ms"),
        )
    }

    /// Limits what a host sends and what it receives to this rate, each way counted packet by packet, as on a link of its own to the
    /// switch.
    pub fn limit(&self, number: usize, bits_per_s: u64) -> io::Result<()> {
        let ends = [
            (self.host(number), DEVICE.to_owned()),
            (&self.switch, format!("port{number}")),
        ];
        for (namespace, device) in ends {
            namespace.ip(&format!("link set {device} gso_max_segs 1"))?;
            namespace.tool(
                "tc",
                "iproute2",
                &format!(
                    "qdisc replace dev {device} root tbf rate {bits_per_s}bit burst 16k latency {QUEUE_MS}ms"
                ),
            )?;
        }
        Ok(())
    }

    /// Cuts a host's cable: whatever is sent over it is lost. It is cut at the switch: with its own end down a host would be told of it.
    pub fn cut(&self, number: usize) -> io::Result<()> {
        self.switch.ip(&format!("link set port{number} down"))
    }

    /// Mends a host's cable.
    pub fn mend(&self, number: usize) -> io::Result<()> {
        self.switch.ip(&format!("link set port{number} up"))
    }

    /// Drops this percentage of the packets that arrive at a host over its cable.
    pub fn lose(&self, number: usize, percent: u32) -> io::Result<()> {
        let rule = format!("iifname {DEVICE} numgen random mod 100 < {percent} drop");
        self.filter(number, &rule)
    }

    /// Drops what is sent to groups before it arrives at a host, as some networks do.
    pub fn without_multicast(&self, number: usize) -> io::Result<()> {
        self.filter(number, "ip daddr 224.0.0.0/4 drop")
    }

    fn filter(&self, number: usize, rule: &str) -> io::Result<()> {
        let host = self.host(number);
        for command in [
            "add table ip segment".to_owned(),
            "add chain ip segment in { type filter hook input priority 0 ; }".to_owned(),
            format!("add rule ip segment in {rule}"),
        ] {
            host.tool("nft", "nftables", &command)?;
        }
        Ok(())
    }

    /// Ends all such losses at a host. Rules that others have made there stay.
    pub fn lose_nothing(&self, number: usize) -> io::Result<()> {
        self.host(number)
            .tool("nft", "nftables", "delete table ip segment")
    }

    /// Returns the bytes that a host has sent, with their Ethernet headers.
    pub fn sent_bytes(&self, number: usize) -> io::Result<u64> {
        let text = self
            .host(number)
            .run(|| std::fs::read_to_string("/proc/thread-self/net/dev"))??;
        sent_bytes(&text).ok_or_else(|| io::Error::other(format!("no {DEVICE} in /proc/net/dev")))
    }
}

fn address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 79, 0, number as u8 + 1)
}

/// Returns the ninth number in the device's line.
fn sent_bytes(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(DEVICE)?.strip_prefix(':'))?;
    line.split_whitespace().nth(8)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_read_from_the_devices_line() {
        let text = "Inter-| x\n face |bytes\n    lo: 1 2 3 4 5 6 7 8 9 10\n floe1: 11 2 3 4 5 6 7 8 99 10\n";
        assert_eq!(sent_bytes(text), Some(99));
        assert_eq!(sent_bytes("    lo: 1 2"), None);
        assert_eq!(address(16), Ipv4Addr::new(10, 79, 0, 17));
    }
}
