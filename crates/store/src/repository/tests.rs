use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use floe_image::{CHUNK_SIZE, ImageName, MachineConfig, PackRef, SEGMENT_SPAN};

use super::*;
use crate::{Ingest, IngestOptions};

fn repository() -> (tempfile::TempDir, Repository) {
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::create(&dir.path().join("repo")).unwrap();
    (dir, repository)
}

fn chunk(n: u64) -> Vec<u8> {
    (0..CHUNK_SIZE as u64 / 8)
        .flat_map(|i| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | (1 ^ (i / 32))).to_le_bytes())
        .collect()
}

/// Makes an image with one region `ram` of the chunks from..to.
fn image(
    repository: &Repository,
    parent: Option<Hash>,
    chunks: std::ops::Range<u64>,
) -> (Hash, Vec<u8>) {
    let bytes: Vec<u8> = chunks.flat_map(chunk).collect();
    let options = IngestOptions {
        parent,
        created_unix_s: Some(bytes.len() as u64),
        ..IngestOptions::default()
    };
    let mut ingest = Ingest::new(repository, options).unwrap();
    ingest.region_bytes("ram", &bytes).unwrap();
    (ingest.finish(MachineConfig::default()).unwrap(), bytes)
}

fn name(text: &str) -> ImageName {
    ImageName::parse(text).unwrap()
}

fn gc(repository: &Repository, untagged: bool, keep: Vec<Hash>) -> GcReport {
    repository
        .gc(&GcOptions {
            min_age: Duration::ZERO,
            untagged,
            keep,
            unfinished: false,
        })
        .unwrap()
}

fn is_sound(repository: &Repository, id: &Hash) -> bool {
    repository.verify(id, &|_, _| true).unwrap().is_sound()
}

#[test]
fn an_image_is_found_by_name_tag_id_and_unique_prefix() {
    let (_dir, repository) = repository();
    let (a, _) = image(&repository, None, 0..10);
    let (b, _) = image(&repository, None, 0..11);
    repository.tag(&name("team/web:v2"), &a).unwrap();
    repository.tag(&name("debian"), &a).unwrap();
    repository.tag(&name("debian"), &b).unwrap();
    assert_eq!(repository.resolve("team/web:v2").unwrap(), a);
    assert_eq!(repository.resolve("debian").unwrap(), b);
    assert_eq!(repository.resolve("debian:latest").unwrap(), b);
    assert_eq!(repository.resolve(&a.to_string()).unwrap(), a);
    assert_eq!(repository.resolve(&a.to_string()[..8]).unwrap(), a);
    for absent in [
        "debian:v9",
        "abcdef0",
        &a.to_string()[..5],
        &Hash::of(b"x").to_string(),
    ] {
        let error = repository.resolve(absent).unwrap_err();
        assert!(
            matches!(error, StoreError::NotFound { .. })
                && error.to_string().contains("floe image ls"),
            "{error}"
        );
    }
    assert!(matches!(
        repository.resolve("../../etc/passwd"),
        Err(StoreError::Invalid { .. })
    ));
    // A second image whose id begins the same way, which can only be made by hand.
    let twin = format!("{}{}", &a.to_string()[..10], "0".repeat(54));
    std::fs::write(repository.dir().join("images").join(twin), b"").unwrap();
    assert!(matches!(
        repository.resolve(&a.to_string()[..8]),
        Err(StoreError::Ambiguous { .. })
    ));
    assert_eq!(repository.untag(&name("debian")).unwrap(), b);
    assert!(repository.untag(&name("debian")).is_err());
    assert!(repository.tag(&name("x"), &Hash::of(b"nothing")).is_err());
    let long = name(&format!("{}:{}", "a".repeat(128), "b".repeat(128)));
    assert!(matches!(
        repository.tag(&long, &a),
        Err(StoreError::Invalid { .. })
    ));
    assert!(matches!(
        repository.resolve(&long.to_string()),
        Err(StoreError::NotFound { .. })
    ));
}

