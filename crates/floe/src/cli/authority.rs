//! `--ca` of a command that reads from several places: a file for all of them, or for one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;

use super::args;
use super::error::CliError;
use floe_api::authorities;
use floe_api::credentials::HubAddress;

/// The variable that names the file for all places.
const VARIABLE: &str = "FLOE_CA";

/// The certificate authorities that may vouch for the servers which an image is read from.
#[derive(Debug, Args)]
pub struct AuthorityArgs {
    /// File with the certificate authority of hubs that made their own certificates. ADDRESS=FILE, such as
    /// https://hub.example=ca.pem, is for the hub or web server at that address alone (repeatable); FILE, or FLOE_CA in the
    /// environment, is for all that have none of their own
    #[arg(long, value_name = "[ADDRESS=]FILE", value_parser = authority)]
    ca: Vec<Authority>,
}

/// One `--ca`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Authority {
    /// For all that have none of their own.
    Common(PathBuf),
    /// For one hub or web server.
    Of { address: String, file: PathBuf },
}

/// Parses `FILE` or `ADDRESS=FILE`. It is the latter if there is a `://` before the first `=`, since a file's name may have a `=` in it.
fn authority(text: &str) -> Result<Authority, String> {
    match text.split_once('=') {
        _ if text.is_empty() => Err("name a PEM file".into()),
        Some((address, file)) if address.contains("://") => match HubAddress::of(address) {
            None => Err(format!(
                "{address} is not the address of a hub or a web server; write for example https://hub.example=ca.pem, or \
                 --ca FILE for what has no such address"
            )),
            Some(hub) if file.is_empty() => {
                Err(format!("no file is named for {hub}; write {hub}=ca.pem"))
            }
            Some(_) => Ok(Authority::Of {
                address: address.to_owned(),
                file: file.into(),
            }),
        },
        _ => Ok(Authority::Common(text.into())),
    }
}

/// What a request says of certificate authorities, with paths that the node can use.
#[derive(Debug, PartialEq, Eq)]
pub struct Given {
    /// The file for all places that have none of their own.
    pub ca: Option<String>,
    /// Files by address.
    pub cas: BTreeMap<String, String>,
}

impl AuthorityArgs {
    /// Returns what was given for the servers at the addresses `asked`: those of an image and of its further sources.
    pub fn given<'a>(&self, asked: impl IntoIterator<Item = &'a str>) -> Result<Given, CliError> {
        let (mut common, mut own) = (None, Vec::new());
        for authority in &self.ca {
            match authority {
                Authority::Of { address, file } => own.push((address.as_str(), existing(file)?)),
                Authority::Common(file) => {
                    if let Some(other) = common.replace(file.clone()) {
                        return Err(CliError::usage(
                            format!(
                                "two files with certificate authorities are given for all places: {} and {}",
                                other.display(),
                                file.display()
                            ),
                            "say which place each is for: --ca https://hub.example=FILE",
                        ));
                    }
                }
            }
        }
        let common = match common {
            Some(file) => Some(file),
            None => of_environment()?,
        };
        let own = own.iter().map(|(address, file)| (*address, file.as_str()));
        let bound = authorities::bind(own, asked).map_err(CliError)?;
        Ok(Given {
            ca: common.as_deref().map(existing).transpose()?,
            cas: bound
                .into_iter()
                .map(|(hub, file)| (hub.into(), file))
                .collect(),
        })
    }
}

/// Returns the file that the environment names, whatever the command line says: clap would not look at the variable if that gives a file
/// for one address.
fn of_environment() -> Result<Option<PathBuf>, CliError> {
    match std::env::var_os(VARIABLE) {
        Some(file) if file.is_empty() => Err(CliError::usage(
            format!("{VARIABLE} is empty"),
            format!("unset {VARIABLE}, or set it to a PEM file"),
        )),
        file => Ok(file.map(PathBuf::from)),
    }
}

fn existing(file: &Path) -> Result<String, CliError> {
    args::existing(file).map_err(|mut error| {
        if file.to_string_lossy().contains('=') {
            error.0.fix = "check the path; an address before the = begins with https://".into();
        }
        error
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_before_the_first_equals_sign_is_an_address_if_it_has_a_scheme() {
        let of = |address: &str, file: &str| Authority::Of {
            address: address.into(),
            file: file.into(),
        };
        let common = |file: &str| Authority::Common(file.into());
        for (text, meant) in [
            ("ca.pem", common("ca.pem")),
            ("/etc/a=b.pem", common("/etc/a=b.pem")),
            ("hub.example=ca.pem", common("hub.example=ca.pem")),
            ("https://hub=ca.pem", of("https://hub", "ca.pem")),
            ("floe://[::1]:4500=/a=b", of("floe://[::1]:4500", "/a=b")),
        ] {
            assert_eq!(authority(text).as_ref(), Ok(&meant), "{text}");
        }
        for (bad, said) in [
            ("", "PEM file"),
            ("https://hub=", "https://hub:443=ca.pem"),
            ("s3://bucket=ca.pem", "s3://bucket is not"),
            ("://=ca.pem", ":// is not"),
        ] {
            let why = authority(bad).unwrap_err();
            assert!(why.contains(said), "{bad}: {why}");
        }
    }
}
