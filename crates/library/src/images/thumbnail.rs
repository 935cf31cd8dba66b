//! An image's thumbnail, and a machine's screen as the source of one.

use crate::images::{Images, named::named};
use floe_front::page::thumbnail::{THUMB_BYTES_MAX, THUMB_REGION, is_png, of_screen};
use floe_ground::{
    caller::Visible,
    error::{NodeError, at, not_found},
};
use floe_image::Hash;
use floe_machine::Machine;

impl Images {
    /// Returns an image's id and its thumbnail as PNG.
    pub fn thumbnail(&self, image: &Visible<String>) -> Result<(Hash, Vec<u8>), NodeError> {
        let id = named(&self.repo, image)?;
        let none = || not_found(format!("image {} has no thumbnail", id.short()), "");
        if self.repo.manifest(&id)?.region(THUMB_REGION).is_none() {
            return Err(none());
        }
        let png = self.repo.read_region(&id, THUMB_REGION, THUMB_BYTES_MAX)?;
        if !is_png(&png) {
            return Err(none());
        }
        Ok((id, png))
    }

    /// Returns the screen of a machine as a thumbnail; `None` if it has no screen or shows nothing.
    pub fn take_thumbnail(&self, vm: &Machine) -> Option<Vec<u8>> {
        let shot = self.scratch("screen").and_then(|file| {
            vm.screenshot(file.path())?;
            std::fs::read(file.path()).map_err(at("cannot read the screen"))
        });
        match shot {
            Ok(png) => of_screen(&png),
            // a machine without a screen can be captured too
            Err(error) => {
                tracing::debug!(%error, "no thumbnail");
                None
            }
        }
    }
}
