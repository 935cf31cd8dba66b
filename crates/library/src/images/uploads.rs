//! Files that a browser uploads: kept in the state directory's `tmp/` until they are imported.

use crate::images::Images;
use bytes::Bytes;
use floe_api::UploadInfo;
use floe_ground::error::{NodeError, at, failed, not_found, usage};
use futures::{Stream, StreamExt};
use std::{path::PathBuf, time::Duration};
use tokio::io::AsyncWriteExt;

/// Beginning of the files' names.
const PREFIX: &str = "upload-";
/// Largest file in bytes: the largest image that a hub takes.
pub(crate) const UPLOAD_BYTES_MAX: u64 = 64 << 30;
/// How long a file is kept that nobody imports.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// Free space that an upload leaves on the disk, bytes: machines write there too.
const DISK_RESERVE_BYTES: u64 = 256 << 20;
/// After how many bytes the free space is checked again.
const LOOK_EVERY_BYTES: u64 = 64 << 20;

/// A file that is being received; it is deleted unless it becomes complete.
struct Partial(Option<PathBuf>);

impl Drop for Partial {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Images {
    /// Receives a file and returns its id.
    pub async fn receive_upload<E: std::fmt::Display>(
        &self,
        mut body: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Result<UploadInfo, NodeError> {
        self.forget_old_uploads();
        let id: String = rand::random::<[u8; 12]>()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let path = self.core.home.tmp().join(format!("{PREFIX}{id}"));
        let shown = path.display().to_string();
        let write_failed = || at(format!("cannot write {shown}"));
        let mut file = tokio::fs::File::create_new(&path)
            .await
            .map_err(write_failed())?;
        let mut partial = Partial(Some(path));
        let (mut bytes, mut looked_at) = (0u64, 0u64);
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(|error| {
                usage(format!("the upload broke off: {error}"), "send it again")
            })?;
            bytes += piece.len() as u64;
            if bytes > UPLOAD_BYTES_MAX {
                let what = format!("the file has more than {} GiB", UPLOAD_BYTES_MAX >> 30);
                return Err(usage(what, "import it on the host: floe image import"));
            }
            if bytes >= looked_at {
                looked_at = bytes + LOOK_EVERY_BYTES;
                self.check_room()?;
            }
            file.write_all(&piece).await.map_err(write_failed())?;
        }
        file.flush().await.map_err(write_failed())?;
        let path = partial.0.take().unwrap_or_default();
        Ok(UploadInfo {
            id,
            path: path.display().to_string(),
            bytes,
        })
    }

    fn check_room(&self) -> Result<(), NodeError> {
        let dir = self.core.home.tmp();
        let stat = rustix::fs::statvfs(&dir)
            .map_err(|error| at(format!("cannot look at {}", dir.display()))(error.into()))?;
        if stat.f_bavail.saturating_mul(stat.f_frsize) < DISK_RESERVE_BYTES + LOOK_EVERY_BYTES {
            return Err(failed(
                format!("the disk under {} is full", dir.display()),
                "make room: floe image rm, floe cache gc",
            ));
        }
        Ok(())
    }

    /// Removes a received file.
    pub fn drop_upload(&self, id: &str) -> Result<(), NodeError> {
        // the id becomes part of a path, so only ids that this module makes are accepted
        let ours = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let path = self.core.home.tmp().join(format!("{PREFIX}{id}"));
        let absent = || not_found(format!("there is no upload {id:?}"), "");
        if !ours {
            return Err(absent());
        }
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(absent()),
            removed => removed.map_err(at(format!("cannot remove {}", path.display()))),
        }
    }

    /// Removes temporary files that a killed node left, except uploads, which may still be imported, and what a pull that was not
    /// finished goes on from.
    pub fn tidy_tmp(&self) {
        tidy(&self.core.home.tmp());
        // also those that came in part when the node was killed
        self.forget_old_uploads();
        match self.repo.remove_unfinished() {
            Ok(0) => {}
            Ok(bytes) => tracing::info!(
                bytes,
                "what was being stored when the last node ended is gone"
            ),
            Err(error) => {
                tracing::warn!(%error, "what was being stored when the last node ended stays")
            }
        }
    }

    fn forget_old_uploads(&self) {
        let Ok(files) = std::fs::read_dir(self.core.home.tmp()) else {
            return;
        };
        for file in files.flatten() {
            let ours = file.file_name().to_string_lossy().starts_with(PREFIX);
            let age = file.metadata().and_then(|meta| meta.modified()).ok();
            let old = age.is_some_and(|time| time.elapsed().is_ok_and(|age| age > KEPT));
            if ours && old {
                let _ = std::fs::remove_file(file.path());
            }
        }
    }
}

fn tidy(dir: &std::path::Path) {
    for file in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let upload = file.file_name().to_string_lossy().starts_with(PREFIX);
        let of_kind = |is: fn(&std::fs::FileType) -> bool| file.file_type().is_ok_and(|t| is(&t));
        if !upload && of_kind(std::fs::FileType::is_file) {
            let _ = std::fs::remove_file(file.path());
        } else if of_kind(std::fs::FileType::is_dir) {
            let _ = std::fs::remove_dir_all(file.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_starts_removes_what_a_killed_one_left_but_not_uploads() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["screenUJ219s", "convertX", "upload-0a"] {
            std::fs::write(dir.path().join(name), b"x").unwrap();
        }
        std::fs::create_dir_all(dir.path().join("substrateKx/images")).unwrap();
        tidy(dir.path());
        let left = std::fs::read_dir(dir.path()).unwrap().flatten();
        let left: Vec<_> = left.map(|file| file.file_name()).collect();
        assert_eq!(left, ["upload-0a"]);
    }
}