#[test]
fn a_list_tells_names_sizes_and_parents_newest_first() {
    let (_dir, repository) = repository();
    let (a, _) = image(&repository, None, 0..10);
    let (b, bytes) = image(&repository, Some(a), 0..12);
    repository.tag(&name("web"), &b).unwrap();
    let list = repository.list().unwrap();
    assert_eq!(list.iter().map(|i| i.id).collect::<Vec<_>>(), [b, a]);
    assert_eq!(
        (list[0].parent, list[0].virtual_bytes),
        (Some(a), bytes.len() as u64)
    );
    assert_eq!(list[0].names, [name("web:latest")]);
    assert!(list[0].pack_bytes > list[1].pack_bytes);
}

#[test]
fn a_repository_of_another_version_is_refused_with_the_reason() {
    let (_dir, repository) = repository();
    std::fs::write(repository.dir().join("version"), "floe repository 2\n").unwrap();
    let error = Repository::open(repository.dir()).map(drop).unwrap_err();
    assert!(
        error.to_string().contains("repository 2") && error.to_string().contains("repository 1"),
        "{error}"
    );
    assert!(matches!(
        Repository::open(Path::new("/nonexistent")),
        Err(StoreError::NotFound { .. })
    ));
}

#[test]
fn an_image_with_a_missing_chunk_segment_or_pack_is_never_published() {
    let (_dir, repository) = repository();
    let (id, _) = image(&repository, None, 0..40);
    let (other, _) = image(&repository, None, 100..140);
    let (manifest, layout) = (
        repository.manifest(&id).unwrap(),
        repository.layout(&id).unwrap(),
    );
    let mut wrong = manifest.clone();
    wrong.created_unix_s += 1;
    let wrong_id = wrong.id();
    // The packs of another image.
    let foreign = repository.layout(&other).unwrap();
    match repository.publish(&wrong, &foreign) {
        Err(StoreError::Incomplete {
            image,
            missing,
            place,
            ..
        }) => {
            assert_eq!((image, missing), (wrong_id, 1));
            assert!(place.contains("segment 0 of region ram"), "{place}");
        }
        other => panic!("{other:?}"),
    }
    // A pack that isn't here.
    let mut absent = layout.clone();
    absent.packs[0].id = Hash::of(b"absent");
    assert!(repository.publish(&wrong, &absent).is_err());
    assert!(!repository.contains(&wrong_id).unwrap());
    // Everything is here, and what isn't needed is left out.
    let mut more = layout.clone();
    more.packs.extend(&foreign.packs);
    assert_eq!(repository.publish(&wrong, &more).unwrap(), wrong_id);
    assert_eq!(repository.layout(&wrong_id).unwrap(), layout);
}

/// A kill between any two steps of a publish leaves the file system in one of these states.
#[test]
fn an_image_is_visible_only_after_its_manifests_rename() {
    let (_dir, repository) = repository();
    let (id, bytes) = image(&repository, None, 0..40);
    let manifest = repository.manifest_path(&id);
    let kept = repository.dir().join("tmp/new-x");
    std::fs::rename(&manifest, &kept).unwrap(); // packs, layout and a temporary manifest: killed before the rename
    let again = Repository::open(repository.dir()).unwrap();
    assert!(again.list().unwrap().is_empty());
    assert!(again.resolve(&id.to_string()).is_err() && again.manifest(&id).is_err());
    std::fs::rename(&kept, &manifest).unwrap();
    assert_eq!(again.read_region(&id, "ram", 1 << 20).unwrap(), bytes);
    // Killed, and never published again: gc removes all of it.
    std::fs::rename(&manifest, &kept).unwrap();
    let report = gc(&again, false, vec![]);
    assert_eq!((report.packs, report.temporary, report.images), (1, 2, 0));
    for dir in ["images", "tmp"] {
        assert_eq!(
            std::fs::read_dir(again.dir().join(dir)).unwrap().count(),
            0,
            "{dir}"
        );
    }
}

