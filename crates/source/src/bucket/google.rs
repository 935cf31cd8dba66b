//! What is particular to Google Cloud Storage: its credentials, and what its refusals mean.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::gcp::GoogleCloudStorageBuilder;
use serde::Deserialize;

use super::connect::Connect;
use super::{Refusal, Words};
use crate::environment::Environment;

pub(super) const WORDS: Words = Words {
    rights: "set GOOGLE_APPLICATION_CREDENTIALS in the node's environment to the file with the key of a service account that may do \
storage.objects.list and storage.objects.get there, and storage.objects.create and storage.objects.delete for a push",
    elsewhere: "check the bucket's name, and STORAGE_EMULATOR_HOST in the node's environment",
    refusals: &[
        Refusal {
            code: "NoSuchBucket",
            why: "there is no such bucket",
            fix: "create it, or check its name, and STORAGE_EMULATOR_HOST in the node's environment",
        },
        Refusal {
            code: "AuthenticationRequired",
            why: "the server does not accept the credentials",
            fix: "check GOOGLE_APPLICATION_CREDENTIALS in the node's environment",
        },
        Refusal {
            code: "RequestTimeTooSkewed",
            why: "this host's clock is wrong by more than the server allows",
            fix: "set the clock (timedatectl set-ntp true)",
        },
        Refusal {
            code: "AccountProblem",
            why: "there is a problem with the account, its billing for one",
            fix: "look at the project in Google's console",
        },
        Refusal {
            code: "UserProjectMissing",
            why: "who reads this bucket pays for it, which floe can't",
            fix: "use another bucket",
        },
    ],
};

/// Most bytes of a file of credentials; one has 2 KiB.
const CREDENTIALS_BYTES_MAX: u64 = 64 << 10;

/// What kind of credentials a file has.
#[derive(Deserialize)]
struct Credentials {
    r#type: Option<String>,
}

/// Makes the store of a bucket from Google's own variables and object_store's `GOOGLE_*`.
pub(super) fn open(
    bucket: &str,
    environment: &Environment,
    connect: Connect,
) -> Result<Arc<dyn ObjectStore>, String> {
    let mut builder = GoogleCloudStorageBuilder::new();
    if let Some(host) = environment.get("STORAGE_EMULATOR_HOST") {
        // As Google's own libraries have it: another server than Google's gets no credentials.
        let address = match host.contains("://") {
            true => host.to_owned(),
            false => format!("http://{host}"),
        };
        let account = serde_json::json!({
            "gcs_base_url": address.trim_end_matches('/'),
            "disable_oauth": true,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        });
        builder = builder.with_service_account_key(account.to_string());
        builder = builder.with_skip_signature(true);
    } else {
        for (name, value) in environment.with_prefix("GOOGLE_") {
            if let Ok(key) = name.to_ascii_lowercase().parse() {
                builder = builder.with_config(key, value);
            }
        }
        if let Some(file) = environment.get("GOOGLE_APPLICATION_CREDENTIALS") {
            check(file)?;
        }
    }
    let store = builder
        .with_bucket_name(bucket)
        .with_retry(super::no_retries())
        // an emulator, and the server of a cloud's instance that has its credentials; Google's storage has https in its address
        .with_client_options(connect.options(true))
        .with_http_connector(connect)
        .build();
    Ok(Arc::new(store.map_err(|e| e.to_string())?))
}

/// Looks whether a file has credentials of a kind that can be used; object_store's own message names no file.
fn check(file: &str) -> Result<(), String> {
    let bad = |why: String| {
        format!(
            "GOOGLE_APPLICATION_CREDENTIALS names {file}, which {why}; use the key of a service account"
        )
    };
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|opened| opened.take(CREDENTIALS_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|e| bad(format!("can't be read ({e})")))?;
    let found: Credentials = serde_json::from_slice(&bytes)
        .map_err(|e| bad(format!("is no file of credentials ({e})")))?;
    match found.r#type.as_deref() {
        Some("service_account" | "authorized_user") => Ok(()),
        kind => Err(bad(format!(
            "has credentials of kind {:?}, which floe doesn't know",
            kind.unwrap_or_default()
        ))),
    }
}
