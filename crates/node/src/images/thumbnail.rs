//! An image's thumbnail, and a machine's screen on the way to become one.

use crate::{
    error::{NodeError, at, not_found},
    images::Images,
};
use floe_front::page::thumbnail::{THUMB_BYTES_MAX, THUMB_REGION, is_png, of_screen};
use floe_image::Hash;
use floe_machine::Machine;

impl Images {
    /// An image's id and its thumbnail, PNG.
    pub fn thumbnail(&self, image: &str) -> Result<(Hash, Vec<u8>), NodeError> {
        let id = self.repo.resolve(image)?;
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

    /// The screen of a machine as a thumbnail; `None` where it has none or shows nothing.
    pub(crate) fn take_thumbnail(&self, vm: &Machine) -> Option<Vec<u8>> {
        let shot = self.scratch("screen").and_then(|file| {
            vm.screenshot(file.path())?;
            std::fs::read(file.path()).map_err(at("cannot read the screen"))
        });
        match shot {
            Ok(png) => of_screen(&png),
            // a machine without a screen is as good
            Err(error) => {
                tracing::debug!(%error, "no thumbnail");
                None
            }
        }
    }
}