#[test]
fn what_a_killed_pull_was_writing_goes_at_the_next_start_and_what_it_noted_stays() {
    let (_dir, repository) = repository();
    let (id, bytes) = image(&repository, None, 0..40);
    let tmp = repository.tmp_dir();
    std::fs::write(tmp.join("new-AbC123"), vec![1; 5000]).unwrap();
    std::fs::write(tmp.join("new-x"), b"half").unwrap();
    let journal = tmp.join(format!("pull-{id}"));
    std::fs::write(&journal, b"what is here already").unwrap();
    assert_eq!(repository.remove_unfinished().unwrap(), 5004);
    let left: Vec<_> = std::fs::read_dir(&tmp)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(left, [journal]);
    assert_eq!(repository.read_region(&id, "ram", 1 << 20).unwrap(), bytes);
    assert_eq!(repository.remove_unfinished().unwrap(), 0);
}

#[test]
fn gc_removes_only_what_nothing_refers_to_and_nothing_young() {
    let (_dir, repository) = repository();
    let (a, bytes_a) = image(&repository, None, 0..40);
    let (b, _) = image(&repository, Some(a), 0..60);
    let (c, bytes_c) = image(&repository, Some(b), 0..80);
    let (d, _) = image(&repository, None, 500..540);
    repository.tag(&name("c"), &c).unwrap();
    assert_eq!(gc(&repository, false, vec![]), GcReport::default());
    // The child keeps its ancestors; the unrelated image without a tag is removed, unless a machine runs it.
    assert_eq!(gc(&repository, true, vec![d]), GcReport::default());
    let report = gc(&repository, true, vec![]);
    assert_eq!((report.images, report.packs), (1, 1));
    assert!(!repository.contains(&d).unwrap() && is_sound(&repository, &a));
    // Removing the parents does no harm to the child.
    repository.remove(&a).unwrap();
    repository.remove(&b).unwrap();
    gc(&repository, false, vec![]);
    assert!(is_sound(&repository, &c));
    assert_eq!(repository.read_region(&c, "ram", 1 << 20).unwrap(), bytes_c);
    repository.remove(&c).unwrap();
    assert!(repository.tags().unwrap().is_empty() && repository.list().unwrap().is_empty());
    let young = GcOptions::default();
    assert_eq!(repository.gc(&young).unwrap(), GcReport::default());
    assert!(gc(&repository, false, vec![]).packs > 0);
    assert_eq!(image(&repository, None, 0..40).1, bytes_a);
}

#[test]
fn a_tag_that_can_not_be_read_removes_no_image_and_an_image_that_can_not_is_not_gone() {
    let (_dir, repository) = repository();
    let (id, bytes) = image(&repository, None, 0..40);
    repository.tag(&name("web"), &id).unwrap();
    let options = GcOptions {
        min_age: Duration::ZERO,
        untagged: true,
        keep: Vec::new(),
        unfinished: false,
    };
    let tag = repository
        .dir()
        .join("tags")
        .join(tag_file_name(&name("web")));
    let text = std::fs::read(&tag).unwrap();
    // damaged, then one that is there and can't be read
    std::fs::write(&tag, "web").unwrap();
    assert!(repository.tags().unwrap().is_empty());
    let told = repository.gc(&options).unwrap_err().to_string();
    assert!(told.contains("web~~latest is damaged"), "{told}");
    std::fs::remove_file(&tag).unwrap();
    std::os::unix::fs::symlink(&tag, &tag).unwrap();
    assert!(repository.tags().is_err() && repository.gc(&options).is_err());
    std::fs::remove_file(&tag).unwrap();
    std::fs::write(&tag, text).unwrap();
    assert_eq!(repository.gc(&options).unwrap(), GcReport::default());
    assert_eq!(repository.read_region(&id, "ram", 1 << 20).unwrap(), bytes);

    let manifest = repository.manifest_path(&id);
    std::fs::remove_file(&manifest).unwrap();
    assert!(!repository.contains(&id).unwrap());
    std::os::unix::fs::symlink(&manifest, &manifest).unwrap();
    assert!(repository.contains(&id).is_err() && repository.remove(&id).is_err());
    assert_eq!(repository.tags().unwrap().len(), 1);
}

