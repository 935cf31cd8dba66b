//! Creates and signs the certificates of a cluster's authority and its members. Nothing is read or written here.

use floe_ground::error::{NodeError, failed};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use std::time::{Duration, SystemTime};

/// How far hosts' clocks may be apart: certificates are valid from this long before they are made.
const CLOCKS_APART: Duration = Duration::from_secs(300);
/// Longest signing request that is read, in bytes: one of our own has some 500.
const REQUEST_BYTES_MAX: usize = 16 << 10;

/// Returns the name that a member's certificate is for.
pub(super) fn host_name(id: &str) -> String {
    format!("{id}.floe")
}

/// The additional name in the authority's certificate.
pub(super) const AUTHORITY: &str = "authority.floe";

fn broken(error: impl std::fmt::Display) -> NodeError {
    failed(format!("cannot make a certificate: {error}"), "report this")
}

/// Returns the parameters of a cluster's CA, which certificates signed by it contain as their issuer.
fn ca_params(cluster: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    let name = format!("floe cluster {cluster}");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Creates a CA; returns its certificate and its key as PEM.
pub(super) fn make_ca(cluster: &str) -> Result<(String, String), NodeError> {
    let key = KeyPair::generate().map_err(broken)?;
    let certificate = ca_params(cluster).self_signed(&key).map_err(broken)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// Creates a member's key; returns it as PEM, with the signing request for it.
pub(super) fn make_key() -> Result<(String, String), NodeError> {
    let key = KeyPair::generate().map_err(broken)?;
    let request = CertificateParams::default()
        .serialize_request(&key)
        .and_then(|request| request.pem())
        .map_err(broken)?;
    Ok((key.serialize_pem(), request))
}

/// The member whose certificate is to be signed.
pub(super) struct Subject<'a> {
    /// The member's id.
    pub id: &'a str,
    /// Its name, for people who look at the certificate.
    pub name: &'a str,
    /// Whether it is the authority.
    pub authority: bool,
    /// How long the certificate is valid.
    pub lifetime: Duration,
}

/// A certificate as PEM, and from when to when it is valid, in seconds of Unix time.
pub(super) type Signed = (String, (u64, u64));

/// Signs a request for a member; only the key is taken from the request. Returns `None` unless it is a request signed with
/// that key.
pub(super) fn sign(
    ca_key_pem: &str,
    cluster: &str,
    request_pem: &str,
    subject: &Subject<'_>,
) -> Result<Option<Signed>, NodeError> {
    if request_pem.len() > REQUEST_BYTES_MAX {
        return Ok(None);
    }
    let Ok(mut request) = CertificateSigningRequestParams::from_pem(request_pem) else {
        return Ok(None);
    };
    let now = SystemTime::now();
    let (from, to) = (now - CLOCKS_APART, now + subject.lifetime);
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, subject.name);
    let mut names = vec![host_name(subject.id)];
    if subject.authority {
        names.push(AUTHORITY.to_owned());
    }
    for name in names {
        let name = name.try_into().map_err(broken)?;
        params.subject_alt_names.push(SanType::DnsName(name));
    }
    params.not_before = from.into();
    params.not_after = to.into();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.use_authority_key_identifier_extension = true;
    request.params = params;
    let ca_key = KeyPair::from_pem(ca_key_pem).map_err(broken)?;
    let issuer = Issuer::new(ca_params(cluster), ca_key);
    let certificate = request.signed_by(&issuer).map_err(broken)?;
    let unix = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default().as_secs()
    };
    Ok(Some((certificate.pem(), (unix(now), unix(to)))))
}

/// Reads a certificate from its PEM text.
pub(super) fn read(pem: &str) -> Result<CertificateDer<'static>, String> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| error.to_string())
}

/// Reads a key from its PEM text.
pub(super) fn read_key(pem: &str) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|error| error.to_string())
}

/// Returns the SHA-256 of a certificate.
pub(super) fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    let suite = rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let suite = suite.tls13().expect("it is a suite of TLS 1.3");
    let hash = suite.common.hash_provider.hash(certificate);
    let mut out = [0; 32];
    out.copy_from_slice(hash.as_ref());
    out
}
