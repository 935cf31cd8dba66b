//! Certificate authorities, each for one hub or web server.
//!
//! A machine may read one image from several places whose certificates are signed by different authorities. An authority that was
//! given for one place must not vouch for another, so each file is bound to a [`HubAddress`], as tokens are.

use crate::{
    ApiError, ErrorCode,
    credentials::{Authorities, HubAddress},
};
use std::collections::BTreeMap;

/// Binds each file of `given` (address, path of a PEM file) to its address. `asked` are the addresses that an image is read from.
///
/// Fails if an address is not one of those, is named twice, or is never asked for a certificate. No file is opened.
pub fn bind<'a, 'b>(
    given: impl IntoIterator<Item = (&'a str, &'a str)>,
    asked: impl IntoIterator<Item = &'b str>,
) -> Result<Authorities, ApiError> {
    let asked: Vec<HubAddress> = asked.into_iter().filter_map(HubAddress::of).collect();
    let mut bound = BTreeMap::new();
    for (address, file) in given {
        let hub = HubAddress::of(address).ok_or_else(|| {
            wrong(
                format!("{address:?} is not the address of a hub or a web server"),
                "write for example https://hub.example=FILE; what has no such address, s3:// for one, uses --ca FILE",
            )
        })?;
        if !asked.contains(&hub) {
            return Err(not_asked(&hub, &asked));
        }
        if hub.as_str().starts_with("http://") {
            return Err(wrong(
                format!("{hub} shows no certificate, so there is nothing to check with {file}"),
                "name the image by its https:// address, or leave this certificate authority out",
            ));
        }
        if let Some(other) = bound.get(&hub) {
            return Err(wrong(
                format!(
                    "{hub} is given two files with certificate authorities: {other} and {file}"
                ),
                "give one; a file may hold several certificates",
            ));
        }
        bound.insert(hub, file.to_owned());
    }
    Ok(bound)
}

fn not_asked(hub: &HubAddress, asked: &[HubAddress]) -> ApiError {
    let mut known: Vec<&str> = asked.iter().map(HubAddress::as_str).collect();
    known.sort_unstable();
    known.dedup();
    match known.is_empty() {
        true => wrong(
            format!(
                "a certificate authority is given for {hub}, but the image comes from no hub and no web server"
            ),
            "leave it out, or name the hub with the image or with --source",
        ),
        false => wrong(
            format!(
                "a certificate authority is given for {hub}, which neither the image nor a source is on"
            ),
            format!(
                "give it for {}, or add {hub} with --source",
                known.join(" or ")
            ),
        ),
    }
}

fn wrong(message: String, fix: impl Into<String>) -> ApiError {
    ApiError {
        code: ErrorCode::Usage,
        message,
        fix: fix.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: [&str; 4] = [
        "https://one.example/team/web:v2",
        "floe://two.example:4500/web",
        "http://plain.example/web",
        "s3://bucket/web",
    ];

    fn refused(given: &[(&str, &str)], asked: &[&str]) -> ApiError {
        let error = bind(given.iter().copied(), asked.iter().copied()).unwrap_err();
        assert_eq!(error.code, ErrorCode::Usage);
        error
    }

    #[test]
    fn an_authority_is_bound_to_its_address_however_that_is_written() {
        let given = [
            ("https://ONE.example:443", "/one.pem"),
            ("https://two.example:4500/other", "/two.pem"),
        ];
        let bound = bind(given, ASKED).unwrap();
        let of = |address: &str| bound.get(&HubAddress::of(address).unwrap());
        assert_eq!(bound.len(), 2);
        assert_eq!(of("https://one.example/web").unwrap(), "/one.pem");
        assert_eq!(of("floe://two.example:4500").unwrap(), "/two.pem");
        assert!(bind([], ASKED).unwrap().is_empty());
    }

    #[test]
    fn an_authority_for_no_place_of_the_image_is_refused_by_name() {
        for stranger in [
            "https://three.example",
            "https://one.example:4500",
            "http://one.example",
        ] {
            let hub = HubAddress::of(stranger).unwrap();
            let error = refused(&[(stranger, "/x.pem")], &ASKED);
            assert!(error.message.contains(hub.as_str()), "{error}");
            assert!(error.fix.contains("https://one.example:443"), "{error}");
            assert!(error.fix.contains("--source"), "{error}");
        }
        let error = refused(&[("https://one.example", "/x.pem")], &["debian:12"]);
        assert!(error.message.contains("no hub"), "{error}");
        let error = refused(&[("http://plain.example", "/x.pem")], &ASKED);
        assert!(error.message.contains("shows no certificate"), "{error}");
        for none in ["s3://bucket", "one.example", ""] {
            let error = refused(&[(none, "/x.pem")], &ASKED);
            assert!(error.message.contains(&format!("{none:?}")), "{error}");
        }
    }

    #[test]
    fn two_authorities_for_one_address_are_refused_with_both_names() {
        let error = refused(
            &[
                ("https://one.example", "/one.pem"),
                ("floe://one.example/web", "/two.pem"),
            ],
            &ASKED,
        );
        for part in ["https://one.example:443", "/one.pem", "/two.pem"] {
            assert!(error.message.contains(part), "{error}");
        }
    }
}