#[test]
fn who_names_or_removes_an_image_waits_for_who_publishes_or_collects() {
    let (_dir, repository) = repository();
    let (id, bytes) = image(&repository, None, 0..40);
    let publishing = repository.lock(FlockOperation::LockShared).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let other = repository.clone();
    let removing = std::thread::spawn(move || {
        tell.send(()).unwrap();
        other.remove(&id)
    });
    told.recv().unwrap();
    // what a publisher of the same image does, which had begun before
    let layout = std::fs::read(repository.layout_path(&id)).unwrap();
    let manifest = repository.manifest_bytes(&id).unwrap();
    repository
        .write_file(&repository.layout_path(&id), &layout)
        .unwrap();
    repository
        .write_file(&repository.manifest_path(&id), &manifest)
        .unwrap();
    assert_eq!(repository.read_region(&id, "ram", 1 << 20).unwrap(), bytes);
    drop(publishing);
    removing.join().unwrap().unwrap();
    assert!(!repository.contains(&id).unwrap());
    assert!(
        repository.layout(&id).is_err(),
        "no layout without manifest"
    );
    let collected = gc(&repository, false, vec![]);
    assert_eq!((collected.packs, collected.temporary), (1, 0));
}

#[test]
fn what_an_unfinished_pull_has_brought_waits_a_day_for_its_next_try() {
    let (_dir, repository) = repository();
    let (id, bytes) = image(&repository, None, 0..40);
    let (layout, manifest) = (
        repository.layout(&id).unwrap(),
        repository.manifest(&id).unwrap(),
    );
    repository.remove(&id).unwrap();
    let note = repository.tmp_dir().join(format!("{UNFINISHED_PULL}{id}"));
    std::fs::write(&note, layout.encode()).unwrap();
    assert_eq!(gc(&repository, false, vec![]), GcReport::default());
    repository.publish(&manifest, &layout).unwrap();
    assert_eq!(repository.read_region(&id, "ram", 1 << 20).unwrap(), bytes);
    // nobody has come back to it, and somebody wants all of the room
    repository.remove(&id).unwrap();
    let old = std::time::SystemTime::now() - Duration::from_secs(25 * 3600);
    let file = OpenOptions::new().write(true).open(&note).unwrap();
    file.set_modified(old).unwrap();
    let report = gc(&repository, false, vec![]);
    assert_eq!((report.packs, report.temporary), (1, 1));
    let (id, _) = image(&repository, None, 0..40);
    std::fs::write(&note, repository.layout(&id).unwrap().encode()).unwrap();
    repository.remove(&id).unwrap();
    let all = GcOptions {
        min_age: Duration::ZERO,
        unfinished: true,
        ..GcOptions::default()
    };
    let report = repository.gc(&all).unwrap();
    assert_eq!((report.packs, report.temporary), (1, 1));
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0u8];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], at).unwrap();
}

fn only_pack(repository: &Repository, id: &Hash) -> PackRef {
    let packs = repository.layout(id).unwrap().packs;
    assert_eq!(packs.len(), 1);
    packs[0]
}

