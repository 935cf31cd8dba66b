//! A set of pieces.
use super::PieceId;

#[derive(Clone, Debug, Default)]
pub(super) struct Bits {
    words: Vec<u64>,
    pieces: u32,
    count: u32,
}

impl Bits {
    pub(super) fn new(pieces: u32) -> Bits {
        Bits {
            words: vec![0; pieces.div_ceil(64) as usize],
            pieces,
            count: 0,
        }
    }

    /// Returns how many pieces there are in it.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn get(&self, piece: PieceId) -> bool {
        let word = self.words.get((piece / 64) as usize);
        word.is_some_and(|word| word >> (piece % 64) & 1 == 1)
    }

    /// Returns how many pieces the image has.
    pub(super) fn pieces(&self) -> u32 {
        self.pieces
    }

    pub(super) fn is_of_image(&self, piece: PieceId) -> bool {
        piece < self.pieces
    }

    /// Adds a piece. Returns whether it is one of the image's and was not there.
    pub(super) fn set(&mut self, piece: PieceId) -> bool {
        let new = piece < self.pieces && !self.get(piece);
        if new {
            self.words[(piece / 64) as usize] |= 1 << (piece % 64);
            self.count += 1;
        }
        new
    }

    /// Removes a piece. Returns whether it was there.
    pub(super) fn clear(&mut self, piece: PieceId) -> bool {
        let was = self.get(piece);
        if was {
            self.words[(piece / 64) as usize] &= !(1 << (piece % 64));
            self.count -= 1;
        }
        was
    }

    pub(super) fn ones(&self) -> impl Iterator<Item = PieceId> {
        self.words.iter().enumerate().flat_map(|(at, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(at as u32 * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_counts_once_and_one_that_is_none_of_the_images_never() {
        let mut bits = Bits::new(70);
        let counts = [0, 69, 69, 70, u32::MAX].map(|piece| {
            bits.set(piece);
            bits.count()
        });
        assert_eq!(counts, [1, 2, 2, 2, 2]);
        let counts = [69, 69, 5, 70].map(|piece| {
            bits.clear(piece);
            bits.count()
        });
        assert_eq!(counts, [1; 4]);
        assert!(bits.ones().eq([0]));
    }
}
