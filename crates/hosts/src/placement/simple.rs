//! The plug-in that counts memory and CPUs, like the paper's internal resource manager. Each clone gets whole virtual CPUs
//! and all of its memory, so no host promises more than it has.

use super::{Ask, Grant, Offer, Placement};
use floe_api::Room;
use floe_ground::error::NodeError;

pub(super) struct Simple;

impl Placement for Simple {
    fn request(&self, ask: &Ask, offers: &[Offer]) -> Result<Grant, NodeError> {
        let clones = |offer: &Offer| match &offer.room {
            Ok(room) => fits(ask, room).map_err(|why| format!("{}: {why}", offer.name)),
            Err(why) => Err(why.clone()),
        };
        Ok(Grant {
            ticket: None,
            clones: offers.iter().map(clones).collect(),
        })
    }
}

/// Returns how many clones of this size fit, or what is missing for the first one.
fn fits(ask: &Ask, room: &Room) -> Result<u32, String> {
    let by_cpus = room.free_cpus / ask.cpus.max(1);
    let by_memory = room.free_memory_bytes / ask.memory_bytes.max(1);
    if by_cpus == 0 {
        return Err(format!(
            "{} CPUs are free, a clone takes {}",
            room.free_cpus, ask.cpus
        ));
    }
    if by_memory == 0 {
        return Err(format!(
            "{} MiB of memory are free, a clone takes {}",
            room.free_memory_bytes >> 20,
            ask.memory_bytes >> 20
        ));
    }
    Ok(by_cpus
        .min(u32::try_from(by_memory).unwrap_or(u32::MAX))
        .min(room.clones))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_scarcest_decides_and_a_host_without_any_says_what_is_missing() {
        let ask = Ask {
            parent: "web".into(),
            clones: 9,
            cpus: 2,
            memory_bytes: 512 << 20,
        };
        let offer = |clones, free_cpus, free_mib: u64| Offer {
            name: "h".into(),
            room: Ok(Room {
                clones,
                free_cpus,
                free_memory_bytes: free_mib << 20,
            }),
        };
        let offers = [
            offer(100, 9, 4096),
            offer(100, 64, 1100),
            offer(1, 64, 4096),
            offer(100, 1, 4096),
            offer(100, 64, 100),
            Offer {
                name: "away".into(),
                room: Err("no answer".into()),
            },
        ];
        let grant = Simple.request(&ask, &offers).unwrap();
        assert_eq!(grant.ticket, None);
        assert_eq!(grant.clones[..3], [Ok(4), Ok(2), Ok(1)]);
        let why: Vec<_> = grant.clones[3..]
            .iter()
            .flat_map(|c| c.as_ref().err())
            .collect();
        assert_eq!(why[0], "h: 1 CPUs are free, a clone takes 2");
        assert_eq!(why[1], "h: 100 MiB of memory are free, a clone takes 512");
        assert_eq!(why[2], "no answer");
    }
}