#[test]
fn verify_finds_a_flipped_bit_anywhere_and_tells_what_is_lost() {
    let (_dir, repository) = repository();
    let (id, _) = image(&repository, None, 0..1100); // two segments
    let pack = only_pack(&repository, &id);
    let path = repository.pack_path(&pack.id);
    let pristine = std::fs::read(&path).unwrap();
    let step = (pristine.len() as u64 / 60).max(1);
    for at in (0..pristine.len() as u64)
        .step_by(step as usize)
        .chain([pristine.len() as u64 - 1])
    {
        flip(&path, at);
        let report = Repository::open(repository.dir())
            .unwrap()
            .verify(&id, &|_, _| true)
            .unwrap();
        assert!(!report.is_sound(), "a flipped bit at {at} was not found");
        assert!(
            report
                .damage
                .iter()
                .any(|d| d.lost.is_some() || d.file.ends_with(path.file_name().unwrap()))
        );
        std::fs::write(&path, &pristine).unwrap();
    }
    assert!(is_sound(&repository, &id));
    // A frame in the middle: exactly its 16 chunks are lost.
    let index = repository.index(&pack).unwrap();
    let frame = index.frame(3).unwrap();
    let first = index.frame_hashes(3)[0];
    flip(&path, frame.offset); // zstd's magic: nothing in the frame can be unpacked
    let report = repository.verify(&id, &|_, _| true).unwrap();
    let lost: Vec<&str> = report
        .damage
        .iter()
        .filter_map(|d| d.lost.as_deref())
        .collect();
    assert_eq!(lost.len(), 1, "{report:?}");
    let position = (0..1100)
        .position(|n| Hash::of(&chunk(n)) == first)
        .unwrap();
    assert_eq!(
        lost[0],
        format!("ram, chunks {position} to {}", position + 15)
    );
    // Reading reports it too and never returns wrong bytes; the other chunks are delivered.
    let wants: Vec<_> = (0..1100)
        .map(|n| (Kind::Chunk, Hash::of(&chunk(n))))
        .collect();
    let mut came = 0;
    let result = repository.read_items(&id, &wants, &mut |_, hash, bytes| {
        assert_eq!(Hash::of(bytes), hash);
        came += 1;
    });
    assert!(result.is_err());
    assert_eq!(came, 1100 - 16);
    // A pack cut off, a pack missing, and a damaged manifest.
    std::fs::write(&path, &pristine[..pristine.len() / 2]).unwrap();
    assert!(!is_sound(&repository, &id));
    std::fs::remove_file(&path).unwrap();
    let report = repository.verify(&id, &|_, _| true).unwrap();
    assert!(
        report
            .damage
            .iter()
            .any(|d| d.what.contains("No such file")),
        "{report:?}"
    );
    flip(&repository.manifest_path(&id), 30);
    let report = repository.verify(&id, &|_, _| true).unwrap();
    assert_eq!(report.damage[0].lost.as_deref(), Some("the whole image"));
    assert!(matches!(
        repository.manifest(&id),
        Err(StoreError::Corrupt { .. })
    ));
}

#[test]
fn a_damaged_copy_is_replaced_by_a_good_one_from_another_pack() {
    let (dir, repository) = repository();
    let (id, bytes) = image(&repository, None, 0..64);
    // The same chunks in another pack, with a chunk that only this pack has.
    let elsewhere = Repository::create(&dir.path().join("elsewhere")).unwrap();
    let (other, _) = image(&elsewhere, None, 0..65);
    let spare = elsewhere.pack_path(&only_pack(&elsewhere, &other).id);
    let adopted = repository.adopt_pack(&spare).unwrap();
    let mut layout = repository.layout(&id).unwrap();
    let first = repository.pack_path(&layout.packs[0].id);
    layout.packs.push(adopted);
    flip(&first, 100);
    let scope = repository.scope_of(&layout).unwrap();
    let wants: Vec<_> = bytes
        .chunks(CHUNK_SIZE)
        .map(|c| (Kind::Chunk, Hash::of(c)))
        .collect();
    let mut came = std::collections::HashSet::new();
    let missing = scope.read(&wants, &mut |_, hash, bytes| {
        assert!(Hash::of(bytes) == hash && came.insert(hash));
    });
    assert!(missing.unwrap().is_empty());
    assert_eq!(came.len(), 64);
}

#[test]
fn a_pack_is_adopted_only_if_every_item_is_what_its_index_says() {
    let (dir, theirs) = repository();
    let (id, _) = image(&theirs, None, 0..100);
    let pack = only_pack(&theirs, &id);
    let bytes = std::fs::read(theirs.pack_path(&pack.id)).unwrap();
    let ours = Repository::create(&dir.path().join("ours")).unwrap();
    for at in (0..bytes.len()).step_by(997).chain([0, bytes.len() - 1]) {
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        assert!(
            ours.adopt_pack_from(&mut &bad[..], 1 << 20).is_err(),
            "a pack with a wrong byte at {at} was taken"
        );
    }
    assert!(
        ours.adopt_pack_from(&mut &bytes[..bytes.len() / 2], 1 << 20)
            .is_err()
    );
    assert!(
        ours.adopt_pack_from(&mut &bytes[..], 100)
            .unwrap_err()
            .to_string()
            .contains("more than 100")
    );
    assert!(ours.adopt_pack_from(&mut &b""[..], 100).is_err());
    assert_eq!(
        std::fs::read_dir(ours.dir().join("packs")).unwrap().count(),
        0
    );
    assert_eq!(std::fs::read_dir(ours.tmp_dir()).unwrap().count(), 0);
    assert_eq!(
        ours.adopt_pack_from(&mut &bytes[..], 1 << 20).unwrap(),
        pack
    );
    let manifest = theirs.manifest(&id).unwrap();
    assert_eq!(
        ours.publish(&manifest, &theirs.layout(&id).unwrap())
            .unwrap(),
        id
    );
    assert!(is_sound(&ours, &id));
}

