//! Rules for who knows whom inside a crate: the files and folders of its source, and those of each folder there, called rooms here, know
//! each other in one direction. What two of them need of each other belongs into a third one below both.
//!
//! The graph is drawn from the source: from the paths that begin at the module whose rooms these are, in whatever way they begin there, and
//! from what that module's own file gives other names. Tests may know everything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use floe_tests::{code, read, tracked};

/// For each room the other rooms that it names.
type Rooms = BTreeMap<String, BTreeSet<String>>;

/// The folders of all crates' source, and how a path to one of their rooms begins.
fn folders(files: &[PathBuf]) -> BTreeMap<PathBuf, String> {
    let mut folders = BTreeMap::new();
    for file in files {
        let parts: Vec<_> = file.iter().map(|part| part.to_string_lossy()).collect();
        if parts.len() < 4 || parts[0] != "crates" || parts[2] != "src" {
            continue;
        }
        let mut module = "crate::".to_owned();
        for (at, part) in parts.iter().enumerate().skip(3) {
            if part == "tests" {
                break;
            }
            folders.insert(file.iter().take(at).collect(), module.clone());
            module = format!("{module}{part}::");
        }
    }
    folders
}

/// The name at the beginning of a text.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| c != '_' && !c.is_ascii_alphanumeric());
    &text[..end.unwrap_or(text.len())]
}

