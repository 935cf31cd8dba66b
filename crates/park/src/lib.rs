//! Machines without memory on this host ([`park`]), and machines whose whole image is brought to this host, so that they no longer need
//! where they came from ([`independence`]).

pub mod independence;
pub mod park;
