//! What is particular to S3: its settings, and what its refusals mean.

use std::sync::Arc;

use floe_http::{Host, Url};
use object_store::ObjectStore;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

use super::connect::Connect;
use super::{Refusal, Words};
use crate::environment::Environment;

pub(super) const WORDS: Words = Words {
    rights: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the node's environment to a key that may do s3:ListBucket and \
s3:GetObject there, and s3:PutObject for a push",
    elsewhere: "if the bucket is in another region, set AWS_REGION in the node's environment to that",
    refusals: &[
        Refusal {
            code: "NoSuchBucket",
            why: "there is no such bucket",
            fix: "create it, or check its name, AWS_REGION and AWS_ENDPOINT_URL in the node's environment",
        },
        Refusal {
            code: "InvalidAccessKeyId",
            why: "the server does not know the key",
            fix: "check AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL in the node's environment",
        },
        Refusal {
            code: "SignatureDoesNotMatch",
            why: "the secret does not belong to the key",
            fix: "check AWS_SECRET_ACCESS_KEY in the node's environment",
        },
        Refusal {
            code: "ExpiredToken",
            why: "the session's token has expired",
            fix: "renew AWS_SESSION_TOKEN and the keys in the node's environment, and start the node again",
        },
        Refusal {
            code: "RequestTimeTooSkewed",
            why: "this host's clock is wrong by more than the server allows",
            fix: "set the clock (timedatectl set-ntp true)",
        },
        Refusal {
            code: "AuthorizationHeaderMalformed",
            why: "the bucket is in another region",
            fix: "set AWS_REGION in the node's environment to the bucket's region",
        },
        Refusal {
            code: "PermanentRedirect",
            why: "the bucket is in another region",
            fix: "set AWS_REGION in the node's environment to the bucket's region",
        },
        Refusal {
            code: "IllegalLocationConstraintException",
            why: "the bucket is in another region",
            fix: "set AWS_REGION in the node's environment to the bucket's region",
        },
        Refusal {
            code: "QuotaExceeded",
            why: "its owner may store no more there",
            fix: "make room there, or have the quota raised",
        },
        Refusal {
            code: "AccountProblem",
            why: "the server has closed the account",
            fix: "ask who runs it",
        },
    ],
};

/// Makes the store of a bucket from the `AWS_*` variables.
pub(super) fn open(
    bucket: &str,
    environment: &Environment,
    connect: Connect,
) -> Result<Arc<dyn ObjectStore>, String> {
    let mut builder = AmazonS3Builder::new();
    for (name, value) in environment.with_prefix("AWS_") {
        if let Ok(key) = name.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    // Amazon's own libraries prefer this one, which object_store doesn't know
    if let Some(endpoint) = environment.get("AWS_ENDPOINT_URL_S3") {
        builder = builder.with_endpoint(endpoint);
    }
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
    let http = endpoint
        .as_deref()
        .is_some_and(|endpoint| endpoint.starts_with("http://"));
    let style = builder.get_config_value(&AmazonS3ConfigKey::VirtualHostedStyleRequest);
    if let Some(endpoint) = &endpoint
        && style.is_some_and(|style| is_yes(&style))
    {
        // object_store takes the server of this style for the bucket's own, whichever bucket the address names
        builder = builder.with_endpoint(server_of(bucket, endpoint)?);
    }
    let store = builder
        .with_bucket_name(bucket)
        .with_retry(super::no_retries())
        .with_client_options(connect.options(http))
        .with_http_connector(connect)
        .build();
    Ok(Arc::new(store.map_err(|e| e.to_string())?))
}

/// Returns whether a setting is on, by object_store's words for that.
fn is_yes(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["1", "true", "on", "yes", "y"].contains(&&*text)
}

/// Returns the server at which a bucket is asked by its own name, as the part of the host's name before the endpoint's. An endpoint that
/// begins with the bucket's name is that server already.
fn server_of(bucket: &str, endpoint: &str) -> Result<String, String> {
    let style = "AWS_VIRTUAL_HOSTED_STYLE_REQUEST puts the bucket before the name of the server";
    let mut url =
        Url::parse(endpoint).map_err(|e| format!("AWS_ENDPOINT_URL is not a URL ({e})"))?;
    let host = match url.host() {
        Some(Host::Domain(host)) => host.to_owned(),
        _ => {
            return Err(format!(
                "{style}, and AWS_ENDPOINT_URL has no name; leave one of the two out of the node's environment"
            ));
        }
    };
    if !host.starts_with(&format!("{}.", bucket.to_ascii_lowercase())) {
        let all = format!("{bucket}.{host}");
        let set = url.set_host(Some(&all));
        set.map_err(|e| format!("{style}, and {all} is no name of one ({e})"))?;
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_asked_by_its_own_name_however_the_server_is_written() {
        for (endpoint, server) in [
            ("https://s3.example", "https://images.s3.example"),
            ("http://s3.example:9000/", "http://images.s3.example:9000"),
            ("https://images.s3.example", "https://images.s3.example"),
            (
                "https://imagesite.example",
                "https://images.imagesite.example",
            ),
            ("https://s3.example/base", "https://images.s3.example/base"),
        ] {
            assert_eq!(server_of("images", endpoint).unwrap(), server);
        }
        for bad in ["http://127.0.0.1:9000", "http://[::1]", "s3.example"] {
            let error = server_of("images", bad).unwrap_err();
            assert!(error.contains("AWS_ENDPOINT_URL"), "{error}");
        }
        assert!(is_yes("TRUE") && is_yes("1") && !is_yes("false") && !is_yes(""));
    }
}
