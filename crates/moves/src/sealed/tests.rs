use super::*;
use floe_image::PackRef;
use floe_store::GcOptions;
use std::{cell::Cell, collections::BTreeSet, os::unix::fs::PermissionsExt, path::PathBuf};
use tempfile::TempDir;

fn place() -> (TempDir, Repository) {
    let dir = tempfile::tempdir().unwrap();
    let repo = Repository::create(dir.path()).unwrap();
    (dir, repo)
}

fn always(_done: u64, _total: u64) -> bool {
    true
}

/// Goes on so often.
fn cut_after(steps: u32) -> impl Fn(u64, u64) -> bool {
    let left = Cell::new(steps);
    move |_, _| {
        let goes_on = left.get() > 0;
        left.set(left.get().saturating_sub(1));
        goes_on
    }
}

/// Chunks that no compression makes smaller.
fn noise(seed: u32, chunks: u32) -> Vec<u8> {
    let parts = 0..chunks * (CHUNK_SIZE / 32) as u32;
    let part = |number: u32| Hash::of(&[seed.to_le_bytes(), number.to_le_bytes()].concat()).0;
    parts.flat_map(part).collect()
}

/// Stores what a machine is.
fn machine(repo: &Repository, parent: Option<Hash>, ram: &[u8]) -> Hash {
    let options = IngestOptions {
        parent,
        ..Default::default()
    };
    let mut ingest = Ingest::new(repo, options).unwrap();
    ingest.region_bytes("ram", ram).unwrap();
    ingest.region_bytes("device", b"its devices").unwrap();
    let mut config = MachineConfig::default();
    config.labels.insert(PARK_LABEL.into(), "1".into());
    ingest.finish(config).unwrap()
}

/// Brings an image elsewhere, as it is.
fn carry(image: &Hash, from: &Repository, to: &Repository) {
    let layout = from.layout(image).unwrap();
    for pack in &layout.packs {
        to.adopt_pack(&from.pack_path(&pack.id)).unwrap();
    }
    let manifest = from.manifest(image).unwrap();
    assert_eq!(to.publish(&manifest, &layout).unwrap(), *image);
}

/// Removes what no image needs, and returns which packs are there.
fn packs_of(repo: &Repository) -> BTreeSet<PathBuf> {
    let options = GcOptions {
        min_age: Duration::ZERO,
        ..Default::default()
    };
    repo.gc(&options).unwrap();
    let folders = std::fs::read_dir(repo.dir().join("packs")).unwrap();
    folders
        .flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap())
        .map(|pack| pack.unwrap().path())
        .collect()
}

