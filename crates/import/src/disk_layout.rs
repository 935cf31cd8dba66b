//! Lays a disk out in a raw file of the node's, from files that hold its bytes as they are, which `qemu-img` can't read or would read
//! wrongly: a fixed VHD with something behind its footer, a VHDX with sectors of 4096 bytes, a VMDK of several files.

use crate::{
    disk_extent::{self, Facts, Fault},
    disk_file::{length_of, not_alone, read_up_to},
    disk_format::{self, Format},
    disk_refused::Refused,
    disk_vmdk::{Extent, Form},
    unpack::check_space,
};
use floe_ground::{
    error::{NodeError, at, refused},
    report::ProgressLine,
};
use std::{cell::RefCell, fs::File, os::unix::fs::FileExt};

/// How many bytes are copied at once.
const BLOCK_BYTES: usize = 1 << 20;
/// The smallest hole, in bytes.
const HOLE_BYTES: usize = 4096;
/// After how many written bytes the free space is checked again.
const SPACE_EVERY_BYTES: u64 = 64 << 20;

/// The file that a disk is laid out in.
pub struct Layout<'a> {
    to: &'a File,
    /// Its length in bytes.
    len: u64,
    /// The disk's name in messages.
    shown: &'a str,
    progress: &'a ProgressLine,
    /// How many bytes were read.
    done: u64,
    /// Bytes written since the free space was last checked.
    written: u64,
    block: Vec<u8>,
}

impl<'a> Layout<'a> {
    /// Begins a disk of `len` bytes in an empty file.
    pub fn new(
        to: &'a File,
        len: u64,
        shown: &'a str,
        progress: &'a ProgressLine,
    ) -> Result<Layout<'a>, NodeError> {
        if len > floe_image::IMAGE_BYTES_MAX {
            return Err(refused(
                format!("{shown} is a disk of {len} bytes"),
                "no image can be that large",
            ));
        }
        to.set_len(len)
            .map_err(at(format!("cannot lay out {shown}")))?;
        Ok(Layout {
            to,
            len,
            shown,
            progress,
            done: 0,
            written: 0,
            block: vec![0; BLOCK_BYTES],
        })
    }

    /// Copies so many bytes of a file to a place of the disk. What is zero becomes a hole, and holes are passed over.
    pub fn copy(
        &mut self,
        from: &File,
        at_file: u64,
        bytes: u64,
        to: u64,
    ) -> Result<(), NodeError> {
        let shown = self.shown;
        let what = || at(format!("cannot lay out {shown}"));
        let needs = at_file.saturating_add(bytes);
        if needs > length_of(from, shown)? {
            return Err(cut_off(shown, needs));
        }
        let end = at_file + bytes.min(self.len.saturating_sub(to));
        let mut place = at_file;
        while place < end
            && let Some((start, data_end)) =
                floe_store::next_data(from, place, end).map_err(what())?
        {
            place = start;
            while place < data_end.min(end) {
                let most = (data_end.min(end) - place).min(BLOCK_BYTES as u64) as usize;
                let got = read_up_to(from, place, &mut self.block[..most]).map_err(what())?;
                if got < most {
                    return Err(cut_off(shown, needs)); // it has become shorter
                }
                self.write(got, to + (place - at_file))?;
                place += got as u64;
            }
            let done = self.done + (place - at_file);
            if !self.progress.at(done.min(self.len), self.len) {
                return Err(NodeError::Cancelled);
            }
        }
        self.done += bytes;
        Ok(())
    }

    /// Writes so many bytes of the block to a place of the disk.
    fn write(&mut self, len: usize, to: u64) -> Result<(), NodeError> {
        let mut place = to;
        for part in self.block[..len].chunks(HOLE_BYTES) {
            if part.iter().any(|byte| *byte != 0) {
                let written = self.to.write_all_at(part, place);
                written.map_err(at(format!("cannot lay out {}", self.shown)))?;
                self.written += part.len() as u64;
            }
            place += part.len() as u64;
        }
        if self.written >= SPACE_EVERY_BYTES {
            self.written = 0;
            check_space(self.to, self.shown)?;
        }
        Ok(())
    }

    /// Copies what a file with tables of its own holds of the disk, from this place of the disk on; at most `bytes`.
    pub fn copy_mapped(
        &mut self,
        format: Format,
        from: &File,
        name: &str,
        place: u64,
        bytes: u64,
    ) -> Result<Facts, NodeError> {
        let read = |offset: u64, buffer: &mut [u8]| read_up_to(from, offset, buffer);
        let len = length_of(from, name)?;
        let cancel = self.progress.cancel().clone();
        let failed = RefCell::new(None);
        let layout = RefCell::new(&mut *self);
        let walked = disk_extent::walk(
            format,
            &read,
            len,
            &|| !cancel.is_cancelled(),
            &|guest, at, count| {
                let count = count.min(bytes.saturating_sub(guest));
                let copied = layout
                    .borrow_mut()
                    .copy(from, at, count, place.saturating_add(guest));
                copied.map_err(|error| {
                    failed.replace(Some(error));
                    Fault::Cancelled
                })
            },
        );
        match (failed.into_inner(), walked) {
            (Some(error), _) => Err(error),
            (None, walked) => walked.map_err(|fault| faulty(name, format, len, fault)),
        }
    }

    /// Copies a part of a split disk, which is in this file, to its place.
    pub fn copy_extent(
        &mut self,
        extent: &Extent,
        from: &File,
        place: u64,
    ) -> Result<(), NodeError> {
        match &extent.form {
            Form::Zero => Ok(()),
            Form::Flat { at, .. } => self.copy(from, *at, extent.bytes, place),
            Form::Sparse { name } => {
                let read = |offset: u64, buffer: &mut [u8]| read_up_to(from, offset, buffer);
                let examined = disk_format::examine(&read);
                match examined.map_err(at(format!("cannot read {name}")))? {
                    Ok(Format::Vmdk) | Err(Refused::Part) => {}
                    Err(why) => return Err(not_alone(name, &why)),
                    Ok(_) => {
                        let what = "it is no extent of a VMDK".to_owned();
                        return Err(not_alone(name, &Refused::Damaged(what)));
                    }
                }
                let facts = self.copy_mapped(Format::Vmdk, from, name, place, extent.bytes)?;
                match facts.bytes < extent.bytes {
                    false => Ok(()),
                    true => Err(cut_off(name, extent.bytes)),
                }
            }
        }
    }
}

fn cut_off(shown: &str, needs: u64) -> NodeError {
    refused(
        format!("{shown} is cut off: its disk goes on to byte {needs} of it"),
        "fetch it again, and compare its checksum",
    )
}

/// Says what is wrong with an image of `len` bytes.
pub(crate) fn faulty(shown: &str, format: Format, len: u64, fault: Fault) -> NodeError {
    match fault {
        Fault::Cancelled => NodeError::Cancelled,
        Fault::Io(source) => at(format!("cannot read {shown}"))(source),
        Fault::Truncated { what, needs } => refused(
            format!(
                "{shown} is cut off: the file has {len} bytes, and {what} ends at {needs} ({})",
                format.name()
            ),
            "fetch it again, and compare its checksum",
        ),
        Fault::Damaged(what) => not_alone(shown, &Refused::Damaged(what)),
    }
}
