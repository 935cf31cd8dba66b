//! `floe image ls` and `floe image rm` with the address of a hub, which is asked directly: no node is needed.

use std::collections::BTreeMap;

use super::error::CliError;
use super::login::Access;
use super::output::{age, bytes, short, table};
use super::{Context, confirm, interrupt};
use floe_api::ErrorCode;
use floe_api::credentials::{HubAddress, OwnHub};
use floe_api::hub::{ImageEntry, ImageList};
use floe_node::transfer::{Cancel, HubClient, TransferError};

/// An address on a hub: the hub, and which of its images is meant.
pub struct Named {
    /// The hub's client.
    pub client: HubClient,
    /// The hub.
    pub hub: HubAddress,
    /// The rest of the address: an image's name or id; empty for all.
    name: String,
}

/// Whether the text is a hub's address, or that of an image there.
pub fn is_hub(text: &str) -> bool {
    HubAddress::of(text).is_some()
}

/// Returns the hub that an address names, with the token for it.
pub fn open(cx: &Context, address: &str, access: &Access) -> Result<Named, CliError> {
    let hub = HubAddress::of(address).ok_or_else(|| {
        CliError::usage(
            format!("{address:?} is no hub's address"),
            "write for example https://hub.example",
        )
    })?;
    // the hub of floe up on this host needs no login
    let own = || OwnHub::load(&cx.home.hub_token()).filter(|own| own.hub == hub);
    let token = access.token_for(address)?;
    let token = token.or_else(|| own().map(|own| own.token));
    let ca = access.ca.as_deref();
    let client = HubClient::new(hub.as_str(), token.as_deref(), ca, &Cancel::default());
    let (_, path) = address.split_once("://").unwrap_or_default();
    let name = path.split_once('/').map_or("", |(_, name)| name);
    Ok(Named {
        client: client.map_err(|error| told(&hub, error))?,
        hub,
        name: name.trim_matches('/').to_owned(),
    })
}

/// Turns a hub's refusal into an error that names the way out.
pub fn told(hub: &HubAddress, error: TransferError) -> CliError {
    let login = format!("floe login {hub} keeps the token of the image's owner");
    match error {
        TransferError::Refused {
            status: 401 | 403,
            what,
            message,
            ..
        } => CliError::new(
            ErrorCode::Refused,
            format!("{hub} refuses {what}: {message}"),
            login,
        ),
        TransferError::Refused {
            status: 404,
            message,
            ..
        } => CliError::new(
            ErrorCode::NotFound,
            message,
            format!("floe image ls {hub} lists what you may read; {login}"),
        ),
        TransferError::Unreachable { .. } => {
            CliError::new(ErrorCode::Unreachable, error.to_string(), "")
        }
        error => CliError::new(ErrorCode::Failed, error.to_string(), ""),
    }
}

/// Lists a hub's images, or those of one name.
pub fn list(cx: &Context, address: &str, access: &Access) -> Result<(), CliError> {
    interrupt::exit_on_signals();
    let Named { client, hub, name } = open(cx, address, access)?;
    let images = client.images().map_err(|error| told(&hub, error))?;
    let wanted = |image: &ImageEntry| {
        let mut names = image.names.iter();
        name.is_empty() || names.any(|known| is_of(known, &name)) || image.id.starts_with(&name)
    };
    let list = ImageList {
        images: images.into_iter().filter(wanted).collect(),
    };
    cx.out.value(&list, |list| listing(&list.images))
}

/// Whether a full name such as `debian:12` is, or has, the given one.
fn is_of(known: &str, name: &str) -> bool {
    known == name || known.split(':').next() == Some(name)
}

fn listing(images: &[ImageEntry]) -> String {
    let row = |image: &ImageEntry| {
        vec![
            match image.names.is_empty() {
                true => "-".into(),
                false => image.names.join(", "),
            },
            short(&image.id),
            image.owner.clone(),
            if image.public { "all" } else { "owner" }.into(),
            bytes(image.raw_bytes),
            bytes(image.stored_bytes),
            age(image.pushed_unix_s),
        ]
    };
    let mut text = table(
        &[
            "NAME", "ID", "OWNER", "READABLE", ">CONTENT", ">STORED", ">PUSHED",
        ],
        images.iter().map(row),
    );
    for image in images.iter().filter(|image| image.damaged) {
        let name = image.names.first().cloned();
        let name = name.unwrap_or_else(|| short(&image.id));
        text += &format!("{name} is damaged on the hub: push it again from where it is whole\n");
    }
    text
}

/// What a removal takes away.
#[derive(Debug, PartialEq)]
enum Removal {
    /// The name only: the image has others.
    Name,
    /// The image, with all of its names.
    Image,
}

/// Removes a name from a hub, and the image with its last one; an id removes the image with all of its names.
pub fn remove(cx: &Context, address: &str, access: &Access, force: bool) -> Result<(), CliError> {
    let Named { client, hub, name } = open(cx, address, access)?;
    if name.is_empty() {
        return Err(CliError::usage(
            format!("{address} names no image"),
            format!("write {hub}/NAME; floe image ls {hub} lists them"),
        ));
    }
    let refused = |error| told(&hub, error);
    let id = client.resolve(&name).map_err(refused)?;
    let images = client.images().map_err(refused)?;
    let image = images.iter().find(|image| image.id == id.to_string());
    let names = image.map(|image| image.names.clone()).unwrap_or_default();
    let removal = removal(&names, &name, &id.to_string());
    let what = match removal {
        Removal::Name => format!("the name {name} from image {} on {hub}", id.short()),
        Removal::Image => {
            let known = match names.as_slice() {
                [] => String::new(),
                names => format!(" ({})", names.join(", ")),
            };
            format!("image {}{known} from {hub}, for all its users", id.short())
        }
    };
    if !force && !confirm::agrees(&format!("Remove {what}?"))? {
        return Err(CliError::new(
            ErrorCode::Cancelled,
            "nothing was removed",
            "",
        ));
    }
    interrupt::exit_on_signals();
    match removal {
        Removal::Name => client.untag(&name),
        Removal::Image => client.remove(&id),
    }
    .map_err(refused)?;
    let removed = BTreeMap::from([("removed", address)]);
    cx.out.value(&removed, |_| format!("removed {what}\n"))
}

fn removal(names: &[String], asked: &str, id: &str) -> Removal {
    let by_id = id.starts_with(asked) && !names.iter().any(|known| is_of(known, asked));
    match by_id || names.len() <= 1 {
        true => Removal::Image,
        false => Removal::Name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_name_takes_the_image_along_and_an_id_all_names() {
        let names = ["debian:12".to_owned(), "debian:latest".to_owned()];
        let id = "3f2a91";
        assert_eq!(removal(&names, "debian:12", id), Removal::Name);
        assert_eq!(removal(&names, "debian", id), Removal::Name);
        assert_eq!(removal(&names, "3f2a", id), Removal::Image);
        assert_eq!(removal(&names[..1], "debian:12", id), Removal::Image);
        assert_eq!(removal(&[], "3f2a91", id), Removal::Image);
        let name = ["3f2a:latest".to_owned(), "b:latest".to_owned()];
        assert_eq!(removal(&name, "3f2a", id), Removal::Name);
    }
}
