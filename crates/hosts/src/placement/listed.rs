//! The operator's file of hosts. No I/O.
//!
//! ```text
//! # NAME   ADDRESS
//! alpha    here
//! beta     https://10.0.0.2:7071
//! ```

use floe_api::HERE;

/// Longest name in bytes: that of a host in DNS.
const NAME_BYTES_MAX: usize = 255;

/// A host that is known by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its name for plug-ins: that of a Slurm node, for example.
    pub name: String,
    /// Its address in the cluster (https) or of its page (http), without a trailing slash; [`HERE`] for this node.
    pub address: String,
}

/// Returns the hosts that a file lists, or what is wrong with the file.
pub fn decode(bytes: &[u8]) -> Result<Vec<Known>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
    let mut hosts: Vec<Known> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let bad = |why: &str| Err(format!("line {}: {why}", number + 1));
        let (name, address) = match (words.next(), words.next(), words.next()) {
            (None, _, _) => continue,
            (Some(name), Some(address), None) => (name, address.trim_end_matches('/')),
            _ => return bad("not a name and an address"),
        };
        let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if name.len() > NAME_BYTES_MAX || name == HERE || !name.bytes().all(good) {
            return bad(&format!("{name:?} is no host's name"));
        }
        let is_url = ["https://", "http://"]
            .iter()
            .any(|scheme| address.starts_with(scheme));
        if address != HERE && !is_url {
            return bad(&format!("{address:?} is no address"));
        }
        if hosts.iter().any(|host| host.name == name) {
            return bad(&format!("{name} is there twice"));
        }
        hosts.push(Known {
            name: name.into(),
            address: address.into(),
        });
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hosts_are_names_with_addresses() {
        let text = "# ours\nalpha here\n\n beta\thttps://10.0.0.2:7071/ # the second\ngamma http://10.0.0.3:7070";
        let host = |name: &str, address: &str| Known {
            name: name.into(),
            address: address.into(),
        };
        assert_eq!(
            decode(text.as_bytes()).unwrap(),
            [
                host("alpha", "here"),
                host("beta", "https://10.0.0.2:7071"),
                host("gamma", "http://10.0.0.3:7070")
            ]
        );
        for (bad, why) in [
            ("alpha", "line 1"),
            ("\nalpha here there", "line 2"),
            ("al/pha here", "no host's name"),
            ("here here", "no host's name"),
            ("alpha ftp://x", "no address"),
            ("a here\na http://x:1", "twice"),
        ] {
            let error = decode(bad.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert!(decode(b"alpha \xff").unwrap_err().contains("no text"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_list_or_an_error(text in "[a-c#: \\n./th]{0,80}") {
            let _ = decode(text.as_bytes());
        }
    }
}
