//! Why a connection is closed: the codes by which QUIC tells the other host.
use quinn::VarInt;

/// The host ended without giving a reason.
pub(crate) const CLOSED_RUDELY: VarInt = VarInt::from_u32(0);
/// The host leaves the swarm.
pub(crate) const CLOSED_LEAVING: VarInt = VarInt::from_u32(1);
/// The other is no member.
pub(crate) const CLOSED_STRANGER: VarInt = VarInt::from_u32(2);
/// There is another connection between the two.
pub(crate) const CLOSED_DUPLICATE: VarInt = VarInt::from_u32(3);
/// Nothing was asked for a while.
pub(crate) const CLOSED_RESTING: VarInt = VarInt::from_u32(4);
/// The host has as many connections as it wants.
pub(crate) const CLOSED_BUSY: VarInt = VarInt::from_u32(5);
/// The other has misbehaved.
pub(crate) const CLOSED_FAULT: VarInt = VarInt::from_u32(6);
