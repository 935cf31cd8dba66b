//! The file of a foreign disk: its bytes, and what a user is told if it is refused.

use crate::disk_refused::Refused;
use floe_ground::error::{NodeError, at, refused};
use std::{
    fs::File,
    io::{self, Seek, SeekFrom},
    os::unix::fs::FileExt,
};

/// Most disks that an import may have.
pub const DISKS_MAX: usize = 16;
/// What a user can do with a file that is only a layer over others, which a stranger may have chosen.
const STAND_ALONE: &str = "have whoever made it send one file that stands alone. Only if you trust it: `qemu-img convert -O qcow2 IN OUT` \
     makes one, and copies whatever files of this host it names into that";

/// Fills the buffer as far as the file has bytes there; returns how many.
pub fn read_up_to(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        let Some(at) = offset
            .checked_add(len as u64)
            .filter(|at| *at < i64::MAX as u64)
        else {
            break;
        };
        match file.read_at(&mut buffer[len..], at)? {
            0 => break,
            more => len += more,
        }
    }
    Ok(len)
}

/// Returns how many bytes a file or a block device has.
pub(crate) fn length_of(mut file: &File, shown: &str) -> Result<u64, NodeError> {
    // a block device's metadata has no length
    let end = file.seek(SeekFrom::End(0));
    end.map_err(at(format!("cannot find the size of {shown}")))
}

/// Says why an image is refused.
pub(crate) fn not_alone(shown: &str, why: &Refused) -> NodeError {
    match why {
        Refused::Needs { what, name } => {
            refused(format!("{shown} needs the {what} {name}"), STAND_ALONE)
        }
        Refused::Encrypted(how) => refused(
            format!("{shown} is encrypted ({how})"),
            "decrypt it first, with the program that made it or qemu-img convert --object secret, and import what comes out",
        ),
        Refused::Part => refused(
            format!("{shown} is one of several files of a split VMDK"),
            "import the small file that describes them, with them all beside it, or a tar archive of all",
        ),
        Refused::Damaged(what) => refused(
            format!("{shown} can't be read: {what}"),
            "check the file with `qemu-img check`",
        ),
    }
}
