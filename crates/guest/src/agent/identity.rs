//! Gives this machine the identity of the clone that its node says it is.
//!
//! The order matters: random numbers first, since everything else may use some; then the clock; then the generation, at whose change
//! programs draw new random numbers; then the identity. The network card has no carrier until the node was informed that all of it is in
//! place.

use super::{generation, sys};
use crate::files::IDENTITY_PATH;
use crate::files::replace;
use crate::message::{ENTROPY_BYTES, Identity, Place};
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;

/// Longest host name that Linux accepts, in bytes.
const HOSTNAME_BYTES_MAX: usize = 64;
/// Mode of the files with the identity: everybody may know it.
const MODE: u32 = 0o644;

/// Sets everything, or returns what could not be set.
pub(super) fn place(place: &Place) -> Result<(), String> {
    let entropy: [u8; ENTROPY_BYTES] = place
        .entropy
        .as_slice()
        .try_into()
        .map_err(|_| format!("{ENTROPY_BYTES} random bytes were expected"))?;
    let said = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    fs::File::open("/dev/urandom")
        .and_then(|random| sys::add_entropy(&random, entropy))
        .map_err(said("the random numbers can't be seeded anew"))?;
    sys::set_clock(place.time_ns).map_err(said("the clock can't be set"))?;
    if let Some(id) = &place.generation {
        generation::note(id)?;
    }
    let Some(identity) = &place.identity else {
        return Ok(());
    };
    hostname(&identity.hostname).map_err(said("the host name can't be set"))?;
    machine_id(&identity.machine_id).map_err(said("/etc/machine-id can't be written"))?;
    card(identity)?;
    replace(
        Path::new(IDENTITY_PATH),
        describe(identity).as_bytes(),
        MODE,
    )
    .map_err(said("/run/floe.identity can't be written"))
}

fn hostname(name: &str) -> io::Result<()> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
    if name.is_empty() || name.len() > HOSTNAME_BYTES_MAX || !name.bytes().all(good) {
        return Err(io::Error::other(format!("{name:?} is none")));
    }
    sys::set_hostname(name)?;
    let file = Path::new("/etc/hostname");
    match file.try_exists()? {
        true => replace(file, format!("{name}\n").as_bytes(), MODE),
        false => Ok(()),
    }
}

/// Writes the machine id if the guest has one already; otherwise nothing in the guest reads it.
fn machine_id(id: &str) -> io::Result<()> {
    if id.len() != 32 || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(io::Error::other(format!("{id:?} is none")));
    }
    for file in ["/etc/machine-id", "/var/lib/dbus/machine-id"] {
        // the second one is usually a link to the first
        let found = match fs::symlink_metadata(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            found => found?,
        };
        if found.is_file() {
            replace(Path::new(file), format!("{id}\n").as_bytes(), MODE)?;
        }
    }
    Ok(())
}

/// Returns the identity as shell assignments, for programs that can source a file.
fn describe(identity: &Identity) -> String {
    let me = &identity.me;
    let mut text = format!(
        "id={}\nmachine={}\nparent={}\nticket={}\nhostname={}\n",
        me.id, me.machine, me.parent, me.ticket, identity.hostname
    );
    for (key, value) in [
        ("mac", &identity.mac),
        ("address", &identity.address),
        ("gateway", &identity.gateway),
    ] {
        if let Some(value) = value {
            text += &format!("{key}={value}\n");
        }
    }
    text
}

