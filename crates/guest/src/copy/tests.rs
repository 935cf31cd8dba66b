use super::*;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

fn sent(path: &Path, form: Form) -> Vec<u8> {
    let mut bytes = Vec::new();
    send(path, form, &mut bytes, &mut |_| (), &mut |_, _| ()).unwrap();
    bytes
}

fn received(bytes: &[u8], form: Form, target: &Path) -> io::Result<PathBuf> {
    let place = Place {
        target,
        name: "name",
        special_bits: false,
    };
    receive(bytes, form, &place, &mut |_, _| ())
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// What is in a directory, sorted.
fn list(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_tree_arrives_with_its_modes_links_and_long_names() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    let long = "l".repeat(200);
    fs::create_dir_all(from.join(&long).join(&long)).unwrap();
    fs::write(from.join(&long).join(&long).join("deep"), vec![7; 200_000]).unwrap();
    fs::write(from.join("tool"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(from.join("tool"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::create_dir(from.join("closed")).unwrap();
    fs::write(from.join("closed/in"), "").unwrap();
    fs::set_permissions(from.join("closed"), fs::Permissions::from_mode(0o500)).unwrap();
    symlink("/etc/passwd", from.join("link")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        from.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let mut skipped = Vec::new();
    let mut bytes = Vec::new();
    let mut skip = |path: &Path| skipped.push(path.to_owned());
    send(&from, Form::Archive, &mut bytes, &mut skip, &mut |_, _| ()).unwrap();
    assert_eq!(skipped, [from.join("pipe")]);

    let to = dir.path().join("to");
    assert_eq!(received(&bytes, Form::Archive, &to).unwrap(), to);
    assert_eq!(list(&to), ["closed", "link", &long, "tool"]);
    assert_eq!(
        fs::read(to.join(&long).join(&long).join("deep")).unwrap(),
        vec![7; 200_000]
    );
    assert_eq!(
        fs::read_link(to.join("link")).unwrap(),
        Path::new("/etc/passwd")
    );
    assert_eq!(
        mode(&to.join("tool")),
        0o751,
        "a guest makes no setuid program"
    );
    assert_eq!(
        (mode(&to.join("closed")), list(&to.join("closed")).len()),
        (0o500, 1)
    );
    // into what exists it goes with its own name, and what has that name is not touched
    assert_eq!(
        received(&bytes, Form::Archive, dir.path()).unwrap(),
        dir.path().join("name")
    );
    let error = received(&bytes, Form::Archive, dir.path()).unwrap_err();
    assert!(error.to_string().contains("exists already"), "{error}");
    assert_eq!(list(dir.path()), ["from", "name", "to"]);
}

#[test]
fn what_is_swapped_for_a_link_while_it_is_sent_leads_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["from/d", "outside"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    fs::write(at("from/d/file"), "meant").unwrap();
    fs::write(at("outside/file"), "secret").unwrap();
    // what is told of before the file of the same directory is sent
    let pipe = at("from/d/a-pipe");
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, rustix::fs::Mode::RWXU, 0).unwrap();
    let mut bytes = Vec::new();
    let mut swap = |_: &Path| {
        fs::rename(at("from/d"), at("away")).unwrap();
        symlink(at("outside"), at("from/d")).unwrap();
    };
    send(
        &at("from"),
        Form::Sparse,
        &mut bytes,
        &mut swap,
        &mut |_, _| (),
    )
    .unwrap();
    let to = received(&bytes, Form::Archive, &at("to")).unwrap();
    assert_eq!(fs::read(to.join("d/file")).unwrap(), b"meant");

    // and at any other moment
    fs::create_dir(at("live")).unwrap();
    fs::write(at("live/x"), "meant").unwrap();
    fs::create_dir(at("live/y")).unwrap();
    symlink(at("outside/file"), at("link-x")).unwrap();
    symlink(at("outside"), at("link-y")).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let exchange = rustix::fs::RenameFlags::EXCHANGE;
            while !over.load(order) {
                for name in ["x", "y"] {
                    let (live, link) = (at("live").join(name), at(&format!("link-{name}")));
                    let cwd = rustix::fs::CWD;
                    rustix::fs::renameat_with(cwd, live, cwd, link, exchange).unwrap();
                }
            }
        });
        let (mut whole, mut secrets) = (0, 0);
        for _ in 0..2000 {
            let mut bytes = Vec::new();
            let sent = send(
                &at("live"),
                Form::Sparse,
                &mut bytes,
                &mut |_| (),
                &mut |_, _| (),
            );
            whole += usize::from(sent.is_ok());
            secrets += usize::from(bytes.windows(6).any(|six| six == b"secret"));
        }
        over.store(true, order);
        assert_eq!(secrets, 0);
        assert!(whole > 0, "nothing was sent");
    });
}

#[test]
fn a_file_replaces_another_only_once_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::write(&from, vec![5; 300_000]).unwrap();
    fs::write(&to, "old").unwrap();
    for form in [Form::Archive, Form::Sparse, Form::Bytes] {
        let bytes = sent(&from, form);
        for cut in [0, 3, 600, 100_000, bytes.len() - 1] {
            let error = received(&bytes[..cut], form, &to).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{cut} {error}");
            assert_eq!(fs::read(&to).unwrap(), b"old");
        }
        received(&bytes, form, &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), vec![5; 300_000]);
        fs::write(&to, "old").unwrap();
    }
    assert_eq!(list(dir.path()), ["from", "to"]);
    let error = received(
        &sent(&from, Form::Bytes),
        Form::Bytes,
        &dir.path().join("no/"),
    );
    assert_eq!(error.unwrap_err().kind(), io::ErrorKind::NotFound);
}

