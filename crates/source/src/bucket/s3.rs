//! What is particular to S3: its settings, and what its refusals mean.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

use super::connect::Connect;
use super::{Environment, Refusal, Words};

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
    let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
    let http = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
    let store = builder
        .with_bucket_name(bucket)
        .with_retry(super::no_retries())
        .with_client_options(connect.options(http))
        .with_http_connector(connect)
        .build();
    Ok(Arc::new(store.map_err(|e| e.to_string())?))
}