/// Sets the network card's address and, if there is one, its IPv4 address and gateway.
fn card(identity: &Identity) -> Result<(), String> {
    let Some(mac_text) = &identity.mac else {
        return Ok(());
    };
    let mac = parse_mac(mac_text).ok_or_else(|| format!("{mac_text:?} is no network address"))?;
    let was = identity.mac_was.as_deref().and_then(parse_mac);
    let cards = cards();
    let find = |wanted: Option<[u8; 6]>| cards.iter().find(|(_, has)| Some(*has) == wanted);
    let found = find(Some(mac)).or_else(|| find(was)).or(match cards.len() {
        1 => cards.first(),
        _ => None,
    });
    let Some((name, has)) = found else {
        // a guest without a driver for its card has no network either
        return match cards.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "no network card has the parent's address {:?}",
                identity.mac_was
            )),
        };
    };
    let said = |what: String| move |error: io::Error| format!("{what}: {error}");
    let socket = sys::any_socket().map_err(said(format!("card {name}")))?;
    let socket = socket.as_fd();
    if *has != mac {
        sys::set_mac(socket, name, mac).map_err(said(format!(
            "card {name} does not take the address {mac_text}"
        )))?;
        renew_link_local(name);
    }
    if let Some(text) = &identity.address {
        let (address, bits) =
            parse_network(text).ok_or_else(|| format!("{text:?} is no address/bits"))?;
        sys::set_address(socket, name, address, bits)
            .and_then(|()| sys::set_up(socket, name))
            .map_err(said(format!(
                "card {name} does not take the address {text}"
            )))?;
    }
    if let Some(text) = &identity.gateway {
        let gateway: Ipv4Addr = text
            .parse()
            .map_err(|_| format!("{text:?} is no address"))?;
        sys::set_gateway(socket, name, gateway)
            .map_err(said(format!("the route to {text} can't be set")))?;
    }
    Ok(())
}

/// Renews the card's IPv6 addresses, which are derived from its MAC address.
fn renew_link_local(card: &str) {
    let switch = format!("/proc/sys/net/ipv6/conf/{card}/disable_ipv6");
    if fs::read_to_string(&switch).is_ok_and(|value| value.trim() == "0") {
        // a guest without IPv6 has no such file
        let _ = fs::write(&switch, "1");
        let _ = fs::write(&switch, "0");
    }
}

/// Returns the machine's network cards with their addresses: interfaces with a device and an address of six bytes.
fn cards() -> Vec<(String, [u8; 6])> {
    let all = fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten();
    let mut cards: Vec<(String, [u8; 6])> = all
        .filter(|card| fs::metadata(card.path().join("device")).is_ok())
        .filter_map(|card| {
            let mac = fs::read_to_string(card.path().join("address")).ok()?;
            Some((card.file_name().into_string().ok()?, parse_mac(mac.trim())?))
        })
        .collect();
    cards.sort();
    cards
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts
            .next()
            .filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

fn parse_network(text: &str) -> Option<(Ipv4Addr, u8)> {
    let (address, bits) = text.split_once('/')?;
    let bits = bits.parse().ok().filter(|bits| (1..=32).contains(bits))?;
    Some((address.parse().ok()?, bits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Me;

    #[test]
    fn addresses_are_understood_or_refused() {
        assert_eq!(
            parse_mac("52:54:00:12:ab:FF"),
            Some([0x52, 0x54, 0, 0x12, 0xab, 0xff])
        );
        for bad in [
            "",
            "52:54:00:12:ab",
            "52:54:00:12:ab:ff:00",
            "5:54:00:12:ab:ff",
            "52:54:00:12:ab:+f",
        ] {
            assert!(parse_mac(bad).is_none(), "{bad}");
        }
        assert_eq!(
            parse_network("10.64.0.7/16"),
            Some((Ipv4Addr::new(10, 64, 0, 7), 16))
        );
        assert!(parse_network("10.64.0.7").is_none() && parse_network("10.64.0.7/33").is_none());
    }

    #[test]
    fn a_script_can_source_who_it_is() {
        let identity = Identity {
            me: Me {
                id: 3,
                machine: "web.3".into(),
                parent: "web".into(),
                ticket: "00ff".into(),
            },
            hostname: "web-3".into(),
            mac: Some("52:54:00:00:00:01".into()),
            ..Default::default()
        };
        let text = describe(&identity);
        assert!(text.starts_with("id=3\nmachine=web.3\nparent=web\nticket=00ff\nhostname=web-3\n"));
        assert!(text.ends_with("mac=52:54:00:00:00:01\n"));
    }

    #[test]
    fn names_that_are_none_change_nothing() {
        for bad in ["", "a b", "a/b", &"x".repeat(65)] {
            assert!(hostname(bad).is_err(), "{bad}");
        }
        assert!(machine_id("x").is_err());
    }
}