/// An archive of a directory with these entries: kind, name, target or content.
fn archive_of(entries: &[(tar::EntryType, &str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut out = pieces::Writer::new(&mut bytes);
    let all = [(tar::EntryType::Directory, ".", "")];
    for (kind, name, content) in all.iter().chain(entries) {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o755);
        header.set_mtime(0);
        let has_data = kind.is_file() || kind.is_gnu_longname();
        let data = if has_data || kind.is_pax_local_extensions() {
            *content
        } else {
            ""
        };
        header.set_size(data.len() as u64);
        // not by set_path, which refuses what is hostile
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        if data.is_empty() {
            header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
        }
        header.set_cksum();
        out.write_all(header.as_bytes()).unwrap();
        out.write_all(data.as_bytes()).unwrap();
        out.write_all(&vec![0; data.len().next_multiple_of(512) - data.len()])
            .unwrap();
    }
    out.write_all(&[0; 1024]).unwrap();
    out.finish().unwrap();
    bytes
}

#[test]
fn no_entry_of_a_hostile_archive_leaves_its_directory() {
    use tar::EntryType as Kind;
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let target = dir.path().join("target");
    let out = outside.to_str().unwrap();
    let absolute = format!("{out}/x");
    let long = "x".repeat(5000);
    let holes = "25 GNU.sparse.realsize=9\n";
    let longest = "44 GNU.sparse.realsize=18446744073709551615\n";
    let map = format!("0\n{}", "\0".repeat(510));
    for (what, entries) in [
        ("parent", vec![(Kind::Regular, "../outside/x", "!")]),
        ("absolute", vec![(Kind::Regular, &absolute[..], "!")]),
        (
            "parent below",
            vec![
                (Kind::Directory, "a", ""),
                (Kind::Regular, "a/../../outside/x", "!"),
            ],
        ),
        (
            "through a link",
            vec![(Kind::Symlink, "l", out), (Kind::Regular, "l/x", "!")],
        ),
        (
            "onto a link",
            vec![(Kind::Symlink, "l", &absolute), (Kind::Regular, "l", "!")],
        ),
        (
            "a link to a link",
            vec![
                (Kind::Symlink, "l", ".."),
                (Kind::Symlink, "m", "l/outside"),
                (Kind::Regular, "m/x", "!"),
            ],
        ),
        (
            "directory onto a link",
            vec![(Kind::Symlink, "l", out), (Kind::Directory, "l", "")],
        ),
        ("hard link", vec![(Kind::Link, "h", "/etc/passwd")]),
        ("device", vec![(Kind::Char, "d", "")]),
        ("pipe", vec![(Kind::Fifo, "p", "")]),
        (
            "twice",
            vec![(Kind::Regular, "x", "1"), (Kind::Regular, "x", "2")],
        ),
        ("no directory", vec![(Kind::Regular, "a/x", "!")]),
        (
            "long name",
            vec![(Kind::GNULongName, "n", &long), (Kind::Regular, "x", "!")],
        ),
        (
            "long name out",
            vec![
                (Kind::GNULongName, "n", "../outside/x"),
                (Kind::Regular, "x", "!"),
            ],
        ),
        ("the directory again", vec![(Kind::Directory, ".", "")]),
        (
            "holes of a directory",
            vec![(Kind::XHeader, "p", holes), (Kind::Directory, "a", "")],
        ),
        (
            "no map of the holes",
            vec![(Kind::XHeader, "p", holes), (Kind::Regular, "x", "!")],
        ),
        (
            "longer than any file",
            vec![
                (Kind::XHeader, "p", longest),
                (Kind::Regular, "x", &map[..]),
            ],
        ),
    ] {
        let done = received(&archive_of(&entries), Form::Archive, &target);
        assert!(done.is_err(), "{what}");
        assert_eq!(list(&outside), Vec::<String>::new(), "{what}");
        assert_eq!(list(dir.path()), ["outside"], "{what}: nothing is left");
    }
    let link = vec![(Kind::Symlink, "l", out)];
    received(&archive_of(&link), Form::Archive, &target).unwrap();
    assert_eq!(fs::read_link(target.join("l")).unwrap(), outside);
}

/// How many bytes a file takes.
fn taken(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).unwrap().blocks() * 512
}

