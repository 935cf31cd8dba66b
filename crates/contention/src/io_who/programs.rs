//! What runs in the guest of a day: programs of a Debian's disk, below the small guest's kernel interface and shell. Each has libraries and files of its
//! own and shares others; daemons read what people read as well, and all of them use the same small programs to find their files.

use super::{BLANK_BYTES, DAEMONS, PROGRAMS};
use floe_testbed::guest::Guest;
use floe_testbed::slow_disk::output_of;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files that each program has, at least: which it reads is a number from 1 to this.
pub const FILES: u64 = 80;
/// What each program and daemon reads, as a shell's patterns, and what it does with these files' names.
const READS: [(&str, &str); PROGRAMS.len() + DAEMONS.len()] = [
    (
        "/usr/lib/python3*/*.py",
        "xargs python3 -c \"import logging, subprocess, sys; [open(name).buffer.read() for name in sys.argv[1:]]\"",
    ),
    (
        "/usr/lib/x86_64-linux-gnu/perl-base/*.pm /usr/lib/x86_64-linux-gnu/perl-base/*/*.pm",
        "xargs perl -MPOSIX -ne 1",
    ),
    (
        "/usr/share/ca-certificates/mozilla/*",
        "xargs openssl dgst -sha256",
    ),
    (
        "/var/lib/dpkg/info/*.list",
        "sed s,^,file://, | xargs curl -s",
    ),
    ("/var/lib/dpkg/info/*.md5sums", "xargs awk 1"),
    (
        "/usr/lib/x86_64-linux-gnu/perl-base/*/*.pm /usr/share/ca-certificates/mozilla/*",
        "xargs grep -c root",
    ),
    ("/var/lib/dpkg/info/*", "xargs cksum"),
    ("/usr/lib/python3*/*.py", "xargs sed -n p"),
];
/// The kernel's trace that tells the truth, an instance of its own.
pub const TRUTH: &str = "/sys/kernel/tracing/instances/truth";

/// The guest's first program: the small guest's, after the drivers that a Debian's disk needs.
const INIT: &str = "#!/bin/sh
/bin/busybox --install -s /bin
export PATH=/bin
# what another one needs is not always loaded before it
for turn in 1 2 3; do
  for module in /modules/*.ko*; do insmod \"$module\"; done
done 2>/dev/null
exec /tiny-init
";
/// Makes the disk's programs ready. The file system's second superblock is used: a disk without the first is one without a file system to anybody else.
const PREPARE: &str = "#!/bin/sh
set -e
mkdir -p /mnt
mount -t ext4 -o ro,noload,sb=131072 /dev/vda /mnt
mount -t devtmpfs dev /mnt/dev
chroot /mnt sh -c 'for name in python3 perl openssl curl awk grep cksum sed xargs; do command -v $name || exit 1; done'
[ -d /sys/kernel/tracing/instances ] || mount -t tracefs tracefs /sys/kernel/tracing
mkdir TRUTH
echo 16384 > TRUTH/buffer_size_kb
echo 1 > TRUTH/events/block/block_bio_queue/enable
echo 1 > TRUTH/events/sched/sched_process_fork/enable
";
/// `as ROLE NAME COMMAND...`: runs a program of the disk, of which the guest has nothing in memory, and says in the trace for whom it runs.
const AS: &str = "#!/bin/sh
echo \"floe $1 $2 $$\" > TRUTH/trace_marker
shift 2
echo 3 > /proc/sys/vm/drop_caches
chroot /mnt \"$@\" > /dev/null 2>&1
exit 0
";

/// Returns the name of a program or daemon; daemons come after programs.
pub fn name_of(who: usize) -> &'static str {
    let program = PROGRAMS.get(who).copied();
    program.unwrap_or_else(|| DAEMONS[who - PROGRAMS.len()].0)
}

/// Returns the number of a program or daemon of this name.
pub fn number_of(name: &str) -> Option<usize> {
    (0..READS.len()).find(|who| name_of(*who) == name)
}

/// Returns the shell's line with which a program reads so many files from this one on, which may be a variable of the shell. `role` is `user` if a
/// person waits for it.
pub fn line(role: &str, who: usize, first: &str, count: u64) -> String {
    let (files, command) = READS[who];
    let name = name_of(who);
    format!(
        "as {role} {name} sh -c 'ls -d {files} | tail -n +$0 | head -n {count} | {command}' {first}"
    )
}

/// Returns the shell's line that starts a daemon.
pub fn daemon(number: usize) -> String {
    let (_, ms, count) = DAEMONS[number];
    let reads = line("daemon", PROGRAMS.len() + number, "$n", count);
    let seconds = ms / 1000;
    format!(
        "(n=1; while :; do {reads}; n=$(((n + {count}) % {FILES} + 1)); sleep {seconds}; done) &"
    )
}

/// Makes an initial RAM disk of the small guest's, with the drivers of the Debian's and what a day needs.
pub fn make_initrd(tiny: &Guest, debian: &Guest, scratch: &Path) -> anyhow::Result<PathBuf> {
    let (both, root) = (scratch.join("both"), scratch.join("who"));
    std::fs::create_dir_all(&both)?;
    std::fs::create_dir_all(root.join("bin"))?;
    // the kernel unpacks one after the other, and a later file replaces an earlier one
    let mut archives = std::fs::read(tiny.initrd())?;
    archives.resize(archives.len().next_multiple_of(4), 0);
    archives.extend(std::fs::read(debian.initrd())?);
    std::fs::write(both.join("initrd"), archives)?;
    for (path, text) in [
        ("init", INIT),
        ("tiny-init", include_str!("../../../lab/guests/tiny-init")),
        ("bin/prepare", PREPARE),
        ("bin/as", AS),
    ] {
        let path = root.join(path);
        std::fs::write(&path, text.replace("TRUTH", TRUTH))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    }
    Guest::at(&both)?.add_to_initrd(&root, &scratch.join("who.initrd"))
}

/// Copies a disk, but for what tells that there is a file system.
pub fn without_file_system(disk: &Path, blank: &Path) -> anyhow::Result<()> {
    use std::io::Write as _;
    output_of(
        Command::new("cp")
            .arg("--sparse=always")
            .args([disk, blank]),
    )?;
    let mut file = std::fs::File::options().write(true).open(blank)?;
    file.write_all(&[0; BLANK_BYTES])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_and_daemon_is_another_one_and_daemons_read_what_people_read() {
        for who in 0..READS.len() {
            assert_eq!(number_of(name_of(who)), Some(who));
            // a name is one word of the trace, and a line one of the shell's
            let line = line("user", who, "7", 12);
            assert!(!name_of(who).contains(' ') && !line.contains('\n'));
            assert!(
                line.len() < 1000 && line.matches('\'').count() == 2,
                "{line}"
            );
        }
        assert_eq!(number_of("sh"), None);
        let (people, daemons) = READS.split_at(PROGRAMS.len());
        let is_shared = |files: &str| daemons.iter().any(|(theirs, _)| theirs.contains(files));
        assert!(people.iter().filter(|(files, _)| is_shared(files)).count() >= 2);
    }

    #[test]
    fn a_daemon_goes_on_with_the_next_files_and_names_itself_each_time() {
        let line = daemon(0);
        assert!(
            line.starts_with("(n=1; while :; do as daemon indexd sh -c '"),
            "{line}"
        );
        assert!(
            line.ends_with("' $n; n=$(((n + 1) % 80 + 1)); sleep 3; done) &"),
            "{line}"
        );
    }
}
