//! Calls about images, and about those that are mounted in directories of the user's choice.

use super::{Client, ClientError, Events};
use crate::*;
use floe_http::escape;

impl Client {
    /// Returns all images.
    pub fn images(&self) -> Result<ImageList, ClientError> {
        self.get("/v1/images")
    }
    /// Returns one image.
    pub fn image(&self, image: &str) -> Result<ImageDetail, ClientError> {
        self.get(&format!("/v1/image?image={}", escape(image)))
    }
    /// Imports disks and kernels.
    pub fn import(&self, request: &ImportRequest) -> Result<Events, ClientError> {
        self.stream("/v1/images/import", request)
    }
    /// Reads and hashes all of an image.
    pub fn verify_image(&self, image: &str) -> Result<Events, ClientError> {
        self.stream(
            "/v1/images/verify",
            &ImageQuery {
                image: image.into(),
            },
        )
    }
    /// Rearranges an image's packs in the order in which machines touch them.
    pub fn optimize(&self, request: &OptimizeRequest) -> Result<Events, ClientError> {
        self.stream("/v1/images/optimize", request)
    }
    /// Gives an image an additional name.
    pub fn tag(&self, image: &str, name: &str) -> Result<(), ClientError> {
        self.post_empty(
            "/v1/images/tag",
            &TagRequest {
                image: image.into(),
                name: name.into(),
            },
        )
    }
    /// Takes a name away from an image.
    pub fn untag(&self, name: &str) -> Result<(), ClientError> {
        self.post_empty(
            "/v1/images/untag",
            &TagRequest {
                image: String::new(),
                name: name.into(),
            },
        )
    }
    /// Removes a name; with the last name also the image.
    pub fn remove_image(&self, request: &RemoveImageRequest) -> Result<FreedReport, ClientError> {
        self.post("/v1/images/remove", request)
    }
    /// Writes a region to a file.
    pub fn export(&self, request: &ExportRequest) -> Result<Events, ClientError> {
        self.stream("/v1/images/export", request)
    }
    /// Sends an image to a hub or directory.
    pub fn push(&self, request: &PushRequest) -> Result<Events, ClientError> {
        self.stream("/v1/images/push", request)
    }
    /// Copies an image between any two places.
    pub fn copy_image(&self, request: &CopyRequest) -> Result<Events, ClientError> {
        self.stream("/v1/images/copy", request)
    }
    /// Fetches a whole image.
    pub fn pull(&self, request: &PullRequest) -> Result<Events, ClientError> {
        self.stream("/v1/images/pull", request)
    }
    /// Shows an image's regions as files in a directory.
    pub fn mount(&self, request: &MountRequest) -> Result<MountInfo, ClientError> {
        self.post("/v1/mounts", request)
    }
    /// Removes such a view.
    pub fn unmount(&self, path: &str) -> Result<(), ClientError> {
        self.post_empty("/v1/mounts/remove", &UnmountRequest { path: path.into() })
    }
    /// Returns the additional views of images.
    pub fn mounts(&self) -> Result<MountList, ClientError> {
        self.get("/v1/mounts")
    }
}
