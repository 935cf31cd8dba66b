//! What a user asks for with a run, checked once, at the door. What a request says that must be read (a name, tokens, a rate) is read here,
//! and from here on it travels as what it means; nothing below asks again whether it can be meant.

use crate::machines::{launch::machine_access, limits::check_park_after};
use floe_api::{
    RunRequest, SwarmUse, authorities,
    credentials::{Authorities, HubAddress, Tokens},
};
use floe_ground::{
    error::{NodeError, usage},
    names::MachineName,
    plan::check_forwards,
};
use floe_inventory::inventory::record::{Independent, Origin};
use floe_library::images::sources::bind_token;
use std::{ops::Deref, path::Path};

/// A request to run an image, each part of which can be meant, whatever the image is. What needs no reading is as in the request.
pub struct CheckedRun<'a> {
    request: &'a RunRequest,
    /// The name that the machine is to have; `None` if the node chooses.
    pub name: Option<MachineName>,
    /// What is shown and trusted where the image is read.
    pub access: Origin,
    /// Whether, and how fast, all of the image is to be brought here.
    pub independent: Option<Independent>,
    /// Whether it takes part in its image's swarm; `None` is as the node says.
    pub swarm: Option<SwarmUse>,
}

impl Deref for CheckedRun<'_> {
    type Target = RunRequest;

    fn deref(&self) -> &RunRequest {
        self.request
    }
}

impl CheckedRun<'_> {
    /// Checks a request.
    pub fn of(request: &RunRequest) -> Result<CheckedRun<'_>, NodeError> {
        let name = request.name.as_deref().map(str::parse::<MachineName>);
        let name = name.transpose();
        let name = name.map_err(|error| usage(error.to_string(), ""))?;
        check_host_access(request)?;
        check_swarm(request)?;
        check_forwards(request)?;
        if request.remove && !request.restart.is_no() {
            return Err(usage(
                "a machine that is removed once it has ended can't be started again",
                "leave out --rm or --restart",
            ));
        }
        check_park_after(request.park_after_s)?;
        Ok(CheckedRun {
            request,
            name,
            access: access_of(request)?,
            independent: Independent::asked(request.independent.as_ref())?,
            swarm: swarm_of(request),
        })
    }
}

/// Refuses host access that can't be given.
fn check_host_access(request: &RunRequest) -> Result<(), NodeError> {
    machine_access(&request.allow_host)?;
    if request.network.is_some() && !request.allow_host.is_none() {
        return Err(usage(
            "a family network does not lead to the host's loopback",
            "name link-local addresses with --allow, such as --allow 169.254.169.254:80, or leave --network out",
        ));
    }
    Ok(())
}

/// Refuses members of a swarm that can't be meant.
fn check_swarm(request: &RunRequest) -> Result<(), NodeError> {
    let members = &request.swarm_members;
    let checked = members.check();
    checked.map_err(|why| usage(why, "floe swarm listen prints the line of a node"))?;
    match request.swarm {
        Some(SwarmUse::Off) if !members.is_hub() => Err(usage(
            "--swarm-members names members of a swarm, and --swarm=off takes part in none",
            "leave --swarm=off out, or --swarm-members",
        )),
        _ => Ok(()),
    }
}

/// Whether a machine takes part in its image's swarm: always, if its user has said with whom.
fn swarm_of(request: &RunRequest) -> Option<SwarmUse> {
    let told = !request.swarm_members.is_hub();
    request.swarm.or(told.then_some(SwarmUse::On))
}

/// Returns what this node shows and trusts when it reads a request's image and sources: a token for each place, and the certificate
/// authorities that may vouch for them. A token or authority that does not fit its place is an error.
fn access_of(request: &RunRequest) -> Result<Origin, NodeError> {
    Ok(Origin {
        tokens: tokens_of(request)?,
        ca: request.ca.clone(),
        cas: authorities_of(request)?,
        swarm: request.swarm_members.clone(),
        ..Default::default()
    })
}

/// The addresses of the image and its sources.
fn addresses(request: &RunRequest) -> impl Iterator<Item = &str> {
    let more = request.sources.iter().map(String::as_str);
    std::iter::once(&*request.image).chain(more)
}

/// The tokens of a request, each for one hub.
fn tokens_of(request: &RunRequest) -> Result<Tokens, NodeError> {
    let mut tokens = bind_token(request.token.as_deref(), addresses(request))?;
    for (address, token) in &request.tokens {
        let hub = HubAddress::of(address)
            .ok_or_else(|| usage(format!("{address:?} is no hub's address"), ""))?;
        tokens.extend(bind_token(Some(token), [hub.as_str()])?);
    }
    Ok(tokens)
}

