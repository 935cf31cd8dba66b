//! The files that are imported: one disk in all formats and their odd variants, and files that must be refused by name. They are made by
//! the programs that make such files; what only other programs make (VHDs of VirtualBox, a VHDX with large sectors) is made by changing the
//! same bytes.
use anyhow::{Context as _, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Sectors of the disk: no whole number of cylinders, so that a geometry rounds it down by 31 sectors.
const SECTORS: u64 = 39_063;
const SECTORS_LARGE: u64 = 4_096;

/// What must become of a file.
pub enum Expect {
    /// Its disks are these, in this order; each `disk.raw`, `second.raw` or `large.raw`.
    Equal(Vec<&'static str>),
    /// It is refused, and the message has this word.
    Refused(&'static str),
}

/// A file to import.
pub struct Case {
    /// Its name in the directory.
    pub name: String,
    /// What must become of it.
    pub expect: Expect,
}

/// Made by `qemu-img convert` of a disk: name, options, and the disk.
const CONVERTED: &[(&str, &[&str], &str)] = &[
    ("qcow", &["-O", "qcow"], "disk.raw"),
    ("qcow2", &["-O", "qcow2"], "disk.raw"),
    (
        "qcow2-0.10",
        &["-O", "qcow2", "-o", "compat=0.10"],
        "disk.raw",
    ),
    ("qcow2-packed", &["-O", "qcow2", "-c"], "disk.raw"),
    (
        "qcow2-zstd",
        &["-O", "qcow2", "-c", "-o", "compression_type=zstd"],
        "disk.raw",
    ),
    (
        "qcow2-512",
        &["-O", "qcow2", "-o", "cluster_size=512"],
        "disk.raw",
    ),
    (
        "qcow2-2m",
        &["-O", "qcow2", "-o", "cluster_size=2M"],
        "disk.raw",
    ),
    (
        "qcow2-parts",
        &["-O", "qcow2", "-o", "extended_l2=on"],
        "disk.raw",
    ),
    (
        "qcow2-lazy",
        &["-O", "qcow2", "-o", "lazy_refcounts=on"],
        "disk.raw",
    ),
    (
        "qcow2-count1",
        &["-O", "qcow2", "-o", "refcount_bits=1"],
        "disk.raw",
    ),
    (
        "qcow2-count64",
        &["-O", "qcow2", "-o", "refcount_bits=64"],
        "disk.raw",
    ),
    (
        "qcow2-metadata",
        &["-O", "qcow2", "-o", "preallocation=metadata"],
        "disk.raw",
    ),
    (
        "qcow2-full",
        &["-O", "qcow2", "-o", "preallocation=full"],
        "disk.raw",
    ),
    ("qcow2-large", &["-O", "qcow2"], "large.raw"),
    ("vmdk", &["-O", "vmdk"], "disk.raw"),
    (
        "vmdk-stream",
        &["-O", "vmdk", "-o", "subformat=streamOptimized"],
        "disk.raw",
    ),
    (
        "vmdk-zeroed",
        &["-O", "vmdk", "-o", "zeroed_grain=on"],
        "disk.raw",
    ),
    (
        "vmdk-scsi",
        &["-O", "vmdk", "-o", "adapter_type=lsilogic,hwversion=14"],
        "disk.raw",
    ),
    (
        "flat.vmdk",
        &["-O", "vmdk", "-o", "subformat=monolithicFlat"],
        "disk.raw",
    ),
    (
        "split.vmdk",
        &["-O", "vmdk", "-o", "subformat=twoGbMaxExtentSparse"],
        "disk.raw",
    ),
    (
        "splitflat.vmdk",
        &["-O", "vmdk", "-o", "subformat=twoGbMaxExtentFlat"],
        "disk.raw",
    ),
    ("vdi", &["-O", "vdi"], "disk.raw"),
    ("vdi-static", &["-O", "vdi", "-o", "static=on"], "disk.raw"),
    ("vhdx", &["-O", "vhdx"], "disk.raw"),
    (
        "vhdx-1m",
        &["-O", "vhdx", "-o", "block_size=1M"],
        "disk.raw",
    ),
    (
        "vhdx-256m",
        &["-O", "vhdx", "-o", "block_size=256M"],
        "disk.raw",
    ),
    (
        "vhdx-fixed",
        &["-O", "vhdx", "-o", "subformat=fixed"],
        "disk.raw",
    ),
    ("vhdx-log", &["-O", "vhdx", "-o", "log_size=8M"], "disk.raw"),
    ("vhdx-large", &["-O", "vhdx"], "large.raw"),
    ("vhd", &["-O", "vpc", "-o", "force_size=on"], "disk.raw"),
    (
        "vhd-fixed",
        &["-O", "vpc", "-o", "subformat=fixed,force_size=on"],
        "disk.raw",
    ),
];

/// Who writes VHDs, as its footer names them: Virtual PC, VirtualBox, Hyper-V, Azure, Xen, Disk2vhd, QEMU by its old name, and nobody
/// known.
const CREATORS: [&[u8; 4]; 8] = [
    b"vpc ", b"vbox", b"win ", b"wa\0\0", b"tap\0", b"d2v ", b"qemu", b"what",
];

/// Made by a program from what was made before: name, command (its output is the file), and the disks in it.
const PACKED: &[(&str, &[&str], &[&str])] = &[
    ("disk.gz", &["gzip", "-1c", "disk.raw"], &["disk.raw"]),
    ("disk.xz", &["xz", "-0c", "disk.raw"], &["disk.raw"]),
    ("disk.zst", &["zstd", "-1qc", "disk.raw"], &["disk.raw"]),
    ("large.zst", &["zstd", "-1qc", "large.raw"], &["large.raw"]),
    ("qcow2.gz", &["gzip", "-1c", "qcow2"], &["disk.raw"]),
    ("vhd.xz", &["xz", "-0c", "vhd-vbox"], &["disk.raw"]),
    ("disk.tar", &["tar", "-c", "disk.raw"], &["disk.raw"]),
    (
        "disk.v7.tar",
        &["tar", "--format=v7", "-c", "disk.raw"],
        &["disk.raw"],
    ),
    (
        "disk.pax.tar",
        &["tar", "--format=posix", "-c", "disk.raw"],
        &["disk.raw"],
    ),
    (
        "disk.sparse.tar",
        &["tar", "--format=gnu", "-Sc", "holes.raw"],
        &["disk.raw"],
    ),
    ("disk.tar.gz", &["tar", "-cz", "disk.raw"], &["disk.raw"]),
    ("disk.tar.xz", &["tar", "-cJ", "disk.raw"], &["disk.raw"]),
    (
        "split.tar",
        &["tar", "-c", "split.vmdk", "split-s001.vmdk"],
        &["disk.raw"],
    ),
    (
        "split.tar.gz",
        &["tar", "-cz", "./split-s001.vmdk", "./split.vmdk"],
        &["disk.raw"],
    ),
    (
        "flat.tar",
        &["tar", "-c", "flat-flat.vmdk", "flat.vmdk"],
        &["disk.raw"],
    ),
    (
        "one.ova",
        &["tar", "-c", "one.ovf", "vmdk-stream.vmdk"],
        &["disk.raw"],
    ),
    (
        "two.ova",
        &["tar", "-c", "two.ovf", "vmdk-stream.vmdk", "second.raw"],
        &["second.raw", "disk.raw"],
    ),
    (
        "two.ova.gz",
        &["tar", "-cz", "two.ovf", "second.raw", "vmdk-stream.vmdk"],
        &["second.raw", "disk.raw"],
    ),
];

/// Made by a program, and refused with this word.
const REFUSED: &[(&str, &[&str], &str)] = &[
    ("disk.bz2", &["bzip2", "-1c", "second.raw"], "bzip2"),
    (
        "disk.lzma",
        &["xz", "-0c", "--format=lzma", "second.raw"],
        "lzma",
    ),
    (
        "pax-sparse.tar",
        &["tar", "--format=posix", "-Sc", "holes.raw"],
        "without its holes",
    ),
    (
        "names.tar",
        &["tar", "-c", "disk.raw", "second.raw"],
        "2 disks",
    ),
    ("lacks.tar", &["tar", "-c", "split.vmdk"], "split-s001.vmdk"),
    (
        "lacks.ova",
        &["tar", "-c", "two.ovf", "second.raw"],
        "vmdk-stream.vmdk",
    ),
    (
        "salted",
        &[
            "openssl",
            "enc",
            "-aes-256-cbc",
            "-pbkdf2",
            "-pass",
            "pass:x",
            "-in",
            "second.raw",
        ],
        "openssl",
    ),
];

/// Made by `qemu-img`, and refused with this word.
const REFUSED_OF_QEMU: &[(&str, &[&str], &str)] = &[
    (
        "aes.qcow2",
        &[
            "create",
            "--object",
            "secret,id=s,data=x",
            "-f",
            "qcow2",
            "-o",
            "encrypt.format=aes,encrypt.key-secret=s",
            "aes.qcow2",
            "1M",
        ],
        "encrypted",
    ),
    (
        "luks.qcow2",
        &[
            "create",
            "--object",
            "secret,id=s,data=x",
            "-f",
            "qcow2",
            "-o",
            "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10",
            "luks.qcow2",
            "1M",
        ],
        "encrypted",
    ),
    (
        "luks",
        &[
            "create",
            "--object",
            "secret,id=s,data=x",
            "-f",
            "luks",
            "-o",
            "key-secret=s,iter-time=10",
            "luks",
            "1M",
        ],
        "encrypted",
    ),
    (
        "qed",
        &["convert", "-f", "raw", "-O", "qed", "disk.raw", "qed"],
        "QED",
    ),
    (
        "parallels",
        &[
            "convert",
            "-f",
            "raw",
            "-O",
            "parallels",
            "second.raw",
            "parallels",
        ],
        "Parallels",
    ),
    (
        "backed.qcow2",
        &[
            "create",
            "-f",
            "qcow2",
            "-b",
            "disk.raw",
            "-F",
            "raw",
            "backed.qcow2",
        ],
        "backing file",
    ),
    (
        "backed.vmdk",
        &[
            "create",
            "-f",
            "vmdk",
            "-b",
            "vmdk",
            "-F",
            "vmdk",
            "backed.vmdk",
        ],
        "parent",
    ),
    (
        "data.qcow2",
        &[
            "create",
            "-f",
            "qcow2",
            "-o",
            "data_file=data.bin",
            "data.qcow2",
            "1M",
        ],
        "data file",
    ),
    (
        "cut.qcow2",
        &[
            "convert",
            "-f",
            "raw",
            "-O",
            "qcow2",
            "short.bin",
            "cut.qcow2",
        ],
        "cut off",
    ),
    (
        "cut.vhd",
        &[
            "convert",
            "-f",
            "raw",
            "-O",
            "vpc",
            "-o",
            "force_size=on",
            "short.bin",
            "cut.vhd",
        ],
        "cut off",
    ),
    (
        "cut.vmdk",
        &[
            "convert",
            "-f",
            "raw",
            "-O",
            "vmdk",
            "short.bin",
            "cut.vmdk",
        ],
        "cut off",
    ),
];

/// Written as they are, and refused with this word: what begins so takes programs to make that few hosts have.
const WRITTEN: &[(&str, &[u8], &str)] = &[
    ("lz4", b"\x04\x22\x4d\x18\x64\x40\xa7", "lz4"),
    ("lz4-old", b"\x02\x21\x4c\x18\x05\0\0\0", "lz4"),
    ("zip", b"PK\x03\x04\x14\0\0\0", "zip"),
    ("7z", b"7z\xbc\xaf\x27\x1c\0\x04", "7z"),
    ("age", b"age-encryption.org/v1\n-> X25519 abc\n", "age"),
    (
        "gpg",
        b"\x8c\x0d\x04\x09\x03\x02\x5f\x1c\xff\x80\x99\x12",
        "OpenPGP",
    ),
    (
        "gpg-text",
        b"-----BEGIN PGP MESSAGE-----\n\nhQEM\n",
        "OpenPGP",
    ),
    ("dmg-sealed", b"encrcdsa\0\0\0\x02", "DMG"),
    ("cowd", b"COWD\x01\0\0\0\x03\0\0\0", "VMDK"),
];

/// Makes all files in a directory.
pub fn make(dir: &Path) -> anyhow::Result<Vec<Case>> {
    let files = Files { dir };
    files.write("disk.raw", &disk(512, SECTORS, 1))?;
    files.write("second.raw", &disk(512, 8_192, 2))?;
    files.write("large.raw", &disk(4096, SECTORS_LARGE, 3))?;
    files.run(&["cp", "--sparse=always", "disk.raw", "holes.raw"])?;
    let short = disk(512, SECTORS, 1);
    files.write("short.bin", &short[..short.len() - 128 * 512])?;
    let mut cases = vec![
        equal("disk.raw", &["disk.raw"]),
        equal("large.raw", &["large.raw"]),
    ];
    for (name, options, from) in CONVERTED {
        let args: Vec<&str> = ["convert", "-f", "raw"]
            .into_iter()
            .chain(options.iter().copied())
            .collect();
        files.qemu_img(&[&args[..], &[from, name]].concat())?;
        cases.push(equal(name, &[from]));
    }
    files.qemu_img(&["snapshot", "-c", "before", "qcow2-lazy"])?;
    cases.extend(files.vhds()?);
    cases.push(files.large_vhdx()?);
    files.write("vmdk-stream.vmdk", &files.read("vmdk-stream")?)?;
    files.write("one.ovf", ovf(&["vmdk-stream.vmdk"]).as_bytes())?;
    files.write(
        "two.ovf",
        ovf(&["second.raw", "vmdk-stream.vmdk"]).as_bytes(),
    )?;
    for (name, command, disks) in PACKED {
        files.output(name, command)?;
        cases.push(equal(name, disks));
    }
    let skipped = [
        b"\x50\x2a\x4d\x18\x04\0\0\0\x10\x20\0\0",
        &files.read("disk.zst")?[..],
    ]
    .concat();
    files.write("pzstd.zst", &skipped)?;
    cases.push(equal("pzstd.zst", &["disk.raw"]));
    for (name, command, word) in REFUSED {
        files.output(name, command)?;
        cases.push(refused(name, word));
    }
    for (name, args, word) in REFUSED_OF_QEMU {
        files.qemu_img(args)?;
        cases.push(refused(name, word));
    }
    for (name, begin, word) in WRITTEN {
        let noise = noise(64 << 10, 9);
        files.write(name, &[begin, &noise[..]].concat())?;
        cases.push(refused(name, word));
    }
    let mut dmg = disk(512, 2_048, 4);
    dmg.extend([&b"koly\0\0\0\x04\0\0\x02\0"[..], &[0; 500]].concat());
    files.write("dmg", &dmg)?;
    cases.push(refused("dmg", "DMG"));
    cases.push(refused("split-s001.vmdk", "several files"));
    Ok(cases)
}

fn equal(name: &str, disks: &[&'static str]) -> Case {
    Case {
        name: name.to_owned(),
        expect: Expect::Equal(disks.to_vec()),
    }
}

fn refused(name: &str, word: &'static str) -> Case {
    Case {
        name: name.to_owned(),
        expect: Expect::Refused(word),
    }
}

/// The directory of the files.
struct Files<'a> {
    dir: &'a Path,
}

impl Files<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn read(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        fs::read(self.path(name)).with_context(|| format!("cannot read {name}"))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        fs::write(self.path(name), bytes).with_context(|| format!("cannot write {name}"))
    }

    fn qemu_img(&self, args: &[&str]) -> anyhow::Result<()> {
        self.run(&[&["qemu-img"], args].concat()).map(drop)
    }

    /// Writes what a command says into a file.
    fn output(&self, name: &str, command: &[&str]) -> anyhow::Result<()> {
        let said = self.run(command)?;
        self.write(name, &said)
    }

    fn run(&self, command: &[&str]) -> anyhow::Result<Vec<u8>> {
        let (program, args) = command.split_first().context("a command has a program")?;
        let done = Command::new(program)
            .args(args)
            .current_dir(self.dir)
            .output();
        let done = done.with_context(|| format!("{program} is missing"))?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "{command:?}: {said}");
        Ok(done.stdout)
    }

    /// Makes the VHDs of other programs: their names, the geometry of the specification, and what they put at the end.
    fn vhds(&self) -> anyhow::Result<Vec<Case>> {
        let mut cases = Vec::new();
        for kind in ["vhd", "vhd-fixed"] {
            let made = self.read(kind)?;
            for creator in CREATORS {
                let mut file = made.clone();
                let last = file.len() - 512;
                set_creator(&mut file[last..], creator);
                if file.starts_with(b"conectix") {
                    set_creator(&mut file[..512], creator);
                }
                let word: String = creator
                    .iter()
                    .map(|byte| *byte as char)
                    .filter(char::is_ascii_alphanumeric)
                    .collect();
                let name = format!("{kind}-{word}");
                self.write(&name, &file)?;
                cases.push(equal(&name, &["disk.raw"]));
            }
            for (end, more) in [
                ("511", None),
                ("512", Some(512)),
                ("4k", Some(4096)),
                ("1m", Some(1 << 20)),
                ("odd", Some(777)),
            ] {
                let file = match more {
                    None => made[..made.len() - 1].to_vec(),
                    Some(more) => [&made[..], &noise(more, 5)].concat(),
                };
                let name = format!("{kind}-more-{end}");
                self.write(&name, &file)?;
                cases.push(equal(&name, &["disk.raw"]));
            }
        }
        let mut differs = self.read("vhd")?;
        let last = differs.len() - 512;
        for at in [0, last] {
            differs[at + 63] = 4;
        }
        self.write("differs.vhd", &differs)?;
        cases.push(refused("differs.vhd", "parent"));
        Ok(cases)
    }

    /// Makes a VHDX that states sectors of 4096 bytes. On a disk of less than 4 GiB nothing else differs.
    fn large_vhdx(&self) -> anyhow::Result<Case> {
        const SECTORS_ID: [u8; 4] = [0x1d, 0xbf, 0x41, 0x81];
        let mut file = self.read("vhdx-large")?;
        let regions = (1..file.len() >> 20).map(|mib| mib << 20);
        let metadata = regions
            .into_iter()
            .find(|at| file[*at..].starts_with(b"metadata"));
        let metadata = metadata.context("a VHDX without metadata")?;
        let entry = (1..64)
            .map(|n| metadata + n * 32)
            .find(|at| file[*at..].starts_with(&SECTORS_ID));
        let entry = entry.context("a VHDX without its sectors' size")?;
        let offset = file[entry + 16..entry + 20]
            .first_chunk()
            .copied()
            .map_or(0, u32::from_le_bytes);
        let at = metadata + offset as usize;
        file[at..at + 4].copy_from_slice(&4096u32.to_le_bytes());
        self.write("vhdx-states-4k", &file)?;
        Ok(equal("vhdx-states-4k", &["large.raw"]))
    }
}

/// Gives a VHD's footer another creator, and the geometry that the specification computes, which rounds down.
fn set_creator(footer: &mut [u8], creator: &[u8; 4]) {
    const HEADS: u64 = 4;
    const PER_TRACK: u64 = 17;
    let cylinders = SECTORS / HEADS / PER_TRACK;
    footer[28..32].copy_from_slice(creator);
    footer[56..58].copy_from_slice(&(cylinders as u16).to_be_bytes());
    footer[58..60].copy_from_slice(&[HEADS as u8, PER_TRACK as u8]);
    footer[64..68].fill(0);
    let sum: u32 = footer.iter().map(|byte| u32::from(*byte)).sum();
    footer[64..68].copy_from_slice(&(!sum).to_be_bytes());
}

/// Returns bytes that nothing packs.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Returns a disk with a GPT that fills it, and data at its beginning and its end.
fn disk(sector: usize, sectors: u64, seed: u64) -> Vec<u8> {
    const DATA_BYTES: usize = 300 << 10;
    let len = sector * sectors as usize;
    let mut disk = vec![0; len];
    for at in [64 << 10, len - DATA_BYTES - 64 * sector] {
        disk[at..at + DATA_BYTES].copy_from_slice(&noise(DATA_BYTES, seed));
    }
    disk[446 + 4] = 0xee;
    disk[446 + 8] = 1;
    disk[446 + 12..446 + 16].fill(0xff);
    disk[510..512].copy_from_slice(b"\x55\xaa");
    let last = sectors - 1;
    let tables = 16_384 / sector as u64;
    for (own, other, table) in [(1, last, 2), (last, 1, last - tables)] {
        let mut header = vec![0; 92];
        header[..8].copy_from_slice(b"EFI PART");
        (header[10], header[12]) = (1, 92);
        for (at, value) in [
            (24, own),
            (32, other),
            (40, 2 + tables),
            (48, last - tables - 1),
            (72, table),
        ] {
            header[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        (header[80], header[84]) = (128, 128);
        let at = own as usize * sector;
        disk[at..at + 92].copy_from_slice(&header);
        let entry = table as usize * sector;
        disk[entry..entry + 16]
            .copy_from_slice(b"\xaf\x3d\xc6\x0f\x83\x84\x72\x47\x8e\x79\x3d\x69\xd8\x47\x7d\xe4");
        disk[entry + 32..entry + 40].copy_from_slice(&(2 + tables).to_le_bytes());
        disk[entry + 40..entry + 48].copy_from_slice(&(last - tables - 1).to_le_bytes());
    }
    disk
}

/// Returns the description of an appliance whose machine has these disks in this order. They are listed the other way round.
fn ovf(disks: &[&str]) -> String {
    let (mut files, mut list, mut items) = (String::new(), String::new(), String::new());
    for (n, name) in disks.iter().enumerate().rev() {
        files += &format!("<File ovf:href=\"{name}\" ovf:id=\"file{n}\"/>");
        list += &format!("<Disk ovf:capacity=\"1\" ovf:diskId=\"d{n}\" ovf:fileRef=\"file{n}\"/>");
        items += &format!(
            "<Item><rasd:AddressOnParent>{n}</rasd:AddressOnParent><rasd:HostResource>ovf:/disk/d{n}</rasd:HostResource>\
             <rasd:InstanceID>{}</rasd:InstanceID><rasd:Parent>3</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>",
            n + 4
        );
    }
    format!(
        "<?xml version=\"1.0\"?><Envelope xmlns:ovf=\"o\" xmlns:rasd=\"r\"><References>{files}</References>\
         <DiskSection><Info>disks</Info>{list}</DiskSection><VirtualSystem ovf:id=\"v\"><VirtualHardwareSection>\
         <Item><rasd:InstanceID>3</rasd:InstanceID><rasd:ResourceType>6</rasd:ResourceType></Item>{items}\
         </VirtualHardwareSection></VirtualSystem></Envelope>"
    )
}