/// The items of a group, of whose text the opening brace is missing.
fn items(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                found.push(group[start..at].trim());
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(group[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    found.retain(|item| !item.is_empty());
    found
}

/// The first names behind `module` in a file's code, those of groups included.
fn named(code: &str, module: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices(module) {
        let rest = &code[at + module.len()..];
        match rest.strip_prefix('{') {
            Some(group) => found.extend(items(group).into_iter().map(|item| word(item).to_owned())),
            None => {
                found.insert(word(rest).to_owned());
            }
        }
    }
    found
}

/// The name under which it is noted that a root takes all that a room declares.
fn all_of(room: &str) -> String {
    format!("{room}::*")
}

/// Notes the names that a `use` makes, each with the room that it is from.
fn leaves(tree: &str, room: Option<&str>, given: &mut BTreeMap<String, String>) {
    let tree = tree.trim();
    let room = room.unwrap_or_else(|| word(tree));
    match tree.split_once('{') {
        Some((_, group)) => {
            for item in items(group) {
                leaves(item, Some(room), given);
            }
        }
        None => {
            let name = tree.rsplit([':', ' ']).next().unwrap_or_default();
            let name = match name {
                "*" => all_of(room),
                name => name.to_owned(),
            };
            given.insert(name, room.to_owned());
        }
    }
}

/// The names that a module's own file takes from its rooms, each with its room: others find them there by these names.
fn given(root: &str) -> BTreeMap<String, String> {
    let mut given = BTreeMap::new();
    for statement in root.split(';') {
        let statement = format!("\n{statement}");
        let begins = [
            "\nuse ",
            "\npub use ",
            "\npub(crate) use ",
            "\npub(super) use ",
        ];
        let tree = begins
            .iter()
            .find_map(|begin| statement.rsplit_once(*begin));
        if let Some((_, tree)) = tree {
            leaves(tree, None, &mut given);
        }
    }
    given
}

/// The names that a file's code makes for others, as far as a line begins with them.
fn declared(code: &str) -> BTreeSet<String> {
    let kinds = [
        "fn ",
        "async fn ",
        "struct ",
        "enum ",
        "trait ",
        "type ",
        "const ",
        "static ",
    ];
    let public = code.lines().filter_map(|line| line.strip_prefix("pub "));
    let names = public.filter_map(|item| kinds.iter().find_map(|kind| item.strip_prefix(*kind)));
    names.map(|name| word(name).to_owned()).collect()
}

/// Draws the graph of the rooms in a folder.
fn rooms(files: &[PathBuf], base: &Path, module: &str) -> Rooms {
    let (mut rooms, mut root) = (Rooms::new(), BTreeMap::new());
    let mut declares: Rooms = BTreeMap::new();
    // a module's own file is in its folder, or beside it
    let beside = base.with_extension("rs");
    for file in files {
        if *file == beside {
            root = given(&code(&read(file)));
            continue;
        }
        let Ok(below) = file.strip_prefix(base) else {
            continue;
        };
        let parts: Vec<_> = below.iter().map(|part| part.to_string_lossy()).collect();
        let (Some(first), Some(name)) = (parts.first(), parts.last()) else {
            continue;
        };
        if name.contains("tests") || name == "interleavings.rs" {
            continue;
        }
        let mut code = code(&read(file));
        if parts.len() == 1 && ["lib.rs", "mod.rs"].contains(&&**name) {
            root = given(&code);
            continue;
        }
        // as many steps up as there are to the module
        let depth = parts.len() - usize::from(name == "mod.rs");
        code = code.replace(&"super::".repeat(depth), module);
        let room = first.trim_end_matches(".rs").to_owned();
        declares
            .entry(room.clone())
            .or_default()
            .extend(declared(&code));
        rooms.entry(room).or_default().extend(named(&code, module));
    }
    for (room, names) in &declares {
        if root.contains_key(&all_of(room)) {
            for name in names {
                root.entry(name.clone()).or_insert_with(|| room.clone());
            }
        }
    }
    let known: BTreeSet<String> = rooms.keys().cloned().collect();
    for (room, others) in &mut rooms {
        let names = std::mem::take(others).into_iter();
        let names = names.map(|name| root.get(&name).cloned().unwrap_or(name));
        *others = names
            .filter(|other| other != room && known.contains(other))
            .collect();
    }
    rooms
}

/// A way from a room back to itself, if there is one.
fn circle(rooms: &Rooms) -> Option<Vec<String>> {
    fn walk(at: &str, rooms: &Rooms, way: &mut Vec<String>, done: &mut BTreeSet<String>) -> bool {
        if way.iter().any(|room| room == at) {
            way.push(at.to_owned());
            return true;
        }
        if done.contains(at) {
            return false;
        }
        way.push(at.to_owned());
        if rooms[at].iter().any(|next| walk(next, rooms, way, done)) {
            return true;
        }
        way.pop();
        done.insert(at.to_owned());
        false
    }
    let mut done = BTreeSet::new();
    rooms.keys().find_map(|room| {
        let mut way = Vec::new();
        walk(room, rooms, &mut way, &mut done).then_some(way)
    })
}

#[test]
fn the_rooms_of_a_crate_know_each_other_in_one_direction() {
    let files = tracked(&["rs"]);
    let mut arrows = 0;
    for (base, module) in folders(&files) {
        let rooms = rooms(&files, &base, &module);
        arrows += rooms.values().map(BTreeSet::len).sum::<usize>();
        if let Some(way) = circle(&rooms) {
            panic!(
                "{} has a circle: {}; move what two of them need into a file below both",
                base.display(),
                way.join(" -> ")
            );
        }
    }
    assert!(arrows > 1000, "only {arrows} arrows were seen");
}

#[test]
fn what_a_room_names_is_seen_in_each_way_of_writing_it() {
    let files = tracked(&["rs"]);
    let rooms = rooms(&files, Path::new("crates/machines/src"), "crate::");
    assert!(rooms.len() > 10 && rooms["run"].contains("machines"));
    // by a name that the root gives, and by the way up
    let hub = self::rooms(&files, Path::new("crates/hub/src"), "crate::");
    assert!(hub["swarm_routes"].contains("swarm") && hub["swarm"].contains("disk"));
    // by a name of a room of which the root takes all
    assert!(hub["tls"].contains("options"));
    // in a folder within others
    let (folder, module) = (Path::new("crates/sched/src/cpu/user"), "crate::cpu::user::");
    assert_eq!(folders(&files)[folder], module);
    assert!(self::rooms(&files, folder, module)["lend"].contains("machine"));
    // the finder finds one
    let mut circular = rooms;
    let machines = circular.get_mut("machines").expect("a room");
    machines.insert("run".into());
    assert!(circle(&circular).is_some());
}

#[test]
fn groups_are_taken_apart_up_to_their_end() {
    let code = "use crate::{\n    a::{b, c},\n    d,\n}; use crate::e::f; crate::g()";
    let found: Vec<String> = named(code, "crate::").into_iter().collect();
    assert_eq!(found, ["a", "d", "e", "g"]);
    let given = given("mod a;\npub use a::{B, c::D as E};\nuse std::path::Path;\n");
    let pairs: Vec<(&str, &str)> = given.iter().map(|(n, r)| (&**n, &**r)).collect();
    assert_eq!(pairs, [("B", "a"), ("E", "a"), ("Path", "std")]);
    let declared = declared("pub fn one() {}\npub struct Two;\nfn three() {}\n");
    assert_eq!(declared.into_iter().collect::<Vec<_>>(), ["Two", "one"]);
}
