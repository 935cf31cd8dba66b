//! Copies what is in a file, and not its holes.

use floe_image::is_zero;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::{fs::File, io, os::unix::fs::FileExt};

/// How many bytes are copied at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Copies all that is not zero to a file that reads as zeros. `progress` is told how far it is, in bytes, and returns whether to go on.
pub fn copy(from: &File, to: &File, progress: &mut dyn FnMut(u64) -> bool) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = 0;
    loop {
        at = match seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            // nothing but a hole is left
            Err(Errno::NXIO) => return Ok(()),
            // devices have no holes
            Err(Errno::INVAL) => at,
            Err(error) => return Err(error.into()),
        };
        let got = match from.read_at(&mut piece, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            got => got?,
        };
        if got == 0 {
            return Ok(());
        }
        if !is_zero(&piece[..got]) {
            to.write_all_at(&piece[..got], at)?;
        }
        at += got as u64;
        if !progress(at) {
            return Err(io::ErrorKind::Interrupted.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_in_holes_comes_over() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.set_len(64 << 20).unwrap();
        to.set_len(64 << 20).unwrap();
        for at in [0, (20 << 20) - 3, (64 << 20) - 4] {
            from.write_all_at(b"here", at).unwrap();
        }
        let mut seen = Vec::new();
        copy(&from, &to, &mut |done| {
            seen.push(done);
            true
        })
        .unwrap();
        for at in [0, (20 << 20) - 3, (64 << 20) - 4] {
            let mut there = [0; 4];
            to.read_exact_at(&mut there, at).unwrap();
            assert_eq!(&there, b"here");
        }
        assert!(seen.len() < 16 && seen.is_sorted(), "{seen:?}");
        assert!(copy(&from, &to, &mut |_| false).is_err());
    }
}