fn shows(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn what_is_sealed_shows_nothing_and_opens_with_its_key_alone() {
    let [(_dir, here), (_other, there)] = [place(), place()];
    let (key, wrong) = (RestKey::of("a key"), RestKey::of("another key"));
    let ram = noise(1, 600);
    let image = machine(&here, None, &ram);
    let sealed = seal(&here, &image, &key, None, &always).unwrap();
    carry(&sealed, &here, &there);
    assert!(is_sealed(&there.manifest(&sealed).unwrap()));
    assert!(!is_sealed(&here.manifest(&image).unwrap()));

    let part = &ram[9 * CHUNK_SIZE..][..64];
    let plain = here.layout(&image).unwrap().packs;
    let plain = plain.iter().map(|pack| here.pack_path(&pack.id));
    let mut plain = plain.map(|path| std::fs::read(path).unwrap());
    assert!(plain.any(|bytes| shows(&bytes, part)));
    for region in [MANIFEST, LAYOUT, PACKS] {
        let bytes = there.read_region(&sealed, region, u64::MAX).unwrap();
        assert!(!shows(&bytes, part), "{region}");
        assert!(!shows(&bytes, b"device"), "{region}");
    }

    let before = packs_of(&there);
    assert!(open(&there, &sealed, &wrong, &always).is_err());
    assert_eq!(there.image_ids().unwrap(), [sealed]);
    assert_eq!(packs_of(&there), before);
    assert_eq!(open(&there, &sealed, &key, &always).unwrap(), image);
    assert_eq!(there.read_region(&image, "ram", u64::MAX).unwrap(), ram);
    assert!(
        open(&there, &image, &key, &always).is_err(),
        "it is not sealed"
    );
}

#[test]
fn what_is_cut_in_any_step_leaves_nothing_to_be_read_and_is_done_again() {
    let [(_dir, here), (_other, there)] = [place(), place()];
    let key = RestKey::of("a key");
    let image = machine(&here, None, &noise(1, 1500));
    let mut steps = 0;
    let sealed = loop {
        match seal(&here, &image, &key, None, &cut_after(steps)) {
            Ok(sealed) => break sealed,
            Err(_) => assert_eq!(here.image_ids().unwrap(), [image]),
        }
        steps += 1;
    };
    assert!(steps > 2, "{steps}");
    carry(&sealed, &here, &there);
    let before = packs_of(&there);
    let mut steps = 0;
    let opened = loop {
        match open(&there, &sealed, &key, &cut_after(steps)) {
            Ok(opened) => break opened,
            Err(_) => {
                assert_eq!(there.image_ids().unwrap(), [sealed]);
                assert_eq!(packs_of(&there), before, "{steps}");
            }
        }
        steps += 1;
    };
    assert!(steps > 2, "{steps}");
    assert_eq!(opened, image);
    assert_ne!(packs_of(&there), before);
    // the machine has gone, and comes again
    there.remove(&image).unwrap();
    assert_eq!(packs_of(&there), before);
    assert_eq!(open(&there, &sealed, &key, &always).unwrap(), image);
}

#[test]
fn a_sync_seals_what_the_one_before_had_not_and_opens_to_all_of_it() {
    let [(_dir, here), (_other, there)] = [place(), place()];
    let key = RestKey::of("a key");
    let (one, mut two) = (noise(1, 1500), noise(1, 1500));
    two[7 * CHUNK_SIZE..8 * CHUNK_SIZE].copy_from_slice(&noise(2, 1));
    let (mut image, mut sealed) = (None, None);
    let mut sizes = Vec::new();
    // it changes, goes back to what it was, and changes as before
    for ram in [&one, &two, &one, &two] {
        let known: Vec<PackRef> = match &sealed {
            Some(sealed) => here.layout(sealed).unwrap().packs,
            None => Vec::new(),
        };
        let now = machine(&here, image, ram);
        let told = seal(&here, &now, &key, sealed, &always).unwrap();
        let packs = here.layout(&told).unwrap().packs;
        let new = packs.iter().filter(|pack| !known.contains(pack));
        sizes.push(new.map(|pack| pack.file_bytes).sum::<u64>());
        carry(&told, &here, &there);
        assert_eq!(open(&there, &told, &key, &always).unwrap(), now);
        assert_eq!(&there.read_region(&now, "ram", u64::MAX).unwrap(), ram);
        (image, sealed) = (Some(now), Some(told));
    }
    assert!(
        sizes[1..].iter().all(|size| size * 8 < sizes[0]),
        "{sizes:?}"
    );
    // with another key all is sealed anew
    let (other, now) = (RestKey::of("another key"), image.unwrap());
    let anew = seal(&here, &now, &other, sealed, &always).unwrap();
    let (_dir, elsewhere) = place();
    carry(&anew, &here, &elsewhere);
    assert!(open(&elsewhere, &anew, &key, &always).is_err());
    let opened = open(&elsewhere, &anew, &other, &always).unwrap();
    assert_eq!(opened, now);
}

#[test]
fn a_nodes_key_is_made_once_and_one_that_is_damaged_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("seal.key");
    let key = own_key(&path).unwrap();
    assert_eq!(key.len(), 64);
    assert_eq!(own_key(&path).unwrap(), key);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0);
    for damaged in [&b""[..], b"short", &[0xff; 64]] {
        std::fs::write(&path, damaged).unwrap();
        assert!(own_key(&path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), damaged);
    }
}