/// Makes a file of so many bytes with these words in it.
fn with_holes(path: &Path, size: u64, words: &[(u64, &str)]) {
    use std::os::unix::fs::FileExt;
    let file = fs::File::create(path).unwrap();
    file.set_len(size).unwrap();
    for (at, word) in words {
        file.write_all_at(word.as_bytes(), *at).unwrap();
    }
}

/// What stands at a place of a file.
fn word(path: &Path, at: u64) -> String {
    use std::os::unix::fs::FileExt;
    let mut word = [0; 4];
    let file = fs::File::open(path).unwrap();
    file.read_exact_at(&mut word, at).unwrap();
    String::from_utf8(word.to_vec()).unwrap()
}

#[test]
fn holes_take_no_place_on_the_way_and_at_the_other_end() {
    const GIB: u64 = 1 << 30;
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    let words = [(0, "zero"), (7 * GIB + 5, "mid."), (20 * GIB - 4, "last")];
    with_holes(&from.join("disk"), 20 * GIB, &words);
    with_holes(&from.join("end"), 3 * GIB, &[(4096, "four")]);
    with_holes(&from.join("nothing"), 5 * GIB, &[]);
    let long = "l".repeat(200);
    with_holes(&from.join(&long), GIB, &[(GIB / 2, "half")]);
    fs::write(from.join("plain"), vec![3; 300_000]).unwrap();
    fs::write(from.join("empty"), "").unwrap();

    let mut bytes = Vec::new();
    let mut told = Vec::new();
    let mut tell = |done, total| told.push((done, total));
    send(&from, Form::Sparse, &mut bytes, &mut |_| (), &mut tell).unwrap();
    assert!(bytes.len() < 1 << 20, "{} bytes", bytes.len());
    let (done, total) = *told.last().unwrap();
    assert_eq!(done, total, "all that was counted went");
    assert!(told.iter().all(|(done, of)| done <= of && *of == total));
    assert!((300_000..1 << 20).contains(&total), "{total}");

    let to = dir.path().join("to");
    let place = Place {
        target: &to,
        name: "name",
        special_bits: false,
    };
    let mut heard = (0, 0);
    let mut hear = |done, total| heard = (done, total);
    receive(&bytes[..], Form::Sparse, &place, &mut hear).unwrap();
    assert_eq!(heard, (total, total));
    for (name, size) in [("disk", 20), ("end", 3), ("nothing", 5), (&long[..], 1)] {
        let (old, new) = (from.join(name), to.join(name));
        assert_eq!(fs::metadata(&new).unwrap().len(), size * GIB, "{name}");
        assert!(taken(&new) <= taken(&old) + 4096, "{name}: {}", taken(&new));
    }
    for (at, expected) in words {
        assert_eq!(word(&to.join("disk"), at), expected);
    }
    assert_eq!(word(&to.join("disk"), 10 * GIB), "\0\0\0\0");
    assert_eq!(word(&to.join("end"), 4096), "four");
    assert_eq!(word(&to.join(&long), GIB / 2), "half");
    assert_eq!(fs::read(to.join("plain")).unwrap(), vec![3; 300_000]);
    assert_eq!(fs::read(to.join("empty")).unwrap(), b"");

    // one file alone, and cut off anywhere
    let bytes = sent(&from.join("disk"), Form::Sparse);
    let alone = dir.path().join("alone");
    for cut in [0, 100, 1600, 2200, bytes.len() - 1] {
        let error = received(&bytes[..cut], Form::Sparse, &alone).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{cut} {error}");
    }
    received(&bytes, Form::Sparse, &alone).unwrap();
    assert_eq!(fs::metadata(&alone).unwrap().len(), 20 * GIB);
    assert_eq!(word(&alone, 20 * GIB - 4), "last");
}

