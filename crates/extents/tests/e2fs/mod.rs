//! File systems that e2fsprogs makes, and what it says of them.

#![allow(dead_code, reason = "each test uses a part")]

use floe_extents::{Kind, Limits, Map};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use tempfile::TempDir;

/// Kinds of file systems: name, size in MiB, options of `mke2fs`.
pub const KINDS: &[(&str, u64, &str)] = &[
    ("ext2_1k", 24, "-t ext2 -b 1024"),
    ("ext2_4k", 24, "-t ext2 -b 4096 -I 128"),
    ("ext2_first", 24, "-t ext2 -r 0 -b 1024"),
    ("ext3_1k", 40, "-t ext3 -b 1024"),
    ("ext3_4k", 40, "-t ext3 -b 4096"),
    ("ext4_1k", 40, "-t ext4 -b 1024"),
    ("ext4_4k", 40, "-t ext4 -b 4096"),
    ("ext4_64k", 160, "-t ext4 -b 65536 -N 4096"),
    (
        "ext4_32bit",
        40,
        "-t ext4 -b 1024 -O ^64bit,^flex_bg,^metadata_csum,uninit_bg",
    ),
    (
        "ext4_spread",
        40,
        "-t ext4 -b 1024 -O 64bit,meta_bg,^resize_inode -g 512",
    ),
    (
        "ext4_two",
        40,
        "-t ext4 -b 1024 -O sparse_super2,^resize_inode -g 2048",
    ),
    ("ext4_inline", 40, "-t ext4 -b 4096 -O inline_data -I 256"),
    ("ext4_clusters", 40, "-t ext4 -b 1024 -O bigalloc -C 8192"),
    (
        "ext4_guarded",
        40,
        "-t ext4 -b 4096 -O mmp,quota,ea_inode,casefold,encrypt",
    ),
    (
        "ext4_plain",
        40,
        "-t ext4 -b 2048 -O ^has_journal,^64bit,^extent",
    ),
];

/// A file system in a file.
pub struct Image {
    dir: TempDir,
    bytes: u64,
}

