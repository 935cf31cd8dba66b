//! Reads what debugfs says of a name in a stranger's file system.

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// Permissions.
    pub mode: u32,
    /// Length in bytes.
    pub bytes: u64,
}

/// Kinds of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A link, and what it names if that is short.
    Link(Option<Vec<u8>>),
    /// A device, a socket, a pipe.
    Other,
}

/// Reads what debugfs's `stat` has said of a name; `None` if it is not there, or what was said makes no sense. What comes first
/// are numbers; a stranger's bytes come last.
pub fn entry(said: &[u8]) -> Option<Entry> {
    const TARGET: &[u8] = b"Fast link dest: \"";
    let mut lines = said.split(|byte| *byte == b'\n');
    let first = lines.find_map(|line| line.strip_prefix(b"Inode: "))?;
    let first = std::str::from_utf8(first).ok()?;
    let after = |text: &str, word: &str| {
        let rest = text.split_once(word)?.1;
        rest.split_whitespace().next().map(str::to_owned)
    };
    let mode = u32::from_str_radix(&after(first, "Mode:")?, 8).ok()?;
    let owner = lines.find(|line| line.starts_with(b"User:"))?;
    let bytes: u64 = after(std::str::from_utf8(owner).ok()?, "Size:")?
        .parse()
        .ok()?;
    let kind = match &*after(first, "Type:")? {
        "regular" => Kind::File,
        "directory" => Kind::Directory,
        "symlink" => {
            let at = said
                .windows(TARGET.len())
                .position(|window| window == TARGET);
            let target = at.and_then(|at| {
                let from = at + TARGET.len();
                said.get(from..from.checked_add(usize::try_from(bytes).ok()?)?)
            });
            Kind::Link(target.map(<[u8]>::to_vec))
        }
        _ => Kind::Other,
    };
    Some(Entry {
        kind,
        mode: mode & 0o7777,
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: &str = "debugfs 1.47.0 (5-Feb-2023)\nInode: 13   Type: symlink    Mode:  0777   Flags: 0x0\n\
        Generation: 0    Version: 0x00000000:00000000\nUser:     0   Group:     0   Project:     0   Size: 22\n\
        File ACL: 0\nInode checksum: 0x1635f925\nFast link dest: \"../lib/systemd/systemd\"\n";

    #[test]
    fn the_kind_the_mode_and_the_target_are_read() {
        let found = entry(LINK.as_bytes()).unwrap();
        assert_eq!(
            found.kind,
            Kind::Link(Some(b"../lib/systemd/systemd".to_vec()))
        );
        assert_eq!((found.mode, found.bytes), (0o777, 22));
        let file = LINK.replace("symlink ", "regular ").replace("0777", "0755");
        let found = entry(file.as_bytes()).unwrap();
        assert_eq!((found.kind, found.mode), (Kind::File, 0o755));
        assert_eq!(
            entry(b"debugfs 1.47.0\n/etc/.: File not found by ext2_lookup \n"),
            None
        );
    }

    #[test]
    fn what_a_link_names_can_not_speak_for_debugfs() {
        let target = "x\"\nInode: 1   Type: regular    Mode:  0755   F\nUser: 0 Size: 3\n";
        let said = LINK.replace("../lib/systemd/systemd", target);
        let said = said.replace("Size: 22", &format!("Size: {}", target.len()));
        let found = entry(said.as_bytes()).unwrap();
        assert_eq!(found.kind, Kind::Link(Some(target.into())));
        // a length that is not that of what follows
        let longer = LINK.replace("Size: 22", "Size: 18446744073709551615");
        assert_eq!(entry(longer.as_bytes()).unwrap().kind, Kind::Link(None));
        for len in 0..LINK.len() {
            entry(&LINK.as_bytes()[..len]);
        }
    }
}
