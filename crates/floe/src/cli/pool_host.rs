//! A pool on a host of its own: `floe pool serve`, and what other hosts ask it.

use clap::Args;

use super::error::CliError;
use super::login::Access;
use super::output::{age, bytes, fields, short, table, word};
use super::{Context, args, hub, hub_images, interrupt, pool_shown};
use floe_api::hub::{PooledSubstrate, PooledSubstrates};
use floe_api::{ErrorCode, Visibility};

/// Keep substrates of many hosts in this host's memory, and give them to other hosts
#[derive(Debug, Args)]
#[command(after_help = "\
Example: a pool with 8 GiB of memory, and tokens for two users
  floe pool serve --memory 8G --listen 0.0.0.0:4500 --tls self-signed --tls-name pool.example
  floe hub token create anna
  floe hub token create berta
Example: into it, and out of it on another host
  floe dock web --as shop-web --restricted berta --pool https://pool.example:4500
  floe activate https://pool.example:4500/shop-web
Example: what is in it
  floe pool ls --pool https://pool.example:4500
  floe pool status --pool https://pool.example:4500

It is a hub (floe hub serve) that holds the substrates among its images in memory as well: what was published or read last, as far as it
fits. All of it is on the disk, in the hub's folder; if the pool is killed nothing is lost, and floe pool status says how long it took
to be warm again. The hub's tokens decide who sees a substrate: its owner, the users whom --restricted named, or everybody.")]
pub struct ServePool {
    /// The most memory that substrates may take together, such as 8G
    #[arg(long, value_parser = args::size, value_name = "SIZE")]
    memory: u64,
    #[command(flatten)]
    hub: hub::Serve,
}

impl ServePool {
    pub(super) fn run(self, cx: &Context) -> Result<(), CliError> {
        self.hub.run(cx, Some(self.memory))
    }
}

/// The pool that a command asks.
#[derive(Debug, Args)]
pub struct At {
    /// The pool on another host (floe pool serve), instead of this node's
    #[arg(long, value_name = "ADDRESS")]
    pub(super) pool: Option<String>,
    #[command(flatten)]
    pub(super) access: Access,
}

/// Returns the address of the pool on another host that a substrate is in, if any, and the substrate's name there.
pub(super) fn place_of(
    substrate: &str,
    pool: Option<&str>,
) -> Result<(Option<String>, String), CliError> {
    match (substrate.contains("://"), pool) {
        (false, pool) => Ok((pool.map(str::to_owned), substrate.to_owned())),
        (true, Some(_)) => Err(CliError::usage(
            "the substrate's address says which pool it is in, and --pool does too",
            "leave out --pool",
        )),
        (true, None) => match substrate.trim_end_matches('/').rsplit_once('/') {
            Some((pool, name)) if !pool.ends_with('/') => {
                Ok((Some(pool.to_owned()), name.to_owned()))
            }
            _ => Err(CliError::usage(
                format!("{substrate} names a pool, and no substrate in it"),
                format!("see floe pool ls --pool {substrate}"),
            )),
        },
    }
}

/// Shows how full a pool on another host is.
pub(super) fn status(cx: &Context, address: &str, access: &Access) -> Result<(), CliError> {
    interrupt::exit_on_signals();
    let pool = hub_images::open(cx, address, access)?;
    let status = pool.client.pool();
    let status = status.map_err(|error| hub_images::told(&pool.hub, error))?;
    cx.out.value(&status, pool_shown::status)
}

fn all(cx: &Context, address: &str, access: &Access) -> Result<Vec<PooledSubstrate>, CliError> {
    interrupt::exit_on_signals();
    let pool = hub_images::open(cx, address, access)?;
    let all = pool.client.substrates();
    all.map_err(|error| hub_images::told(&pool.hub, error))
}

/// Lists the substrates of a pool on another host.
pub(super) fn list(cx: &Context, address: &str, access: &Access) -> Result<(), CliError> {
    let substrates = all(cx, address, access)?;
    cx.out.value(&PooledSubstrates { substrates }, |list| {
        let row = |one: &PooledSubstrate| {
            vec![
                one.name.clone(),
                one.machine.clone(),
                one.owner.clone(),
                word(&one.visibility),
                bytes(one.memory_bytes),
                pool_shown::place(one.in_memory).into(),
                age(one.docked_unix_s),
            ]
        };
        table(
            &["NAME", "MACHINE", "OWNER", "VISIBLE", ">RAM", "IN", ">AGE"],
            list.substrates.iter().map(row),
        )
    })
}

/// Shows a substrate of a pool on another host.
pub(super) fn show(
    cx: &Context,
    address: &str,
    access: &Access,
    name: &str,
) -> Result<(), CliError> {
    let mut seen = all(cx, address, access)?.into_iter();
    let Some(found) = seen.find(|one| one.name == name) else {
        return Err(CliError::new(
            ErrorCode::NotFound,
            format!("there is no substrate {name} in the pool {address}"),
            format!("see `floe pool ls --pool {address}`"),
        ));
    };
    cx.out.value(&found, shown)
}

fn shown(one: &PooledSubstrate) -> String {
    let visible = match one.visibility {
        Visibility::Restricted => format!("restricted to {}", one.users.join(", ")),
        other => word(&other),
    };
    fields(&[
        ("name", one.name.clone()),
        ("owner", one.owner.clone()),
        ("visible", visible),
        ("machine", one.machine.clone()),
        ("CPUs", one.cpus.to_string()),
        ("memory", bytes(one.memory_bytes)),
        ("docked", age(one.docked_unix_s)),
        ("in", pool_shown::place(one.in_memory).to_owned()),
        ("on the disk", bytes(one.stored_bytes)),
        ("image", short(&one.image)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_substrate_is_named_with_its_pool_or_beside_it() {
        let found =
            |substrate: &str, pool| place_of(substrate, pool).map_err(|error| error.0.message);
        let at = |pool: &str| Some(pool.to_owned());
        assert_eq!(found("shop", None), Ok((None, "shop".into())));
        let pool = "https://pool.example:4500";
        assert_eq!(found("shop", Some(pool)), Ok((at(pool), "shop".into())));
        for address in [format!("{pool}/shop"), format!("{pool}/shop/")] {
            assert_eq!(found(&address, None), Ok((at(pool), "shop".into())));
        }
        assert!(found(pool, None).unwrap_err().contains("no substrate"));
        assert!(found(&format!("{pool}/shop"), Some(pool)).is_err());
    }
}
