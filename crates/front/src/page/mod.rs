//! The page: what a browser shows of a node and of a hub.
//!
//! It is built from `web/` and embedded in the binary ([`assets`]); it gets its data over the same REST interface as
//! every other client. On a node it is on a TCP port, which any web page in a browser of this host, and any user of this
//! host, can reach: [`guard`] accepts only clients with the page's [`token`], and requests from no other page.
//!
//! The page decides nothing. Like the command line, it asks and shows.

pub mod assets;
pub mod guard;
pub mod thumbnail;
pub mod token;
