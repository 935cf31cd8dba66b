mod content;
mod shelf;
mod tree;
pub mod wire;
pub use content::{Content, ContentError, PIECE_BYTES};
pub use shelf::{Shelf, ShelfError};
pub use tree::{Pack, Tree, WrongBytes};