/// The certificate authorities of a request, each for one hub or web server. Their files are read here, because a source that cannot
/// be opened would only be left out.
fn authorities_of(request: &RunRequest) -> Result<Authorities, NodeError> {
    let given = request.cas.iter();
    let given = given.map(|(address, file)| (address.as_str(), file.as_str()));
    let bound = authorities::bind(given, addresses(request))?;
    for (hub, file) in &bound {
        if !Path::new(file).is_absolute() {
            return Err(usage(
                format!("{file:?}, the certificate authority of {hub}, is no absolute path"),
                "give the whole path: the node has another working directory",
            ));
        }
        floe_http::trusting(Some(Path::new(file))).map_err(|why| usage(why, ""))?;
    }
    Ok(bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_api::{
        ErrorCode, Independent as Wish, RestartPolicy, SwarmMember, SwarmMembers, Wait,
    };

    #[test]
    fn a_request_is_read_at_the_door_and_what_cannot_be_meant_is_refused_there() {
        let request = RunRequest {
            image: "debian".into(),
            name: Some("web".into()),
            ..Default::default()
        };
        let checked = CheckedRun::of(&request).unwrap();
        assert_eq!(checked.name, Some("web".parse().unwrap()));
        assert_eq!((&*checked.image, checked.swarm), ("debian", None));
        for odd in [
            RunRequest {
                name: Some("not a name".into()),
                ..request.clone()
            },
            RunRequest {
                remove: true,
                restart: RestartPolicy::Always,
                ..request.clone()
            },
            RunRequest {
                park_after_s: Some(1),
                ..request.clone()
            },
            // refused before anything is fetched
            RunRequest {
                independent: Some(Wish {
                    rate_bytes_s: Some(1),
                }),
                ..request.clone()
            },
            RunRequest {
                forwards: vec!["8080:80".parse().unwrap(), "8080:81".parse().unwrap()],
                ..request.clone()
            },
            RunRequest {
                wait: Wait::Port,
                ..request.clone()
            },
        ] {
            let error = CheckedRun::of(&odd).err().unwrap().to_api();
            assert_eq!(error.code, ErrorCode::Usage, "{error}");
        }
    }

    #[test]
    fn authorities_of_a_request_are_read_and_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let key = rcgen::generate_simple_self_signed(vec!["hub".into()]).unwrap();
        let good = file("good.pem", &key.cert.pem());
        let request = |address: &str, ca: &str| RunRequest {
            image: "https://one.example/web".into(),
            sources: vec!["https://two.example:4500/web".into()],
            ca: Some("/common.pem".into()),
            cas: [(address.to_owned(), ca.to_owned())].into(),
            ..Default::default()
        };
        let origin = access_of(&request("https://two.example:4500", &good)).unwrap();
        assert_eq!(origin.ca_for("https://two.example:4500/web"), Some(&*good));
        assert_eq!(
            origin.ca_for("https://one.example/web"),
            Some("/common.pem"),
            "what has none of its own uses the common one"
        );
        let nowhere = dir.path().join("nowhere.pem");
        for (address, ca, named) in [
            ("https://three.example", &*good, "https://three.example:443"),
            ("https://one.example", "good.pem", "good.pem"),
            (
                "https://one.example",
                nowhere.to_str().unwrap(),
                "nowhere.pem",
            ),
            ("https://one.example", &*file("empty.pem", ""), "empty.pem"),
            (
                "https://one.example",
                &*file("key.pem", "no certificate"),
                "key.pem",
            ),
        ] {
            let error = access_of(&request(address, ca)).unwrap_err().to_api();
            assert_eq!(error.code, floe_api::ErrorCode::Usage, "{error}");
            assert!(error.message.contains(named), "{error}");
        }
        let mut twice = request("https://one.example", &good);
        twice.cas.insert("https://one.example:443/".into(), good);
        let error = access_of(&twice).unwrap_err().to_string();
        assert!(error.contains("two files"), "{error}");
    }

    #[test]
    fn who_names_the_members_of_a_swarm_takes_part_in_it() {
        let listed = RunRequest {
            swarm_members: SwarmMembers::List(vec![SwarmMember {
                key: "0a".repeat(32),
                addresses: vec!["10.0.0.1:4433".into()],
            }]),
            ..Default::default()
        };
        check_swarm(&listed).unwrap();
        assert_eq!(swarm_of(&listed), Some(SwarmUse::On));
        assert_eq!(access_of(&listed).unwrap().swarm, listed.swarm_members);
        let auto = RunRequest {
            swarm: Some(SwarmUse::Auto),
            ..listed.clone()
        };
        assert_eq!(swarm_of(&auto), Some(SwarmUse::Auto));
        assert_eq!(swarm_of(&RunRequest::default()), None);
        for odd in [
            RunRequest {
                swarm: Some(SwarmUse::Off),
                ..listed
            },
            RunRequest {
                swarm_members: SwarmMembers::List(Vec::new()),
                ..Default::default()
            },
        ] {
            let error = check_swarm(&odd).unwrap_err().to_api();
            assert_eq!(error.code, floe_api::ErrorCode::Usage, "{error}");
        }
    }
}