#[test]
fn an_agent_that_knows_no_holes_is_sent_what_it_knows() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    with_holes(&from, 1 << 20, &[(0, "zero"), (1 << 19, "half")]);
    let bytes = sent(&from, Form::Archive);
    assert!(bytes.len() > 1 << 20);
    let mut archive = Vec::new();
    io::copy(&mut pieces::Reader::new(&bytes[..]), &mut archive).unwrap();
    let mut archive = tar::Archive::new(&archive[..]);
    let kinds = archive.entries().unwrap().raw(true);
    let kinds: Vec<_> = kinds.map(|e| e.unwrap().header().entry_type()).collect();
    assert_eq!(kinds, [tar::EntryType::Regular]);
}

#[test]
fn what_comes_together_is_there_once_all_of_it_has_come() {
    let dir = tempfile::tempdir().unwrap();
    let (partial, results) = (dir.path().join(".web.partial"), dir.path().join("web"));
    let come = |names: &[&str]| {
        let together = Together::begin(partial.clone()).unwrap();
        for name in names {
            fs::create_dir(together.path().join(name)).unwrap();
            fs::write(together.path().join(name).join("result"), "made").unwrap();
        }
        fs::write(together.path().join("log"), names.join(" ")).unwrap();
        together
    };
    // one of them does not come: nothing is there, and it can be tried again, also after a kill
    drop(come(&["out"]));
    assert!(list(dir.path()).is_empty());
    std::mem::forget(come(&["left"]));
    come(&["out"]).put_in(&results).unwrap();
    assert_eq!(list(dir.path()), ["web"]);
    assert_eq!(list(&results), ["log", "out"]);
    // others come beside them
    come(&["more"]).put_in(&results).unwrap();
    assert_eq!(list(&results), ["log", "more", "out"]);
    assert_eq!(fs::read_to_string(results.join("log")).unwrap(), "more");
    // and none takes the place of a directory
    let error = come(&["new", "out"]).put_in(&results).unwrap_err();
    assert!(error.to_string().contains("out exists already"), "{error}");
    assert_eq!(list(&results), ["log", "more", "out"]);
    assert_eq!(list(dir.path()), ["web"]);
}
