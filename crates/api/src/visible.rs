//! The label of a substrate's image that says who may see it. It goes with the image, and node and hub obey it.

use super::{SUBSTRATE_USER_BYTES_MAX, SUBSTRATE_USERS_MAX, Visibility};

/// Label of an image that is a substrate, with the name of the machine that it was docked from.
pub const SUBSTRATE_LABEL: &str = "floe.substrate";
/// Label of such an image: who may see the substrate.
pub const VISIBLE_LABEL: &str = "floe.visible";

/// Returns the value of [`VISIBLE_LABEL`] for a substrate.
pub fn label_of_visibility(visibility: Visibility, users: &[String]) -> String {
    match visibility {
        Visibility::Private => "private".into(),
        Visibility::Public => "public".into(),
        Visibility::Restricted => format!("restricted {}", users.join(",")),
    }
}

/// Reads the value of [`VISIBLE_LABEL`]; the error says what is wrong with it.
pub fn visibility_of_label(label: &str) -> Result<(Visibility, Vec<String>), String> {
    let (visibility, users) = match (label, label.strip_prefix("restricted ")) {
        ("private", _) => (Visibility::Private, Vec::new()),
        ("public", _) => (Visibility::Public, Vec::new()),
        (_, Some(users)) => {
            let users = users.split(',').take(SUBSTRATE_USERS_MAX + 1);
            (Visibility::Restricted, users.map(str::to_owned).collect())
        }
        _ => {
            return Err(format!(
                "{:?} is no visibility",
                label.chars().take(64).collect::<String>()
            ));
        }
    };
    check_users(visibility, &users)?;
    Ok((visibility, users))
}

/// Checks the users who may see a substrate; the error says what is wrong with them.
pub fn check_users(visibility: Visibility, users: &[String]) -> Result<(), String> {
    match (visibility, users.len()) {
        (Visibility::Restricted, 0) => return Err("a restricted substrate names no user".into()),
        (Visibility::Restricted, 1..=SUBSTRATE_USERS_MAX) | (_, 0) => {}
        (Visibility::Restricted, n) => {
            return Err(format!(
                "{n} users, at most {SUBSTRATE_USERS_MAX} can be named"
            ));
        }
        _ => return Err("only a restricted substrate names users".into()),
    }
    let is_name = |user: &&String| {
        let plain = |c: char| c.is_ascii_graphic() && c != ':' && c != ',';
        !user.is_empty() && user.len() <= SUBSTRATE_USER_BYTES_MAX && user.chars().all(plain)
    };
    match users.iter().find(|user| !is_name(user)) {
        Some(user) => Err(format!("{user:?} is no user's name")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_label_says_is_read_as_it_was_meant() {
        let users = vec!["anna".to_owned(), "1003".to_owned()];
        for (visibility, users) in [
            (Visibility::Private, Vec::new()),
            (Visibility::Public, Vec::new()),
            (Visibility::Restricted, users),
        ] {
            let label = label_of_visibility(visibility, &users);
            assert_eq!(visibility_of_label(&label), Ok((visibility, users)));
        }
        let many = vec!["u"; SUBSTRATE_USERS_MAX + 1].join(",");
        for bad in [
            "",
            "open",
            "restricted ",
            "restricted a:b",
            &format!("restricted {many}"),
        ] {
            assert!(visibility_of_label(bad).is_err(), "{bad}");
        }
    }
}