#[test]
fn a_shared_pack_lies_on_the_disk_once_and_each_of_its_names_outlives_the_other() {
    let (dir, theirs) = repository();
    let (id, _) = image(&theirs, None, 0..100);
    let pack = only_pack(&theirs, &id);
    let ours = Repository::create(&dir.path().join("ours")).unwrap();
    let own = ours.pack_path(&pack.id);
    let temporary = || std::fs::read_dir(ours.tmp_dir()).unwrap().count();
    let names = |path: &Path| std::fs::metadata(path).unwrap().nlink();
    // by a name of another place, and an old one
    let elsewhere = dir.path().join("elsewhere");
    let bytes = std::fs::read(theirs.pack_path(&pack.id)).unwrap();
    std::fs::write(&elsewhere, &bytes).unwrap();
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(1_000_000);
    let file = File::open(&elsewhere).unwrap();
    file.set_modified(long_ago).unwrap();
    for _ in 0..2 {
        assert_eq!(ours.share_pack(&elsewhere).unwrap(), pack);
        assert_eq!((names(&own), temporary()), (2, 0));
    }
    // no image lists it, but it is as young as one that was just made
    assert_eq!(ours.gc(&GcOptions::default()).unwrap().packs, 0);
    assert_eq!(gc(&ours, false, Vec::new()).packs, 1);
    assert!(std::fs::read(&elsewhere).unwrap() == bytes);
    ours.share_pack(&elsewhere).unwrap();
    let (manifest, layout) = (theirs.manifest(&id).unwrap(), theirs.layout(&id).unwrap());
    ours.publish(&manifest, &layout).unwrap();
    std::fs::remove_file(&elsewhere).unwrap();
    assert_eq!(names(&own), 1);
    assert!(is_sound(&ours, &id));
    // it is checked like any other
    let other = Repository::create(&dir.path().join("other")).unwrap();
    std::fs::write(&elsewhere, &bytes).unwrap();
    flip(&elsewhere, 100);
    assert!(other.share_pack(&elsewhere).is_err());
    assert!(other.share_pack(&dir.path().join("nowhere")).is_err());
    assert_eq!(std::fs::read_dir(other.tmp_dir()).unwrap().count(), 0);
    assert!(other.pack_path(&pack.id).metadata().is_err());
}

#[test]
fn an_old_image_gets_its_roots_by_one_pass() {
    let (dir, repository) = repository();
    let (id, _) = image(&repository, None, 0..1100);
    let bytes = |pack: &PackRef| std::fs::read(repository.pack_path(&pack.id)).unwrap();
    let is_right = |pack: &PackRef| pack.root == Some(Hash::of(&bytes(pack)));
    // what is written here has them
    let written = repository.layout(&id).unwrap();
    assert!(written.packs.iter().all(is_right));
    let adopted = Repository::create(&dir.path().join("ours")).unwrap();
    let taken = |pack: &PackRef| adopted.adopt_pack(&repository.pack_path(&pack.id)).unwrap();
    assert!(written.packs.iter().map(taken).all(|pack| is_right(&pack)));
    // as an older version wrote it
    let mut old = written.clone();
    old.packs.iter_mut().for_each(|pack| pack.root = None);
    let path = repository.layout_path(&id);
    std::fs::write(&path, old.encode()).unwrap();
    let read = repository.layout(&id).unwrap();
    assert!(read == written && read.packs.iter().all(|pack| pack.root.is_none()));
    for _ in 0..2 {
        repository.find_roots(&id).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), written.encode());
    }
    // bytes that went bad get none
    std::fs::write(&path, old.encode()).unwrap();
    flip(&repository.pack_path(&old.packs[0].id), 100);
    assert!(repository.find_roots(&id).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), old.encode());
}

