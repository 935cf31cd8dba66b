//! The page: what a browser shows of a node and of a hub.
//!
//! It is built from `web/` and embedded in the binary ([`assets`]); what it knows it asks over the same REST interface as
//! everybody. On a node it stands on a TCP port, which any web page that a browser of this host shows, and any user of
//! this host, can reach: [`guard`] lets in who has the page's [`token`], and no page but its own.
//!
//! Deliberately absent: decisions. The page asks and shows, like the command line.

pub mod assets;
pub mod guard;
pub mod thumbnail;
pub mod token;
