//! A directory with disks, and a node that imports them.

use super::node::TestNode;
use floe_api::{ImportRequest, Outcome};
use std::{
    fs,
    path::{Path, PathBuf},
};

pub struct Rig {
    pub node: TestNode,
    dir: tempfile::TempDir,
}

impl Rig {
    pub fn new() -> Rig {
        let (node, dir) = (TestNode::start(), tempfile::tempdir().unwrap());
        Rig { node, dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Imports a disk under its file's name; returns what the image is, or the error's text.
    pub fn import_disk(&self, disk: &Path, request: ImportRequest) -> Result<Outcome, String> {
        let name = disk.file_name().unwrap().to_str().unwrap();
        let request = ImportRequest {
            disks: vec![disk.display().to_string()],
            name: Some(name.replace('.', "-")),
            ..request
        };
        let events = self.node.client().import(&request);
        let done = events.and_then(|events| events.finish(|_| ()));
        done.map_err(|error| error.to_string())
    }

    pub fn assert_nothing_is_left(&self) {
        let left = fs::read_dir(self.node.home().join("tmp")).unwrap().count();
        assert_eq!(left, 0, "temporary files are left");
    }
}