#[test]
fn a_scope_gives_out_only_its_own_images_items() {
    let (_dir, repository) = repository();
    let (mine, _) = image(&repository, None, 0..10);
    image(&repository, None, 50..60);
    let (own, foreign) = (Hash::of(&chunk(3)), Hash::of(&chunk(53)));
    let wants = [
        (Kind::Chunk, own),
        (Kind::Chunk, foreign),
        (Kind::Segment, own),
        (Kind::Chunk, Hash::ZERO),
    ];
    assert_eq!(
        repository.scope(&mine).unwrap().has(&wants).unwrap(),
        [true, false, false, true]
    );
    let mut came = Vec::new();
    let missing = repository
        .read_items(&mine, &wants, &mut |kind, hash, _| came.push((kind, hash)))
        .unwrap();
    assert_eq!(came, [(Kind::Chunk, own)]);
    assert_eq!(missing.len(), 2);
}

#[test]
fn inspect_counts_zeros_and_what_the_parent_has() {
    let (_dir, repository) = repository();
    let (parent, _) = image(&repository, None, 0..1030);
    let mut ingest = Ingest::new(
        &repository,
        IngestOptions {
            parent: Some(parent),
            ..IngestOptions::default()
        },
    )
    .unwrap();
    let pages = [(2u64, vec![0; CHUNK_SIZE]), (7, chunk(5000)), (9, chunk(8))];
    ingest
        .region_from_pages(
            "ram",
            SEGMENT_SPAN + 10 * 4096,
            Some("ram"),
            pages.into_iter().map(Ok),
        )
        .unwrap();
    let id = ingest.finish(MachineConfig::default()).unwrap();
    let inspection = repository.inspect(&id).unwrap();
    let ram = &inspection.regions[0];
    assert_eq!(
        (ram.chunks, ram.zero_chunks, ram.parent_chunks),
        (1034, 5, 1028)
    );
    assert_eq!(inspection.lineage, [parent]);
    assert_eq!(inspection.shared_with_parent_bytes, 1028 * 4096);
}

#[test]
fn a_nodes_own_repository_is_closed_and_one_for_a_web_server_is_readable_but_for_its_lock() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (own, web) = (dir.path().join("own"), dir.path().join("srv/www/images"));
    let repositories = [
        (Repository::create(&own).unwrap(), 0o700, 0o600),
        (Repository::create_public(&web).unwrap(), 0o755, 0o644),
    ];
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    // The umask of a node: it must not remove what a web server needs.
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    for (repository, dirs, files) in &repositories {
        let root = repository.dir();
        let (id, _) = image(repository, None, 0..10);
        repository.tag(&name("a:b"), &id).unwrap();
        for part in ["images", "packs", "tags"] {
            assert_eq!(mode(&root.join(part)), *dirs, "{part}");
        }
        assert_eq!(mode(&root.join("tmp")), 0o700);
        assert_eq!(mode(&root.join("lock")), 0o600);
        assert_eq!(mode(&root.join("version")), *files);
        assert_eq!(mode(&root.join("images").join(id.to_string())), *files);
        let pack = repository.pack_path(&repository.layout(&id).unwrap().packs[0].id);
        assert_eq!(mode(&pack), *files);
        assert_eq!(mode(pack.parent().unwrap()), *dirs);
        assert_eq!(mode(&root.join("tags/a~~b")), *files);
    }
    rustix::process::umask(before);
    assert_eq!(mode(&dir.path().join("srv")), 0o755);
    // A lock that an older version left open is closed by the next process that takes it.
    let lock = web.join("lock");
    std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o644)).unwrap();
    image(&Repository::create_public(&web).unwrap(), None, 0..11);
    assert_eq!(mode(&lock), 0o600);
}
