//! What is particular to Azure's blob storage: its settings, and what its refusals mean.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};

use super::connect::Connect;
use super::{Refusal, Words};
use crate::environment::Environment;

pub(super) const WORDS: Words = Words {
    rights: "set AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY in the node's environment (or AZURE_STORAGE_SAS_TOKEN instead of the key, \
with the rights to read and list there, and to create and write for a push)",
    elsewhere: "check the account and the endpoint in the node's environment",
    refusals: &[
        Refusal {
            code: "ContainerNotFound",
            why: "there is no such container",
            fix: "create it, or check its name and AZURE_STORAGE_ACCOUNT in the node's environment",
        },
        Refusal {
            code: "ContainerBeingDeleted",
            why: "the container is being deleted",
            fix: "use another one",
        },
        Refusal {
            code: "AuthenticationFailed",
            why: "the key does not belong to the account, has expired, or this host's clock is wrong",
            fix: "check AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_KEY and AZURE_STORAGE_SAS_TOKEN in the node's environment, and the clock",
        },
        Refusal {
            code: "AuthorizationFailure",
            why: "the key, the token or the account's network rules do not allow this",
            fix: "check AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_KEY and AZURE_STORAGE_SAS_TOKEN in the node's environment, and let this host in",
        },
        Refusal {
            code: "AuthorizationPermissionMismatch",
            why: "the credentials do not allow this",
            fix: "use some with the rights to read, list, create and write (the role Storage Blob Data Contributor)",
        },
        Refusal {
            code: "AccountIsDisabled",
            why: "the account is disabled",
            fix: "ask who runs it",
        },
    ],
};

/// What Azure's command line calls the settings that object_store has other names for.
const AZURE_CLI: [(&str, AzureConfigKey); 2] = [
    ("AZURE_STORAGE_ACCOUNT", AzureConfigKey::AccountName),
    ("AZURE_STORAGE_KEY", AzureConfigKey::AccessKey),
];

/// Makes the store of a container from the `AZURE_*` variables.
pub(super) fn open(
    container: &str,
    environment: &Environment,
    connect: Connect,
) -> Result<Arc<dyn ObjectStore>, String> {
    let mut builder = MicrosoftAzureBuilder::new();
    // A connection string has all of it. Its key must not go to the server of another variable, so nothing else counts then.
    match environment.get("AZURE_STORAGE_CONNECTION_STRING") {
        Some(text) => {
            for (key, value) in connection(text)? {
                builder = builder.with_config(key, value);
            }
        }
        None => {
            for (name, value) in environment.with_prefix("AZURE_") {
                let cli = AZURE_CLI.iter().find(|(known, _)| *known == name);
                let key = match cli {
                    Some((_, key)) => Some(*key),
                    None => name.to_ascii_lowercase().parse().ok(),
                };
                if let Some(key) = key {
                    builder = builder.with_config(key, value);
                }
            }
        }
    }
    let emulator = builder.get_config_value(&AzureConfigKey::UseEmulator);
    let is_emulator = emulator.as_deref() == Some("true");
    if builder
        .get_config_value(&AzureConfigKey::AccountName)
        .is_none()
        && !is_emulator
    {
        return Err(
            "whose container this is isn't known; set AZURE_STORAGE_ACCOUNT in the node's environment".into(),
        );
    }
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    let http = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
    let store = builder
        .with_container_name(container)
        .with_retry(super::no_retries())
        .with_client_options(connect.options(http || is_emulator))
        .with_http_connector(connect)
        .build();
    Ok(Arc::new(store.map_err(|e| e.to_string())?))
}

/// Reads `AZURE_STORAGE_CONNECTION_STRING`, as Azure's portal shows it: `AccountName=...;AccountKey=...;EndpointSuffix=...`.
fn connection(text: &str) -> Result<Vec<(AzureConfigKey, String)>, String> {
    let mut settings = Vec::new();
    let (mut scheme, mut suffix) = ("https", None);
    let mut account = None;
    let mut has_endpoint = false;
    for part in text
        .split(';')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        // no value in a message: it may be the key
        let (name, value) = part.split_once('=').ok_or(
            "AZURE_STORAGE_CONNECTION_STRING is not of the form NAME=VALUE;NAME=VALUE; copy it anew from the account's access keys",
        )?;
        match name.to_ascii_lowercase().as_str() {
            "accountname" => {
                account = Some(value);
                settings.push((AzureConfigKey::AccountName, value.into()));
            }
            "accountkey" => settings.push((AzureConfigKey::AccessKey, value.into())),
            "sharedaccesssignature" => settings.push((AzureConfigKey::SasKey, value.into())),
            "blobendpoint" => {
                has_endpoint = true;
                settings.push((AzureConfigKey::Endpoint, value.trim_end_matches('/').into()));
            }
            "defaultendpointsprotocol" => scheme = value,
            "endpointsuffix" => suffix = Some(value),
            "usedevelopmentstorage" => settings.push((AzureConfigKey::UseEmulator, value.into())),
            // endpoints of other services
            _ => {}
        }
    }
    if let (Some(account), Some(suffix), false) = (account, suffix, has_endpoint) {
        settings.push((
            AzureConfigKey::Endpoint,
            format!("{scheme}://{account}.blob.{suffix}"),
        ));
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(AzureConfigKey, String)> {
        connection(text).unwrap()
    }

    #[test]
    fn a_connection_string_says_account_key_and_server() {
        use AzureConfigKey::{AccessKey, AccountName, Endpoint, SasKey, UseEmulator};
        assert_eq!(
            read(
                "DefaultEndpointsProtocol=https;AccountName=ann;AccountKey=a+b/c==;EndpointSuffix=core.chinacloudapi.cn"
            ),
            [
                (AccountName, "ann".into()),
                (AccessKey, "a+b/c==".into()),
                (Endpoint, "https://ann.blob.core.chinacloudapi.cn".into()),
            ]
        );
        assert_eq!(
            read(
                "BlobEndpoint=http://127.0.0.1:1/ann/;AccountName=ann;EndpointSuffix=x;SharedAccessSignature=sv=1&sig=2;"
            ),
            [
                (Endpoint, "http://127.0.0.1:1/ann".into()),
                (AccountName, "ann".into()),
                (SasKey, "sv=1&sig=2".into()),
            ]
        );
        assert_eq!(
            read("UseDevelopmentStorage=true"),
            [(UseEmulator, "true".into())]
        );
        let bad = connection("AccountName=ann;geheim").unwrap_err();
        assert!(!bad.contains("geheim"), "{bad}");
    }
}
