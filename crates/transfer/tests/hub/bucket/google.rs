//! What Google's storage has instead of S3's signatures: tokens that the key of a service account has signed. The rest of its XML
//! interface is S3's but for the word for "only if there is none yet".

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderValue, IF_NONE_MATCH};
use ring::signature::{KeyPair, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use std::process::Command;
use std::time::SystemTime;

const EMAIL: &str = "floe@project.iam.gserviceaccount.example";

/// A service account whose tokens are taken.
pub struct Account {
    pem: String,
    public: Vec<u8>,
}

impl Account {
    pub fn new() -> Account {
        let made = Command::new("openssl")
            .args("genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048".split(' '))
            .output()
            .expect("openssl is missing: make deps");
        assert!(made.status.success(), "{made:?}");
        let pem = String::from_utf8(made.stdout).unwrap();
        let text: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let key = RsaKeyPair::from_pkcs8(&BASE64_STANDARD.decode(text).unwrap()).unwrap();
        Account {
            public: key.public_key().as_ref().to_vec(),
            pem,
        }
    }

    /// The account's file, with the server to use it with.
    #[allow(dead_code, reason = "not every file of tests uses it")]
    pub fn file(&self, server: &str) -> String {
        let account = serde_json::json!({
            "type": "service_account",
            "client_email": EMAIL,
            "private_key": self.pem,
            "private_key_id": "1",
            "gcs_base_url": server,
        });
        account.to_string()
    }

    /// Whether a request has a token of this account that is still valid.
    fn admits(&self, token: &str) -> bool {
        let (signed, signature) = token.rsplit_once('.').unwrap_or_default();
        let decode = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).unwrap_or_default();
        let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &self.public);
        let claims = decode(signed.split('.').nth(1).unwrap_or_default());
        let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap_or_default();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        key.verify(signed.as_bytes(), &decode(signature)).is_ok()
            && claims["iss"] == EMAIL
            && claims["exp"].as_u64() > now.ok().map(|now| now.as_secs())
    }
}

/// Makes a request to Google's storage one to S3's without a signature. `None` if it isn't one; otherwise whether it is allowed.
pub fn translate(account: &Account, headers: &mut HeaderMap) -> Option<bool> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?.to_owned();
    let admitted = account.admits(header.strip_prefix("Bearer ")?);
    headers.remove(AUTHORIZATION);
    if headers
        .remove("x-goog-if-generation-match")
        .is_some_and(|version| version == "0")
    {
        headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
    }
    Some(admitted)
}
