//! Brings memory online that was added to the machine, where the guest's kernel leaves that to programs.

use super::{REFUSED_MAX, Refused, numbers};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// How much memory a guest uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes of the memory that is online now.
    pub online_bytes: u64,
    /// Bytes of the memory that is there and is not used.
    pub offline_bytes: u64,
    /// Blocks that did not come online.
    pub refused: Vec<Refused>,
}

/// Brings all memory online.
pub(super) fn bring(system: &Path) -> Result<Memory, String> {
    let dir = system.join("memory");
    let size = dir.join("block_size_bytes");
    let size = fs::read_to_string(&size).map_err(|error| {
        format!(
            "its kernel was built without memory hot-plug (CONFIG_MEMORY_HOTPLUG): {}: {error}",
            size.display()
        )
    })?;
    let size =
        u64::from_str_radix(size.trim(), 16).map_err(|_| format!("a block of {size:?} bytes"))?;
    let blocks = numbers(&dir, "memory")?;
    let state = |number: &u32| dir.join(format!("memory{number}/state"));
    let is_online = |number: &u32| {
        fs::read_to_string(state(number)).is_ok_and(|state| state.trim() == "online")
    };
    let mut refused = Vec::new();
    for number in blocks.iter().filter(|number| !is_online(number)) {
        if let Err(error) = fs::write(state(number), "online")
            && refused.len() < REFUSED_MAX
        {
            let (what, why) = (format!("memory{number}"), error.to_string());
            refused.push(Refused { what, why });
        }
    }
    let online = blocks.iter().filter(|number| is_online(number)).count();
    Ok(Memory {
        online_bytes: size.saturating_mul(online as u64),
        offline_bytes: size.saturating_mul((blocks.len() - online) as u64),
        refused,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_offline_comes_online() {
        let system = tempfile::tempdir().unwrap();
        let dir = system.path().join("memory");
        assert!(
            bring(system.path())
                .unwrap_err()
                .contains("CONFIG_MEMORY_HOTPLUG")
        );
        for (number, state) in [(0, "online"), (7, "offline"), (32, "offline")] {
            fs::create_dir_all(dir.join(format!("memory{number}"))).unwrap();
            fs::write(dir.join(format!("memory{number}/state")), state).unwrap();
        }
        fs::write(dir.join("block_size_bytes"), "8000000\n").unwrap();
        // one that can't be written to
        fs::create_dir_all(dir.join("memory40/state")).unwrap();
        let memory = bring(system.path()).unwrap();
        assert_eq!(
            (memory.online_bytes, memory.offline_bytes),
            (384 << 20, 128 << 20)
        );
        assert_eq!(memory.refused.len(), 1);
        assert_eq!(memory.refused[0].what, "memory40");
    }
}