impl Image {
    /// Makes one with the usual files in it.
    pub fn new(mib: u64, options: &str) -> Image {
        let dir = tempfile::tempdir().unwrap();
        let files = dir.path().join("files");
        fill(&files);
        let image = Image {
            dir,
            bytes: mib << 20,
        };
        fs::File::create(image.path())
            .unwrap()
            .set_len(image.bytes)
            .unwrap();
        let mut make = Command::new("mke2fs");
        make.arg("-qF")
            .args(options.split(' '))
            .arg("-d")
            .arg(&files);
        run(make.arg(image.path()));
        // attributes that do not fit into an inode
        fs::write(image.dir.path().join("value"), [b'v'; 600]).unwrap();
        let value = image.dir.path().join("value");
        let set = |file: &str| format!("ea_set {file} user.long -f {}", value.display());
        image.change(&[set("/usr/share/doc/twice"), set("/top")]);
        image
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    /// A file of the host that has so many bytes.
    pub fn source(&self, bytes: usize) -> PathBuf {
        let path = self.dir.path().join(format!("source{bytes}"));
        fs::write(&path, vec![b'n'; bytes]).unwrap();
        path
    }

    /// A file of the host with many holes.
    pub fn fragments(&self) -> PathBuf {
        let path = self.dir.path().join("many-holes");
        holes(&path, 8 << 10, 130);
        path
    }

    pub fn read(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }

    pub fn map(&self) -> Map {
        Map::read(&*self.read(), Limits::default()).unwrap()
    }

    /// Has `debugfs` change it.
    pub fn change(&self, commands: &[String]) {
        self.debugfs(&["-w"], commands);
    }

    fn debugfs(&self, options: &[&str], commands: &[String]) -> String {
        let list = self.dir.path().join("commands");
        fs::write(&list, commands.join("\n") + "\n").unwrap();
        let mut debugfs = Command::new("debugfs");
        debugfs.args(options).arg("-f").arg(&list).arg(self.path());
        run(&mut debugfs)
    }

    /// Whether two inodes claim one block, so that nobody can say whose it is: now and then `debugfs` gives one away twice.
    pub fn contradicts_itself(&self) -> bool {
        let mut e2fsck = Command::new("e2fsck");
        let said = e2fsck.arg("-fn").arg(self.path()).output().unwrap();
        String::from_utf8_lossy(&said.stdout).contains("ultiply-claimed block")
    }

    /// Block size, how many blocks have a bit in the bitmaps, and which blocks are in use by them.
    pub fn used(&self) -> (u64, u64, Vec<bool>) {
        let text = run(Command::new("dumpe2fs").arg(self.path()));
        let find = |name: &str| -> Option<u64> {
            let line = text.lines().find(|line| line.starts_with(name))?;
            line[name.len()..].trim().parse().ok()
        };
        let field = |name: &str| find(name).unwrap();
        let (size, blocks) = (field("Block size:"), field("Block count:"));
        let each = find("Cluster size:").unwrap_or(size) / size;
        let mut used = vec![true; blocks as usize];
        used[..field("First block:") as usize].fill(false);
        for line in text
            .lines()
            .filter_map(|line| line.strip_prefix("  Free blocks: "))
        {
            for range in line.split(", ").filter(|range| !range.is_empty()) {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let last: u64 = last.parse().unwrap();
                let end = (last + each).min(blocks) as usize;
                used[first.parse().unwrap()..end].fill(false);
            }
        }
        (size, each, used)
    }

    /// The inode of each block that belongs to one.
    pub fn inodes(&self, blocks: usize) -> BTreeMap<u64, u32> {
        let numbers: Vec<String> = (1..blocks).map(|block| block.to_string()).collect();
        let commands: Vec<String> = numbers
            .chunks(500)
            .map(|some| format!("icheck {}", some.join(" ")))
            .collect();
        let text = self.debugfs(&[], &commands);
        let rows = text.lines().filter_map(|line| line.split_once('\t'));
        rows.filter_map(|(block, inode)| Some((block.parse().ok()?, inode.parse().ok()?)))
            .collect()
    }

    /// The paths of each inode.
    pub fn paths(&self, inodes: impl Iterator<Item = u32>) -> BTreeMap<u32, BTreeSet<String>> {
        let inodes: Vec<String> = inodes.map(|inode| inode.to_string()).collect();
        let commands: Vec<String> = inodes
            .chunks(500)
            .map(|some| format!("ncheck {}", some.join(" ")))
            .collect();
        let mut paths: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
        for line in self.debugfs(&[], &commands).lines() {
            if let Some((inode, path)) = line.split_once('\t')
                && let Ok(inode) = inode.parse()
            {
                paths
                    .entry(inode)
                    .or_default()
                    .insert(path.replace("//", "/"));
            }
        }
        paths
    }

    /// Compares a map with what `debugfs` and `dumpe2fs` say of every block and every name.
    pub fn check(&self, map: &Map) {
        let (size, each, used) = self.used();
        let is_free = |block: u64| map.at(block * size).is_none();
        let inodes = self.inodes(used.len());
        for (block, used) in (0u64..).zip(&used) {
            let found = map.at(block * size);
            let inode = inodes.get(&block).copied();
            match found {
                None if each > 1 => {
                    let first = block / each * each;
                    let all = (first..first + each).all(is_free);
                    assert_eq!((!used || !all, inode), (true, None), "block {block}");
                }
                None => assert!(!used, "block {block} is in use: {inode:?}"),
                Some(Kind::Meta) => assert!(*used, "block {block} is free"),
                Some(Kind::Journal) => assert_eq!(inode, Some(8), "block {block}"),
                Some(Kind::File(id) | Kind::Directory(id)) => {
                    assert_eq!(inode, Some(id.inode), "block {block}");
                }
            }
            // what is in the file system's own inodes counts as its own
            let own = inode.is_some_and(|inode| inode > 2 && inode < 11);
            assert!(
                !own || matches!(found, Some(Kind::Meta | Kind::Journal)),
                "{block}"
            );
        }
        let files: Vec<_> = map.files().collect();
        let paths = self.paths(files.iter().map(|file| file.inode));
        for file in files {
            let path = map.path(file);
            match paths.get(&file.inode) {
                Some(known) => assert!(known.contains(&path), "{path}: {known:?}"),
                None => assert_eq!(path, format!("inode {}", file.inode)),
            }
        }
    }
}

/// Runs a program of e2fsprogs, and returns what it prints.
pub fn run(command: &mut Command) -> String {
    let out = command.stdin(Stdio::null()).output();
    let out = out.unwrap_or_else(|error| panic!("e2fsprogs is needed: {command:?}: {error}"));
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {error}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Files of each sort.
fn fill(root: &Path) {
    let deep = (0..24).fold(root.to_owned(), |path, level| {
        path.join(format!("level{level}"))
    });
    let doc = root.join("usr/share/doc");
    let many = root.join("many");
    for dir in [&deep, &doc, &many, &root.join("empty")] {
        fs::create_dir_all(dir).unwrap();
    }
    fs::write(deep.join("deepest"), [1; 5000]).unwrap();
    fs::write(root.join("top"), "in the root").unwrap();
    fs::write(root.join("nothing"), "").unwrap();
    fs::write(doc.join("long"), vec![2; 3_000_000]).unwrap();
    fs::hard_link(doc.join("long"), root.join("linked")).unwrap();
    fs::write(doc.join("twice"), vec![3; 70_000]).unwrap();
    for number in 0..700 {
        let name = format!("a-file-with-a-rather-long-name-{number:04}");
        fs::write(many.join(name), vec![4; number * 3]).unwrap();
    }
    std::os::unix::fs::symlink("top", root.join("short-link")).unwrap();
    std::os::unix::fs::symlink("x/".repeat(60), root.join("long-link")).unwrap();
    holes(&root.join("holes"), 64 << 10, 40);
    holes(&root.join("fragments"), 8 << 10, 900);
}

/// A file that has 4 KiB, then a hole, and so on.
fn holes(path: &Path, step: u64, count: u64) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::create(path).unwrap();
    for number in 0..count {
        file.write_all_at(&[5; 4096], number * step).unwrap();
    }
}
