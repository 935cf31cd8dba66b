//! Brings foreign disks into images: recognizes what a user gave ([`disk_format`], [`disk_foreign`], [`disk_content`]), unpacks it
//! ([`unpack`]), holds it against what it says of itself ([`disk_extent`]), converts it with a confined `qemu-img` ([`qemu_img`]), and
//! puts floe's agent into it ([`agent`]). [`seed`] makes the disk that cloud-init reads.
//!
//! All bytes here are hostile. It knows no image of the node: what it opens is a file, which `library` takes in.
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "a test may ask whether a file is there"
    )
)]

pub mod agent;
pub mod appliance;
pub mod archive;
pub mod confined;
pub mod disk_boot;
pub mod disk_content;
pub mod disk_extent;
pub mod disk_file;
pub mod disk_foreign;
pub mod disk_format;
pub mod disk_import;
pub mod disk_layout;
pub mod disk_refused;
pub mod disk_vhd;
pub mod disk_vmdk;
pub mod ovf;
pub mod qemu_img;
pub mod seed;
pub mod unpack;
